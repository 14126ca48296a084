//! What a reader's filter costs: for each header that is scanned, and for a batch that is skipped without scanning.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use wire_format::{
    Limits, MessageType, Offset, Term, Timetick,
    batch::{BatchBuilder, BatchView, Door, Filter, Matched, Origin, Selection, Stamp, SubsetWriter, stamp, verify},
};

const MESSAGES: u64 = 1_000;
const FIRST: Timetick = Timetick(1 << 40);

/// Inserts on even vchannels, deletes on odd ones: `insert` on `v1` passes bitmap and dictionary and matches nothing.
fn record() -> Vec<u8> {
    let mut builder = BatchBuilder::new("bench", Limits::default()).unwrap();
    for i in 0..MESSAGES {
        let message_type = if i % 2 == 0 {
            MessageType::INSERT
        } else {
            MessageType::DELETE
        };
        builder
            .push(&format!("by-dev-rootcoord-dml_{}", i % 4), message_type, [], &[7; 64])
            .unwrap();
    }
    let mut record = builder.finish(Origin::default()).unwrap().to_bytes();
    let layout = verify(&record, Door::Producer, &Limits::default()).unwrap().layout();
    let given = Stamp {
        base_offset: Offset(0),
        term: Term(1),
        first_timetick: FIRST,
        promised_timetick: FIRST.previous(),
    };
    stamp(&mut record, &layout, &given);
    record
}

fn filter(vchannels: &[&str], types: &[MessageType], range: (Timetick, Timetick)) -> Filter {
    let names = vchannels.iter().map(|&name| name.to_owned()).collect();
    Filter::new(names, types.to_vec(), range.0, range.1)
}

fn select(c: &mut Criterion) {
    let record = record();
    let layout = verify(&record, Door::Storage, &Limits::default()).unwrap().layout();
    let all = (Timetick::ZERO, Timetick::MAX);
    let v = |i: usize| ["by-dev-rootcoord-dml_0", "by-dev-rootcoord-dml_1"][i];

    // As a scan does it: the layout is remembered, the view is made anew.
    let run = |filter: &Filter, selection: &mut Selection| {
        filter.select(&BatchView::new(black_box(&record), black_box(layout)), selection)
    };
    let mut scans = c.benchmark_group("filter_scan_1000_headers");
    scans.throughput(Throughput::Elements(MESSAGES));
    let cases = [
        (
            "nothing_by_type",
            filter(&[v(1)], &[MessageType::INSERT], all),
            Matched::Nothing,
        ),
        (
            "nothing_by_timetick",
            filter(&[v(1)], &[], (FIRST, FIRST)),
            Matched::Nothing,
        ),
        ("a_quarter_by_vchannel", filter(&[v(1)], &[], all), Matched::Some),
        (
            "half_by_two_types",
            filter(&[], &[MessageType::INSERT, MessageType::FLUSH], all),
            Matched::Some,
        ),
    ];
    for (name, filter, expected) in cases {
        let mut selection = Selection::default();
        assert_eq!(run(&filter, &mut selection), expected, "{name}");
        scans.bench_function(name, |b| b.iter(|| run(&filter, &mut selection)));
    }
    scans.finish();

    let mut skips = c.benchmark_group("filter_skip_batch");
    let many: Vec<String> = (0..64).map(|i| format!("another-{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let cases = [
        ("by_bitmap", filter(&[], &[MessageType::FLUSH], all), Matched::Nothing),
        (
            "by_dictionary",
            filter(&["by-dev-rootcoord-dml_9"], &[], all),
            Matched::Nothing,
        ),
        ("by_dictionary_64_wanted", filter(&many, &[], all), Matched::Nothing),
        (
            "by_timetick",
            filter(&[], &[], (FIRST.plus(5_000), Timetick::MAX)),
            Matched::Nothing,
        ),
        ("open_filter", Filter::default(), Matched::Everything),
    ];
    for (name, filter, expected) in cases {
        let mut selection = Selection::default();
        assert_eq!(run(&filter, &mut selection), expected, "{name}");
        skips.bench_function(name, |b| b.iter(|| run(&filter, &mut selection)));
    }
    skips.finish();

    let view = BatchView::new(&record, layout);
    let mut selection = Selection::default();
    let quarter = filter(&[v(1)], &[], all);
    assert_eq!(quarter.select(&view, &mut selection), Matched::Some);
    let (mut writer, mut out) = (SubsetWriter::default(), Vec::new());
    let mut subsets = c.benchmark_group("subset");
    subsets.throughput(Throughput::Elements(MESSAGES / 4));
    subsets.bench_function("write_250_of_1000", |b| {
        b.iter(|| {
            out.clear();
            writer.write(&view, selection.indices(), &mut out);
            out.len()
        })
    });
    subsets.finish();
}

criterion_group!(benches, select);
criterion_main!(benches);
