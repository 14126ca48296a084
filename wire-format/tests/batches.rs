//! What goes into a record comes out of it, stamped, filtered and filtered again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod model;

use model::{Message, Stored, record_of, stamp_of, stored, wanted};
use proptest::{collection::vec, prelude::*};
use wire_format::{
    Bytes, FormatError, Limits, MessageType, Timetick,
    batch::{Door, Filter, Matched, Selection, SubsetWriter, stamp, verify},
    frame::{Ack, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Tick, read_credit},
    ids::Offset,
};

/// Few names, so that filters hit; types on both sides of the bitmap's shared bit.
fn a_name() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-c]", 1 => "[a-z_0-9é]{1,12}", 1 => "v{250}"]
}

fn a_type() -> impl Strategy<Value = u16> {
    prop_oneof![4 => 2u16..6, 2 => 60u16..68, 1 => Just(u16::MAX), 1 => 900u16..903]
}

fn a_message() -> impl Strategy<Value = Message> {
    let properties = vec(("[a-z]{0,8}", ".{0,8}"), 0..3);
    (a_name(), a_type(), properties, vec(any::<u8>(), 0..40)).prop_map(|(vchannel, message_type, properties, body)| {
        Message {
            vchannel,
            message_type,
            properties,
            body,
        }
    })
}

const FIRST_TICK: u64 = 1_000;

fn a_filter() -> impl Strategy<Value = Filter> {
    let tick = || prop_oneof![Just(0), Just(u64::MAX), FIRST_TICK - 2..FIRST_TICK + 45];
    // Doubles and ranges the wrong way round are part of it.
    (vec(a_name(), 0..4), vec(a_type(), 0..4), tick(), tick()).prop_map(|(names, types, min, max)| {
        let types = types.into_iter().map(MessageType).collect();
        Filter::new(names, types, Timetick(min), Timetick(max))
    })
}

fn stamped(messages: &[Message]) -> Vec<u8> {
    let mut record = record_of("p", messages);
    let layout = verify(&record, Door::Producer, &Limits::default()).unwrap().layout();
    stamp(&mut record, &layout, &stamp_of(77, FIRST_TICK));
    record
}

/// What a reader with this filter gets, as bytes; `None` if nothing.
fn delivered(record: &[u8], filter: &Filter) -> Option<Vec<u8>> {
    let view = verify(record, Door::Storage, &Limits::default()).unwrap();
    let mut selection = Selection::default();
    match filter.select(&view, &mut selection) {
        Matched::Nothing => None,
        Matched::Everything => Some(record.to_vec()),
        Matched::Some => {
            let mut out = b"before".to_vec();
            SubsetWriter::default().write(&view, selection.indices(), &mut out);
            Some(out.split_off(6))
        }
    }
}

fn read(record: &[u8]) -> Vec<Stored> {
    stored(&verify(record, Door::Storage, &Limits::default()).unwrap())
}

fn read_delivered(delivery: Option<&[u8]>) -> Vec<Stored> {
    delivery.map(read).unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn messages_come_out_as_they_went_in(messages in vec(a_message(), 1..40)) {
        let record = record_of("p", &messages);
        let unstamped = verify(&record, Door::Producer, &Limits::default()).unwrap();
        prop_assert_eq!(unstamped.pchannel(), "p");
        prop_assert_eq!(unstamped.bytes(), &record);
        let expected: Vec<Stored> = messages.iter().enumerate().map(|(i, m)| Stored {
            offset: Offset(77 + i as u64),
            timetick: Timetick(FIRST_TICK + i as u64),
            message: m.clone(),
        }).collect();
        prop_assert_eq!(read(&stamped(&messages)), expected);
    }

    #[test]
    fn a_filter_means_the_same_for_a_batch_and_for_each_message(
        messages in vec(a_message(), 1..40), filter in a_filter(),
    ) {
        let record = stamped(&messages);
        let naive: Vec<Stored> = read(&record).into_iter().filter(|m| wanted(&filter, m)).collect();
        let delivery = delivered(&record, &filter);
        prop_assert_eq!(delivery.is_none(), naive.is_empty());
        prop_assert_eq!(read_delivered(delivery.as_deref()), naive);
        if let Some(part) = delivery {
            prop_assert!(part.len() <= record.len());
            let (part, whole) = (verify(&part, Door::Storage, &Limits::default()).unwrap().meta(),
                verify(&record, Door::Storage, &Limits::default()).unwrap().meta());
            prop_assert_eq!((part.base_offset, part.span, part.max_timetick), (whole.base_offset, whole.span, whole.max_timetick));
        }
    }

    #[test]
    fn a_subset_of_a_subset_is_a_subset(
        messages in vec(a_message(), 1..40), first in a_filter(), second in a_filter(),
    ) {
        let record = stamped(&messages);
        let part = delivered(&record, &first);
        let twice = part.as_deref().and_then(|part| delivered(part, &second));
        let naive: Vec<Stored> =
            read(&record).into_iter().filter(|m| wanted(&first, m) && wanted(&second, m)).collect();
        prop_assert_eq!(read_delivered(twice.as_deref()), naive);
    }

    #[test]
    fn a_damaged_byte_never_passes(messages in vec(a_message(), 1..10), at: prop::sample::Index, bit in 0u8..8) {
        let mut record = stamped(&messages);
        let at = at.index(record.len());
        record[at] ^= 1 << bit;
        prop_assert!(verify(&record, Door::Storage, &Limits::default()).is_err(), "byte {at} bit {bit}");
    }

    #[test]
    fn fixed_bodies_come_back(a: u64, b: u64, count: u32, duplicate: bool) {
        let ack = Ack { base_offset: Offset(a), first_timetick: Timetick(b), count, duplicate };
        prop_assert_eq!(Ack::read(&ack.to_bytes()), Ok(ack));
        let tick = Tick { timetick: Timetick(a), next_offset: Offset(b) };
        prop_assert_eq!(Tick::read(&tick.to_bytes()), Ok(tick));
        prop_assert_eq!(read_credit(&a.to_le_bytes()), Ok(Bytes(a)));
    }

    #[test]
    fn frame_headers_come_back_or_name_what_is_wrong(bytes: [u8; FRAME_HEADER_BYTES], kind in 0u8..14, clean: bool) {
        let mut bytes = bytes;
        bytes[4] = kind;
        if clean {
            bytes[1..4].fill(0);
            bytes[5..8].fill(0);
        }
        match FrameHeader::read(&bytes, &Limits::default()) {
            Ok(header) => prop_assert_eq!(header.to_bytes(), bytes),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

#[test]
fn every_kind_of_frame_has_bounds() {
    let limits = Limits::default();
    let kinds = [
        (FrameKind::Hello, 8, 64 << 10),
        (FrameKind::HelloReply, 8, 1 << 20),
        (FrameKind::Refusal, 8, 1 << 20),
        (FrameKind::Produce, 24, limits.batch_bytes),
        (FrameKind::Ack, 24, 24),
        (FrameKind::Deliver, 24, limits.batch_bytes),
        (FrameKind::Tick, 16, 16),
        (FrameKind::Credit, 8, 8),
        (FrameKind::AdminRequest, 8, 1 << 20),
        (FrameKind::AdminReply, 8, 16 << 20),
        (FrameKind::Goodbye, 0, 0),
    ];
    for (kind, least, most) in kinds {
        let read = |length: u32| FrameHeader::read(&FrameHeader::new(kind, length as usize, 9).to_bytes(), &limits);
        for length in [least, most] {
            assert_eq!(
                read(length),
                Ok(FrameHeader {
                    length,
                    kind,
                    correlation: 9
                })
            );
        }
        assert!(matches!(read(most + 1), Err(FormatError::TooLarge { .. })), "{kind:?}");
        assert!(
            least == 0 || matches!(read(least - 1), Err(FormatError::Short { .. })),
            "{kind:?}"
        );
    }
}

#[test]
fn bytes_behind_a_record_are_left_alone() {
    let mut record = stamped(&[Message::new("v", 2, &[], b"body")]);
    let len = record.len();
    record.extend_from_slice(b"the next record");
    assert_eq!(
        verify(&record, Door::Storage, &Limits::default())
            .unwrap()
            .bytes()
            .len(),
        len
    );
    assert!(matches!(
        verify(&record[..len - 1], Door::Storage, &Limits::default()),
        Err(FormatError::Short { part: "record", .. })
    ));
}

#[test]
fn an_unstamped_record_does_not_pass_as_stored() {
    let record = record_of("p", &[Message::new("v", 2, &[], b"body")]);
    assert!(matches!(
        verify(&record, Door::Storage, &Limits::default()),
        Err(FormatError::Header { what: "timetick", .. })
    ));
}

/// All types from 63 on share one bit of the bitmap: it may say "perhaps", never "all of it".
#[test]
fn types_that_share_a_bit_are_told_apart() {
    let record = stamped(&[Message::new("v", 70, &[], b"a"), Message::new("v", 64, &[], b"b")]);
    let only = |message_type| Filter::new(vec![], vec![MessageType(message_type)], Timetick::ZERO, Timetick::MAX);
    for (message_type, expected) in [(64, vec![64]), (70, vec![70]), (63, vec![]), (u16::MAX, vec![])] {
        let delivery = delivered(&record, &only(message_type));
        let types: Vec<_> = read_delivered(delivery.as_deref())
            .iter()
            .map(|m| m.message.message_type)
            .collect();
        assert_eq!(types, expected, "asked for {message_type}");
    }
}
