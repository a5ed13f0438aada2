info "$path" -L > /dev/null
[ -d "$path" ] || fail not-a-directory
cd "$path" 2> "$d/err" || failed
find . -mindepth 1 -maxdepth 1 ! -name .sandpod -exec stat -c "%f %s %Y %u %g %n" {} + > "$d/out" 2> "$d/err"
# What goes while it is looked at is not there.
! grep -v "No such file" "$d/err" > /dev/null || failed
[ "$(($(wc -c < "$d/out")))" -le "$most" ] || fail too-large
reply
