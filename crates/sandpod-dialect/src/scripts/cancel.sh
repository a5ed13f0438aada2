# Kills a cancelled command. A command that was not started yet never starts.
if ! mkdir "$d.started" 2> /dev/null; then
  [ -e "$d.code" ] || { kill_all "$1"; end 124 timeout; }
fi
: > "$own.out"
reply
