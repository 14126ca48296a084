//! `lognode-bench`: one subcommand for each measurement.

use std::process::ExitCode;

use bench_harness::{error::BenchError, raw, scenario};
use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the log service against the limits of this machine.
#[derive(Debug, Parser)]
#[command(name = "lognode-bench", version)]
#[command(
    after_help = "A scenario starts the real server in a folder of its own, pinned to the last CPU; the load comes from one \
thread on the first. The server takes its settings from LOGNODE_SECTION__KEY variables, as always. Examples:
  lognode-bench append
  lognode-bench append --size 256 --batch 1000
  lognode-bench append --size 256 --batch 1 --connections 64
  lognode-bench idle --readers 64 --json"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What this machine can do without the log service: disk, loopback, bare echo.
    Raw(raw::command::RawArgs),
    /// As much as goes in: batches in a closed loop, every ack after a sync.
    Append(scenario::append::AppendArgs),
    /// Time until an ack at a fixed rate, measured from the moment at which a batch should have left.
    Latency(scenario::latency::LatencyArgs),
    /// One writer at half of its peak and readers that each filter their part: time from ack to delivery.
    Tail(scenario::tail::TailArgs),
    /// A log that lies on the disk only, read from its beginning.
    Catchup(scenario::catchup::CatchupArgs),
    /// Ticks that readers get while as much is appended as goes in: how far apart they come.
    Timetick(scenario::timetick::TimetickArgs),
    /// As much as goes in beside readers that take nothing: what the server's memory grows to.
    Memory(scenario::memory::MemoryArgs),
    /// A long log and kill -9 in the middle of appends: time until it is served again.
    Recovery(scenario::recovery::RecoveryArgs),
    /// Many pchannels and vchannels and nothing to do: bytes written, CPU.
    Idle(scenario::idle::IdleArgs),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Raw(args) => raw::command::execute(&args).map_err(BenchError::from),
        Command::Append(args) => scenario::append::execute(&args),
        Command::Latency(args) => scenario::latency::execute(&args),
        Command::Tail(args) => scenario::tail::execute(&args),
        Command::Catchup(args) => scenario::catchup::execute(&args),
        Command::Timetick(args) => scenario::timetick::execute(&args),
        Command::Memory(args) => scenario::memory::execute(&args),
        Command::Recovery(args) => scenario::recovery::execute(&args),
        Command::Idle(args) => scenario::idle::execute(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lognode-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
