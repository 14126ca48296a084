//! The producer against scripted peers: batching, retries, limits, and every way in which a server can fail to answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::time::{Duration, Instant};

use lognode_client::{
    ClientConfig, Error, Limits, Message, MessageType, Offset, Outcome, Producer, ProducerConfig, ProducerEpoch,
    Sequence,
};
use peer::{BOUND, Peer, Store, quick, within};
use wire_format::{
    Millis,
    frame::FrameKind,
    protocol::{Intent, Refusal, RefusalCode},
};

fn message(body: impl Into<Vec<u8>>) -> Message {
    Message::new("v0", MessageType::INSERT, body.into())
}

#[tokio::test]
async fn messages_are_batched_and_acked_in_order() {
    let store = Store::default();
    let shared = store.clone();
    let peer = Peer::new(move |_, mut conn| {
        let hello = conn.welcome().unwrap();
        assert_eq!((hello.intent, hello.pchannel.as_str()), (Intent::Produce, "orders"));
        conn.serve(&shared);
    });
    let config = quick().linger(Duration::from_millis(20)).batch_bytes(4 << 10);
    let producer = Producer::connect_with(peer.client(), "orders", config).await.unwrap();
    let mut pending = Vec::new();
    for number in 0..500 {
        pending.push(producer.enqueue(message(format!("{number:03}"))).await.unwrap());
    }
    for (number, pending) in pending.into_iter().enumerate() {
        let ack = within(BOUND, pending).await.unwrap();
        assert_eq!(ack.offset, Offset(number as u64));
        assert!(!ack.duplicate);
    }
    within(BOUND, producer.close()).await.unwrap();
    let stored = store.0.lock().unwrap();
    let expected: Vec<Vec<u8>> = (0..500).map(|number| format!("{number:03}").into_bytes()).collect();
    assert_eq!(stored.bodies, expected);
    let batches = stored.origins.len();
    assert!((4..100).contains(&batches), "500 small messages in {batches} batches");
}

#[tokio::test]
async fn whole_batches_stay_whole_and_keep_their_order_with_single_messages() {
    let store = Store::default();
    let shared = store.clone();
    let peer = Peer::new(move |_, mut conn| {
        conn.welcome();
        conn.serve(&shared);
    });
    let producer = Producer::connect_with(peer.client(), "orders", quick()).await.unwrap();
    let before = producer.enqueue(message("before")).await.unwrap();
    let mut batch = producer.batch().unwrap();
    for number in 0..1_000 {
        batch
            .push("v0", MessageType::INSERT, [("k", "v")], format!("{number}").as_bytes())
            .unwrap();
    }
    let batch = producer.enqueue_batch(batch).await.unwrap();
    let after = producer.enqueue(message("after")).await.unwrap();
    assert_eq!(within(BOUND, before).await.unwrap().offset, Offset(0));
    let ack = within(BOUND, batch).await.unwrap();
    assert_eq!((ack.base_offset, ack.count), (Offset(1), 1_000));
    assert_eq!(within(BOUND, after).await.unwrap().offset, Offset(1_001));
    let ack = producer.send_messages(&[message("x"), message("y")]).await.unwrap();
    assert_eq!((ack.base_offset, ack.count), (Offset(1_002), 2));
    let empty = producer.send_batch(producer.batch().unwrap()).await;
    assert!(matches!(empty, Err(Error::InvalidMessage(_))));
}

#[tokio::test]
async fn a_lone_message_goes_when_its_linger_is_over_and_a_flush_does_not_wait_for_that() {
    let peer = Peer::new(|_, mut conn| {
        conn.welcome();
        conn.serve(&Store::default());
    });
    let slow = quick().linger(Duration::from_secs(3600)).deadline(BOUND);
    let producer = Producer::connect_with(peer.client(), "orders", slow).await.unwrap();
    let pending = producer.enqueue(message("a")).await.unwrap();
    within(Duration::from_millis(500), producer.flush()).await.unwrap();
    within(Duration::from_millis(10), pending).await.unwrap();
    let lingering = quick().linger(Duration::from_millis(80));
    let producer = Producer::connect_with(peer.client(), "orders", lingering)
        .await
        .unwrap();
    let begun = Instant::now();
    within(BOUND, producer.send(message("b"))).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(80));
}

#[tokio::test]
async fn a_batch_that_lingers_does_not_keep_the_room_from_those_who_wait() {
    let store = Store::default();
    let peer = Peer::new(move |_, mut conn| {
        conn.welcome();
        conn.serve(&store);
    });
    let config = quick().linger(Duration::from_secs(3600)).in_flight(4, 50_000);
    let producer = Producer::connect_with(peer.client(), "orders", config).await.unwrap();
    let mut pending = Vec::new();
    for _ in 0..40 {
        let taken = within(Duration::from_millis(400), producer.enqueue(message(vec![0; 20_000])));
        pending.push(taken.await.unwrap());
    }
    // More than all the room takes all of it.
    let large = within(BOUND, producer.enqueue(message(vec![0; 90_000]))).await.unwrap();
    pending.push(large);
    within(BOUND, producer.close()).await.unwrap();
    for (number, pending) in (0..).zip(pending) {
        assert_eq!(within(BOUND, pending).await.unwrap().offset, Offset(number));
    }
}

#[tokio::test]
async fn unanswered_batches_are_sent_again_unchanged_and_stored_once() {
    let store = Store::default();
    let shared = store.clone();
    let peer = Peer::new(move |number, mut conn| {
        conn.welcome();
        match number {
            // Stores a batch and dies before it answers.
            0 => {
                let (_, body) = conn.frame_of(FrameKind::Produce).unwrap();
                shared.0.lock().unwrap().take(&body).unwrap();
                conn.close();
            }
            // Dies in the middle of an answer.
            1 => {
                let (_, body) = conn.frame_of(FrameKind::Produce).unwrap();
                let ack = shared.0.lock().unwrap().take(&body).unwrap();
                assert!(ack.duplicate);
                let bytes = wire_format::frame::frame(FrameKind::Ack, 1, &ack.to_bytes());
                conn.raw(&bytes[..20]);
                conn.close();
            }
            // Goes in an orderly way, before it took anything.
            2 => conn.send(FrameKind::Goodbye, 0, &[]),
            _ => conn.serve(&shared),
        }
    });
    let producer = Producer::connect_with(peer.client(), "orders", quick().deadline(BOUND))
        .await
        .unwrap();
    let mut pending = Vec::new();
    for number in 0..5 {
        let mut batch = producer.batch().unwrap();
        batch.push_message(&message(format!("{number}"))).unwrap();
        pending.push(producer.enqueue_batch(batch).await.unwrap());
    }
    for (number, pending) in (0..).zip(pending) {
        let ack = within(BOUND, pending).await.unwrap();
        assert_eq!((ack.base_offset, ack.duplicate), (Offset(number), number == 0));
    }
    let stored = store.0.lock().unwrap();
    assert_eq!(stored.bodies, [b"0", b"1", b"2", b"3", b"4"]);
    assert!(stored.origins.iter().all(|o| o.producer_epoch == ProducerEpoch(0)));
    assert_eq!(peer.connections(), 4);
}

#[tokio::test]
async fn a_limited_producer_waits_as_long_as_it_was_told() {
    let store = Store::default();
    let shared = store.clone();
    let peer = Peer::new(move |_, mut conn| {
        conn.welcome();
        let (header, _) = conn.frame_of(FrameKind::Produce).unwrap();
        let mut slower = Refusal::new(RefusalCode::RateLimited, "slower");
        slower.retry_after = Millis(200);
        conn.refuse(header.correlation, &slower);
        conn.serve(&shared);
    });
    let producer = Producer::connect_with(peer.client(), "orders", quick()).await.unwrap();
    let begun = Instant::now();
    let mut pending = Vec::new();
    for number in 0..3 {
        let mut batch = producer.batch().unwrap();
        batch.push_message(&message(format!("{number}"))).unwrap();
        pending.push(producer.enqueue_batch(batch).await.unwrap());
    }
    for pending in pending {
        within(BOUND, pending).await.unwrap();
    }
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert_eq!(store.0.lock().unwrap().bodies, [b"0", b"1", b"2"]);
    assert_eq!(peer.connections(), 1);
}

#[tokio::test]
async fn a_limit_that_never_ends_is_told_by_name_and_nothing_was_stored() {
    let peer = Peer::new(|_, mut conn| {
        conn.welcome();
        while let Some((header, _)) = conn.frame_of(FrameKind::Produce) {
            let mut slower = Refusal::new(RefusalCode::RateLimited, "limit flush_backlog is at 9 of 8");
            slower.retry_after = Millis(50);
            conn.refuse(header.correlation, &slower);
        }
    });
    let producer = Producer::connect_with(peer.client(), "orders", quick()).await.unwrap();
    let error = within(BOUND, producer.send(message("a"))).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotStored);
    assert!(error.is_retryable());
    assert!(error.to_string().contains("flush_backlog"), "{error}");
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_at_once() {
    let store = Store::default();
    let peer = Peer::new(move |_, mut conn| {
        conn.welcome_with(|reply| reply.max_batch_bytes = 10_000);
        conn.serve(&store);
    });
    let producer = Producer::connect(peer.client(), "orders").await.unwrap();
    assert_eq!(producer.limits().batch_bytes, 10_000);
    let begun = Instant::now();
    let error = producer.send(message(vec![7; 10_001])).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_millis(100));
    assert!(
        matches!(error, Error::TooLarge { found, limit: 10_000, .. } if found > 10_000),
        "{error}"
    );
    // Close to the limit only the table around the message is too much.
    let error = producer.send(message(vec![7; 9_900])).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: 10_000, .. }), "{error}");
    let mut batch = producer.batch().unwrap();
    let error = batch.push("v0", MessageType::INSERT, [], &[7; 20_000]).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let unnamed = producer.send(Message::new("", MessageType::INSERT, "a")).await;
    assert!(matches!(unnamed, Err(Error::InvalidMessage(_))));
    let reserved = producer.send(Message::new("v0", MessageType::TIME_TICK, "a")).await;
    assert!(matches!(reserved, Err(Error::InvalidMessage(_))));
    assert_eq!(
        within(BOUND, producer.send(message("fits"))).await.unwrap().offset,
        Offset(0)
    );
}

#[tokio::test]
async fn messages_that_do_not_fit_together_go_in_batches_of_their_own() {
    let store = Store::default();
    let shared = store.clone();
    let peer = Peer::new(move |_, mut conn| {
        conn.welcome();
        conn.serve(&shared);
    });
    let limits = Limits {
        batch_bytes: 10_000,
        vchannels: 2,
        ..Limits::default()
    };
    let config = quick().linger(Duration::from_millis(20)).limits(limits);
    let producer = Producer::connect_with(peer.client(), "orders", config).await.unwrap();
    let mut pending = Vec::new();
    for (vchannel, bytes) in [("a", 6_000), ("b", 6_000), ("c", 10), ("d", 10), ("e", 10)] {
        let large = Message::new(vchannel, MessageType::INSERT, vec![0; bytes]);
        pending.push(producer.enqueue(large).await.unwrap());
    }
    for (number, pending) in (0..).zip(pending) {
        assert_eq!(within(BOUND, pending).await.unwrap().offset, Offset(number));
    }
    assert_eq!(store.0.lock().unwrap().origins.len(), 3);
}

#[tokio::test]
async fn a_batch_that_the_server_refuses_fails_alone() {
    let store = Store::default();
    let shared = store.clone();
    let peer = Peer::new(move |_, mut conn| {
        conn.welcome();
        let (header, _) = conn.frame_of(FrameKind::Produce).unwrap();
        conn.refuse(
            header.correlation,
            &Refusal::new(RefusalCode::TooLarge, "over the limit"),
        );
        conn.serve(&shared);
    });
    let producer = Producer::connect_with(peer.client(), "orders", quick()).await.unwrap();
    let mut pending = Vec::new();
    for number in 0..3 {
        let mut batch = producer.batch().unwrap();
        batch.push_message(&message(format!("{number}"))).unwrap();
        pending.push(producer.enqueue_batch(batch).await.unwrap());
    }
    let mut pending = pending.into_iter();
    let error = within(BOUND, pending.next().unwrap()).await.unwrap_err();
    assert!(matches!(&error, Error::Refused { refusal, .. } if refusal.code == RefusalCode::TooLarge));
    assert_eq!((error.outcome(), error.is_retryable()), (Outcome::NotStored, false));
    for pending in pending {
        within(BOUND, pending).await.unwrap();
    }
    let stored = store.0.lock().unwrap();
    assert_eq!(stored.bodies, [b"1", b"2"]);
    assert_eq!(stored.origins[0].first_sequence, Sequence(0));
    assert_eq!(stored.origins[0].producer_epoch, ProducerEpoch(1));
}

#[tokio::test]
async fn a_fenced_producer_fails_all_calls() {
    let peer = Peer::new(|_, mut conn| {
        conn.welcome();
        let (header, _) = conn.frame_of(FrameKind::Produce).unwrap();
        conn.refuse(
            header.correlation,
            &Refusal::new(RefusalCode::ProducerFenced, "epoch 7 took over"),
        );
        conn.hang();
    });
    let producer = Producer::connect_with(peer.client(), "orders", quick()).await.unwrap();
    let error = within(BOUND, producer.send(message("a"))).await.unwrap_err();
    assert!(matches!(&error, Error::ProducerEnded { cause, .. } if matches!(**cause, Error::Fenced { .. })));
    let error = within(BOUND, producer.send(message("b"))).await.unwrap_err();
    assert!(matches!(
        error,
        Error::ProducerEnded {
            outcome: Outcome::NotStored,
            ..
        }
    ));
    assert!(error.to_string().contains("epoch 7"), "{error}");
}

#[tokio::test]
async fn the_owner_is_followed_and_a_circle_is_not() {
    let store = Store::default();
    let owner = Peer::new(move |_, mut conn| {
        conn.welcome();
        conn.serve(&store);
    });
    let elsewhere = |address: String| {
        move |_: usize, mut conn: peer::Conn| {
            conn.hello();
            let mut refusal = Refusal::new(RefusalCode::NotOwner, "another node owns it");
            refusal.address = address.clone();
            conn.refuse(0, &refusal);
        }
    };
    let first = Peer::new(elsewhere(owner.address.clone()));
    let producer = Producer::connect(first.client(), "orders").await.unwrap();
    within(BOUND, producer.send(message("a"))).await.unwrap();

    let circle = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let shared = std::sync::Arc::clone(&circle);
    let peer = Peer::new(move |n, conn| elsewhere(shared.lock().unwrap().clone())(n, conn));
    *circle.lock().unwrap() = peer.address.clone();
    let error = within(BOUND, Producer::connect(peer.client(), "orders"))
        .await
        .err()
        .unwrap();
    assert!(matches!(error, Error::TooManyRedirects { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_stops_answering_leaves_an_unknown_outcome_and_no_hang() {
    let peer = Peer::new(|_, mut conn| {
        conn.welcome();
        conn.hang();
    });
    let producer = Producer::connect_with(peer.client(), "orders", quick()).await.unwrap();
    let begun = Instant::now();
    let error = within(BOUND, producer.send(message("a"))).await.unwrap_err();
    let elapsed = begun.elapsed();
    assert!(elapsed < Duration::from_millis(900), "{elapsed:?}");
    assert!(
        matches!(
            error,
            Error::DeadlineExceeded {
                outcome: Outcome::Unknown,
                ..
            }
        ),
        "{error}"
    );
    assert!(peer.connections() > 1, "a silent connection was never given up");
    within(BOUND, producer.close()).await.unwrap();
}

#[tokio::test]
async fn what_was_told_unknown_is_resolved_later_before_anything_else() {
    let store = Store::default();
    let shared = store.clone();
    let begun = Instant::now();
    let peer = Peer::new(move |_, mut conn| {
        conn.welcome();
        if begun.elapsed() < Duration::from_millis(500) {
            return conn.hang();
        }
        conn.serve(&shared);
    });
    let config = quick().deadline(Duration::from_millis(250));
    let producer = Producer::connect_with(peer.client(), "orders", config).await.unwrap();
    let first = within(BOUND, producer.send(message("first"))).await.unwrap_err();
    assert_eq!(first.outcome(), Outcome::Unknown);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let second = within(BOUND, producer.send(message("second"))).await.unwrap();
    assert_eq!(second.offset, Offset(1));
    assert_eq!(store.0.lock().unwrap().bodies, [b"first".as_slice(), b"second"]);
}

#[tokio::test]
async fn memory_is_bounded_and_callers_wait_for_room() {
    let peer = Peer::new(|_, mut conn| {
        conn.welcome();
        conn.freeze();
    });
    const ROOM: usize = 1 << 20;
    let config = quick().in_flight(8, ROOM).linger(Duration::ZERO);
    let producer = Producer::connect_with(peer.client(), "orders", config).await.unwrap();
    let producer = std::sync::Arc::new(producer);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let producer = std::sync::Arc::clone(&producer);
        calls.spawn(async move { producer.enqueue(message(vec![1; 100_000])).await });
    }
    let (mut taken, mut waited) = (Vec::new(), 0);
    while let Some(call) = within(BOUND, calls.join_next()).await {
        match call.unwrap() {
            Ok(pending) => taken.push(pending),
            Err(error) => {
                assert!(
                    matches!(
                        error,
                        Error::DeadlineExceeded {
                            outcome: Outcome::NotStored,
                            ..
                        }
                    ),
                    "{error}"
                );
                waited += 1;
            }
        }
    }
    // What is never answered and never sent gives its room back when its time is over, so a few more may get in late.
    assert!(taken.len() <= 2 * ROOM / 100_000, "{} of 64 were taken", taken.len());
    assert!(waited > 0);
    for pending in taken {
        let error = within(BOUND, pending).await.unwrap_err();
        assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_dropped_producer_finishes_what_it_took() {
    let store = Store::default();
    let shared = store.clone();
    let peer = Peer::new(move |_, mut conn| {
        conn.welcome();
        conn.serve(&shared);
    });
    let config = quick().linger(Duration::from_secs(3600));
    let producer = Producer::connect_with(peer.client(), "orders", config).await.unwrap();
    let pending = producer.enqueue(message("a")).await.unwrap();
    drop(producer);
    within(BOUND, pending).await.unwrap();
    assert_eq!(store.0.lock().unwrap().bodies, [b"a"]);
}

#[test]
fn calls_outlive_the_runtime_of_their_producer_only_as_errors() {
    let peer = Peer::new(|_, mut conn| {
        conn.welcome();
        conn.hang();
    });
    let runtime = |threads| {
        let mut builder = match threads {
            0 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        builder.enable_all().build().unwrap()
    };
    let short = runtime(0);
    let producer = short.block_on(Producer::connect(peer.client(), "orders")).unwrap();
    let pending = short.block_on(producer.enqueue(message("a"))).unwrap();
    drop(short);
    let error = runtime(0).block_on(within(BOUND, pending)).unwrap_err();
    assert!(matches!(error, Error::ProducerEnded { .. }), "{error}");
}

type Script = fn(usize, peer::Conn);

/// Peers that break the protocol after a correct hello; each must end as an error of the call, in time.
const BROKEN_AFTER_HELLO: &[(&str, Script)] = &[
    ("closes", |_, mut conn| {
        conn.welcome();
        conn.frame_of(FrameKind::Produce);
        conn.close();
    }),
    ("answers garbage", |_, mut conn| {
        conn.welcome();
        conn.frame_of(FrameKind::Produce);
        conn.raw(&[0xab; 4096]);
        conn.hang();
    }),
    ("closes within a frame", |_, mut conn| {
        conn.welcome();
        conn.frame_of(FrameKind::Produce);
        conn.raw(&[24, 0, 0, 0, 5, 0, 0, 0, 1]);
        conn.close();
    }),
    ("acks what was not sent", |_, mut conn| {
        conn.welcome();
        conn.frame_of(FrameKind::Produce);
        conn.send(FrameKind::Ack, 77, &[0; 24]);
        conn.hang();
    }),
    ("acks before it was asked", |_, mut conn| {
        conn.welcome();
        conn.send(FrameKind::Ack, 1, &[0; 24]);
        conn.hang();
    }),
    ("acks another count", |_, mut conn| {
        conn.welcome();
        let (header, _) = conn.frame_of(FrameKind::Produce).unwrap();
        conn.send(FrameKind::Ack, header.correlation, &[9; 24]);
        conn.hang();
    }),
    ("claims a refusal of 4 GiB", |_, mut conn| {
        conn.welcome();
        conn.frame_of(FrameKind::Produce);
        conn.raw(&[255, 255, 255, 255, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        conn.hang();
    }),
    ("claims a record and stops", |_, mut conn| {
        conn.welcome();
        conn.frame_of(FrameKind::Produce);
        conn.raw(&[0, 0, 0, 3, 6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        conn.hang();
    }),
    ("refuses with a broken table", |_, mut conn| {
        conn.welcome();
        let (header, _) = conn.frame_of(FrameKind::Produce).unwrap();
        conn.send(FrameKind::Refusal, header.correlation, &[255; 64]);
        conn.hang();
    }),
    ("trickles bytes", |_, mut conn| {
        conn.welcome();
        conn.frame_of(FrameKind::Produce);
        for byte in [24u8, 0, 0, 0, 5, 0, 0, 0] {
            conn.raw(&[byte]);
            std::thread::sleep(Duration::from_millis(100));
        }
        conn.hang();
    }),
    ("does not read", |_, mut conn| {
        conn.welcome();
        conn.freeze();
    }),
    ("always expects another sequence", |_, mut conn| {
        conn.welcome();
        while let Some((header, _)) = conn.frame_of(FrameKind::Produce) {
            let mut gap = Refusal::new(RefusalCode::SequenceGap, "gap");
            gap.expected_sequence = Sequence(1 << 40);
            conn.refuse(header.correlation, &gap);
        }
    }),
];

#[tokio::test]
async fn a_peer_that_breaks_the_protocol_ends_as_an_error_in_time() {
    for (what, script) in BROKEN_AFTER_HELLO {
        let peer = Peer::new(script);
        let producer = Producer::connect_with(peer.client(), "orders", quick()).await.unwrap();
        let begun = Instant::now();
        let error = within(BOUND, producer.send(message(vec![3; 2_000]))).await.unwrap_err();
        let elapsed = begun.elapsed();
        assert!(elapsed < Duration::from_millis(1_200), "{what}: {elapsed:?}");
        assert!(
            matches!(
                error,
                Error::DeadlineExceeded {
                    outcome: Outcome::Unknown,
                    ..
                }
            ),
            "{what}: {error}"
        );
    }
}

type BrokenHello = (&'static str, Script, fn(&Error) -> bool);

/// Peers that break the protocol in answer to the hello; each must end as an error of `connect`, in time.
const BROKEN_HELLO: &[BrokenHello] = &[
    (
        "never answers",
        |_, conn| conn.hang(),
        |e| {
            matches!(
                e,
                Error::ConnectTimeout {
                    step: "answer to hello",
                    ..
                }
            )
        },
    ),
    (
        "does not even read",
        |_, conn| conn.freeze(),
        |e| matches!(e, Error::ConnectTimeout { .. }),
    ),
    (
        "closes",
        |_, conn| conn.close(),
        |e| matches!(e, Error::ConnectionLost { .. }),
    ),
    (
        "speaks HTTP",
        |_, mut conn| {
            conn.hello();
            conn.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            conn.hang();
        },
        |e| matches!(e, Error::Protocol { .. }),
    ),
    (
        "answers half",
        |_, mut conn| {
            conn.hello();
            conn.raw(&[100, 0, 0, 0, 2, 0]);
            conn.close();
        },
        |e| matches!(e, Error::ConnectionLost { .. }),
    ),
    (
        "answers with a broken table",
        |_, mut conn| {
            conn.hello();
            conn.send(FrameKind::HelloReply, 0, &[1; 100]);
            conn.hang();
        },
        |e| matches!(e, Error::Protocol { .. }),
    ),
    (
        "answers with an ack",
        |_, mut conn| {
            conn.hello();
            conn.send(FrameKind::Ack, 0, &[0; 24]);
            conn.hang();
        },
        |e| matches!(e, Error::Protocol { .. }),
    ),
    (
        "speaks another version",
        |_, mut conn| {
            conn.welcome_with(|reply| reply.version = 9);
            conn.hang();
        },
        |e| matches!(e, Error::Protocol { .. }),
    ),
    (
        "knows no such pchannel",
        |_, mut conn| {
            conn.hello();
            conn.refuse(0, &Refusal::new(RefusalCode::UnknownPchannel, "no such pchannel"));
        },
        |e| matches!(e, Error::Refused { .. }),
    ),
];

#[tokio::test]
async fn a_peer_that_fails_the_hello_ends_connect_in_time() {
    for (what, script, expected) in BROKEN_HELLO {
        let peer = Peer::new(script);
        let error = within(BOUND, Producer::connect(peer.client(), "orders"))
            .await
            .err()
            .unwrap();
        assert!(expected(&error), "{what}: {error}");
    }
    let nobody = ClientConfig::new("127.0.0.1:1").connect_timeout(Duration::from_millis(300));
    let error = within(BOUND, Producer::connect(nobody, "orders")).await.err().unwrap();
    assert!(
        matches!(error, Error::Connect { .. }) && error.is_retryable(),
        "{error}"
    );
    for address in ["nowhere", ":7", "host:", "host:0", "host:99999", "::1:80"] {
        let error = Producer::connect(ClientConfig::new(address), "orders")
            .await
            .err()
            .unwrap();
        assert!(matches!(error, Error::InvalidConfig { .. }), "{address}: {error}");
    }
    let error = Producer::connect_with(ClientConfig::new("127.0.0.1:1"), "no/slash", ProducerConfig::default());
    assert!(matches!(error.await.err(), Some(Error::InvalidMessage(_))));
}
