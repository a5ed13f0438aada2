# Keeps what the sandbox is set up with, once; says what is kept. $2: the file.
: > "$d/out"
ln "$d/body" "$PWD/$2" 2> "$d/err" || [ -e "$PWD/$2" ] || failed
cat "$PWD/$2" > "$d/out"
reply
