//! The `lognode` command.

use std::process::ExitCode;

/// Thread-local heaps: a pinned shard never shares an allocator lock with another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    lognode::cli::run()
}
