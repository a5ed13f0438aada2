# The beginning of every script. $1: what the names of the job's files begin with, below where the runtime starts commands.
# User data is never part of a script or its arguments: it comes in the file "in", a word in each line, as base64.
export LC_ALL=C
mkdir -p "$PWD/${1%/*}"
d=$PWD/$1
# The files of one run: a job may run twice at once, when the answer to the first request was lost.
own=$d.$$
word() { sed -n "$1p" "$d.in" 2> /dev/null | base64 -d; }
# Answers go here, even where the output goes elsewhere.
exec 3>&1
fail() { echo "no $1" >&3; exit 0; }
failed() { { echo no; base64 < "$own.err"; } >&3; exit 0; }
# A longer answer is fetched.
inline=262144
reply() {
  size=$(($(wc -c < "$own.out")))
  { echo "ok $size"; head -c $inline "$own.out" | base64; } >&3
  [ $size -le $inline ] || mv "$own.out" "$d.out"
  exit 0
}
# The most that an answer may hold.
most=8388608
path=$(word 1; echo x)
path=${path%x}
# Without quotes: no second word, no option.
# shellcheck disable=SC2086
info() { stat $2 -c "%f %s %Y %u %g" "$1" 2> "$own.err" || failed; }
parent() { p=${1%/*}; echo "${p:-/}x"; }
# Makes a directory, with those above it.
make() {
  mkdir -p "$1" 2> "$own.err" && return
  [ ! -e "$1" ] || fail not-a-directory
  failed
}
nap() { sleep 0.2 2> /dev/null || sleep 1; }
