# The beginning of every script. $1: the prefix of the job's files, relative to the working directory of the runtime's commands.
# User data is never part of a script or its arguments: the file "in" contains it, one word per line, as base64.
export LC_ALL=C
mkdir -p "$PWD/${1%/*}"
d=$PWD/$1
# The files of one run. A job may run twice at the same time if the answer to the first request was lost.
own=$d.$$
word() { sed -n "$1p" "$d.in" 2> /dev/null | base64 -d; }
# Answers are written here, even if the output is redirected.
exec 3>&1
fail() { echo "no $1" >&3; exit 0; }
failed() { { echo no; base64 < "$own.err"; } >&3; exit 0; }
# A longer answer is downloaded.
inline=262144
reply() {
  size=$(($(wc -c < "$own.out")))
  { echo "ok $size"; head -c $inline "$own.out" | base64; } >&3
  [ $size -le $inline ] || mv "$own.out" "$d.out"
  exit 0
}
# Maximum size of an answer.
most=8388608
path=$(word 1; echo x)
path=${path%x}
# Unquoted: without a second word there must be no option.
# shellcheck disable=SC2086
info() { stat $2 -c "%f %s %Y %u %g" "$1" 2> "$own.err" || failed; }
parent() { p=${1%/*}; echo "${p:-/}x"; }
# Creates a directory with its parents.
make() {
  mkdir -p "$1" 2> "$own.err" && return
  [ ! -e "$1" ] || fail not-a-directory
  failed
}
nap() { sleep 0.2 2> /dev/null || sleep 1; }
