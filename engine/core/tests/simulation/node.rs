//! A pchannel's shell in small: the machines of the crate wired together as a LogNode wires them.

use lognode_core::{
    AppendRequest, BatchFacts, BlockFacts, Committer, Dedupe, DedupeLimits, HybridClock, InFlight, Position, Promise,
    Reading, Sequenced, Sequencer, Start, StoredClock, TickMachine, TimeMark,
};
use wire_format::{Bytes, Offset, Term, Timetick};

use crate::disk::Disk;

pub const LIMITS: DedupeLimits = DedupeLimits {
    window: 4,
    windows: 8,
    producers: 16,
};

/// Somebody waits for a batch to be durable.
pub struct Waiting {
    pub producer: usize,
    pub connection: u64,
    pub request: AppendRequest,
    pub position: Position,
}

pub struct Node {
    pub clock: HybridClock,
    pub mark: TimeMark,
    pub sequencer: Sequencer,
    pub committer: Committer,
    pub ticks: TickMachine,
    pub filling: Vec<BatchFacts>,
    pub waiting: Vec<Waiting>,
    pub promise: Option<Promise>,
    pub storing: Option<(Timetick, StoredClock)>,
}

impl Node {
    /// A new process.
    pub fn start(disk: &mut Disk, reading: Reading, boot_id: [u8; 16]) -> Self {
        let stored = disk.metadata;
        let clock = HybridClock::start(reading, boot_id, stored.clock, stored.mark, disk.last_timetick);
        disk.metadata.boots += 1;
        disk.store_metadata(stored.mark, clock.stored());
        let term = Term(disk.metadata.boots);
        Self::open(disk, clock, TimeMark::new(stored.mark), term)
    }

    /// Opens the pchannel from what is on the disk.
    pub fn open(disk: &Disk, clock: HybridClock, mark: TimeMark, term: Term) -> Self {
        let plan = Start::plan(&disk.facts(), term).expect("the log opens");
        let dedupe = match &disk.checkpoint {
            Some(checkpoint) => Dedupe::restore(LIMITS, checkpoint.producers.clone()).expect("the snapshot is sound"),
            None => Dedupe::new(LIMITS),
        };
        let from = disk
            .batch_at(plan.replay_from)
            .map_or(plan.replay_from, |batch| batch.base_offset);
        let mut replay = plan.replay(dedupe);
        for batch in disk.log.range(from.0..).map(|(_, batch)| batch) {
            replay.batch(batch).expect("the stored log keeps its order");
        }
        let sequencer = replay.finish().expect("replay reaches the end");
        let (end, last) = (sequencer.next_offset(), sequencer.last_timetick());
        Self {
            clock,
            mark,
            sequencer,
            committer: Committer::new(
                end,
                last,
                InFlight {
                    lone: 3,
                    full: 5,
                    bytes: Bytes(1 << 20),
                },
            ),
            ticks: TickMachine::new(last, end),
            filling: Vec::new(),
            waiting: Vec::new(),
            promise: None,
            storing: None,
        }
    }

    pub fn append(&mut self, reading: Reading, request: &AppendRequest) -> Sequenced {
        let now = self.clock.now(reading);
        let sequenced = self
            .sequencer
            .append(now, request)
            .expect("a well-behaved producer is not refused");
        if let Sequenced::Fresh(position) = sequenced {
            self.filling.push(BatchFacts {
                base_offset: position.base_offset,
                count: position.count,
                term: self.sequencer.term(),
                first_timetick: position.first_timetick,
                last_timetick: position.last_timetick(),
                promised_timetick: self.ticks.riding(),
                producer: request.producer,
                epoch: request.epoch,
                first_sequence: request.first_sequence,
            });
        }
        sequenced
    }

    /// Starts the write of what was gathered, if the committer lets it.
    pub fn seal(&mut self, disk: &mut Disk) -> bool {
        let (Some(first), Some(last)) = (self.filling.first(), self.filling.last()) else {
            return false;
        };
        if !self.committer.may_seal(false, Bytes::ZERO) {
            return false;
        }
        let facts = BlockFacts {
            first_offset: first.base_offset,
            next_offset: last.base_offset.plus(u64::from(last.count)),
            first_timetick: first.first_timetick,
            last_timetick: last.last_timetick,
            bytes: Bytes(4_096),
        };
        let block = self.committer.sealed(facts).expect("blocks come in order");
        disk.begin(block, std::mem::take(&mut self.filling));
        true
    }

    /// The oldest message that is sequenced but not durable.
    pub fn oldest_unacked(&self) -> Option<(Offset, Timetick)> {
        let filling = self
            .filling
            .first()
            .map(|batch| (batch.base_offset, batch.first_timetick));
        self.committer.oldest_in_flight().or(filling)
    }

    /// The 10 ms timer.
    pub fn turn(&mut self, reading: Reading, listening: bool) -> Option<Promise> {
        let now = self.clock.now(reading);
        if self.storing.is_none() {
            let wanted = self.mark.wanted(now, listening);
            if wanted.is_some() || (listening && self.clock.unconfirmed_ms() >= 10) {
                self.storing = Some((wanted.unwrap_or(self.mark.allows()), self.clock.stored()));
            }
        }
        let limit = self.clock.promise_limit(self.mark.allows());
        let oldest = self.oldest_unacked();
        let promise = self.ticks.on_timer(now, &mut self.sequencer, oldest, limit);
        self.promise = promise.or(self.promise);
        promise
    }

    /// The metadata write that is under way ends.
    pub fn metadata_done(&mut self, disk: &mut Disk, well: bool) {
        let Some((mark, clock)) = self.storing.take() else {
            return;
        };
        if well {
            disk.store_metadata(mark, clock);
            self.mark.stored(mark);
            self.clock.confirm(clock);
        } else {
            self.mark.failed();
        }
    }
}
