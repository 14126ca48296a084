//! The producers' table against a model that remembers everything, and its bounds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;

use lognode_core::{BatchKey, BatchSnapshot, Dedupe, DedupeLimits, DedupeOutcome, DedupeRefusal, ProducerSnapshot};
use proptest::prelude::*;
use wire_format::{Offset, ProducerEpoch, ProducerId, Sequence, Timetick};

const LIMITS: DedupeLimits = DedupeLimits {
    window: 3,
    windows: 8,
    producers: 16,
};

fn key(producer: u64, epoch: u32, first: u64, count: u32) -> BatchKey {
    BatchKey {
        producer: ProducerId(producer),
        epoch: ProducerEpoch(epoch),
        first_sequence: Sequence(first),
        count,
    }
}

/// Checks and, if fresh, records a batch at `offset`; its timetick is 1,000 above the offset.
fn put(table: &mut Dedupe, key: BatchKey, offset: u64) -> Result<DedupeOutcome, DedupeRefusal> {
    let outcome = table.check(&key)?;
    if outcome == DedupeOutcome::Fresh {
        table.record(&key, Offset(offset), Timetick(1_000 + offset));
    }
    Ok(outcome)
}

fn duplicate(offset: u64) -> Result<DedupeOutcome, DedupeRefusal> {
    Ok(DedupeOutcome::Duplicate {
        base_offset: Offset(offset),
        first_timetick: Timetick(1_000 + offset),
    })
}

#[test]
fn each_kind_of_answer() {
    let mut table = Dedupe::new(LIMITS);
    for (first, offset) in [(0, 10), (2, 20), (4, 30), (6, 40)] {
        assert_eq!(put(&mut table, key(7, 1, first, 2), offset), Ok(DedupeOutcome::Fresh));
    }
    let producer = ProducerId(7);
    assert_eq!(put(&mut table, key(7, 1, 6, 2), 0), duplicate(40));
    assert_eq!(put(&mut table, key(7, 1, 2, 2), 0), duplicate(20));
    assert_eq!(
        put(&mut table, key(7, 1, 0, 2), 0),
        Err(DedupeRefusal::WindowOver {
            producer,
            first_sequence: Sequence(0),
            oldest: Some(Sequence(2))
        })
    );
    assert_eq!(
        put(&mut table, key(7, 1, 9, 1), 0),
        Err(DedupeRefusal::SequenceGap {
            producer,
            first_sequence: Sequence(9),
            expected: Sequence(8)
        })
    );
    for (first, count) in [(6, 3), (6, 1), (7, 1), (5, 2), (3, 9)] {
        let refused = put(&mut table, key(7, 1, first, count), 0);
        assert!(
            matches!(refused, Err(DedupeRefusal::Overlap { .. })),
            "{first}+{count}: {refused:?}"
        );
    }
    assert!(matches!(
        put(&mut table, key(7, 1, u64::MAX, 1), 0),
        Err(DedupeRefusal::SequencesExhausted { .. })
    ));
}

#[test]
fn a_larger_epoch_starts_anew_and_fences_the_smaller() {
    let mut table = Dedupe::new(LIMITS);
    put(&mut table, key(7, 1, 0, 2), 10).unwrap();
    assert!(matches!(
        put(&mut table, key(7, 2, 2, 1), 0),
        Err(DedupeRefusal::SequenceGap {
            expected: Sequence(0),
            ..
        })
    ));
    assert_eq!(put(&mut table, key(7, 2, 0, 1), 20), Ok(DedupeOutcome::Fresh));
    assert_eq!(
        put(&mut table, key(7, 1, 2, 1), 0),
        Err(DedupeRefusal::StaleEpoch {
            producer: ProducerId(7),
            epoch: ProducerEpoch(1),
            current: ProducerEpoch(2)
        })
    );
    assert_eq!(put(&mut table, key(7, 2, 0, 1), 0), duplicate(20));
}

#[test]
fn producer_zero_is_never_remembered() {
    let mut table = Dedupe::new(LIMITS);
    assert_eq!(put(&mut table, key(0, 0, 0, 1), 1), Ok(DedupeOutcome::Fresh));
    assert_eq!(put(&mut table, key(0, 0, 0, 1), 2), Ok(DedupeOutcome::Fresh));
    assert_eq!(table.producers(), 0);
}

#[test]
fn memory_is_bounded_and_the_refusal_tells_what_to_do() {
    let mut table = Dedupe::new(LIMITS);
    for producer in 1..=1_000 {
        put(&mut table, key(producer, 1, 0, 1), producer).unwrap();
        assert!(table.windows() <= 8 && table.producers() <= 16);
    }
    assert_eq!(put(&mut table, key(1_000, 1, 0, 1), 0), duplicate(1_000));
    // Its batches are forgotten, its sequence is not: a retry is not taken for new, and a new batch still passes.
    let refused = put(&mut table, key(990, 1, 0, 1), 0).unwrap_err();
    assert_eq!(
        refused,
        DedupeRefusal::WindowOver {
            producer: ProducerId(990),
            first_sequence: Sequence(0),
            oldest: None
        }
    );
    assert!(refused.to_string().contains("larger epoch"), "{refused}");
    assert_eq!(put(&mut table, key(990, 1, 1, 1), 5_000), Ok(DedupeOutcome::Fresh));
    // Wholly forgotten.
    assert!(matches!(
        put(&mut table, key(3, 1, 1, 1), 0),
        Err(DedupeRefusal::WindowOver { oldest: None, .. })
    ));
}

#[test]
fn the_least_recently_used_producer_goes_first() {
    let mut table = Dedupe::new(LIMITS);
    for producer in 1..=8 {
        put(&mut table, key(producer, 1, 0, 1), producer).unwrap();
    }
    assert_eq!(put(&mut table, key(1, 1, 0, 1), 0), duplicate(1)); // a retry is a use
    put(&mut table, key(9, 1, 0, 1), 9).unwrap();
    assert_eq!(put(&mut table, key(1, 1, 0, 1), 0), duplicate(1));
    assert!(matches!(
        put(&mut table, key(2, 1, 0, 1), 0),
        Err(DedupeRefusal::WindowOver { .. })
    ));
}

#[test]
fn a_snapshot_leaves_out_what_a_crash_may_lose() {
    let mut table = Dedupe::new(LIMITS);
    for (first, offset) in [(0, 10), (2, 20), (4, 30)] {
        put(&mut table, key(7, 1, first, 2), offset).unwrap();
    }
    let snapshot = table.snapshot(Offset(20));
    assert_eq!((snapshot[0].next_sequence, snapshot[0].batches.len()), (Sequence(2), 1));
    let mut restored = Dedupe::restore(LIMITS, snapshot).unwrap();
    assert_eq!(put(&mut restored, key(7, 1, 0, 2), 0), duplicate(10));
    assert_eq!(
        put(&mut restored, key(7, 1, 2, 2), 99),
        Ok(DedupeOutcome::Fresh),
        "lost with the crash: stored again"
    );
}

#[test]
fn damaged_snapshots_are_refused() {
    let batch = |first, offset| BatchSnapshot {
        first_sequence: Sequence(first),
        count: 2,
        base_offset: Offset(offset),
        first_timetick: Timetick(9),
    };
    let entry = |producer, next, batches| ProducerSnapshot {
        producer: ProducerId(producer),
        epoch: ProducerEpoch(1),
        next_sequence: Sequence(next),
        batches,
    };
    let bad = [
        vec![entry(7, 5, vec![batch(0, 0), batch(3, 5)])],
        vec![entry(7, 5, vec![batch(0, 0), batch(2, 5)])],
        vec![entry(7, 4, vec![batch(0, 5), batch(2, 6)])],
        vec![entry(7, 4, vec![]), entry(7, 4, vec![])],
        vec![entry(0, 4, vec![])],
    ];
    for snapshot in bad {
        assert!(Dedupe::restore(LIMITS, snapshot.clone()).is_err(), "{snapshot:?}");
    }
    let many = (1..=100)
        .map(|producer| entry(producer, 4, vec![batch(0, 1), batch(2, 3)]))
        .collect();
    let table = Dedupe::restore(LIMITS, many).unwrap();
    assert!(table.windows() <= 8 && table.producers() <= 16);
}

proptest! {
    // Producers with at most `window` unanswered batches, any mix of new batches, retries, restarts with snapshot and
    // replay: nothing is fresh twice, and each retry gets its first place.
    #[test]
    fn a_retry_within_the_window_always_gets_its_first_place(
        steps in prop::collection::vec((1u64..6, 0u8..10, 1u32..4), 1..300)
    ) {
        let mut table = Dedupe::new(LIMITS);
        let mut sent: HashMap<u64, Vec<(BatchKey, u64)>> = HashMap::new();
        let mut log: Vec<(BatchKey, u64)> = Vec::new();
        let (mut offset, mut checkpoint) = (0u64, (0u64, Vec::new()));
        for (producer, kind, count) in steps {
            let batches = sent.entry(producer).or_default();
            match kind {
                0..=4 => {
                    let next = batches.last().map_or(0, |(last, _)| last.first_sequence.0 + u64::from(last.count));
                    let batch = key(producer, 1, next, count);
                    prop_assert_eq!(put(&mut table, batch, offset), Ok(DedupeOutcome::Fresh));
                    batches.push((batch, offset));
                    log.push((batch, offset));
                    offset += u64::from(count);
                }
                5..=7 => for (batch, offset) in batches.iter().rev().take(3) {
                    prop_assert_eq!(put(&mut table, *batch, 0), duplicate(*offset));
                },
                8 => checkpoint = (offset, table.snapshot(Offset(offset))),
                _ => {
                    table = Dedupe::restore(LIMITS, checkpoint.1.clone()).unwrap();
                    for (batch, offset) in log.iter().filter(|(_, offset)| *offset >= checkpoint.0) {
                        table.replay(batch, Offset(*offset), Timetick(1_000 + offset));
                    }
                }
            }
        }
    }

    // Whatever anybody sends: no panic, bounds hold, and what is called fresh continues its epoch exactly.
    #[test]
    fn any_stream_keeps_the_bounds(
        steps in prop::collection::vec((0u64..40, 0u32..4, 0u64..12, 0u32..5), 1..400)
    ) {
        let mut table = Dedupe::new(LIMITS);
        let mut fresh: HashMap<(u64, u32), u64> = HashMap::new();
        for (at, (producer, epoch, first, count)) in steps.into_iter().enumerate() {
            let outcome = put(&mut table, key(producer, epoch, first, count.max(1)), at as u64 * 5);
            prop_assert!(table.windows() <= 8 && table.producers() <= 16);
            if outcome == Ok(DedupeOutcome::Fresh) && producer != 0 {
                let next = fresh.insert((producer, epoch), first + u64::from(count.max(1)));
                prop_assert!(first == 0 || next == Some(first), "{producer} {epoch} {first} after {next:?}");
            }
        }
    }
}
