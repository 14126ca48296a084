//! A reader's place in a pchannel: credits, the way from old log to live tail, and the ticks in between.

use wire_format::{Bytes, Millis, Offset, Timetick};

use crate::tick::{Promise, TICK_INTERVAL};

/// The log as a reader may see it at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogView {
    /// The oldest offset that retention has kept.
    pub first_kept: Offset,
    /// The oldest offset that memory holds; equal to `durable` when it holds nothing.
    pub tail_first: Offset,
    /// Everything below is durable and may be shown.
    pub durable: Offset,
    /// The latest promise.
    pub promise: Option<Promise>,
}

/// What a reader's task does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The reader stands below what is kept: tell it so with this offset, and end the scan. Never skip over the gap.
    Truncated {
        /// The oldest offset kept.
        first_kept: Offset,
    },
    /// Read on from the memory tail at this offset.
    FromTail {
        /// Where to read.
        at: Offset,
    },
    /// Read on from the log's files at this offset: it is older than the memory tail.
    FromLog {
        /// Where to read.
        at: Offset,
    },
    /// Tell the reader that it has everything at or below this timetick.
    Tick(Timetick),
    /// Nothing to do until the log grows, a promise moves, or credits come.
    Wait,
}

/// A delivery that would break the promise of order. The scan must end: the log and this cursor disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// The batch lies behind the cursor.
    #[error("a batch that ends at offset {next_offset} came to a reader at {at}. Reopen the reader at {at}")]
    NotForward {
        /// Where the batch ends.
        next_offset: Offset,
        /// Where the reader stands.
        at: Offset,
    },
    /// The batch lies below a tick that the reader was told.
    #[error(
        "a batch at offset {at} with timetick {last_timetick} came after tick {ticked} was told. Run `lognode verify` on \
         the pchannel and report what it finds"
    )]
    BelowTick {
        /// Where the reader stands.
        at: Offset,
        /// Last timetick of the batch.
        last_timetick: Timetick,
        /// The tick told before.
        ticked: Timetick,
    },
}

/// Where one reader stands. Lives with its connection on the pchannel's shard; nothing of it outlives the connection.
///
/// The rule of ticks: a reader that passed every offset below `n`, delivered or filtered out, may be told the timetick of
/// the last message below `n`, because timeticks grow with offsets; and a promise once it stands at its `upto`.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    next: Offset,
    credits: i64,
    passed: Timetick,
    ticked: Timetick,
    catch_up_at: Millis,
}

impl Cursor {
    /// A reader whose next offset is `next`, without credits.
    pub fn new(next: Offset) -> Self {
        Self {
            next,
            credits: 0,
            passed: Timetick::ZERO,
            ticked: Timetick::ZERO,
            catch_up_at: Millis::ZERO,
        }
    }

    /// The reader takes this many bytes more.
    pub fn grant(&mut self, bytes: Bytes) {
        self.credits = self.credits.saturating_add(i64::try_from(bytes.0).unwrap_or(i64::MAX));
    }

    /// Bytes were sent. May lead below zero: a delivery begins while any credit is left, so that a batch larger than
    /// the reader's window still passes, one at a time.
    pub fn spend(&mut self, bytes: Bytes) {
        self.credits = self.credits.saturating_sub(i64::try_from(bytes.0).unwrap_or(i64::MAX));
    }

    /// Bytes that may still be sent; not positive: none.
    pub fn credits(&self) -> i64 {
        self.credits
    }

    /// The next offset to read.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// The last tick told.
    pub fn ticked(&self) -> Timetick {
        self.ticked
    }

    /// What to do now; `now` is the boot clock. A `Tick` counts as told. Ticks about what was passed come at most every
    /// 10 ms; promises have that pace already.
    pub fn step(&mut self, now: Millis, view: &LogView) -> Step {
        if self.next < view.first_kept {
            return Step::Truncated {
                first_kept: view.first_kept,
            };
        }
        if let Some(timetick) = self.tick(now, view) {
            self.ticked = timetick;
            self.catch_up_at = Millis(now.0.saturating_add(TICK_INTERVAL.0));
            return Step::Tick(timetick);
        }
        if self.next >= view.durable || self.credits <= 0 {
            return Step::Wait;
        }
        if self.next >= view.tail_first {
            Step::FromTail { at: self.next }
        } else {
            Step::FromLog { at: self.next }
        }
    }

    fn tick(&self, now: Millis, view: &LogView) -> Option<Timetick> {
        let promised = view
            .promise
            .filter(|promise| promise.upto <= self.next)
            .map(|promise| promise.timetick);
        let passed = (now >= self.catch_up_at).then_some(self.passed);
        promised.max(passed).filter(|timetick| *timetick > self.ticked)
    }

    /// A batch was sent: everything below `next_offset` was passed, its last message having `last_timetick`.
    pub fn delivered(&mut self, next_offset: Offset, last_timetick: Timetick, bytes: Bytes) -> Result<(), CursorError> {
        if next_offset <= self.next {
            return Err(CursorError::NotForward {
                next_offset,
                at: self.next,
            });
        }
        if last_timetick <= self.ticked {
            return Err(CursorError::BelowTick {
                at: self.next,
                last_timetick,
                ticked: self.ticked,
            });
        }
        self.next = next_offset;
        self.passed = self.passed.max(last_timetick);
        self.spend(bytes);
        Ok(())
    }

    /// A batch was filtered out as a whole: as [`Cursor::delivered`], but nothing was sent.
    pub fn skipped(&mut self, next_offset: Offset, last_timetick: Timetick) -> Result<(), CursorError> {
        self.delivered(next_offset, last_timetick, Bytes::ZERO)
    }
}
