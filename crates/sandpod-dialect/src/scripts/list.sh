info "$path" -L > /dev/null
[ -d "$path" ] || fail not-a-directory
cd "$path" 2> "$own.err" || failed
find . -mindepth 1 -maxdepth 1 ! -name .sandpod -exec stat -c "%f %s %Y %u %g %n" {} + > "$own.out" 2> "$own.err"
# Entries that are removed meanwhile are omitted.
! grep -v "No such file" "$own.err" > /dev/null || failed
[ "$(($(wc -c < "$own.out")))" -le "$most" ] || fail too-large
reply
