//! `lognode inspect`.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use backends::local::inspect::{InspectOptions, Inspection, Part, SegmentInspection, SegmentState};
use clap::Args;
use serde_json::{Value, json};

use super::{
    fault::{Fault, finish, print, print_json},
    log_files::{self, Log, extent, facts, is_used},
    table,
};

/// What to look at, and how closely.
#[derive(Args)]
#[command(after_help = "Examples:
  lognode inspect ./data                              every log of a node
  lognode inspect ./data/pchannels/demo --verify      one log, every block read and checked
  lognode inspect ./data --vchannels --json

PATH is a data folder, or the folder of one log in it. It only reads. A server may be running on the folder: then the \
end of a log is seen as it happens to be, and what is still in memory is not seen. Without --verify or --vchannels the \
footers of full segments are believed, and only segments without one are read; `lognode verify` checks all of it and \
gives a verdict.

Offsets count messages from 0; NEXT is the one behind the last message of a segment. A range a..b ends before b. A \
segment that is `prepared` lies ready for use and holds nothing. CHECKED: `blocks` if every block was read and its \
checksums match, `footer` if only that was read.

Exit code 0: everything was read and is sound. 1: something is damaged or can't be read. 2: PATH is no such folder.")]
pub struct InspectArgs {
    /// A data folder, or DATA_DIR/pchannels/NAME.
    path: PathBuf,
    /// Read every block and check every checksum.
    #[arg(long)]
    verify: bool,
    /// Count the messages of each vchannel; reads every block too.
    #[arg(long)]
    vchannels: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints what lies in the folders of logs.
pub fn execute(args: &InspectArgs) -> ExitCode {
    finish(report(args))
}

fn report(args: &InspectArgs) -> Result<(), Fault> {
    let options = InspectOptions {
        verify: args.verify,
        vchannels: args.vchannels,
    };
    let all = log_files::look(&args.path, options)?;
    let printed = if args.json {
        print_json(&json!({
            "path": args.path.display().to_string(),
            "sound": all.logs.iter().all(Log::is_sound),
            "lost_messages": all.lost(),
            "pchannels": all.logs.iter().map(|log| with_segments(log, args.vchannels)).collect::<Vec<_>>(),
        }))
    } else if all.logs.is_empty() {
        print("no pchannel yet; `lognode produce --pchannel NAME ...` creates one\n")
    } else {
        let texts: Vec<String> = all.logs.iter().map(|log| text(log, args.vchannels)).collect();
        print(&texts.join("\n"))
    };
    all.verdict(&args.path, printed)
}

fn text(log: &Log, with_vchannels: bool) -> String {
    let mut text = format!(
        "{}: {}\n  folder      {}\n",
        log.name,
        log.state(),
        log.folder.display()
    );
    let Ok(found) = &log.found else { return text };
    let (first, next) = extent(found);
    text.push_str(&format!(
        "  offsets     {first}..{next}\n  checkpoint  {}\n",
        checkpoint(found)
    ));
    if !found.segments.is_empty() {
        text.push_str(&indented(&segments(found)));
    }
    if with_vchannels {
        let heading = ["VCHANNEL", "MESSAGES"];
        let row = |(name, count): (String, u64)| vec![name, count.to_string()];
        let rows: Vec<_> = vchannels(found).into_iter().map(row).collect();
        text.push_str(&indented(&table::aligned(&heading, &rows)));
    }
    text.push_str(&log.remarks());
    text
}

fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("  {line}\n")).collect()
}

fn checkpoint(found: &Inspection) -> String {
    let Some(checkpoint) = found.checkpoint else {
        return "none: a start reads the whole log".to_owned();
    };
    let closed = if checkpoint.clean {
        "the log was closed in order".to_owned()
    } else {
        format!(
            "a start reads on from segment {}, byte {}",
            checkpoint.scan_segment, checkpoint.scan_position
        )
    };
    format!(
        "number {}, up to offset {}; {closed}",
        checkpoint.sequence, checkpoint.upto
    )
}

fn segments(found: &Inspection) -> String {
    let heading = [
        "SEGMENT",
        "STATE",
        "FIRST",
        "NEXT",
        "MESSAGES",
        "BLOCKS",
        "RECORDS",
        "USED",
        "SIZE",
        "TERMS",
        "LAST TIMETICK",
        "CHECKED",
    ];
    let row = |segment: &SegmentInspection| {
        let (used, none) = (is_used(segment), || "-".to_owned());
        let cell = |text: String| if used { text } else { none() };
        let (low, high) = segment.terms;
        vec![
            segment
                .file
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            state(segment.state).to_owned(),
            cell(segment.base_offset.to_string()),
            cell(segment.next_offset.to_string()),
            cell(segment.messages.to_string()),
            cell(segment.blocks.to_string()),
            segment
                .records
                .filter(|_| used)
                .map_or_else(none, |records| records.to_string()),
            cell(table::bytes(segment.used.get())),
            table::bytes(segment.size.get()),
            cell(if low == high {
                low.to_string()
            } else {
                format!("{low}-{high}")
            }),
            cell(segment.last_timetick.to_string()),
            cell(if segment.verified { "blocks" } else { "footer" }.to_owned()),
        ]
    };
    table::aligned(&heading, &found.segments.iter().map(row).collect::<Vec<_>>())
}

fn state(state: SegmentState) -> &'static str {
    match state {
        SegmentState::Sealed => "sealed",
        SegmentState::Open => "open",
        SegmentState::Prepared => "prepared",
        SegmentState::Unknown => "unknown",
    }
}

fn vchannels(found: &Inspection) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, count) in found.segments.iter().flat_map(|segment| &segment.vchannels) {
        *sums.entry(name.clone()).or_default() += count;
    }
    sums
}

fn with_segments(log: &Log, with_vchannels: bool) -> Value {
    let mut value = facts(log);
    let (Ok(found), Some(object)) = (&log.found, value.as_object_mut()) else {
        return value;
    };
    let checkpoint = found.checkpoint.map(|checkpoint| {
        json!({
            "sequence": checkpoint.sequence,
            "first_offset": checkpoint.first_offset.get(),
            "upto": checkpoint.upto.get(),
            "state_bytes": checkpoint.state.get(),
            "scan_segment": checkpoint.scan_segment,
            "scan_position": checkpoint.scan_position,
            "clean": checkpoint.clean,
        })
    });
    object.insert("checkpoint".to_owned(), json!(checkpoint));
    let segments = found
        .segments
        .iter()
        .map(|segment| segment_facts(segment, with_vchannels));
    object.insert("segments".to_owned(), segments.collect());
    let others = found.others.iter().map(|file| file.display().to_string());
    object.insert("other_files".to_owned(), others.collect());
    if with_vchannels {
        object.insert("vchannels".to_owned(), json!(vchannels(found)));
    }
    value
}

fn segment_facts(segment: &SegmentInspection, with_vchannels: bool) -> Value {
    let part = |part: &Part| match part {
        Part::Whole => "whole".to_owned(),
        Part::Absent => "absent".to_owned(),
        Part::Damaged(detail) => format!("damaged: {detail}"),
    };
    json!({
        "file": segment.file.display().to_string(),
        "index": segment.index,
        "state": state(segment.state),
        "size_bytes": segment.size.get(),
        "used_bytes": segment.used.get(),
        "first_offset": segment.base_offset.get(),
        "next_offset": segment.next_offset.get(),
        "first_timetick": segment.first_timetick.get(),
        "last_timetick": segment.last_timetick.get(),
        "lowest_term": segment.terms.0.get(),
        "highest_term": segment.terms.1.get(),
        "blocks": segment.blocks,
        "records": segment.records,
        "messages": segment.messages,
        "verified": segment.verified,
        "header": part(&segment.header),
        "footer": part(&segment.footer),
        "trailer": part(&segment.trailer),
        "torn_tail": segment.torn_tail,
        "vchannels": with_vchannels.then_some(&segment.vchannels),
    })
}
