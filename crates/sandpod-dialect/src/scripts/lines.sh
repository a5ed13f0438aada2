# The lines that hold a text. 2: the text. From 3 on: the files below the root. $2: how many there are. $3: how many lines.
word 2 > "$d/text"
[ -f "$path" ] || cd "$path" 2> "$d/err" || failed
n=0
while [ $n -lt "$2" ]; do
  name=$(word $((n + 3)); echo x)
  name=${name%x}
  [ "$name" != . ] || name=$path
  echo "f $n"
  grep -nF -m "$3" -f "$d/text" "$name" 2> /dev/null
  n=$((n + 1))
done | head -c "$most" > "$d/out"
reply
