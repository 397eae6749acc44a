#!/usr/bin/env bash
# Start a Dask scheduler on the first machine of a list, and a worker on each of them.
# Usage: start.sh HOSTS     Environment: SSH, NTHREADS, MEMORY, INTERFACE
set -euo pipefail
hosts=${1:?"usage: start.sh HOSTS"}
read -ra login <<<"${SSH:-ssh}"
dask=$(command -v dask) || {
    echo "start.sh: dask must be on the path. Activate the environment that has cns_dask." >&2
    exit 2
}
bin=$(dirname "$dask")
shared=(--scheduler-file "$PWD/scheduler.json" ${INTERFACE:+--interface "$INTERFACE"})
sizes=(--nworkers 1 --nthreads "${NTHREADS:-2}" --memory-limit "${MEMORY:-4GiB}")

# remote HOST NAME COMMAND...: run it there, in this folder, and leave it running
remote() {
    local host=$1 name=$2
    shift 2
    local line
    line=$(printf '%q ' "$@")
    "${login[@]}" -n "$host" "cd $(printf '%q' "$PWD") && \
{ PATH=$(printf '%q' "$bin"):\$PATH nohup $line >$name.log 2>&1 </dev/null & echo \$! >$name.pid; }"
}

if [ -e scheduler.json ]; then
    echo "start.sh: scheduler.json must not exist: is another scheduler running? Run stop.sh, or remove it." >&2
    exit 2
fi
first=$(grep -v '^ *\(#\|$\)' "$hosts" | head -n 1)
remote "$first" scheduler dask scheduler "${shared[@]}"
while read -r host; do
    remote "$host" "worker-$host" dask worker "${shared[@]}" "${sizes[@]}" --preload cns_dask.warmup
done < <(grep -v '^ *\(#\|$\)' "$hosts")
