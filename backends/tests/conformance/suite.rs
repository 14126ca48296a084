//! What every log must do, whatever it is stored in. Each function is one promise of [`backends::Wal`].

use backends::{LogFacts, Wal, WalError};
use wire_format::{Bytes, Limits, Offset, Term};

use crate::support::*;

/// What was told of a log while it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    pub state: Option<(u64, Vec<u8>)>,
    /// First and next offset of each record.
    pub records: Vec<(u64, u64)>,
}

/// A place where one log is kept over several openings.
pub trait Backend: Clone + Send + 'static {
    type Log: Wal + 'static;
    /// Opens the log under a term. The log before it was closed, or dropped with nothing in flight.
    async fn open(&self, term: u64) -> Result<(Self::Log, LogFacts, Told), WalError>;
    /// The largest record that fits, so that one byte more does not.
    fn record_max(&self) -> usize;
}

/// Writes `blocks` blocks of `records` records of 2 messages and returns what a reader must get.
async fn fill<B: Wal>(log: &B, writer: &mut Writer, blocks: usize, records: usize, len: usize) -> Vec<Message> {
    let mut all = Vec::new();
    for _ in 0..blocks {
        let lengths = [len, len / 2];
        let (block, messages) = writer.block(&vec![&lengths[..]; records]);
        append(log, block, Offset(messages[0].offset)).await.unwrap();
        all.extend(messages);
    }
    all
}

pub async fn messages_come_back_in_order_and_offsets_are_dense<B: Backend>(backend: B) {
    let (log, facts, told) = backend.open(1).await.unwrap();
    assert_eq!(facts, LogFacts::default());
    assert_eq!(told, Told::default());
    let mut writer = Writer::new(Offset(0), 1);
    let mut all = fill(&log, &mut writer, 20, 3, 700).await;
    all.extend(fill(&log, &mut writer, 3, 1, 40_000).await);
    let found = read_all(&log, Offset(0), Offset(writer.next)).await.unwrap();
    assert_eq!(found, all);
    for (index, message) in (0..).zip(&found) {
        assert_eq!(message.offset, index);
    }
}

pub async fn empty_payloads_are_messages_like_others<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let (block, messages) = writer.block(&[&[0], &[5, 0, 7], &[0, 0]]);
    append(&log, block, Offset(0)).await.unwrap();
    let found = read_all(&log, Offset(0), Offset(writer.next)).await.unwrap();
    assert_eq!(found, messages);
    assert_eq!(found.iter().filter(|m| m.body.is_empty()).count(), 4);
}

pub async fn a_record_at_the_limit_fits_and_one_over_it_is_refused_without_a_trace<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let mut all = Vec::new();
    // 8 bytes of padding at most stand between a body and its record's end.
    let body_of = |record: usize, writer: &Writer| {
        let mut batch = wire_format::batch::BatchBuilder::new(PCHANNEL, Limits::WIDEST).unwrap();
        let vchannel = format!("v{}", writer.next % 3);
        batch
            .push(&vchannel, wire_format::MessageType::INSERT, [], &[])
            .unwrap();
        record - batch.record_bytes()
    };
    for less in [1, 0, 1 << 20] {
        let (block, messages) = writer.block(&[&[body_of(backend.record_max() - less, &writer)]]);
        append(&log, block, Offset(messages[0].offset)).await.unwrap();
        all.extend(messages);
    }
    let mut over = Writer::new(Offset(writer.next), 1);
    let (block, _) = over.block(&[&[body_of(backend.record_max() + 1, &over)]]);
    let Err(error) = log.append(block, Offset(writer.next)).await else {
        panic!("it fits")
    };
    let WalError::TooLarge { bytes, limit, .. } = error else {
        panic!("{error}")
    };
    assert!(bytes > limit);
    let text = error.to_string();
    assert!(
        text.contains(&bytes.to_string()) && text.contains(&limit.to_string()),
        "{text}"
    );
    all.extend(fill(&log, &mut writer, 2, 1, 100).await);
    assert_eq!(read_all(&log, Offset(0), Offset(writer.next)).await.unwrap(), all);
}

/// The table of positions: logs of 0, 1 and 25 messages, each offset as a start, in a batch or at its beginning; the end
/// itself waits.
pub async fn reads_begin_at_each_kind_of_position<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut cursor = log.cursor(Offset(0)).unwrap();
    assert!(
        log.read(&mut cursor, Offset(0)).await.unwrap().is_none(),
        "an empty log: wait"
    );
    let mut writer = Writer::new(Offset(0), 1);
    let (block, mut all) = writer.block(&[&[10]]);
    append(&log, block, Offset(0)).await.unwrap();
    let chunk = log
        .read(&mut cursor, Offset(1))
        .await
        .unwrap()
        .expect("what it waited for");
    assert_eq!(messages(&chunk), all);
    for records in [
        &[&[10usize, 20, 30][..], &[0, 1, 2, 3, 4, 5, 6]][..],
        &[&[100; 10]],
        &[&[1], &[2], &[3], &[4]],
    ] {
        let (block, messages) = writer.block(records);
        append(&log, block, Offset(messages[0].offset)).await.unwrap();
        all.extend(messages);
    }
    assert_eq!(all.len(), 25);
    for start in 0..=25usize {
        let found = read_all(&log, Offset(start as u64), Offset(25)).await.unwrap();
        assert_eq!(found, all[start..], "start {start}");
    }
    let mut beyond = log.cursor(Offset(40)).unwrap();
    assert!(
        log.read(&mut beyond, Offset(25)).await.unwrap().is_none(),
        "beyond the end: wait"
    );
}

pub async fn nothing_is_read_above_the_durable_end_given<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let all = fill(&log, &mut writer, 8, 2, 300).await;
    for durable in 0..=all.len() as u64 {
        let mut cursor = log.cursor(Offset(0)).unwrap();
        let mut found = Vec::new();
        while let Some(chunk) = log.read(&mut cursor, Offset(durable)).await.unwrap() {
            found.extend(messages(&chunk));
        }
        // Records are of 2 messages; one that is durable in half only does not come.
        assert_eq!(found, all[..durable as usize / 2 * 2], "durable {durable}");
        while let Some(chunk) = log.read(&mut cursor, Offset(all.len() as u64)).await.unwrap() {
            found.extend(messages(&chunk));
        }
        assert_eq!(found, all, "and on from {durable}");
    }
}

/// Seen failing with the wait for the block before taken out of `LocalWal::write`.
pub async fn several_appends_in_flight_become_durable_in_order<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let (mut all, mut in_flight) = (Vec::new(), std::collections::VecDeque::new());
    let mut committed = Offset(0);
    for round in 0..60usize {
        let (block, messages) = writer.block(&[&[1 + round * 977 % 9_000; 3]]);
        let placed = log.append(block, committed).await.unwrap();
        assert_eq!(placed.block.header.first_offset, Offset(messages[0].offset));
        in_flight.push_back((placed.durable, Offset(writer.next)));
        all.extend(messages);
        if in_flight.len() == 3 {
            // The newest first: when it is durable, so is everything before it.
            let (newest, end) = in_flight.pop_back().unwrap();
            newest.await.unwrap();
            committed = end;
            assert_eq!(read_all(&log, Offset(0), committed).await.unwrap(), all);
            for (older, _) in in_flight.drain(..) {
                older.await.unwrap();
            }
        }
    }
}

pub async fn a_small_block_behind_a_large_one_is_not_durable_before_it<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    for _ in 0..5 {
        let (large, _) = writer.block(&[&[3_000_000]]);
        let (small, _) = writer.block(&[&[1]]);
        let large = log.append(large, Offset(0)).await.unwrap();
        let small = log.append(small, Offset(0)).await.unwrap();
        small.durable.await.unwrap();
        let mut large = Box::pin(large.durable);
        let result = std::future::poll_fn(|cx| std::task::Poll::Ready(large.as_mut().poll(cx))).await;
        assert!(
            matches!(result, std::task::Poll::Ready(Ok(()))),
            "the large one is not durable yet"
        );
    }
}

pub async fn a_dropped_durable_future_loses_nothing_and_stops_nobody<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let mut all = Vec::new();
    for round in 0..30 {
        let (block, messages) = writer.block(&[&[5_000]]);
        let placed = log.append(block, Offset(0)).await.unwrap();
        all.extend(messages);
        match round % 3 {
            0 => drop(placed.durable),
            1 => {
                let mut durable = Box::pin(placed.durable);
                assert!(
                    std::future::poll_fn(|cx| std::task::Poll::Ready(durable.as_mut().poll(cx).is_pending())).await
                );
            }
            _ => placed.durable.await.unwrap(),
        }
    }
    let (block, messages) = writer.block(&[&[1]]);
    append(&log, block, Offset(0)).await.unwrap();
    all.extend(messages);
    assert_eq!(read_all(&log, Offset(0), Offset(writer.next)).await.unwrap(), all);
}

pub async fn truncation_keeps_what_is_above_and_names_the_first_kept_offset<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let all = fill(&log, &mut writer, 30, 2, 20_000).await;
    let end = all.len() as u64;
    assert_eq!(
        log.truncate(Offset(0)).await.unwrap(),
        Offset(0),
        "to the first: removes nothing"
    );
    assert_eq!(read_all(&log, Offset(0), Offset(end)).await.unwrap(), all);
    let mut overtaken = log.cursor(Offset(0)).unwrap();
    assert!(log.read(&mut overtaken, Offset(end)).await.unwrap().is_some());
    let mut first = 0;
    for upto in [1, 2, 57, 57, 30, end - 1, end, end + 1_000] {
        log.checkpoint(Offset(end), Vec::new()).await.unwrap();
        first = first.max(upto.min(end));
        assert_eq!(
            log.truncate(Offset(upto)).await.unwrap(),
            Offset(first),
            "truncate to {upto}"
        );
        assert_eq!(log.first_offset(), Offset(first));
        assert_eq!(
            read_all(&log, Offset(first), Offset(end)).await.unwrap(),
            all[first as usize..]
        );
        let Err(WalError::Truncated { asked, first: kept }) = log.cursor(Offset(first - 1)) else {
            panic!("a cursor below the first offset")
        };
        assert_eq!((asked, kept), (Offset(first - 1), Offset(first)));
    }
    let error = loop {
        match log.read(&mut overtaken, Offset(end)).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the overtaken reader jumped to the end"),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, WalError::Truncated { first, .. } if first == Offset(end)),
        "{error}"
    );
    let more = fill(&log, &mut writer, 2, 1, 100).await;
    assert_eq!(read_all(&log, Offset(end), Offset(writer.next)).await.unwrap(), more);
    drop(log);
    let (log, facts, _) = backend.open(2).await.unwrap();
    assert_eq!(
        (facts.first_offset, facts.next_offset),
        (Offset(end), Offset(writer.next))
    );
    assert_eq!(read_all(&log, Offset(end), Offset(writer.next)).await.unwrap(), more);
}

pub async fn a_place_is_found_by_timetick<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    assert_eq!(log.locate(tick_of(5)), Offset(0));
    let mut writer = Writer::new(Offset(0), 1);
    let all = fill(&log, &mut writer, 120, 1, 30_000).await;
    look(&log, &all);
    log.close(Vec::new()).await.unwrap();
    drop(log);
    look(&backend.open(2).await.unwrap().0, &all);
}

fn look<W: Wal>(log: &W, all: &[Message]) {
    let mut farthest = 0;
    for (index, message) in (0..).zip(all) {
        let found = log.locate(wire_format::Timetick(message.timetick)).get();
        assert!(found <= index, "{found} is behind {index}");
        farthest = farthest.max(index - found);
    }
    assert!(farthest < 100, "{farthest} messages to look through");
    assert_eq!(log.locate(wire_format::Timetick::ZERO), Offset(0));
    assert_eq!(log.locate(wire_format::Timetick::MAX), Offset(all.len() as u64));
}

pub async fn a_log_is_the_same_after_it_was_reopened<B: Backend>(backend: B) {
    let mut all = Vec::new();
    let mut next = Offset(0);
    for term in 1..=8 {
        let (log, facts, _) = backend.open(term * 2).await.unwrap();
        assert_eq!(facts.next_offset, next);
        assert_eq!(facts.last_term, Term(if term == 1 { 0 } else { (term - 1) * 2 }));
        if let Some(last) = all.last() {
            let last: &Message = last;
            assert_eq!(facts.last_timetick.get(), last.timetick);
        }
        let mut writer = Writer::new(next, term * 2);
        all.extend(fill(&log, &mut writer, 7, 2, 15_000).await);
        next = Offset(writer.next);
        assert_eq!(read_all(&log, Offset(0), next).await.unwrap(), all);
        if term % 2 == 0 {
            log.close(vec![term as u8]).await.unwrap();
        }
    }
}

pub async fn replay_gives_the_state_then_each_record_behind_it<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    fill(&log, &mut writer, 10, 2, 20_000).await;
    log.checkpoint(Offset(20), b"twenty".to_vec()).await.unwrap();
    drop(log);
    let (log, facts, told) = backend.open(2).await.unwrap();
    assert_eq!(facts.next_offset, Offset(40));
    assert_eq!(told.state, Some((20, b"twenty".to_vec())));
    let expected: Vec<_> = (20..40).step_by(2).map(|at| (at, at + 2)).collect();
    assert_eq!(told.records, expected);
    log.checkpoint(Offset(10), b"older".to_vec()).await.unwrap();
    log.checkpoint(Offset(40), b"all".to_vec()).await.unwrap();
    drop(log);
    let (log, _, told) = backend.open(3).await.unwrap();
    assert_eq!(
        told,
        Told {
            state: Some((40, b"all".to_vec())),
            records: Vec::new()
        }
    );
    log.close(b"closed".to_vec()).await.unwrap();
    drop(log);
    let (_, facts, told) = backend.open(4).await.unwrap();
    assert_eq!(
        told,
        Told {
            state: Some((40, b"closed".to_vec())),
            records: Vec::new()
        }
    );
    assert_eq!(facts.last_timetick, tick_of(38).plus(1));
}

/// Seen failing with the comparison in `LocalWal::open` and the check of a block's term taken out.
pub async fn an_older_or_equal_term_is_refused<B: Backend>(backend: B) {
    let (log, ..) = backend.open(7).await.unwrap();
    let mut writer = Writer::new(Offset(0), 7);
    let all = fill(&log, &mut writer, 2, 1, 100).await;
    let (stale, _) = Writer::new(Offset(writer.next), 6).block(&[&[1]]);
    assert!(matches!(
        log.append(stale, Offset(0)).await,
        Err(WalError::StaleTerm { .. })
    ));
    drop(log);
    for term in [1, 6, 7] {
        let Err(error) = backend.open(term).await else {
            panic!("term {term} was accepted")
        };
        let WalError::StaleTerm { stored, ours, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((stored, ours), (Term(7), Term(term)));
    }
    let (log, ..) = backend.open(8).await.unwrap();
    assert_eq!(read_all(&log, Offset(0), Offset(writer.next)).await.unwrap(), all);
}

pub async fn a_block_that_does_not_continue_the_log_is_refused<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let all = fill(&log, &mut writer, 2, 1, 100).await;
    for wrong in [0, writer.next - 1, writer.next + 1, u64::MAX / 2] {
        let (block, _) = Writer::new(Offset(wrong), 1).block(&[&[1]]);
        let Err(error) = log.append(block, Offset(0)).await else {
            panic!("offset {wrong} was accepted")
        };
        assert!(
            matches!(error, WalError::OutOfOrder { due, .. } if due == Offset(writer.next)),
            "{error}"
        );
    }
    let more = fill(&log, &mut writer, 1, 1, 100).await;
    let found = read_all(&log, Offset(0), Offset(writer.next)).await.unwrap();
    assert_eq!(found, [all, more].concat());
}

pub async fn nothing_is_appended_after_an_orderly_close_but_reads_go_on<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let all = fill(&log, &mut writer, 3, 1, 100).await;
    let (block, unawaited) = writer.block(&[&[9_000]]);
    let placed = log.append(block, Offset(0)).await.unwrap();
    log.close(Vec::new()).await.unwrap();
    placed.durable.await.unwrap();
    let (block, _) = writer.block(&[&[1]]);
    assert!(matches!(
        log.append(block, Offset(0)).await,
        Err(WalError::Closed { .. })
    ));
    let all = [all, unawaited].concat();
    assert_eq!(read_all(&log, Offset(0), Offset(all.len() as u64)).await.unwrap(), all);
    assert!(log.make_room(Bytes(4096)).await.is_err());
}

/// Case 14: a reader that runs beside a writer, from the first message on, over the place where disk ends and memory begins.
pub async fn a_reader_beside_a_writer_sees_each_message_once<B: Backend>(backend: B) {
    let (log, ..) = backend.open(1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let mut all = fill(&log, &mut writer, 40, 2, 3_000).await;
    let (mut cursor, mut found) = (log.cursor(Offset(0)).unwrap(), Vec::new());
    for round in 0..150usize {
        let (block, new) = writer.block(&[&[round * 37 % 5_000; 2]]);
        let placed = log.append(block, Offset(all.len() as u64)).await.unwrap();
        if round % 2 == 0 {
            let durable = Offset(all.len() as u64);
            if let Some(chunk) = log.read(&mut cursor, durable).await.unwrap() {
                found.extend(messages(&chunk));
            }
        }
        placed.durable.await.unwrap();
        all.extend(new);
    }
    while let Some(chunk) = log.read(&mut cursor, Offset(writer.next)).await.unwrap() {
        found.extend(messages(&chunk));
    }
    assert_eq!(found.len(), all.len());
    assert_eq!(found, all);
}
