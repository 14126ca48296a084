//! The embedded log: segment files of one pchannel in one folder.
//!
//! ```text
//!   append(block) -> place in the active segment -> write (O_DIRECT)  -> group sync -> durable, in log order
//!                    full? roll: next prepared file, header page          (fdatasync beside further writes)
//!   read(cursor)  -> segment by offset -> sparse index -> read-ahead -> verified records
//!                    damaged place: whole records out of the rubble, an error for each gap
//!   open          -> checkpoint, footers, scan of what lies behind -> tail
//! ```
//! What tells a torn tail, which was never acked and is cut off, from rot, which is reported and never cut: rot is *proven*.
//! A later block names it committed, or a footer, a checkpoint or an orderly close covers it. What no proof covers, the blocks
//! that were in flight together at an end without an orderly close, is taken for torn if it is broken.
//!
//! A log must be opened under a term larger than any before: blocks of a crashed life that lie behind the cut are told from
//! new ones by it.

mod append;
pub mod checkpoint;
mod config;
mod files;
pub mod footer;
mod group_sync;
pub mod inspect;
mod poll_probe;
mod prepare;
mod read;
mod recover;
mod retain;
mod rubble;
pub mod scan;
pub mod segment;
mod segment_file;
#[cfg(test)]
mod sync_failure;

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

use wire_format::{Bytes, Offset, Term, Timetick};

pub use append::LocalDurable;
pub use config::LocalConfig;
pub use read::LocalCursor;
pub use recover::Replay;

use self::{checkpoint::Checkpoint, prepare::Prepared, segment_file::SegmentFile};
use crate::{
    block::{Block, pchannel_hash},
    gate::Gate,
    signal::Signal,
    wal::{Chunk, Damage, LogFacts, Placed, Wal, WalError},
};

/// What opening a log found.
#[derive(Debug, Clone)]
pub struct Opened {
    /// Extent of the log.
    pub facts: LogFacts,
    /// Places that can't be read. Readers get them as errors when they come there.
    pub damage: Vec<Damage>,
    /// The last messages of the log are damaged, be they truncated or not: replay ends before the log does.
    pub ends_in_damage: bool,
    /// Bytes that were scanned to find the end.
    pub scanned: Bytes,
}

/// A segment that retention may drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Its index.
    pub index: u64,
    /// Offset of its first message.
    pub base_offset: Offset,
    /// Offset behind its last message.
    pub next_offset: Offset,
    /// Its last timetick.
    pub last_timetick: Timetick,
    /// Its size on disk.
    pub stored: Bytes,
    /// Whether it is full, and behind the checkpoint: only such a segment may be dropped.
    pub droppable: bool,
}

/// The log of one pchannel. Cheap to clone; all clones are the same log. Belongs to one shard.
#[derive(Clone)]
pub struct LocalWal {
    inner: Rc<Inner>,
}

struct Inner {
    config: LocalConfig,
    hash: u64,
    term: Term,
    segments: RefCell<VecDeque<Rc<SegmentFile>>>,
    prepared: Rc<Prepared>,
    /// One block takes its place at a time.
    append_turn: Gate,
    first_offset: Cell<Offset>,
    /// Offset behind the last block that has a place.
    next_offset: Cell<Offset>,
    /// Everything below is durable.
    durable: Cell<Offset>,
    /// Tells of `durable`, `failed` and `sealing`.
    progress: Signal,
    checkpoint: RefCell<Checkpoint>,
    checkpoint_turn: Gate,
    /// Segments are dropped by one at a time.
    drop_turn: Gate,
    /// Footers being written.
    sealing: Cell<u32>,
    /// Why nothing may be appended any more.
    failed: RefCell<Option<String>>,
}

impl LocalWal {
    /// Opens the log in its folder, creating the folder if needed, and tells what it holds: first the stored state, then each
    /// record behind it. No segment is written to. `term` must be larger than that of any owner before.
    pub async fn open(
        config: LocalConfig,
        term: Term,
        on_replay: &mut dyn FnMut(Replay<'_>),
    ) -> Result<(Self, Opened), WalError> {
        if !config.folder.exists() {
            std::fs::create_dir_all(&config.folder)
                .map_err(|e| files::io_error("create folder", &config.folder, &e))?;
        }
        poll_probe::settle(&config.folder).await?;
        let hash = pchannel_hash(&config.pchannel);
        let found = recover::recover(&config, hash, on_replay).await?;
        if found.highest_term >= term && found.highest_term > Term::ZERO {
            return Err(WalError::StaleTerm {
                pchannel: config.pchannel,
                stored: found.highest_term,
                ours: term,
            });
        }
        for useless in found.useless {
            files::remove(useless).await?;
        }
        // What is found here may be the work of a life that ended before it was durable, or its names. From now on it is
        // served as durable.
        for segment in found.segments.iter().filter(|_| !found.checkpoint.clean) {
            segment.settle_found().await?;
        }
        files::sync_folder(&config.folder).await?;
        if found.segments.is_empty()
            && let Some(parent) = config.folder.parent()
        {
            // Perhaps the folder is new, made by this life or by one that crashed at once.
            files::sync_folder(parent).await?;
        }
        let inner = Inner {
            hash,
            term,
            segments: RefCell::new(found.segments),
            prepared: Prepared::new(config.clone(), found.next_index, found.prepared),
            append_turn: Gate::default(),
            first_offset: Cell::new(found.facts.first_offset),
            next_offset: Cell::new(found.facts.next_offset),
            durable: Cell::new(found.facts.next_offset),
            progress: Signal::default(),
            checkpoint: RefCell::new(found.checkpoint),
            checkpoint_turn: Gate::default(),
            drop_turn: Gate::default(),
            sealing: Cell::new(0),
            failed: RefCell::default(),
            config,
        };
        let opened = Opened {
            facts: found.facts,
            damage: found.damage,
            ends_in_damage: found.ends_in_damage,
            scanned: Bytes(found.scanned_bytes),
        };
        Ok((Self { inner: Rc::new(inner) }, opened))
    }

    /// Closes the log and waits until nothing of this opening can reach the disk any more: no footer, no next file, no
    /// checkpoint, no dropped segment, whoever still holds it. For a log whose appends have all ended, and that is about to be
    /// opened again.
    pub async fn quiet(&self) {
        self.fail("it is opened again");
        drop(self.inner.drop_turn.enter().await);
        drop(self.inner.checkpoint_turn.enter().await);
        self.inner.prepared.settle().await;
        loop {
            let seen = self.inner.progress.epoch();
            if self.inner.sealing.get() == 0 {
                return;
            }
            self.inner.progress.changed(seen).await;
        }
    }

    /// The segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentSummary> {
        let behind = self.inner.checkpoint.borrow().scan_segment;
        let segments = self.inner.segments.borrow();
        let summary = |s: &Rc<SegmentFile>| {
            let extents = s.extents();
            SegmentSummary {
                index: s.index,
                base_offset: extents.base_offset,
                next_offset: extents.next_offset,
                last_timetick: extents.last_timetick,
                stored: Bytes(s.size),
                droppable: s.is_sealed() && s.index < behind,
            }
        };
        segments.iter().map(summary).collect()
    }

    fn check_open(&self) -> Result<(), WalError> {
        match &*self.inner.failed.borrow() {
            Some(first_cause) => Err(WalError::Closed {
                first_cause: first_cause.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Closes the log for appends; the first cause is kept.
    fn fail(&self, first_cause: &str) {
        self.inner
            .failed
            .borrow_mut()
            .get_or_insert_with(|| first_cause.to_owned());
        self.inner.progress.notify();
    }

    /// The segment that takes the next block, if it still takes any.
    fn active(&self) -> Option<Rc<SegmentFile>> {
        let segments = self.inner.segments.borrow();
        segments.back().filter(|segment| !segment.is_sealed()).cloned()
    }
}

impl Wal for LocalWal {
    type Durable = LocalDurable;
    type Cursor = LocalCursor;

    async fn append(&self, block: Block, committed: Offset) -> Result<Placed<LocalDurable>, WalError> {
        self.append_block(block, committed).await
    }

    async fn make_room(&self, bytes: Bytes) -> Result<(), WalError> {
        self.room_for(bytes.get()).await
    }

    fn cursor(&self, from: Offset) -> Result<LocalCursor, WalError> {
        let first = self.first_offset();
        if from < first {
            return Err(WalError::Truncated { asked: from, first });
        }
        Ok(LocalCursor::new(from))
    }

    fn locate(&self, timetick: Timetick) -> Offset {
        let segments = self.inner.segments.borrow();
        let at = segments.partition_point(|segment| segment.extents().last_timetick < timetick);
        let found = segments.get(at).map(|segment| segment.offset_at(timetick));
        found
            .unwrap_or_else(|| self.inner.next_offset.get())
            .max(self.first_offset())
    }

    async fn read(&self, cursor: &mut LocalCursor, durable: Offset) -> Result<Option<Chunk>, WalError> {
        self.read_chunk(cursor, durable).await
    }

    async fn checkpoint(&self, upto: Offset, state: Vec<u8>) -> Result<(), WalError> {
        self.checkpoint_at(upto, state).await
    }

    async fn truncate(&self, upto: Offset) -> Result<Offset, WalError> {
        self.truncate_to(upto).await
    }

    async fn close(&self, state: Vec<u8>) -> Result<(), WalError> {
        self.close_in_order(state).await
    }

    fn first_offset(&self) -> Offset {
        self.inner.first_offset.get()
    }

    fn stored(&self) -> Bytes {
        self.stored_bytes()
    }
}
