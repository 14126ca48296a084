//! `lognode verify`.

use std::{path::PathBuf, process::ExitCode};

use backends::local::inspect::InspectOptions;
use clap::Args;
use serde_json::{Value, json};

use super::{
    fault::{Fault, finish, print, print_json},
    log_files::{self, Log, Logs, extent, facts},
    table,
};

/// What to check.
#[derive(Args)]
#[command(after_help = "Examples:
  lognode verify ./data                        every log of a node
  lognode verify ./data/pchannels/demo         one log
  lognode verify ./data --json

PATH is a data folder, or the folder of one log in it. Every block is read and every checksum in it checked, those of \
single messages too. It only reads. A server may be running on the folder: then the end of a log is seen as it happens \
to be. A write that was not finished at the very end is told, but is no damage: it was not acked, and a start cuts it off. \
After a crash the last block that was acked can't be told from it, should just that one be damaged.

Exit code 0: everything was read and is sound. 1: something is damaged or can't be read; it is told which bytes of \
which file, and which offsets are lost. 2: PATH is no such folder. `lognode inspect` shows the segments one by one.")]
pub struct VerifyArgs {
    /// A data folder, or DATA_DIR/pchannels/NAME.
    path: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Checks everything and prints a verdict.
pub fn execute(args: &VerifyArgs) -> ExitCode {
    finish(report(args))
}

fn report(args: &VerifyArgs) -> Result<(), Fault> {
    let options = InspectOptions {
        verify: true,
        vchannels: false,
    };
    let all = log_files::look(&args.path, options)?;
    let printed = if args.json {
        print_json(&whole(args, &all))
    } else {
        print(&text(&all))
    };
    all.verdict(&args.path, printed)
}

/// What was read.
#[derive(Default)]
struct Volume {
    bytes: u64,
    blocks: u64,
    messages: u64,
}

impl Volume {
    fn of(log: &Log) -> Self {
        let mut sum = Self::default();
        for segment in log
            .found
            .iter()
            .flat_map(|found| &found.segments)
            .filter(|segment| segment.verified)
        {
            sum.bytes += segment.used.get();
            sum.blocks += segment.blocks;
            sum.messages += segment.messages;
        }
        sum
    }

    fn add(mut self, other: &Self) -> Self {
        self.bytes += other.bytes;
        self.blocks += other.blocks;
        self.messages += other.messages;
        self
    }

    fn text(&self) -> String {
        format!(
            "{} in {}, {}",
            table::counted(self.messages, "message"),
            table::counted(self.blocks, "block"),
            table::bytes(self.bytes)
        )
    }
}

fn total(all: &Logs) -> Volume {
    all.logs
        .iter()
        .fold(Volume::default(), |sum, log| sum.add(&Volume::of(log)))
}

fn mib_per_s(all: &Logs) -> f64 {
    total(all).bytes as f64 / f64::from(1 << 20) / all.took.as_secs_f64().max(1e-9)
}

fn text(all: &Logs) -> String {
    let mut text = String::new();
    for log in &all.logs {
        let extent = log.found.as_ref().map(extent);
        let volume = match extent {
            Ok((first, next)) => format!("; offsets {first}..{next}, {}", Volume::of(log).text()),
            Err(_) => String::new(),
        };
        text.push_str(&format!("{}: {}{volume}\n{}", log.name, log.state(), log.remarks()));
    }
    let sound = all.logs.iter().filter(|log| log.is_sound()).count() as u64;
    text.push_str(&format!(
        "total: {sound} of {} sound; {} at {:.0} MiB/s; {} lost\n",
        table::counted(all.logs.len() as u64, "pchannel"),
        total(all).text(),
        mib_per_s(all),
        table::counted(all.lost(), "message"),
    ));
    text
}

fn whole(args: &VerifyArgs, all: &Logs) -> Value {
    let with_volume = |log: &Log| {
        let mut value = facts(log);
        if let Some(object) = value.as_object_mut() {
            let volume = Volume::of(log);
            object.insert("bytes".to_owned(), json!(volume.bytes));
            object.insert("blocks".to_owned(), json!(volume.blocks));
            object.insert("messages".to_owned(), json!(volume.messages));
        }
        value
    };
    let sum = total(all);
    json!({
        "path": args.path.display().to_string(),
        "sound": all.logs.iter().all(Log::is_sound),
        "bytes": sum.bytes,
        "blocks": sum.blocks,
        "messages": sum.messages,
        "lost_messages": all.lost(),
        "seconds": all.took.as_secs_f64(),
        "mib_per_s": mib_per_s(all),
        "pchannels": all.logs.iter().map(with_volume).collect::<Vec<_>>(),
    })
}
