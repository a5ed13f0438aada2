# Finds the files below a directory. 2: "text" for those that contain the text in 3. $2: the time limit in seconds.
# $3: "links" to include links to files.
info "$path" -L > /dev/null
limit=$(command -v timeout > /dev/null && echo "timeout $2")
kind=$(word 2)
{ word 3; echo; } > "$own.text"
: > "$own.out"
if [ "$kind" = text ] && [ ! -d "$path" ]; then
  [ ! -f "$path" ] || echo . > "$own.out"
  reply
fi
[ -d "$path" ] || fail not-a-directory
cd "$path" 2> "$own.err" || failed
if [ "$kind" = text ]; then
  $limit find . -name .sandpod -prune -o -name .git -prune -o -type f -exec grep -lF -f "$own.text" {} + > "$own.out" 2> "$own.err"
else
  root=$(pwd -P)
  # A link counts as its target if the target is below the directory, too.
  # shellcheck disable=SC2016
  leads='test -n "$2" && test -f "$1" && case $(readlink -f "$1") in "$0"/*) ;; *) exit 1 ;; esac'
  $limit find . -name .sandpod -prune -o \( -type f -o -type l -exec sh -c "$leads" "${root%/}" {} "$3" \; \) \
    -exec stat -L -c "%f %s %Y %u %g %n" {} + > "$own.out" 2> "$own.err"
fi
ended=$?
if [ "$(($(wc -c < "$own.out")))" -gt "$most" ]; then
  head -c "$most" "$own.out" > "$own.some" && mv "$own.some" "$own.out"
  ended=124
fi
case $ended in 124 | 143) { echo; echo budget; } >> "$own.out" ;; esac
[ ! -s "$own.err" ] || { echo; echo unreadable; } >> "$own.out"
reply
