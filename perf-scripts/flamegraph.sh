#!/usr/bin/env bash
# Where the shards of a running lognode spend their time: folded stacks and a flame graph for each thread.
#   perf-scripts/flamegraph.sh PID [SECONDS]         (default 10 s; sees only time on a CPU)
#   THREADS='shard'  which threads, an extended regular expression on their names; no match means all threads
#   OUT=flamegraphs  where the files go        FREQ=299  samples a second
set -euo pipefail

pid=${1:?usage: perf-scripts/flamegraph.sh PID [SECONDS]}
seconds=${2:-10}
out=${OUT:-flamegraphs}
freq=${FREQ:-299}

command -v perf >/dev/null || {
    echo "perf is missing:  sudo apt-get install -y linux-perf" >&2
    exit 1
}
[ -d "/proc/$pid/task" ] || {
    echo "no process $pid" >&2
    exit 1
}

# A virtual machine often hides the cycle counter; the kernel's clock works everywhere.
event=cycles
if perf stat -e cycles true 2>&1 | grep -q 'not supported'; then event=cpu-clock; fi

all=()
wanted=()
for task in "/proc/$pid/task/"*; do
    name=$(cat "$task/comm" 2>/dev/null) || continue # it ended
    all+=("${task##*/}:$name")
    if [[ $name =~ ${THREADS:-shard} ]]; then wanted+=("${task##*/}:$name"); fi
done
if [ "${#wanted[@]}" -eq 0 ]; then
    echo "no thread is called like '${THREADS:-shard}', taking all ${#all[@]}: ${all[*]}" >&2
    wanted=("${all[@]}")
fi

mkdir -p "$out"
echo "recording ${#wanted[@]} threads for $seconds s by $event"
recorders=()
for thread in "${wanted[@]}"; do
    # Frame pointers are not in the binary, its unwind tables are: hence dwarf.
    perf record -q -e "$event" -F "$freq" --call-graph dwarf,8192 -t "${thread%%:*}" \
        -o "$out/${thread#*:}-${thread%%:*}.data" -- sleep "$seconds" &
    recorders+=($!)
done
for recorder in "${recorders[@]}"; do wait "$recorder"; done

for thread in "${wanted[@]}"; do
    base=$out/${thread#*:}-${thread%%:*}
    # Without --no-inline this perf starts one addr2line for each frame, which takes hours.
    perf script --no-inline -i "$base.data" >"$base.stacks" 2>/dev/null
    rm -f "$base.data"
    if [ ! -s "$base.stacks" ]; then
        echo "$base: no sample, the thread slept"
        rm -f "$base.stacks"
    elif command -v inferno-collapse-perf >/dev/null; then
        inferno-collapse-perf "$base.stacks" >"$base.folded" 2>/dev/null
        inferno-flamegraph --title "${thread#*:}, $seconds s, $event" "$base.folded" >"$base.svg"
        echo "$base.svg ($(grep -c '^[^[:space:]]' "$base.stacks") samples)"
        rm -f "$base.stacks"
    else
        echo "$base.stacks (raw: for flame graphs  cargo install inferno --locked)"
    fi
done
