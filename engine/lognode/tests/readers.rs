//! Cases 8, 9, 15 and 16: where a reader begins, what it is told when that is not possible, and that it always gets on.
//!
//! Seen to fail with: an inclusive start taken as exclusive; a batch that is delivered whole to a reader that begins in its
//! middle; a position below the first kept one that jumps ahead; a position that moves on matches only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::time::{Duration, Instant};

use support::{
    Options, Scratch, Server,
    raw::{Got, Heard, NoWelcome, PATIENCE, RawProducer, RawReader, assert_says, inserts, record, truncate},
};
use wire_format::{
    MessageType, Offset, Timetick,
    batch::Filter,
    protocol::{RefusalCode, Start},
};

const SOON: Duration = Duration::from_millis(150);

/// Writes `sizes` batches of numbered messages; gives their timeticks.
fn write(server: &Server, pchannel: &str, sizes: &[usize]) -> Vec<Timetick> {
    let mut producer = RawProducer::open(&server.address, pchannel).unwrap();
    let mut timeticks = Vec::new();
    for &size in sizes {
        let bodies: Vec<String> = (0..size).map(|i| (timeticks.len() + i).to_string()).collect();
        let bodies: Vec<&[u8]> = bodies.iter().map(|body| body.as_bytes()).collect();
        let ack = producer.ask(&inserts(pchannel, "v", &bodies)).ack();
        timeticks.extend((0..size as u64).map(|i| ack.first_timetick.plus(i)));
    }
    timeticks
}

fn offsets(messages: &[Got]) -> Vec<u64> {
    messages.iter().map(|message| message.offset).collect()
}

/// What a reader gets until it is at the end and only ticks follow.
fn gets(server: &Server, pchannel: &str, start: Start) -> Vec<u64> {
    let mut reader =
        RawReader::open(&server.address, pchannel, start).unwrap_or_else(|end| panic!("{start:?}: {end:?}"));
    let (mut got, mut ticks) = (Vec::new(), 0);
    let end = reader.reply.next_offset.get();
    while ticks < 2 || reader.watch.next < end {
        match reader.next(PATIENCE).unwrap_or_else(|end| panic!("{start:?}: {end:?}")) {
            Heard::Messages(messages) => got.extend(offsets(&messages)),
            Heard::Tick(_) => ticks += 1,
        }
    }
    got
}

fn refused(server: &Server, pchannel: &str, start: Start) -> wire_format::protocol::Refusal {
    let begin = Instant::now();
    let refusal = RawReader::open(&server.address, pchannel, start)
        .map(|_| ())
        .unwrap_err()
        .refusal();
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "a refusal took {:?}",
        begin.elapsed()
    );
    refusal
}

/// The table of case 16 for a log of `sizes` batches.
fn check_starts(server: &Server, pchannel: &str, timeticks: &[Timetick]) {
    let n = timeticks.len() as u64;
    let from = |first: u64| (first..n).collect::<Vec<u64>>();
    assert_eq!(gets(server, pchannel, Start::Earliest), from(0), "earliest");
    assert_eq!(gets(server, pchannel, Start::Latest), from(n), "latest");
    for i in 0..=n {
        // Inclusive at i; exclusive after i is inclusive at i + 1. The end itself is a place to wait at.
        assert_eq!(
            gets(server, pchannel, Start::Offset(Offset(i))),
            from(i),
            "offset {i} of {n}"
        );
    }
    let beyond = refused(server, pchannel, Start::Offset(Offset(n + 1)));
    assert_says(&beyond, RefusalCode::BeyondEnd, &["ends at", "latest"]);
    assert_eq!((beyond.asked_offset, beyond.next_offset), (Offset(n + 1), Offset(n)));
    for (i, timetick) in timeticks.iter().enumerate() {
        let i = i as u64;
        assert_eq!(
            gets(server, pchannel, Start::Timetick(*timetick)),
            from(i),
            "at the time of {i}"
        );
        assert_eq!(
            gets(server, pchannel, Start::Timetick(timetick.plus(1))),
            from(i + 1),
            "after {i}"
        );
        let before = timetick.previous(); // which may be the time of the message in front
        let first = timeticks.iter().filter(|&&other| other < before).count() as u64;
        assert_eq!(
            gets(server, pchannel, Start::Timetick(before)),
            from(first),
            "before {i}"
        );
    }
    assert_eq!(gets(server, pchannel, Start::Timetick(Timetick::ZERO)), from(0));
}

#[test]
fn each_start_gives_exactly_its_messages() {
    let scratch = Scratch::new("starts");
    let data = scratch.path().join("data");
    let mut server = Server::start_with(&data, &Options::small());
    let tables: Vec<(&str, Vec<Timetick>)> = [("none", &[][..]), ("one", &[1]), ("many", &[10, 1, 14])]
        .into_iter()
        .map(|(name, sizes)| (name, write(&server, name, sizes)))
        .collect();
    // From memory, then from disk after a kill, then after a stop in order.
    for round in 0..3 {
        for (name, timeticks) in &tables {
            check_starts(&server, name, timeticks);
        }
        if round == 0 {
            server.kill();
        } else {
            server.stop();
        }
        server = Server::start_with(&data, &Options::small());
    }
    // A reader that waits at the end gets the next message, whatever its start was.
    for (name, timeticks) in &tables {
        let n = timeticks.len() as u64;
        let starts = [
            Start::Latest,
            Start::Offset(Offset(n)),
            Start::Timetick(server_time(&server, name)),
        ];
        let mut readers: Vec<_> = starts
            .into_iter()
            .map(|start| RawReader::open(&server.address, name, start).unwrap())
            .collect();
        for reader in &mut readers {
            assert!(reader.listen(SOON).iter().all(|event| matches!(event, Heard::Tick(_))));
        }
        write(&server, name, &[2]);
        for reader in &mut readers {
            assert_eq!(offsets(&reader.collect(2, PATIENCE)), [n, n + 1]);
        }
    }
}

/// A time behind everything stored, and not in the future.
fn server_time(server: &Server, pchannel: &str) -> Timetick {
    let mut reader = RawReader::open(&server.address, pchannel, Start::Latest).unwrap();
    reader.tick(PATIENCE);
    reader.tick(PATIENCE).timetick
}

#[test]
fn a_truncation_is_exact_and_a_reader_below_it_is_told() {
    let scratch = Scratch::new("truncate");
    let data = scratch.path().join("data");
    let mut server = Server::start_with(&data, &Options::small());
    write(&server, "few", &[25]);
    assert_eq!(
        truncate(&server.address, "few", 0).unwrap().first_offset,
        Offset(0),
        "to the first: nothing goes"
    );
    assert_eq!(gets(&server, "few", Start::Earliest).len(), 25);
    assert_eq!(
        truncate(&server.address, "few", 1).unwrap().first_offset,
        Offset(1),
        "the first goes, no other"
    );
    assert_eq!(gets(&server, "few", Start::Earliest)[0], 1);
    let beyond = truncate(&server.address, "few", 26).unwrap_err();
    assert_says(&beyond, RefusalCode::BeyondEnd, &["25", "26"]);

    write(&server, "p", &[100; 10]);
    // It stands at 300 and has no credit for more.
    let mut overtaken =
        RawReader::open_with(&server.address, "p", Start::Offset(Offset(300)), Filter::default(), 1).unwrap();
    overtaken.grant = false;
    overtaken.collect(100, PATIENCE);
    assert_eq!(truncate(&server.address, "p", 600).unwrap().first_offset, Offset(600));
    let begin = Instant::now();
    let told = overtaken.refusal(PATIENCE);
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "the overtaken reader heard it after {:?}",
        begin.elapsed()
    );
    assert_says(&told, RefusalCode::Truncated, &["600", "400", "earliest"]);
    assert_eq!((told.asked_offset, told.first_offset), (Offset(400), Offset(600)));
    for round in 0..3 {
        let gone = refused(&server, "p", Start::Offset(Offset(300)));
        assert_says(&gone, RefusalCode::Truncated, &["300", "600", "earliest"]);
        assert_eq!((gone.asked_offset, gone.first_offset), (Offset(300), Offset(600)));
        assert_eq!(gets(&server, "p", Start::Earliest), (600..1_000).collect::<Vec<_>>());
        assert_eq!(gets(&server, "p", Start::Offset(Offset(600))).len(), 400);
        assert_eq!(gets(&server, "p", Start::Offset(Offset(601))).len(), 399);
        assert_eq!(
            refused(&server, "p", Start::Offset(Offset(5_000))).code,
            RefusalCode::BeyondEnd
        );
        // Less than before changes nothing.
        assert_eq!(truncate(&server.address, "p", 200).unwrap().first_offset, Offset(600));
        if round == 0 {
            server.kill();
        } else {
            server.stop();
        }
        server = Server::start_with(&data, &Options::small());
    }
    // All of it may go; the next message follows the old ones.
    assert_eq!(
        truncate(&server.address, "p", 1_000).unwrap().first_offset,
        Offset(1_000)
    );
    assert_eq!(gets(&server, "p", Start::Earliest), [0; 0]);
    server.kill();
    let server = Server::start_with(&data, &Options::small());
    write(&server, "p", &[3]);
    assert_eq!(gets(&server, "p", Start::Earliest), [1_000, 1_001, 1_002]);
}

/// Case 8: nothing of the log is in memory, nothing new comes, and still the reader arrives at the present.
#[test]
fn a_new_reader_of_a_quiet_channel_catches_up() {
    let scratch = Scratch::new("quiet");
    let server = Server::start_with(&scratch.path().join("data"), &Options::small());
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    for i in 0..10u8 {
        producer.ask(&inserts("p", "v1", &[&[i]])).ack();
    }
    for i in 0..60u8 {
        producer.ask(&inserts("p", "v2", &[&vec![i; 200_000]])).ack();
    }
    drop(producer);
    std::thread::sleep(Duration::from_secs(1));
    let stored = server.metric("lognode_log_written_bytes");
    for (truncated, expected) in [(false, 10), (true, 0)] {
        if truncated {
            truncate(&server.address, "p", 70).unwrap();
        }
        let filter = Filter::new(vec!["v1".into()], vec![], Timetick::ZERO, Timetick::MAX);
        let mut reader = RawReader::open_with(&server.address, "p", Start::Earliest, filter, 8 << 20).unwrap();
        let begin = Instant::now();
        assert_eq!(reader.collect(expected, PATIENCE).len(), expected);
        let now_ms = || {
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap()
                .as_millis() as u64
        };
        loop {
            let tick = reader.tick(PATIENCE);
            if tick.next_offset == Offset(70) && tick.timetick.physical().get() + 100 > now_ms() {
                break;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(2),
                "no fresh tick at the end: {tick:?}"
            );
        }
        let ticks = reader.listen(Duration::from_secs(1)).len();
        assert!(ticks > 50, "{ticks} ticks in 1 s");
    }
    assert_eq!(
        server.metric("lognode_log_written_bytes"),
        stored,
        "the quiet time wrote"
    );
}

/// Case 9: a filter that matches nothing. A tenth of its million messages, as this also runs without optimisation.
#[test]
fn a_filter_that_matches_nothing_moves_on_and_sends_nothing() {
    const BATCHES: u64 = 50;
    const PER_BATCH: u64 = 2_000;
    let scratch = Scratch::new("filter");
    let data = scratch.path().join("data");
    let server = Server::start_with(&data, &Options::small());
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    let messages: Vec<(&str, MessageType, &[u8])> = vec![("a", MessageType::INSERT, b"payload"); PER_BATCH as usize];
    let batch = record("p", 0, 0, 0, &messages);
    for i in 0..BATCHES {
        producer.send(i, &batch).unwrap();
    }
    for _ in 0..BATCHES {
        producer.answer(PATIENCE).expect("an ack").1.ack();
    }
    server.kill(); // all of it is read from disk
    let server = Server::start_with(&data, &Options::small());
    let end = server_time(&server, "p");
    let nothing: [(&str, Filter); 3] = [
        (
            "vchannel",
            Filter::new(vec!["b".into()], vec![], Timetick::ZERO, Timetick::MAX),
        ),
        (
            "type",
            Filter::new(vec![], vec![MessageType::DELETE], Timetick::ZERO, Timetick::MAX),
        ),
        ("time", Filter::new(vec![], vec![], end.plus(1 << 40), Timetick::MAX)),
    ];
    for (name, filter) in nothing {
        let open = |start| RawReader::open_with(&server.address, "p", start, filter.clone(), 1 << 20).unwrap();
        let mut reader = open(Start::Earliest);
        let (begin, mut moved, mut ticks) = (Instant::now(), Instant::now(), 0u32);
        while reader.watch.next < BATCHES * PER_BATCH || ticks < 20 {
            let before = reader.watch.next;
            reader.tick(Duration::from_secs(1));
            ticks += 1;
            if reader.watch.next > before {
                moved = Instant::now();
            }
            let at_end = reader.watch.next == BATCHES * PER_BATCH;
            assert!(
                at_end || moved.elapsed() < Duration::from_secs(1),
                "{name}: stuck at {before}"
            );
            assert!(
                begin.elapsed() < PATIENCE * 3,
                "{name}: {before} after {:?}",
                begin.elapsed()
            );
        }
        assert_eq!(reader.delivered_bytes, 0, "{name}");
        let (position, read) = (reader.watch.next, server.metric("lognode_log_read_bytes"));
        drop(reader);
        std::thread::sleep(Duration::from_millis(600)); // metrics are published by then
        let before = server.metric("lognode_log_read_bytes").max(read);
        let mut again = open(Start::Offset(Offset(position)));
        again.tick(PATIENCE);
        std::thread::sleep(Duration::from_millis(600));
        assert_eq!(server.metric("lognode_log_read_bytes"), before, "{name}: scanned again");
    }
}

#[test]
fn a_reader_of_what_can_not_be_is_refused_in_words() {
    let scratch = Scratch::new("words");
    let options = Options::small().env("LOGNODE_PCHANNELS__AUTO_CREATE", false);
    let server = Server::start_with(&scratch.path().join("data"), &options);
    assert_says(
        &refused(&server, "nowhere", Start::Earliest),
        RefusalCode::UnknownPchannel,
        &["nowhere", "auto_create"],
    );
    for name in ["", "..", "a/b", "\u{e9}"] {
        assert_eq!(
            refused(&server, name, Start::Earliest).code,
            RefusalCode::BadRequest,
            "{name:?}"
        );
    }
    let NoWelcome::Refused(_) = RawProducer::open(&server.address, "nowhere").map(|_| ()).unwrap_err() else {
        panic!("not told");
    };
}
