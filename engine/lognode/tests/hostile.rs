//! Invariant 7 on the socket: whatever a stranger sends, the answer is clear, nobody else notices, and nothing is kept.
//!
//! Seen to fail with: a length that is believed before its bytes are there; a hello that is waited for without end; a payload
//! whose checksum is not checked at the door; a receive buffer that is never given back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

mod check {
    use wire_format::{batch::PREFIX_BYTES, crc::crc32c_of_parts};

    /// Gives a damaged record a right prefix and a right crc, so that the checks behind them are reached.
    pub fn mend(record: &mut [u8]) {
        let Some(room) = record.len().checked_sub(PREFIX_BYTES) else {
            return;
        };
        let index = u32::from_le_bytes(record[8..12].try_into().unwrap()) as usize;
        let index = index.min(room) & !7;
        record[..8].copy_from_slice(b"LNB1\x01\0\0\0");
        record[8..12].copy_from_slice(&(index as u32).to_le_bytes());
        record[12..16].copy_from_slice(&((room - index) as u32).to_le_bytes());
        record[20..24].fill(0);
        let crc = crc32c_of_parts(&[&record[..16], &record[PREFIX_BYTES..PREFIX_BYTES + index]]);
        record[16..20].copy_from_slice(&crc.to_le_bytes());
    }
}
#[path = "../../../wire-format/tests/hostile/craft.rs"]
mod craft;
#[path = "../../../wire-format/tests/hostile/mutate.rs"]
mod mutate;

use std::{
    thread,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use support::{
    Options, Scratch, Server,
    raw::{NoFrame, NoWelcome, PATIENCE, Raw, RawProducer, RawReader, assert_says, greet, inserts, read_all},
};
use wire_format::{
    Bytes,
    frame::{FrameHeader, FrameKind, frame},
    protocol::{Hello, Intent, ReadRequest, Refusal, RefusalCode, Start},
};

/// The pchannel of the crafted records.
const PCHANNEL: &str = "pchannel";

/// After anything: a normal client works, nobody's memory is kept, nothing panicked.
fn all_is_well(server: &Server, stored: usize) {
    let mut reader = RawReader::open(&server.address, PCHANNEL, Start::Earliest).unwrap();
    let mut producer = RawProducer::open(&server.address, PCHANNEL).unwrap();
    let ack = producer.ask(&inserts(PCHANNEL, "v", &[b"well"])).ack();
    let log = reader.collect(ack.base_offset.get() as usize + 1, PATIENCE);
    assert!(log.len() > stored, "{} messages of {stored}", log.len());
    assert_eq!(log[log.len() - 1].body, b"well");
    drop((reader, producer));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let receiving = server.gauge("lognode_memory_used_bytes{shard=\"0\",part=\"receiving\"}");
        let (connections, filling) = (
            server.gauge("lognode_connections"),
            server.gauge("lognode_memory_used_bytes{shard=\"0\",part=\"filling\"}"),
        );
        if receiving == 0 && connections == 0 && filling <= 128 << 10 {
            break;
        }
        let left = format!("{connections} connections, {receiving} bytes of receive buffers, {filling} being filled");
        assert!(Instant::now() < deadline, "left behind: {left}");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.get("/healthz").0, 200);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// What the server answers to bytes that begin a connection; `None` if it just closes.
fn answer_to(server: &Server, bytes: &[u8]) -> Option<Refusal> {
    let mut raw = Raw::connect(&server.address).unwrap();
    let _ = raw.write(bytes);
    let _ = raw.stream.shutdown(std::net::Shutdown::Write);
    let mut refusal = None;
    loop {
        match raw.frame(PATIENCE) {
            Ok((header, body)) if header.kind == FrameKind::Refusal => refusal = Some(Refusal::read(&body).unwrap()),
            Ok(_) => {}
            Err(NoFrame::Gone) => return refusal,
            Err(NoFrame::Late) => panic!("neither an answer nor an end after {} bytes", bytes.len()),
        }
    }
}

fn hello(intent: Intent) -> Hello {
    let mut hello = Hello::new("stranger", intent, PCHANNEL);
    if intent == Intent::Read {
        hello.read = Some(ReadRequest {
            credit: Bytes(1 << 20),
            ..ReadRequest::default()
        });
    }
    hello
}

fn hello_frame(hello: &Hello) -> Vec<u8> {
    frame(FrameKind::Hello, 0, &hello.to_body())
}

#[test]
fn strangers_are_answered_in_words() {
    let scratch = Scratch::new("strangers");
    let server = Server::start_with(&scratch.path().join("data"), &Options::small());
    // A version and a feature of another time: told what is spoken here.
    let mut other = hello(Intent::Produce);
    other.version = 99;
    let refusal = greet(&server.address, &other).map(|_| ()).unwrap_err().refusal();
    assert_says(&refusal, RefusalCode::VersionUnsupported, &["99", "1"]);
    assert_eq!(refusal.versions, (1, 1));
    let mut other = hello(Intent::Read);
    other.features = 1 << 40;
    let refusal = greet(&server.address, &other).map(|_| ()).unwrap_err().refusal();
    assert_says(&refusal, RefusalCode::FeatureUnsupported, &["0x10000000000"]);
    assert_eq!(refusal.features, 0);

    // Other protocols, and frames that may not come first.
    let http = answer_to(&server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("an answer");
    assert_eq!(http.code, RefusalCode::BadRequest, "{http:?}");
    let batch = inserts(PCHANNEL, "v", &[b"x"]);
    let first = answer_to(&server, &frame(FrameKind::Produce, 1, &batch)).expect("an answer");
    assert_says(&first, RefusalCode::BadRequest, &["produce", "hello"]);
    let tick = answer_to(&server, &frame(FrameKind::Tick, 0, &[0; 16])).expect("an answer");
    assert_says(&tick, RefusalCode::BadRequest, &["tick", "hello"]);
    let lying = FrameHeader::new(FrameKind::Hello, usize::MAX >> 1, 0).to_bytes();
    let too_large = answer_to(&server, &lying).expect("an answer");
    assert!(too_large.message.contains("hello"), "{too_large:?}");

    // Frames that a reader or a producer may not send.
    let on_reader = answer_to(
        &server,
        &[hello_frame(&hello(Intent::Read)), frame(FrameKind::Produce, 3, &batch)].concat(),
    );
    assert_says(
        &on_reader.expect("an answer"),
        RefusalCode::BadRequest,
        &["produce", "credit"],
    );
    let on_producer = answer_to(
        &server,
        &[
            hello_frame(&hello(Intent::Produce)),
            frame(FrameKind::Credit, 0, &[1; 8]),
        ]
        .concat(),
    );
    assert_says(
        &on_producer.expect("an answer"),
        RefusalCode::BadRequest,
        &["credit", "produce"],
    );
    let mut producer = RawProducer::open(&server.address, PCHANNEL).unwrap();
    let astray = producer.ask(&inserts("elsewhere", "v", &[b"x"])).refusal();
    assert_says(&astray, RefusalCode::BadRequest, &["elsewhere", PCHANNEL]);
    // One bit of the payload, changed on the way: the checksum that the client computed is checked at the door.
    let mut flipped = inserts(PCHANNEL, "v", &[b"whole", b"broken"]);
    *flipped.last_mut().unwrap() ^= 1;
    let damaged = producer.ask(&flipped).refusal();
    assert_says(&damaged, RefusalCode::BadRequest, &["message 1", "crc32c"]);
    producer.ask(&batch).ack(); // one bad batch does not end the connection
    drop(producer);
    all_is_well(&server, 1);
}

#[test]
fn lengths_that_lie_take_no_memory() {
    let scratch = Scratch::new("lying");
    let server = Server::start_with(&scratch.path().join("data"), &Options::small());
    let whole = server.gauge("lognode_memory_budget_bytes{shard=\"0\",part=\"receiving\"}");
    // Sixty connections that announce the largest batch and send next to nothing of it: together 15 MiB of a budget of 1.
    let liars: Vec<_> = (0..60)
        .map(|i| {
            let (mut raw, _) = greet(&server.address, &hello(Intent::Produce)).unwrap();
            raw.write(&FrameHeader::new(FrameKind::Produce, 256 << 10, i).to_bytes())
                .unwrap();
            raw.write(&[0; 100]).unwrap();
            raw
        })
        .collect();
    thread::sleep(Duration::from_millis(700));
    let taken = server.gauge("lognode_memory_used_bytes{shard=\"0\",part=\"receiving\"}");
    assert!(
        taken > 0 && taken <= 60 * 8_192 && taken < whole,
        "{taken} bytes of {whole} taken by lies"
    );
    let mut producer = RawProducer::open(&server.address, PCHANNEL).unwrap();
    producer.ask(&inserts(PCHANNEL, "v", &[b"still served"])).ack();
    // A length over the limit is refused before a byte of it is read.
    producer
        .raw
        .write(&FrameHeader::new(FrameKind::Produce, 3 << 30, 8).to_bytes())
        .unwrap();
    let refusal = producer.answer(PATIENCE).expect("an answer").1.refusal();
    assert_says(&refusal, RefusalCode::TooLarge, &["3221225472"]);
    assert!(producer.raw.ends_within(PATIENCE));
    drop((liars, producer));
    all_is_well(&server, 1);
}

#[test]
fn noise_cuts_and_forgeries_are_refused_or_stored_whole() {
    let scratch = Scratch::new("noise");
    let data = scratch.path().join("data");
    let server = Server::start_with(&data, &Options::small());
    let mut random = SmallRng::seed_from_u64(7);
    let good = [
        hello_frame(&hello(Intent::Produce)),
        hello_frame(&hello(Intent::Read)),
        hello_frame(&Hello::new("stranger", Intent::Admin, "")),
        frame(FrameKind::Produce, 5, &inserts(PCHANNEL, "v", &[b"one", b"two"])),
        frame(FrameKind::Credit, 0, &[9; 8]),
    ];
    for i in 0..300 {
        let mut bytes = good[i % 3].clone();
        match i % 4 {
            0 => {
                bytes = vec![0; random.random_range(0..2_000)];
                random.fill(&mut bytes[..]);
            }
            1 => mutate::mutate(&mut bytes, &good, &mut random),
            2 => {
                bytes.extend_from_slice(&good[3 + i % 2]);
                mutate::mutate(&mut bytes, &good, &mut random);
            }
            // The hello arrives; what follows it is noise or cut off.
            _ => {
                let mut more = good[3 + i % 2].clone();
                mutate::mutate(&mut more, &good, &mut random);
                bytes.extend(more);
                bytes.truncate(bytes.len() - random.random_range(0..bytes.len().min(30)));
            }
        }
        answer_to(&server, &bytes);
    }

    // Records whose checksums are right and whose tables are anything.
    let mut producer = RawProducer::open(&server.address, PCHANNEL).unwrap();
    let (mut acked, mut refused) = (0, 0);
    for i in 0..4_000u64 {
        let mut record = if i % 2 == 0 {
            craft::record(&mut random)
        } else {
            let mut record = inserts(PCHANNEL, "vchannel", &[b"one", b"", b"three"]);
            mutate::mutate(&mut record, &good, &mut random);
            check::mend(&mut record);
            record
        };
        if record.len() < 24 {
            record.resize(24, 0); // shorter ones end the connection at the frame header
        }
        producer.send(i, &record).unwrap();
        match producer.answer(PATIENCE).expect("an answer") {
            (of, support::raw::Answer::Ack(ack)) => {
                assert_eq!(of, i);
                acked += u64::from(ack.count);
            }
            (of, support::raw::Answer::Refused(refusal)) => {
                assert_eq!((of, refusal.message.is_empty()), (i, false));
                refused += 1;
            }
        }
    }
    assert!(
        acked > 100 && refused > 100,
        "{acked} messages acked, {refused} batches refused"
    );
    drop(producer);
    // Whatever got in can be read, by the strictest reader, from memory and from disk.
    let stored = read_all(&server.address, PCHANNEL).1.len();
    all_is_well(&server, stored);
    server.kill();
    let server = Server::start_with(&data, &Options::small());
    assert_eq!(read_all(&server.address, PCHANNEL).1.len(), stored + 1);
    all_is_well(&server, stored + 1);
}

#[test]
fn a_thousand_connections_come_and_go() {
    let scratch = Scratch::new("thousand");
    let server = Server::start_with(&scratch.path().join("data"), &Options::small());
    RawProducer::open(&server.address, PCHANNEL)
        .unwrap()
        .ask(&inserts(PCHANNEL, "v", &[b"x"]))
        .ack();
    // These never say hello, or only half of one; they are closed in bounded time.
    let whole = hello_frame(&hello(Intent::Produce));
    let silent: Vec<_> = (0..40)
        .map(|i| {
            let mut raw = Raw::connect(&server.address).unwrap();
            raw.write(&whole[..i * whole.len() / 40]).unwrap();
            raw
        })
        .collect();
    let since = Instant::now();
    let mut kept = Vec::new();
    for i in 0..1_000 {
        let bytes = match i % 5 {
            0 => Vec::new(),
            1 => whole[..whole.len() / 2].to_vec(),
            2 => whole.clone(),
            3 => hello_frame(&hello(Intent::Read)),
            _ => [
                whole.clone(),
                FrameHeader::new(FrameKind::Produce, 5_000, 1).to_bytes().to_vec(),
            ]
            .concat(),
        };
        let mut raw = Raw::connect(&server.address).unwrap();
        raw.write(&bytes).unwrap();
        if i % 10 == 3 {
            kept.push(raw); // these stay half open for a while
        }
    }
    drop(kept);
    for mut raw in silent {
        assert!(raw.ends_within(PATIENCE), "a stranger without a hello is kept");
    }
    assert!(
        since.elapsed() > Duration::from_secs(2) && since.elapsed() < Duration::from_secs(9),
        "{:?}",
        since.elapsed()
    );
    all_is_well(&server, 1);
    // The node's limit of connections is told as such.
    let few = Options::small().env("LOGNODE_LIMITS__CONNECTIONS", 3);
    let server = Server::start_with(&scratch.path().join("few"), &few);
    let mut open = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    let refusal = loop {
        match greet(&server.address, &hello(Intent::Read)) {
            Ok((raw, _)) => open.push(raw),
            Err(NoWelcome::Refused(refusal)) => break refusal,
            Err(NoWelcome::Gone) => panic!("not told"),
        }
        assert!(Instant::now() < deadline, "{} connections and no limit", open.len());
        thread::sleep(Duration::from_millis(100));
    };
    assert_says(&refusal, RefusalCode::RateLimited, &["limits.connections"]);
    assert_eq!((refusal.limit_name.as_str(), refusal.limit_value), ("connections", 3));
}
