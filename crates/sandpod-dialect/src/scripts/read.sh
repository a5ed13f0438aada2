# 2: the offset. 3: the length.
info "$path" -L > "$own.out"
[ ! -d "$path" ] || fail is-directory
[ -f "$path" ] || fail not-a-file
tail -c "+$(($(word 2) + 1))" "$path" 2> "$own.err" | head -c "$(word 3)" >> "$own.out"
[ ! -s "$own.err" ] || failed
reply
