# Waits for the end of a command. $2: the maximum time in seconds.
[ -d "$d.started" ] || fail outcome-unknown
n=$((${waited:-$2} * 5))
while [ ! -e "$d.code" ] && [ $n -gt 0 ]; do
  nap
  n=$((n - 1))
done
: > "$own.out"
[ ! -e "$d.code" ] || { cat "$d.code"; head -c "$(word 3)" "$d.output"; } > "$own.out"
reply
