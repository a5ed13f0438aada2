# The files below a directory. 2: a text; if there is one, those that hold it. $2: how many seconds it may take.
info "$path" -L > /dev/null
limit=$(command -v timeout > /dev/null && echo "timeout $2")
word 2 > "$d/text"
if [ -s "$d/text" ] && [ -f "$path" ]; then
  grep -qF -f "$d/text" "$path" && stat -L -c "%f %s %Y %u %g ." "$path" > "$d/out"
  [ -e "$d/out" ] || : > "$d/out"
  reply
fi
[ -d "$path" ] || fail not-a-directory
cd "$path" 2> "$d/err" || failed
if [ -s "$d/text" ]; then
  $limit find . -name .sandpod -prune -o -type f -exec grep -lF -f "$d/text" {} + > "$d/out" 2> "$d/err"
else
  $limit find . -name .sandpod -prune -o -type f -exec stat -c "%f %s %Y %u %g %n" {} + > "$d/out" 2> "$d/err"
fi
ended=$?
if [ "$(($(wc -c < "$d/out")))" -gt "$most" ]; then
  head -c "$most" "$d/out" > "$d/some" && mv "$d/some" "$d/out"
  ended=124
fi
case $ended in 124 | 143) { echo; echo budget; } >> "$d/out" ;; esac
[ ! -s "$d/err" ] || { echo; echo unreadable; } >> "$d/out"
reply
