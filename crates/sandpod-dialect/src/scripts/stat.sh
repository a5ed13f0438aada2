# 2: -L to follow a link.
info "$path" "$(word 2)" > "$own.out"
[ -n "$(word 2)" ] || readlink "$path" >> "$own.out"
reply
