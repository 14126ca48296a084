//! `lognode probe`: the report on the screen or as JSON.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{DEFAULT_CONNECTIONS, DEFAULT_PCHANNELS, Needs, run_for};

/// Options of `lognode probe`.
#[derive(Debug, Clone, Args)]
pub struct ProbeArgs {
    /// Folder that is to hold the log.
    #[arg(long, default_value = ".")]
    pub data_dir: PathBuf,
    /// Shards that are to run; as many as CPUs when not given.
    #[arg(long)]
    pub shards: Option<usize>,
    /// Pchannels that the node is to own.
    #[arg(long, default_value_t = DEFAULT_PCHANNELS)]
    pub pchannels: usize,
    /// Client connections at one time.
    #[arg(long, default_value_t = DEFAULT_CONNECTIONS)]
    pub connections: usize,
    /// Print one JSON object in one line instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Runs all checks and prints them. The exit code is 1 when an item fails, else 0.
pub fn execute(args: &ProbeArgs) -> ExitCode {
    let shards = args
        .shards
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let needs = Needs {
        pchannels: args.pchannels,
        connections: args.connections,
        ..Needs::new(shards)
    };
    let report = run_for(&args.data_dir, &needs);
    if args.json {
        println!("{}", report.to_json());
    } else {
        print!("{}", report.to_table());
    }
    ExitCode::from(report.exit_code())
}
