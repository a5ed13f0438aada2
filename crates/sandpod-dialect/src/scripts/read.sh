# 2: the offset. 3: the length.
info "$path" -L > "$d/out"
[ ! -d "$path" ] || fail is-directory
[ -f "$path" ] || fail not-a-file
tail -c "+$(($(word 2) + 1))" "$path" 2> "$d/err" | head -c "$(word 3)" >> "$d/out"
[ ! -s "$d/err" ] || failed
reply
