//! Open files belong to the logs first: whatever connects, a log can always open its next segment.
//!
//! Seen to fail with: as many connections as `limits.connections` says whatever the limit of open files (no file was left for
//! anything); HTTP connections that may stay silent (the page was never served).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{
    io::Read,
    net::TcpStream,
    time::{Duration, Instant},
};

use support::{
    Options, Scratch, Server,
    raw::{PATIENCE, Raw, RawProducer, greet, inserts, read_all},
};
use wire_format::protocol::{Hello, Intent};

const PCHANNEL: &str = "pchannel";

#[test]
fn silent_http_connections_end_and_pages_are_served() {
    let scratch = Scratch::new("silent-http");
    let server = Server::start_with(&scratch.path().join("data"), &Options::small());
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(&server.http).unwrap()).collect();
    let since = Instant::now();
    let (status, _) = server.get("/metrics");
    assert_eq!(status, 200);
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    for mut stream in silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Nothing, or a 408, and then the end.
        stream
            .read_to_end(&mut Vec::new())
            .expect("a silent connection is kept");
    }
}

#[test]
fn connections_never_take_the_files_of_a_log() {
    let scratch = Scratch::new("few-files");
    // Room for 64 pchannels, and for some hundred connections.
    let options = Options::small().open_files(640);
    let server = Server::start_with(&scratch.path().join("data"), &options);
    let mut producer = RawProducer::open(&server.address, PCHANNEL).unwrap();
    producer.ask(&inserts(PCHANNEL, "v", &[b"first"])).ack();

    let pages: Vec<_> = (0..300).map(|_| TcpStream::connect(&server.http).unwrap()).collect();
    let strangers: Vec<_> = (0..20).map(|_| Raw::connect(&server.address).unwrap()).collect();
    let readers: Vec<_> = (0..300)
        .filter_map(|_| greet(&server.address, &Hello::new("r", Intent::Produce, PCHANNEL)).ok())
        .collect();
    assert!((10..300).contains(&readers.len()), "{} connections", readers.len());

    // Six segments later all is well.
    let body = vec![7_u8; 200 << 10];
    for _ in 0..30 {
        producer.ask(&inserts(PCHANNEL, "v", &[&body])).ack();
    }
    drop((pages, strangers, readers));
    let since = Instant::now();
    while server.get("/readyz").0 != 200 {
        assert!(since.elapsed() < Duration::from_secs(20), "{}", server.log());
    }
    assert_eq!(read_all(&server.address, PCHANNEL).1.len(), 31);
    assert!(server.log().contains("ulimit -n"), "{}", server.log());
}
