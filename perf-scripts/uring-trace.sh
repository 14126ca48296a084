#!/usr/bin/env bash
# What a running lognode asks of io_uring: operations a second by kind, how long each takes, how many go to a kernel worker.
#   perf-scripts/uring-trace.sh PID [SECONDS]        (default 1 s; needs root; slows the process down while it looks)
#   KEEP=file  keeps the raw events
# A high share of `to worker` is what syncs cost; much ASYNC_CANCEL and TIMEOUT is timers that are set and called off.
set -euo pipefail

pid=${1:?usage: perf-scripts/uring-trace.sh PID [SECONDS]}
seconds=${2:-1}

command -v perf >/dev/null || {
    echo "perf is missing:  sudo apt-get install -y linux-perf" >&2
    exit 1
}
[ -d "/proc/$pid/task" ] || {
    echo "no process $pid" >&2
    exit 1
}
if ! perf record -q -e io_uring:io_uring_complete -o /dev/null -- true 2>/dev/null; then
    echo "io_uring's events can't be recorded: be root, and mount -t tracefs none /sys/kernel/tracing" >&2
    exit 1
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
perf record -q -e io_uring:io_uring_submit_req -e io_uring:io_uring_queue_async_work -e io_uring:io_uring_complete \
    -e io_uring:io_uring_cqring_wait -p "$pid" -o "$folder/data" -- sleep "$seconds"
perf script -i "$folder/data" 2>/dev/null >"$folder/events"
[ -z "${KEEP:-}" ] || cp "$folder/events" "$KEEP"

awk -v whole="$seconds" '
    function value(name,   at) { for (at = 1; at < NF; at++) if ($at == name) { gsub(/,/, "", $(at + 1)); return $(at + 1) } }
    function time_us(   at) { for (at = 1; at <= NF; at++) if ($at ~ /^[0-9]+\.[0-9]+:$/) return $at * 1e6 }
    /io_uring_submit_req:/ { kind = value("opcode"); request = value("req"); asked[kind]++; of[request] = kind; since[request] = time_us() }
    /io_uring_queue_async_work:/ { worker[value("opcode")]++ }
    /io_uring_cqring_wait:/ { sleeps++ }
    /io_uring_complete:/ {
        request = value("req")
        if (request in since) { printf "%s %d\n", of[request], time_us() - since[request] > "'"$folder"'/times"; delete since[request] }
    }
    END {
        for (kind in asked) printf "%s %d %d\n", kind, asked[kind] / whole, worker[kind] / whole > "'"$folder"'/counts"
        printf "sleeps for completions: %d a second\n", sleeps / whole
    }' "$folder/events"
[ -s "$folder/counts" ] || {
    echo "nothing was asked of io_uring"
    exit 0
}
touch "$folder/times"
printf '%-14s %12s %14s %10s %10s\n' operation 'a second' 'to worker/s' 'p50 us' 'p99 us'
sort -k2,2nr "$folder/counts" | while read -r kind asked worker; do
    awk -v kind="$kind" '$1 == kind { print $2 }' "$folder/times" | sort -n >"$folder/one"
    count=$(wc -l <"$folder/one")
    place() { if [ "$count" -gt 0 ]; then sed -n "$((count * $1 / 100 + 1))p" "$folder/one"; else echo -; fi; }
    printf '%-14s %12s %14s %10s %10s\n' "$kind" "$asked" "$worker" "$(place 50)" "$(place 99)"
done
