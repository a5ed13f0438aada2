# Ends a command that was cancelled. One that was not started yet never is.
if ! mkdir "$d.started" 2> /dev/null; then
  [ -e "$d.code" ] || { kill_all "$1"; end 124 timeout; }
fi
: > "$own.out"
reply
