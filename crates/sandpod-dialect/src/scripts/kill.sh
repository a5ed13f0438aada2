# Kills all that a command started, except this process. $1: the job, which marks the processes' environment.
kill_all() {
  rounds=10
  while [ $rounds -gt 0 ]; do
    found=
    for process in /proc/[0-9]*; do
      pid=${process#/proc/}
      [ "$pid" != $$ ] || continue
      { tr "\0" "\n" < "$process/environ" | grep -qxF "SANDPOD_JOB=$1" && kill -KILL "$pid" && found=yes; } 2> /dev/null
    done
    [ -n "$found" ] || break
    rounds=$((rounds - 1))
  done
}
# Waits for a moment until the output of a killed command is complete.
finish() {
  n=10
  while [ ! -e "$d.output.whole" ] && [ $n -gt 0 ]; do
    nap
    n=$((n - 1))
  done
}
# $1: the exit code. $2: "timeout" after a timeout. $3: the state that its shell session could not keep.
end() {
  touch "$d.output"
  echo "$1 $(($(wc -c < "$d.output"))) ${2:--} ${3:--}" > "$d.code.new"
  mv "$d.code.new" "$d.code"
}
