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
        // A promise held back by its limit may lie below what was passed: true, but of no use to the reader.
        let useful = |promise: &Promise| promise.upto <= self.next && promise.timetick >= self.passed;
        let promised = view.promise.filter(useful).map(|promise| promise.timetick);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn view(first_kept: u64, tail_first: u64, durable: u64, promise: Option<(u64, u64)>) -> LogView {
        LogView {
            first_kept: Offset(first_kept),
            tail_first: Offset(tail_first),
            durable: Offset(durable),
            promise: promise.map(|(tick, upto)| Promise {
                timetick: Timetick(tick),
                upto: Offset(upto),
            }),
        }
    }

    fn reader(next: u64, credits: u64) -> Cursor {
        let mut cursor = Cursor::new(Offset(next));
        cursor.grant(Bytes(credits));
        cursor
    }

    #[test]
    fn from_old_log_over_to_the_tail() {
        let mut cursor = reader(3, 1_000);
        assert_eq!(
            cursor.step(Millis(0), &view(0, 10, 20, None)),
            Step::FromLog { at: Offset(3) }
        );
        cursor.delivered(Offset(10), Timetick(110), Bytes(100)).unwrap();
        assert_eq!(
            cursor.step(Millis(0), &view(0, 10, 20, None)),
            Step::Tick(Timetick(110))
        );
        assert_eq!(
            cursor.step(Millis(0), &view(0, 10, 20, None)),
            Step::FromTail { at: Offset(10) }
        );
        cursor.delivered(Offset(20), Timetick(120), Bytes(100)).unwrap();
        assert_eq!(cursor.step(Millis(9), &view(0, 10, 20, None)), Step::Wait);
        assert_eq!(
            cursor.step(Millis(10), &view(0, 10, 20, None)),
            Step::Tick(Timetick(120))
        );
        assert_eq!(
            cursor.step(Millis(11), &view(0, 10, 20, Some((130, 20)))),
            Step::Tick(Timetick(130))
        );
        assert_eq!(cursor.step(Millis(99), &view(0, 10, 20, Some((130, 20)))), Step::Wait);
    }

    #[test]
    fn a_reader_below_what_is_kept_is_told_so() {
        let mut cursor = reader(3, 1_000);
        assert_eq!(
            cursor.step(Millis(0), &view(7, 10, 20, None)),
            Step::Truncated { first_kept: Offset(7) }
        );
        assert_eq!(
            reader(7, 1).step(Millis(0), &view(7, 10, 20, None)),
            Step::FromLog { at: Offset(7) }
        );
    }

    #[test]
    fn one_batch_may_pass_the_last_credit() {
        let mut cursor = reader(0, 1);
        assert_eq!(
            cursor.step(Millis(0), &view(0, 0, 5, None)),
            Step::FromTail { at: Offset(0) }
        );
        cursor.delivered(Offset(1), Timetick(1), Bytes(1 << 20)).unwrap();
        cursor.step(Millis(0), &view(0, 0, 5, None));
        assert_eq!(cursor.step(Millis(0), &view(0, 0, 5, None)), Step::Wait);
        cursor.grant(Bytes(1 << 20));
        assert_eq!(cursor.credits(), 1);
        assert_eq!(
            cursor.step(Millis(0), &view(0, 0, 5, None)),
            Step::FromTail { at: Offset(1) }
        );
    }

    #[test]
    fn a_filter_that_drops_everything_still_gives_ticks_at_a_bounded_pace() {
        let mut cursor = reader(0, 1);
        let mut ticks = Vec::new();
        for offset in 0..1_000 {
            let now = Millis(offset / 10); // ten batches in a millisecond
            match cursor.step(now, &view(0, 0, 1_000, None)) {
                Step::Tick(tick) => {
                    ticks.push((now, tick));
                    assert!(matches!(
                        cursor.step(now, &view(0, 0, 1_000, None)),
                        Step::FromTail { .. }
                    ));
                }
                step => assert!(matches!(step, Step::FromTail { .. })),
            }
            cursor.skipped(Offset(offset + 1), Timetick(offset + 1)).unwrap();
        }
        assert_eq!((cursor.next(), cursor.credits()), (Offset(1_000), 1));
        assert_eq!(ticks.len(), 10);
        assert!(
            ticks
                .windows(2)
                .all(|pair| pair[1].0.0 - pair[0].0.0 >= 10 && pair[1].1 > pair[0].1)
        );
    }

    #[test]
    fn a_quiet_log_gives_ticks_without_credits_and_a_promise_ahead_of_the_reader_waits() {
        let mut cursor = reader(5, 0);
        assert_eq!(
            cursor.step(Millis(0), &view(5, 5, 5, Some((50, 5)))),
            Step::Tick(Timetick(50))
        );
        assert_eq!(cursor.step(Millis(0), &view(5, 5, 9, Some((90, 9)))), Step::Wait);
    }

    #[test]
    fn deliveries_that_break_the_order_are_refused() {
        let mut cursor = reader(5, 100);
        assert!(matches!(
            cursor.delivered(Offset(5), Timetick(9), Bytes(1)),
            Err(CursorError::NotForward { .. })
        ));
        cursor.step(Millis(0), &view(0, 0, 5, Some((50, 5))));
        assert!(matches!(
            cursor.delivered(Offset(6), Timetick(50), Bytes(1)),
            Err(CursorError::BelowTick { .. })
        ));
        assert_eq!((cursor.next(), cursor.credits()), (Offset(5), 100));
    }

    proptest! {
        // Any log, any pace: every message passes once and in order, ticks grow, and nothing at or below a tick comes after it.
        #[test]
        fn nothing_comes_at_or_below_a_tick(
            steps in prop::collection::vec((0u8..8, 1u64..6, 0u64..20), 1..300)
        ) {
            let mut cursor = Cursor::new(Offset::ZERO);
            let (mut log, mut durable, mut time, mut now) = (Vec::new(), 0u64, 0u64, 0u64);
            let mut promise = None;
            let mut ticked = Timetick::ZERO;
            for (kind, count, span) in steps {
                time += span;
                now += span;
                match kind {
                    0 | 1 => (0..count).for_each(|_| { time += 1; log.push(time); }),
                    2 => durable = (durable + count).min(log.len() as u64),
                    3 => promise = Some(match log.get(durable as usize) {
                        Some(oldest) => (oldest - 1, durable),
                        None => { time += 1; (time, durable) }
                    }),
                    4 => cursor.grant(Bytes(span)),
                    _ => match cursor.step(Millis(now), &view(0, durable.saturating_sub(3), durable, promise)) {
                        Step::Tick(tick) => {
                            prop_assert!(tick > ticked);
                            ticked = tick;
                            // All that was passed over is at or below it only if the reader had it.
                            prop_assert!(log.iter().skip(cursor.next().0 as usize).all(|message| Timetick(*message) > tick));
                        }
                        Step::FromTail { at } | Step::FromLog { at } => {
                            let end = (at.0 + count).min(durable);
                            prop_assert!(at.0 < durable);
                            prop_assert!(Timetick(log[at.0 as usize]) > ticked);
                            let last = Timetick(log[end as usize - 1]);
                            if kind == 5 { cursor.skipped(Offset(end), last).unwrap() }
                            else { cursor.delivered(Offset(end), last, Bytes(count)).unwrap() }
                        }
                        Step::Truncated { .. } => prop_assert!(false, "nothing was truncated"),
                        Step::Wait => prop_assert!(cursor.next().0 >= durable || cursor.credits() <= 0),
                    }
                }
            }
        }
    }
}
