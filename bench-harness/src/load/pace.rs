//! When the next batch is due on a connection.

/// How a run sends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Closed loop: so many batches in flight on each connection, always. 0 sends nothing.
    Window(usize),
    /// Closed loop with so many batches in flight on each connection, until each has sent so many, whatever the time.
    Count {
        /// Batches in flight.
        window: usize,
        /// Batches to send on each connection.
        batches: u64,
    },
    /// Open loop: so many batches per second over all connections, whatever the server does.
    Rate(f64),
}

/// Batches waiting to be written on one connection; more are due only once these are gone.
const UNSENT_MAX: usize = 1_024;

/// One connection's share of a pace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pace: Pace,
    begin_ns: f64,
    interval_ns: f64,
    started: u64,
    end_ns: u64,
}

impl Due {
    /// Nothing is ever due.
    pub(super) const NEVER: Self = Self {
        pace: Pace::Window(0),
        begin_ns: 0.0,
        interval_ns: 0.0,
        started: 0,
        end_ns: 0,
    };

    /// The share of connection `index` of `connections` in a run from `begin_ns` to `end_ns`.
    pub(super) fn new(pace: Pace, begin_ns: u64, end_ns: u64, index: usize, connections: usize) -> Self {
        let interval_ns = match pace {
            Pace::Window(_) | Pace::Count { .. } => 0.0,
            Pace::Rate(per_s) => connections as f64 * 1e9 / per_s,
        };
        Self {
            pace,
            begin_ns: begin_ns as f64 + interval_ns * index as f64 / connections as f64,
            interval_ns,
            started: 0,
            end_ns,
        }
    }

    /// The moment at which the next batch should leave, if it should have by now. In an open loop it is the scheduled one,
    /// however late we are: so a stall counts for every batch that it delays.
    pub(super) fn take(&mut self, now_ns: u64, in_flight: usize, unsent: usize) -> Option<u64> {
        let at = match self.pace {
            Pace::Window(window) => (now_ns < self.end_ns && in_flight < window).then_some(now_ns),
            Pace::Count { window, batches } => (self.started < batches && in_flight < window).then_some(now_ns),
            Pace::Rate(_) => {
                let at = self.next_ns();
                (at <= now_ns && at < self.end_ns && unsent < UNSENT_MAX).then_some(at)
            }
        };
        self.started += u64::from(at.is_some());
        at
    }

    /// Whether something is still to be sent although the end has come.
    pub(super) fn is_behind(&self) -> bool {
        match self.pace {
            Pace::Window(_) => false,
            Pace::Count { batches, .. } => self.started < batches,
            Pace::Rate(_) => self.next_ns() < self.end_ns,
        }
    }

    /// When the next batch of an open loop is due; `None` if the time has no say or is over.
    pub(super) fn due_at_ns(&self) -> Option<u64> {
        match self.pace {
            Pace::Rate(_) => Some(self.next_ns()).filter(|at| *at < self.end_ns),
            Pace::Window(_) | Pace::Count { .. } => None,
        }
    }

    fn next_ns(&self) -> u64 {
        (self.begin_ns + self.started as f64 * self.interval_ns) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_loop_makes_up_for_a_stall_with_the_times_it_should_have_sent() {
        let mut due = Due::new(Pace::Rate(1e6), 1_000, 11_000, 1, 2);
        // Two connections: 2 us apart each, the second one begins 1 us later.
        assert_eq!((due.take(1_999, 0, 0), due.due_at_ns()), (None, Some(2_000)));
        let times: Vec<u64> = std::iter::from_fn(|| due.take(60_000, 9, 9)).collect();
        assert_eq!(times, [2_000, 4_000, 6_000, 8_000, 10_000]);
        assert_eq!((due.is_behind(), due.due_at_ns()), (false, None));
    }

    #[test]
    fn an_open_loop_holds_back_while_too_much_is_unsent_and_is_behind_then() {
        let mut due = Due::new(Pace::Rate(1e6), 0, 10_000, 0, 1);
        assert_eq!(due.take(5_000, 0, UNSENT_MAX), None);
        assert!(due.is_behind());
    }

    #[test]
    fn a_count_is_sent_in_full_after_the_end_too() {
        let pace = Pace::Count { window: 1, batches: 2 };
        let mut due = Due::new(pace, 0, 0, 0, 1);
        assert_eq!(due.take(5, 0, 0), Some(5));
        assert!(due.is_behind());
        assert_eq!(due.take(6, 1, 0), None);
        assert_eq!(due.take(7, 0, 0), Some(7));
        assert_eq!(due.take(8, 0, 0), None);
        assert!(!due.is_behind());
    }

    #[test]
    fn a_closed_loop_fills_its_window_until_the_end() {
        let mut due = Due::new(Pace::Window(2), 0, 100, 0, 1);
        assert_eq!(due.take(7, 1, 0), Some(7));
        assert_eq!(due.take(7, 2, 0), None);
        assert_eq!(due.take(100, 0, 0), None);
        assert!(!due.is_behind());
    }
}
