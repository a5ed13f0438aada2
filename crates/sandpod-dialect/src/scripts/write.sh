# 2: the permission bits of a new file. 3: the required SHA-256 of the file; empty: any.
[ ! -d "$path" ] || fail is-directory
if [ -L "$path" ]; then
  path=$(readlink -f "$path" && echo x)
  path=${path%?x}
  [ -n "$path" ] || fail not-found
fi
dir=$(parent "$path")
dir=${dir%x}
make "$dir"
if [ -e "$path" ]; then
  [ -f "$path" ] || fail not-a-file
  mode=$(stat -c %a "$path")
else
  mode=$(word 2)
fi
expected=$(word 3)
[ -z "$expected" ] || [ "$(sha256sum < "$path")" = "$expected  -" ] || fail changed
new=$dir/.sandpod-${1##*/}
if cp "$d.body" "$new" 2> "$own.err" && chmod "$mode" "$new" 2> "$own.err" && mv -f "$new" "$path" 2> "$own.err"; then
  printf atomic > "$own.out"
else
  rm -f "$new"
  [ -w "$path" ] || failed
  cat "$d.body" > "$path" 2> "$own.err" || failed
  : > "$own.out"
fi
reply
