# Runs a command to its end, in a session of its own. $2: the process that waits for it, unless it is late.
# Words: 1 where it starts, 2 its time in seconds (0: any), 3 the output that is kept, 4 how many variables there are,
# then these, then the words of the command.
mark=$1
waiting=$2
seconds=$(word 2)
[ "$seconds" != 0 ] || seconds=999999999
blocks=$(($(word 3) / 512 + 1))
variables=$(word 4)
words=$(($(wc -l < "$d/in")))
n=5
set --
while [ $n -le $words ]; do
  value=$(word $n; echo x)
  set -- "$@" "${value%x}"
  n=$((n + 1))
done
refuse() {
  printf "the command was not started: %s" "$1"
  exit 125
}
is_known() {
  case $1 in
    */*) [ -e "$1" ] ;;
    *) (IFS=:; for dir in $PATH; do [ ! -x "${dir:-.}/$1" ] || exit 0; done; exit 1) ;;
  esac
}
# The command in the place of this shell. Only what the shell does itself is done here: the variables are the user's.
become() {
  [ -d "$path" ] || refuse "the working directory $path does not exist"
  cd "$path" || refuse "the working directory $path cannot be used"
  unset LC_ALL value
  [ ! -e "$d/line" ] || export SANDPOD_LINE="$d/line"
  while [ "$variables" -gt 0 ]; do
    variables=$((variables - 1))
    export "${1?}"
    shift
  done
  is_known "$1" || refuse "there is no program $1"
  exec "$@" 2>&1 3>&- < /dev/null
}
sleep "$seconds" &
time=$!
# What is past the limit is dropped, and the command goes on. Who keeps the rest has no mark: it ends with the output.
# shellcheck disable=SC2016
keep='trap "" XFSZ; ulimit -f "$2"; cat > "$3"; cat > /dev/null; : > "$3.whole"; kill "$1" "$(cat "$4")"'
{
  (become "$@")
  echo $? > "$d/status"
  # Children that live on may hold its output open: they are given a moment.
  sleep 1 > /dev/null &
  echo $! > "$d/moment"
  exec > /dev/null
  wait $!
  [ -e "$d/output.whole" ] || kill $time
} | (
  unset SANDPOD_JOB
  exec sh -c "$keep" sandpod $time $blocks "$d/output" "$d/moment"
) &
wait $time
if [ -s "$d/status" ]; then
  end "$(cat "$d/status")"
else
  kill_all "$mark"
  n=10
  while [ ! -e "$d/output.whole" ] && [ $n -gt 0 ]; do
    nap
    n=$((n - 1))
  done
  end 124 timeout
fi
[ -e "$d/late" ] || kill "$waiting"
# Nobody else may: the first process of a Pod that runs something else seldom does.
[ ! -e "$d/output.whole" ] || wait
