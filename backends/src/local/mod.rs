//! The embedded log: segment files of one pchannel in one folder.
//!
//! ```text
//!   append(block) -> place in the active segment -> write (O_DIRECT)  -> group sync -> durable
//!                    full? roll: next prepared file, header page          (fdatasync beside further writes)
//!   read(cursor)  -> segment by offset -> sparse index -> read-ahead -> verified records
//!   open          -> checkpoint, footers, scan of what lies behind -> tail
//! ```

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
pub mod scan;
pub mod segment;
mod segment_file;

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use glommio::{Task, spawn_local};
use wire_format::{Bytes, Offset, Term, Timetick};

pub use config::LocalConfig;
pub use read::LocalCursor;
pub use recover::Replay;

use self::{
    checkpoint::Checkpoint, footer::Footer, prepare::Prepared, segment::SEGMENT_HEADER_BYTES, segment_file::SegmentFile,
};
use crate::{
    block::{Block, pchannel_hash},
    wal::{Damage, LogFacts, Placed, Wal, WalError},
};

/// What opening a log found.
#[derive(Debug, Clone)]
pub struct Opened {
    /// Extent of the log.
    pub facts: LogFacts,
    /// Places that can't be read. Readers get them as errors when they come there.
    pub damage: Vec<Damage>,
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
    prepared: Prepared,
    next_index: Cell<u64>,
    first_offset: Cell<Offset>,
    checkpoint: RefCell<Checkpoint>,
    checkpoint_busy: crate::gate::Gate,
    sealing: RefCell<Vec<Task<Result<(), WalError>>>>,
    failed: RefCell<Option<String>>,
}

/// Ends when a block is durable, or can't be.
pub struct LocalDurable(Task<Result<(), WalError>>);

impl Future for LocalDurable {
    type Output = Result<(), WalError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl LocalWal {
    /// Opens the log in its folder, creating both if needed, and tells what it holds: first the stored state, then each
    /// record behind it. Nothing is written but a missing folder.
    pub async fn open(
        config: LocalConfig,
        term: Term,
        on_replay: &mut dyn FnMut(Replay<'_>),
    ) -> Result<(Self, Opened), WalError> {
        if !config.folder.exists() {
            std::fs::create_dir_all(&config.folder)
                .map_err(|e| files::io_error("create folder", &config.folder, &e))?;
            if let Some(parent) = config.folder.parent() {
                files::sync_folder(parent).await?;
            }
        }
        poll_probe::settle(&config.folder).await?;
        let hash = pchannel_hash(&config.pchannel);
        let found = recover::recover(&config, hash, on_replay).await?;
        if found.facts.last_term > term {
            return Err(WalError::StaleTerm {
                pchannel: config.pchannel,
                stored: found.facts.last_term,
                ours: term,
            });
        }
        let prepared = Prepared::new(found.prepared);
        let inner = Inner {
            hash,
            term,
            segments: RefCell::new(found.segments),
            prepared,
            next_index: Cell::new(found.next_index),
            first_offset: Cell::new(found.facts.first_offset),
            checkpoint: RefCell::new(found.checkpoint),
            checkpoint_busy: crate::gate::Gate::default(),
            sealing: RefCell::default(),
            failed: RefCell::default(),
            config,
        };
        let opened = Opened {
            facts: found.facts,
            damage: found.damage,
            scanned: Bytes(found.scanned_bytes),
        };
        Ok((Self { inner: Rc::new(inner) }, opened))
    }

    /// The segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentSummary> {
        let behind = self.inner.checkpoint.borrow().scan_segment;
        let segments = self.inner.segments.borrow();
        let summary = |s: &Rc<SegmentFile>| {
            let (base_offset, next_offset, _, last_timetick, _) = s.extent();
            let droppable = s.is_sealed() && s.index < behind;
            SegmentSummary {
                index: s.index,
                base_offset,
                next_offset,
                last_timetick,
                stored: Bytes(s.size),
                droppable,
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

    fn active(&self) -> Option<Rc<SegmentFile>> {
        self.inner
            .segments
            .borrow()
            .back()
            .filter(|segment| !segment.is_sealed())
            .cloned()
    }

    /// The segment that the next block of `len` bytes goes to, and whether it is new.
    async fn segment_for(&self, len: u64, first_offset: Offset) -> Result<(Rc<SegmentFile>, bool), WalError> {
        let end = self.inner.config.blocks_end();
        let active = self.active();
        if let Some(active) = &active
            && active.next_position.get() + len <= end
        {
            if active.next_position.get() > active.size / 2 {
                self.inner
                    .prepared
                    .begin(&self.inner.config, self.inner.next_index.get());
            }
            return Ok((active.clone(), false));
        }
        let index = self.inner.next_index.get();
        let (path, file) = self
            .inner
            .prepared
            .take(&self.inner.config, index, active.is_some())
            .await?;
        self.inner.next_index.set(index + 1);
        let header = segment::SegmentHeader {
            pchannel_hash: self.inner.hash,
            index,
            base_offset: first_offset,
            term: self.inner.term,
        };
        files::write_page(&file, &path, 0, SEGMENT_HEADER_BYTES as usize, |out| header.write(out)).await?;
        let footer = Footer {
            base_offset: first_offset.get(),
            next_offset: first_offset.get(),
            end: SEGMENT_HEADER_BYTES,
            ..Footer::default()
        };
        let next = Rc::new(SegmentFile::open(
            index,
            path,
            self.inner.config.segment.get(),
            file,
            footer,
        ));
        self.inner.segments.borrow_mut().push_back(next.clone());
        if let Some(full) = active {
            let hash = self.inner.hash;
            let mut sealing = self.inner.sealing.borrow_mut();
            sealing.retain(|_| false); // earlier ones have long ended: a segment takes far longer to fill than to seal
            sealing.push(spawn_local(async move { full.seal(hash).await }));
        }
        Ok((next, true))
    }

    /// Stores `change`d checkpoint. One at a time; the file is replaced as a whole.
    async fn store_checkpoint(&self, change: impl FnOnce(&mut Checkpoint)) -> Result<(), WalError> {
        let _turn = self.inner.checkpoint_busy.enter().await;
        let mut next = self.inner.checkpoint.borrow().clone();
        change(&mut next);
        let folder = self.inner.config.folder.clone();
        let stored = next.clone();
        let result = glommio::executor()
            .spawn_blocking(move || checkpoint::store(&folder, &stored))
            .await;
        result.map_err(|e| files::io_error("store checkpoint in", &self.inner.config.folder, &e))?;
        *self.inner.checkpoint.borrow_mut() = next;
        Ok(())
    }

    /// The place of the last indexed block at or before `upto`, for a later scan to begin at.
    fn scan_place(&self, upto: Offset) -> Option<(u64, u64, Offset)> {
        let segments = self.inner.segments.borrow();
        let segment = segments.iter().rev().find(|segment| segment.base_offset() <= upto)?;
        Some((
            segment.index,
            segment.position_of(upto),
            segment.offset_of_indexed(upto),
        ))
    }

    /// Drops whole segments that lie below `upto`, recycling one of them. The first kept offset must be stored already.
    async fn drop_below(&self, upto: Offset) -> Result<(), WalError> {
        loop {
            let behind = self.inner.checkpoint.borrow().scan_segment;
            let dropped = {
                let mut segments = self.inner.segments.borrow_mut();
                let may = segments
                    .front()
                    .is_some_and(|s| s.is_sealed() && s.index < behind && s.next_offset() <= upto);
                if may { segments.pop_front() } else { None }
            };
            let Some(segment) = dropped else { return Ok(()) };
            self.inner
                .prepared
                .recycle(&self.inner.config, self.inner.next_index.get(), &segment)
                .await?;
        }
    }

    fn fail(&self, error: &WalError) {
        self.inner.failed.borrow_mut().get_or_insert_with(|| error.to_string());
    }
}

impl Wal for LocalWal {
    type Durable = LocalDurable;
    type Cursor = LocalCursor;

    async fn append(&self, block: Block, committed: Offset) -> Result<Placed<LocalDurable>, WalError> {
        self.check_open()?;
        let placed = self.segment_for(block.disk_len(), block.first_offset()).await;
        let (segment, rolled) = placed.inspect_err(|error| self.fail(error))?;
        let block = block.place(self.inner.hash, segment.index, committed);
        let position = segment.take_place(&block);
        let (log, written) = (self.clone(), block.clone());
        let task = spawn_local(async move {
            let result = segment.write_durably(written, position).await;
            result.inspect_err(|error| log.fail(error))
        });
        Ok(Placed {
            block,
            durable: LocalDurable(task),
            rolled,
        })
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
        let at = segments.partition_point(|segment| segment.extent().3 < timetick);
        let found = segments.get(at).map(|segment| segment.offset_at(timetick));
        let end = segments
            .back()
            .map_or(self.first_offset(), |segment| segment.next_offset());
        found.unwrap_or(end).max(self.first_offset())
    }

    async fn read(&self, cursor: &mut LocalCursor, durable: Offset) -> Result<Option<crate::wal::Chunk>, WalError> {
        self.read_chunk(cursor, durable).await
    }

    async fn checkpoint(&self, upto: Offset, state: Vec<u8>) -> Result<(), WalError> {
        let Some((segment, position, offset)) = self.scan_place(upto) else {
            return Ok(());
        };
        let before = self.summary_before(segment);
        self.store_checkpoint(move |next| {
            next.upto = upto.get();
            next.state = state;
            (next.scan_segment, next.scan_position, next.scan_offset) = (segment, position, offset.get());
            (next.scan_timetick, next.scan_term) = before;
            next.clean = false;
        })
        .await
    }

    async fn truncate(&self, upto: Offset) -> Result<Offset, WalError> {
        let end = self
            .inner
            .segments
            .borrow()
            .back()
            .map_or(self.first_offset(), |segment| segment.next_offset());
        let upto = upto.min(end);
        if upto > self.first_offset() {
            self.store_checkpoint(|next| next.first_offset = upto.get()).await?;
            self.inner.first_offset.set(upto);
        }
        self.drop_below(upto).await?;
        Ok(self.first_offset())
    }

    async fn close(&self, state: Vec<u8>) -> Result<(), WalError> {
        self.check_open()?;
        self.inner.prepared.settle().await;
        let sealing = self.inner.sealing.take();
        for task in sealing {
            task.await?;
        }
        let Some(last) = self.inner.segments.borrow().back().cloned() else {
            return Ok(());
        };
        let (_, end, _, last_timetick, term) = last.extent();
        let (index, position) = (last.index, last.next_position.get());
        self.store_checkpoint(move |next| {
            next.upto = end.get();
            next.state = state;
            (next.scan_segment, next.scan_position, next.scan_offset) = (index, position, end.get());
            (next.scan_timetick, next.scan_term) = (last_timetick.get(), term);
            next.clean = true;
        })
        .await?;
        *self.inner.failed.borrow_mut() = Some("it was closed in order".to_owned());
        Ok(())
    }

    fn first_offset(&self) -> Offset {
        self.inner.first_offset.get()
    }

    fn stored(&self) -> Bytes {
        Bytes(self.inner.segments.borrow().iter().map(|segment| segment.size).sum())
    }
}

impl LocalWal {
    /// Last timetick and largest term of what lies before a segment.
    fn summary_before(&self, index: u64) -> (u64, u64) {
        let segments = self.inner.segments.borrow();
        let before = segments
            .iter()
            .rev()
            .find(|segment| segment.index < index)
            .map(|segment| segment.extent());
        before.map_or((0, 0), |(_, _, _, timetick, term)| (timetick.get(), term))
    }
}
