#!/usr/bin/env bash
# The demo of `make demo`: one LogNode in a temporary folder, real vectors in, a filtered read out, compared.
# Needs no network, no root and no other program; leaves nothing behind unless something fails (or KEEP=1).
#   LOGNODE_BIN=path/to/lognode   use this program instead of building one
set -euo pipefail
cd "$(dirname "$0")/../.."

FILE=configs/demo/digits.parquet
ROWS=1797
# sha256 of the file's rows as lines "id,v1,...,v64" in order of id, made with another Parquet reader (pyarrow).
ROWS_SHA256=115e892aee8fa3117ee34f90c4f49d17853a737e6af1b2e77894a031ae7e7dc9
VCHANNELS=(demo-v1 demo-v2 demo-v3 demo-v4)

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
# Below target/ and not in /tmp: /tmp may be memory, and the log wants a real disk (direct I/O).
work=$(mktemp -d "$target/demo.XXXXXX")
data=$work/data
mkdir "$data"
server=

bold="" plain=""
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
step() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
say() { printf '    %s\n' "$*"; }
fail() {
    printf '\ndemo failed: %s\n' "$*" >&2
    exit 1
}

cleanup() {
    local rc=$?
    if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
        kill -TERM "$server"
        wait "$server" || true
    fi
    if [ "$rc" -ne 0 ]; then
        [ -s "$work/server.log" ] && { echo "last lines of the server's log:"; tail -n 20 "$work/server.log"; } >&2
        echo "everything is kept in $work (remove with: make clean-demo)" >&2
    elif [ "${KEEP:-}" = 1 ]; then
        echo "kept: $work (remove with: make clean-demo)"
    else
        rm -rf -- "$work"
    fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Prints the answer to GET $2 of the host:port $1 (no curl on a bare machine). HTTP/1.0: the server closes at the end.
http_get() {
    local host=${1%:*} port=${1##*:}
    exec 3<>"/dev/tcp/$host/$port" || return 1
    printf 'GET %s HTTP/1.0\r\nHost: %s\r\n\r\n' "$2" "$1" >&3
    cat <&3
    exec 3>&-
}

# Waits until the server has written the address file $1, and prints the address.
address() {
    for _ in $(seq 300); do
        if [ -s "$data/$1" ]; then
            cat "$data/$1"
            return 0
        fi
        kill -0 "$server" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

# Turns JSON lines of `lognode consume` (stdin) into lines "id,v1,...,v64" in order of id.
rows_of_json() {
    awk '/"id": *-?[0-9]+/ && /\[/ {
        id = $0; sub(/.*"id": */, "", id); sub(/[^-0-9].*/, "", id)
        v = $0; sub(/[^\[]*\[/, "", v); sub(/\].*/, "", v); gsub(/ /, "", v)
        n = split(v, x, ","); line = id
        for (i = 1; i <= n; i++) line = line "," (x[i] + 0)
        print line
    }' | sort -t, -k1,1n
}

if [ -n "${LOGNODE_BIN:-}" ]; then
    lognode=$LOGNODE_BIN
else
    step "1. Build the program (the first time takes some minutes)"
    cargo build --release --locked -p lognode
    lognode=$target/release/lognode
fi
say "using $lognode ($("$lognode" --version))"

step "2. Start a LogNode: the server that owns the log"
"$lognode" serve --data-dir "$data" --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 >"$work/server.log" 2>&1 &
server=$!
addr=$(address lognode.addr) || fail "the server did not come up within 30 s"
http=$(address http.addr) || fail "the server did not open its HTTP port within 30 s"
for i in $(seq 100); do
    ready=$(http_get "$http" /readyz 2>/dev/null || true)
    if [[ ${ready%%$'\n'*} == *" 200 "* ]]; then break; fi
    [ "$i" -lt 100 ] || fail "http://$http/readyz did not say 200 within 10 s"
    sleep 0.1
done
say "it listens on $addr for producers and readers, on $http for health and metrics,"
say "and keeps its files in $data"

step "3. Produce: write the $ROWS vectors of $FILE into the log"
say "The log is called 'demo': one ordered row of messages, a pchannel. Four collections' shards share it, the"
say "vchannels demo-v1 to demo-v4; each vector goes to one of them. It counts as written once it is safe on disk."
"$lognode" produce --server "$addr" --pchannel demo --parquet "$FILE" \
    --id-column id --vector-column emb --vchannels 4

step "4. Consume: read one vchannel back, from the beginning"
say "The server filters: only demo-v1's rows cross the wire. Every 10 ms it also sends a timetick: a promise that"
say "nothing older will ever come. A tick without a row is told to readers and never written to disk."
"$lognode" consume --server "$addr" --pchannel demo --from earliest --vchannel demo-v1 --until-caught-up \
    --out "$work/rows.parquet"
[ -s "$work/rows.parquet" ] || fail "consume wrote no rows.parquet"
say "written as a Parquet file of $(wc -c <"$work/rows.parquet") bytes"

step "5. Compare what was read with what was written"
: >"$work/by-vchannel"
for v in "${VCHANNELS[@]}"; do
    "$lognode" consume --server "$addr" --pchannel demo --from earliest --vchannel "$v" --until-caught-up \
        2>>"$work/consume.log" | rows_of_json >"$work/$v"
    [ -s "$work/$v" ] || fail "no row came back for $v"
    say "$v: $(wc -l <"$work/$v") rows"
    cat "$work/$v" >>"$work/by-vchannel"
done
got=$(wc -l <"$work/by-vchannel")
[ "$got" -eq "$ROWS" ] || fail "$got rows came back, $ROWS were written"
twice=$(cut -d, -f1 "$work/by-vchannel" | sort | uniq -d | head -n 1)
[ -z "$twice" ] || fail "row $twice came back from two vchannels"
sha=$(sort -t, -k1,1n "$work/by-vchannel" | sha256sum | cut -d' ' -f1)
[ "$sha" = "$ROWS_SHA256" ] || fail "the rows that came back differ from those of $FILE (sha256 $sha)"
say "together: $got rows, none twice, every one of the $((ROWS * 64)) numbers as in the file"

step "6. What the server knows: its channels"
"$lognode" channels --server "$addr"

step "7. What lies on disk: segments, checked block by block"
"$lognode" inspect "$data"

step "8. Stop it with SIGTERM"
kill -TERM "$server"
rc=0
wait "$server" || rc=$?
server=
[ "$rc" -eq 0 ] || fail "the server ended with exit code $rc"
say "it finished what was open and left nothing to recover"

printf '\n%sdemo: ok%s: %s rows in, %s rows out, equal. Next: README.md, docs/architecture.md\n' \
    "$bold" "$plain" "$ROWS" "$got"
