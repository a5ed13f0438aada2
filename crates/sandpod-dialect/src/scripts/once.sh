# Runs a script once, however often it is requested. $2: its name. $3: the script. Then its arguments.
said=$d.said-$2
if mkdir "$d.once-$2" 2> /dev/null; then
  # In a session of its own: a runtime may kill the process whose connection is lost.
  # shellcheck disable=SC2016
  run='said=$1 script=$2; shift 2; sh -c "$script" sandpod "$@" > "$said.new"; mv "$said.new" "$said"'
  job=$1 script=$3
  shift 3
  $(command -v setsid) sh -c "$run" sandpod "$said" "$script" "$job" "$@" > /dev/null 2>&1 3>&- < /dev/null &
  wait $!
fi
n=75
while [ ! -e "$said" ] && [ $n -gt 0 ]; do
  nap
  n=$((n - 1))
done
[ -e "$said" ] || fail outcome-unknown
cat "$said" >&3
