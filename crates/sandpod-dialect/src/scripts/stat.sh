# 2: -L to follow a link.
info "$path" "$(word 2)" > "$d/out"
[ -n "$(word 2)" ] || readlink "$path" >> "$d/out"
reply
