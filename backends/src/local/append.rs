//! Appending: a block gets its place, is written, and is durable when everything before it is.

use std::{
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use glommio::{spawn_local, task::JoinHandle};
use wire_format::Offset;

use super::{
    LocalWal, files,
    footer::Footer,
    segment::{SEGMENT_HEADER_BYTES, SegmentHeader, draw_nonce},
    segment_file::SegmentFile,
};
use crate::{
    block::{Block, PlacedBlock},
    wal::{Placed, WalError},
};

/// Ends when a block and everything before it is durable, or can't be. The write goes on if this is dropped.
pub struct LocalDurable(JoinHandle<Result<(), WalError>>);

impl Future for LocalDurable {
    type Output = Result<(), WalError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|result| {
            result.unwrap_or_else(|| {
                let first_cause = "its shard is gone".to_owned();
                Err(WalError::Closed { first_cause })
            })
        })
    }
}

impl LocalWal {
    pub(super) async fn append_block(&self, block: Block, committed: Offset) -> Result<Placed<LocalDurable>, WalError> {
        let _turn = self.inner.append_turn.enter().await;
        self.check_block(&block)?;
        self.no_longer_clean().await?;
        let (segment, rolled) = match self.active_with_room(block.disk_len()) {
            Some(segment) => (segment, false),
            None => (self.roll(block.first_offset()).await?, true),
        };
        let block = block.place(
            segment.tag(self.inner.hash),
            segment.index,
            committed.min(self.inner.durable.get()),
        );
        let position = segment.take_place(&block);
        self.inner.next_offset.set(block.header.next_offset);
        let (log, written) = (self.clone(), block.clone());
        let task = spawn_local(async move { log.write(&segment, &written, position).await });
        Ok(Placed {
            block,
            durable: LocalDurable(task.detach()),
            rolled,
        })
    }

    fn check_block(&self, block: &Block) -> Result<(), WalError> {
        self.check_open()?;
        if block.term() != self.inner.term {
            return Err(WalError::StaleTerm {
                pchannel: self.inner.config.pchannel.clone(),
                stored: self.inner.term,
                ours: block.term(),
            });
        }
        let due = self.inner.next_offset.get();
        if block.first_offset() != due || block.next_offset() <= due {
            return Err(WalError::OutOfOrder {
                pchannel: self.inner.config.pchannel.clone(),
                due,
                first_offset: block.first_offset(),
                next_offset: block.next_offset(),
            });
        }
        self.check_size(block.disk_len())
    }

    fn check_size(&self, bytes: u64) -> Result<(), WalError> {
        let limit = self.inner.config.block_max();
        if bytes > limit {
            return Err(WalError::TooLarge {
                backend: "local",
                bytes: wire_format::Bytes(bytes),
                limit: wire_format::Bytes(limit),
            });
        }
        Ok(())
    }

    /// Writes a placed block; ends when the log is durable up to its end.
    async fn write(&self, segment: &SegmentFile, block: &PlacedBlock, position: u64) -> Result<(), WalError> {
        let result = segment.write_durably(block, position).await;
        result.inspect_err(|error| self.fail(&error.to_string()))?;
        self.durable_to(block.header.first_offset).await?;
        self.inner.durable.set(block.header.next_offset);
        self.inner.progress.notify();
        Ok(())
    }

    /// Waits until everything below `upto` is durable, or can't be.
    pub(super) async fn durable_to(&self, upto: Offset) -> Result<(), WalError> {
        loop {
            let seen = self.inner.progress.epoch();
            if self.inner.durable.get() >= upto {
                return Ok(());
            }
            self.check_open()?;
            self.inner.progress.changed(seen).await;
        }
    }

    fn active_with_room(&self, len: u64) -> Option<Rc<SegmentFile>> {
        let active = self.active()?;
        let end = active.extents().end;
        if end + len > self.inner.config.blocks_end() {
            return None;
        }
        if end > active.size / 2 {
            self.inner.prepared.begin(true);
        }
        Some(active)
    }

    /// Makes sure that the next block of up to `len` bytes finds a place.
    pub(super) async fn room_for(&self, len: u64) -> Result<(), WalError> {
        self.check_open()?;
        self.check_size(len)?;
        match self.active_with_room(len) {
            Some(_) => Ok(()),
            None => self.inner.prepared.ready(self.writes_zeros()).await,
        }
    }

    /// The first segment of a log is not written with zeros: most logs stay small.
    fn writes_zeros(&self) -> bool {
        !self.inner.segments.borrow().is_empty()
    }

    /// Opens the next segment. On an error the log is as it was.
    async fn roll(&self, base_offset: Offset) -> Result<Rc<SegmentFile>, WalError> {
        let taken = self.inner.prepared.take(self.writes_zeros()).await?;
        let header = SegmentHeader {
            pchannel_hash: self.inner.hash,
            index: taken.index,
            base_offset,
            term: self.inner.term,
            nonce: draw_nonce(),
            size: self.inner.config.segment.get(),
        };
        // Durable with the first block, which waits for the sync that covers both.
        files::write_page(&taken.file, &taken.path, 0, SEGMENT_HEADER_BYTES as usize, |out| {
            header.write(out)
        })
        .await?;
        let next = Rc::new(SegmentFile::open(
            taken.index,
            taken.path.clone(),
            self.inner.config.segment.get(),
            taken.file.clone(),
            Footer::begin(base_offset, header.nonce),
        ));
        next.header_written();
        taken.used();
        self.inner.segments.borrow_mut().push_back(next.clone());
        self.seal_full();
        Ok(next)
    }

    /// Begins to write the footers of all segments but the active one that have none.
    pub(super) fn seal_full(&self) {
        let active = self.active().map(|segment| segment.index);
        let segments = self.inner.segments.borrow();
        let full = segments.iter().filter(|segment| Some(segment.index) != active);
        for segment in full.filter(|segment| segment.begin_seal()) {
            self.inner.sealing.set(self.inner.sealing.get() + 1);
            let (log, segment) = (self.clone(), segment.clone());
            spawn_local(async move {
                // A footer proves that everything up to its end was durable.
                let result = match log.durable_to(segment.extents().next_offset).await {
                    Ok(()) => segment.seal(log.inner.hash).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = result {
                    tracing::warn!(file = %segment.path.display(), %error, "no footer; the segment is scanned at the next start");
                }
                log.inner.sealing.set(log.inner.sealing.get() - 1);
                log.inner.progress.notify();
            })
            .detach();
        }
    }
}
