//! A batch that is sent again is stored once, whoever lost the answer: same connection, other connection, restart, kill.
//!
//! Seen to fail with: acks before the block is durable; a dedupe table that is not rebuilt from the log; a duplicate that is
//! acked at another place than its first.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use lognode_client::{ClientConfig, Message, MessageType, Producer, ProducerConfig};
use rustix::process::Signal;
use support::{
    Options, Scratch, Server,
    raw::{PATIENCE, RawProducer, assert_says, inserts, read_all, record},
    send_signal,
};
use wire_format::{Sequence, frame::Ack, protocol::RefusalCode};

const INSERT: MessageType = MessageType::INSERT;

fn batch(epoch: u32, sequence: u64, bodies: &[&str]) -> Vec<u8> {
    let messages: Vec<_> = bodies.iter().map(|body| ("v", INSERT, body.as_bytes())).collect();
    record("p", 42, epoch, sequence, &messages)
}

fn duplicate(ack: Ack) -> Ack {
    assert!(!ack.duplicate);
    Ack { duplicate: true, ..ack }
}

#[test]
fn a_batch_sent_again_is_acked_at_its_first_place() {
    let scratch = Scratch::new("again");
    let data = scratch.path().join("data");
    let mut server = Server::start_with(&data, &Options::small());
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    let batches: Vec<_> = (0..4u64).map(|i| batch(0, 3 * i, &["a", "b", "c"])).collect();
    let acks: Vec<_> = batches
        .iter()
        .map(|batch| duplicate(producer.ask(batch).ack()))
        .collect();
    let check = |address: &str| {
        let mut other = RawProducer::open(address, "p").unwrap();
        for _ in 0..2 {
            for (batch, ack) in batches.iter().zip(&acks) {
                assert_eq!(other.ask(batch).ack(), *ack);
            }
        }
    };
    assert_eq!(producer.ask(&batches[1]).ack(), acks[1], "on the same connection");
    check(&server.address);
    // First a kill with no checkpoint at all: what is known then comes from the log itself.
    for kill in [true, false, true, true] {
        if kill {
            server.kill();
        } else {
            drop(producer);
            server.stop();
        }
        server = Server::start_with(&data, &Options::small());
        check(&server.address);
        producer = RawProducer::open(&server.address, "p").unwrap();
        // Several segments of others' messages: what is known of this producer now comes from a checkpoint.
        for i in 0..40 {
            producer.ask(&inserts("p", "other", &[&[i; 100_000]]));
        }
        check(&server.address);
    }
    let (_, log) = read_all(&server.address, "p");
    let mine: Vec<_> = log.iter().filter(|m| m.vchannel == "v").collect();
    assert_eq!(mine.len(), 12, "each message once");
    for (ack, three) in acks.iter().zip(mine.chunks(3)) {
        assert_eq!(
            (three[0].offset, three[0].timetick),
            (ack.base_offset.get(), ack.first_timetick)
        );
    }
}

#[test]
fn what_can_not_be_told_is_refused_with_its_reason() {
    let scratch = Scratch::new("refused");
    let data = scratch.path().join("data");
    let mut server = Server::start(&data);
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    producer.ask(&batch(0, 0, &["a", "b"])).ack();
    for round in 0..2 {
        let gap = producer.ask(&batch(0, 7, &["x"])).refusal();
        assert_says(&gap, RefusalCode::SequenceGap, &["42", "7", "2"]);
        assert_eq!(gap.expected_sequence, Sequence(2));
        let overlap = producer.ask(&batch(0, 1, &["b", "c"])).refusal();
        assert_says(&overlap, RefusalCode::BadRequest, &["overlap"]);
        if round == 0 {
            server.kill();
            server = Server::start(&data);
            producer = RawProducer::open(&server.address, "p").unwrap();
        }
    }
    // More than what is remembered: the first batch of the producer can't be answered any more.
    for sequence in 2..80 {
        producer.ask(&batch(0, sequence, &["more"])).ack();
    }
    let over = producer.ask(&batch(0, 0, &["a", "b"])).refusal();
    assert_says(&over, RefusalCode::WindowOver, &["unknown", "Read the log"]);
    // A newer incarnation takes over; the older one is fenced, now and after a restart.
    producer.ask(&batch(1, 0, &["new"])).ack();
    for _ in 0..2 {
        let fenced = producer.ask(&batch(0, 80, &["late"])).refusal();
        assert_says(&fenced, RefusalCode::ProducerFenced, &["fenced", "epoch"]);
        server.kill();
        server = Server::start(&data);
        producer = RawProducer::open(&server.address, "p").unwrap();
    }
    let (_, log) = read_all(&server.address, "p");
    assert_eq!(log.len(), 2 + 78 + 1, "nothing that was refused is stored");
}

#[test]
fn a_retry_while_the_first_try_is_in_flight_waits_for_the_same_place() {
    let scratch = Scratch::new("flight");
    let data = scratch.path().join("data");
    let server = Server::start(&data);
    let (mut first, mut second) = (
        RawProducer::open(&server.address, "p").unwrap(),
        RawProducer::open(&server.address, "p").unwrap(),
    );
    let mut body = vec![b'x'; 300_000];
    for sequence in 0..60u64 {
        body[..8].copy_from_slice(&sequence.to_le_bytes());
        let batch = record("p", 42, 0, sequence, &[("v", INSERT, &body)]);
        // In front of it something to write, so that both tries wait for the disk together.
        first.send(0, &inserts("p", "other", &[&body])).unwrap();
        first.send(1, &batch).unwrap();
        second.send(2, &batch).unwrap();
        first.answer(PATIENCE).expect("the other's ack");
        let a = first.answer(PATIENCE).expect("an ack").1.ack();
        let b = second.answer(PATIENCE).expect("an ack").1.ack();
        assert_eq!((a.base_offset, a.first_timetick), (b.base_offset, b.first_timetick));
        assert!(a.duplicate != b.duplicate, "{a:?} {b:?}");
    }
    // Killed with both tries in flight: whatever was acked to either is there after the restart, once.
    let killer = {
        let pid = server.pid();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(15));
            send_signal(pid, Signal::KILL);
        })
    };
    let mut acked = Vec::new();
    for sequence in 60u64.. {
        body[..8].copy_from_slice(&sequence.to_le_bytes());
        let batch = record("p", 42, 0, sequence, &[("v", INSERT, &body)]);
        if first
            .send(sequence, &batch)
            .and_then(|()| second.send(sequence, &batch))
            .is_err()
        {
            break;
        }
        // Up to five of them wait for the disk.
        if sequence >= 65
            && let Ok(answer) = second.answer(PATIENCE)
        {
            acked.push(answer);
        }
    }
    killer.join().unwrap();
    while let Ok(answer) = second.answer(PATIENCE) {
        acked.push(answer);
    }
    server.kill();
    let server = Server::start(&data);
    let (_, log) = read_all(&server.address, "p");
    let mine: Vec<_> = log.iter().filter(|m| m.vchannel == "v").collect();
    for (sequence, answer) in acked {
        let ack = answer.ack();
        let at = mine.iter().filter(|m| m.offset == ack.base_offset.get());
        assert_eq!(at.count(), 1, "sequence {sequence} acked at {ack:?} is lost");
    }
    for (expected, message) in mine.iter().enumerate() {
        let sequence = u64::from_le_bytes(message.body[..8].try_into().unwrap());
        assert_eq!(sequence, expected as u64, "not each once and in order");
    }
}

/// A proxy before the server that can keep the server's answers to itself.
struct Proxy {
    address: String,
    swallow: Arc<AtomicBool>,
    swallowed: Arc<AtomicU64>,
}

impl Proxy {
    fn start(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap().to_string(),
            swallow: Arc::default(),
            swallowed: Arc::default(),
        };
        let (swallow, swallowed) = (proxy.swallow.clone(), proxy.swallowed.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(&server) else {
                    continue; // dropping the client tells it
                };
                let (swallow, swallowed) = (swallow.clone(), swallowed.clone());
                let (up, down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || pump(up, server, |_| true));
                thread::spawn(move || {
                    // A connection that lost an answer never tells another one: bytes are lost at the end only.
                    let mut cut = false;
                    pump(down, client, move |n| {
                        cut |= swallow.load(Relaxed);
                        swallowed.fetch_add(if cut { n as u64 } else { 0 }, Relaxed);
                        !cut
                    });
                });
            }
        });
        proxy
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut pass: impl FnMut(usize) -> bool) {
    let mut buffer = [0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if pass(n) && to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

/// Case 31 for one node: the answer is lost, by the network or by a kill, and the client tries again.
#[tokio::test]
async fn a_swallowed_ack_is_given_again_and_nothing_is_stored_twice() {
    let scratch = Scratch::new("swallow");
    let data = scratch.path().join("data");
    let mut server = Server::start(&data);
    let same_port = Options {
        listen: Some(server.address.clone()),
        ..Options::default()
    };
    let proxy = Proxy::start(server.address.clone());
    let config = ProducerConfig::default().stall_timeout(Duration::from_millis(300));
    let client = ClientConfig::new(&proxy.address).backoff(Duration::from_millis(5), Duration::from_millis(20));
    let producer = Producer::connect_with(client, "p", config).await.unwrap();
    let rows = |round: usize, count: usize| -> Vec<Message> {
        (0..count)
            .map(|i| Message::new("v", INSERT, format!("{round}/{i}")))
            .collect()
    };
    let mut expected = Vec::new();
    for (round, (count, kill)) in [(1, false), (1_024, false), (1, true), (1_024, true), (10, false)]
        .into_iter()
        .enumerate()
    {
        let messages = rows(round, count);
        producer.send(Message::new("v", INSERT, "before")).await.unwrap();
        let seen = proxy.swallowed.load(Relaxed);
        proxy.swallow.store(true, Relaxed);
        let sending = producer.send_messages(&messages);
        tokio::pin!(sending);
        let deadline = Instant::now() + PATIENCE;
        while proxy.swallowed.load(Relaxed) == seen {
            assert!(Instant::now() < deadline, "no answer was swallowed");
            let soon = tokio::time::sleep(Duration::from_millis(2));
            tokio::select! {
                answer = &mut sending => panic!("answered through a deaf proxy: {answer:?}"),
                () = soon => {}
            }
        }
        // Stored and answered, but the answer never arrived.
        if kill {
            server.kill();
            server = Server::start_with(&data, &same_port);
        }
        proxy.swallow.store(false, Relaxed);
        let ack = sending.await.unwrap();
        assert!(ack.duplicate, "the retry was told from a new batch");
        assert_eq!(ack.count as usize, count);
        expected.push("before".to_owned());
        expected.extend(messages.iter().map(|m| String::from_utf8(m.body.to_vec()).unwrap()));
        assert_eq!(ack.base_offset.get() as usize + count, expected.len());
    }
    let address = server.address.clone();
    let (_, log) = tokio::task::spawn_blocking(move || read_all(&address, "p"))
        .await
        .unwrap();
    let bodies: Vec<_> = log.into_iter().map(|m| String::from_utf8(m.body).unwrap()).collect();
    assert_eq!(bodies, expected);
}
