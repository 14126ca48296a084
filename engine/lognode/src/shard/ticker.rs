//! The shard's timer: promises to readers, the time mark, and proof of life. Every 10 ms; every 50 ms while nobody reads and
//! nothing comes in, so that an idle node costs next to nothing.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use futures_lite::FutureExt;
use glommio::timer::sleep;
use lognode_core::SkewEvent;
use wire_format::Millis;

use super::Shard;

/// Pace of the timer. Never longer while there is work: glommio 0.9 may park with work to do, and then only a timer wakes it.
const PACE: Duration = Duration::from_millis(10);
/// Pace while there is none.
const QUIET_PACE: Duration = Duration::from_millis(50);
/// Nobody read and nothing came in for so long: the shard is quiet.
const QUIET_AFTER: Duration = Duration::from_secs(1);
/// Between two publications of counters.
const PUBLISH_EVERY: Duration = Duration::from_millis(250);

/// Runs as long as the shard.
pub async fn run(shard: Rc<Shard>) {
    let mut last = Instant::now();
    let mut next = last + PACE;
    let mut publish = last + PUBLISH_EVERY;
    let mut quiet = Quiet::new(last);
    loop {
        let stirred = shard.stirred.epoch();
        let rest = sleep(next.saturating_duration_since(Instant::now())).or(shard.stirred.changed(stirred));
        rest.await;
        let now = Instant::now();
        shard
            .stats
            .timer_turn(micros(now - last), micros(now.saturating_duration_since(next)));
        last = now;
        turn(&shard);
        // A late turn is not made up for: the pace goes on from here.
        let pace = quiet.pace(&shard, now, shard.stirred.epoch() != stirred);
        shard.quiet.set(pace == QUIET_PACE);
        next = (next + pace).clamp(now + pace / 2, now + pace);
        shard
            .inbox
            .announce_turn(Millis(shard.boot_now().get() + pace.as_millis() as u64));
        if shard.is_stopping() {
            // The heartbeat's last poke may have come a moment before the shard began to wait for one.
            shard.inbox.poke();
        }
        if now >= publish {
            publish = now + PUBLISH_EVERY;
            shard.publish();
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Notices that nothing goes on.
struct Quiet {
    activity: u64,
    since: Instant,
}

impl Quiet {
    fn new(now: Instant) -> Self {
        Self {
            activity: 0,
            since: now,
        }
    }

    /// The pace from now on. What stirred the shard may not be counted yet.
    fn pace(&mut self, shard: &Shard, now: Instant, is_stirred: bool) -> Duration {
        let activity = shard.stats.activity();
        if is_stirred || activity != self.activity || !shard.listened.borrow().is_empty() {
            (self.activity, self.since) = (activity, now);
        }
        if now - self.since < QUIET_AFTER {
            PACE
        } else {
            QUIET_PACE
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
