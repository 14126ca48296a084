//! Bytes of strangers and of rotten disks: a typed error, or a record on which everything works. Never a panic.
//!
//! Seeded, so that a failure can be run again: it names the case, and `LOGNODE_FUZZ_CASE=N` runs that one alone.
//! `LOGNODE_FUZZ_SECONDS=N` (or `FUZZ_SECONDS`) goes on with ever new cases for that long.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "hostile/check.rs"]
mod check;
#[path = "hostile/craft.rs"]
mod craft;
mod model;
#[path = "hostile/mutate.rs"]
mod mutate;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use check::{Outcome, check_body, check_record, mend, mend_payloads};
use model::{Message, record_of, stamp_of};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use wire_format::{
    Limits, MessageType, Offset, Timetick,
    batch::{Door, Filter, stamp, verify},
    frame::{Ack, FrameKind, frame},
    protocol::{AdminReply, AdminRequest, Hello, HelloReply, Intent, PchannelInfo, ReadRequest, Refusal, RefusalCode},
};

/// Runs `case` by number: a bounded many of them, or for as long as the environment says.
fn cases(bounded: u64, mut case: impl FnMut(&mut SmallRng)) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let only = number("LOGNODE_FUZZ_CASE");
    let seconds = number("LOGNODE_FUZZ_SECONDS").or_else(|| number("FUZZ_SECONDS"));
    let end = seconds.map(|s| Instant::now() + Duration::from_secs(s));
    let mut index = only.unwrap_or(0);
    loop {
        let mut rng = SmallRng::seed_from_u64(index);
        let run = catch_unwind(AssertUnwindSafe(|| case(&mut rng)));
        assert!(run.is_ok(), "case {index}; LOGNODE_FUZZ_CASE={index} runs it alone");
        index += 1;
        if only.is_some() || end.map_or(index >= bounded, |end| index >= bounded && Instant::now() >= end) {
            println!("{index} cases");
            return;
        }
    }
}

/// Good records, stamped and not.
fn records() -> Vec<Vec<u8>> {
    let texts = |count: usize| -> Vec<Message> {
        let name = |i: usize| ["a", "vchannel-1", "größe"][i % 3];
        let body = |i: usize| vec![i as u8; 7 * i];
        (0..count)
            .map(|i| Message::new(name(i), [2, 3, 70][i % 3], &[("key", "value")], &body(i)))
            .collect()
    };
    let mut records: Vec<_> = [1, 2, 5, 9].map(|count| record_of("pchannel-0", &texts(count))).into();
    for i in 0..records.len() {
        let mut record = records[i].clone();
        let layout = verify(&record, Door::Producer, &Limits::default()).unwrap().layout();
        stamp(&mut record, &layout, &stamp_of(40, 1000));
        records.push(record);
    }
    records
}

/// Counts what passes which door, so that a fuzzer that reaches nothing is noticed.
#[derive(Default)]
struct Reached {
    producer: u64,
    storage: u64,
    neither: u64,
}

impl Reached {
    fn count(&mut self, outcome: Outcome) {
        self.producer += u64::from(outcome.producer);
        self.storage += u64::from(outcome.storage);
        self.neither += u64::from(outcome == Outcome::default());
    }

    fn assert_all(&self) {
        let Self {
            producer,
            storage,
            neither,
        } = self;
        println!("passed as produced {producer}, as stored {storage}, refused {neither}");
        if std::env::var_os("LOGNODE_FUZZ_CASE").is_none() {
            assert!(*producer > 500 && *storage > 500 && *neither > 500);
        }
    }
}

#[test]
fn fuzz_mutated_records() {
    let records = records();
    let mut reached = Reached::default();
    cases(100_000, |rng| {
        let mut record = records[rng.random_range(0..records.len())].clone();
        mutate::mutate(&mut record, &records, rng);
        // Without it nearly every case ends at the crc.
        if rng.random_bool(0.95) {
            mend(&mut record);
        }
        if rng.random_bool(0.5) {
            mend_payloads(&mut record);
        }
        reached.count(check_record(&record));
    });
    reached.assert_all();
}

#[test]
fn fuzz_crafted_records() {
    let mut reached = Reached::default();
    cases(60_000, |rng| {
        let mut record = craft::record(rng);
        if rng.random_bool(0.2) {
            mutate::mutate(&mut record, &[], rng);
            mend(&mut record);
        }
        let mut outcome = check_record(&record);
        outcome.storage |= outcome.producer;
        reached.count(outcome);
    });
    reached.assert_all();
}

/// Good bodies of every kind of frame.
fn bodies() -> Vec<Vec<u8>> {
    let mut hello = Hello::new("client", Intent::Read, "pchannel-0");
    let filter = Filter::new(
        vec!["v0".into(), "v1".into()],
        vec![MessageType::INSERT],
        Timetick(1),
        Timetick(2),
    );
    hello.read = Some(ReadRequest {
        filter,
        ..ReadRequest::default()
    });
    let info = |name: &str| PchannelInfo {
        name: name.into(),
        failed: "no".into(),
        ..Default::default()
    };
    let admin = AdminReply {
        pchannels: vec![info("a"), info("b")],
        ..Default::default()
    };
    let ack = Ack {
        base_offset: Offset(1),
        first_timetick: Timetick(2),
        count: 3,
        duplicate: false,
    };
    vec![
        hello.to_body(),
        Hello::new("c", Intent::Admin, "").to_body(),
        HelloReply {
            server_name: "server".into(),
            ..Default::default()
        }
        .to_body(),
        Refusal::new(RefusalCode::Truncated, "gone").to_body(),
        AdminRequest::Truncate { upto: Offset(9) }.to_body(),
        admin.to_body(),
        frame(FrameKind::Ack, 7, &ack.to_bytes()),
    ]
}

#[test]
fn fuzz_bodies_of_frames() {
    let bodies = bodies();
    cases(40_000, |rng| {
        let mut body = bodies[rng.random_range(0..bodies.len())].clone();
        mutate::mutate(&mut body, &bodies, rng);
        check_body(&body);
    });
}
