# Ends a command that somebody has given up.
[ -d "$d/started" ] || fail outcome-unknown
[ -e "$d/code" ] || { kill_all "$1"; end 124 timeout; }
: > "$d/out"
reply
