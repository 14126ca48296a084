//! What a shard counts. Plain cells on the hot path; a copy is published four times a second.

use std::cell::Cell;

/// Counters of one shard, as they are published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that got a place.
    pub messages_appended: u64,
    /// Batches that got a place.
    pub batches_appended: u64,
    /// Their bytes as they were received.
    pub bytes_received: u64,
    /// Batches that were retries of stored ones.
    pub duplicates: u64,
    /// Messages that were acked.
    pub messages_acked: u64,
    /// Requests and connections that were refused.
    pub refusals: u64,
    /// Blocks written.
    pub blocks_written: u64,
    /// Their bytes.
    pub log_bytes_written: u64,
    /// Bytes read from segment files for readers.
    pub log_bytes_read: u64,
    /// Bytes sent to readers.
    pub bytes_delivered: u64,
    /// Ticks sent to readers.
    pub ticks_sent: u64,
    /// Logs that failed and were closed.
    pub log_failures: u64,
    /// Times that a full disk stopped a pchannel.
    pub disk_full_stops: u64,
    /// Turns of the shard's timer.
    pub timer_turns: u64,
    /// Longest time between two turns since the last publication, in microseconds.
    pub timer_gap_max_us: u64,
    /// How late the latest turn since the last publication came, in microseconds.
    pub timer_late_max_us: u64,
}

/// The counters while they count. On the shard only.
#[derive(Debug, Default)]
pub struct Stats(Cell<Counters>);

impl Stats {
    fn change(&self, change: impl FnOnce(&mut Counters)) {
        let mut counters = self.0.get();
        change(&mut counters);
        self.0.set(counters);
    }

    /// A batch got its place.
    pub fn appended(&self, messages: u32, bytes: usize, duplicate: bool) {
        self.change(|c| {
            c.bytes_received += bytes as u64;
            if duplicate {
                c.duplicates += 1;
            } else {
                c.messages_appended += u64::from(messages);
                c.batches_appended += 1;
            }
        });
    }

    /// Messages were acked.
    pub fn acked(&self, messages: u32) {
        self.change(|c| c.messages_acked += u64::from(messages));
    }

    /// A request or connection was refused.
    pub fn refused(&self) {
        self.change(|c| c.refusals += 1);
    }

    /// A block got its place in a file.
    pub fn written(&self, bytes: u64) {
        self.change(|c| {
            c.blocks_written += 1;
            c.log_bytes_written += bytes;
        });
    }

    /// Bytes were read from files.
    pub fn read_from_log(&self, bytes: usize) {
        self.change(|c| c.log_bytes_read += bytes as u64);
    }

    /// Bytes were sent to a reader.
    pub fn delivered(&self, bytes: usize) {
        self.change(|c| c.bytes_delivered += bytes as u64);
    }

    /// A tick was sent to a reader.
    pub fn ticked(&self) {
        self.change(|c| c.ticks_sent += 1);
    }

    /// A log failed.
    pub fn log_failed(&self) {
        self.change(|c| c.log_failures += 1);
    }

    /// A full disk stopped a pchannel.
    pub fn disk_full(&self) {
        self.change(|c| c.disk_full_stops += 1);
    }

    /// The timer had its turn, `gap_us` after the one before and `late_us` after it was due.
    pub fn timer_turn(&self, gap_us: u64, late_us: u64) {
        self.change(|c| {
            c.timer_turns += 1;
            c.timer_gap_max_us = c.timer_gap_max_us.max(gap_us);
            c.timer_late_max_us = c.timer_late_max_us.max(late_us);
        });
    }

    /// A number that differs whenever something came in or went out since it was read.
    pub fn activity(&self) -> u64 {
        let c = self.0.get();
        c.bytes_received + c.refusals + c.log_bytes_written + c.bytes_delivered
    }

    /// A copy; the largest gap and delay begin anew.
    pub fn publish(&self) -> Counters {
        let counters = self.0.get();
        self.change(|c| (c.timer_gap_max_us, c.timer_late_max_us) = (0, 0));
        counters
    }
}
