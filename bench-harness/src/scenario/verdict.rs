//! Which side was the bottleneck, and which raw limit a result is held against.

use super::Ratio;
use crate::{
    options::LoadPlan,
    raw::RawLimits,
    report::{RunFigures, median_run},
};

/// A thread that runs for this share of the time has nothing left.
const FULL: f64 = 0.9;
/// Kernel threads that serve the measured disk and sockets use less than this share of a CPU.
const OTHERS_MAX: f64 = 0.2;

/// In a closed loop both sides do what they can.
pub(super) fn closed_loop(runs: &[RunFigures]) -> String {
    let server = median_run(runs, |run| run.server_busiest_thread_share);
    let client = median_run(runs, |run| run.client_cpu_share);
    let who = match (server >= FULL, client >= FULL) {
        (true, true) => "both CPUs are full",
        (true, false) => "the server's CPU is full",
        (false, true) => "the client's CPU is full: the server may be able to do more",
        (false, false) => "neither CPU is full: the disk, or waiting for each other",
    };
    format!(
        "{who} (busiest server thread {:.0} %, client {:.0} %){}",
        server * 100.0,
        client * 100.0,
        others(runs)
    )
}

/// In an open loop the rate is given; the question is whether it was held.
pub(super) fn open_loop(runs: &[RunFigures], wanted_messages_per_s: f64) -> String {
    let server = median_run(runs, |run| run.server_busiest_thread_share);
    let held = median_run(runs, |run| run.messages_per_s) / wanted_messages_per_s;
    let who = if held >= 0.99 {
        "none, the fixed rate was held"
    } else if server >= FULL {
        "the server's CPU is full, the fixed rate was not held"
    } else {
        "the fixed rate was not held though the server's CPU is not full"
    };
    format!(
        "{who} ({:.1} % of {wanted_messages_per_s:.0} messages/s; busiest server thread {:.0} %){}",
        held * 100.0,
        server * 100.0,
        others(runs)
    )
}

/// A warning, if the machine had something else to do.
fn others(runs: &[RunFigures]) -> String {
    let others = median_run(runs, |run| run.others_cpu_share);
    if others <= OTHERS_MAX {
        return String::new();
    }
    format!("; other processes used {others:.2} CPUs meanwhile: repeat on a quiet machine")
}

/// With one batch in flight on each connection, round trips are the limit; else the smaller of disk and loopback.
pub(super) fn append_ratio(limits: Option<&RawLimits>, plan: &LoadPlan, runs: &[RunFigures]) -> Ratio {
    let bytes_per_s = median_run(runs, |run| run.bytes_per_s);
    let batches_per_s = median_run(runs, |run| run.messages_per_s) / f64::from(plan.shape.messages);
    if plan.window == 1 {
        return Ratio {
            value: limits.map(|limits| batches_per_s / limits.echo_per_s),
            name: "batches/s by echo_per_s of a bare echo with the same connections and sizes".to_owned(),
        };
    }
    let smaller = |limits: &RawLimits| limits.disk_bytes_per_s.min(limits.loopback_bytes_per_s);
    Ratio {
        value: limits.map(|limits| bytes_per_s / smaller(limits)),
        name: "bytes_per_s by the smaller of disk_bytes_per_s and loopback_bytes_per_s".to_owned(),
    }
}
