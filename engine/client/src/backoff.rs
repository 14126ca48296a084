//! How long to wait before the next try.

use std::time::Duration;

/// Doubles from a shortest to a longest wait; each wait is drawn between half of it and all of it, so that clients that
/// lost the same server do not come back in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, failures: 0 }
    }

    /// Something worked: begin anew.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait before the next try.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let full = self.min.saturating_mul(1 << self.failures.min(20)).min(self.max);
        self.failures = self.failures.saturating_add(1);
        full.mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_begin_anew() {
        let (min, max) = (Duration::from_millis(10), Duration::from_millis(500));
        let mut backoff = Backoff::new(min, max);
        for failures in 0..100u32 {
            let full = (min * (1 << failures.min(10))).min(max);
            let delay = backoff.next_delay();
            assert!(delay >= full / 2 && delay <= full, "{failures}: {delay:?} of {full:?}");
        }
        backoff.reset();
        assert!(backoff.next_delay() <= min);
    }
}
