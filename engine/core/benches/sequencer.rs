//! What a batch costs in the sequencer: its place, and its producer's entry.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use lognode_core::{AppendRequest, Dedupe, DedupeLimits, Sequencer};
use wire_format::{Millis, Offset, ProducerEpoch, ProducerId, Sequence, Term, Timetick};

const COUNT: u32 = 100;

fn sequencer() -> Sequencer {
    Sequencer::new(
        Term(1),
        Offset::ZERO,
        Timetick::ZERO,
        Dedupe::new(DedupeLimits::default()),
    )
}

fn request(producer: u64, first_sequence: u64) -> AppendRequest {
    AppendRequest {
        producer: ProducerId(producer),
        epoch: ProducerEpoch(1),
        first_sequence: Sequence(first_sequence),
        count: COUNT,
    }
}

fn append(criterion: &mut Criterion) {
    let now = Timetick::from_physical(Millis(1_700_000_000_000));
    let mut group = criterion.benchmark_group("append_batch");
    group.bench_function("no_dedupe", |bencher| {
        let mut sequencer = sequencer();
        bencher.iter(|| sequencer.append(black_box(now), black_box(&request(0, 0))));
    });
    group.bench_function("dedupe_1000_producers", |bencher| {
        let mut sequencer = sequencer();
        let mut sent = 0u64;
        bencher.iter(|| {
            let request = request(1 + sent % 1_000, sent / 1_000 * u64::from(COUNT));
            sent += 1;
            sequencer.append(black_box(now), black_box(&request))
        });
    });
    group.bench_function("duplicate", |bencher| {
        let mut sequencer = sequencer();
        let retry = request(7, 0);
        for batch in 0..32 {
            assert!(sequencer.append(now, &request(7, batch * u64::from(COUNT))).is_ok());
        }
        bencher.iter(|| sequencer.append(black_box(now), black_box(&retry)));
    });
    group.bench_function("refused", |bencher| {
        let mut sequencer = sequencer();
        bencher.iter(|| sequencer.append(black_box(now), black_box(&request(7, 5))));
    });
    group.finish();
}

criterion_group!(benches, append);
criterion_main!(benches);
