//! `lognode-bench`: one subcommand for each measurement.

use std::process::ExitCode;

use bench_harness::raw;
use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the log service against the limits of this machine.
#[derive(Debug, Parser)]
#[command(name = "lognode-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What this machine can do without the log service: disk, loopback, bare echo.
    Raw(raw::command::RawArgs),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Raw(args) => raw::command::execute(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lognode-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
