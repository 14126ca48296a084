#!/usr/bin/env bash
# Where the shards of a running lognode wait, and for how long: folded stacks weighed by the time off the CPU, and a flame graph.
#   perf-scripts/offcpu.sh PID [SECONDS]             (default 2 s; needs root; copies 8 KiB of stack at each switch)
#   THREADS='shard'  which threads, an extended regular expression on their names
#   OUT=flamegraphs  where the files go
# A stack that ends in io_cqring_wait is a shard that had nothing to do. `preempted` is one that was pushed aside.
set -euo pipefail

pid=${1:?usage: perf-scripts/offcpu.sh PID [SECONDS]}
seconds=${2:-2}
out=${OUT:-flamegraphs}

command -v perf >/dev/null || {
    echo "perf is missing:  sudo apt-get install -y linux-perf" >&2
    exit 1
}
[ -d "/proc/$pid/task" ] || {
    echo "no process $pid" >&2
    exit 1
}
if ! perf record -q -e sched:sched_switch -o /dev/null -- true 2>/dev/null; then
    echo "the scheduler's events can't be recorded: be root, and mount -t tracefs none /sys/kernel/tracing" >&2
    exit 1
fi

mkdir -p "$out"
found=no
for task in "/proc/$pid/task/"*; do
    name=$(cat "$task/comm" 2>/dev/null) || continue # it ended
    [[ $name =~ ${THREADS:-shard} ]] || continue
    found=yes
    base=$out/offcpu-$name-${task##*/}
    perf record -q -e sched:sched_switch --switch-events --call-graph dwarf,8192 -t "${task##*/}" \
        -o "$base.data" -- sleep "$seconds"
    # Each switch comes with its stack, then OUT, then IN when the thread runs again.
    perf script --no-inline --show-switch-events -i "$base.data" 2>/dev/null | awk '
        function time_us(   at) { for (at = 1; at <= NF; at++) if ($at ~ /^[0-9]+\.[0-9]+:$/) return $at * 1e6 }
        / PERF_RECORD_SWITCH OUT/ { since = time_us(); why = /preempt/ ? "preempted" : "waits"; next }
        / PERF_RECORD_SWITCH IN/ {
            if (since && stack != "") sum[why stack] += time_us() - since
            since = 0; stack = ""; next
        }
        / sched:sched_switch: / { stack = ""; next }
        /^[[:space:]]+[0-9a-f]+ / {
            frame = $0
            sub(/^[[:space:]]+[0-9a-f]+ /, "", frame); sub(/ \([^()]*\)$/, "", frame); sub(/\+0x[0-9a-f]+$/, "", frame)
            gsub(/;/, ":", frame)
            stack = ";" frame stack
        }
        END { for (key in sum) printf "%s %d\n", key, sum[key] }' | sort >"$base.folded"
    rm -f "$base.data"
    if [ ! -s "$base.folded" ]; then
        echo "$base: no switch, the thread never stopped or never ran"
        rm -f "$base.folded"
        continue
    fi
    awk -v name="$name" -v whole="$seconds" '
        { us[/^preempted/ ? "preempted" : /io_cqring_wait/ ? "nothing to do" : "waits elsewhere"] += $NF }
        END { for (kind in us) printf "%s: %s %.1f %% of the time\n", name, kind, us[kind] / whole / 1e4 }' "$base.folded"
    if command -v inferno-flamegraph >/dev/null; then
        inferno-flamegraph --title "$name off the CPU, $seconds s" --countname us --colors blue "$base.folded" >"$base.svg"
        echo "$base.svg"
    else
        echo "$base.folded (for flame graphs  cargo install inferno --locked)"
    fi
done
[ "$found" = yes ] || {
    echo "no thread is called like '${THREADS:-shard}'" >&2
    exit 1
}
