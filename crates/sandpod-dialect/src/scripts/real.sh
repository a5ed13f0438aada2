# Resolves paths; prints them, each with a NUL at its end. $2: the numbers of their words; with an "l", a final link is not followed.
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
  # Components that do not exist yet are not resolved.
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
