//! The shard-stall test for the parking fault of glommio 0.9: its loop can park with runnable tasks when the preemption timer
//! fires at the wrong moment, and then sleeps until its next timer or I/O, if there is one.
//!
//! First the real server under the load that provokes it, held against a deadline. Then the fault itself in a child process,
//! without what the shards do against it: it is a matter of luck, so whether it shows is only printed. With what the shards
//! do, the same load must never stand still.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use glommio::{
    Latency, LocalExecutorBuilder, Placement, Shares,
    channels::shared_channel::{SharedReceiver, SharedSender, new_bounded},
    timer::Timer,
};
use lognode::{acceptor::shard_of, handover::Inbox, heartbeat};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rustix::process::Signal;
use support::{
    Options, Scratch, Server,
    raw::{PATIENCE, RawProducer, RawReader, inserts},
    send_signal,
};
use wire_format::protocol::Start;

/// No shard may stand still for longer, pauses of the whole process apart. A hang is endless and what the heartbeat heals takes
/// some 60 ms; the rest is room for a machine that is busy with other things.
const BOUND: Duration = Duration::from_secs(1);

fn cpus() -> Vec<usize> {
    (0..thread::available_parallelism().map_or(1, usize::from).min(2)).collect()
}

/// Pauses of the process: what it spent stopped is nobody's fault.
fn pauses(pid: u32, until: Instant, longest_ms: u64, seed: u64, stopped: &Mutex<Vec<(Instant, Instant)>>) {
    let mut random = SmallRng::seed_from_u64(seed);
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(random.random_range(20..120)));
        let from = Instant::now();
        send_signal(pid, Signal::STOP);
        thread::sleep(Duration::from_millis(random.random_range(1..longest_ms)));
        send_signal(pid, Signal::CONT);
        stopped.lock().unwrap().push((from, Instant::now()));
    }
}

#[test]
fn no_shard_stands_still_under_foreign_wakes_and_pauses() {
    const SPAN: Duration = Duration::from_secs(8);
    let scratch = Scratch::new("stall");
    let shards = cpus().len();
    let list = cpus().iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let options = Options::small()
        .env("LOGNODE_SHARDS__MEMORY_BYTES", 8 << 20)
        .arg("--cpus")
        .arg(&list);
    let server = Server::start_with(&scratch.path().join("data"), &options);
    let names: Vec<String> = (0..shards)
        .map(|shard| {
            (0..)
                .map(|i| format!("p{i}"))
                .find(|name| shard_of(name, shards) == shard)
                .unwrap()
        })
        .collect();
    let (until, stopped) = (Instant::now() + SPAN, Mutex::new(Vec::new()));
    let turns_before = server.metric("lognode_timer_turns");
    let gaps = thread::scope(|scope| {
        scope.spawn(|| pauses(server.pid(), until, 150, 1, &stopped));
        let mut listening = Vec::new();
        for name in &names {
            // Hand-overs: each is a foreign wake of a shard in whatever state it is.
            scope.spawn(|| {
                while Instant::now() < until {
                    let mut producer = RawProducer::open(&server.address, name).unwrap();
                    producer.ask(&inserts(name, "v", &[b"once"])).ack();
                }
            });
            // Ping-pong: the shard falls asleep and is woken for each message.
            scope.spawn(|| {
                let mut producer = RawProducer::open(&server.address, name).unwrap();
                while Instant::now() < until {
                    producer.ask(&inserts(name, "v", &[b"ping"])).ack();
                }
            });
            listening.push(scope.spawn(|| {
                let mut reader = RawReader::open(&server.address, name, Start::Latest).unwrap();
                let (mut last, mut gaps) = (Instant::now(), Vec::new());
                while Instant::now() < until {
                    reader.tick(PATIENCE);
                    gaps.push((last, Instant::now()));
                    last = Instant::now();
                }
                gaps
            }));
        }
        listening
            .into_iter()
            .flat_map(|reader| reader.join().unwrap())
            .collect::<Vec<_>>()
    });
    let stopped = stopped.into_inner().unwrap();
    let own = |&(from, to): &(Instant, Instant)| {
        let during = |&(begin, end): &(Instant, Instant)| end.min(to).saturating_duration_since(begin.max(from));
        (to - from).saturating_sub(stopped.iter().map(during).sum())
    };
    let longest = gaps.iter().map(own).max().unwrap();
    eprintln!(
        "{} ticks, {} pauses, longest standstill {longest:?}",
        gaps.len(),
        stopped.len()
    );
    assert!(longest < BOUND, "a shard stood still for {longest:?}");
    let turns = server.metric("lognode_timer_turns") - turns_before;
    let running = SPAN.saturating_sub(stopped.iter().map(|(from, to)| *to - *from).sum());
    let least = running.as_millis() as u64 / 10 * shards as u64 / 3;
    assert!(
        turns > least,
        "{turns} turns of the timer in {running:?} on {shards} shards"
    );
    assert!(!server.log().contains("does not show itself"), "{}", server.log());
    server.stop();
}

const CHILD: &str = "LOGNODE_STALL_CHILD";
const CHILD_SPAN: Duration = Duration::from_secs(3);
const HUNG: i32 = 42;

/// Runs the child against the deadline; `true` if it stood still.
fn child_hangs(kind: &str, paused: bool) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, kind)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + CHILD_SPAN - Duration::from_millis(500);
    if paused {
        pauses(child.id(), until, 30, 1, &Mutex::default());
    }
    match ends_within(&mut child, CHILD_SPAN + PATIENCE) {
        Some(0) => false,
        Some(HUNG) => true,
        other => panic!("the child of kind {kind} ended with {other:?}"),
    }
}

fn ends_within(child: &mut Child, wait: Duration) -> Option<i32> {
    let deadline = Instant::now() + wait;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

#[test]
fn the_fault_is_real_and_what_the_shards_do_heals_it() {
    if cpus().len() < 2 {
        eprintln!("one CPU: there is no ping-pong between two pinned executors");
        return;
    }
    for kind in ["guarded", "guarded-default"] {
        for paused in [false, true] {
            assert!(
                !child_hangs(kind, paused),
                "{kind}: an executor stood still in spite of timer and heartbeat"
            );
        }
    }
    // Seen in about one of three tries on two CPUs.
    let tried = (1..=5).find(|_| child_hangs("bare", false));
    match tried {
        Some(at) => println!("without timer and heartbeat an executor hung for ever at try {at}"),
        None => println!("the fault did not show in 5 tries; it is a matter of luck"),
    }
}

/// What the child process does; nothing in the test run itself.
#[test]
fn child() {
    let Ok(kind) = std::env::var(CHILD) else { return };
    let latency = if kind == "guarded-default" {
        Latency::NotImportant
    } else {
        Latency::Matters(Duration::from_millis(1))
    };
    let guarded = kind != "bare";
    let (rounds, stopping) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let (there, from_there) = new_bounded(1);
    let (back, from_back) = new_bounded(1);
    let inboxes = [Inbox::default(), Inbox::default()];
    let first = (there, from_back, inboxes[0].clone(), rounds.clone(), true);
    let second = (back, from_there, inboxes[1].clone(), rounds.clone(), false);
    for (cpu, (send, receive, inbox, rounds, serves)) in [first, second].into_iter().enumerate() {
        LocalExecutorBuilder::new(Placement::Fixed(cpu))
            .spawn(move || async move {
                if guarded {
                    guard(inbox);
                }
                let queue = glommio::executor().create_task_queue(Shares::default(), latency, "ping-pong");
                let playing = glommio::spawn_local_into(play(send, receive, rounds, serves), queue);
                playing.unwrap().await;
            })
            .unwrap();
    }
    if guarded {
        let watched = inboxes.into_iter().map(|inbox| (inbox, Arc::default())).collect();
        heartbeat::start(watched, stopping).unwrap();
    }
    thread::spawn(busy_neighbour);
    let begin = Instant::now();
    let (mut seen, mut moved) = (0, Instant::now());
    while begin.elapsed() < CHILD_SPAN {
        let look = Instant::now();
        thread::sleep(Duration::from_millis(10));
        let now = rounds.load(Relaxed);
        if now > seen {
            (seen, moved) = (now, Instant::now());
        } else {
            // This thread was stopped as well: what it slept too long does not count.
            moved += look.elapsed().saturating_sub(Duration::from_millis(10));
        }
        if moved.elapsed() > BOUND {
            std::process::exit(HUNG);
        }
    }
    // Executors that hang can't be joined.
    std::process::exit(if seen > 0 { 0 } else { 1 });
}

/// Takes the CPU away at the wrong moments.
fn busy_neighbour() {
    let mut random = SmallRng::seed_from_u64(5);
    loop {
        let until = Instant::now() + Duration::from_micros(random.random_range(100..6_000));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        thread::sleep(Duration::from_micros(random.random_range(0..2_000)));
    }
}

/// What each shard does: a timer pending at most 10 ms away, and a task that a foreign thread wakes.
fn guard(inbox: Inbox) {
    glommio::spawn_local(async {
        loop {
            Timer::new(Duration::from_millis(10)).await;
        }
    })
    .detach();
    glommio::spawn_local(async move {
        loop {
            inbox.next().await;
        }
    })
    .detach();
}

async fn play(send: SharedSender<u64>, receive: SharedReceiver<u64>, rounds: Arc<AtomicU64>, serves: bool) {
    // Each end waits for its other end: one after the other they would wait in a circle.
    let (send, receive) = futures_util::join!(send.connect(), receive.connect());
    if serves {
        send.send(0).await.unwrap();
    }
    while let Some(ball) = receive.recv().await {
        rounds.fetch_add(1, Relaxed);
        send.send(ball + 1).await.unwrap();
    }
}
