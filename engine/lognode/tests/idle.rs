//! Invariant 5: an idle node writes nothing for its ticks, and nothing at all if nobody listens.
//!
//! Some seconds of the real process; an idle hour is simulated in `engine/core/tests/simulation`. Seen to fail with: a mark
//! that is stored at every tick; a mark that is kept although nobody listens.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime},
};

use support::{
    Options, Scratch, Server,
    raw::{Heard, PATIENCE, RawProducer, RawReader, inserts},
};
use wire_format::protocol::Start;

const IDLE: Duration = Duration::from_secs(6);

/// Every file below a folder: size, time of change, content.
fn snapshot(folder: &Path) -> BTreeMap<String, (u64, SystemTime, u64)> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let facts = entry.metadata().unwrap();
            if facts.is_dir() {
                folders.push(entry.path());
                files.insert(entry.path().display().to_string(), (0, facts.modified().unwrap(), 0));
            } else {
                let content = xxhash_rust::xxh3::xxh3_64(&fs::read(entry.path()).unwrap());
                files.insert(
                    entry.path().display().to_string(),
                    (facts.len(), facts.modified().unwrap(), content),
                );
            }
        }
    }
    files
}

/// Bytes that the process had the kernel write to storage.
fn written_to_storage(server: &Server) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", server.pid())).unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.unwrap().trim().parse().unwrap()
}

/// CPU time of the process so far.
fn cpu(server: &Server) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().map(|&at| fields[at].parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

#[test]
fn an_idle_node_writes_nothing() {
    let scratch = Scratch::new("idle");
    let data = scratch.path().join("data");
    let server = Server::start_with(&data, &Options::small());
    let mut readers = Vec::new();
    for i in 0..10 {
        let name = format!("p{i}");
        let mut producer = RawProducer::open(&server.address, &name).unwrap();
        producer.ask(&inserts(&name, "v", &[b"one", b"two"])).ack();
        if i < 3 {
            readers.push(RawReader::open(&server.address, &name, Start::Earliest).unwrap());
        }
    }
    for reader in &mut readers {
        reader.collect(2, PATIENCE);
        reader.tick(PATIENCE);
    }
    thread::sleep(Duration::from_secs(2)); // files are made ready behind the first appends

    let (files, logged) = (
        snapshot(&data.join("pchannels")),
        server.metric("lognode_log_written_bytes"),
    );
    let (metadata, cpu_before, begin) = (
        server.metric("lognode_metadata_written_bytes"),
        cpu(&server),
        Instant::now(),
    );
    assert!(logged > 0);
    let heard = thread::scope(|scope| {
        let listening: Vec<_> = readers
            .iter_mut()
            .map(|reader| scope.spawn(|| reader.listen(IDLE)))
            .collect();
        listening
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    eprintln!("CPU while idle: {:?} in {IDLE:?}", cpu(&server) - cpu_before);
    for heard in &heard {
        assert!(
            heard.iter().all(|event| matches!(event, Heard::Tick(_))),
            "a message came from nowhere"
        );
        let expected = IDLE.as_millis() as usize / 10;
        assert!(heard.len() > expected / 2, "{} ticks in {IDLE:?}", heard.len());
    }
    let marks = (server.metric("lognode_metadata_written_bytes") - metadata) / 512;
    let most = begin.elapsed().as_secs() / 2 + 1;
    assert!(
        marks <= most,
        "{marks} marks in {:?}: more than one in 2 s",
        begin.elapsed()
    );
    assert!(marks >= 1, "nothing kept the promises over a restart");
    assert_eq!(server.metric("lognode_log_written_bytes"), logged, "a tick was written");
    assert_eq!(snapshot(&data.join("pchannels")), files, "a file of a log changed");

    // Nobody listens: now nothing at all is written, not even the mark.
    drop(readers);
    let patience = Instant::now() + PATIENCE;
    while server.metric("lognode_pchannel_readers") > 0 {
        assert!(Instant::now() < patience, "readers that are gone are still counted");
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(Duration::from_millis(1_500)); // a mark that was asked for before
    let (files, written, cpu_before) = (snapshot(&data), written_to_storage(&server), cpu(&server));
    thread::sleep(IDLE);
    let burnt = cpu(&server) - cpu_before;
    assert_eq!(snapshot(&data), files, "something was written for nobody");
    assert_eq!(written_to_storage(&server), written, "something was written for nobody");
    eprintln!("CPU while nobody listens: {burnt:?} in {IDLE:?}");
    assert!(burnt < IDLE / 5, "an idle node burnt {burnt:?} of {IDLE:?}");
    server.stop();
}
