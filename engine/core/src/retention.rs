//! What of a log may go: by size, by age, by request, and never what somebody still holds.

use wire_format::{Bytes, Millis, Offset, Timetick};

/// A segment file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Its number; grows by one from segment to segment.
    pub index: u64,
    /// Offset of its first message.
    pub base_offset: Offset,
    /// The offset after its last message.
    pub next_offset: Offset,
    /// The space it takes.
    pub bytes: Bytes,
    /// Timetick of its last message.
    pub last_timetick: Timetick,
    /// Whether it is full and closed. The open one is never dropped.
    pub sealed: bool,
}

/// When something may go. `None` sets no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RetentionLimits {
    /// Oldest segments go while all together take more than this.
    pub max_bytes: Option<Bytes>,
    /// Segments go whose last message is older than this.
    pub max_age: Option<Millis>,
    /// An explicit request: everything below this offset may go. It is exact to the message.
    pub truncate_to: Option<Offset>,
}

/// Somebody who still needs the log from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold<'a> {
    /// Who, as the answer to a truncation names it.
    pub name: &'a str,
    /// The oldest offset needed.
    pub offset: Offset,
}

/// What goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionPlan<'a> {
    /// The leading segments to drop: all their messages lie below `first_kept`. Store `first_kept` durably first.
    pub drop: &'a [SegmentFacts],
    /// The oldest offset that readers may still ask for. Never smaller than before.
    pub first_kept: Offset,
    /// What the limits alone would have kept from.
    pub wanted: Offset,
    /// The hold that kept more than wanted, if one did.
    pub held_by: Option<Hold<'a>>,
}

/// Decides what of a log goes. `segments` come in log order; `now` is the pchannel's time; `first_kept` what was decided
/// last time.
pub fn plan<'a>(
    now: Timetick,
    segments: &'a [SegmentFacts],
    first_kept: Offset,
    limits: &RetentionLimits,
    holds: &[Hold<'a>],
) -> RetentionPlan<'a> {
    let end = segments.last().map_or(first_kept, |last| last.next_offset);
    let outdated = outdated(now, segments, limits);
    let by_segment = outdated.last().map_or(first_kept, |last| last.next_offset);
    let asked = limits.truncate_to.map_or(first_kept, |to| to.min(end));
    let wanted = first_kept.max(by_segment).max(asked);

    let hold = holds
        .iter()
        .min_by_key(|hold| hold.offset)
        .copied()
        .filter(|hold| hold.offset < wanted);
    let bound = hold.map_or(wanted, |hold| hold.offset);
    let by_segment = outdated
        .iter()
        .rev()
        .map(|segment| segment.next_offset)
        .find(|next| *next <= bound);
    let granted = first_kept.max(by_segment.unwrap_or(first_kept)).max(asked.min(bound));

    let drop = segments
        .iter()
        .take_while(|segment| segment.sealed && segment.next_offset <= granted)
        .count();
    let held_by = hold.filter(|_| granted < wanted);
    RetentionPlan {
        drop: &segments[..drop],
        first_kept: granted,
        wanted,
        held_by,
    }
}

/// The leading sealed segments that size or age let go.
fn outdated<'a>(now: Timetick, segments: &'a [SegmentFacts], limits: &RetentionLimits) -> &'a [SegmentFacts] {
    let mut bytes = segments
        .iter()
        .fold(0u64, |sum, segment| sum.saturating_add(segment.bytes.0));
    let mut count = 0;
    for segment in segments.iter().take_while(|segment| segment.sealed) {
        let age = now.physical().0.saturating_sub(segment.last_timetick.physical().0);
        let large = limits.max_bytes.is_some_and(|max| bytes > max.0);
        let old = limits.max_age.is_some_and(|max| age > max.0);
        if !large && !old {
            break;
        }
        bytes -= segment.bytes.0.min(bytes);
        count += 1;
    }
    &segments[..count]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segments(count: u64) -> Vec<SegmentFacts> {
        (0..count)
            .map(|index| SegmentFacts {
                index,
                base_offset: Offset(index * 100),
                next_offset: Offset(index * 100 + 100),
                bytes: Bytes(1_000),
                last_timetick: Timetick::from_physical(Millis(10_000 * (index + 1))),
                sealed: index + 1 < count,
            })
            .collect()
    }

    fn truncate(to: u64) -> RetentionLimits {
        RetentionLimits {
            truncate_to: Some(Offset(to)),
            ..RetentionLimits::default()
        }
    }

    const NOW: Timetick = Timetick::ZERO;

    #[test]
    fn a_truncation_is_held_by_whoever_needs_most() {
        let segments = segments(12);
        let hold = |name, offset| Hold {
            name,
            offset: Offset(offset),
        };
        let mut holds = vec![
            hold("recovery", 900),
            hold("row flusher", 800),
            hold("delete flusher", 400),
            hold("reader r7", 300),
        ];
        let held = plan(NOW, &segments, Offset::ZERO, &truncate(1_000), &holds);
        assert_eq!(
            (held.first_kept, held.wanted, held.drop.len()),
            (Offset(300), Offset(1_000), 3)
        );
        assert_eq!(held.held_by, Some(hold("reader r7", 300)));
        holds.pop();
        let held = plan(NOW, &segments, held.first_kept, &truncate(1_000), &holds);
        assert_eq!(
            (held.first_kept, held.held_by),
            (Offset(400), Some(hold("delete flusher", 400)))
        );
        let free = plan(NOW, &segments, held.first_kept, &truncate(1_000), &[]);
        assert_eq!(
            (free.first_kept, free.drop.len(), free.held_by),
            (Offset(1_000), 10, None)
        );
    }

    #[test]
    fn a_truncation_is_exact_and_never_goes_back_or_past_the_end() {
        let segments = segments(3);
        let first = plan(NOW, &segments, Offset::ZERO, &truncate(150), &[]);
        assert_eq!((first.first_kept, first.drop.len()), (Offset(150), 1));
        assert_eq!(
            plan(NOW, &segments, Offset(150), &truncate(20), &[]).first_kept,
            Offset(150)
        );
        let all = plan(NOW, &segments, Offset::ZERO, &truncate(5_000), &[]);
        assert_eq!((all.first_kept, all.drop.len()), (Offset(300), 2));
        assert_eq!(
            plan(NOW, &segments, Offset::ZERO, &truncate(0), &[]).first_kept,
            Offset::ZERO
        );
        let late = Hold {
            name: "late",
            offset: Offset(10),
        };
        assert_eq!(
            plan(NOW, &segments, Offset(150), &truncate(200), &[late]).first_kept,
            Offset(150)
        );
        assert_eq!(plan(NOW, &[], Offset(7), &truncate(9), &[]).first_kept, Offset(7));
    }

    #[test]
    fn size_and_age_drop_whole_sealed_segments() {
        let segments = segments(5);
        let size = RetentionLimits {
            max_bytes: Some(Bytes(3_500)),
            ..RetentionLimits::default()
        };
        assert_eq!(plan(NOW, &segments, Offset::ZERO, &size, &[]).first_kept, Offset(200));
        let none = RetentionLimits {
            max_bytes: Some(Bytes(0)),
            ..RetentionLimits::default()
        };
        assert_eq!(plan(NOW, &segments, Offset::ZERO, &none, &[]).drop.len(), 4);
        let age = RetentionLimits {
            max_age: Some(Millis(15_000)),
            ..RetentionLimits::default()
        };
        let now = Timetick::from_physical(Millis(45_001));
        assert_eq!(plan(now, &segments, Offset::ZERO, &age, &[]).first_kept, Offset(300));
        let hold = Hold {
            name: "r",
            offset: Offset(250),
        };
        let held = plan(now, &segments, Offset::ZERO, &age, &[hold]);
        assert_eq!(
            (held.first_kept, held.drop.len(), held.held_by),
            (Offset(200), 2, Some(hold))
        );
    }

    proptest! {
        #[test]
        fn nothing_held_or_open_is_dropped(
            count in 0u64..10, kept in 0u64..1_000, to in prop::option::of(0u64..2_000), max in prop::option::of(0u64..12_000),
            age in prop::option::of(0u64..200_000), now in 0u64..200_000, holds in prop::collection::vec(0u64..1_200, 0..4)
        ) {
            let segments = segments(count);
            let kept = Offset(kept.min(count * 100));
            let holds: Vec<_> = holds.into_iter().map(|offset| Hold { name: "h", offset: Offset(offset) }).collect();
            let limits = RetentionLimits { max_bytes: max.map(Bytes), max_age: age.map(Millis), truncate_to: to.map(Offset) };
            let now = Timetick::from_physical(Millis(now));
            let plan = plan(now, &segments, kept, &limits, &holds);
            prop_assert!(plan.first_kept >= kept && plan.first_kept <= plan.wanted);
            prop_assert!(plan.drop.iter().all(|s| s.sealed && s.next_offset <= plan.first_kept));
            prop_assert!(holds.iter().all(|hold| plan.first_kept <= hold.offset.max(kept)));
            prop_assert_eq!(plan.held_by.is_some(), plan.first_kept < plan.wanted);
            // Dropped space is all that may go.
            prop_assert!(segments.get(plan.drop.len()).is_none_or(|s| !s.sealed || s.next_offset > plan.first_kept));
        }
    }
}
