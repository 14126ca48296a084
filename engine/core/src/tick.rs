//! The timetick machine: every 10 ms a promise that nothing at or below T will come again.

use wire_format::{Millis, Offset, Timetick};

use crate::sequencer::Sequencer;

/// Pace of the promises.
pub const TICK_INTERVAL: Millis = Millis(10);

/// "Who has everything below `upto` has everything at or below `timetick`, and nothing at or below it will ever come."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The time promised.
    pub timetick: Timetick,
    /// Where a reader must stand to be told.
    pub upto: Offset,
}

/// Makes the promises of one pchannel. Lives on the shard that owns the pchannel. Writes nothing: a promise is told to
/// readers, and [`TickMachine::riding`] goes into the meta of the next batch, if ever one comes.
#[derive(Clone, Copy, Debug)]
pub struct TickMachine {
    latest: Timetick,
    upto: Offset,
    due_at: Millis,
}

impl TickMachine {
    /// Starts above `last`, the last stored timetick or promise, in a log that ends at `next_offset`.
    pub fn new(last: Timetick, next_offset: Offset) -> Self {
        Self {
            latest: last,
            upto: next_offset,
            due_at: Millis::ZERO,
        }
    }

    /// Makes the promise of this moment, or `None` if it would not be larger than the last.
    ///
    /// * `oldest_unacked`: offset and timetick of the oldest message that is sequenced but not durable, in flight or in the
    ///   block being filled.
    /// * `limit`: no promise above it, see [`crate::HybridClock::promise_limit`].
    ///
    /// With nothing unacked the promise is `now` (or the last timetick given out, if larger), and the sequencer moves on so
    /// that later messages are larger. Else it is one below the oldest unacked.
    pub fn on_timer(
        &mut self,
        now: Timetick,
        sequencer: &mut Sequencer,
        oldest_unacked: Option<(Offset, Timetick)>,
        limit: Timetick,
    ) -> Option<Promise> {
        let (timetick, upto) = match oldest_unacked {
            Some((offset, first)) => (first.previous().min(limit), offset),
            None => (now.max(sequencer.last_timetick()).min(limit), sequencer.next_offset()),
        };
        if timetick <= self.latest {
            return None;
        }
        sequencer.advance(timetick);
        self.latest = timetick;
        self.upto = upto;
        Some(Promise { timetick, upto })
    }

    /// The largest promise so far, to be written into the next batch. Every message of that batch is larger.
    pub fn riding(&self) -> Timetick {
        self.latest
    }

    /// The largest promise so far with its place, for a reader that has just come.
    pub fn latest(&self) -> Promise {
        Promise {
            timetick: self.latest,
            upto: self.upto,
        }
    }

    /// Whether a timer turn at `boot` (boot clock) should make promises; then the next is due one interval later. A late
    /// turn is not made up for.
    pub fn due(&mut self, boot: Millis) -> bool {
        if boot < self.due_at {
            return false;
        }
        let on_time = self.due_at.0.saturating_add(TICK_INTERVAL.0);
        self.due_at = Millis(if on_time > boot.0 {
            on_time
        } else {
            boot.0.saturating_add(TICK_INTERVAL.0)
        });
        true
    }
}
