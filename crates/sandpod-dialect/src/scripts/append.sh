# Adds a part to a content that comes in many. $2: the content's size before, which is part of the part's name.
touch "$d.body"
[ "$(($(wc -c < "$d.body")))" = "$2" ] || fail corrupt
cat "$d.part-$2" >> "$d.body" 2> "$own.err" || failed
: > "$own.out"
reply
