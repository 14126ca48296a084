//! Sizes are exact, so a record may be just as large as the limit and never larger.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod model;

use model::{Message, builder_of};
use proptest::{collection::vec, prelude::*};
use wire_format::{
    FormatError, Limits, MessageType,
    batch::{BatchBuilder, Door, Origin, verify},
};

fn limits_of(batch_bytes: usize) -> Limits {
    Limits {
        batch_bytes: batch_bytes as u32,
        ..Limits::default()
    }
}

fn a_message() -> impl Strategy<Value = Message> {
    ("[a-e]{1,9}", 0usize..40, 0usize..20)
        .prop_map(|(name, body, property)| Message::new(&name, 2, &[("k", &"x".repeat(property))], &vec![7; body]))
}

proptest! {
    #[test]
    fn the_builder_knows_its_size_at_every_step(pchannel in "[a-z]{1,20}", messages in vec(a_message(), 1..30)) {
        let mut last = builder_of(&pchannel, &[], Limits::default()).record_bytes();
        for count in 1..=messages.len() {
            let mut builder = builder_of(&pchannel, &messages[..count], Limits::default());
            let said = builder.record_bytes();
            let m = &messages[count - 1];
            let properties: usize = m.pairs().map(|(k, v)| 4 + k.len() + v.len()).sum();
            prop_assert!(said <= last + BatchBuilder::cost_bytes(&m.vchannel, properties, m.body.len()));
            last = said;
            let record = builder.finish(Origin::default()).unwrap();
            prop_assert_eq!((said, record.len(), record.count), (record.len(), record.to_bytes().len(), count as u32));
        }
    }

    /// The whole record fits into a limit of its own size and not into one byte less, whatever stands in it.
    #[test]
    fn the_limit_itself_is_allowed(pchannel in "[a-z]{1,20}", messages in vec(a_message(), 1..30)) {
        let record = builder_of(&pchannel, &messages, Limits::default()).finish(Origin::default()).unwrap().to_bytes();
        let exact = limits_of(record.len());
        let again = builder_of(&pchannel, &messages, exact).finish(Origin::default()).unwrap().to_bytes();
        prop_assert_eq!(&again, &record);
        prop_assert!(verify(&record, Door::Producer, &exact).is_ok());

        let tight = limits_of(record.len() - 1);
        let too_large = matches!(verify(&record, Door::Producer, &tight), Err(FormatError::TooLarge { .. }));
        prop_assert!(too_large);
        let (last, others) = messages.split_last().unwrap();
        let mut builder = builder_of(&pchannel, others, tight);
        let before = builder.record_bytes();
        let refused = builder.push(&last.vchannel, MessageType::INSERT, last.pairs(), &last.body);
        prop_assert_eq!(refused, Err(FormatError::TooLarge {
            what: "batch bytes", found: record.len() as u64, limit: record.len() as u64 - 1,
        }));
        prop_assert_eq!(builder.record_bytes(), before, "a refused message leaves nothing behind");
    }
}

/// A message that just fits, one byte less, one byte more.
#[test]
fn one_byte_decides() {
    let limits = limits_of(4096);
    let around = {
        let mut builder = BatchBuilder::new("p", limits).unwrap();
        builder.push("v", MessageType::INSERT, [], b"").unwrap();
        builder.record_bytes()
    };
    for (body, fits) in [
        (4096 - around - 1, true),
        (4096 - around, true),
        (4096 - around + 1, false),
    ] {
        let mut builder = BatchBuilder::new("p", limits).unwrap();
        let pushed = builder.push("v", MessageType::INSERT, [], &vec![1; body]);
        assert_eq!(pushed.is_ok(), fits, "{body}");
        match builder.finish(Origin::default()) {
            Ok(record) => assert_eq!(record.len(), around + body),
            Err(error) => assert!(!fits && error == FormatError::Empty, "{error}"),
        }
    }
}

#[test]
fn every_limit_is_held_by_builder_and_door() {
    let wide = Limits::default();
    let messages: Vec<_> = ["a", "bb", "ccc"].map(|name| Message::new(name, 2, &[], b"x")).into();
    let record = builder_of("p", &messages, wide)
        .finish(Origin::default())
        .unwrap()
        .to_bytes();
    let narrow = [
        ("messages in a batch", Limits { messages: 2, ..wide }),
        ("vchannels in a batch", Limits { vchannels: 2, ..wide }),
    ];
    for (expected, limits) in narrow {
        let found = verify(&record, Door::Producer, &limits).err();
        assert!(
            matches!(found, Some(FormatError::TooLarge { what, found: 3, limit: 2 }) if what == expected),
            "{found:?}"
        );
        let mut builder = builder_of("p", &messages[..2], limits);
        let refused = builder.push("ccc", MessageType::INSERT, [], b"x");
        assert_eq!(
            refused,
            Err(FormatError::TooLarge {
                what: expected,
                found: 3,
                limit: 2
            })
        );
    }
    let short_names = Limits { name_bytes: 2, ..wide };
    let found = verify(&record, Door::Producer, &short_names).err();
    assert!(
        matches!(found, Some(FormatError::Name { what: "vchannel", .. })),
        "{found:?}"
    );
}

#[test]
fn a_refused_message_changes_nothing() {
    let mut builder = builder_of("p", &[Message::new("v", 2, &[("k", "v")], b"body")], Limits::default());
    let before = builder.record_bytes();
    let long = "x".repeat(40_000);
    let refusals = [
        builder.push("v", MessageType::TIME_TICK, [], b""),
        builder.push("v", MessageType(0), [], b""),
        builder.push("", MessageType::INSERT, [], b""),
        builder.push("tab\t", MessageType::INSERT, [], b""),
        builder.push(&long[..256], MessageType::INSERT, [], b""),
        builder.push(
            "new",
            MessageType::INSERT,
            [("k", long.as_str()), ("l", long.as_str())],
            b"",
        ),
    ];
    assert!(refusals.iter().all(Result::is_err), "{refusals:?}");
    assert_eq!((builder.record_bytes(), builder.count()), (before, 1));
    let record = builder.finish(Origin::default()).unwrap().to_bytes();
    let view = verify(&record, Door::Producer, &Limits::default()).unwrap();
    assert_eq!((view.count(), view.vchannels().collect::<Vec<_>>()), (1, vec!["v"]));
}

#[test]
fn a_builder_starts_anew_after_each_record() {
    let messages = [Message::new("a", 2, &[], b"1"), Message::new("b", 70, &[], b"2")];
    let mut builder = builder_of("p", &messages, Limits::default());
    let first = builder.finish(Origin::default()).unwrap();
    assert_eq!(builder.finish(Origin::default()).err(), Some(FormatError::Empty));
    for m in &messages {
        builder
            .push(&m.vchannel, MessageType(m.message_type), m.pairs(), &m.body)
            .unwrap();
    }
    assert_eq!(builder.finish(Origin::default()).unwrap(), first);
}
