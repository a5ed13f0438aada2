# Runs a command to its end, in a session of its own. $2: the process that waits for it, unless it is late. $3: the script
# that runs a line of a shell session.
# Words: 1 the working directory, 2 the timeout in seconds (0: none), 3 the maximum output, 4 the shell session, 5 the working
# directory of this line alone, 6 "line" if the last word is a line, 7 and 8 the numbers of variables of the sandbox and the
# command, then these variables, then the words of the command.
mark=$1
waiting=$2
driver=$3
seconds=$(word 2)
[ "$seconds" != 0 ] || seconds=999999999
blocks=$(($(word 3) / 512 + 1))
session=$(word 4)
clear=
options=
note=
text() { value=$(word "$1"; echo x); value=${value%x}; }
# The state that earlier lines of the session left.
if [ -n "$session" ]; then
  kept=${d%/*}/shell.$session
  if cp "$kept" "$d.state" 2> /dev/null; then
    clear=-i
    dir=$(sed -n 1p "$d.state" | base64 -d; echo x)
    dir=${dir%/x}
    [ ! -d "$dir" ] || path=$dir
    umask "$(sed -n 2p "$d.state")"
    options=$(sed -n 3p "$d.state")
    sed 1,3d "$d.state" > "$d.env"
  fi
  home=$path
  text 5
  case $value in
    "") ;;
    /*) path=$value ;;
    *) path=$path/$value ;;
  esac
fi
last=$(($(wc -l < "$d.in")))
if [ "$(word 6)" = line ]; then
  { printf %s "$options"; word $last; } > "$d.line"
  last=$((last - 1))
fi
# The arguments of "env": the variables, then the program with its arguments.
set -- "SANDPOD_JOB=$mark"
search=$PATH
n=9
own_variables=$((n + $(word 7)))
words=$((own_variables + $(word 8)))
[ -z "$clear" ] || n=$own_variables
if [ -n "$session" ]; then
  program=/bin/sh
  variables=$own_variables
else
  variables=$words
fi
while [ $n -lt $variables ]; do
  text $n
  case $value in PATH=*) search=${value#PATH=} ;; esac
  set -- "$@" "$value"
  n=$((n + 1))
done
if [ -n "$session" ]; then
  set -- "$@" /bin/sh -c "$driver" /bin/sh "$d"
elif [ -e "$d.line" ]; then
  program=/bin/sh
  # shellcheck disable=SC2016
  set -- "$@" "SANDPOD_LINE=$d.line" /bin/sh -c '. "$SANDPOD_LINE"'
else
  text $n
  program=$value
  # "env" would treat a program with a = in its name as a variable.
  set -- "$@" /bin/sh -c 'exec "$@"' sh
fi
while [ $n -le $last ]; do
  text $n
  set -- "$@" "$value"
  n=$((n + 1))
done
refuse() {
  printf "the command was not started: %s" "$1"
  exit 125
}
is_known() {
  case $1 in
    */*) [ -e "$1" ] ;;
    *) (IFS=:; for dir in $search; do [ ! -x "${dir:-.}/$1" ] || exit 0; done; exit 1) ;;
  esac
}
# Replaces this shell by the command.
become() {
  [ -d "$path" ] || refuse "the working directory $path does not exist"
  cd "$path" || refuse "the working directory $path cannot be used"
  is_known "$program" || refuse "there is no program $program"
  unset LC_ALL
  # Unquoted: without an option there must be no word.
  # shellcheck disable=SC2086
  exec env $clear "$@" 2>&1 3>&- < /dev/null
}
same() { [ "$(cat "$d.found-$1")" = "$(cat "$d.left-$1")" ]; }
# Stores the state in which a line of a shell session ended, unless the line has changed nothing: a concurrent line may have
# changed it.
leave() {
  [ -e "$d.left" ] && [ "$(tail -n 1 "$d.left-env")" = "# end" ] || return
  if [ "$(($(wc -c < "$d.left-env")))" -gt 102400 ]; then
    note=large
    return
  fi
  dir=$(cat "$d.left-dir"; echo x)
  dir=${dir%?x}
  # The working directory of this line alone is not kept.
  [ "$path" = "$home" ] || [ "$(cd "$path" && pwd -P)" != "$(cd "$dir" && pwd -P)" ] || dir=$home
  found=$options
  stay="allexport|errexit|noclobber|noglob|nounset|pipefail|verbose|xtrace"
  options=$(grep -E "^set -o ($stay)\$" "$d.left-options" | sed "s/^set//" | tr -d "\n")
  options=${options:+set$options; }
  if [ "$options" = "$found" ] && same umask && same env && { same dir || [ "$dir" = "$home" ]; }; then return; fi
  {
    printf %s "$dir/" | base64 | tr -d "\n"
    echo
    cat "$d.left-umask"
    echo "$options"
    cat "$d.left-env"
  } > "$d.new"
  mv "$d.new" "$kept"
  # 32 sessions are kept, as in a guest. Their names are hexadecimal digits.
  # shellcheck disable=SC2010
  for old in $(cd "${kept%/*}" && ls -t | grep "^shell\." | sed -n '33,$p'); do rm -f "${kept%/*}/$old"; done
}
sleep "$seconds" &
time=$!
# Drops output beyond the limit while the command continues. The process that drops it has no mark: it ends with the
# output.
# shellcheck disable=SC2016
keep='trap "" XFSZ; ulimit -f "$2"; cat > "$3"; cat > /dev/null; : > "$3.whole"; kill "$1" "$(cat "$4")"'
{
  (become "$@")
  echo $? > "$d.status"
  # Surviving children may hold its output open: they get a short time.
  sleep 1 > /dev/null &
  echo $! > "$d.moment"
  exec > /dev/null
  wait $!
  [ -e "$d.output.whole" ] || kill $time
} | (
  unset SANDPOD_JOB
  exec sh -c "$keep" sandpod $time $blocks "$d.output" "$d.moment"
) &
wait $time
if [ -s "$d.status" ]; then
  [ -z "$session" ] || leave
  end "$(cat "$d.status")" - $note
else
  kill_all "$mark"
  finish
  end 124 timeout
fi
[ -e "$d.started/late" ] || kill "$waiting"
# PID 1 of a Pod seldom reaps orphans, so this process does.
[ ! -e "$d.output.whole" ] || wait
