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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::{Dedupe, DedupeLimits};
    use crate::sequencer::AppendRequest;
    use proptest::prelude::*;
    use wire_format::{ProducerEpoch, ProducerId, Sequence, Term};

    fn at(ms: u64) -> Timetick {
        Timetick::from_physical(Millis(ms))
    }

    fn sequencer() -> Sequencer {
        Sequencer::new(
            Term(1),
            Offset::ZERO,
            Timetick::ZERO,
            Dedupe::new(DedupeLimits::default()),
        )
    }

    fn append(sequencer: &mut Sequencer, now: Timetick, count: u32) -> (Offset, Timetick) {
        let request = AppendRequest {
            producer: ProducerId::ZERO,
            epoch: ProducerEpoch::ZERO,
            first_sequence: Sequence::ZERO,
            count,
        };
        let position = sequencer.append(now, &request).unwrap().position();
        (position.base_offset, position.first_timetick)
    }

    #[test]
    fn with_nothing_in_flight_time_is_promised_and_later_messages_are_larger() {
        let (mut sequencer, mut ticks) = (sequencer(), TickMachine::new(Timetick::ZERO, Offset::ZERO));
        let promise = ticks.on_timer(at(50), &mut sequencer, None, Timetick::MAX);
        assert_eq!(
            promise,
            Some(Promise {
                timetick: at(50),
                upto: Offset::ZERO
            })
        );
        assert_eq!(append(&mut sequencer, at(40), 1), (Offset(0), at(50).plus(1)));
        assert_eq!((ticks.riding(), ticks.latest().timetick), (at(50), at(50)));
    }

    #[test]
    fn the_promise_stays_below_the_oldest_in_flight() {
        let (mut sequencer, mut ticks) = (sequencer(), TickMachine::new(Timetick::ZERO, Offset::ZERO));
        let oldest = append(&mut sequencer, at(40), 3);
        append(&mut sequencer, at(45), 3);
        let promise = ticks.on_timer(at(50), &mut sequencer, Some(oldest), Timetick::MAX);
        assert_eq!(
            promise,
            Some(Promise {
                timetick: at(40).previous(),
                upto: Offset(0)
            })
        );
        assert_eq!(
            ticks.on_timer(at(60), &mut sequencer, Some(oldest), Timetick::MAX),
            None
        );
        let promise = ticks.on_timer(at(70), &mut sequencer, None, Timetick::MAX);
        assert_eq!(
            promise,
            Some(Promise {
                timetick: at(70),
                upto: Offset(6)
            })
        );
    }

    #[test]
    fn the_limit_caps_and_an_old_limit_stops() {
        let (mut sequencer, mut ticks) = (sequencer(), TickMachine::new(at(10), Offset::ZERO));
        assert_eq!(ticks.on_timer(at(50), &mut sequencer, None, at(10)), None);
        assert_eq!(
            ticks.on_timer(at(50), &mut sequencer, None, at(30)).map(|p| p.timetick),
            Some(at(30))
        );
        assert_eq!(ticks.on_timer(at(20), &mut sequencer, None, Timetick::MAX), None);
    }

    #[test]
    fn the_timer_keeps_its_pace_and_does_not_make_up_for_lost_turns() {
        let mut ticks = TickMachine::new(Timetick::ZERO, Offset::ZERO);
        let due: Vec<u64> = [100, 105, 110, 121, 130, 200, 201, 209, 210]
            .into_iter()
            .filter(|t| ticks.due(Millis(*t)))
            .collect();
        assert_eq!(due, [100, 110, 121, 130, 200, 210]);
    }

    proptest! {
        // Whatever comes in whatever order: promises grow, stay at or below the limit, and no message that is not durable
        // at the time of a promise, nor any later one, is at or below it.
        #[test]
        fn no_message_comes_at_or_below_a_promise(
            steps in prop::collection::vec((0u8..6, 0u64..100, 1u32..10), 1..300)
        ) {
            let (mut sequencer, mut ticks) = (sequencer(), TickMachine::new(Timetick::ZERO, Offset::ZERO));
            let mut unacked = std::collections::VecDeque::new();
            let (mut limit, mut promised) = (at(0), Timetick::ZERO);
            for (kind, time, count) in steps {
                match kind {
                    0 | 1 => {
                        let message = append(&mut sequencer, at(time), count);
                        prop_assert!(message.1 > promised);
                        prop_assert!(message.1 > ticks.riding());
                        unacked.push_back(message);
                    }
                    2 => { unacked.pop_front(); }
                    3 => limit = limit.max(at(time)),
                    _ => if let Some(promise) = ticks.on_timer(at(time), &mut sequencer, unacked.front().copied(), limit) {
                        prop_assert!(promise.timetick > promised && promise.timetick <= limit);
                        prop_assert!(unacked.iter().all(|(offset, tick)| *tick > promise.timetick && *offset >= promise.upto));
                        promised = promise.timetick;
                    }
                }
            }
        }
    }
}
