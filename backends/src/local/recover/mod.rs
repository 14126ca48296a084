//! Opening a log: footers are read, only what lies behind the checkpoint is scanned.

mod candidate;
mod walk;

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    rc::Rc,
};

use wire_format::{Offset, Term, Timetick, batch::Meta};

use super::{
    checkpoint::{self, Checkpoint},
    config::LocalConfig,
    files,
    segment::{block_tag, file_name},
    segment_file::SegmentFile,
};
use crate::{
    block::{ALIGNMENT, BlockHeader},
    wal::{Damage, LogFacts, WalError},
};

use self::{candidate::Candidate, walk::Walk};

/// What a recovery tells of the log's content.
pub enum Replay<'a> {
    /// The state stored with the last checkpoint: the fold of everything below the offset.
    State(Offset, &'a [u8]),
    /// A record behind it.
    Record(&'a Meta),
}

/// What a recovery found.
pub(super) struct Recovered {
    pub facts: LogFacts,
    pub segments: VecDeque<Rc<SegmentFile>>,
    /// Whether a file of the next index lies ready.
    pub prepared: bool,
    pub next_index: u64,
    pub damage: Vec<Damage>,
    /// The last thing of the log is damaged, be it truncated or not.
    pub ends_in_damage: bool,
    pub checkpoint: Checkpoint,
    pub scanned_bytes: u64,
    /// The largest term seen, also in blocks that were cut off.
    pub highest_term: Term,
    /// Files that are of no use any more.
    pub useless: Vec<PathBuf>,
}

/// Reads what is in the folder, which must exist. Changes nothing.
pub(super) async fn recover(
    config: &LocalConfig,
    pchannel_hash: u64,
    on_replay: &mut dyn FnMut(Replay<'_>),
) -> Result<Recovered, WalError> {
    let (mut known, checkpoint_damage) = load_checkpoint(config, pchannel_hash)?;
    if let Some(checkpoint) = &known {
        (on_replay)(Replay::State(Offset(checkpoint.upto), &checkpoint.state));
    }
    let candidates = candidate::read_all(config, pchannel_hash).await?;
    if let Some(checkpoint) = known.as_mut().filter(|checkpoint| checkpoint.clean)
        && goes_on_behind(checkpoint, &candidates, pchannel_hash).await?
    {
        tracing::warn!(
            folder = %config.folder.display(), end = checkpoint.scan_offset,
            "the log goes on behind the end that its checkpoint notes: a newer checkpoint is missing; scanning on"
        );
        checkpoint.clean = false;
    }
    // A lost checkpoint takes the first kept offset with it; what was dropped below the oldest file is no damage then.
    let oldest = candidates.iter().find_map(|c| c.base).unwrap_or_default();
    let known_first = known.as_ref().map_or(Offset::ZERO, |c| Offset(c.first_offset));
    let first_offset = if checkpoint_damage.is_empty() {
        known_first
    } else {
        known_first.max(oldest)
    };
    let checkpoint = known.clone().unwrap_or_default();
    let footers = candidates.iter().filter_map(Candidate::footer_next).max();
    let mut walk = Walk {
        config,
        pchannel_hash,
        due: first_offset.min(oldest),
        proven: footers
            .unwrap_or_default()
            .max(Offset(checkpoint.upto))
            .max(Offset(checkpoint.first_offset)),
        first_offset,
        last_timetick: Timetick(checkpoint.scan_timetick),
        term: Term(checkpoint.scan_term),
        highest_term: Term(checkpoint.scan_term),
        damage: if known.is_some() { Vec::new() } else { checkpoint_damage },
        bytes: 0,
        replay_from: Offset(checkpoint.upto),
        on_replay,
        segments: VecDeque::new(),
        useless: Vec::new(),
    };
    let leftover = walk.all(candidates, known.as_ref()).await?;
    walk.end_of_log();
    Ok(recovered(config, walk, leftover, checkpoint))
}

/// Whether there are blocks behind the end of a log that was closed in order, which only a newer checkpoint could explain.
async fn goes_on_behind(
    checkpoint: &Checkpoint,
    candidates: &[Candidate],
    pchannel_hash: u64,
) -> Result<bool, WalError> {
    let last = checkpoint.scan_segment;
    if candidates.iter().any(|c| c.index > last && c.is_segment()) {
        return Ok(true);
    }
    let Some(candidate) = candidates.iter().find(|c| c.index == last) else {
        return Ok(false);
    };
    let file = files::open(&candidate.path, false).await?;
    let position = checkpoint.scan_position;
    let page = files::read(&file, &candidate.path, position, ALIGNMENT as u64).await?;
    Ok(BlockHeader::read(&page).is_ok_and(|header| {
        header.tag == block_tag(pchannel_hash, checkpoint.scan_footer.nonce)
            && header.segment_index == last
            && header.first_offset == Offset(checkpoint.scan_offset)
    }))
}

fn recovered(config: &LocalConfig, walk: Walk<'_>, leftover: Vec<Candidate>, checkpoint: Checkpoint) -> Recovered {
    let last = walk.segments.back().map(|segment| segment.index + 1);
    // A file that the checkpoint names was in use, even if it is gone.
    let gone = checkpoint.has_place().then_some(checkpoint.scan_segment + 1);
    // Nor is a file touched that somebody else's messages lie in.
    let foreign = leftover.iter().filter(|c| c.is_foreign).map(|c| c.index + 1).max();
    let next_index = last.max(gone).max(foreign).unwrap_or(0);
    let (mut prepared, mut useless) = (false, walk.useless);
    for candidate in leftover {
        let lies_ready =
            candidate.index == next_index && candidate.size == config.segment.get() && !candidate.is_segment();
        if lies_ready {
            prepared = true;
        } else if candidate.is_foreign {
            tracing::error!(file = %candidate.path.display(), "this is a segment of another pchannel; left alone");
        } else {
            useless.push(candidate.path);
        }
    }
    let mut damage = walk.damage;
    let ends_in_damage = damage
        .iter()
        .any(|d| d.next_offset > d.first_offset && d.next_offset >= walk.due);
    damage.retain(|d| d.next_offset > walk.first_offset || d.next_offset == d.first_offset);
    Recovered {
        facts: LogFacts {
            first_offset: walk.first_offset.min(walk.due),
            next_offset: walk.due,
            last_timetick: walk.last_timetick,
            last_term: walk.term,
        },
        segments: walk.segments,
        prepared,
        next_index,
        damage,
        ends_in_damage,
        checkpoint,
        scanned_bytes: walk.bytes,
        highest_term: walk.highest_term.max(walk.term),
        useless,
    }
}

/// The newest whole checkpoint, and what is wrong with its files. If any is damaged it may have been the newest, so an
/// older one's word that the log was closed in order does not count.
fn load_checkpoint(config: &LocalConfig, pchannel_hash: u64) -> Result<(Option<Checkpoint>, Vec<Damage>), WalError> {
    let loaded = checkpoint::load(&config.folder, Some(pchannel_hash))
        .map_err(|e| files::io_error("read checkpoint of", &config.folder, &e))?;
    let mut known = loaded.checkpoint;
    let mut damage = Vec::new();
    for (path, detail) in loaded.damaged {
        tracing::warn!(file = %path.display(), detail, "a checkpoint is damaged, or its writing was cut off");
        if let Some(checkpoint) = &mut known {
            checkpoint.clean = false;
        }
        damage.push(damaged(&path, (0, 0), (Offset::ZERO, Offset::ZERO), detail));
    }
    Ok((known, damage))
}

fn damaged(file: &Path, bytes: (u64, u64), offsets: (Offset, Offset), detail: String) -> Damage {
    Damage {
        file: file.to_owned(),
        from: bytes.0,
        to: bytes.1,
        first_offset: offsets.0,
        next_offset: offsets.1,
        detail,
    }
}

/// Offsets that no file holds, between the end of the file before and the beginning of `candidate`.
fn missing(config: &LocalConfig, before: Option<u64>, candidate: &Candidate, offsets: (Offset, Offset)) -> Damage {
    let due = before.map_or(0, |index| index + 1);
    if due < candidate.index {
        let path = config.folder.join(file_name(due));
        return damaged(&path, (0, 0), offsets, "the file is missing".to_owned());
    }
    let detail = format!("it begins at offset {}, but {} is due", offsets.1, offsets.0);
    damaged(&candidate.path, (0, 0), offsets, detail)
}
