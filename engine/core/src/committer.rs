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

/// How many blocks may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Blocks that are not full: the fewer, the more gathers in each, and the fewer syncs there are.
    pub lone: usize,
    /// Full blocks: they gain nothing from waiting, and a disk is fastest with several at work. At least `lone`.
    pub full: usize,
    /// Bytes of all blocks of all pchannels that share a disk's queue. Beyond it a pchannel has one block in flight and no
    /// more: a longer queue makes nothing faster, and every ack and every tick waits at its end.
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
        "a block of offsets {first_offset} to {next_offset} does not continue the log at {expected}. Close the pchannel \
     and recover it from disk"
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
        "a block at offset {first_offset} has timetick {first_timetick}, not above {last_timetick} before it. Close the \
     pchannel and recover it from disk"
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
        "a write at offset {first_failed} failed: nothing from there on will be acked. Close the pchannel and recover it \
     from disk"
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
    limits: InFlight,
    in_flight_bytes: u64,
    /// Blocks from this id on are never acked.
    cut: Option<BlockId>,
    failure: Option<CommitFailure>,
}

impl Committer {
    /// A log that is durable up to `durable`, its last timetick being `durable_timetick`, with room for `limits` blocks
    /// (at least 1).
    pub fn new(durable: Offset, durable_timetick: Timetick, limits: InFlight) -> Self {
        let lone = limits.lone.max(1);
        let limits = InFlight {
            lone,
            full: limits.full.max(lone),
            ..limits
        };
        Self {
            durable,
            durable_timetick,
            sealed: durable,
            sealed_timetick: durable_timetick,
            first_id: 0,
            ring: VecDeque::with_capacity(limits.full),
            limits,
            in_flight_bytes: 0,
            cut: None,
            failure: None,
        }
    }

    /// Whether a block may be sealed now. `is_full`: nothing more will fit into it. `elsewhere`: what other pchannels have in
    /// flight to the same disk.
    pub fn may_seal(&self, is_full: bool, elsewhere: Bytes) -> bool {
        let limit = if is_full { self.limits.full } else { self.limits.lone };
        let has_room = self.in_flight_bytes.saturating_add(elsewhere.0) < self.limits.bytes.0;
        self.failure.is_none() && (self.ring.is_empty() || (self.ring.len() < limit && has_room))
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
        if self.ring.len() >= self.limits.full {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(first: u64, count: u64) -> BlockFacts {
        BlockFacts {
            first_offset: Offset(first),
            next_offset: Offset(first + count),
            first_timetick: Timetick(1_000 + first),
            last_timetick: Timetick(1_000 + first + count - 1),
            bytes: Bytes(4_096),
        }
    }

    fn same(limit: usize) -> InFlight {
        InFlight {
            lone: limit,
            full: limit,
            bytes: Bytes(u64::MAX),
        }
    }

    /// Seen failing when one limit holds for all blocks.
    #[test]
    fn full_blocks_need_not_wait_for_few_in_flight() {
        let limits = InFlight { lone: 1, ..same(3) };
        let mut committer = Committer::new(Offset::ZERO, Timetick::ZERO, limits);
        for at in 0..3 {
            assert_eq!(
                (
                    committer.may_seal(false, Bytes::ZERO),
                    committer.may_seal(true, Bytes::ZERO)
                ),
                (at == 0, true)
            );
            committer.sealed(block(at, 1)).unwrap();
        }
        assert!(!committer.may_seal(true, Bytes::ZERO));
    }

    /// Seen failing when the queue of others has no say, and when it can hold up the only block.
    #[test]
    fn a_long_queue_leaves_each_pchannel_one_block() {
        let limits = InFlight {
            bytes: Bytes(10_000),
            ..same(3)
        };
        let mut committer = Committer::new(Offset::ZERO, Timetick::ZERO, limits);
        assert!(committer.may_seal(false, Bytes(1 << 30)));
        committer.sealed(block(0, 1)).unwrap();
        assert!(committer.may_seal(true, Bytes(5_000)) && !committer.may_seal(true, Bytes(6_000)));
    }

    #[test]
    fn acks_wait_for_the_blocks_before() {
        let mut committer = Committer::new(Offset(5), Timetick(7), same(3));
        let a = committer.sealed(block(5, 2)).unwrap();
        let b = committer.sealed(block(7, 1)).unwrap();
        let c = committer.sealed(block(8, 4)).unwrap();
        assert!(!committer.may_seal(true, Bytes::ZERO));
        assert_eq!(committer.sealed(block(12, 1)), Err(SealError::Full { in_flight: 3 }));
        assert_eq!(committer.completed(c), None);
        assert_eq!(committer.completed(b), None);
        assert_eq!(
            (committer.durable(), committer.durable_timetick()),
            (Offset(5), Timetick(7))
        );
        assert_eq!(committer.oldest_in_flight(), Some((Offset(5), Timetick(1_005))));
        assert_eq!(committer.completed(a), Some(Offset(12)));
        assert_eq!(committer.durable_timetick(), Timetick(1_011));
        assert_eq!(
            (committer.oldest_in_flight(), committer.in_flight_bytes()),
            (None, Bytes::ZERO)
        );
        assert_eq!(committer.completed(a), None);
    }

    #[test]
    fn a_failed_block_stops_everything_from_it_on() {
        let mut committer = Committer::new(Offset::ZERO, Timetick::ZERO, same(4));
        let ids: Vec<_> = (0..4).map(|at| committer.sealed(block(at, 1)).unwrap()).collect();
        committer.failed(ids[2]);
        assert_eq!(committer.completed(ids[3]), None);
        assert_eq!(committer.completed(ids[2]), None);
        assert_eq!(committer.completed(ids[0]), Some(Offset(1)));
        assert_eq!(committer.completed(ids[1]), Some(Offset(2)));
        assert_eq!(
            committer.failure(),
            Some(CommitFailure {
                block: ids[2],
                first_offset: Offset(2)
            })
        );
        assert!(!committer.may_seal(true, Bytes::ZERO));
        assert_eq!(
            committer.sealed(block(4, 1)),
            Err(SealError::Failed {
                first_failed: Offset(2)
            })
        );
    }

    #[test]
    fn an_earlier_failure_told_later_cuts_earlier() {
        let mut committer = Committer::new(Offset::ZERO, Timetick::ZERO, same(4));
        let ids: Vec<_> = (0..3).map(|at| committer.sealed(block(at, 1)).unwrap()).collect();
        committer.failed(ids[2]);
        committer.failed(ids[0]);
        assert_eq!(committer.failure().map(|failure| failure.block), Some(ids[2]));
        assert!(ids.iter().all(|id| committer.completed(*id).is_none()));
        assert_eq!(committer.durable(), Offset::ZERO);
    }

    #[test]
    fn blocks_out_of_order_are_refused() {
        let mut committer = Committer::new(Offset(3), Timetick(1_010), same(4));
        assert!(matches!(
            committer.sealed(block(4, 1)),
            Err(SealError::NotNext {
                expected: Offset(3),
                ..
            })
        ));
        assert!(matches!(
            committer.sealed(block(3, 1)),
            Err(SealError::TimeNotGrowing { .. })
        ));
        let empty = BlockFacts {
            next_offset: Offset(3),
            ..block(3, 1)
        };
        assert!(matches!(committer.sealed(empty), Err(SealError::NotNext { .. })));
    }

    proptest! {
        // Against a model: durable is the end of the longest prefix of completed blocks before the first failed one.
        #[test]
        fn durable_is_the_longest_finished_prefix(
            steps in prop::collection::vec((0u8..8, 0usize..8, 1u64..5), 1..200), lone in 1usize..8, full in 1usize..8
        ) {
            let mut committer = Committer::new(Offset::ZERO, Timetick::ZERO, InFlight { lone, full, bytes: Bytes(u64::MAX) });
            let capacity = committer.ring.capacity();
            let mut model: Vec<(BlockFacts, u8)> = Vec::new(); // 0 in flight, 1 completed, 2 failed
            for (kind, pick, count) in steps {
                let end = model.last().map_or(0, |(facts, _)| facts.next_offset.0);
                let before = committer.durable();
                let open: Vec<usize> = (0..model.len()).filter(|at| model[*at].1 == 0).collect();
                let answer = match kind {
                    0..4 if committer.may_seal(kind < 2, Bytes::ZERO) => {
                        prop_assert_eq!(committer.sealed(block(end, count)), Ok(BlockId(model.len() as u64)));
                        model.push((block(end, count), 0));
                        None
                    }
                    0..7 if !open.is_empty() => {
                        let at = open[pick % open.len()];
                        model[at].1 = 1;
                        committer.completed(BlockId(at as u64))
                    }
                    7 if !open.is_empty() && count == 1 => {
                        let at = open[pick % open.len()];
                        model[at].1 = 2;
                        committer.failed(BlockId(at as u64));
                        None
                    }
                    _ => None,
                };
                let prefix = model.iter().take_while(|(_, state)| *state == 1).count();
                let durable = model[..prefix].last().map_or(Offset::ZERO, |(facts, _)| facts.next_offset);
                prop_assert_eq!(committer.durable(), durable);
                prop_assert_eq!(answer, (durable > before).then_some(durable));
                prop_assert_eq!(committer.oldest_in_flight(), model.get(prefix).map(|(f, _)| (f.first_offset, f.first_timetick)));
                prop_assert_eq!(committer.in_flight_bytes().0, 4_096 * (model.len() - prefix) as u64);
                prop_assert_eq!(committer.failure().is_some(), model.iter().any(|(_, state)| *state == 2));
                prop_assert_eq!(committer.ring.capacity(), capacity);
            }
        }
    }
}
