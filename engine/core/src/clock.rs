//! Time that never goes back: the boot clock carries it, the wall clock may only push it forward.

use wire_format::{Millis, Timetick};

/// A difference this large between the wall clock and ours is worth a line in the log, in milliseconds.
pub const SKEW_REPORT_MS: i64 = 1_000;

const PHYSICAL_MAX_MS: i64 = wire_format::timetick::PHYSICAL_MAX.0 as i64;

/// Both clocks of the machine, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reading {
    /// `CLOCK_BOOTTIME`: milliseconds since the machine started. Never goes back within a boot.
    pub boot: Millis,
    /// `CLOCK_REALTIME`: milliseconds since the Unix epoch. May jump anywhere.
    pub wall: Millis,
}

/// What the metadata store keeps of a clock, so that a restart of the process continues where the last life was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredClock {
    /// The kernel's id of the boot during which `difference_ms` holds.
    pub boot_id: [u8; 16],
    /// Our physical time minus the boot clock, in milliseconds. Within a boot it only grows: a store keeps the larger.
    pub difference_ms: i64,
}

/// The wall clock and ours are apart; handed out once per occasion, to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkewEvent {
    /// The wall clock jumped ahead by this many milliseconds, and time followed it.
    Followed {
        /// Size of the jump.
        ahead_ms: i64,
    },
    /// The wall clock is behind by this many milliseconds; time goes on at the speed of the boot clock.
    Behind {
        /// How far behind it was when first seen.
        behind_ms: i64,
    },
}

/// Physical time of a shard. Copied to every shard at the start of the process, so that all begin alike.
///
/// Restart rule. Ticks that were only told to readers are in no log, so two stored values bound them: the time mark (any
/// restart) and, within one boot, boot clock + stored difference. Hence a promise must stay below **both**:
/// [`HybridClock::promise_limit`]. The difference in the store must be [`HybridClock::stored`] before the first promise is
/// made, and whatever larger one is written later is made known by [`HybridClock::confirm`].
#[derive(Clone, Copy, Debug)]
pub struct HybridClock {
    boot_id: [u8; 16],
    difference_ms: i64,
    confirmed_ms: i64,
    boot_ms: i64,
    last_ms: i64,
    skew_ms: i64,
    behind_reported: bool,
    event: Option<SkewEvent>,
}

impl HybridClock {
    /// Starts the clock of a process.
    ///
    /// * Same boot as `stored`: goes on at boot clock + stored difference, which is above all that was promised, without
    ///   the leap to `mark`.
    /// * Else: the largest of the wall clock, one millisecond after `mark`, and `last_stored`.
    ///
    /// A boot id of zeros means that it could not be read, and is never the same boot.
    ///
    /// `mark` is the stored high-water mark of promises, `last_stored` the largest timetick of a message in any log.
    pub fn start(
        reading: Reading,
        boot_id: [u8; 16],
        stored: Option<StoredClock>,
        mark: Timetick,
        last_stored: Timetick,
    ) -> Self {
        let boot_ms = to_ms(reading.boot);
        let wall_ms = to_ms(reading.wall);
        let begin_ms = match stored {
            Some(stored) if stored.boot_id == boot_id && boot_id != [0; 16] => {
                boot_ms.saturating_add(stored.difference_ms)
            }
            _ if mark == Timetick::ZERO => wall_ms,
            _ => wall_ms.max(to_ms(mark.physical()) + 1),
        };
        let begin_ms = begin_ms.max(whole_ms(last_stored)).clamp(0, PHYSICAL_MAX_MS);
        let difference_ms = begin_ms - boot_ms;
        let mut clock = Self {
            boot_id,
            difference_ms,
            confirmed_ms: difference_ms,
            boot_ms,
            last_ms: begin_ms,
            skew_ms: 0,
            behind_reported: false,
            event: None,
        };
        clock.observe_wall(wall_ms);
        clock
    }

    /// The time, with a zero logical counter. Never below an earlier answer, `mark` or `last_stored`.
    ///
    /// A wall clock that is ahead is followed whatever the distance; one that is behind is ignored.
    pub fn now(&mut self, reading: Reading) -> Timetick {
        self.boot_ms = self.boot_ms.max(to_ms(reading.boot));
        self.last_ms = self.last_ms.max(self.physical_ms());
        self.observe_wall(to_ms(reading.wall));
        self.current()
    }

    /// Never answer below `timetick` from now on: a log was opened that holds it.
    pub fn reach(&mut self, timetick: Timetick) {
        let behind_ms = whole_ms(timetick).saturating_sub(self.last_ms);
        if behind_ms > 0 {
            self.difference_ms = self.difference_ms.saturating_add(behind_ms);
            self.last_ms = self.physical_ms();
        }
    }

    /// The latest answer of [`HybridClock::now`].
    pub fn current(&self) -> Timetick {
        Timetick::from_physical(Millis(self.last_ms.unsigned_abs()))
    }

    /// The largest promise that a restart is sure to stay above, given the stored `mark`.
    pub fn promise_limit(&self, mark: Timetick) -> Timetick {
        let kept_ms = self.boot_ms.saturating_add(self.confirmed_ms).clamp(0, PHYSICAL_MAX_MS);
        mark.min(Timetick::from_physical(Millis(kept_ms.unsigned_abs())).previous())
    }

    /// What to store. The store keeps the largest difference of all shards of the node.
    pub fn stored(&self) -> StoredClock {
        StoredClock {
            boot_id: self.boot_id,
            difference_ms: self.difference_ms,
        }
    }

    /// Tells that `stored` is durable, so that promises may reach up to it.
    pub fn confirm(&mut self, stored: StoredClock) {
        if stored.boot_id == self.boot_id {
            self.confirmed_ms = self.confirmed_ms.max(stored.difference_ms);
            self.difference_ms = self.difference_ms.max(stored.difference_ms);
        }
    }

    /// How far time runs ahead of what is durable, in milliseconds: promises lag by this much. From 10 ms on it is worth
    /// a write of [`HybridClock::stored`] at once; it happens only after the wall clock jumped ahead.
    pub fn unconfirmed_ms(&self) -> i64 {
        self.difference_ms.saturating_sub(self.confirmed_ms)
    }

    /// Wall clock minus ours at the last reading, in milliseconds: 0 in good times, negative while the wall is behind.
    pub fn skew_ms(&self) -> i64 {
        self.skew_ms
    }

    /// The skew event not yet taken, if there is one.
    pub fn take_skew_event(&mut self) -> Option<SkewEvent> {
        self.event.take()
    }

    fn physical_ms(&self) -> i64 {
        self.boot_ms
            .saturating_add(self.difference_ms)
            .clamp(0, PHYSICAL_MAX_MS)
    }

    fn observe_wall(&mut self, wall_ms: i64) {
        let apart_ms = wall_ms - self.last_ms;
        if apart_ms > 0 {
            self.last_ms = wall_ms;
            self.difference_ms = wall_ms - self.boot_ms;
            if apart_ms >= SKEW_REPORT_MS {
                self.event = Some(SkewEvent::Followed { ahead_ms: apart_ms });
            }
        }
        self.skew_ms = apart_ms.min(0);
        if apart_ms <= -SKEW_REPORT_MS && !self.behind_reported {
            self.behind_reported = true;
            self.event = Some(SkewEvent::Behind { behind_ms: -apart_ms });
        } else if apart_ms > -SKEW_REPORT_MS / 2 {
            self.behind_reported = false;
        }
    }
}

fn to_ms(time: Millis) -> i64 {
    i64::try_from(time.0).unwrap_or(PHYSICAL_MAX_MS).min(PHYSICAL_MAX_MS)
}

/// The first whole millisecond that is not below `timetick`.
fn whole_ms(timetick: Timetick) -> i64 {
    to_ms(timetick.physical()) + i64::from(timetick.logical() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOOT: [u8; 16] = [7; 16];

    fn reading(boot: u64, wall: u64) -> Reading {
        Reading {
            boot: Millis(boot),
            wall: Millis(wall),
        }
    }

    fn at(ms: u64) -> Timetick {
        Timetick::from_physical(Millis(ms))
    }

    #[test]
    fn a_wall_set_back_does_not_stop_time() {
        let mut clock = HybridClock::start(reading(1_000, 5_000_000), BOOT, None, Timetick::ZERO, Timetick::ZERO);
        for step in 1..=100 {
            assert_eq!(
                clock.now(reading(1_000 + 10 * step, 1_400_000)),
                at(5_000_000 + 10 * step)
            );
        }
        assert_eq!(clock.skew_ms(), 1_400_000 - 5_001_000);
        assert_eq!(
            clock.take_skew_event(),
            Some(SkewEvent::Behind { behind_ms: 3_600_010 })
        );
        assert_eq!(clock.take_skew_event(), None);
    }

    #[test]
    fn a_wall_ahead_is_followed_and_reported_once() {
        let mut clock = HybridClock::start(reading(0, 1_000), BOOT, None, Timetick::ZERO, Timetick::ZERO);
        assert_eq!(clock.now(reading(10, 1_013)), at(1_013));
        assert_eq!(clock.take_skew_event(), None);
        assert_eq!(clock.now(reading(20, 900_000)), at(900_000));
        assert_eq!(
            clock.take_skew_event(),
            Some(SkewEvent::Followed {
                ahead_ms: 900_000 - 1_023
            })
        );
        assert_eq!(clock.now(reading(30, 900_010)), at(900_010));
        assert_eq!((clock.take_skew_event(), clock.skew_ms()), (None, 0));
    }

    #[test]
    fn a_restart_within_the_boot_does_not_leap_to_the_mark() {
        let clock = HybridClock::start(reading(1_000, 50_000), BOOT, None, Timetick::ZERO, Timetick::ZERO);
        let mut again = HybridClock::start(
            reading(1_500, 2_000),
            BOOT,
            Some(clock.stored()),
            at(53_000),
            at(50_100),
        );
        assert_eq!(again.now(reading(1_500, 2_000)), at(50_500));
    }

    #[test]
    fn another_boot_starts_above_the_mark() {
        let stored = StoredClock {
            boot_id: [9; 16],
            difference_ms: 1 << 40,
        };
        let mut clock = HybridClock::start(reading(5, 2_000), BOOT, Some(stored), at(53_000).plus(7), at(51_000));
        assert_eq!(clock.now(reading(5, 2_000)), at(53_001));
    }

    #[test]
    fn an_unknown_boot_starts_above_the_mark() {
        let stored = StoredClock {
            boot_id: [0; 16],
            difference_ms: 0,
        };
        let clock = HybridClock::start(reading(5, 2_000), [0; 16], Some(stored), at(53_000), Timetick::ZERO);
        assert_eq!(clock.current(), at(53_001));
    }

    #[test]
    fn a_jump_ahead_holds_promises_back_until_it_is_stored() {
        let mut clock = HybridClock::start(reading(0, 1_000), BOOT, None, Timetick::ZERO, Timetick::ZERO);
        clock.now(reading(10, 500_000));
        assert_eq!(clock.promise_limit(Timetick::MAX), at(1_010).previous());
        assert_eq!(clock.unconfirmed_ms(), 498_990);
        clock.confirm(clock.stored());
        assert_eq!(clock.promise_limit(Timetick::MAX), at(500_000).previous());
        assert_eq!(clock.promise_limit(at(400_000)), at(400_000));
    }

    #[test]
    fn a_log_from_the_future_lifts_time_once_it_is_opened() {
        let mut clock = HybridClock::start(reading(0, 1_000), BOOT, None, Timetick::ZERO, Timetick::ZERO);
        clock.reach(at(900));
        assert_eq!(clock.current(), at(1_000));
        clock.reach(at(5_000).plus(1));
        assert_eq!((clock.current(), clock.now(reading(10, 1_010))), (at(5_001), at(5_011)));
        // What is not stored yet would not survive a restart, so it can't be promised.
        assert!(clock.promise_limit(Timetick::MAX) < at(1_010));
        clock.confirm(clock.stored());
        assert_eq!(clock.promise_limit(Timetick::MAX), at(5_011).previous());
    }

    #[test]
    fn absurd_readings_saturate() {
        let mut clock = HybridClock::start(reading(u64::MAX, u64::MAX), BOOT, None, Timetick::MAX, Timetick::MAX);
        let stuck = clock.now(reading(u64::MAX, 0));
        assert_eq!(stuck, Timetick::from_physical(wire_format::timetick::PHYSICAL_MAX));
        let stored = StoredClock {
            boot_id: BOOT,
            difference_ms: i64::MIN,
        };
        assert_eq!(
            HybridClock::start(reading(3, 0), BOOT, Some(stored), at(9), Timetick::ZERO).current(),
            at(0)
        );
    }

    proptest! {
        // Whatever the clocks do, over restarts of process and machine: time never goes back, and a new life starts above
        // everything that the life before was allowed to promise.
        #[test]
        fn time_never_goes_back(
            steps in prop::collection::vec(
                (prop_oneof![0u64..3, 0u64..5_000], prop_oneof![0i64..10_000_000, -2_500i64..2_500], 0u8..8, any::<bool>()),
                1..200,
            )
        ) {
            let mut boot = 100_000u64;
            let mut boot_id = [1u8; 16];
            let mut clock = HybridClock::start(reading(boot, 1_000_000), boot_id, None, Timetick::ZERO, Timetick::ZERO);
            let mut store = clock.stored();
            let mut mark = Timetick::ZERO;
            let (mut previous, mut promised) = (clock.current(), Timetick::ZERO);
            for (forward, wall, event, write) in steps {
                boot += forward;
                // A small number is a wall clock close to ours, a large one stands anywhere.
                let near = wall.abs() < 2_500;
                let wall = if near { clock.current().physical().0.saturating_add_signed(wall) } else { wall.unsigned_abs() };
                match event {
                    0 | 1 => {
                        if event == 1 {
                            boot_id[0] = boot_id[0].wrapping_add(1);
                            boot = forward;
                        }
                        clock = HybridClock::start(reading(boot, wall), boot_id, Some(store), mark, Timetick::ZERO);
                        prop_assert!(clock.current() > promised, "{:?} after promise {:?}", clock.current(), promised);
                        if store.boot_id != boot_id { store = clock.stored(); }
                        previous = clock.current();
                    }
                    _ => {
                        let now = clock.now(reading(boot, wall));
                        prop_assert!(now >= previous && now >= at(wall.min(now.physical().0)));
                        previous = now;
                        promised = promised.max(clock.promise_limit(mark).min(now));
                        if write {
                            mark = mark.max(now.plus(3_000 << 18));
                            store = clock.stored();
                            clock.confirm(store);
                        }
                    }
                }
            }
        }
    }
}
