# Starts a command, once, and waits for its end. $2: the maximum time in seconds. $3: the script that runs it. $4: the prefix
# of the file with its words: a second request must not change the words of the first run. $5: the script that runs a line
# of a shell session.
if mkdir "$d.started" 2> /dev/null; then
  mv "$d.$4-in" "$d.in"
  sleep "$2" > /dev/null 2>&1 3>&- &
  nap=$!
  SANDPOD_JOB=$1 $(command -v setsid) sh -c "$3" sandpod "$1" $nap "$5" > /dev/null 2>&1 3>&- < /dev/null &
  running=$!
  wait $nap 2> /dev/null
  # In a directory that goes with the job, so that a job that was deleted meanwhile leaves no file.
  { true > "$d.started/late"; } 2> /dev/null
  [ ! -e "$d.code" ] || wait $running
  waited=0
fi
