//! The thread that pokes shards that are late, because a shard of glommio 0.9 may fall asleep with work to do.
//!
//! Its loop can park when the preemption timer fires at the wrong moment; then only a timer or I/O wakes it. Every shard has
//! a timer pending at most 10 ms away (50 ms when nothing goes on), which is the first line. This foreign wake of a shard
//! whose timer is late is the second, and the watchdog tells if both fail.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{handover::Inbox, shard::Published, time_source::TimeSource};

const BEAT: Duration = Duration::from_millis(20);
/// A shard that has not shown itself for so long is stuck.
const STUCK: Duration = Duration::from_secs(5);
/// Between two warnings about the same trouble.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Starts the thread; it ends soon after `stopping` is set.
pub fn start(
    shards: Vec<(Inbox, Arc<Mutex<Published>>)>,
    stopping: Arc<AtomicBool>,
) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name("heartbeat".into()).spawn(move || {
        let source = TimeSource::default();
        let mut warned = Instant::now();
        // One more poke after `stopping` is set wakes the shards to see it.
        loop {
            let last = stopping.load(Ordering::Acquire);
            let now = source.read().boot;
            for (inbox, _) in &shards {
                if last || inbox.is_late(now) {
                    inbox.poke();
                }
            }
            if last {
                return;
            }
            thread::sleep(BEAT);
            if warned.elapsed() >= WARN_EVERY && watch(&shards, &source) {
                warned = Instant::now();
            }
        }
    })
}

fn watch(shards: &[(Inbox, Arc<Mutex<Published>>)], source: &TimeSource) -> bool {
    let now = source.read().boot;
    let mut stuck = false;
    for (id, (_, published)) in shards.iter().enumerate() {
        let at = published.lock().unwrap_or_else(std::sync::PoisonError::into_inner).at;
        let silent_ms = now.get().saturating_sub(at.get());
        if at.get() > 0 && u128::from(silent_ms) > STUCK.as_millis() {
            tracing::error!(
                shard = id,
                silent_ms,
                "the shard does not show itself; its thread is stuck or starved of CPU"
            );
            stuck = true;
        }
    }
    stuck
}
