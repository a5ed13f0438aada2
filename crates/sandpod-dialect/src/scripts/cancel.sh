# Kills a cancelled command. A command that was not started yet never starts. A call that waits for it gets its output.
if ! mkdir "$d.started" 2> /dev/null && [ ! -e "$d.code" ]; then
  kill_all "$1"
  finish
  end 124 timeout
fi
: > "$own.out"
reply
