# The beginning of every script. $1: the errand's folder, below where the runtime starts commands.
# User data never is in these words: it comes by the file "in", a word in each line, as base64.
export LC_ALL=C
d=$PWD/$1
word() { sed -n "$1p" "$d/in" | base64 -d; }
# What is said goes here, also where the output goes elsewhere.
exec 3>&1
fail() { echo "no $1" >&3; exit 0; }
failed() { { echo no; base64 < "$d/err"; } >&3; exit 0; }
reply() { { echo "ok $(($(wc -c < "$d/out")))"; head -c 262144 "$d/out" | base64; } >&3; exit 0; }
# The most that an answer may hold.
most=8388608
path=$(word 1; echo x)
path=${path%x}
# Without quotes: no second word, no option.
# shellcheck disable=SC2086
info() { stat $2 -c "%f %s %Y %u %g" "$1" 2> "$d/err" || failed; }
parent() { p=${1%/*}; echo "${p:-/}x"; }
# Makes a directory, with those above it.
make() {
  mkdir -p "$1" 2> "$d/err" && return
  [ ! -e "$1" ] || fail not-a-directory
  failed
}
nap() { sleep 0.2 2> /dev/null || sleep 1; }
