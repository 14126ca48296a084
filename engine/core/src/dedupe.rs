//! Which batches of which producers are already in the log, so that a retry is answered and not stored again.

use std::collections::{HashMap, VecDeque};

use wire_format::{Offset, ProducerEpoch, ProducerId, Sequence, Timetick};

/// Bounds on what is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupeLimits {
    /// Batches remembered per producer: how many a producer may have unanswered and still retry. At least 1.
    pub window: usize,
    /// Producers whose batches are remembered. The least recently used one beyond that keeps only its epoch and next
    /// sequence: its retries are still told from new batches, but can't be answered with a position. At least 1.
    pub windows: usize,
    /// Producers of which anything is remembered; at least `windows`. One beyond that is forgotten.
    pub producers: usize,
}

impl Default for DedupeLimits {
    /// 64 batches of 1,024 producers (about 2 MiB when full), 16,384 producers in all (about 1.5 MiB).
    fn default() -> Self {
        Self {
            window: 64,
            windows: 1_024,
            producers: 16_384,
        }
    }
}

/// A batch as its producer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchKey {
    /// Who sends it; 0 asks for no dedupe.
    pub producer: ProducerId,
    /// Incarnation of the producer.
    pub epoch: ProducerEpoch,
    /// Sequence of its first message.
    pub first_sequence: Sequence,
    /// Messages in it.
    pub count: u32,
}

/// Whether a batch is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupeOutcome {
    /// Not in the log: give it a position, then [`Dedupe::record`] it.
    Fresh,
    /// In the log (perhaps not durable yet) at this position.
    Duplicate {
        /// Offset of its first message.
        base_offset: Offset,
        /// Timetick of its first message.
        first_timetick: Timetick,
    },
}

/// Why a batch can be neither stored nor answered as a duplicate. Nothing was stored by this try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DedupeRefusal {
    /// A newer incarnation of the producer has written.
    #[error(
        "producer {producer} epoch {epoch} is fenced: epoch {current} has written since. \
         Stop this incarnation; to take over again open the producer with an epoch above {current}"
    )]
    StaleEpoch {
        /// The producer.
        producer: ProducerId,
        /// The epoch of the refused batch.
        epoch: ProducerEpoch,
        /// The epoch that owns the producer.
        current: ProducerEpoch,
    },
    /// A batch before this one is missing.
    #[error(
        "producer {producer} sent sequence {first_sequence} where {expected} comes next: a batch in between was not stored. \
         Send again from sequence {expected}, in order"
    )]
    SequenceGap {
        /// The producer.
        producer: ProducerId,
        /// First sequence of the refused batch.
        first_sequence: Sequence,
        /// The sequence that must come next.
        expected: Sequence,
    },
    /// A retry of something no longer (or never) remembered.
    #[error(
        "the outcome of an earlier try of producer {producer} sequence {first_sequence} is unknown: it is older than what is \
         remembered ({}). Read the log to learn whether it was stored, then go on with a larger epoch from sequence 0",
        OldestKnown(*oldest)
    )]
    WindowOver {
        /// The producer.
        producer: ProducerId,
        /// First sequence of the refused batch.
        first_sequence: Sequence,
        /// The oldest sequence whose position is remembered; `None` when no batch of the producer is.
        oldest: Option<Sequence>,
    },
    /// Other batch boundaries than those stored.
    #[error(
        "sequences {first_sequence} to {last_sequence} of producer {producer} overlap a stored batch in part. \
         Retry a batch with the same first sequence and count as the first time"
    )]
    Overlap {
        /// The producer.
        producer: ProducerId,
        /// First sequence of the refused batch.
        first_sequence: Sequence,
        /// Last sequence of the refused batch.
        last_sequence: Sequence,
    },
    /// The epoch has used up its numbers.
    #[error(
        "producer {producer} epoch {epoch} has no sequence left. Open the producer with a larger epoch, from sequence 0"
    )]
    SequencesExhausted {
        /// The producer.
        producer: ProducerId,
        /// The used-up epoch.
        epoch: ProducerEpoch,
    },
}

struct OldestKnown(Option<Sequence>);

impl std::fmt::Display for OldestKnown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(oldest) => write!(f, "from sequence {oldest} on"),
            None => f.write_str("nothing of this producer"),
        }
    }
}

/// A remembered batch, as a checkpoint keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSnapshot {
    /// Sequence of its first message.
    pub first_sequence: Sequence,
    /// Messages in it.
    pub count: u32,
    /// Offset of its first message.
    pub base_offset: Offset,
    /// Timetick of its first message.
    pub first_timetick: Timetick,
}

/// A remembered producer, as a checkpoint keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerSnapshot {
    /// The producer.
    pub producer: ProducerId,
    /// Its current epoch.
    pub epoch: ProducerEpoch,
    /// The sequence that comes next.
    pub next_sequence: Sequence,
    /// Its remembered batches: dense in sequence, the last one ends at `next_sequence`.
    pub batches: Vec<BatchSnapshot>,
}

/// A snapshot that can't be what [`Dedupe::snapshot`] gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the checkpoint's batches of producer {producer} do not join up at sequence {sequence}: the checkpoint is damaged. \
     Drop the checkpoint and recover by reading the whole log"
)]
pub struct BadSnapshot {
    /// The producer whose entry is wrong.
    pub producer: ProducerId,
    /// Where the entry is wrong.
    pub sequence: Sequence,
}

#[derive(Debug)]
struct Producer {
    epoch: ProducerEpoch,
    next_sequence: Sequence,
    last_use: u64,
    batches: VecDeque<BatchSnapshot>,
}

/// The table of one pchannel. Lives on the shard that owns the pchannel; memory is bounded by its limits.
///
/// It holds what was *sequenced*, so a duplicate may still be on its way to the disk: its ack waits for durability like any
/// other. A pchannel whose write failed is opened anew, which rebuilds the table from what is durable.
#[derive(Debug)]
pub struct Dedupe {
    limits: DedupeLimits,
    uses: u64,
    windows: usize,
    producers: HashMap<ProducerId, Producer>,
}

impl Dedupe {
    /// An empty table.
    pub fn new(limits: DedupeLimits) -> Self {
        let limits = DedupeLimits {
            window: limits.window.max(1),
            windows: limits.windows.max(1),
            producers: limits.producers.max(limits.windows).max(1),
        };
        Self {
            limits,
            uses: 0,
            windows: 0,
            producers: HashMap::new(),
        }
    }

    /// Whether the batch is new, a duplicate, or neither. Changes nothing but the order of last use.
    pub fn check(&mut self, key: &BatchKey) -> Result<DedupeOutcome, DedupeRefusal> {
        let BatchKey {
            producer,
            epoch,
            first_sequence,
            count,
        } = *key;
        if producer == ProducerId::ZERO {
            return Ok(DedupeOutcome::Fresh);
        }
        if first_sequence.0.checked_add(u64::from(count)).is_none() {
            return Err(DedupeRefusal::SequencesExhausted { producer, epoch });
        }
        let Some(known) = self.producers.get_mut(&producer) else {
            return match first_sequence {
                Sequence::ZERO => Ok(DedupeOutcome::Fresh),
                _ => Err(DedupeRefusal::WindowOver {
                    producer,
                    first_sequence,
                    oldest: None,
                }),
            };
        };
        if epoch < known.epoch {
            return Err(DedupeRefusal::StaleEpoch {
                producer,
                epoch,
                current: known.epoch,
            });
        }
        let expected = if epoch > known.epoch {
            Sequence::ZERO
        } else {
            known.next_sequence
        };
        if first_sequence > expected {
            return Err(DedupeRefusal::SequenceGap {
                producer,
                first_sequence,
                expected,
            });
        }
        if first_sequence == expected {
            return Ok(DedupeOutcome::Fresh);
        }
        self.uses += 1;
        known.last_use = self.uses;
        known.find(producer, first_sequence, count)
    }

    /// Remembers a batch that [`Dedupe::check`] called fresh, at the position it was given.
    pub fn record(&mut self, key: &BatchKey, base_offset: Offset, first_timetick: Timetick) {
        if key.producer == ProducerId::ZERO {
            return;
        }
        self.uses += 1;
        let known = self
            .producers
            .entry(key.producer)
            .or_insert_with(|| Producer::empty(key.epoch));
        if key.epoch != known.epoch || key.first_sequence != known.next_sequence {
            self.windows -= usize::from(!known.batches.is_empty());
            known.batches.clear();
            known.epoch = key.epoch;
        }
        self.windows += usize::from(known.batches.is_empty());
        if known.batches.len() >= self.limits.window {
            known.batches.pop_front();
        }
        let batch = BatchSnapshot {
            first_sequence: key.first_sequence,
            count: key.count,
            base_offset,
            first_timetick,
        };
        known.batches.push_back(batch);
        known.next_sequence = key.first_sequence.plus(u64::from(key.count));
        known.last_use = self.uses;
        if self.windows > self.limits.windows {
            self.forget_windows();
        }
        if self.producers.len() > self.limits.producers {
            self.forget_producers();
        }
    }

    /// Takes in a batch that the log holds, in the log's order: rebuilds the table at the start. The log is right where
    /// the table differs (a snapshot may know of less, or of an epoch whose batches were lost with a crash).
    pub fn replay(&mut self, key: &BatchKey, base_offset: Offset, first_timetick: Timetick) {
        if let Some(known) = self.producers.get(&key.producer) {
            let seen = known.batches.back().is_some_and(|last| last.base_offset >= base_offset);
            if key.epoch < known.epoch || (key.epoch == known.epoch && seen) {
                return;
            }
        }
        self.record(key, base_offset, first_timetick);
    }

    /// Forgets the batches at or above `from`: they got a place and were then given up before anything of them was written.
    /// A retry of one is fresh again.
    pub fn take_back(&mut self, from: Offset) {
        for known in self.producers.values_mut() {
            let had_window = !known.batches.is_empty();
            while let Some(last) = known.batches.pop_back_if(|batch| batch.base_offset >= from) {
                known.next_sequence = last.first_sequence;
            }
            self.windows -= usize::from(had_window && known.batches.is_empty());
        }
    }

    /// The table as it stood when the log ended at `upto`: batches at or above it are left out, since a crash may lose
    /// them. Pass the durable offset, and replay the log from there after [`Dedupe::restore`].
    pub fn snapshot(&self, upto: Offset) -> Vec<ProducerSnapshot> {
        let mut order: Vec<_> = self.producers.iter().collect();
        order.sort_unstable_by_key(|(_, known)| known.last_use);
        let entry = |(producer, known): (&ProducerId, &Producer)| {
            let kept = known.batches.partition_point(|batch| batch.base_offset < upto);
            let next_sequence = known
                .batches
                .get(kept)
                .map_or(known.next_sequence, |batch| batch.first_sequence);
            let batches = known.batches.iter().take(kept).copied().collect();
            ProducerSnapshot {
                producer: *producer,
                epoch: known.epoch,
                next_sequence,
                batches,
            }
        };
        order.into_iter().map(entry).collect()
    }

    /// A table from a snapshot, cut to `limits`. Damaged snapshots are refused.
    pub fn restore(limits: DedupeLimits, snapshot: Vec<ProducerSnapshot>) -> Result<Self, BadSnapshot> {
        let mut table = Self::new(limits);
        for ProducerSnapshot {
            producer,
            epoch,
            next_sequence,
            batches,
        } in snapshot
        {
            let mut sequence = batches.first().map_or(next_sequence, |batch| batch.first_sequence);
            let mut offset = Offset::ZERO;
            for batch in &batches {
                if batch.first_sequence != sequence || batch.count == 0 || batch.base_offset < offset {
                    return Err(BadSnapshot { producer, sequence });
                }
                sequence = sequence.plus(u64::from(batch.count));
                offset = batch.base_offset.plus(u64::from(batch.count));
            }
            if sequence != next_sequence || producer == ProducerId::ZERO || table.producers.contains_key(&producer) {
                return Err(BadSnapshot { producer, sequence });
            }
            let surplus = batches.len().saturating_sub(table.limits.window);
            let batches: VecDeque<_> = batches.into_iter().skip(surplus).collect();
            table.uses += 1;
            table.windows += usize::from(!batches.is_empty());
            table.producers.insert(
                producer,
                Producer {
                    epoch,
                    next_sequence,
                    last_use: table.uses,
                    batches,
                },
            );
        }
        while table.windows > table.limits.windows {
            table.forget_windows();
        }
        while table.producers.len() > table.limits.producers {
            table.forget_producers();
        }
        Ok(table)
    }

    /// Producers of which anything is remembered.
    pub fn producers(&self) -> usize {
        self.producers.len()
    }

    /// Producers whose batches are remembered.
    pub fn windows(&self) -> usize {
        self.windows
    }

    /// Forgets the batches of the least recently used eighth, so that the search for them is paid once in a while.
    fn forget_windows(&mut self) {
        let used = self
            .producers
            .values()
            .filter(|known| !known.batches.is_empty())
            .map(|known| known.last_use);
        let Some(oldest_kept) = eighth(used.collect()) else {
            return;
        };
        for known in self.producers.values_mut() {
            if !known.batches.is_empty() && known.last_use <= oldest_kept {
                known.batches = VecDeque::new();
                self.windows -= 1;
            }
        }
    }

    fn forget_producers(&mut self) {
        let Some(oldest_kept) = eighth(self.producers.values().map(|known| known.last_use).collect()) else {
            return;
        };
        let windows = &mut self.windows;
        self.producers.retain(|_, known| {
            let kept = known.last_use > oldest_kept;
            *windows -= usize::from(!kept && !known.batches.is_empty());
            kept
        });
    }
}

impl Producer {
    fn empty(epoch: ProducerEpoch) -> Self {
        Self {
            epoch,
            next_sequence: Sequence::ZERO,
            last_use: 0,
            batches: VecDeque::new(),
        }
    }

    fn find(&self, producer: ProducerId, first_sequence: Sequence, count: u32) -> Result<DedupeOutcome, DedupeRefusal> {
        let oldest = self.batches.front().map(|batch| batch.first_sequence);
        if oldest.is_none_or(|oldest| first_sequence < oldest) {
            return Err(DedupeRefusal::WindowOver {
                producer,
                first_sequence,
                oldest,
            });
        }
        match self
            .batches
            .binary_search_by_key(&first_sequence, |batch| batch.first_sequence)
            .map(|at| self.batches[at])
        {
            Ok(batch) if batch.count == count => Ok(DedupeOutcome::Duplicate {
                base_offset: batch.base_offset,
                first_timetick: batch.first_timetick,
            }),
            _ => {
                let last_sequence = Sequence(first_sequence.0.saturating_add(u64::from(count).saturating_sub(1)));
                Err(DedupeRefusal::Overlap {
                    producer,
                    first_sequence,
                    last_sequence,
                })
            }
        }
    }
}

/// The largest of the smallest eighth (at least one) of `numbers`.
fn eighth(mut numbers: Vec<u64>) -> Option<u64> {
    let last = numbers.len().checked_sub(1)?;
    let rank = (numbers.len() / 8).saturating_sub(1).min(last);
    Some(*numbers.select_nth_unstable(rank).1)
}
