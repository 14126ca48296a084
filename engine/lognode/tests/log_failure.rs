//! A log whose folder is gone for a while: its producers are told, others go on, and it comes back with all that was acked.
//!
//! Seen to fail with: the memory of a block that found no place, which was never given back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{fs, thread, time::Duration};

use support::{
    Options, Scratch, Server,
    raw::{Answer, PATIENCE, RawProducer, inserts, list, read_all},
};
use wire_format::protocol::RefusalCode;

#[test]
fn a_log_that_failed_is_told_opened_again_and_keeps_no_memory() {
    let scratch = Scratch::new("failed");
    let data = scratch.path().join("data");
    let server = Server::start_with(&data, &Options::small());
    let (folder, away) = (data.join("pchannels/p"), data.join("away"));
    let mut other = RawProducer::open(&server.address, "other").unwrap();
    let body = vec![7; 60_000];
    let mut acked = Vec::new();
    for round in 0..15 {
        let mut producer = RawProducer::open(&server.address, "p").unwrap();
        acked.push(producer.ask(&inserts("p", "v", &[b"well"])).ack().base_offset.get());
        fs::rename(&folder, &away).unwrap();
        // Goes on until the next file can't be made.
        let refusal = loop {
            producer.send(1, &inserts("p", "v", &[&body])).unwrap();
            match producer.answer(PATIENCE).expect("an answer").1 {
                Answer::Ack(ack) => acked.push(ack.base_offset.get()),
                Answer::Refused(refusal) => break refusal,
            }
            assert!(acked.len() < 2_000, "a log without a folder goes on");
        };
        assert_eq!(refusal.code, RefusalCode::LogFailed, "{refusal:?}");
        assert!(producer.raw.ends_within(PATIENCE));
        other.ask(&inserts("other", "v", &[b"not my log"])).ack();
        fs::rename(&away, &folder).unwrap();
        if round % 4 == 3 {
            thread::sleep(Duration::from_millis(50));
        }
    }
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    acked.push(producer.ask(&inserts("p", "v", &[b"well"])).ack().base_offset.get());
    let (first, log) = read_all(&server.address, "p");
    for offset in acked {
        assert_eq!(log[(offset - first) as usize].offset, offset);
    }
    thread::sleep(Duration::from_millis(700)); // metrics are published by then
    let counted = server.metric("lognode_memory_used_bytes{shard=\"0\",part=\"tail\"}");
    let held: u64 = list(&server.address).iter().map(|pchannel| pchannel.tail.get()).sum();
    assert_eq!(counted, held, "memory of failed blocks is kept");
    assert!(!server.log().contains("panicked"), "{}", server.log());
}
