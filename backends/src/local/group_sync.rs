//! Which writes a sync covers. Pure: it is told what finished and says when to sync.
//!
//! One fdatasync runs at a time, beside writes still in flight. It covers exactly the writes that had finished before it
//! began; those that finish meanwhile wait for the next. A small write that none of this concerns brings its own sync.

/// Larger blocks are faster written first and synced together. Measured: docs/decisions/0008.
const ALONE_BYTES_MAX: usize = 64 << 10;

/// Names a finished write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The state of one file.
#[derive(Debug, Default)]
pub struct GroupSync {
    written: u64,
    synced: u64,
    running: Option<u64>,
    failed: bool,
}

impl GroupSync {
    /// Whether a write of `len` bytes should go as one that is durable when it ends (`O_DSYNC`). Not while a sync is due or
    /// running: that one would cover it too.
    pub fn goes_alone(&self, len: usize) -> bool {
        len <= ALONE_BYTES_MAX && self.running.is_none() && self.synced == self.written && !self.failed
    }

    /// A write finished.
    pub fn write_done(&mut self) -> Ticket {
        self.written += 1;
        Ticket(self.written)
    }

    /// Whether a sync should begin now; if so it has begun, for all writes that finished so far.
    pub fn begin(&mut self) -> bool {
        if self.failed || self.running.is_some() || self.synced == self.written {
            return false;
        }
        self.running = Some(self.written);
        true
    }

    /// The running sync ended. After a failure nothing is ever called synced: the kernel may have dropped the pages.
    pub fn done(&mut self, ok: bool) {
        if let Some(covered) = self.running.take()
            && ok
            && !self.failed
        {
            self.synced = covered;
        }
        self.failed |= !ok;
    }

    /// Whether a write or a sync of this file failed.
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// A write failed.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Whether a write is durable.
    pub fn is_synced(&self, ticket: Ticket) -> bool {
        ticket.0 <= self.synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Seen failing when `done` counts everything written so far.
    #[test]
    fn a_sync_does_not_cover_a_write_that_finished_after_it_began() {
        let mut sync = GroupSync::default();
        let first = sync.write_done();
        assert!(sync.begin());
        let second = sync.write_done();
        assert!(!sync.begin(), "one at a time");
        sync.done(true);
        assert!(sync.is_synced(first) && !sync.is_synced(second));
        assert!(sync.begin());
        sync.done(true);
        assert!(sync.is_synced(second));
        assert!(!sync.begin(), "nothing left to sync");
    }

    #[test]
    fn only_a_small_write_that_no_sync_would_cover_goes_alone() {
        let mut sync = GroupSync::default();
        assert!(sync.goes_alone(4_096) && !sync.goes_alone(ALONE_BYTES_MAX + 1));
        sync.write_done();
        assert!(!sync.goes_alone(4_096), "a sync is due");
        assert!(sync.begin());
        assert!(!sync.goes_alone(4_096), "a sync runs");
        sync.done(true);
        assert!(sync.goes_alone(4_096));
        sync.fail();
        assert!(!sync.goes_alone(4_096));
    }

    proptest! {
        #[test]
        fn nothing_is_synced_after_a_failure(steps in proptest::collection::vec(0..4u8, 1..60)) {
            let (mut sync, mut tickets, mut failed_at) = (GroupSync::default(), Vec::new(), None);
            for step in steps {
                match step {
                    0 => tickets.push(sync.write_done()),
                    1 => { sync.begin(); }
                    2 => sync.done(true),
                    _ => {
                        failed_at.get_or_insert(tickets.iter().filter(|t| sync.is_synced(**t)).count());
                        sync.done(false);
                    }
                }
                if let Some(synced) = failed_at {
                    prop_assert_eq!(tickets.iter().filter(|t| sync.is_synced(**t)).count(), synced);
                }
            }
        }
    }
}
