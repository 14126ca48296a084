//! What a message costs on its way in: built by a client, verified and stamped by a server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use wire_format::{
    Limits, MessageType, Offset, Term, Timetick,
    batch::{BatchBuilder, Door, Origin, Stamp, stamp, verify},
};

const SHAPES: [(&str, u64, usize); 4] = [
    ("256B_x_1000", 1_000, 256),
    ("1KiB_x_1000", 1_000, 1_024),
    ("1KiB_x_1", 1, 1_024),
    // All but headers: what the checks cost without payload checksums.
    ("empty_x_1000", 1_000, 0),
];
const NAMES: [&str; 4] = ["by-dev-dml_0", "by-dev-dml_1", "by-dev-dml_2", "by-dev-dml_3"];

fn fill(builder: &mut BatchBuilder, messages: u64, body: &[u8]) {
    for i in 0..messages as usize {
        builder.push(NAMES[i % 4], MessageType::INSERT, [], body).unwrap();
    }
}

fn benches(c: &mut Criterion) {
    let limits = Limits::default();
    let given = Stamp {
        base_offset: Offset(0),
        term: Term(1),
        first_timetick: Timetick(1 << 40),
        promised_timetick: Timetick(1),
    };
    for (name, messages, size) in SHAPES {
        let body: Vec<u8> = (0..size).map(|i| i as u8).collect();
        let mut builder = BatchBuilder::new("bench", limits).unwrap();
        let mut build = c.benchmark_group("build");
        build.throughput(Throughput::Elements(messages));
        build.bench_function(name, |b| {
            b.iter(|| {
                fill(&mut builder, messages, black_box(&body));
                builder.finish(Origin::default()).unwrap()
            })
        });
        build.finish();

        fill(&mut builder, messages, &body);
        let mut record = builder.finish(Origin::default()).unwrap().to_bytes();
        let layout = verify(&record, Door::Producer, &limits).unwrap().layout();
        let mut doors = c.benchmark_group("verify");
        doors.throughput(Throughput::Elements(messages));
        doors.bench_function(format!("producer/{name}"), |b| {
            b.iter(|| verify(black_box(&record), Door::Producer, &limits).unwrap().count())
        });
        stamp(&mut record, &layout, &given);
        doors.bench_function(format!("storage/{name}"), |b| {
            b.iter(|| verify(black_box(&record), Door::Storage, &limits).unwrap().count())
        });
        doors.finish();

        let mut stamps = c.benchmark_group("stamp");
        stamps.throughput(Throughput::Elements(messages));
        stamps.bench_function(name, |b| {
            b.iter_batched_ref(|| record.clone(), |r| stamp(r, &layout, &given), BatchSize::SmallInput)
        });
        stamps.finish();
    }

    let names: Vec<String> = (0..1_000).map(|i| format!("by-dev-dml_{i}")).collect();
    let mut builder = BatchBuilder::new("bench", limits).unwrap();
    let mut build = c.benchmark_group("build");
    build.throughput(Throughput::Elements(1_000));
    build.bench_function("64B_x_1000_vchannels", |b| {
        b.iter(|| {
            for name in &names {
                builder.push(name, MessageType::INSERT, [], &[7; 64]).unwrap();
            }
            builder.finish(Origin::default()).unwrap()
        })
    });
    build.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
