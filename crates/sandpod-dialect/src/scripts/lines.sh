# Finds the lines that contain a text. 2: the text. From 3 on: the files below the root. $2: their number. $3: the maximum number of lines.
{ word 2; echo; } > "$own.text"
[ -f "$path" ] || cd "$path" 2> "$own.err" || failed
size() { echo "$(($(wc -c)))"; }
n=0
while [ $n -lt "$2" ]; do
  name=$(word $((n + 3)); echo x)
  name=${name%x}
  [ "$name" != . ] || name=$path
  echo "f $n"
  n=$((n + 1))
  # A file with a NUL byte is binary.
  [ "$(size < "$name")" = "$(tr -d "\0" < "$name" | size)" ] || continue
  grep -anF -m "$3" -f "$own.text" "$name" 2> /dev/null
done 2> /dev/null | head -c "$most" > "$own.out"
reply
