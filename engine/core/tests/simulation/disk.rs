//! What survives a crash: finished writes, and by luck unfinished ones. Plus the small metadata file.

use std::collections::BTreeMap;

use lognode_core::{BatchFacts, BlockId, LogFacts, ProducerSnapshot, StoredClock};
use wire_format::{Offset, Term, Timetick};

use crate::random::Random;

pub struct Write {
    pub block: BlockId,
    pub batches: Vec<BatchFacts>,
}

#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    pub mark: Timetick,
    pub clock: Option<StoredClock>,
    pub boots: u64,
}

pub struct Checkpoint {
    pub upto: Offset,
    pub producers: Vec<ProducerSnapshot>,
}

pub struct Disk {
    /// Batches of finished writes by base offset. May have holes while other writes are in flight.
    pub log: BTreeMap<u64, BatchFacts>,
    pub writes: Vec<Write>,
    pub metadata: Metadata,
    pub checkpoint: Option<Checkpoint>,
    pub first_kept: Offset,
    pub last_timetick: Timetick,
    pub last_term: Term,
    pub blocks_written: u64,
    pub metadata_written: u64,
}

impl Disk {
    pub fn new() -> Self {
        Self {
            log: BTreeMap::new(),
            writes: Vec::new(),
            metadata: Metadata {
                mark: Timetick::ZERO,
                clock: None,
                boots: 0,
            },
            checkpoint: None,
            first_kept: Offset::ZERO,
            last_timetick: Timetick::ZERO,
            last_term: Term::ZERO,
            blocks_written: 0,
            metadata_written: 0,
        }
    }

    pub fn begin(&mut self, block: BlockId, batches: Vec<BatchFacts>) {
        self.blocks_written += 1;
        self.writes.push(Write { block, batches });
    }

    /// One write reaches the disk.
    pub fn finish(&mut self, at: usize) -> BlockId {
        let write = self.writes.swap_remove(at);
        self.log
            .extend(write.batches.iter().map(|batch| (batch.base_offset.0, *batch)));
        write.block
    }

    /// The writer is gone: each unfinished write is wholly there or not at all, then recovery cuts at the first hole.
    pub fn crash(&mut self, random: &mut Random) {
        while !self.writes.is_empty() {
            match random.chance(50) {
                true => drop(self.finish(0)),
                false => drop(self.writes.swap_remove(0)),
            }
        }
        let mut next = None;
        self.log.retain(|base, batch| {
            let first_kept = self.first_kept.0;
            let joins = next.map_or(*base <= first_kept, |next| *base == next);
            if joins {
                next = Some(base + u64::from(batch.count));
            }
            joins
        });
        for batch in self.log.values() {
            self.last_timetick = self.last_timetick.max(batch.last_timetick);
            self.last_term = self.last_term.max(batch.term);
        }
    }

    /// Where the log ends after a crash.
    pub fn end(&self) -> Offset {
        let end = self
            .log
            .values()
            .last()
            .map_or(Offset::ZERO, |batch| batch.base_offset.plus(u64::from(batch.count)));
        end.max(self.first_kept)
    }

    pub fn facts(&self) -> LogFacts {
        LogFacts {
            first_kept: self.first_kept,
            next_offset: self.end(),
            last_timetick: self.last_timetick,
            last_term: self.last_term,
            checkpoint_upto: self.checkpoint.as_ref().map(|checkpoint| checkpoint.upto),
        }
    }

    /// The first batch that ends above `offset`.
    pub fn batch_at(&self, offset: Offset) -> Option<BatchFacts> {
        let before = self.log.range(..=offset.0).next_back().map(|(_, batch)| *batch);
        before.filter(|batch| batch.base_offset.plus(u64::from(batch.count)) > offset)
    }

    /// Drops whole batches below `to`.
    pub fn truncate(&mut self, to: Offset, last_timetick: Timetick) {
        self.first_kept = self.first_kept.max(to);
        self.last_timetick = self.last_timetick.max(last_timetick);
        self.log.retain(|base, batch| base + u64::from(batch.count) > to.0);
    }

    pub fn store_metadata(&mut self, mark: Timetick, clock: StoredClock) {
        self.metadata_written += 1;
        self.metadata.mark = self.metadata.mark.max(mark);
        self.metadata.clock = Some(match self.metadata.clock {
            Some(stored) if stored.boot_id == clock.boot_id && stored.difference_ms > clock.difference_ms => stored,
            _ => clock,
        });
    }
}
