//! The typed values of the protocol come back as they were, and a hostile body costs no more than its own size.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use wire_format::{
    Bytes, FormatError, MessageType, Offset, Term, Timetick,
    batch::Filter,
    frame::{ADMIN_REPLY_BODY_BYTES_MAX, PROTOCOL_VERSION},
    protocol::{
        AdminReply, AdminRequest, Hello, HelloReply, Intent, PchannelInfo, ReadRequest, Refusal, RefusalCode, Start,
    },
};

#[test]
fn hellos_come_back() {
    let starts = [
        Start::Earliest,
        Start::Latest,
        Start::Offset(Offset(7)),
        Start::Timetick(Timetick(8)),
    ];
    for start in starts {
        let mut hello = Hello::new("c", Intent::Read, "p");
        let filter = Filter::new(vec!["v".into()], vec![MessageType::INSERT], Timetick(1), Timetick(9));
        hello.read = Some(ReadRequest {
            start,
            filter,
            credit: Bytes(5),
        });
        assert_eq!(Hello::read(&hello.to_body()), Ok(hello));
    }
    for intent in [Intent::Produce, Intent::Admin] {
        let hello = Hello::new("", intent, "");
        assert_eq!(Hello::read(&hello.to_body()), Ok(hello));
    }
}

#[test]
fn what_a_later_version_means_is_left_to_the_answer() {
    let mut hello = Hello::new("c", Intent(200), "p");
    assert!(matches!(
        Hello::read(&hello.to_body()),
        Err(FormatError::Table { part: "hello", .. })
    ));
    hello.version = PROTOCOL_VERSION + 1;
    hello.read = Some(ReadRequest::default());
    let read = Hello::read(&hello.to_body()).unwrap();
    assert_eq!(
        (read.version, read.intent, read.read),
        (PROTOCOL_VERSION + 1, Intent(200), None)
    );
}

#[test]
fn replies_and_requests_come_back() {
    let reply = HelloReply {
        version: 1,
        features: 2,
        server_name: "s".into(),
        term: Term(3),
        first_offset: Offset(4),
        next_offset: Offset(5),
        last_timetick: Timetick(6),
        max_batch_bytes: 7,
        max_batch_messages: 8,
        start_offset: Offset(9),
    };
    assert_eq!(HelloReply::read(&reply.to_body()), Ok(reply));
    for request in [AdminRequest::ListPchannels, AdminRequest::Truncate { upto: Offset(6) }] {
        assert_eq!(AdminRequest::read(&request.to_body()), Ok(request));
    }
    for number in 0..40 {
        let code = RefusalCode::from_number(number);
        assert_eq!(code.number(), number);
        let refusal = Refusal::new(code, "why");
        assert_eq!(Refusal::read(&refusal.to_body()), Ok(refusal));
    }
}

/// A node of the size that the design names, at its wordiest and at its tersest.
#[test]
fn ten_thousand_pchannels_fit_into_one_reply() {
    for (name, failed) in [("p", ""), ("a".repeat(250).as_str(), "x".repeat(300).as_str())] {
        let info = |i: u32| PchannelInfo {
            name: format!("{name}{i}"),
            readers: i,
            failed: failed.to_owned(),
            ..Default::default()
        };
        let reply = AdminReply {
            pchannels: (0..10_000).map(info).collect(),
            first_offset: Offset(1),
            held_by: "a reader".into(),
        };
        let body = reply.to_body();
        assert!(body.len() < ADMIN_REPLY_BODY_BYTES_MAX as usize, "{} bytes", body.len());
        assert_eq!(AdminReply::read(&body), Ok(reply));
    }
}

/// All entries of a list point at one long name: 60 KB that would unfold to 200 MB.
#[test]
fn a_shared_name_does_not_unfold_in_memory() {
    let mut hello = Hello::new("c", Intent::Read, "p");
    let name = "n".repeat(30_000);
    let names = std::iter::once(name)
        .chain((0..7_000).map(|i| format!("{i:05}")))
        .collect();
    let filter = Filter::new(names, Vec::new(), Timetick::ZERO, Timetick::MAX);
    hello.read = Some(ReadRequest {
        filter,
        ..ReadRequest::default()
    });
    let mut body = hello.to_body();
    assert!(Hello::read(&body).is_ok());

    let word = |body: &[u8], at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap()) as usize;
    let length = 7_001u32.to_le_bytes();
    let list = (0..body.len())
        .step_by(4)
        .find(|&at| body[at..].starts_with(&length) && (1..7_001).all(|i| word(&body, at + 4 + 4 * i) < body.len()));
    let entries = list.unwrap() + 4;
    let long = entries + 4 * 7_000 + word(&body, entries + 4 * 7_000);
    assert_eq!(word(&body, long), 30_000);
    for entry in (entries..entries + 4 * 7_001).step_by(4) {
        body[entry..entry + 4].copy_from_slice(&((long - entry) as u32).to_le_bytes());
    }
    assert!(matches!(
        Hello::read(&body),
        Err(FormatError::Table { part: "hello", .. })
    ));
}
