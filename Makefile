# Everything a person or CI does with this project, by name. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# rustup installs here, and a fresh shell may not know it yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

# How long `make fuzz` goes on, in seconds for each target.
FUZZ_SECONDS ?= 600
# Scenarios of `make bench`, and extra flags for each.
BENCH ?= append latency tail catchup timetick memory recovery idle
BENCH_FLAGS ?=

.PHONY: help setup build demo test lint deny bench bench-micro fuzz clean-demo

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Check what is needed to build; install it (as root, through apt) or say what to run
	@.ci/setup

build: setup ## Release build of the server, the command line and the load generator
	cargo build --release --locked -p lognode -p bench-harness

demo: setup ## Start a LogNode in a temporary folder, log 1,797 real vectors, read some back
	@configs/demo/demo.sh

test: setup ## All tests; the last line is `N passed, N failed`
	@.ci/summary cargo test --workspace --locked --no-fail-fast

lint: setup ## Format, clippy and docs without a warning; licences if cargo-deny is installed
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace --locked
	bash -n .ci/run .ci/setup .ci/summary configs/demo/demo.sh perf-scripts/*.sh
	.ci/summary --self-check
	@if command -v cargo-deny >/dev/null; then $(MAKE) --no-print-directory deny; \
	else echo "cargo-deny is not installed, so licences were not checked (make deny says how)"; fi

deny: ## Licences, bans, sources and, where the database can be fetched, advisories
	@command -v cargo-deny >/dev/null || \
	{ echo "cargo-deny is missing. It takes some minutes to build:  cargo install cargo-deny --locked"; exit 1; }
	cargo deny --locked check licenses bans sources
	@if cargo deny fetch db >/dev/null 2>&1; then cargo deny --locked check advisories; \
	else echo "advisories: the RustSec database can't be fetched from here, so they were NOT checked"; fi

bench: setup ## The load generator, one scenario after another, each with the raw limits of its run
	cargo build --release --locked -p lognode -p bench-harness
	@for s in $(BENCH); do echo "== $$s"; "$${CARGO_TARGET_DIR:-target}/release/lognode-bench" $$s $(BENCH_FLAGS); done

bench-micro: setup ## Criterion benches of filter, verify and sequencer
	cargo bench --locked -p wire-format -p lognode-core --bench filter --bench verify --bench sequencer

fuzz: setup ## Feed the decoders random and damaged bytes for FUZZ_SECONDS (600)
	LOGNODE_FUZZ_SECONDS=$(FUZZ_SECONDS) .ci/summary cargo test --release --locked -p wire-format fuzz -- --nocapture

clean-demo: ## Remove what a stopped or failed demo left behind
	rm -rf -- "$${CARGO_TARGET_DIR:-target}"/demo.*
