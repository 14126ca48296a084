//! Case 5: time never goes back, whatever the wall clock does, over kills and restarts, within a boot and across boots.
//!
//! Seen to fail with: a clock that starts from the wall; a mark that is not looked at after another boot; damaged metadata
//! that is taken for fresh.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use lognode::metadata::{Metadata, NodeState};
use lognode_core::StoredClock;
use support::{
    Options, Scratch, Server,
    raw::{PATIENCE, RawProducer, RawReader, inserts, read_all},
};
use wire_format::{Timetick, protocol::Start};

const HOUR_MS: i64 = 3_600_000;

struct Clock(PathBuf);

impl Clock {
    fn new(scratch: &Path) -> Self {
        let clock = Self(scratch.join("wall-offset"));
        clock.set(0);
        clock
    }

    /// Shifts the server's wall clock.
    fn set(&self, ms: i64) {
        let beside = self.0.with_extension("new");
        fs::write(&beside, ms.to_string()).unwrap();
        fs::rename(beside, &self.0).unwrap();
    }

    fn options(&self) -> Options {
        Options::default().env("LOGNODE_WALL_OFFSET_FILE", self.0.display())
    }
}

fn write(server: &Server, count: usize) -> Timetick {
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    let mut last = Timetick::ZERO;
    for _ in 0..count {
        let ack = producer.ask(&inserts("p", "v", &[b"x"])).ack();
        assert!(ack.first_timetick > last);
        last = ack.first_timetick;
    }
    last
}

/// What the node remembers is made to look like that of another boot of the machine.
fn forget_boot(data: &Path, clock: fn(StoredClock) -> Option<StoredClock>) {
    let mut metadata = Metadata::open(data, true, false).unwrap();
    let state = metadata.state();
    let clock = state.clock.and_then(clock);
    metadata.store(NodeState { clock, ..state }).unwrap();
}

#[test]
fn a_clock_set_back_over_a_kill_never_takes_time_back() {
    let others: [Option<fn(StoredClock) -> Option<StoredClock>>; 3] = [
        None,
        Some(|clock| {
            Some(StoredClock {
                boot_id: [7; 16],
                ..clock
            })
        }),
        Some(|_| None),
    ];
    for (case, other_boot) in others.into_iter().enumerate() {
        let scratch = Scratch::new("clock-kill");
        let data = scratch.path().join("data");
        let clock = Clock::new(scratch.path());
        clock.set(HOUR_MS);
        let server = Server::start_with(&data, &clock.options());
        let mut reader = RawReader::open(&server.address, "p", Start::Earliest).unwrap();
        let stored = write(&server, 10);
        reader.collect(10, PATIENCE);
        // Ticks that are only told, far above the last stored time.
        let mut told = reader.tick(PATIENCE).timetick;
        while told.physical().get() < stored.physical().get() + 700 {
            told = reader.tick(PATIENCE).timetick;
        }
        let mut watch = reader.watch.clone();
        server.kill();
        clock.set(-HOUR_MS);
        if let Some(change) = other_boot {
            forget_boot(&data, change);
        }
        // Twice: what the second life told must hold in the third as well.
        for _ in 0..2 {
            let server = Server::start_with(&data, &clock.options());
            let first = write(&server, 1);
            assert!(first > told, "case {case}: {first} after {told} was promised");
            let mut reader = RawReader::resume(&server.address, "p", watch).unwrap();
            reader.collect(1, PATIENCE);
            let new = reader.tick(PATIENCE).timetick;
            let later = write(&server, 5);
            assert!(later > new);
            reader.collect(5, PATIENCE);
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(500) {
                told = reader.tick(PATIENCE).timetick;
            }
            watch = reader.watch.clone();
            server.kill();
        }
        let server = Server::start_with(&data, &clock.options());
        assert_eq!(read_all(&server.address, "p").1.len(), 22);
    }
}

#[test]
fn a_clock_that_jumps_while_running_changes_neither_pace_nor_order() {
    let scratch = Scratch::new("clock-jump");
    let clock = Clock::new(scratch.path());
    let server = Server::start_with(&scratch.path().join("data"), &clock.options());
    let mut reader = RawReader::open(&server.address, "p", Start::Earliest).unwrap();
    write(&server, 3);
    reader.collect(3, PATIENCE);
    reader.tick(PATIENCE);

    clock.set(-HOUR_MS);
    let (begin, mut ticks) = (Instant::now(), Vec::new());
    while begin.elapsed() < Duration::from_secs(2) {
        ticks.push(reader.tick(PATIENCE).timetick);
        if ticks.len() == 100 {
            write(&server, 3);
        }
    }
    // About 200 on an idle machine; a busy one loses some, but time goes on at its pace.
    assert!(ticks.len() >= 100, "only {} ticks in 2 s", ticks.len());
    let span = ticks[ticks.len() - 1].physical().get() - ticks[0].physical().get();
    assert!((1_500..2_500).contains(&span), "2 s of ticks span {span} ms");
    let behind = || server.log().matches("the wall clock is behind").count();
    assert_eq!(behind(), 1, "{}", server.log());
    let skew = server.gauge("lognode_clock_skew_ms");
    assert!((-HOUR_MS - 5_000..-HOUR_MS + 5_000).contains(&skew), "skew {skew} ms");

    // Back and far ahead: time follows at once, and the promises stay below what a restart would begin with.
    clock.set(HOUR_MS);
    let before = reader.watch.ticked;
    let deadline = Instant::now() + PATIENCE;
    while reader.tick(PATIENCE).timetick.physical().get() < before.physical().get() + HOUR_MS as u64 / 2 {
        assert!(Instant::now() < deadline, "time does not follow");
    }
    let ahead = write(&server, 1);
    assert!(ahead > before);
    assert_eq!(
        server.log().matches("the wall clock jumped ahead").count(),
        1,
        "{}",
        server.log()
    );
    assert_eq!(behind(), 1);
    let told = reader.tick(PATIENCE).timetick;
    let watch = reader.watch.clone();
    server.kill();
    clock.set(0);
    let server = Server::start_with(&scratch.path().join("data"), &clock.options());
    assert!(write(&server, 1) > told);
    RawReader::resume(&server.address, "p", watch)
        .unwrap()
        .collect(1, PATIENCE);
}

#[test]
fn metadata_that_can_not_be_read_stops_the_start() {
    let scratch = Scratch::new("clock-metadata");
    let data = scratch.path().join("data");
    let clock = Clock::new(scratch.path());
    clock.set(HOUR_MS);
    let server = Server::start_with(&data, &clock.options());
    let last = write(&server, 10);
    server.kill();
    clock.set(-HOUR_MS);

    let file = data.join("node.meta");
    let good = fs::read(&file).unwrap();
    let refused = |what: &str, words: &[&str]| {
        let begin = Instant::now();
        let (code, said) = Server::fails(&data, &clock.options());
        assert!(
            code != 0 && begin.elapsed() < Duration::from_secs(3),
            "{what}: {code} {said}"
        );
        assert!(!said.contains("panicked"), "{what}: {said}");
        for word in ["node.meta"].iter().chain(words) {
            assert!(said.contains(word), "{what}: {said:?} does not name {word:?}");
        }
    };
    fs::remove_file(&file).unwrap();
    refused("missing", &["missing", "--rebuild-metadata"]);
    fs::create_dir(&file).unwrap();
    refused("unreadable", &["time could go back"]);
    fs::remove_dir(&file).unwrap();
    fs::write(&file, vec![0xa5; good.len()]).unwrap();
    refused("damaged", &["damaged", "--rebuild-metadata"]);
    fs::write(&file, &good[..100]).unwrap();
    refused("cut", &["damaged", "--rebuild-metadata"]);

    // The copy is back: all goes on above what was.
    fs::write(&file, &good).unwrap();
    let server = Server::start_with(&data, &clock.options());
    assert!(write(&server, 1) > last);
    server.kill();
    // Without a copy, and told to: the stored messages still bound time from below.
    fs::remove_file(&file).unwrap();
    let options = clock.options().arg("--rebuild-metadata");
    let server = Server::start_with(&data, &options);
    assert!(write(&server, 1) > last);
    assert_eq!(read_all(&server.address, "p").1.len(), 12);
}
