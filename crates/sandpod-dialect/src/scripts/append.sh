# Adds a part to a content that comes in many. 2: how long it must be before.
touch "$d/body"
[ "$(($(wc -c < "$d/body")))" = "$(word 2)" ] || fail corrupt
cat "$d/part" >> "$d/body" 2> "$own.err" || failed
: > "$own.out"
reply
