//! The reader against scripted peers: positions, ticks, credit, reconnects, and every way in which a server can go wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use lognode_client::{
    BatchEvent, Error, Event, Filter, Limits, MessageType, Offset, ReadOptions, Reader, Start, Timetick,
};
use peer::{BOUND, Conn, Peer, record, within};
use wire_format::{
    batch::{Door, SubsetWriter, verify},
    frame::{FrameKind, read_credit},
    protocol::{Intent, Refusal, RefusalCode},
};

fn options(start: Start) -> ReadOptions {
    ReadOptions::from(start)
        .idle_timeout(Duration::from_millis(150))
        .outage_deadline(Duration::from_millis(600))
}

/// The next message's offset, or the tick's timetick as an error.
async fn offset(reader: &mut Reader) -> Result<u64, u64> {
    match within(BOUND, reader.next()).await.unwrap() {
        Event::Message(message) => {
            assert_eq!(message.body, message.offset.to_string());
            assert_eq!(&*message.vchannel, ["even", "odd"][(message.offset.get() % 2) as usize]);
            assert_eq!(message.properties, [("offset".to_owned(), message.offset.to_string())]);
            Ok(message.offset.get())
        }
        Event::Tick { timetick, .. } => Err(timetick.get()),
    }
}

#[tokio::test]
async fn messages_and_ticks_come_in_order_and_move_the_position() {
    let peer = Peer::new(|_, mut conn| {
        let hello = conn.welcome_with(|reply| reply.start_offset = Offset(5)).unwrap();
        assert_eq!(hello.intent, Intent::Read);
        let read = hello.read.unwrap();
        assert_eq!((read.start, read.credit.get()), (Start::Earliest, 1_000_000));
        conn.send(FrameKind::Deliver, 0, &record(5, 100, 3));
        conn.tick(200, 8);
        conn.send(FrameKind::Deliver, 0, &record(8, 201, 2));
        // A tick at the last message's own timetick is news; one below it, or told before, is not.
        conn.tick(201, 10);
        conn.tick(202, 10);
        conn.tick(202, 10);
        conn.tick(300, 10);
        conn.hang();
    });
    let options = options(Start::Earliest).credit_bytes(1_000_000);
    let mut reader = Reader::open(peer.client(), "orders", options).await.unwrap();
    assert_eq!(reader.position(), Offset(5));
    for expected in 5..8 {
        assert_eq!(offset(&mut reader).await, Ok(expected));
        assert_eq!(reader.position(), Offset(expected + 1));
        assert_eq!(reader.position_timetick(), Timetick(100 + expected - 5));
    }
    assert_eq!(offset(&mut reader).await, Err(200));
    assert_eq!(reader.position_timetick(), Timetick(200));
    assert_eq!(offset(&mut reader).await, Ok(8));
    // The rest of a delivery that was begun message by message.
    match within(BOUND, reader.next_batch()).await.unwrap() {
        BatchEvent::Batch(batch) => {
            let offsets: Vec<_> = batch.messages().map(|m| m.offset.get()).collect();
            assert_eq!(
                (offsets, batch.count(), batch.meta().base_offset),
                (vec![9], 1, Offset(8))
            );
        }
        tick => panic!("{tick:?}"),
    }
    assert_eq!(offset(&mut reader).await, Err(202));
    assert_eq!(offset(&mut reader).await, Err(300));
    assert_eq!(reader.position(), Offset(10));
}

#[tokio::test]
async fn a_new_connection_goes_on_at_the_exact_position() {
    let starts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&starts);
    let peer = Peer::new(move |number, mut conn| {
        let hello = conn.welcome().unwrap();
        seen.lock().unwrap().push(hello.read.unwrap().start);
        match number {
            0 => {
                conn.send(FrameKind::Deliver, 0, &record(0, 100, 4));
                conn.tick(150, 4);
                conn.close();
            }
            // Sends a whole record that begins before the position, and an old tick.
            1 => {
                conn.tick(120, 4);
                let mut whole = record(2, 102, 2);
                conn.send(FrameKind::Deliver, 0, &whole);
                whole = record(4, 151, 3);
                conn.send(FrameKind::Deliver, 0, &whole[..]);
                conn.send(FrameKind::Goodbye, 0, &[]);
            }
            // Cuts a record in the middle.
            2 => {
                let bytes = wire_format::frame::frame(FrameKind::Deliver, 0, &record(7, 160, 2));
                conn.raw(&bytes[..bytes.len() - 1]);
                conn.close();
            }
            _ => {
                conn.send(FrameKind::Deliver, 0, &record(7, 160, 2));
                conn.hang();
            }
        }
    });
    let mut reader = Reader::open(peer.client(), "orders", options(Start::Offset(Offset(0))))
        .await
        .unwrap();
    let mut events = Vec::new();
    for _ in 0..10 {
        events.push(offset(&mut reader).await);
    }
    let expected = [Ok(0), Ok(1), Ok(2), Ok(3), Err(150), Ok(4), Ok(5), Ok(6), Ok(7), Ok(8)];
    assert_eq!(events, expected);
    let at = |offset| Start::Offset(Offset(offset));
    assert_eq!(*starts.lock().unwrap(), [at(0), at(4), at(7), at(7)]);
}

#[tokio::test]
async fn a_record_that_begins_before_the_position_gives_only_what_is_new() {
    let peer = Peer::new(|_, mut conn| {
        conn.welcome();
        conn.send(FrameKind::Deliver, 0, &record(0, 100, 10));
        conn.hang();
    });
    let mut reader = Reader::open(peer.client(), "orders", options(Start::Offset(Offset(7))))
        .await
        .unwrap();
    assert_eq!(offset(&mut reader).await, Ok(7));
    let mut reader = Reader::open(peer.client(), "orders", options(Start::Timetick(Timetick(108))))
        .await
        .unwrap();
    assert_eq!(offset(&mut reader).await, Ok(8));
}

#[tokio::test]
async fn filtered_deliveries_leave_gaps_and_ticks_move_the_position() {
    let peer = Peer::new(|_, mut conn| {
        let hello = conn.welcome().unwrap();
        let filter = hello.read.unwrap().filter;
        assert_eq!(filter.vchannels(), ["odd"]);
        let whole = record(0, 100, 6);
        let view = verify(&whole, Door::Storage, &Limits::default()).unwrap();
        let mut part = Vec::new();
        SubsetWriter::default().write(&view, &[1, 3, 5], &mut part);
        conn.send(FrameKind::Deliver, 0, &part);
        conn.tick(500, 90);
        conn.send(FrameKind::Deliver, 0, &record(91, 600, 1));
        conn.hang();
    });
    let filter = Filter::new(
        vec!["odd".into()],
        vec![MessageType::INSERT],
        Timetick::ZERO,
        Timetick::MAX,
    );
    let mut reader = Reader::open(peer.client(), "orders", options(Start::Earliest).filter(filter))
        .await
        .unwrap();
    let mut events = Vec::new();
    for _ in 0..4 {
        events.push(offset(&mut reader).await);
    }
    assert_eq!(events, [Ok(1), Ok(3), Ok(5), Err(500)]);
    assert_eq!(reader.position(), Offset(90));
    assert_eq!(offset(&mut reader).await, Ok(91));
}

/// Sends records as credit allows, and nothing else: not even ticks.
fn credit_bound(mut conn: Conn, sizes: &[u64]) {
    let mut credit = conn.welcome().unwrap().read.unwrap().credit.get();
    let mut at = 0;
    for &count in sizes {
        let record = record(at, 100 + at, count);
        let frame = record.len() as u64 + 16;
        while credit < frame {
            let Some((_, body)) = conn.frame_of(FrameKind::Credit) else {
                return;
            };
            credit += read_credit(&body).unwrap().get();
        }
        credit -= frame;
        conn.send(FrameKind::Deliver, 0, &record);
        at += count;
    }
    conn.hang();
}

#[tokio::test]
async fn all_credit_comes_back_however_the_records_fit_into_the_window() {
    let sizes = [60, 1, 90, 40, 70, 1, 1, 99, 30, 80, 2, 95];
    let total: u64 = sizes.iter().sum();
    let largest = record(100, 1, 99).len() as u64 + 300;
    let peer = Peer::new(move |_, conn| credit_bound(conn, &sizes));
    let options = options(Start::Earliest).credit_bytes(largest);
    let mut reader = Reader::open(peer.client(), "orders", options.clone()).await.unwrap();
    for expected in 0..total {
        assert_eq!(offset(&mut reader).await, Ok(expected));
    }
    let mut reader = Reader::open(peer.client(), "orders", options).await.unwrap();
    let mut next = 0;
    while next < total {
        if let BatchEvent::Batch(batch) = within(BOUND, reader.next_batch()).await.unwrap() {
            assert_eq!(batch.meta().base_offset, Offset(next));
            next += u64::from(batch.count());
        }
    }
    assert_eq!(peer.connections(), 2);
}

#[tokio::test]
async fn a_consumer_that_does_not_take_grants_nothing() {
    let granted = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&granted);
    let peer = Peer::new(move |_, mut conn| {
        conn.welcome();
        for at in 0..10 {
            conn.send(FrameKind::Deliver, 0, &record(at * 10, 100 + at * 10, 10));
        }
        while let Some((_, body)) = conn.frame_of(FrameKind::Credit) {
            *seen.lock().unwrap() += read_credit(&body).unwrap().get();
        }
    });
    let mut reader = Reader::open(peer.client(), "orders", options(Start::Earliest).credit_bytes(2_000))
        .await
        .unwrap();
    assert_eq!(offset(&mut reader).await, Ok(0));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(*granted.lock().unwrap(), 0);
    for _ in 1..100 {
        offset(&mut reader).await.unwrap();
    }
    // Nothing more comes, so the rest is granted when that is noticed.
    let _ = tokio::time::timeout(Duration::from_millis(100), reader.next()).await;
    let bytes: usize = (0..10).map(|at| 16 + record(at * 10, 100 + at * 10, 10).len()).sum();
    assert_eq!(*granted.lock().unwrap(), bytes as u64);
}

#[tokio::test]
async fn a_dropped_next_loses_nothing() {
    let peer = Peer::new(|_, mut conn| {
        conn.welcome();
        for at in 0..30 {
            let bytes = wire_format::frame::frame(FrameKind::Deliver, 0, &record(at, 100 + at, 1));
            for part in bytes.chunks(bytes.len() / 3 + 1) {
                conn.raw(part);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        conn.hang();
    });
    let mut reader = Reader::open(peer.client(), "orders", options(Start::Earliest))
        .await
        .unwrap();
    let mut next = 0;
    let begun = Instant::now();
    while next < 30 {
        assert!(begun.elapsed() < BOUND);
        if let Ok(event) = tokio::time::timeout(Duration::from_micros(700), reader.next()).await {
            match event.unwrap() {
                Event::Message(message) => assert_eq!(message.offset, Offset(next)),
                tick => panic!("{tick:?}"),
            }
            next += 1;
        }
    }
    assert_eq!(peer.connections(), 1);
}

#[tokio::test]
async fn a_silent_server_is_given_up_and_an_outage_ends_in_an_error_that_can_be_retried() {
    let peer = Peer::new(|number, mut conn| match number {
        0 => {
            conn.welcome();
            conn.send(FrameKind::Deliver, 0, &record(0, 100, 1));
            conn.hang();
        }
        1..20 => conn.hang(),
        _ => {
            conn.welcome();
            conn.send(FrameKind::Deliver, 0, &record(1, 101, 1));
            conn.hang();
        }
    });
    let mut reader = Reader::open(peer.client(), "orders", options(Start::Earliest))
        .await
        .unwrap();
    assert_eq!(offset(&mut reader).await, Ok(0));
    let begun = Instant::now();
    let error = within(BOUND, reader.next()).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_millis(1_200), "{:?}", begun.elapsed());
    assert!(
        matches!(
            error,
            Error::Outage {
                position: Offset(1),
                ..
            }
        ),
        "{error}"
    );
    assert!(error.is_retryable());
    // The caller goes on asking, and the server comes back.
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < 3 * BOUND);
        match reader.next().await {
            Ok(Event::Message(message)) => break assert_eq!(message.offset, Offset(1)),
            Ok(tick) => panic!("{tick:?}"),
            Err(error) => assert!(matches!(error, Error::Outage { .. }), "{error}"),
        }
    }
}

#[tokio::test]
async fn what_is_gone_or_damaged_is_told_with_its_place_and_ends_the_reader() {
    let peer = Peer::new(|number, mut conn| {
        if number == 0 {
            conn.hello();
            let mut refusal = Refusal::new(RefusalCode::Truncated, "gone");
            (refusal.asked_offset, refusal.first_offset) = (Offset(3), Offset(90));
            return conn.refuse(0, &refusal);
        }
        conn.welcome();
        conn.send(FrameKind::Deliver, 0, &record(0, 100, 1));
        let mut refusal = Refusal::new(RefusalCode::Damaged, "crc is wrong");
        refusal.file = "orders/0000000001.seg".into();
        refusal.damaged = (4096, 8192);
        conn.refuse(0, &refusal);
    });
    let error = within(
        BOUND,
        Reader::open(peer.client(), "orders", options(Start::Offset(Offset(3)))),
    );
    let error = error.await.err().unwrap();
    let gone = matches!(
        error,
        Error::Truncated {
            asked: Offset(3),
            first: Offset(90),
            ..
        }
    );
    assert!(gone && !error.is_retryable(), "{error}");

    let mut reader = Reader::open(peer.client(), "orders", options(Start::Earliest))
        .await
        .unwrap();
    assert_eq!(offset(&mut reader).await, Ok(0));
    for _ in 0..2 {
        let error = within(BOUND, reader.next()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Damaged { file, from: 4096, to: 8192, .. } if file.ends_with("1.seg")),
            "{error}"
        );
    }
    let mut reader = Reader::open(peer.client(), "orders", options(Start::Earliest))
        .await
        .unwrap();
    let events: Vec<_> = within(BOUND, reader.by_ref().collect()).await;
    assert_eq!(events.len(), 2, "a stream ends after the error that ends its reader");
    assert!(events[0].is_ok() && events[1].is_err());
}

type Script = fn(&mut Conn);

/// What a server must never send after it delivered offset 0 and promised timetick 150, on every connection.
const LIES: &[(&str, &str, Script)] = &[
    ("a damaged payload", "payload crc", |conn| {
        let mut bytes = record(1, 151, 1);
        *bytes.last_mut().unwrap() ^= 1;
        conn.send(FrameKind::Deliver, 0, &bytes);
    }),
    ("a damaged header", "crc32c", |conn| {
        let mut bytes = record(1, 151, 1);
        bytes[60] ^= 1;
        conn.send(FrameKind::Deliver, 0, &bytes);
    }),
    ("a gap", "skipped from offset 1 to 2", |conn| {
        conn.send(FrameKind::Deliver, 0, &record(2, 151, 1));
    }),
    ("a gap told by a tick", "skipped from offset 1 to 9", |conn| {
        conn.tick(160, 9)
    }),
    ("a message below the promise", "promised", |conn| {
        conn.send(FrameKind::Deliver, 0, &record(1, 150, 1));
    }),
    ("more than a record", "longer than its record", |conn| {
        let mut bytes = record(1, 151, 1);
        bytes.push(0);
        conn.send(FrameKind::Deliver, 0, &bytes);
    }),
    ("an ack", "ack frame", |conn| conn.send(FrameKind::Ack, 0, &[0; 24])),
    ("noise", "unknown", |conn| conn.raw(&[0xfe; 999])),
    ("a record of 4 GiB", "over the limit", |conn| {
        conn.raw(&[255, 255, 255, 255, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    }),
    ("a refusal with a broken table", "refusal", |conn| {
        conn.send(FrameKind::Refusal, 0, &[9; 100])
    }),
];

#[tokio::test]
async fn a_server_that_lies_ends_in_an_error_and_no_message_is_given() {
    for &(what, words, lie) in LIES {
        let peer = Peer::new(move |number, mut conn| {
            conn.welcome();
            if number == 0 {
                conn.send(FrameKind::Deliver, 0, &record(0, 100, 1));
                conn.tick(150, 1);
            }
            lie(&mut conn);
            conn.hang();
        });
        let mut reader = Reader::open(peer.client(), "orders", options(Start::Earliest))
            .await
            .unwrap();
        assert_eq!(offset(&mut reader).await, Ok(0));
        assert_eq!(offset(&mut reader).await, Err(150));
        let error = within(BOUND, reader.next()).await.expect_err(what);
        assert!(error.to_string().contains(words), "{what}: {error}");
        assert!(
            matches!(error, Error::Protocol { .. } | Error::Outage { .. }),
            "{what}: {error}"
        );
        assert_eq!(reader.position(), Offset(1), "{what}");
    }
}

#[tokio::test]
async fn a_record_that_stops_half_way_does_not_hold_the_reader() {
    let peer = Peer::new(|_, mut conn| {
        conn.welcome();
        // 48 MiB are announced and a little of it comes.
        conn.raw(&[0, 0, 0, 3, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
        conn.hang();
    });
    let mut reader = Reader::open(peer.client(), "orders", options(Start::Earliest))
        .await
        .unwrap();
    let begun = Instant::now();
    let error = within(BOUND, reader.next()).await.unwrap_err();
    assert!(matches!(error, Error::Outage { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_millis(1_500));
}

#[tokio::test]
async fn a_reader_is_sent_on_to_a_new_owner() {
    let owner = Peer::new(|_, mut conn| {
        conn.welcome();
        conn.send(FrameKind::Deliver, 0, &record(1, 200, 1));
        conn.hang();
    });
    let address = owner.address.clone();
    let first = Peer::new(move |_, mut conn| {
        conn.welcome();
        conn.send(FrameKind::Deliver, 0, &record(0, 100, 1));
        let mut moved = Refusal::new(RefusalCode::NotOwner, "it moved");
        moved.address = address.clone();
        conn.refuse(0, &moved);
    });
    let mut reader = Reader::open(first.client(), "orders", options(Start::Earliest))
        .await
        .unwrap();
    assert_eq!(offset(&mut reader).await, Ok(0));
    assert_eq!(offset(&mut reader).await, Ok(1));
    assert_eq!((first.connections(), owner.connections()), (1, 1));
}

/// Seen failing when only the position was asked for again: the second batch below the timetick was called a broken promise.
#[tokio::test]
async fn a_start_at_a_timetick_outlives_the_connection() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let peer = Peer::new(move |number, mut conn| {
        let hello = conn.welcome_with(|reply| reply.start_offset = Offset(5)).unwrap();
        let read = hello.read.unwrap();
        seen.lock().unwrap().push((read.start, read.filter.min_timetick));
        if number == 0 {
            return conn.close();
        }
        // What lies below may come all the same: a server need not look into each batch.
        conn.send(FrameKind::Deliver, 0, &record(5, 100, 3));
        conn.tick(150, 8);
        conn.send(FrameKind::Deliver, 0, &record(8, 160, 2));
        conn.send(FrameKind::Deliver, 0, &record(10, 999, 3));
        conn.hang();
    });
    let first = Timetick(1_000);
    let mut reader = Reader::open(peer.client(), "orders", options(Start::Timetick(first)))
        .await
        .unwrap();
    let mut offsets = Vec::new();
    while offsets.len() < 2 {
        offsets.extend(offset(&mut reader).await.ok());
    }
    assert_eq!(offsets, [11, 12]);
    let expected = [
        (Start::Timetick(first), Timetick::ZERO),
        (Start::Offset(Offset(5)), first),
    ];
    assert_eq!(*asked.lock().unwrap(), expected);
}
