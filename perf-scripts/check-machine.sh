#!/usr/bin/env bash
# Does this machine suit a LogNode? What `lognode probe` says, then what only matters for a measurement.
#   perf-scripts/check-machine.sh [DATA_DIR]      LOGNODE_BIN=path/to/lognode to use another program
# The exit code is the probe's.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${1:-}
if [ -z "$dir" ]; then
    mkdir -p target
    dir=$(mktemp -d target/probe.XXXXXX)
    trap 'rm -rf -- "$dir"' EXIT
fi
lognode=${LOGNODE_BIN:-${CARGO_TARGET_DIR:-target}/release/lognode}
[ -x "$lognode" ] || {
    echo "$lognode does not exist; build it first:  make build" >&2
    exit 2
}

rc=0
"$lognode" probe --data-dir "$dir" || rc=$?

# Prints one line about the file $2 under the name $1, and the advice $4 unless it matches the expression $3.
setting() {
    [ -r "$2" ] || return 0
    local value
    value=$(cat "$2")
    if [[ $value =~ $3 ]]; then echo "ok    $1: $value"; else echo "note  $1: $value; $4"; fi
}
echo
echo "For steady measurements:"
sys=/sys/devices/system
setting "CPU governor" $sys/cpu/cpu0/cpufreq/scaling_governor '^performance$' "cpupower frequency-set -g performance"
pages=/sys/kernel/mm/transparent_hugepage/enabled
setting "huge pages" $pages '\[(madvise|never)\]' "'always' can stall an allocation"
setting "clock source" $sys/clocksource/clocksource0/current_clocksource '^tsc$' "each clock read is slower"
setting "swappiness" /proc/sys/vm/swappiness '^[01]$' "0 or 1 keeps the shards' memory in place"
setting "SMT" $sys/cpu/smt/active '^0$' "two shards may share one core"
steal() { awk '/^cpu / { print $9 }' /proc/stat; }
before=$(steal)
sleep 1
stolen=$(($(steal) - before))
if [ "$stolen" -eq 0 ]; then echo "ok    stolen time: none in 1 s"; else
    echo "note  stolen time: $stolen ticks in 1 s; the host is busy, so tail latencies say little"
fi
exit "$rc"
