//! Case 25 on the real server, on a real small file system of its own: a full disk is told at once, reads, ticks and
//! truncation go on, a restart works, and writing resumes by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

#[path = "../../../backends/tests/small_disk/mod.rs"]
mod small_disk;
mod support;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use lognode_client::{Admin, ClientConfig, Error, Message, MessageType, Offset, Producer};
use support::{
    Options, Scratch, Server,
    raw::{Answer, PATIENCE, RawProducer, RawReader, inserts, read_all},
};
use wire_format::protocol::{RefusalCode, Start};

#[test]
fn a_full_disk_is_told_at_once_and_writing_resumes_by_itself() {
    if let Some(disk) = small_disk::inside() {
        return on_a_small_disk(&disk);
    }
    let disk = Scratch::new("small-disk");
    small_disk::run_again(
        "a_full_disk_is_told_at_once_and_writing_resumes_by_itself",
        disk.path(),
        64,
    );
}

fn on_a_small_disk(disk: &Path) {
    let data = disk.join("data");
    let options = Options::small()
        .env("LOGNODE_LOG__SEGMENT_BYTES", 8 << 20)
        .env("LOGNODE_RETENTION__BYTES_PER_PCHANNEL", 0);
    let server = Server::start_with(&data, &options);
    let body = vec![7; 200_000];
    let mut acked = Vec::new();
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    fill(&mut producer, &body, &mut acked);
    // The connection stands, and says no for as long as there is no room.
    for _ in 0..3 {
        let answer = ask(&mut producer, &body);
        assert!(
            matches!(answer, Answer::Refused(refusal) if refusal.code == RefusalCode::DiskFull && refusal.retry_after.get() > 0)
        );
    }
    // Whoever reads gets everything, and ticks go on.
    let mut reader = RawReader::open(&server.address, "p", Start::Latest).unwrap();
    let first = reader.tick(PATIENCE).timetick;
    let later = Instant::now() + Duration::from_millis(300);
    let mut last = first;
    while Instant::now() < later {
        last = reader.tick(PATIENCE).timetick;
    }
    assert!(
        last.physical().get() >= first.physical().get() + 200,
        "ticks stand still: {first} {last}"
    );
    drop(reader);
    assert_all_there(&server, &acked);
    server.kill();

    // A start on a full disk, with nothing left for anybody.
    let mut filler = fs::File::create(disk.join("filler")).unwrap();
    while std::io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
    let free = filler.metadata().unwrap().len().saturating_sub(256 << 10);
    filler.set_len(free).unwrap(); // the checkpoints of a truncation, nothing more
    let server = Server::start_with(&data, &options);
    assert_all_there(&server, &acked);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let config = ClientConfig::new(&server.address).request_deadline(Duration::from_millis(900));
        let producer = Producer::connect(config.clone(), "p").await.unwrap();
        let error = producer
            .send(Message::new("v", MessageType::INSERT, body.clone()))
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("disk is full") || error.to_string().contains("no space left"),
            "{error}"
        );
        assert!(!matches!(error, Error::Connect { .. }), "{error}");
        // Its outcome counts as unknown, and while it lives it tries on.
        drop(producer);
        // By truncation only; a send that waits gets its ack then.
        let patient = config.request_deadline(Duration::from_secs(20));
        let waiting = Producer::connect(patient.clone(), "p").await.unwrap();
        let sent = waiting.send(Message::new("v", MessageType::INSERT, body.clone()));
        let truncated = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let half = Offset(acked[acked.len() / 2]);
            Admin::new(patient.clone()).unwrap().truncate("p", half).await.unwrap()
        };
        let (sent, truncated) = tokio::join!(sent, truncated);
        assert!(truncated.first_offset.get() > 0);
        acked.retain(|&offset| offset >= truncated.first_offset.get());
        acked.push(sent.unwrap().offset.get());
    });
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    fill(&mut producer, &body, &mut acked);
    assert_all_there(&server, &acked);
    assert!(!server.log().contains("panicked"), "{}", server.log());
    server.stop();
}

fn ask(producer: &mut RawProducer, body: &[u8]) -> Answer {
    producer.send(1, &inserts("p", "v", &[body])).unwrap();
    let asked = Instant::now();
    let answer = producer.answer(PATIENCE).expect("an answer").1;
    if matches!(answer, Answer::Refused(_)) {
        assert!(
            asked.elapsed() < Duration::from_secs(1),
            "the refusal took {:?}",
            asked.elapsed()
        );
    }
    answer
}

/// Writes until the disk is full.
fn fill(producer: &mut RawProducer, body: &[u8], acked: &mut Vec<u64>) {
    for _ in 0..1_000 {
        match ask(producer, body) {
            Answer::Ack(ack) => acked.push(ack.base_offset.get()),
            Answer::Refused(refusal) => {
                assert_eq!(refusal.code, RefusalCode::DiskFull, "{refusal:?}");
                assert!(acked.len() > 20);
                return;
            }
        }
    }
    panic!("200 MB found room on a disk of 64 MiB");
}

/// All that was acked is there, each once, and nothing else.
fn assert_all_there(server: &Server, acked: &[u64]) {
    let (first, log) = read_all(&server.address, "p");
    let found: Vec<u64> = log.iter().map(|message| message.offset).collect();
    let expected: Vec<u64> = acked.iter().copied().filter(|&offset| offset >= first).collect();
    assert_eq!(found, expected);
}
