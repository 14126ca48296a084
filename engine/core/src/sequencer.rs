//! Gives every message its place: dense offsets, growing timeticks, and the first place again to a retry.

use wire_format::{Offset, ProducerEpoch, ProducerId, Sequence, Term, Timetick};

use crate::dedupe::{BatchKey, Dedupe, DedupeOutcome, DedupeRefusal};

/// A batch that asks for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendRequest {
    /// Who sends it; 0 asks for no dedupe.
    pub producer: ProducerId,
    /// Incarnation of the producer.
    pub epoch: ProducerEpoch,
    /// Sequence of its first message.
    pub first_sequence: Sequence,
    /// Messages in it, at least 1.
    pub count: u32,
}

/// The place of a batch: message `i` has offset `base_offset + i` and timetick `first_timetick + i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Offset of the first message.
    pub base_offset: Offset,
    /// Timetick of the first message.
    pub first_timetick: Timetick,
    /// Messages in the batch.
    pub count: u32,
}

impl Position {
    /// The offset after the batch. Once the log is durable up to it the batch may be acked.
    pub fn next_offset(&self) -> Offset {
        self.base_offset.plus(u64::from(self.count))
    }

    /// Timetick of the last message.
    pub fn last_timetick(&self) -> Timetick {
        self.first_timetick.plus(u64::from(self.count).saturating_sub(1))
    }
}

/// The answer to a request. Neither kind is durable yet: an ack waits until the log is durable up to
/// [`Position::next_offset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequenced {
    /// A new batch: write it at this place.
    Fresh(Position),
    /// A retry of a batch that has this place: write nothing.
    Duplicate(Position),
}

impl Sequenced {
    /// The place, old or new.
    pub fn position(&self) -> Position {
        match *self {
            Self::Fresh(position) | Self::Duplicate(position) => position,
        }
    }
}

/// Why a batch got no place. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A batch without messages.
    #[error("the batch holds no message. Send at least one")]
    Empty,
    /// The offsets are used up.
    #[error("the pchannel has no offset left for {count} messages after {next_offset}. Produce to another pchannel")]
    OffsetsExhausted {
        /// Where the log ends.
        next_offset: Offset,
        /// Messages of the batch.
        count: u32,
    },
    /// The timeticks are used up: time stands at its end.
    #[error(
        "the pchannel has no timetick left for {count} messages after {last_timetick}: its clock once stood at the end of \
         time. Set the machine's clock right and produce to a new pchannel"
    )]
    TimeExhausted {
        /// The last timetick given out or promised.
        last_timetick: Timetick,
        /// Messages of the batch.
        count: u32,
    },
    /// The producer's numbering does not allow it.
    #[error(transparent)]
    Dedupe(#[from] DedupeRefusal),
}

/// Numbers the messages of one pchannel under one term. Lives on the shard that owns the pchannel.
#[derive(Debug)]
pub struct Sequencer {
    term: Term,
    next_offset: Offset,
    last_timetick: Timetick,
    dedupe: Dedupe,
}

impl Sequencer {
    /// Goes on after `next_offset - 1` and `last_timetick`. `last_timetick` must be at least the last stored timetick and
    /// the last stored promise; [`crate::recovery`] sees to that.
    pub fn new(term: Term, next_offset: Offset, last_timetick: Timetick, dedupe: Dedupe) -> Self {
        Self {
            term,
            next_offset,
            last_timetick,
            dedupe,
        }
    }

    /// Gives a batch its place. A fresh batch must be written by the caller, in the order of the answers.
    pub fn append(&mut self, now: Timetick, request: &AppendRequest) -> Result<Sequenced, Refusal> {
        let AppendRequest {
            producer,
            epoch,
            first_sequence,
            count,
        } = *request;
        if count == 0 {
            return Err(Refusal::Empty);
        }
        let key = BatchKey {
            producer,
            epoch,
            first_sequence,
            count,
        };
        if let DedupeOutcome::Duplicate {
            base_offset,
            first_timetick,
        } = self.dedupe.check(&key)?
        {
            return Ok(Sequenced::Duplicate(Position {
                base_offset,
                first_timetick,
                count,
            }));
        }
        let base_offset = self.next_offset;
        let next_offset = base_offset.0.checked_add(u64::from(count));
        let next_offset = next_offset.ok_or(Refusal::OffsetsExhausted {
            next_offset: base_offset,
            count,
        })?;
        let exhausted = Refusal::TimeExhausted {
            last_timetick: self.last_timetick,
            count,
        };
        let first = self.last_timetick.0.checked_add(1).ok_or(exhausted)?.max(now.0);
        let last = first.checked_add(u64::from(count) - 1).ok_or(exhausted)?;
        let first_timetick = Timetick(first);
        self.next_offset = Offset(next_offset);
        self.last_timetick = Timetick(last);
        self.dedupe.record(&key, base_offset, first_timetick);
        Ok(Sequenced::Fresh(Position {
            base_offset,
            first_timetick,
            count,
        }))
    }

    /// Makes every later message larger than `to`: called for a promise.
    pub fn advance(&mut self, to: Timetick) {
        self.last_timetick = self.last_timetick.max(to);
    }

    /// Gives up every place at or above `from`: nothing of those batches was written, and none may be acked any more. Their
    /// offsets are given out again; time stays where it is.
    pub fn take_back(&mut self, from: Offset) {
        if from < self.next_offset {
            self.next_offset = from;
            self.dedupe.take_back(from);
        }
    }

    /// The term of this ownership.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The offset of the next message.
    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// The last timetick given out or promised: every later message is larger.
    pub fn last_timetick(&self) -> Timetick {
        self.last_timetick
    }

    /// The producers' table, for snapshots and metrics.
    pub fn dedupe(&self) -> &Dedupe {
        &self.dedupe
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::DedupeLimits;
    use proptest::prelude::*;
    use wire_format::Millis;

    fn sequencer(next: u64, last: Timetick) -> Sequencer {
        Sequencer::new(Term(1), Offset(next), last, Dedupe::new(DedupeLimits::default()))
    }

    fn request(producer: u64, first: u64, count: u32) -> AppendRequest {
        AppendRequest {
            producer: ProducerId(producer),
            epoch: ProducerEpoch(1),
            first_sequence: Sequence(first),
            count,
        }
    }

    fn at(ms: u64) -> Timetick {
        Timetick::from_physical(Millis(ms))
    }

    #[test]
    fn a_retry_gets_its_first_place() {
        let mut sequencer = sequencer(10, at(3));
        let first = sequencer.append(at(5), &request(7, 0, 4)).unwrap();
        assert_eq!(
            first,
            Sequenced::Fresh(Position {
                base_offset: Offset(10),
                first_timetick: at(5),
                count: 4
            })
        );
        sequencer.append(at(6), &request(7, 4, 1)).unwrap();
        let retry = sequencer.append(at(9), &request(7, 0, 4)).unwrap();
        assert_eq!(retry, Sequenced::Duplicate(first.position()));
        assert_eq!(
            (sequencer.next_offset(), sequencer.last_timetick()),
            (Offset(15), at(6))
        );
    }

    type Sent = std::collections::HashMap<u64, u64>;

    /// Sends the next `count` messages of a producer.
    fn send(sequencer: &mut Sequencer, sent: &mut Sent, (producer, count): (u64, u32)) -> Sequenced {
        let first = sent.entry(producer).or_default();
        let answer = sequencer.append(at(1), &request(producer, *first, count)).unwrap();
        *first += u64::from(count);
        answer
    }

    proptest! {
        /// What was taken back leaves no trace but time: retries are fresh, and get the offsets that the log then has.
        #[test]
        fn places_that_were_taken_back_are_given_out_again(
            kept in proptest::collection::vec((1u64..5, 1u32..4), 0..40),
            lost in proptest::collection::vec((1u64..5, 1u32..4), 0..40),
        ) {
            let mut sequencer = sequencer(0, Timetick::ZERO);
            let mut sent = Sent::new();
            for &batch in &kept {
                send(&mut sequencer, &mut sent, batch);
            }
            let from = sequencer.next_offset();
            let before = sent.clone();
            for &batch in &lost {
                send(&mut sequencer, &mut sent, batch);
            }
            let last = sequencer.last_timetick();
            sequencer.take_back(from);
            prop_assert_eq!((sequencer.next_offset(), sequencer.last_timetick()), (from, last));
            let mut sent = before;
            for &batch in &lost {
                let due = sequencer.next_offset();
                let answer = send(&mut sequencer, &mut sent, batch);
                let Sequenced::Fresh(position) = answer else { panic!("{answer:?}") };
                prop_assert!(position.base_offset == due && position.first_timetick > last);
            }
            // What was kept is known still.
            let (mut sent, mut due) = (Sent::new(), Offset(0));
            for &batch in &kept {
                let answer = send(&mut sequencer, &mut sent, batch);
                prop_assert!(matches!(answer, Sequenced::Duplicate(position) if position.base_offset == due));
                due = due.plus(u64::from(batch.1));
            }
        }
    }

    #[test]
    fn time_behind_the_last_message_goes_on_by_one() {
        let mut sequencer = sequencer(0, at(100).plus(9));
        let position = sequencer.append(at(50), &request(0, 0, 2)).unwrap().position();
        assert_eq!(
            (position.first_timetick, position.last_timetick()),
            (at(100).plus(10), at(100).plus(11))
        );
    }

    #[test]
    fn a_full_logical_counter_carries_into_the_next_millisecond() {
        let mut sequencer = sequencer(0, at(1).previous());
        let position = sequencer.append(at(0), &request(0, 0, 1 << 19)).unwrap().position();
        assert_eq!(
            (position.first_timetick, position.last_timetick()),
            (at(1), at(3).previous())
        );
    }

    #[test]
    fn the_ends_are_refusals_and_change_nothing() {
        let mut ended = sequencer(u64::MAX - 2, Timetick::ZERO);
        assert!(matches!(
            ended.append(at(1), &request(7, 0, 3)),
            Err(Refusal::OffsetsExhausted { .. })
        ));
        assert!(ended.append(at(1), &request(7, 0, 2)).is_ok());
        let mut late = sequencer(0, Timetick::MAX.previous());
        assert!(matches!(
            late.append(at(1), &request(7, 0, 2)),
            Err(Refusal::TimeExhausted { .. })
        ));
        assert_eq!(
            (late.next_offset(), late.last_timetick()),
            (Offset::ZERO, Timetick::MAX.previous())
        );
        assert!(late.append(at(1), &request(7, 0, 1)).is_ok());
        assert!(matches!(
            late.append(at(1), &request(7, 1, 1)),
            Err(Refusal::TimeExhausted { .. })
        ));
        assert_eq!(late.append(at(1), &request(7, 1, 0)), Err(Refusal::Empty));
        let retry = late.append(at(1), &request(7, 0, 1));
        assert!(
            matches!(retry, Ok(Sequenced::Duplicate(_))),
            "a retry is answered even at the end of time"
        );
    }

    proptest! {
        #[test]
        fn offsets_are_dense_and_timeticks_grow(
            steps in prop::collection::vec((0u64..1_000, 1u32..100, 0u8..4, 0u64..4), 1..200), start in 0u64..100
        ) {
            let mut sequencer = sequencer(start, at(500));
            let (mut next, mut last) = (Offset(start), at(500));
            let mut sent = [0u64; 4];
            for (time, count, kind, producer) in steps {
                if kind == 0 {
                    sequencer.advance(at(time));
                    last = last.max(at(time));
                    continue;
                }
                let first = if producer == 0 { 0 } else { sent[producer as usize] };
                let answer = sequencer.append(at(time), &request(producer, first, count)).unwrap();
                let Sequenced::Fresh(position) = answer else { panic!("{answer:?} is not fresh") };
                prop_assert_eq!(position.base_offset, next);
                prop_assert!(position.first_timetick > last && position.first_timetick >= at(time));
                (next, last) = (position.next_offset(), position.last_timetick());
                sent[producer as usize] += u64::from(count);
            }
        }
    }
}
