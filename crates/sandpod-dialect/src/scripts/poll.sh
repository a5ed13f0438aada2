# Waits a while for the end of a command. $2: how many seconds.
[ -d "$d.started" ] || fail outcome-unknown
n=$((${waited:-$2} * 5))
while [ ! -e "$d.code" ] && [ $n -gt 0 ]; do
  nap
  n=$((n - 1))
done
: > "$own.out"
[ ! -e "$d.code" ] || { cat "$d.code"; head -c "$(word 3)" "$d.output"; } > "$own.out"
reply
