info "$path" -L > /dev/null
[ -d "$path" ] || fail not-a-directory
cd "$path" 2> "$d/err" || failed
find . -mindepth 1 -maxdepth 1 ! -name .sandpod -exec stat -c "%f %s %Y %u %g %n" {} + > "$d/out" 2> "$d/err" || failed
reply
