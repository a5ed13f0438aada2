# Appends a part to a content. $2: the size of the content before, which is in the name of the part.
touch "$d.body"
[ "$(($(wc -c < "$d.body")))" = "$2" ] || fail corrupt
cat "$d.part-$2" >> "$d.body" 2> "$own.err" || failed
: > "$own.out"
reply
