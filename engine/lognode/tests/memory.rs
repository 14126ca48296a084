//! The shard's memory, where many pchannels share it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{fs, thread, time::Duration};

use socket2::SockRef;
use support::{
    Options, Scratch, Server,
    raw::{PATIENCE, RawProducer, RawReader, inserts},
};
use wire_format::{batch::Filter, protocol::Start};

fn resident_bytes(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Each pchannel keeps an empty block for what comes next; a large batch elsewhere gets their memory. Seen failing while only
/// the pchannel itself could give it up: the batch waited for ever.
#[test]
fn a_large_batch_gets_the_memory_that_quiet_pchannels_keep() {
    let scratch = Scratch::new("memory");
    let options = Options::small()
        .env("LOGNODE_LIMITS__BATCH_BYTES", 1 << 20)
        .env("LOGNODE_LOG__SEGMENT_BYTES", 4 << 20)
        .env("LOGNODE_SHARDS__CPUS", "[0]")
        .env("LOGNODE_SHARDS__MEMORY_BYTES", 8 << 20);
    let server = Server::start_with(&scratch.path().join("data"), &options);
    for number in 0..40 {
        let name = format!("quiet-{number}");
        let mut producer = RawProducer::open(&server.address, &name).unwrap();
        producer.ask(&inserts(&name, "v", &[b"one"])).ack();
    }
    let mut producer = RawProducer::open(&server.address, "large").unwrap();
    let body = vec![7; (1 << 20) - 4_096];
    for round in 0..3 {
        producer.send(round, &inserts("large", "v", &[&body])).unwrap();
        let (_, answer) = producer.answer(PATIENCE).expect("an ack, since there is memory");
        assert_eq!(answer.ack().base_offset.get(), round);
    }
    server.stop();
}

/// Readers that ask for everything and take nothing. Seen failing while what a reader holds was counted by nobody.
#[test]
fn readers_that_stand_still_stay_inside_the_budget_and_others_are_served() {
    const BUDGET: u64 = 32 << 20;
    let scratch = Scratch::new("stalled");
    let options = Options::small()
        .env("LOGNODE_LOG__SEGMENT_BYTES", 4 << 20)
        .env("LOGNODE_LOG__READ_AHEAD_BYTES", 4 << 20)
        .env("LOGNODE_SHARDS__CPUS", "[0]")
        .env("LOGNODE_SHARDS__MEMORY_BYTES", BUDGET);
    let server = Server::start_with(&scratch.path().join("data"), &options);
    let before = resident_bytes(&server);
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    let body = vec![7; 200_000];
    const MESSAGES: u64 = 300;
    for _ in 0..MESSAGES {
        producer.ask(&inserts("p", "v", &[&body])).ack();
    }
    let start = |number: u64| match number % 3 {
        0 => Start::Earliest,
        _ => Start::Offset(wire_format::Offset(number % MESSAGES)),
    };
    let everything = 1 << 40;
    let mut stalled = Vec::new();
    for number in 0..120 {
        let filter = Filter::default();
        let reader = RawReader::open_with(&server.address, "p", start(number), filter, everything).unwrap();
        // What the kernel holds for it is not ours.
        SockRef::from(&reader.raw.stream).set_recv_buffer_size(4_096).unwrap();
        stalled.push(reader);
    }
    let sent = || server.metric("lognode_delivered_bytes_total{shard=\"0\"}");
    let mut known = 0;
    while sent() == 0 || sent() > known {
        known = sent();
        thread::sleep(Duration::from_millis(1_000));
    }
    let grown = resident_bytes(&server) - before;
    assert!(grown < BUDGET * 9 / 8, "{} MiB of {} MiB", grown >> 20, BUDGET >> 20);
    let reading = server.metric("lognode_memory_used_bytes{shard=\"0\",part=\"reading\"}");
    assert!(reading <= BUDGET / 16 * 3, "{reading}");
    // One that takes what it asked for gets it, though all the others stand in its way.
    let mut live = RawReader::open(&server.address, "p", Start::Earliest).unwrap();
    let got = live.collect(MESSAGES as usize, 3 * PATIENCE);
    assert_eq!(got.len() as u64, MESSAGES);
    assert!(got.iter().all(|message| message.body.len() == body.len()));
    server.stop();
}
