# 2: "empty" to refuse a directory that is not empty.
info "$path" "" > /dev/null
: > "$own.out"
if [ -d "$path" ] && [ ! -L "$path" ] && [ "$(word 2)" = empty ]; then
  rmdir "$path" 2> "$own.err" || failed
else
  rm -rf "$path" 2> "$own.err" || failed
fi
reply
