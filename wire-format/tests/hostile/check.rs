//! What must hold for any bytes at all. Shared by the seeded test and the coverage-guided target in `fuzz/`.

use wire_format::{
    FormatError, Limits, MessageType, Timetick,
    batch::{BatchView, Door, Filter, Matched, PREFIX_BYTES, Selection, SubsetWriter, stamp, verify},
    crc,
    frame::{Ack, FRAME_HEADER_BYTES, FrameHeader, Tick, read_credit},
    protocol::{AdminReply, AdminRequest, Hello, HelloReply, Refusal},
};

use crate::model::{Stored, stamp_of, stored, wanted};

/// Limits that small inputs can reach.
pub const LIMITS: Limits = Limits {
    batch_bytes: 2048,
    messages: 24,
    vchannels: 12,
    name_bytes: 40,
};

/// What became of the bytes: for a test of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    pub producer: bool,
    pub storage: bool,
}

/// Panics if the record's door lets anything through that it must not.
pub fn check_record(bytes: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    match verify(bytes, Door::Producer, &LIMITS) {
        Ok(view) => {
            outcome.producer = true;
            check_taken(&view);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match verify(bytes, Door::Storage, &LIMITS) {
        Ok(view) => {
            outcome.storage = true;
            check_stored(&view);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    outcome
}

/// A record that passed the producer's door can be read, and once stamped passes the door of storage with all that was
/// in it. Else a producer could write a record that ends every recovery and every reader.
fn check_taken(view: &BatchView<'_>) {
    let before = stored(view);
    let mut record = view.bytes().to_vec();
    // Every byte of what is patched becomes non-zero: nothing may depend on one that was.
    let tick = 0x7070_7070_7070_7070;
    stamp(&mut record, &view.layout(), &stamp_of(0x6060_6060_6060_6060, tick));
    let after = verify(&record, Door::Storage, &LIMITS);
    let after = after.unwrap_or_else(|error| panic!("stamped, but not fit for storage: {error}"));
    assert_eq!(after.layout(), view.layout());
    assert_eq!(after.pchannel(), view.pchannel());
    let (meta, sent) = (after.meta(), view.meta());
    assert_eq!(
        (meta.producer_id, meta.producer_epoch),
        (sent.producer_id, sent.producer_epoch)
    );
    assert_eq!((meta.first_sequence, meta.span), (sent.first_sequence, view.count()));
    for (i, (before, after)) in (0u64..).zip(before.iter().zip(stored(&after))) {
        assert_eq!(before.message, after.message);
        assert_eq!(after.offset.get(), 0x6060_6060_6060_6060 + i);
        assert_eq!(after.timetick.get(), tick + i);
    }
    check_stored(&after);
}

/// Whatever a reader asks for of a stored record, it gets just that, in a record that is fit to be read.
fn check_stored(view: &BatchView<'_>) {
    let all = stored(view);
    assert_eq!(all.len(), view.count() as usize);
    assert!(
        all.windows(2)
            .all(|w| w[0].offset < w[1].offset && w[0].timetick < w[1].timetick)
    );
    assert!(all.iter().all(|m| m.offset < view.meta().next_offset()));
    let (mut selection, mut writer) = (Selection::default(), SubsetWriter::default());
    for filter in filters(&all) {
        let expected: Vec<Stored> = all.iter().filter(|m| wanted(&filter, m)).cloned().collect();
        match filter.select(view, &mut selection) {
            Matched::Nothing => assert!(expected.is_empty()),
            Matched::Everything => assert_eq!(expected.len(), all.len()),
            Matched::Some => {
                let mut out = Vec::new();
                writer.write(view, selection.indices(), &mut out);
                let part = verify(&out, Door::Storage, &LIMITS);
                let part = part.unwrap_or_else(|error| panic!("a subset is not fit to be read: {error}"));
                assert_eq!(stored(&part), expected);
            }
        }
    }
}

/// Filters that take some of these messages.
fn filters(all: &[Stored]) -> Vec<Filter> {
    let (first, last) = (&all[0], &all[all.len() - 1]);
    let by = |names: Vec<String>, types: Vec<u16>, min, max| {
        Filter::new(names, types.into_iter().map(MessageType).collect(), min, max)
    };
    vec![
        Filter::default(),
        by(
            vec![first.message.vchannel.clone()],
            vec![],
            Timetick::ZERO,
            Timetick::MAX,
        ),
        by(vec![], vec![last.message.message_type], Timetick::ZERO, Timetick::MAX),
        by(vec![], vec![], first.timetick.plus(1), Timetick::MAX),
        by(vec![], vec![], Timetick::ZERO, last.timetick.previous()),
        by(vec!["nobody".into()], vec![64], last.timetick, first.timetick),
    ]
}

/// Panics if the body of a frame makes more of itself than its size allows, or changes when it is written again.
pub fn check_body(bytes: &[u8]) {
    if let Some(head) = bytes.first_chunk::<FRAME_HEADER_BYTES>()
        && let Ok(header) = FrameHeader::read(head, &LIMITS)
    {
        assert_eq!(header.to_bytes(), *head);
    }
    _ = (Ack::read(bytes), Tick::read(bytes), read_credit(bytes));
    if let Ok(value) = Hello::read(bytes) {
        let read = value
            .read
            .iter()
            .flat_map(|r| r.filter.vchannels())
            .map(String::len)
            .sum::<usize>();
        assert!(value.client_name.len() + value.pchannel.len() + value.credentials.len() + read <= 4 * bytes.len());
        assert_eq!(Hello::read(&value.to_body()), Ok(value));
    }
    if let Ok(value) = HelloReply::read(bytes) {
        assert_eq!(HelloReply::read(&value.to_body()), Ok(value));
    }
    if let Ok(value) = Refusal::read(bytes) {
        assert_eq!(Refusal::read(&value.to_body()), Ok(value));
    }
    if let Ok(value) = AdminRequest::read(bytes) {
        assert_eq!(AdminRequest::read(&value.to_body()), Ok(value));
    }
    if let Ok(value) = AdminReply::read(bytes) {
        let names = value
            .pchannels
            .iter()
            .map(|p| p.name.len() + p.failed.len())
            .sum::<usize>();
        assert!(names + value.held_by.len() <= 4 * bytes.len());
        assert_eq!(AdminReply::read(&value.to_body()), Ok(value));
    }
}

/// Gives a damaged record a right prefix and a right crc, so that the checks behind them are reached.
pub fn mend(record: &mut [u8]) {
    if record.len() < PREFIX_BYTES {
        return;
    }
    let word =
        |record: &[u8], at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
    record[..8].copy_from_slice(b"LNB1\x01\0\0\0");
    record[20..24].fill(0);
    let room = record.len() - PREFIX_BYTES;
    let index_len = (word(record, 8) as usize).min(room) & !7;
    let payload_len = room - index_len;
    record[8..12].copy_from_slice(&(index_len as u32).to_le_bytes());
    record[12..16].copy_from_slice(&(payload_len as u32).to_le_bytes());
    let crc = crc::crc32c_of_parts(&[&record[..16], &record[PREFIX_BYTES..PREFIX_BYTES + index_len]]);
    record[16..20].copy_from_slice(&crc.to_le_bytes());
}

/// Puts the payload checksums right too, as far as the table leads to its headers: random bytes rarely have them.
pub fn mend_payloads(record: &mut [u8]) {
    for _ in 0..LIMITS.messages {
        let Err(FormatError::PayloadChecksum { computed, stored, .. }) = verify(record, Door::Producer, &LIMITS) else {
            return;
        };
        let (wrong, right) = (stored.to_le_bytes(), computed.to_le_bytes());
        let Some(at) = record.windows(4).position(|bytes| bytes == wrong) else {
            return;
        };
        record[at..at + 4].copy_from_slice(&right);
        mend(record);
    }
}
