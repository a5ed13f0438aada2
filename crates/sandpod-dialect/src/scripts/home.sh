# Prints the wanted directory if it exists or can be created, or else the working directory of the runtime's commands.
mkdir -p "$path" 2> /dev/null
if [ -d "$path" ]; then printf %s "$path"; else pwd; fi > "$own.out"
reply
