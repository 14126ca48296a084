//! The commands of `lognode`. Exit codes: 0 done, 1 it failed, 2 the command line or the configuration is wrong.

mod channels;
mod check_config;
mod consume;
mod fault;
mod inspect;
mod jsonl;
mod log_files;
mod parquet_in;
mod parquet_out;
mod produce;
mod progress;
mod serve;
mod server;
mod sink;
mod source;
mod start_position;
mod table;
mod truncate;
mod vector_message;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The log of a vector database: serve it, write to it, read from it, look inside.
#[derive(Parser)]
#[command(name = "lognode", version, propagate_version = true, max_term_width = 110)]
#[command(after_help = "Examples:
  lognode serve --data-dir ./data
  lognode produce --pchannel demo --parquet vectors.parquet --vchannels 4
  lognode consume --pchannel demo --vchannel demo-v1 --until-caught-up
  lognode verify ./data
  lognode probe --data-dir ./data")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node.
    Serve(serve::ServeArgs),
    /// Write vectors or other messages into a log.
    Produce(produce::ProduceArgs),
    /// Read a log from any position, through a filter.
    Consume(consume::ConsumeArgs),
    /// List the logs of a node and where they stand.
    Channels(channels::ChannelsArgs),
    /// Let old messages of a log go.
    Truncate(truncate::TruncateArgs),
    /// Look into the files of logs: segments, checkpoints, what is damaged.
    Inspect(inspect::InspectArgs),
    /// Read the files of logs completely and check every checksum.
    Verify(verify::VerifyArgs),
    /// Check a configuration and print it with all defaults.
    CheckConfig(check_config::CheckConfigArgs),
    /// Tell whether this machine suits, and what to change if not.
    Probe(crate::probe::command::ProbeArgs),
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::execute(args),
        Command::Produce(args) => produce::execute(&args),
        Command::Consume(args) => consume::execute(&args),
        Command::Channels(args) => channels::execute(&args),
        Command::Truncate(args) => truncate::execute(&args),
        Command::Inspect(args) => inspect::execute(&args),
        Command::Verify(args) => verify::execute(&args),
        Command::CheckConfig(args) => check_config::execute(&args),
        Command::Probe(args) => crate::probe::command::execute(&args),
    }
}

/// Prints an error for people, on one line, and gives the exit code.
fn fail(code: u8, error: impl std::fmt::Display) -> ExitCode {
    eprintln!("lognode: {error}");
    ExitCode::from(code)
}
