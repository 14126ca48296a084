//! Invariants 1 to 3 under kill -9 of the real process in the middle of appends, at a hundred seeded points.
//!
//! Seen to fail with: acks before the block is durable; a dedupe table that is not
//! rebuilt from the log; a recovery that passes over a batch; a tick at the time of a message that is still in flight.
//!
//! `SEED=n cargo test -p lognode --test kill` replays one seed, `SEEDS=n` runs more of them.
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

use lognode_client::{ClientConfig, Producer, ProducerConfig};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rustix::process::Signal;
use support::{
    Options, Scratch, Server,
    book::Book,
    raw::{Heard, NoWelcome, RawReader, Silence, read_all, truncate},
};
use wire_format::{Offset, protocol::Start};

const SEEDS: u64 = 5;
const KILLS_PER_SEED: u64 = 20;
const BODY_MAX: usize = 24 << 10;
const PCHANNELS: [&str; 2] = ["p", "q"];

/// What the threads of one seed share.
struct World {
    address: String,
    books: [Book; 2],
    next_key: AtomicU64,
    acked: AtomicU64,
    /// Where the live reader of each pchannel stands.
    read: [AtomicU64; 2],
    done: AtomicBool,
}

#[test]
fn kill_in_the_middle_of_appends_loses_nothing_and_repeats_nothing() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let started = Instant::now();
        let result = std::panic::catch_unwind(|| one_seed(seed));
        if let Err(cause) = result {
            eprintln!("FAILED with SEED={seed}");
            std::panic::resume_unwind(cause);
        }
        eprintln!("seed {seed} took {:?}", started.elapsed());
    }
}

fn one_seed(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let scratch = Scratch::new("kill");
    let data = scratch.path().join("data");
    let mut server = Server::start_with(&data, &Options::small());
    let options = Options {
        listen: Some(server.address.clone()),
        ..Options::small()
    };
    let world = Arc::new(World {
        address: server.address.clone(),
        books: Default::default(),
        next_key: AtomicU64::new(0),
        acked: AtomicU64::new(0),
        read: Default::default(),
        done: AtomicBool::new(false),
    });
    let readers = [0, 1].map(|at| {
        let world = world.clone();
        thread::spawn(move || live_reader(&world, at))
    });
    let producers = {
        let world = world.clone();
        thread::spawn(move || produce_all(world, seed))
    };

    for _ in 0..KILLS_PER_SEED {
        // A number of acks, then some time: kills fall into every step of a block's way, not only behind an ack.
        let (acks, pause) = (random.random_range(1..150), random.random_range(0..30_000));
        wait_for_acks(&world, acks);
        thread::sleep(Duration::from_micros(pause));
        if random.random_bool(0.3) {
            let at = random.random_range(0..2usize);
            drop_read_messages(&world, at);
        }
        if random.random_bool(0.15) {
            // Killed on its way down in order.
            server.signal(Signal::TERM);
            thread::sleep(Duration::from_micros(random.random_range(0..20_000)));
        }
        server.kill();
        while random.random_bool(0.25) {
            let after = Duration::from_micros(random.random_range(0..60_000));
            Server::start_and_kill(&data, &options, after);
        }
        server = Server::start_with(&data, &options);
    }
    wait_for_acks(&world, 50);
    world.done.store(true, Relaxed);
    producers.join().unwrap();
    server.kill();
    let server = Server::start_with(&data, &options);
    let mut stored = 0;
    for (at, pchannel) in PCHANNELS.iter().enumerate() {
        let (first_kept, log) = read_all(&world.address, pchannel);
        world.books[at].check(first_kept, &log, BODY_MAX);
        stored += log.len();
    }
    for reader in readers {
        reader.join().unwrap();
    }
    let counts = [0, 1].map(|at| world.books[at].counts());
    eprintln!("(acked, refused, unknown) {counts:?}, still kept {stored}");
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

#[tokio::main(flavor = "current_thread")]
async fn produce_all(world: Arc<World>, seed: u64) {
    let producers = [(0, false), (0, true), (1, false), (1, true)];
    let producers = producers.into_iter().enumerate().map(|(i, (at, forgetful))| {
        let random = SmallRng::seed_from_u64(seed * 1_000 + i as u64);
        tokio::spawn(produce(world.clone(), at, forgetful, random))
    });
    for producer in producers.collect::<Vec<_>>() {
        producer.await.unwrap();
    }
}

fn wait_for_acks(world: &World, more: u64) {
    let (goal, deadline) = (
        world.acked.load(Relaxed) + more,
        Instant::now() + Duration::from_secs(20),
    );
    while world.acked.load(Relaxed) < goal {
        assert!(Instant::now() < deadline, "appends stand still");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Truncates behind what the live reader has checked, so that segments are recycled under the writers.
fn drop_read_messages(world: &World, at: usize) {
    let upto = world.read[at].load(Relaxed).saturating_sub(20);
    let reply = truncate(&world.address, PCHANNELS[at], upto).unwrap();
    assert!(reply.first_offset.get() <= upto, "more was dropped than asked");
}

/// Sends numbered messages until the world is done. A forgetful one gives up its identity now and then, with messages in
/// flight; the others keep theirs through all restarts, so the server must tell their retries from new messages.
async fn produce(world: Arc<World>, at: usize, forgetful: bool, mut random: SmallRng) {
    let client = ClientConfig::new(&world.address).backoff(Duration::from_millis(5), Duration::from_millis(30));
    let config = ProducerConfig::default()
        .linger(Duration::from_micros(random.random_range(0..1_500)))
        .batch_bytes(64 << 10)
        .in_flight(8, 1 << 20)
        .stall_timeout(Duration::from_secs(2))
        // A forgetful one also stops waiting while the server is down: its outcomes stay unknown.
        .deadline(if forgetful {
            Duration::from_millis(40)
        } else {
            Duration::from_secs(20)
        });
    while !world.done.load(Relaxed) {
        let Ok(producer) = Producer::connect_with(client.clone(), PCHANNELS[at], config.clone()).await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let lives_until = Instant::now() + Duration::from_millis(random.random_range(20..400));
        let mut answers = tokio::task::JoinSet::new();
        while !world.done.load(Relaxed) && !(forgetful && Instant::now() > lives_until) {
            let key = world.next_key.fetch_add(1, Relaxed);
            world.books[at].sending(key);
            match producer.enqueue(support::book::numbered(key, BODY_MAX)).await {
                Err(error) => world.books[at].answered(key, &Err(error)),
                Ok(pending) => {
                    let world = world.clone();
                    answers.spawn(async move {
                        let answer = pending.await;
                        world.acked.fetch_add(u64::from(answer.is_ok()), Relaxed);
                        world.books[at].answered(key, &answer);
                    });
                }
            }
            if random.random_bool(0.2) {
                tokio::time::sleep(Duration::from_micros(random.random_range(0..2_000))).await;
            }
            while answers.len() > 256 {
                answers.join_next().await.unwrap().unwrap();
            }
        }
        if forgetful {
            drop(producer);
        } else {
            producer.close().await.unwrap();
        }
        while let Some(answer) = answers.join_next().await {
            answer.unwrap();
        }
    }
}

/// Reads from the first message to the last through all kills, strictly: nothing that was delivered or promised may change.
fn live_reader(world: &World, at: usize) {
    let mut watch = None;
    let mut quiet = 0;
    loop {
        let opened = match &watch {
            None => RawReader::open(&world.address, PCHANNELS[at], Start::Offset(Offset(0))),
            Some(watch) => RawReader::resume(&world.address, PCHANNELS[at], Clone::clone(watch)),
        };
        let mut reader = match opened {
            Ok(reader) => reader,
            Err(NoWelcome::Gone) => {
                thread::sleep(Duration::from_millis(3));
                continue;
            }
            Err(NoWelcome::Refused(refusal)) => panic!("the live reader of {} was refused: {refusal}", PCHANNELS[at]),
        };
        loop {
            match reader.next(Duration::from_secs(5)) {
                Ok(Heard::Messages(_)) => {
                    quiet = 0;
                    world.read[at].store(reader.watch.next, Relaxed);
                }
                Ok(Heard::Tick(_)) => quiet += 1,
                Err(Silence::Gone) => break,
                Err(end) => panic!("the live reader of {} heard {end:?}", PCHANNELS[at]),
            }
            // Done, and nothing but ticks for a while: this was the end.
            if world.done.load(Relaxed) && quiet > 100 {
                return;
            }
        }
        watch = Some(reader.watch);
    }
}
