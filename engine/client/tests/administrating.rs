//! Administration against scripted peers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::time::{Duration, Instant};

use lognode_client::{Admin, Error, Offset, PchannelInfo};
use peer::{BOUND, Conn, Peer, within};
use wire_format::{
    frame::FrameKind,
    protocol::{AdminReply, AdminRequest, Intent, Refusal, RefusalCode},
};

#[tokio::test]
async fn requests_are_answered() {
    let peer = Peer::new(|_, mut conn| {
        let hello = conn.welcome().unwrap();
        assert_eq!(hello.intent, Intent::Admin);
        let (header, body) = conn.frame_of(FrameKind::AdminRequest).unwrap();
        let reply = match AdminRequest::read(&body).unwrap() {
            AdminRequest::ListPchannels => AdminReply {
                pchannels: vec![PchannelInfo {
                    name: "orders".into(),
                    ..PchannelInfo::default()
                }],
                ..AdminReply::default()
            },
            AdminRequest::Truncate { upto } => AdminReply {
                first_offset: Offset(upto.get() - 1),
                held_by: format!("a block of {}", hello.pchannel),
                ..AdminReply::default()
            },
        };
        conn.send(FrameKind::AdminReply, header.correlation, &reply.to_body());
    });
    let admin = Admin::new(peer.client()).unwrap();
    let pchannels = within(BOUND, admin.list_pchannels()).await.unwrap();
    assert_eq!(pchannels[0].name, "orders");
    let truncated = within(BOUND, admin.truncate("orders", Offset(7))).await.unwrap();
    assert_eq!(
        (truncated.first_offset, truncated.held_by.as_str()),
        (Offset(6), "a block of orders")
    );
}

#[tokio::test]
async fn every_other_answer_is_an_error_in_time() {
    type Script = fn(usize, Conn);
    type Case = (&'static str, Script, fn(&Error) -> bool);
    let cases: &[Case] = &[
        (
            "silence",
            |_, mut conn| {
                conn.welcome();
                conn.hang();
            },
            |e| matches!(e, Error::ConnectTimeout { .. }),
        ),
        (
            "end",
            |_, mut conn| {
                conn.welcome();
            },
            |e| matches!(e, Error::ConnectionLost { .. }),
        ),
        (
            "refusal",
            |_, mut conn| {
                conn.welcome();
                conn.frame();
                conn.refuse(1, &Refusal::new(RefusalCode::UnknownPchannel, "none of that name"));
            },
            |e| e.refusal().is_some_and(|r| r.code == RefusalCode::UnknownPchannel),
        ),
        (
            "another frame",
            |_, mut conn| {
                conn.welcome();
                conn.tick(1, 1);
                conn.hang();
            },
            |e| matches!(e, Error::Protocol { .. }),
        ),
        (
            "a broken table",
            |_, mut conn| {
                conn.welcome();
                conn.send(FrameKind::AdminReply, 1, &[3; 64]);
                conn.hang();
            },
            |e| matches!(e, Error::Protocol { .. }),
        ),
    ];
    for (what, script, expected) in cases {
        let peer = Peer::new(script);
        let begun = Instant::now();
        let error = within(BOUND, Admin::new(peer.client()).unwrap().truncate("orders", Offset(1))).await;
        let error = error.unwrap_err();
        assert!(expected(&error), "{what}: {error}");
        assert!(begun.elapsed() < Duration::from_millis(1_200), "{what}");
    }
}
