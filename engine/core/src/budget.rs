//! Memory as a budget, not an outcome: bytes are reserved before they are allocated.

use wire_format::Bytes;

/// Names a part of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartId(usize);

/// What one part uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name, as metrics and errors show it.
    pub name: &'static str,
    /// Bytes reserved now.
    pub used: Bytes,
    /// The most it had reserved at once.
    pub peak: Bytes,
}

/// There is no room: slow down, give something back, try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{part} asked for {asked} bytes where {free} of the shard's {total} are free. Slow down and try again, or raise the \
     memory budget of the shards"
)]
pub struct OverBudget {
    /// The part that asked.
    pub part: &'static str,
    /// What it asked for.
    pub asked: Bytes,
    /// What was free.
    pub free: Bytes,
    /// The whole budget.
    pub total: Bytes,
}

/// More was given back than was taken: a fault of the caller's bookkeeping. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part} gave back {released} bytes but holds {used}. This is a fault of the program: please report it")]
pub struct ReleasedTooMuch {
    /// The part that gave back.
    pub part: &'static str,
    /// What it gave back.
    pub released: Bytes,
    /// What it holds.
    pub used: Bytes,
}

/// The memory of one shard, shared by named parts. Lives on that shard.
#[derive(Debug)]
pub struct MemoryBudget {
    total: u64,
    used: u64,
    peak: u64,
    parts: Vec<Part>,
}

impl MemoryBudget {
    /// An empty budget of `total` bytes.
    pub fn new(total: Bytes) -> Self {
        Self {
            total: total.0,
            used: 0,
            peak: 0,
            parts: Vec::new(),
        }
    }

    /// Adds a part.
    pub fn add_part(&mut self, name: &'static str) -> PartId {
        self.parts.push(Part {
            name,
            used: Bytes::ZERO,
            peak: Bytes::ZERO,
        });
        PartId(self.parts.len() - 1)
    }

    /// Takes `bytes` for a part, or nothing.
    pub fn try_reserve(&mut self, part: PartId, bytes: Bytes) -> Result<(), OverBudget> {
        let (free, total) = (self.free(), Bytes(self.total));
        let Some(entry) = self.parts.get_mut(part.0) else {
            return Err(OverBudget {
                part: "a part of another budget",
                asked: bytes,
                free,
                total,
            });
        };
        if bytes > free {
            return Err(OverBudget {
                part: entry.name,
                asked: bytes,
                free,
                total,
            });
        }
        // Neither sum can overflow: both stay within `total`.
        entry.used.0 += bytes.0;
        entry.peak = entry.peak.max(entry.used);
        self.used += bytes.0;
        self.peak = self.peak.max(self.used);
        Ok(())
    }

    /// Gives `bytes` of a part back.
    pub fn release(&mut self, part: PartId, bytes: Bytes) -> Result<(), ReleasedTooMuch> {
        let Some(entry) = self.parts.get_mut(part.0) else {
            return Err(ReleasedTooMuch {
                part: "a part of another budget",
                released: bytes,
                used: Bytes::ZERO,
            });
        };
        let Some(left) = entry.used.0.checked_sub(bytes.0) else {
            return Err(ReleasedTooMuch {
                part: entry.name,
                released: bytes,
                used: entry.used,
            });
        };
        entry.used = Bytes(left);
        self.used -= bytes.0;
        Ok(())
    }

    /// Bytes not reserved.
    pub fn free(&self) -> Bytes {
        Bytes(self.total - self.used)
    }

    /// Bytes reserved by all parts.
    pub fn used(&self) -> Bytes {
        Bytes(self.used)
    }

    /// Bytes reserved by one part.
    pub fn used_by(&self, part: PartId) -> Bytes {
        self.parts.get(part.0).map_or(Bytes::ZERO, |part| part.used)
    }

    /// The most that was reserved at once.
    pub fn peak(&self) -> Bytes {
        Bytes(self.peak)
    }

    /// The whole budget.
    pub fn total(&self) -> Bytes {
        Bytes(self.total)
    }

    /// The parts, for metrics.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_reservation_over_the_total_takes_nothing_and_says_why() {
        let mut budget = MemoryBudget::new(Bytes(100));
        let (tail, blocks) = (budget.add_part("tail"), budget.add_part("blocks"));
        budget.try_reserve(tail, Bytes(60)).unwrap();
        let refused = budget.try_reserve(blocks, Bytes(41));
        assert_eq!(
            refused,
            Err(OverBudget {
                part: "blocks",
                asked: Bytes(41),
                free: Bytes(40),
                total: Bytes(100)
            })
        );
        budget.try_reserve(blocks, Bytes(40)).unwrap();
        assert!(budget.try_reserve(blocks, Bytes(u64::MAX)).is_err());
        assert_eq!((budget.free(), budget.used_by(blocks)), (Bytes::ZERO, Bytes(40)));
    }

    #[test]
    fn giving_back_too_much_is_an_error_and_changes_nothing() {
        let mut budget = MemoryBudget::new(Bytes(100));
        let (tail, blocks) = (budget.add_part("tail"), budget.add_part("blocks"));
        budget.try_reserve(tail, Bytes(60)).unwrap();
        assert!(budget.release(blocks, Bytes(1)).is_err());
        assert!(budget.release(tail, Bytes(61)).is_err());
        assert!(budget.release(PartId(9), Bytes(1)).is_err() && budget.try_reserve(PartId(9), Bytes(0)).is_err());
        budget.release(tail, Bytes(60)).unwrap();
        assert_eq!(
            (budget.used(), budget.peak(), budget.parts()[0].peak),
            (Bytes::ZERO, Bytes(60), Bytes(60))
        );
    }

    proptest! {
        #[test]
        fn the_sum_of_the_parts_is_the_whole(steps in prop::collection::vec((0usize..3, any::<bool>(), 0u64..80), 0..200)) {
            let mut budget = MemoryBudget::new(Bytes(100));
            let parts = [budget.add_part("a"), budget.add_part("b"), budget.add_part("c")];
            let mut model = [0u64; 3];
            for (part, reserve, bytes) in steps {
                let sum: u64 = model.iter().sum();
                if reserve {
                    let done = budget.try_reserve(parts[part], Bytes(bytes)).is_ok();
                    prop_assert_eq!(done, sum + bytes <= 100);
                    model[part] += if done { bytes } else { 0 };
                } else {
                    let done = budget.release(parts[part], Bytes(bytes)).is_ok();
                    prop_assert_eq!(done, bytes <= model[part]);
                    model[part] -= if done { bytes } else { 0 };
                }
                prop_assert_eq!(budget.used().0, model.iter().sum::<u64>());
                prop_assert!((0..3).all(|part| budget.used_by(parts[part]).0 == model[part]));
                prop_assert!(budget.peak() >= budget.used() && budget.peak().0 <= 100);
            }
        }
    }
}
