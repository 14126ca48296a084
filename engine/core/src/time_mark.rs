//! The stored high-water mark of promised time: what was told to readers but written to no log.

use wire_format::timetick::LOGICAL_BITS;
use wire_format::{Millis, Timetick};

/// How far ahead of now a mark is stored.
pub const MARK_AHEAD: Millis = Millis(3_000);
/// A new mark is asked for when less than this is left of the old one.
pub const MARK_LOW: Millis = Millis(1_000);
/// Pause before a failed store is tried again.
pub const MARK_RETRY: Millis = Millis(100);
/// A request without an outcome for this long is asked again: storing a mark twice does no harm, waiting for ever does.
pub const MARK_TIMEOUT: Millis = Millis(1_000);

/// Keeps the mark ahead of the promises. No tick above the mark may be told to a reader; messages may lie above it, as
/// their timetick is durable with them.
///
/// Held by the shard that makes the promises; the store itself happens elsewhere. While time runs at clock speed there
/// is at most one store in 2 seconds, and none at all while nobody listens.
#[derive(Clone, Copy, Debug)]
pub struct TimeMark {
    stored: Timetick,
    /// When the request under way is given up.
    pending: Option<Timetick>,
    not_before: Timetick,
}

impl TimeMark {
    /// A mark that is already durable, as read at the start.
    pub fn new(stored: Timetick) -> Self {
        Self {
            stored,
            pending: None,
            not_before: Timetick::ZERO,
        }
    }

    /// The largest promise that may be told. See also [`crate::HybridClock::promise_limit`], which takes this.
    pub fn allows(&self) -> Timetick {
        self.stored
    }

    /// The mark to store now, if one is needed. `listening`: somebody reads or appends. After `Some` the answer is
    /// `None` until [`TimeMark::stored`] or [`TimeMark::failed`] tells the outcome, or a second has passed without one.
    pub fn wanted(&mut self, now: Timetick, listening: bool) -> Option<Timetick> {
        let pending = self.pending.is_some_and(|until| now < until);
        if pending || !listening || now < self.not_before || self.stored > later(now, MARK_LOW) {
            return None;
        }
        let mark = later(now, MARK_AHEAD);
        if mark <= self.stored {
            return None;
        }
        self.pending = Some(later(now, MARK_TIMEOUT));
        self.not_before = later(now, MARK_RETRY);
        Some(mark)
    }

    /// Tells that `mark` is durable.
    pub fn stored(&mut self, mark: Timetick) {
        self.stored = self.stored.max(mark);
        self.pending = None;
        self.not_before = Timetick::ZERO;
    }

    /// Tells that the store failed. Promises stand still at the old mark; the next request comes after a short pause.
    pub fn failed(&mut self) {
        self.pending = None;
    }
}

fn later(time: Timetick, span: Millis) -> Timetick {
    time.plus(span.0 << LOGICAL_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Timetick {
        Timetick::from_physical(Millis(ms))
    }

    #[test]
    fn an_hour_of_listening_costs_one_write_in_two_seconds() {
        let mut mark = TimeMark::new(Timetick::ZERO);
        let mut writes = 0;
        for ms in (1_000_000..1_000_000 + 3_600_000).step_by(10) {
            if let Some(wanted) = mark.wanted(at(ms), true) {
                assert!(wanted <= at(ms + 3_000));
                writes += 1;
                mark.stored(wanted);
            }
            assert!(mark.allows() >= at(ms));
        }
        assert!((1_200..=1_801).contains(&writes), "{writes} writes");
    }

    #[test]
    fn nobody_listening_costs_nothing() {
        let mut mark = TimeMark::new(Timetick::ZERO);
        assert!((0..100_000).all(|ms| mark.wanted(at(ms), false).is_none()));
    }

    #[test]
    fn one_request_at_a_time_and_a_pause_after_a_failure() {
        let mut mark = TimeMark::new(at(10));
        assert_eq!(mark.wanted(at(500), true), Some(at(3_500)));
        assert_eq!(mark.wanted(at(510), true), None);
        mark.failed();
        assert_eq!(mark.allows(), at(10));
        assert_eq!(mark.wanted(at(520), true), None);
        assert_eq!(mark.wanted(at(600), true), Some(at(3_600)));
        mark.stored(at(3_600));
        assert_eq!(mark.allows(), at(3_600));
    }

    #[test]
    fn a_request_whose_outcome_is_never_told_is_asked_again() {
        let mut mark = TimeMark::new(at(10));
        assert_eq!(mark.wanted(at(500), true), Some(at(3_500)));
        assert_eq!(mark.wanted(at(1_499), true), None);
        assert_eq!(mark.wanted(at(1_500), true), Some(at(4_500)));
    }

    #[test]
    fn the_end_of_time_asks_for_nothing_twice() {
        let mut mark = TimeMark::new(Timetick::ZERO);
        assert_eq!(mark.wanted(Timetick::MAX, true), Some(Timetick::MAX));
        mark.stored(Timetick::MAX);
        assert_eq!(mark.wanted(Timetick::MAX, true), None);
    }

    proptest! {
        #[test]
        fn the_mark_only_grows_and_never_leads_by_more_than_three_seconds(
            steps in prop::collection::vec((0u64..2_000, any::<bool>(), 0u8..3), 1..200)
        ) {
            let mut mark = TimeMark::new(Timetick::ZERO);
            let (mut now, mut asked) = (1_000_000u64, None);
            for (forward, listening, outcome) in steps {
                now += forward;
                let before = mark.allows();
                if let Some(wanted) = mark.wanted(at(now), listening) {
                    prop_assert!(listening && asked.is_none_or(|(_, at)| now >= at + 1_000));
                    prop_assert!(wanted > before && wanted <= at(now + 3_000));
                    asked = Some((wanted, now));
                }
                match (outcome, asked) {
                    (0, Some((wanted, _))) => { mark.stored(wanted); asked = None; }
                    (1, Some(_)) => { mark.failed(); asked = None; }
                    _ => {}
                }
                prop_assert!(mark.allows() >= before);
            }
        }
    }
}
