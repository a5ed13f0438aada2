# Starts a command, once, and waits a while for its end. $2: how many seconds. $3: the script that runs it. $4: how the
# names of its words begin: those of who asks again must not change while the first ones are read.
if mkdir "$d/started" 2> /dev/null; then
  mv "$d/$4-in" "$d/in"
  [ ! -e "$d/$4-line" ] || mv "$d/$4-line" "$d/line"
  sleep "$2" > /dev/null 2>&1 3>&- &
  nap=$!
  SANDPOD_JOB=$1 $(command -v setsid) sh -c "$3" sandpod "$1" $nap > /dev/null 2>&1 3>&- < /dev/null &
  running=$!
  wait $nap 2> /dev/null
  : > "$d/late"
  [ ! -e "$d/code" ] || wait $running
  waited=0
fi
