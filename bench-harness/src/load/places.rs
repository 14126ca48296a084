//! Proof that the places in one pchannel's log were given out once each and without a gap.

use wire_format::Offset;

use crate::error::BenchError;

/// The places of acked batches in one pchannel. All batches have the same number of messages.
#[derive(Debug)]
pub(super) struct Places {
    pchannel: String,
    batch: u64,
    /// One bit for each batch's place.
    taken: Vec<u64>,
    /// When each batch was acked, if somebody asks.
    acked_at_ns: Option<Vec<u64>>,
    batches: u64,
    /// The highest place taken, plus one.
    behind_last: u64,
    /// Messages that were there before.
    before: u64,
}

impl Places {
    /// Nothing acked yet behind `before`, where the log ends now.
    pub(super) fn new(pchannel: String, batch: u32, before: Offset, keep_times: bool) -> Self {
        Self {
            pchannel,
            batch: u64::from(batch.max(1)),
            taken: Vec::new(),
            acked_at_ns: keep_times.then(Vec::new),
            batches: 0,
            behind_last: 0,
            before: before.get(),
        }
    }

    /// Notes an ack; every batch must have a place of its own.
    pub(super) fn note(&mut self, base: Offset, count: u32, at_ns: u64) -> Result<(), BenchError> {
        let relative = base.get().checked_sub(self.before);
        let aligned = relative.filter(|r| r % self.batch == 0 && u64::from(count) == self.batch);
        let Some(place) = aligned.map(|r| r / self.batch) else {
            return Err(self.fault(format!(
                "a batch of {} was acked as {count} messages at offset {base}",
                self.batch
            )));
        };
        let (word, bit) = ((place / 64) as usize, 1 << (place % 64));
        // Acks can't run ahead of what was sent by more than what is in flight.
        if word > self.taken.len() + (1 << 16) {
            return Err(self.fault(format!(
                "offset {base} was acked after only {} messages",
                self.messages()
            )));
        }
        if word >= self.taken.len() {
            self.taken.resize(word + 1, 0);
        }
        if self.taken[word] & bit != 0 {
            return Err(self.fault(format!("offset {base} was acked twice")));
        }
        self.taken[word] |= bit;
        self.batches += 1;
        self.behind_last = self.behind_last.max(place + 1);
        if let Some(times) = &mut self.acked_at_ns {
            let index = place as usize;
            if index >= times.len() {
                times.resize(index + 1, 0);
            }
            times[index] = at_ns;
        }
        Ok(())
    }

    /// When the batch at `base` was acked; `None`: not yet, or not kept.
    pub(super) fn acked_at_ns(&self, base: Offset) -> Option<u64> {
        let place = base.get().checked_sub(self.before)? / self.batch;
        let at = *self.acked_at_ns.as_ref()?.get(place as usize)?;
        (at > 0).then_some(at)
    }

    /// Messages acked.
    pub(super) fn messages(&self) -> u64 {
        self.batches * self.batch
    }

    /// The offset behind everything acked.
    pub(super) fn end(&self) -> Offset {
        Offset(self.before + self.behind_last * self.batch)
    }

    /// With nothing in flight: no gap among the acked places, and the log ends just behind them.
    pub(super) fn check_dense(&self, log_end: Offset) -> Result<(), BenchError> {
        if self.batches != self.behind_last || log_end != self.end() {
            return Err(self.fault(format!(
                "{} messages were acked, the highest ends at {}, and the log at {log_end}",
                self.messages(),
                self.end()
            )));
        }
        Ok(())
    }

    /// After the server's process was replaced: goes on from `log_end`, which must lie at or behind all that was acked.
    pub(super) fn going_on(&self, log_end: Offset) -> Result<Self, BenchError> {
        if self.batches != self.behind_last || log_end < self.end() {
            return Err(self.fault(format!(
                "{} messages were acked before the server ended, the highest ends at {}, and the log at {log_end}",
                self.messages(),
                self.end()
            )));
        }
        Ok(Self {
            pchannel: self.pchannel.clone(),
            batch: self.batch,
            taken: Vec::new(),
            acked_at_ns: self.acked_at_ns.is_some().then(Vec::new),
            batches: 0,
            behind_last: 0,
            before: log_end.get(),
        })
    }

    fn fault(&self, what: String) -> BenchError {
        BenchError::Check(format!("pchannel {}: {what}", self.pchannel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_a_gap_and_a_wrong_end_are_seen() {
        let mut places = Places::new("p".to_owned(), 10, Offset(5), true);
        places.note(Offset(15), 10, 7).unwrap();
        assert!(places.check_dense(Offset(25)).is_err(), "a gap");
        assert!(places.note(Offset(15), 10, 8).is_err(), "twice");
        assert!(places.note(Offset(26), 10, 8).is_err(), "between two places");
        assert!(places.note(Offset(25), 9, 8).is_err(), "another count");
        assert!(places.note(Offset(0), 10, 8).is_err(), "before the beginning");
        assert!(places.note(Offset(1 << 50), 10, 8).is_err(), "far ahead");
        places.note(Offset(5), 10, 9).unwrap();
        places.check_dense(Offset(25)).unwrap();
        assert!(places.check_dense(Offset(35)).is_err(), "something that was not acked");
        assert!(places.going_on(Offset(24)).is_err(), "something acked is gone");
        assert_eq!(places.going_on(Offset(35)).unwrap().end(), Offset(35));
        assert_eq!(places.messages(), 20);
        assert_eq!(places.acked_at_ns(Offset(18)), Some(7));
        assert_eq!(places.acked_at_ns(Offset(25)), None);
    }
}
