//! `lognode check-config`.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{
    fail,
    fault::{Fault, finish, print},
};
use crate::config::Config;

/// Which configuration to check.
#[derive(Args)]
#[command(after_help = "Examples:
  lognode check-config /etc/lognode.toml
  LOGNODE_LOG__SEGMENT_BYTES=268435456 lognode check-config
  lognode check-config > lognode.toml     # a file of all defaults

What is printed is a configuration file itself.")]
pub struct CheckConfigArgs {
    /// The file; without it the defaults and the environment are checked.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The same, as `serve` takes it.
    #[arg(long, env = "LOGNODE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON instead.
    #[arg(long)]
    json: bool,
}

/// Prints the configuration that `serve` would use, or what is wrong with it.
pub fn execute(args: &CheckConfigArgs) -> ExitCode {
    let file = args.file.as_deref().or(args.config.as_deref());
    let config = match Config::load(file) {
        Ok(config) => config,
        Err(error) => return fail(2, error),
    };
    let text = if args.json {
        serde_json::to_string_pretty(&config).map_err(|e| e.to_string())
    } else {
        let (count, cpus) = (config.cpus().len(), config.cpus());
        let head = format!("# The configuration is valid: {count} shard(s) on CPU {cpus:?}.");
        toml::to_string(&config)
            .map(|body| format!("{head}\n{body}"))
            .map_err(|e| e.to_string())
    };
    finish(
        text.map_err(Fault::failed)
            .and_then(|text| print(&format!("{}\n", text.trim_end()))),
    )
}
