//! From sealed block to ack: blocks finish in any order, acks go out in log order.

use std::collections::VecDeque;

use wire_format::{Bytes, Offset, Timetick};

/// Names a sealed block within one committer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u64);

/// What a sealed block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockFacts {
    /// Offset of its first message.
    pub first_offset: Offset,
    /// The offset after its last message.
    pub next_offset: Offset,
    /// Timetick of its first message.
    pub first_timetick: Timetick,
    /// Timetick of its last message.
    pub last_timetick: Timetick,
    /// Its size on disk.
    pub bytes: Bytes,
}

/// A block that the committer can't take. The caller has broken the order: close the pchannel and recover it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// More blocks than agreed.
    #[error("{in_flight} blocks are in flight already. Ask may_seal before sealing a block")]
    Full {
        /// Blocks in flight.
        in_flight: usize,
    },
    /// The block does not continue the one before.
    #[error(
        "a block of offsets {first_offset} to {next_offset} does not continue the log at {expected}. Close the pchannel and recover it from disk"
    )]
    NotNext {
        /// First offset of the block.
        first_offset: Offset,
        /// Offset after the block.
        next_offset: Offset,
        /// Where the log stands.
        expected: Offset,
    },
    /// The timeticks of the block do not continue those before.
    #[error(
        "a block at offset {first_offset} has timetick {first_timetick}, not above {last_timetick} before it. Close the pchannel and recover it from disk"
    )]
    TimeNotGrowing {
        /// First offset of the block.
        first_offset: Offset,
        /// Its first timetick.
        first_timetick: Timetick,
        /// The last timetick before it.
        last_timetick: Timetick,
    },
    /// A write has failed before.
    #[error(
        "a write at offset {first_failed} failed: nothing from there on will be acked. Close the pchannel and recover it from disk"
    )]
    Failed {
        /// First offset of the failed block.
        first_failed: Offset,
    },
}

/// The first write failure: the pchannel stops here (fail-stop).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitFailure {
    /// The block whose failure was told first.
    pub block: BlockId,
    /// Its first offset.
    pub first_offset: Offset,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    facts: BlockFacts,
    done: bool,
}

/// Keeps the order of one pchannel's blocks. Lives on the shard that owns the pchannel; allocates only in `new`.
///
/// What [`Committer::durable`] covers may be acked and shown to readers; nothing else may.
#[derive(Debug)]
pub struct Committer {
    durable: Offset,
    durable_timetick: Timetick,
    sealed: Offset,
    sealed_timetick: Timetick,
    first_id: u64,
    ring: VecDeque<Slot>,
    max_in_flight: usize,
    in_flight_bytes: u64,
    /// Blocks from this id on are never acked.
    cut: Option<BlockId>,
    failure: Option<CommitFailure>,
}

impl Committer {
    /// A log that is durable up to `durable`, its last timetick being `durable_timetick`, with room for `max_in_flight`
    /// blocks (at least 1).
    pub fn new(durable: Offset, durable_timetick: Timetick, max_in_flight: usize) -> Self {
        let max_in_flight = max_in_flight.max(1);
        Self {
            durable,
            durable_timetick,
            sealed: durable,
            sealed_timetick: durable_timetick,
            first_id: 0,
            ring: VecDeque::with_capacity(max_in_flight),
            max_in_flight,
            in_flight_bytes: 0,
            cut: None,
            failure: None,
        }
    }

    /// Whether a block may be sealed now.
    pub fn may_seal(&self) -> bool {
        self.failure.is_none() && self.ring.len() < self.max_in_flight
    }

    /// Takes in a block that is about to be written. Blocks come in log order.
    pub fn sealed(&mut self, facts: BlockFacts) -> Result<BlockId, SealError> {
        let BlockFacts {
            first_offset,
            next_offset,
            first_timetick,
            last_timetick,
            ..
        } = facts;
        if let Some(failure) = self.failure {
            return Err(SealError::Failed {
                first_failed: failure.first_offset,
            });
        }
        if self.ring.len() >= self.max_in_flight {
            return Err(SealError::Full {
                in_flight: self.ring.len(),
            });
        }
        if first_offset != self.sealed || next_offset <= first_offset {
            return Err(SealError::NotNext {
                first_offset,
                next_offset,
                expected: self.sealed,
            });
        }
        if first_timetick <= self.sealed_timetick || last_timetick < first_timetick {
            let last_timetick = self.sealed_timetick;
            return Err(SealError::TimeNotGrowing {
                first_offset,
                first_timetick,
                last_timetick,
            });
        }
        let id = BlockId(self.first_id + self.ring.len() as u64);
        self.ring.push_back(Slot { facts, done: false });
        self.sealed = next_offset;
        self.sealed_timetick = last_timetick;
        self.in_flight_bytes = self.in_flight_bytes.saturating_add(facts.bytes.0);
        Ok(id)
    }

    /// A block is durable. Answers the new durable offset if it moved: all blocks up to there are durable too, and may be
    /// acked. An id that is not in flight changes nothing.
    pub fn completed(&mut self, id: BlockId) -> Option<Offset> {
        let slot =
            id.0.checked_sub(self.first_id)
                .and_then(|at| self.ring.get_mut(usize::try_from(at).ok()?))?;
        slot.done = true;
        let before = self.durable;
        while let Some(slot) = self.ring.front().copied() {
            if !slot.done || self.cut.is_some_and(|cut| self.first_id >= cut.0) {
                break;
            }
            self.ring.pop_front();
            self.first_id += 1;
            self.durable = slot.facts.next_offset;
            self.durable_timetick = slot.facts.last_timetick;
            self.in_flight_bytes = self.in_flight_bytes.saturating_sub(slot.facts.bytes.0);
        }
        (self.durable > before).then_some(self.durable)
    }

    /// The write or sync of a block failed. Nothing from it on is ever acked, whatever completes later; blocks before it
    /// still may. The first failure told is kept for the report. An id that is not in flight stops everything.
    pub fn failed(&mut self, id: BlockId) {
        let cut = id.max(BlockId(self.first_id));
        self.cut = Some(self.cut.map_or(cut, |earlier| earlier.min(cut)));
        if self.failure.is_none() {
            let at = usize::try_from(cut.0 - self.first_id)
                .ok()
                .and_then(|at| self.ring.get(at));
            let first_offset = at.map_or(self.sealed, |slot| slot.facts.first_offset);
            self.failure = Some(CommitFailure {
                block: id,
                first_offset,
            });
        }
    }

    /// The failure that stopped this pchannel, if one did.
    pub fn failure(&self) -> Option<CommitFailure> {
        self.failure
    }

    /// Everything below is durable.
    pub fn durable(&self) -> Offset {
        self.durable
    }

    /// Timetick of the last durable message.
    pub fn durable_timetick(&self) -> Timetick {
        self.durable_timetick
    }

    /// First offset and timetick of the oldest block that is sealed but not durable.
    pub fn oldest_in_flight(&self) -> Option<(Offset, Timetick)> {
        self.ring
            .front()
            .map(|slot| (slot.facts.first_offset, slot.facts.first_timetick))
    }

    /// Blocks sealed but not acked.
    pub fn in_flight(&self) -> usize {
        self.ring.len()
    }

    /// Their bytes.
    pub fn in_flight_bytes(&self) -> Bytes {
        Bytes(self.in_flight_bytes)
    }
}
