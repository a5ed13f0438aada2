# Does something once, however often it is asked for and whatever becomes of who asks. $2: its name. $3: the script.
said=$d/said-$2
if mkdir "$d/once-$2" 2> /dev/null; then
  # In a session of its own: a runtime ends the process that answers a connection when it loses that.
  # shellcheck disable=SC2016
  $(command -v setsid) sh -c 'sh -c "$2" sandpod "$1" > "$3.new"; mv "$3.new" "$3"' sandpod "$1" "$3" "$said" \
    > /dev/null 2>&1 3>&- < /dev/null &
  wait $!
fi
n=75
while [ ! -e "$said" ] && [ $n -gt 0 ]; do
  nap
  n=$((n - 1))
done
[ -e "$said" ] || fail outcome-unknown
cat "$said" >&3
