//! Opening a log: who may, from where it is read, and which orders it must keep.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use lognode_core::{
    AppendRequest, BatchFacts, Dedupe, DedupeLimits, LogFacts, OpenError, Replay, ReplayError, Sequenced, Start,
};
use proptest::prelude::*;
use wire_format::{Offset, ProducerEpoch, ProducerId, Sequence, Term, Timetick};

fn facts(first_kept: u64, next: u64, checkpoint: Option<u64>) -> LogFacts {
    LogFacts {
        first_kept: Offset(first_kept),
        next_offset: Offset(next),
        last_timetick: Timetick(10_000 + next),
        last_term: Term(5),
        checkpoint_upto: checkpoint.map(Offset),
    }
}

fn batch(base: u64, count: u32) -> BatchFacts {
    BatchFacts {
        base_offset: Offset(base),
        count,
        term: Term(5),
        first_timetick: Timetick(10_000 + base),
        last_timetick: Timetick(10_000 + base + u64::from(count) - 1),
        promised_timetick: Timetick::ZERO,
        producer: ProducerId(7),
        epoch: ProducerEpoch(1),
        first_sequence: Sequence(base),
    }
}

fn replay(log: &LogFacts) -> Replay {
    Start::plan(log, Term(6))
        .unwrap()
        .replay(Dedupe::new(DedupeLimits::default()))
}

#[test]
fn only_a_larger_term_may_open() {
    let log = facts(0, 10, None);
    for term in [Term(4), Term(5)] {
        let last_term = Term(5);
        assert_eq!(Start::plan(&log, term), Err(OpenError::StaleTerm { term, last_term }));
    }
    assert_eq!(Start::plan(&log, Term(6)).unwrap().term, Term(6));
    assert!(Start::plan(&LogFacts::default(), Term(1)).is_ok());
}

#[test]
fn reading_starts_at_the_checkpoint_or_at_what_is_kept() {
    let from = |log: LogFacts| Start::plan(&log, Term(6)).map(|plan| plan.replay_from.0);
    assert_eq!(from(facts(2, 10, None)), Ok(2));
    assert_eq!(from(facts(2, 10, Some(7))), Ok(7));
    assert_eq!(from(facts(9, 10, Some(7))), Ok(9));
    assert!(matches!(
        from(facts(2, 10, Some(11))),
        Err(OpenError::EndBelowCheckpoint { .. })
    ));
    assert!(matches!(
        from(facts(11, 10, None)),
        Err(OpenError::EndBelowStart { .. })
    ));
}

#[test]
fn a_whole_log_gives_a_sequencer_that_goes_on() {
    let mut replay = replay(&facts(0, 5, None));
    replay.batch(&batch(0, 3)).unwrap();
    replay.batch(&batch(3, 2)).unwrap();
    assert_eq!(replay.batches(), 2);
    let mut sequencer = replay.finish().unwrap();
    let request = |first, count| AppendRequest {
        producer: ProducerId(7),
        epoch: ProducerEpoch(1),
        first_sequence: Sequence(first),
        count,
    };
    let retry = sequencer.append(Timetick::ZERO, &request(3, 2)).unwrap();
    assert!(matches!(retry, Sequenced::Duplicate(position) if position.base_offset == Offset(3)));
    let fresh = sequencer.append(Timetick::ZERO, &request(5, 1)).unwrap().position();
    // Above the largest stored timetick, which lies above the last message's.
    assert_eq!((fresh.base_offset, fresh.first_timetick), (Offset(5), Timetick(10_006)));
    assert_eq!(sequencer.term(), Term(6));
}

#[test]
fn the_first_batch_may_begin_below_what_is_kept() {
    let mut first = replay(&facts(2, 5, None));
    first.batch(&batch(0, 5)).unwrap();
    assert_eq!(first.finish().unwrap().next_offset(), Offset(5));
    assert!(matches!(
        replay(&facts(2, 5, None)).batch(&batch(0, 2)),
        Err(ReplayError::NotDense { .. })
    ));
    assert!(matches!(
        replay(&facts(2, 5, None)).batch(&batch(3, 2)),
        Err(ReplayError::NotDense { .. })
    ));
}

#[test]
fn each_broken_order_is_named_with_its_offset() {
    let second = |change: fn(&mut BatchFacts)| {
        let mut replay = replay(&facts(0, 10, None));
        replay.batch(&batch(0, 5)).unwrap();
        let mut second = batch(5, 5);
        change(&mut second);
        replay
            .batch(&second)
            .map(|()| replay.finish().map(drop))
            .and_then(|end| end)
    };
    assert_eq!(second(|_| {}), Ok(()));
    let dense = ReplayError::NotDense {
        expected: Offset(5),
        found: Offset(6),
    };
    assert_eq!(second(|batch| batch.base_offset = Offset(6)), Err(dense));
    assert!(dense.to_string().contains("offset 6") && dense.to_string().contains("lognode verify"));
    assert!(matches!(
        second(|batch| batch.base_offset = Offset(4)),
        Err(ReplayError::NotDense { .. })
    ));
    assert_eq!(
        second(|batch| batch.count = 0),
        Err(ReplayError::Empty { offset: Offset(5) })
    );
    let time = second(|batch| batch.first_timetick = Timetick(10_004));
    assert!(matches!(
        time,
        Err(ReplayError::TimeNotGrowing { offset: Offset(5), .. })
    ));
    let inside = second(|batch| batch.last_timetick = Timetick(10_008));
    assert!(matches!(inside, Err(ReplayError::TimeNotGrowing { .. })));
    let promised = second(|batch| batch.promised_timetick = Timetick(10_005));
    assert!(matches!(promised, Err(ReplayError::TimeNotGrowing { .. })));
    assert!(matches!(
        second(|batch| batch.term = Term(4)),
        Err(ReplayError::TermBack { .. })
    ));
    assert!(matches!(
        second(|batch| batch.term = Term(6)),
        Err(ReplayError::TermBack { .. })
    ));
    assert!(matches!(
        second(|batch| batch.count = 4),
        Err(ReplayError::WrongEnd { .. })
    ));
    assert!(matches!(
        second(|batch| (batch.count, batch.last_timetick) = (6, Timetick(10_010))),
        Err(ReplayError::WrongEnd { .. })
    ));
}

#[test]
fn behind_damage_the_order_still_holds() {
    let mut replay = replay(&facts(0, 10, None));
    replay.batch(&batch(0, 3)).unwrap();
    let back = replay.resume_behind_damage(&batch(2, 3));
    assert_eq!(
        back,
        Err(ReplayError::NotDense {
            expected: Offset(3),
            found: Offset(2)
        })
    );
    let early = BatchFacts {
        first_timetick: Timetick(10_002),
        ..batch(5, 2)
    };
    assert!(matches!(
        replay.resume_behind_damage(&early),
        Err(ReplayError::TimeNotGrowing { .. })
    ));
    replay.resume_behind_damage(&batch(5, 2)).unwrap();
    assert!(matches!(replay.batch(&batch(8, 2)), Err(ReplayError::NotDense { .. })));
    replay.batch(&batch(7, 3)).unwrap();
    assert_eq!(replay.finish().unwrap().next_offset(), Offset(10));
}

proptest! {
    // A log of any shape, cut anywhere by retention and checkpoint, opens; one with a batch missing does not.
    #[test]
    fn dense_logs_open_and_others_do_not(
        counts in prop::collection::vec(1u32..6, 1..40), from in 0u64..200, missing in 0usize..40
    ) {
        let mut next = 0;
        let batches: Vec<_> = counts.iter().map(|count| { next += u64::from(*count); batch(next - u64::from(*count), *count) }).collect();
        let log = facts(from.min(next), next, None);
        let read: Vec<_> = batches.iter().filter(|batch| batch.base_offset.0 + u64::from(batch.count) > from.min(next)).collect();
        let fold = |batches: Vec<&BatchFacts>| {
            let mut replay = replay(&log);
            batches.into_iter().try_for_each(|batch| replay.batch(batch))?;
            replay.finish()
        };
        let sequencer = fold(read.clone()).unwrap();
        prop_assert_eq!(sequencer.next_offset(), Offset(next));
        prop_assert!(sequencer.last_timetick() >= log.last_timetick);
        if missing < read.len() {
            let holed = read.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, batch)| *batch).collect();
            prop_assert!(fold(holed).is_err());
        }
    }
}
