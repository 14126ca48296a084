//! The shard's 10 ms timer: promises to readers, the time mark, and proof of life.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use glommio::timer::sleep;
use lognode_core::SkewEvent;

use super::Shard;

/// Pace of the timer. Never longer: glommio 0.9 may park with work to do, and then only a timer wakes it.
const PACE: Duration = Duration::from_millis(10);
/// Turns between two publications of counters.
const PUBLISH_TURNS: u32 = 25;

/// Runs as long as the shard.
pub async fn run(shard: Rc<Shard>) {
    let mut last = Instant::now();
    let mut next = last + PACE;
    let mut turns = 0u32;
    loop {
        sleep(next.saturating_duration_since(Instant::now())).await;
        let now = Instant::now();
        // A late turn is not made up for: the pace goes on from here.
        next = (next + PACE).max(now + PACE / 2);
        shard
            .stats
            .timer_turn(u64::try_from((now - last).as_micros()).unwrap_or(u64::MAX));
        last = now;
        turn(&shard);
        turns += 1;
        if turns >= PUBLISH_TURNS {
            turns = 0;
            shard.publish();
        }
    }
}

fn turn(shard: &Rc<Shard>) {
    shard.source.borrow_mut().refresh();
    let now = shard.now();
    report_skew(shard);
    shard.keep_mark(now);
    let limit = shard.promise_limit();
    let listened = shard.listened.borrow();
    for pchannel in listened.iter() {
        pchannel.tick(now, limit);
    }
}

fn report_skew(shard: &Shard) {
    let event = shard.clock.borrow_mut().take_skew_event();
    match event {
        Some(SkewEvent::Followed { ahead_ms }) => {
            tracing::warn!(ahead_ms, "the wall clock jumped ahead; timeticks follow it");
        }
        Some(SkewEvent::Behind { behind_ms }) => {
            tracing::warn!(
                behind_ms,
                "the wall clock is behind the log's time; timeticks go on at the speed of the boot clock"
            );
        }
        None => {}
    }
}
