# Where paths lead, with a NUL after each. $2: the numbers of their words; with an "l", a link is meant itself.
: > "$own.out"
for each in $2; do
  p=$(word "${each%l}"; echo x)
  p=${p%x}
  while [ "$p" != / ] && [ "${p%/}" != "$p" ]; do p=${p%/}; done
  rest=
  case $each in
    *l)
      case ${p##*/} in
        "" | . | ..) ;;
        *)
          rest=/${p##*/}
          p=${p%/*}
          ;;
      esac
      ;;
  esac
  p=${p:-/}
  # What does not exist yet is taken for what its name says.
  until real=$(readlink -f "$p" 2> "$own.err" && echo x); do
    [ "$p" != / ] || failed
    rest=/${p##*/}$rest
    p=${p%/*}
    p=${p:-/}
  done
  real=${real%?x}
  printf "%s\0" "$real$rest" >> "$own.out"
done
reply
