# Runs a line of a shell session, and leaves its final state to the process that started it. $1: the prefix of the job's
# files. Then the variables of this line alone.
# "command" is used because earlier lines may have defined functions; ">|" because of "set -C".
# It reads files of the job, exports words such as A=1, and checks for "typeset" before it uses it.
# shellcheck disable=SC1090,SC2163,SC3044
[ ! -e "$1.env" ] || . "$1.env"
# The state before the line, to detect changes.
command pwd >| "$1.found-dir"
command umask >| "$1.found-umask"
(
  command unset PWD SHLVL SANDPOD_JOB
  command export -p
  if command -v typeset > /dev/null; then typeset -f; fi
  command echo "# end"
) >| "$1.found-env"
__sandpod=$1
__sandpod_count=0
shift
while command [ "$#" -gt 0 ]; do
  __sandpod_count=$((__sandpod_count + 1))
  __sandpod_name=${1%%=*}
  eval "__sandpod_given_$__sandpod_count=\$1 __sandpod_before_$__sandpod_count=\${$__sandpod_name+=\$$__sandpod_name}"
  export "$1"
  shift
done
# Variables of this line alone are not kept, unless the line has changed them.
__sandpod_restore() {
  while command [ "$__sandpod_count" -gt 0 ]; do
    eval "__sandpod_given=\$__sandpod_given_$__sandpod_count __sandpod_before=\$__sandpod_before_$__sandpod_count"
    unset "__sandpod_given_$__sandpod_count" "__sandpod_before_$__sandpod_count"
    __sandpod_name=${__sandpod_given%%=*}
    if eval "command [ \"\${$__sandpod_name-}\" = \"\${__sandpod_given#*=}\" ]"; then
      case $__sandpod_before in
        "") unset "$__sandpod_name" ;;
        *) export "$__sandpod_name=${__sandpod_before#=}" ;;
      esac
    fi
    __sandpod_count=$((__sandpod_count - 1))
  done
  unset __sandpod __sandpod_count __sandpod_name __sandpod_given __sandpod_before __sandpod_status __sandpod_kept
  # These are set anew for each line.
  unset PWD SHLVL SANDPOD_JOB
}
__sandpod_keep() {
  __sandpod_status=$?
  case ${__sandpod_kept-} in
    "")
      __sandpod_kept=1
      command pwd >| "$__sandpod.left-dir"
      command umask >| "$__sandpod.left-umask"
      command set +o >| "$__sandpod.left-options"
      (
        __sandpod_restore
        command export -p
        unset -f __sandpod_keep __sandpod_restore
        if command -v typeset > /dev/null; then typeset -f; fi
        command echo "# end"
      ) >| "$__sandpod.left-env"
      : >| "$__sandpod.left"
      ;;
  esac
  return "$__sandpod_status"
}
trap '{ __sandpod_keep; } 2>/dev/null' EXIT
. "$__sandpod.line"
{ __sandpod_keep && :; } 2>/dev/null
