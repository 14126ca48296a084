//! `lognode truncate`.

use std::process::ExitCode;

use clap::Args;
use lognode_client::{Admin, Error, Offset};
use serde_json::json;

use super::{
    fault::{Fault, finish, print, print_json},
    server::{self, ServerArgs, pchannel_name},
};

/// What may go.
#[derive(Args)]
#[command(after_help = "Examples:
  lognode truncate --pchannel demo --upto 100000
  lognode truncate --pchannel demo --upto 100000 --json

Storage is freed by whole segments: messages below OFFSET that share a segment with kept ones stay until it goes. \
Readers that stand below the first kept offset are told so, with that offset; they are never moved silently.")]
pub struct TruncateArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Log to truncate.
    #[arg(long, value_parser = pchannel_name)]
    pchannel: String,
    /// First offset that must stay.
    #[arg(long, value_name = "OFFSET")]
    upto: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Truncates, and prints the first offset that is kept now.
pub fn execute(args: &TruncateArgs) -> ExitCode {
    finish(server::run(truncate(args)))
}

async fn truncate(args: &TruncateArgs) -> Result<(), Fault> {
    let admin = Admin::new(args.server.client("truncate"))?;
    let done = match admin.truncate(&args.pchannel, Offset(args.upto)).await {
        Err(Error::BeyondEnd { next, .. }) => {
            return Err(Fault::failed(format!(
                "{}: offset {} lies beyond the end, the next one will be {next}; use --upto {next} or less",
                args.pchannel, args.upto
            )));
        }
        done => done?,
    };
    let first = done.first_offset.get();
    if args.json {
        return print_json(&json!({
            "pchannel": args.pchannel,
            "upto": args.upto,
            "first_offset": first,
            "held_by": done.held_by,
        }));
    }
    let why = match (first < args.upto, done.held_by.as_str()) {
        (false, _) => String::new(),
        (true, "") => format!("; those up to {} share a segment with kept ones", args.upto),
        (true, held_by) => format!("; held by {held_by}"),
    };
    print(&format!("{}: the first kept offset is {first}{why}\n", args.pchannel))
}
