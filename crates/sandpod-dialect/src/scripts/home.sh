# A directory as it is wanted, if it is there or can be made, or else where the runtime starts commands.
mkdir -p "$path" 2> /dev/null
if [ -d "$path" ]; then printf %s "$path"; else pwd; fi > "$own.out"
reply
