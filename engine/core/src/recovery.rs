//! From what lies on disk to a sequencer that may number on: where to read from, and what must hold on the way.

use wire_format::{Offset, ProducerEpoch, ProducerId, Sequence, Term, Timetick};

use crate::dedupe::{BatchKey, Dedupe};
use crate::sequencer::Sequencer;

/// What the store knows of a pchannel's log before a batch of it was read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LogFacts {
    /// The oldest offset kept.
    pub first_kept: Offset,
    /// The offset after the last stored message.
    pub next_offset: Offset,
    /// The largest timetick stored, message or promise, also of what retention has removed.
    pub last_timetick: Timetick,
    /// The largest term stored; 0 if none is.
    pub last_term: Term,
    /// Where the checkpoint's snapshots stand, if there is a checkpoint.
    pub checkpoint_upto: Option<Offset>,
}

/// Why a log can't be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another owner has written since.
    #[error(
        "term {term} may not append: the log holds term {last_term}. Another owner has had this pchannel since; ask for a \
         new term, and check that no two nodes share this data folder"
    )]
    StaleTerm {
        /// The term that was claimed.
        term: Term,
        /// The last term stored.
        last_term: Term,
    },
    /// The log ends before its own beginning.
    #[error(
        "the log ends at offset {next_offset}, below its first kept offset {first_kept}: stored messages are missing. \
         Restore the segment files, or run `lognode inspect` to see what is there"
    )]
    EndBelowStart {
        /// The oldest offset kept.
        first_kept: Offset,
        /// Where the log ends.
        next_offset: Offset,
    },
    /// The log ends before what a checkpoint knows to be durable.
    #[error(
        "the log ends at offset {next_offset}, but its checkpoint says that it was durable up to {checkpoint_upto}: stored \
         messages are missing. Restore the segment files, or run `lognode inspect` to see what is there"
    )]
    EndBelowCheckpoint {
        /// Where the checkpoint stands.
        checkpoint_upto: Offset,
        /// Where the log ends.
        next_offset: Offset,
    },
}

/// What a start does: read all batches from `replay_from` on, in order, into [`Plan::replay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The first offset to read; a batch that holds it may begin before.
    pub replay_from: Offset,
    /// Where reading ends.
    pub next_offset: Offset,
    /// The term to append under.
    pub term: Term,
    /// The last term stored.
    pub last_term: Term,
    /// The largest timetick stored.
    pub last_timetick: Timetick,
}

/// The beginning of a recovery.
#[derive(Clone, Copy, Debug)]
pub struct Start;

impl Start {
    /// Decides what to read, or why the log may not be opened under `term`. That must be larger than any before, also where the
    /// owner itself opens a log that failed anew: what its earlier opening left on disk unacked must be older than anything
    /// written now.
    pub fn plan(log: &LogFacts, term: Term) -> Result<Plan, OpenError> {
        let LogFacts {
            first_kept,
            next_offset,
            last_timetick,
            last_term,
            checkpoint_upto,
        } = *log;
        if last_term > Term::ZERO && term <= last_term {
            return Err(OpenError::StaleTerm { term, last_term });
        }
        if next_offset < first_kept {
            return Err(OpenError::EndBelowStart {
                first_kept,
                next_offset,
            });
        }
        if let Some(checkpoint_upto) = checkpoint_upto.filter(|upto| *upto > next_offset) {
            return Err(OpenError::EndBelowCheckpoint {
                checkpoint_upto,
                next_offset,
            });
        }
        let replay_from = first_kept.max(checkpoint_upto.unwrap_or(first_kept));
        Ok(Plan {
            replay_from,
            next_offset,
            term,
            last_term,
            last_timetick,
        })
    }
}

impl Plan {
    /// Begins to take in batches, on top of the checkpoint's producers (or an empty table).
    pub fn replay(self, dedupe: Dedupe) -> Replay {
        Replay {
            plan: self,
            dedupe,
            next_offset: None,
            last_timetick: Timetick::ZERO,
            last_term: Term::ZERO,
            batches: 0,
            damaged: false,
        }
    }
}

/// What a stored batch says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchFacts {
    /// Offset of its first message.
    pub base_offset: Offset,
    /// Messages in it.
    pub count: u32,
    /// The term it was written under.
    pub term: Term,
    /// Timetick of its first message.
    pub first_timetick: Timetick,
    /// Timetick of its last message.
    pub last_timetick: Timetick,
    /// The promise that rides in it.
    pub promised_timetick: Timetick,
    /// Its producer, or 0.
    pub producer: ProducerId,
    /// The producer's epoch.
    pub epoch: ProducerEpoch,
    /// Sequence of its first message.
    pub first_sequence: Sequence,
}

/// A stored log that breaks its own order: it was damaged, or written by two owners. Nothing is cut or repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Offsets are not dense.
    #[error(
        "the log has a batch at offset {found} where offset {expected} comes next. Run `lognode verify` and restore the \
     damaged segment"
    )]
    NotDense {
        /// The offset that comes next.
        expected: Offset,
        /// The offset of the batch.
        found: Offset,
    },
    /// A batch without messages.
    #[error("the batch at offset {offset} holds no message. Run `lognode verify` and restore the damaged segment")]
    Empty {
        /// Its offset.
        offset: Offset,
    },
    /// Timeticks do not grow.
    #[error(
        "the batch at offset {offset} has timetick {found}, which must be above {above}. Run `lognode verify` and restore \
         the damaged segment"
    )]
    TimeNotGrowing {
        /// Offset of the batch.
        offset: Offset,
        /// The timetick found.
        found: Timetick,
        /// The timetick or promise before it.
        above: Timetick,
    },
    /// Terms go back.
    #[error(
        "the batch at offset {offset} is of term {found} after term {before}: two owners have written. Run `lognode verify`, \
         and check that no two nodes share this data folder"
    )]
    TermBack {
        /// Offset of the batch.
        offset: Offset,
        /// Its term.
        found: Term,
        /// The term before or the last one known.
        before: Term,
    },
    /// The log ended early or late.
    #[error(
        "replay ended at offset {found}, but the log ends at {expected}. Run `lognode verify` and restore the damaged \
     segment"
    )]
    WrongEnd {
        /// Where the log ends.
        expected: Offset,
        /// Where replay ended.
        found: Offset,
    },
}

/// A recovery under way: takes batches in log order, checks them, rebuilds the producers' table.
#[derive(Debug)]
pub struct Replay {
    plan: Plan,
    dedupe: Dedupe,
    next_offset: Option<Offset>,
    last_timetick: Timetick,
    last_term: Term,
    batches: u64,
    damaged: bool,
}

impl Replay {
    /// Takes in the next batch.
    pub fn batch(&mut self, batch: &BatchFacts) -> Result<(), ReplayError> {
        let BatchFacts {
            base_offset: offset,
            count,
            term,
            first_timetick,
            last_timetick,
            ..
        } = *batch;
        if count == 0 {
            return Err(ReplayError::Empty { offset });
        }
        let next_offset = offset.plus(u64::from(count));
        let expected = self.next_offset.unwrap_or(self.plan.replay_from);
        let joins = match self.next_offset {
            Some(expected) => offset == expected,
            None => offset <= expected && expected < next_offset,
        };
        if !joins {
            return Err(ReplayError::NotDense {
                expected,
                found: offset,
            });
        }
        if next_offset > self.plan.next_offset {
            return Err(ReplayError::WrongEnd {
                expected: self.plan.next_offset,
                found: next_offset,
            });
        }
        let above = self.last_timetick.max(batch.promised_timetick);
        if first_timetick <= above {
            return Err(ReplayError::TimeNotGrowing {
                offset,
                found: first_timetick,
                above,
            });
        }
        let above = first_timetick.plus(u64::from(count) - 1).previous();
        if last_timetick <= above {
            return Err(ReplayError::TimeNotGrowing {
                offset,
                found: last_timetick,
                above,
            });
        }
        if term < self.last_term {
            return Err(ReplayError::TermBack {
                offset,
                found: term,
                before: self.last_term,
            });
        }
        if term > self.plan.last_term {
            return Err(ReplayError::TermBack {
                offset,
                found: self.plan.last_term,
                before: term,
            });
        }
        let BatchFacts {
            producer,
            epoch,
            first_sequence,
            ..
        } = *batch;
        self.dedupe.replay(
            &BatchKey {
                producer,
                epoch,
                first_sequence,
                count,
            },
            offset,
            first_timetick,
        );
        self.next_offset = Some(next_offset);
        self.last_timetick = last_timetick;
        self.last_term = term;
        self.batches += 1;
        Ok(())
    }

    /// Goes on behind damaged bytes that the store reported: `batch` was refused by [`Replay::batch`], and is the first whole
    /// one behind the hole. Retries of what lay in the hole can't be told from new batches; order still holds.
    pub fn resume_behind_damage(&mut self, batch: &BatchFacts) -> Result<(), ReplayError> {
        let expected = self.next_offset.unwrap_or(self.plan.replay_from);
        if batch.base_offset <= expected {
            return Err(ReplayError::NotDense {
                expected,
                found: batch.base_offset,
            });
        }
        let before = self.next_offset.replace(batch.base_offset);
        match self.batch(batch) {
            Ok(()) => self.damaged = true,
            Err(error) => {
                self.next_offset = before;
                return Err(error);
            }
        }
        Ok(())
    }

    /// The store reported damaged bytes up to the end of the log, behind the last batch: what they held is lost, the log goes on
    /// where it ends.
    pub fn ends_in_damage(&mut self) {
        self.damaged = true;
    }

    /// Batches taken in so far.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Ends the recovery: a sequencer that goes on where the log ends, above every stored timetick.
    pub fn finish(self) -> Result<Sequencer, ReplayError> {
        let Plan {
            next_offset: expected,
            replay_from,
            term,
            last_timetick,
            ..
        } = self.plan;
        let found = self.next_offset.unwrap_or(replay_from);
        if found != expected && !self.damaged {
            return Err(ReplayError::WrongEnd { expected, found });
        }
        Ok(Sequencer::new(
            term,
            expected,
            last_timetick.max(self.last_timetick),
            self.dedupe,
        ))
    }
}
