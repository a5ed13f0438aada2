# Ends all that a command started but this process: the folder of its errand is a mark in their environment.
kill_all() {
  rounds=10
  while [ $rounds -gt 0 ]; do
    found=
    for process in $(grep -lF "SANDPOD_JOB=$1." /proc/[0-9]*/environ 2> /dev/null); do
      pid=${process#/proc/}
      pid=${pid%/environ}
      [ "$pid" = $$ ] || ! kill -KILL "$pid" 2> /dev/null || found=yes
    done
    [ -n "$found" ] || break
    rounds=$((rounds - 1))
  done
}
# $1: its exit code. $2: "timeout" if its time was up.
end() {
  touch "$d/output"
  echo "$1 $(($(wc -c < "$d/output"))) $2" > "$d/code.new"
  mv "$d/code.new" "$d/code"
}
