# Where commands start: where they should, if that is or can be made, or else where the runtime starts them.
mkdir -p "$path" 2> /dev/null
if [ -d "$path" ]; then printf %s "$path"; else pwd; fi > "$d/out"
reply
