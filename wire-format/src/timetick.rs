//! The hybrid timestamp: 46 bits of physical milliseconds, 18 bits of logical counter
//! (the layout of Milvus's TSO, `pkg/util/tsoutil`).

use std::fmt;

use crate::ids::Millis;

/// Bits of the logical counter.
pub const LOGICAL_BITS: u32 = 18;
/// The largest logical counter.
pub const LOGICAL_MAX: u64 = (1 << LOGICAL_BITS) - 1;
/// The largest physical part, in milliseconds since the Unix epoch.
pub const PHYSICAL_MAX: Millis = Millis((1 << 46) - 1);

/// A point in the order of a pchannel's messages. Ordering is that of the bare number: physical first, then logical.
///
/// Every operation saturates at [`Timetick::MAX`]: time stands still there rather than wrap to the past.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timetick(pub u64);

impl Timetick {
    /// Before all messages.
    pub const ZERO: Self = Self(0);
    /// After all messages.
    pub const MAX: Self = Self(u64::MAX);

    /// The timetick at `physical` milliseconds with counter `logical`; either part saturates at its largest value.
    pub const fn new(physical: Millis, logical: u64) -> Self {
        let physical = if physical.0 > PHYSICAL_MAX.0 {
            PHYSICAL_MAX.0
        } else {
            physical.0
        };
        let logical = if logical > LOGICAL_MAX { LOGICAL_MAX } else { logical };
        Self(physical << LOGICAL_BITS | logical)
    }

    /// The first timetick of a millisecond.
    pub const fn from_physical(physical: Millis) -> Self {
        Self::new(physical, 0)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn physical(self) -> Millis {
        Millis(self.0 >> LOGICAL_BITS)
    }

    /// The counter within the millisecond.
    pub const fn logical(self) -> u64 {
        self.0 & LOGICAL_MAX
    }

    /// `count` steps later; a full logical counter carries into the physical part.
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }

    /// The timetick just before this one; [`Timetick::ZERO`] has none and stays.
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The bare number, for formats and metrics.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Timetick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timetick({}ms+{})", self.physical(), self.logical())
    }
}

impl fmt::Display for Timetick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_saturate() {
        let last = Timetick::new(Millis(u64::MAX), u64::MAX);
        assert_eq!(last, Timetick::MAX);
        assert_eq!(last.plus(1), Timetick::MAX);
        assert_eq!(Timetick::ZERO.previous(), Timetick::ZERO);
    }

    #[test]
    fn a_full_counter_carries_into_the_next_millisecond() {
        let end = Timetick::new(Millis(7), LOGICAL_MAX);
        assert_eq!(end.plus(1), Timetick::from_physical(Millis(8)));
    }

    proptest! {
        #[test]
        fn order_is_physical_then_logical(a in 0..=PHYSICAL_MAX.0, b in 0..=LOGICAL_MAX, c in 0..=PHYSICAL_MAX.0, d in 0..=LOGICAL_MAX) {
            let (x, y) = (Timetick::new(Millis(a), b), Timetick::new(Millis(c), d));
            prop_assert_eq!(x.cmp(&y), (a, b).cmp(&(c, d)));
            prop_assert_eq!((x.physical(), x.logical()), (Millis(a), b));
        }
    }
}
