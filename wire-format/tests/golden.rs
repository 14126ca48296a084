//! Bytes that older builds wrote are read for ever: each file under `golden` is compared byte for byte and read back.
//! After a change of the format that is meant, `BLESS=1 cargo test -p wire-format --test golden` writes them anew.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod model;

use std::{fs, path::Path};

use model::{Message, Stored, builder_of, stamp_of, stored};
use wire_format::{
    Limits, MessageType, Millis, Offset, ProducerEpoch, ProducerId, Sequence, Timetick,
    batch::{Door, Filter, Matched, Origin, Selection, SubsetWriter, stamp, verify},
    frame::{Ack, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Tick, frame},
    ids::Bytes,
    protocol::{Hello, Intent, ReadRequest, Refusal, RefusalCode, Start},
};

/// Compares with the file, or writes it. Gives the file's bytes: what is read back is what was stored.
fn golden(name: &str, made: &[u8]) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, made).unwrap();
    }
    let kept = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; BLESS=1 writes it", path.display()));
    let differs = kept.iter().zip(made).position(|(a, b)| a != b);
    assert!(
        kept == made,
        "{name}: {} bytes, now {}; first difference at {differs:?}",
        kept.len(),
        made.len()
    );
    kept
}

const FIRST: Timetick = Timetick::new(Millis(1_700_000_000_000), 5);

fn messages() -> Vec<Message> {
    vec![
        Message::new(
            "by-dev-rootcoord-dml_0_v0",
            2,
            &[("partition", "p1"), ("", "")],
            b"rows",
        ),
        Message::new("by-dev-rootcoord-dml_0_v1", 3, &[], b"keys"),
        Message::new("by-dev-rootcoord-dml_0_v0", 901, &[("txn", "7")], b""),
        Message::new("größe", 40_000, &[], b""),
        Message::new(
            "by-dev-rootcoord-dml_0_v1",
            2,
            &[("ключ", "значение")],
            &[0, 255, 10, 13],
        ),
    ]
}

fn record() -> Vec<u8> {
    let origin = Origin {
        producer_id: ProducerId(0x0123_4567_89ab_cdef),
        producer_epoch: ProducerEpoch(2),
        first_sequence: Sequence(40),
    };
    let mut builder = builder_of("by-dev-rootcoord-dml_0", &messages(), Limits::default());
    let mut record = builder.finish(origin).unwrap().to_bytes();
    let layout = verify(&record, Door::Producer, &Limits::default()).unwrap().layout();
    stamp(&mut record, &layout, &stamp_of(1_000_000, FIRST.get()));
    record
}

fn expected(indices: &[usize]) -> Vec<Stored> {
    let messages = messages();
    let one = |&i: &usize| Stored {
        offset: Offset(1_000_000 + i as u64),
        timetick: FIRST.plus(i as u64),
        message: messages[i].clone(),
    };
    indices.iter().map(one).collect()
}

#[test]
fn a_stamped_record() {
    let kept = golden("record.bin", &record());
    let view = verify(&kept, Door::Storage, &Limits::default()).unwrap();
    assert_eq!(stored(&view), expected(&[0, 1, 2, 3, 4]));
    let meta = view.meta();
    assert_eq!(view.pchannel(), "by-dev-rootcoord-dml_0");
    assert_eq!(
        (meta.base_offset, meta.next_offset()),
        (Offset(1_000_000), Offset(1_000_005))
    );
    assert_eq!((meta.term.get(), meta.span), (3, 5));
    assert_eq!((meta.min_timetick, meta.max_timetick), (FIRST, FIRST.plus(4)));
    assert_eq!(meta.promised_timetick, FIRST.previous());
    assert_eq!(meta.producer_id, ProducerId(0x0123_4567_89ab_cdef));
    assert_eq!(
        (meta.producer_epoch, meta.first_sequence),
        (ProducerEpoch(2), Sequence(40))
    );
    assert_eq!(meta.type_bitmap, 1 << 2 | 1 << 3 | 1 << 63);
}

#[test]
fn a_filtered_delivery() {
    let record = record();
    let view = verify(&record, Door::Storage, &Limits::default()).unwrap();
    let types = vec![MessageType::INSERT, MessageType::DELETE];
    let filter = Filter::new(
        vec!["by-dev-rootcoord-dml_0_v1".into()],
        types,
        Timetick::ZERO,
        Timetick::MAX,
    );
    let mut selection = Selection::default();
    assert_eq!(filter.select(&view, &mut selection), Matched::Some);
    let mut part = Vec::new();
    SubsetWriter::default().write(&view, selection.indices(), &mut part);

    let kept = golden("subset.bin", &part);
    let view = verify(&kept, Door::Storage, &Limits::default()).unwrap();
    assert_eq!(stored(&view), expected(&[1, 4]));
    assert_eq!(view.vchannels().collect::<Vec<_>>(), ["by-dev-rootcoord-dml_0_v1"]);
    assert_eq!((view.meta().span, view.type_bitmap()), (5, 1 << 2 | 1 << 3));
}

/// Splits a kept frame, whose header must describe it.
fn opened(kept: &[u8], kind: FrameKind, correlation: u64) -> &[u8] {
    let (head, body) = kept.split_first_chunk::<FRAME_HEADER_BYTES>().unwrap();
    let header = FrameHeader::read(head, &Limits::default()).unwrap();
    assert_eq!(header, FrameHeader::new(kind, body.len(), correlation));
    body
}

#[test]
fn a_hello() {
    let mut hello = Hello::new("golden", Intent::Read, "by-dev-rootcoord-dml_0");
    hello.features = 0x55;
    hello.credentials = vec![1, 2, 3];
    hello.read = Some(ReadRequest {
        start: Start::Timetick(FIRST),
        filter: Filter::new(
            vec!["v1".into(), "v0".into()],
            vec![MessageType::INSERT, MessageType(900)],
            FIRST,
            FIRST.plus(99),
        ),
        credit: Bytes(1 << 20),
    });
    let kept = golden("hello.bin", &frame(FrameKind::Hello, 1, &hello.to_body()));
    assert_eq!(Hello::read(opened(&kept, FrameKind::Hello, 1)).unwrap(), hello);
}

#[test]
fn a_refusal() {
    let refusal = Refusal {
        versions: (1, 2),
        features: 3,
        address: "10.0.0.2:7001".into(),
        term: wire_format::Term(9),
        asked_offset: Offset(10),
        first_offset: Offset(11),
        next_offset: Offset(12),
        limit_name: "bytes per second".into(),
        measured: 13,
        limit_value: 14,
        retry_after: Millis(15),
        expected_sequence: Sequence(16),
        file: "p/0000000001.seg".into(),
        damaged: (4096, 8192),
        ..Refusal::new(
            RefusalCode::RateLimited,
            "the limit of 14 is passed; try again in 15 ms",
        )
    };
    let kept = golden("refusal.bin", &frame(FrameKind::Refusal, 77, &refusal.to_body()));
    assert_eq!(Refusal::read(opened(&kept, FrameKind::Refusal, 77)).unwrap(), refusal);
}

#[test]
fn an_ack() {
    let ack = Ack {
        base_offset: Offset(1_000_000),
        first_timetick: FIRST,
        count: 5,
        duplicate: true,
    };
    let kept = golden("ack.bin", &frame(FrameKind::Ack, 78, &ack.to_bytes()));
    assert_eq!(Ack::read(opened(&kept, FrameKind::Ack, 78)).unwrap(), ack);
}

#[test]
fn a_tick() {
    let tick = Tick {
        timetick: FIRST.plus(1),
        next_offset: Offset(1_000_005),
    };
    let kept = golden("tick.bin", &frame(FrameKind::Tick, 0, &tick.to_bytes()));
    assert_eq!(Tick::read(opened(&kept, FrameKind::Tick, 0)).unwrap(), tick);
}
