//! `lognode channels`.

use std::process::ExitCode;

use clap::Args;
use lognode_client::{Admin, PchannelInfo};
use serde_json::{Value, json};

use super::{
    fault::{Fault, finish, print, print_json},
    server::{self, ServerArgs},
    table,
};

/// Which server to ask.
#[derive(Args)]
#[command(after_help = "Examples:
  lognode channels
  lognode channels --server 10.0.0.7:9400 --json

Offsets count messages from 0; NEXT is the one that the next message will get, and everything below it is durable.")]
pub struct ChannelsArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints the pchannels of a server.
pub fn execute(args: &ChannelsArgs) -> ExitCode {
    finish(server::run(list(args)))
}

async fn list(args: &ChannelsArgs) -> Result<(), Fault> {
    let pchannels = Admin::new(args.server.client("channels"))?.list_pchannels().await?;
    if args.json {
        let pchannels: Vec<Value> = pchannels.iter().map(facts).collect();
        return print_json(&json!({ "pchannels": pchannels }));
    }
    if pchannels.is_empty() {
        return print("no pchannel yet; `lognode produce --pchannel NAME ...` creates one\n");
    }
    print(&text(&pchannels))
}

fn facts(pchannel: &PchannelInfo) -> Value {
    json!({
        "name": pchannel.name,
        "shard": pchannel.shard,
        "term": pchannel.term.get(),
        "first_offset": pchannel.first_offset.get(),
        "next_offset": pchannel.next_offset.get(),
        "last_timetick": pchannel.last_timetick.get(),
        "stored_bytes": pchannel.stored.get(),
        "tail_bytes": pchannel.tail.get(),
        "readers": pchannel.readers,
        "producers": pchannel.producers,
        "failed": (!pchannel.failed.is_empty()).then_some(&pchannel.failed),
    })
}

fn text(pchannels: &[PchannelInfo]) -> String {
    let heading = [
        "PCHANNEL",
        "SHARD",
        "TERM",
        "FIRST",
        "NEXT",
        "LAST TIMETICK",
        "ON DISK",
        "IN MEMORY",
        "READERS",
        "PRODUCERS",
        "STATE",
    ];
    let row = |p: &PchannelInfo| {
        let state = if p.failed.is_empty() { "open" } else { "closed" };
        vec![
            p.name.clone(),
            p.shard.to_string(),
            p.term.to_string(),
            p.first_offset.to_string(),
            p.next_offset.to_string(),
            p.last_timetick.to_string(),
            table::bytes(p.stored.get()),
            table::bytes(p.tail.get()),
            p.readers.to_string(),
            p.producers.to_string(),
            state.to_owned(),
        ]
    };
    let mut text = table::aligned(&heading, &pchannels.iter().map(row).collect::<Vec<_>>());
    for closed in pchannels.iter().filter(|p| !p.failed.is_empty()) {
        text.push_str(&format!("\n{} is closed: {}\n", closed.name, closed.failed));
    }
    text
}
