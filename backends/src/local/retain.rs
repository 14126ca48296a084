//! Checkpoint, truncation and orderly close.

use std::{collections::VecDeque, rc::Rc};

use glommio::spawn_local;
use wire_format::{Bytes, Offset};

use super::{
    LocalWal,
    checkpoint::{self, Checkpoint},
    files,
    segment_file::SegmentFile,
};
use crate::wal::WalError;

impl LocalWal {
    /// Stores the `change`d checkpoint, unless the change says that there is none. One at a time; a caller that is cancelled
    /// does not stop it half way. Nothing is stored for a log that is closed: it may be open anew already, and then both would
    /// write the same files.
    async fn store_checkpoint(
        &self,
        change: impl FnOnce(&Self, &mut Checkpoint) -> bool + 'static,
    ) -> Result<(), WalError> {
        let log = self.clone();
        let task = spawn_local(async move {
            let _turn = log.inner.checkpoint_turn.enter().await;
            log.check_open()?;
            let mut next = log.inner.checkpoint.borrow().clone();
            if !change(&log, &mut next) {
                return Ok(());
            }
            next.sequence += 1;
            next.pchannel_hash = log.inner.hash;
            let (folder, stored) = (log.inner.config.folder.clone(), next.clone());
            let result = glommio::executor()
                .spawn_blocking(move || checkpoint::store(&folder, &stored))
                .await;
            result.map_err(|e| files::io_error("store checkpoint in", &log.inner.config.folder, &e))?;
            *log.inner.checkpoint.borrow_mut() = next;
            Ok(())
        });
        let result = task.detach().await;
        result.unwrap_or_else(|| {
            let first_cause = "its shard is gone".to_owned();
            Err(WalError::Closed { first_cause })
        })
    }

    /// Before the first append after an orderly close: the log will not end where the checkpoint says.
    pub(super) async fn no_longer_clean(&self) -> Result<(), WalError> {
        if !self.inner.checkpoint.borrow().clean {
            return Ok(());
        }
        self.store_checkpoint(|_, next| std::mem::take(&mut next.clean)).await
    }

    /// Lets a later scan begin at the last indexed block at or before `upto`, but never further back than now.
    fn scan_from(&self, next: &mut Checkpoint, upto: Offset) {
        let segments = self.inner.segments.borrow();
        let Some(at) = segments.iter().rposition(|s| s.extents().base_offset <= upto) else {
            return;
        };
        let (position, offset) = segments[at].indexed(upto);
        if (segments[at].index, position) < (next.scan_segment, next.scan_position) {
            return;
        }
        let before = at.checked_sub(1).map(|at| segments[at].extents());
        next.scan_segment = segments[at].index;
        (next.scan_position, next.scan_offset) = (position, offset.get());
        next.scan_footer = segments[at].footer_before(position, offset);
        next.scan_term = next.scan_term.max(before.map_or(0, |extents| extents.term));
        next.scan_timetick = next.scan_timetick.max(latest_timetick(&segments));
    }

    pub(super) async fn checkpoint_at(&self, upto: Offset, state: Vec<u8>) -> Result<(), WalError> {
        self.durable_to(upto).await?;
        if self.inner.segments.borrow().is_empty() {
            return Ok(());
        }
        self.store_checkpoint(move |log, next| {
            // After an orderly close there is nothing to add, and an older state must not replace a newer one.
            let is_newer = !next.clean && upto.get() >= next.upto;
            if is_newer {
                (next.upto, next.state) = (upto.get(), state);
                log.scan_from(next, upto);
            }
            is_newer
        })
        .await
    }

    pub(super) async fn truncate_to(&self, upto: Offset) -> Result<Offset, WalError> {
        let upto = upto.min(self.inner.durable.get());
        self.check_open()?;
        if upto > self.inner.first_offset.get() {
            let change = move |_: &Self, next: &mut Checkpoint| {
                let is_higher = upto.get() > next.first_offset;
                next.first_offset = next.first_offset.max(upto.get());
                is_higher
            };
            let stored = match self.store_checkpoint(change).await {
                // The prepared file is worth less than the truncation, which frees more.
                Err(WalError::DiskFull { .. }) if self.inner.prepared.give_up().await? => {
                    self.store_checkpoint(change).await
                }
                stored => stored,
            };
            stored?;
            self.inner.first_offset.set(upto.max(self.inner.first_offset.get()));
        }
        // Not stopped half way by a caller that is cancelled: `quiet` waits for it.
        let log = self.clone();
        let task = spawn_local(async move { log.drop_below(log.inner.first_offset.get()).await });
        task.detach().await.unwrap_or(Ok(()))?;
        Ok(self.inner.first_offset.get())
    }

    /// Drops whole segments that lie below `upto`, recycling one of them. The first kept offset must be stored already. Stops
    /// when the log is closed: what lies in its folder may belong to the next opening.
    async fn drop_below(&self, upto: Offset) -> Result<(), WalError> {
        let _turn = self.inner.drop_turn.enter().await;
        loop {
            self.check_open()?;
            let behind = self.inner.checkpoint.borrow().scan_segment;
            let dropped = {
                let mut segments = self.inner.segments.borrow_mut();
                let may = segments
                    .front()
                    .is_some_and(|s| s.is_settled() && s.index < behind && s.extents().next_offset <= upto);
                if may { segments.pop_front() } else { None }
            };
            let Some(segment) = dropped else { return Ok(()) };
            self.inner.prepared.recycle(&segment).await?;
        }
    }

    /// Waits for what is in flight, writes missing footers and a last checkpoint.
    pub(super) async fn close_in_order(&self, state: Vec<u8>) -> Result<(), WalError> {
        let _turn = self.inner.append_turn.enter().await;
        self.check_open()?;
        self.durable_to(self.inner.next_offset.get()).await?;
        self.seal_full();
        while self.inner.sealing.get() > 0 {
            let seen = self.inner.progress.epoch();
            if self.inner.sealing.get() > 0 {
                self.inner.progress.changed(seen).await;
            }
        }
        self.inner.prepared.settle().await;
        let unchanged = {
            let stored = self.inner.checkpoint.borrow();
            stored.clean && stored.state == state
        };
        if !unchanged && !self.inner.segments.borrow().is_empty() {
            self.store_checkpoint(|log, next| log.end_here(next, state)).await?;
        }
        self.fail("it was closed in order");
        Ok(())
    }

    /// The log ends where it stands: a later start has nothing to scan.
    fn end_here(&self, next: &mut Checkpoint, state: Vec<u8>) -> bool {
        let segments = self.inner.segments.borrow();
        let Some(last) = segments.back() else { return false };
        let (extents, end) = (last.extents(), self.inner.next_offset.get());
        (next.upto, next.state) = (end.get(), state);
        next.scan_segment = last.index;
        (next.scan_position, next.scan_offset) = (extents.end, end.get());
        next.scan_footer = last.footer_before(extents.end, end);
        next.scan_term = next
            .scan_term
            .max(segments.iter().map(|s| s.extents().term).max().unwrap_or_default());
        next.scan_timetick = next.scan_timetick.max(latest_timetick(&segments));
        next.clean = true;
        true
    }

    /// Bytes of the files that the log holds, the prepared one left out.
    pub(super) fn stored_bytes(&self) -> Bytes {
        Bytes(self.inner.segments.borrow().iter().map(|segment| segment.size).sum())
    }
}

/// The last segment may be empty still.
fn latest_timetick(segments: &VecDeque<Rc<SegmentFile>>) -> u64 {
    let ticks = segments.iter().map(|segment| segment.extents().last_timetick.get());
    ticks.max().unwrap_or_default()
}
