//! `lognode check-config`.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::fail;
use crate::config::Config;

/// Which configuration to check.
#[derive(Args)]
pub struct CheckConfigArgs {
    /// The file; without it the defaults and the environment are checked.
    #[arg(long, env = "LOGNODE_CONFIG")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the configuration that `serve` would use, or what is wrong with it.
pub fn execute(args: &CheckConfigArgs) -> ExitCode {
    let config = match Config::load(args.config.as_deref()) {
        Ok(config) => config,
        Err(error) => return fail(2, error),
    };
    match serde_json::to_string_pretty(&config) {
        Ok(json) if args.json => println!("{json}"),
        Ok(_) => {
            println!(
                "the configuration is valid: {} shard(s) on CPU {:?}",
                config.cpus().len(),
                config.cpus()
            );
            println!("{config:#?}");
        }
        Err(error) => return fail(1, error),
    }
    ExitCode::SUCCESS
}
