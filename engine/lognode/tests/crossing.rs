//! Case 14: readers that cross between disk and memory, more than a hundred times, without a gap or a repeat.
//!
//! Seen to fail with: a log cursor that begins one message late; a batch that is delivered again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{thread, time::Duration};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use support::{
    Options, Scratch, Server,
    raw::{Got, Heard, PATIENCE, RawProducer, RawReader, inserts, list},
};
use wire_format::{Offset, batch::Filter, protocol::Start};

/// The least memory that these limits allow: a tail of 256 KiB.
fn tiny() -> Options {
    Options::small()
        .env("LOGNODE_LIMITS__BATCH_BYTES", 64 << 10)
        .env("LOGNODE_SHARDS__MEMORY_BYTES", 512 << 10)
}

/// Appends the messages `from..to`, in batches of random size.
fn write(address: &str, from: u64, to: u64, seed: u64, body: usize) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut producer = RawProducer::open(address, "p").unwrap();
    let (mut next, mut waiting) = (from, 0);
    while next < to {
        let end = to.min(next + random.random_range(1..(40_000 / body as u64).min(40)));
        let bodies: Vec<Vec<u8>> = (next..end)
            .map(|i| {
                let mut body = vec![i as u8; random.random_range(0..body)];
                body.splice(0..0, i.to_le_bytes());
                body
            })
            .collect();
        let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        producer.send(next, &inserts("p", "v", &bodies)).unwrap();
        (next, waiting) = (end, waiting + 1);
        while waiting > if next < to { 8 } else { 0 } {
            producer.answer(PATIENCE).expect("an ack").1.ack();
            waiting -= 1;
        }
        if random.random_bool(0.05) {
            thread::sleep(Duration::from_millis(random.random_range(0..4)));
        }
    }
}

fn check(messages: &[Got]) {
    for message in messages {
        let number = u64::from_le_bytes(message.body[..8].try_into().unwrap());
        assert_eq!(number, message.offset, "a message at another's place");
    }
}

/// Reads up to `end`, now and then with a pause; offsets are checked one by one.
fn read(address: &str, start: u64, end: u64, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let credit = random.random_range(1..300_000);
    let mut reader =
        RawReader::open_with(address, "p", Start::Offset(Offset(start)), Filter::default(), credit).unwrap();
    while reader.watch.next < end {
        match reader.next(PATIENCE) {
            Ok(Heard::Messages(messages)) => check(&messages),
            Ok(Heard::Tick(_)) => {}
            Err(silence) => panic!("{silence:?} at {:?}", reader.watch),
        }
        if random.random_bool(0.02) {
            thread::sleep(Duration::from_millis(random.random_range(0..30)));
        }
    }
}

#[test]
fn readers_behind_a_kill_meet_new_writes() {
    for seed in 0..8 {
        let scratch = Scratch::new("crossing");
        let data = scratch.path().join("data");
        let server = Server::start_with(&data, &tiny());
        write(&server.address, 0, 5_000, seed, 300);
        server.kill();
        let server = Server::start_with(&data, &tiny());
        let address = server.address.as_str();
        thread::scope(|scope| {
            scope.spawn(move || write(address, 5_000, 10_000, seed + 100, 300));
            for reader in 0..3 {
                scope.spawn(move || read(address, 0, 10_000, seed * 10 + reader));
            }
            scope.spawn(move || read(address, 4_900 + seed * 11, 10_000, seed * 10 + 9));
        });
        assert!(!server.log().contains("panicked"), "{}", server.log());
    }
}

#[test]
fn readers_fall_out_of_memory_and_come_back_a_hundred_times() {
    const READERS: usize = 3;
    const ROUNDS: u64 = 20;
    const PER_ROUND: u64 = 400;
    let scratch = Scratch::new("crossings");
    let server = Server::start_with(&scratch.path().join("data"), &tiny());
    let address = server.address.as_str();
    let mut readers: Vec<_> = (0..READERS)
        .map(|i| {
            let credit = 20_000 + 40_000 * i as u64;
            RawReader::open_with(address, "p", Start::Earliest, Filter::default(), credit).unwrap()
        })
        .collect();
    for round in 0..ROUNDS {
        // Nobody reads: what little credit there was is used up, and the tail rolls on over where the readers stand.
        let (from, to) = (round * PER_ROUND, (round + 1) * PER_ROUND);
        write(address, from, to - PER_ROUND / 4, round, 4_000);
        // All come back at once, while writing goes on: from disk, over the edge, into memory, live.
        thread::scope(|scope| {
            scope.spawn(move || write(address, to - PER_ROUND / 4, to, round + 500, 4_000));
            for reader in &mut readers {
                scope.spawn(move || {
                    while reader.watch.next < to {
                        match reader.next(PATIENCE) {
                            Ok(Heard::Messages(messages)) => check(&messages),
                            Ok(Heard::Tick(_)) => {}
                            Err(silence) => panic!("{silence:?} at {:?}", reader.watch),
                        }
                    }
                });
            }
        });
    }
    thread::sleep(Duration::from_millis(600)); // metrics are published by then
    let read = server.metric("lognode_log_read_bytes");
    // Each round wrote some 800 KB, of which the tail keeps 256 KiB: each reader of each round had to go to the disk, and
    // came back from it. Two crossings a round and reader.
    let crossings = 2 * ROUNDS * READERS as u64;
    assert!(crossings >= 100);
    assert!(
        read > ROUNDS * READERS as u64 * 300_000,
        "only {read} bytes came from disk"
    );
    // What the budget counts is what the tail really holds, however often it was full.
    let counted = server.metric("lognode_memory_used_bytes{shard=\"0\",part=\"tail\"}");
    let held: u64 = list(&server.address).iter().map(|pchannel| pchannel.tail.get()).sum();
    assert_eq!(counted, held, "the budget's count of the tail has drifted");
    let tail = server.gauge("lognode_memory_used_bytes");
    assert!(tail <= 512 << 10, "{tail} bytes of memory in use");
    assert!(!server.log().contains("panicked"), "{}", server.log());
}
