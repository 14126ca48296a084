//! Looking at a log from outside: what is in its files, and what is wrong with them. Reads only, needs no shard.
//!
//! Meant for a log that no server has open: of one that is written to, the end is seen as it happens to be.

mod file;
mod walk;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use wire_format::{Bytes, Offset, Term, Timetick};

use super::checkpoint;
use crate::wal::Damage;

/// How closely to look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InspectOptions {
    /// Read every block and check every checksum. Otherwise the footers are believed, and only what has none is read.
    pub verify: bool,
    /// Count the messages of each vchannel; reads every block too.
    pub vchannels: bool,
}

/// What was found in a log's folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// The folder.
    pub folder: PathBuf,
    /// The pchannel that its records name; unknown if none was read.
    pub pchannel: Option<String>,
    /// The checkpoint that a start would use.
    pub checkpoint: Option<CheckpointSummary>,
    /// Checkpoint files that can't be read, and why.
    pub damaged_checkpoints: Vec<(PathBuf, String)>,
    /// The segment files, by index.
    pub segments: Vec<SegmentInspection>,
    /// Offsets that no file holds, and everything wrong that is not in one file.
    pub gaps: Vec<Damage>,
    /// Files that are not the log's.
    pub others: Vec<PathBuf>,
}

/// The checkpoint without its opaque state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// Its number.
    pub sequence: u64,
    /// First offset that is kept.
    pub first_offset: Offset,
    /// The state is the fold of everything below.
    pub upto: Offset,
    /// Size of the state.
    pub state: Bytes,
    /// Segment that a recovery scan begins in.
    pub scan_segment: u64,
    /// Byte that it begins at.
    pub scan_position: u64,
    /// Whether the log was closed in order.
    pub clean: bool,
}

/// What a segment file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentState {
    /// Full, with its footer.
    Sealed,
    /// Takes blocks, or is full and has no footer yet.
    Open,
    /// Lies ready for use; its content does not matter.
    Prepared,
    /// Neither header nor footer nor first block tells.
    Unknown,
}

/// A part of a segment file besides its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// As it should be.
    Whole,
    /// Not there.
    Absent,
    /// Not readable, or not what the blocks say.
    Damaged(String),
}

/// What was found in a segment file.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentInspection {
    /// The file.
    pub file: PathBuf,
    /// Its index.
    pub index: u64,
    /// What it is.
    pub state: SegmentState,
    /// Its size.
    pub size: Bytes,
    /// Up to the end of its last block.
    pub used: Bytes,
    /// Offset of the first message.
    pub base_offset: Offset,
    /// Offset behind the last message.
    pub next_offset: Offset,
    /// First timetick.
    pub first_timetick: Timetick,
    /// Last timetick.
    pub last_timetick: Timetick,
    /// Smallest and largest term; the same if only the footer was read.
    pub terms: (Term, Term),
    /// Blocks in it.
    pub blocks: u64,
    /// Records in it; unknown if only the footer was read.
    pub records: Option<u64>,
    /// Messages that can be read, or that the footer counts.
    pub messages: u64,
    /// Whether its blocks were read and checked.
    pub verified: bool,
    /// The first 4 KiB.
    pub header: Part,
    /// Sparse index and extent.
    pub footer: Part,
    /// The last 4 KiB, which say where the footer is.
    pub trailer: Part,
    /// What can't be read. Where first and next offset are the same no message is lost.
    pub damage: Vec<Damage>,
    /// An unfinished write behind the last block, which a start cuts off.
    pub torn_tail: Option<String>,
    /// Messages of each vchannel, if asked for.
    pub vchannels: BTreeMap<String, u64>,
}

impl Inspection {
    /// Whether nothing is wrong: no damage, no gap, no unreadable checkpoint. An unfinished write at the end is not wrong.
    pub fn is_sound(&self) -> bool {
        let part_is_sound = |part: &Part| !matches!(part, Part::Damaged(_));
        self.gaps.is_empty()
            && self.damaged_checkpoints.is_empty()
            && self.segments.iter().all(|segment| {
                segment.damage.is_empty()
                    && segment.state != SegmentState::Unknown
                    && [&segment.header, &segment.footer, &segment.trailer]
                        .into_iter()
                        .all(part_is_sound)
            })
    }

    /// Messages that are kept and lost.
    pub fn lost_messages(&self) -> u64 {
        let damage = self
            .segments
            .iter()
            .flat_map(|segment| &segment.damage)
            .chain(&self.gaps);
        damage.map(|d| d.next_offset.get() - d.first_offset.get()).sum()
    }
}

/// Looks at the log in `folder`. `progress` is told of bytes read and bytes to read, many times a second.
///
/// # Errors
/// Those of the system, on listing the folder or reading a file. Damage is no error: it is in the result.
pub fn inspect(
    folder: &Path,
    options: InspectOptions,
    progress: &mut dyn FnMut(Bytes, Bytes),
) -> io::Result<Inspection> {
    let loaded = checkpoint::load(folder, None)?;
    let mut files = Vec::new();
    let mut others = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match super::segment::index_of(name) {
            Some(index) => files.push((index, path)),
            None if checkpoint::FILE_NAMES.contains(&name) => {}
            None => others.push(path),
        }
    }
    files.sort_unstable();
    others.sort_unstable();
    let first_kept = loaded
        .checkpoint
        .as_ref()
        .map_or(Offset::ZERO, |c| Offset(c.first_offset));
    let proven = loaded.checkpoint.as_ref().map_or(Offset::ZERO, |c| Offset(c.upto));
    let mut walk = walk::Walk::new(options, proven, progress);
    let segments = walk.all(files)?;
    let gaps = gaps(&segments, first_kept, proven);
    Ok(Inspection {
        folder: folder.to_owned(),
        pchannel: walk.pchannel,
        checkpoint: loaded.checkpoint.map(|c| CheckpointSummary {
            sequence: c.sequence,
            first_offset: Offset(c.first_offset),
            upto: Offset(c.upto),
            state: Bytes(c.state.len() as u64),
            scan_segment: c.scan_segment,
            scan_position: c.scan_position,
            clean: c.clean,
        }),
        damaged_checkpoints: loaded.damaged,
        segments,
        gaps,
        others,
    })
}

/// Offsets between the files, or behind the last that the checkpoint knows of.
fn gaps(segments: &[SegmentInspection], first_kept: Offset, proven: Offset) -> Vec<Damage> {
    let in_use = |s: &&SegmentInspection| matches!(s.state, SegmentState::Sealed | SegmentState::Open);
    let mut gaps = Vec::new();
    let mut due = first_kept;
    let mut note = |file: &Path, from: Offset, to: Offset, detail: &str| {
        gaps.push(Damage {
            file: file.to_owned(),
            from: 0,
            to: 0,
            first_offset: from,
            next_offset: to,
            detail: detail.to_owned(),
        });
    };
    let mut last = PathBuf::new();
    for segment in segments.iter().filter(in_use) {
        if segment.base_offset > due {
            note(
                &segment.file,
                due,
                segment.base_offset,
                "a file before this one is missing",
            );
        }
        due = due.max(segment.next_offset);
        last.clone_from(&segment.file);
    }
    if proven > due {
        note(&last, due, proven, "what stood behind the end of this file is missing");
    }
    gaps
}
