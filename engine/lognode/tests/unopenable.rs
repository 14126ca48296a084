//! One log that can't be opened, and logs whose damage must not keep them from opening.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{fs, os::unix::fs::FileExt};

use backends::block::{ALIGNMENT, BlockHeader};
use support::{
    Options, Scratch, Server,
    raw::{NoWelcome, RawProducer, inserts, list, read_all, truncate},
};
use wire_format::protocol::RefusalCode;

/// Seen failing while a start gave up at the first log that could not be opened.
#[test]
fn a_log_that_can_not_be_opened_is_told_and_all_others_are_served() {
    let scratch = Scratch::new("unopenable");
    let data = scratch.path().join("data");
    let server = Server::start_with(&data, &Options::small());
    for name in ["p", "q"] {
        let mut producer = RawProducer::open(&server.address, name).unwrap();
        producer.ask(&inserts(name, "v", &[b"kept"])).ack();
    }
    server.stop();
    // Nothing that a segment can be opened as.
    let intruder = data.join("pchannels/p/0000000009.seg");
    fs::create_dir(&intruder).unwrap();
    // And what is no pchannel at all.
    fs::write(data.join("pchannels/README.txt"), "notes").unwrap();

    let server = Server::start_with(&data, &Options::small());
    assert_eq!(read_all(&server.address, "q").1.len(), 1);
    let listed = list(&server.address);
    let failed = |name: &str| listed.iter().find(|p| p.name == name).unwrap().failed.clone();
    assert!(
        failed("p").contains("0000000009.seg") && failed("q").is_empty(),
        "{listed:?}"
    );
    let Err(NoWelcome::Refused(refusal)) = RawProducer::open(&server.address, "p").map(|_| ()) else {
        panic!("a folder was opened as a segment");
    };
    assert_eq!(refusal.code, RefusalCode::LogFailed);
    assert!(refusal.message.contains("0000000009.seg"), "{refusal}");
    // Once it is in order again it opens, without a restart.
    fs::remove_dir(&intruder).unwrap();
    assert_eq!(read_all(&server.address, "p").1.len(), 1);
    assert!(list(&server.address).iter().all(|p| p.failed.is_empty()));
    server.stop();
}

/// The last block was truncated away, as was everything before it, and then a bit of it flips: nothing is lost that was
/// asked for. Seen failing while a replay had to reach the end whatever the store said of damage.
#[test]
fn damage_in_what_was_truncated_at_the_end_of_the_log_costs_nothing() {
    let scratch = Scratch::new("damaged-end");
    let data = scratch.path().join("data");
    let server = Server::start_with(&data, &Options::small());
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    for _ in 0..20 {
        producer.ask(&inserts("p", "v", &[&[7; 3_000]])).ack();
    }
    assert_eq!(truncate(&server.address, "p", 20).unwrap().first_offset.get(), 20);
    server.kill();
    let path = data.join("pchannels/p/0000000000.seg");
    let bytes = fs::read(&path).unwrap();
    let (mut at, mut last) = (ALIGNMENT, 0);
    while let Ok(header) = BlockHeader::read(&bytes[at..]) {
        last = at;
        at += header.disk_len() as usize;
    }
    let place = (last + 600) as u64;
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[bytes[last + 600] ^ 1], place).unwrap();

    let server = Server::start_with(&data, &Options::small());
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    assert_eq!(producer.ask(&inserts("p", "v", &[b"new"])).ack().base_offset.get(), 20);
    let (first, log) = read_all(&server.address, "p");
    assert_eq!((first, log.len()), (20, 1));
    server.stop();
}
