//! SIGTERM under load, a second server on the same folder, and the pages of the HTTP port.
//!
//! Seen to fail with: a close that stores no last checkpoint; no lock on the folder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use lognode_client::{ClientConfig, Event, Producer, ProducerConfig, ReadOptions, Reader, Start};
use rustix::process::Signal;
use support::{
    Options, Scratch, Server,
    book::{Book, numbered},
    raw::{PATIENCE, RawProducer, inserts, read_all},
};

const BODY_MAX: usize = 10_000;

#[tokio::main(flavor = "current_thread")]
async fn produce(address: String, book: Arc<Book>, keys: Arc<AtomicU64>, done: Arc<AtomicBool>) {
    let client = ClientConfig::new(address).backoff(Duration::from_millis(5), Duration::from_millis(50));
    let config = ProducerConfig::default().deadline(Duration::from_secs(20));
    let producer = Producer::connect_with(client, "p", config).await.unwrap();
    let mut answers = tokio::task::JoinSet::new();
    while !done.load(Relaxed) {
        let key = keys.fetch_add(1, Relaxed);
        book.sending(key);
        let pending = producer.enqueue(numbered(key, BODY_MAX)).await.unwrap();
        let book = book.clone();
        answers.spawn(async move { book.answered(key, &pending.await) });
        while answers.len() > 200 {
            answers.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(answer) = answers.join_next().await {
        answer.unwrap();
    }
    producer.close().await.unwrap();
}

/// Reads through restarts with the client's own reader; returns how many messages it got, in order.
#[tokio::main(flavor = "current_thread")]
async fn follow(address: String, done: Arc<AtomicBool>) -> u64 {
    let client = ClientConfig::new(address).backoff(Duration::from_millis(5), Duration::from_millis(50));
    let mut reader = Reader::open(client, "p", ReadOptions::from(Start::Earliest))
        .await
        .unwrap();
    let (mut next, mut quiet) = (0, 0);
    while !done.load(Relaxed) || quiet < 50 {
        match reader.next().await.unwrap() {
            Event::Message(message) => {
                assert_eq!(message.offset.get(), next);
                (next, quiet) = (next + 1, 0);
            }
            Event::Tick { .. } => quiet += 1,
        }
    }
    next
}

#[test]
fn a_stop_under_load_leaves_nothing_to_recover_and_clients_go_on() {
    let scratch = Scratch::new("stop");
    let data = scratch.path().join("data");
    let mut server = Server::start_with(&data, &Options::small());
    let options = Options {
        listen: Some(server.address.clone()),
        ..Options::small()
    };
    let (book, keys, done) = (
        Arc::new(Book::default()),
        Arc::<AtomicU64>::default(),
        Arc::<AtomicBool>::default(),
    );
    let producers: Vec<_> = (0..3)
        .map(|_| {
            let (address, book, keys, done) = (server.address.clone(), book.clone(), keys.clone(), done.clone());
            thread::spawn(move || produce(address, book, keys, done))
        })
        .collect();
    let follower = {
        let (address, done) = (server.address.clone(), done.clone());
        thread::spawn(move || follow(address, done))
    };
    for round in 0..4 {
        thread::sleep(Duration::from_millis(300 + 37 * round));
        let begin = Instant::now();
        server.stop();
        assert!(
            begin.elapsed() < Duration::from_secs(4),
            "the stop took {:?}",
            begin.elapsed()
        );
        let log = std::fs::read_to_string(data.with_extension("log")).unwrap().len();
        server = Server::start_with(&data, &options);
        let new = server.log()[log..].to_owned();
        let opened: Vec<_> = new.lines().filter(|line| line.contains("pchannel is open")).collect();
        assert!(!opened.is_empty(), "{new}");
        for line in opened {
            let plain: String = strip_colours(line);
            assert!(
                plain.ends_with("scanned_bytes=0"),
                "a stop in order left something to scan: {plain}"
            );
        }
    }
    done.store(true, Relaxed);
    for producer in producers {
        producer.join().unwrap();
    }
    let followed = follower.join().unwrap();
    let (first, log) = read_all(&server.address, "p");
    book.check(first, &log, BODY_MAX);
    let (acked, refused, unknown) = book.counts();
    assert_eq!((refused, unknown), (0, 0), "producers ride through a stop");
    assert_eq!((log.len(), followed as usize), (acked, acked));
    server.stop();
}

/// Log lines of a terminal have escape sequences between name and value.
fn strip_colours(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain + rest
}

#[test]
fn a_second_server_on_the_same_folder_is_refused() {
    let scratch = Scratch::new("second");
    let data = scratch.path().join("data");
    let server = Server::start(&data);
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    producer.ask(&inserts("p", "v", &[b"x"])).ack();
    let begin = Instant::now();
    let (code, said) = Server::fails(&data, &Options::default());
    assert!(
        code != 0 && begin.elapsed() < Duration::from_secs(3),
        "{code} after {:?}",
        begin.elapsed()
    );
    assert!(
        said.contains("in use by another lognode") && !said.contains("panicked"),
        "{said}"
    );
    // The first one is none the worse for it, and its folder is free once it is gone, even by a kill.
    producer.ask(&inserts("p", "v", &[b"y"])).ack();
    server.kill();
    let server = Server::start(&data);
    assert_eq!(read_all(&server.address, "p").1.len(), 2);
    server.stop();
}

#[test]
fn the_pages_tell_how_the_node_is() {
    let scratch = Scratch::new("pages");
    let server = Server::start(&scratch.path().join("data"));
    assert_eq!(server.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(server.get("/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(server.get("/nothing").0, 404);
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    producer.ask(&inserts("p", "v", &[b"x", b"yy", b""])).ack();
    producer.ask(&inserts("q", "v", &[b"x"])).refusal();
    let deadline = Instant::now() + PATIENCE;
    while server.metric("lognode_refusals") == 0 {
        assert!(Instant::now() < deadline, "the metrics do not move");
        thread::sleep(Duration::from_millis(50));
    }
    let (status, page) = server.get("/metrics");
    assert_eq!(status, 200);
    assert!(page.ends_with("# EOF\n"), "the page is cut off");
    for (name, value) in [
        ("lognode_appended_messages", 3),
        ("lognode_acked_messages", 3),
        ("lognode_appended_batches", 1),
        ("lognode_refusals", 1),
        ("lognode_connections", 1),
        ("lognode_pchannel_next_offset", 3),
        ("lognode_pchannel_failed", 0),
    ] {
        assert_eq!(server.gauge(name), value, "{name}\n{page}");
    }
    for name in [
        "lognode_log_written_bytes",
        "lognode_timer_turns",
        "lognode_memory_used_bytes",
        "lognode_uptime_s",
    ] {
        assert!(page.contains(&format!("# HELP {name} ")), "{name} is not described");
        assert!(name.ends_with("uptime_s") || server.gauge(name) > 0, "{name}\n{page}");
    }
    // A shard that stands still is seen, and heals.
    server.signal(Signal::STOP);
    thread::sleep(Duration::from_millis(200));
    server.signal(Signal::CONT);
    assert_eq!(server.get("/healthz").0, 200);
    server.stop();
}
