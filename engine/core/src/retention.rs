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
