# 2: the target. 3: "replace" to replace an existing target.
info "$path" "" > /dev/null
to=$(word 2; echo x)
to=${to%x}
if [ -e "$to" ] || [ -L "$to" ]; then
  [ "$(word 3)" = replace ] || fail exists
  [ ! -d "$to" ] || [ -L "$to" ] || fail is-directory
fi
dir=$(parent "$to")
dir=${dir%x}
make "$dir"
: > "$own.out"
[ "$(stat -c %d "$path")" != "$(stat -c %d "$dir")" ] || printf atomic > "$own.out"
mv -f "$path" "$to" 2> "$own.err" || failed
reply
