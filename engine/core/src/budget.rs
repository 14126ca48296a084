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
