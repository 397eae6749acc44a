#!/usr/bin/env bash
# End what start.sh has started.
# Usage: stop.sh HOSTS     Environment: SSH
set -euo pipefail
hosts=${1:?"usage: stop.sh HOSTS"}
read -ra login <<<"${SSH:-ssh}"

# end HOST NAME: end the process whose number start.sh has written
end() {
    if [ -e "$2.pid" ]; then
        "${login[@]}" -n "$1" "kill $(<"$2.pid") 2>/dev/null || true"
        rm "$2.pid"
    else
        echo "stop.sh: $2.pid must be in this folder. Got none: $2 was not started from here, or is ended." >&2
    fi
}

while read -r host; do
    end "$host" "worker-$host"
done < <(grep -v '^ *\(#\|$\)' "$hosts")
end "$(grep -v '^ *\(#\|$\)' "$hosts" | head -n 1)" scheduler
rm -f scheduler.json
