//! A pchannel's life under a seeded stream of faults: a clock that jumps, a disk that finishes writes in any order and loses
//! the unfinished ones, crashes, reboots, failed writes, lost requests and answers, retries, readers that come and go.
//!
//! A failing seed is printed; `SEED=n cargo test -p lognode-core --test simulation` replays it, `SEEDS=n` runs more of them.
//!
//! `invariants_hold_under_faults` was seen to fail when the code was broken on purpose, so that
//! - the committer called blocks durable before those in front of them, or at all after their write had failed;
//! - the committer let blocks be sealed after a failure;
//! - a tick was the last timetick given out, or the oldest one in flight itself, while something was in flight;
//! - promises ignored the stored mark, or the mark counted before it was stored;
//! - a promise was told to a reader that did not stand at its place yet; a reader below what is kept was not told so;
//! - a retry was taken for new; a new epoch kept the batches of the old one;
//! - a checkpoint's snapshot held batches that were not durable; replay did not rebuild the producers' table;
//! - a restart forgot the last timetick; a timetick was given twice, or one below the last;
//! - time came from the wall clock; a start ignored the mark, or the stored difference of the clocks.
//!
//! `an_hour_in_which_nobody_listens_writes_nothing_at_all` failed when the mark was stored though nobody listened.
//!
//! Some breaks are caught by the tests of their module only: `clock` (a promise ahead of the stored difference, or equal to the
//! next start), `tick` (no advance of the sequencer; a place too far ahead), `cursor` (credits; no ticks while catching up),
//! `recovery` (equal terms, density), `retention` (holds), `budget` (release of too much), `quota` (bytes not counted).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod checks;
mod clients;
mod disk;
mod node;
mod random;
mod world;

use lognode_core::{LogView, Step};
use wire_format::{Bytes, Millis, Timetick};

use world::{Counts, World};

const STEPS: u64 = 1_500;

/// Tells which seed it was when a check panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "failed with seed {0}; replay with: SEED={0} cargo test -p lognode-core --test simulation",
                self.0
            );
        }
    }
}

fn run(seed: u64) -> (u64, Counts) {
    let _seed = Seed(seed);
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step();
    }
    world.settle();
    (world.trace(), world.counts)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn invariants_hold_under_faults() {
    let mut counts = Counts::default();
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(300),
    };
    let many = seeds.end - seeds.start >= 100;
    for seed in seeds {
        counts.add(&run(seed).1);
    }
    println!("{counts:?}");
    let Counts {
        acked,
        duplicates,
        delivered,
        ticks,
        crashes,
        reopened,
        truncated,
        from_log,
    } = counts;
    let least = [
        acked, duplicates, delivered, ticks, crashes, reopened, truncated, from_log,
    ]
    .into_iter()
    .min();
    assert!(!many || least > Some(100), "something hardly ever happened: {counts:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [1, 2, 77] {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1).0, run(2).0);
}

#[test]
fn an_idle_hour_writes_no_block_and_ticks_all_the_time() {
    let mut world = World::new(9);
    let mut ticks = 0;
    let before = world.disk.metadata_written;
    world.readers.truncate(1);
    for _ in 0..360_000 {
        world.boot_ms += 10;
        world.wall_ms += 10;
        world.node.metadata_done(&mut world.disk, true);
        world.turn();
        while world.read_step(0) {
            ticks += 1;
        }
    }
    assert_eq!((world.disk.blocks_written, world.disk.log.len()), (0, 0));
    assert!(ticks >= 359_990, "{ticks} ticks in 360,000 turns");
    let metadata = world.disk.metadata_written - before;
    assert!(metadata <= 1_801, "{metadata} metadata writes in an hour");
}

#[test]
fn an_hour_in_which_nobody_listens_writes_nothing_at_all() {
    let mut world = World::new(9);
    let before = world.disk.metadata_written;
    for _ in 0..360_000 {
        world.boot_ms += 10;
        world.wall_ms += 10;
        let reading = world.reading();
        world.node.turn(reading, false);
        world.node.metadata_done(&mut world.disk, true);
    }
    assert_eq!(
        (world.disk.metadata_written - before, world.disk.blocks_written),
        (0, 0)
    );
}

#[test]
fn a_new_reader_of_a_quiet_log_is_told_the_newest_tick_at_once() {
    let mut world = World::new(5);
    for _ in 0..200 {
        world.boot_ms += 10;
        world.wall_ms += 10;
        world.node.metadata_done(&mut world.disk, true);
        world.turn();
    }
    let view = LogView {
        first_kept: world.disk.first_kept,
        tail_first: world.node.committer.durable(),
        durable: world.node.committer.durable(),
        promise: world.node.promise,
    };
    let mut cursor = lognode_core::Cursor::new(world.disk.first_kept);
    cursor.grant(Bytes(1));
    let Step::Tick(tick) = cursor.step(Millis(world.boot_ms), &view) else {
        panic!("no tick")
    };
    assert!(tick >= Timetick::from_physical(Millis(world.node.clock.current().physical().0 - 100)));
}
