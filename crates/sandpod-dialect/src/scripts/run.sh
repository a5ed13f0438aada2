# Runs a command to its end, in a session of its own. $2: the process that waits for it, unless it is late.
# Words: 1 where it starts, 2 its time in seconds (0: any), 3 the output that is kept, 4 how many variables there are,
# then these, then the words of the command.
nap=$2
mark=$1
tell() { [ -e "$d/late" ] || kill "$nap" 2> /dev/null; }
cd "$path" 2> "$d/output" || { end 125; tell; exit; }
seconds=$(word 2)
last=$((4 + $(word 4)))
words=$(($(wc -l < "$d/in")))
n=5
while [ $n -le $last ]; do
  value=$(word $n; echo x)
  export "${value%x}"
  n=$((n + 1))
done
set --
while [ $n -le $words ]; do
  value=$(word $n; echo x)
  set -- "$@" "${value%x}"
  n=$((n + 1))
done
[ ! -e "$d/line" ] || export SANDPOD_LINE="$d/line"
unset LC_ALL value
if [ "$seconds" = 0 ]; then
  "$@" > "$d/output" 2>&1 < /dev/null
  end $?
  tell
  exit
fi
sleep "$seconds" &
time=$!
{ "$@" > "$d/output" 2>&1 < /dev/null; echo $? > "$d/status"; kill $time 2> /dev/null; } &
wait $time 2> /dev/null
if [ -s "$d/status" ]; then
  end "$(cat "$d/status")"
else
  kill_all "$mark"
  end 124 timeout
fi
tell
