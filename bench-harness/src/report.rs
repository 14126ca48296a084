//! What a scenario says at its end: one JSON object, or text.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    latency::{Percentiles, median},
    raw::RawLimits,
};

/// The result of a scenario. The fields up to `durable` stand in every result under just these names; `null` where a
/// figure has no meaning (no limits measured, no message sent).
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Its name.
    pub scenario: &'static str,
    /// Messages acked (`catchup`: delivered) per second, the median of the runs.
    pub messages_per_s: f64,
    /// Bytes of their bodies per second.
    pub bytes_per_s: f64,
    /// From the moment a batch should have left until its ack was read, in microseconds; medians of the runs, the maximum of all.
    pub ack_us: Percentiles,
    /// The raw limits of this machine, measured before the server was started.
    pub limit: Option<RawLimits>,
    /// The result as a share of the limit that `limit_name` names.
    pub ratio_to_limit: Option<f64>,
    /// CPU time of the whole server process for each message, in nanoseconds.
    pub server_cpu_ns_per_message: Option<f64>,
    /// Largest resident memory of the server.
    pub rss_peak_bytes: u64,
    /// Whether every ack stood for bytes that were written to the log and synced.
    pub durable: bool,
    /// `idle` only.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleFigures>,
    /// What `ratio_to_limit` divides by.
    pub limit_name: String,
    /// Which side was the bottleneck, and why we think so.
    pub bottleneck: String,
    /// Smallest and largest of the runs.
    pub spread: Spread,
    /// Each run.
    pub runs: Vec<RunFigures>,
    /// What was checked on the way.
    pub checks: Vec<String>,
    /// Sizes, counts and settings.
    pub parameters: Value,
    /// What only this scenario has.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What an idle server did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IdleFigures {
    /// Bytes written to log and cache.
    pub bytes_written: u64,
    /// Bytes of node metadata written: the high-water mark of time.
    pub metadata_bytes_written: u64,
    /// CPU time of the server, in percent of one core.
    pub cpu_percent: f64,
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunFigures {
    /// Messages per second.
    pub messages_per_s: f64,
    /// Bytes of bodies per second.
    pub bytes_per_s: f64,
    /// Ack latencies.
    pub ack_us: Percentiles,
    /// How many there were.
    pub samples: u64,
    /// CPU time of the server for each message.
    pub server_cpu_ns_per_message: f64,
    /// CPU time of the whole server by elapsed time; above 1 with more than one busy thread.
    pub server_cpu_share: f64,
    /// CPU time of the server's busiest thread by elapsed time.
    pub server_busiest_thread_share: f64,
    /// CPU time of the client's thread by elapsed time.
    pub client_cpu_share: f64,
    /// CPU time of everything else on this machine by elapsed time: what was taken from the measurement.
    pub others_cpu_share: f64,
}

/// Smallest and largest value of the runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Of the rate.
    pub messages_per_s: [f64; 2],
    /// Of the ack latency's median.
    pub ack_us_p50: [f64; 2],
    /// Of its 99th percentile.
    pub ack_us_p99: [f64; 2],
}

impl Spread {
    /// Over these runs.
    pub fn of(runs: &[RunFigures]) -> Self {
        let range = |pick: fn(&RunFigures) -> f64| {
            let values = || runs.iter().map(pick);
            [values().reduce(f64::min), values().reduce(f64::max)].map(Option::unwrap_or_default)
        };
        Self {
            messages_per_s: range(|run| run.messages_per_s),
            ack_us_p50: range(|run| run.ack_us.p50),
            ack_us_p99: range(|run| run.ack_us.p99),
        }
    }
}

/// The median of one figure over the runs.
pub fn median_run(runs: &[RunFigures], pick: fn(&RunFigures) -> f64) -> f64 {
    median(runs.iter().map(pick))
}

impl Report {
    /// The last line of the output with `--json`.
    pub fn to_json(&self) -> String {
        // Plain numbers, texts and maps with text keys always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing into a String can't fail.
            let _ = writeln!(text, "{name:<32}{value}");
        };
        line("scenario", self.scenario.to_owned());
        if self.idle.is_none() {
            let [low, high] = self.spread.messages_per_s;
            line(
                "messages/s",
                format!("{:.0}  (runs: {low:.0} to {high:.0})", self.messages_per_s),
            );
            line("MB/s of bodies", format!("{:.1}", self.bytes_per_s / 1e6));
        }
        line("ack p50/p99/p99.9/max", latency_text(&self.ack_us));
        if let Some(idle) = &self.idle {
            line("bytes to log and cache", idle.bytes_written.to_string());
            line("bytes of metadata", idle.metadata_bytes_written.to_string());
            line("server CPU", format!("{:.2} % of a core", idle.cpu_percent));
        }
        if let Some(ns) = self.server_cpu_ns_per_message {
            line("server CPU per message", format!("{ns:.0} ns"));
        }
        line(
            "server memory, peak",
            format!("{:.1} MiB", self.rss_peak_bytes as f64 / f64::from(1 << 20)),
        );
        if let Some(limit) = &self.limit {
            line("raw: disk, loopback", {
                let (disk, loopback) = (limit.disk_bytes_per_s / 1e6, limit.loopback_bytes_per_s / 1e6);
                format!("{disk:.0}, {loopback:.0} MB/s")
            });
            line(
                "raw: echo",
                format!("{:.0}/s, p50 {:.0} us", limit.echo_per_s, limit.echo_us_p50),
            );
            line("raw: dsync write of 4 KiB", format!("p50 {:.0} us", limit.dsync_us_p50));
        }
        if let Some(ratio) = self.ratio_to_limit {
            line("ratio to limit", format!("{ratio:.3}  ({})", self.limit_name));
        }
        line("bottleneck", self.bottleneck.clone());
        for (name, value) in &self.extra {
            line(name, value.to_string());
        }
        for check in &self.checks {
            line("checked", check.clone());
        }
        line("parameters", self.parameters.to_string());
        text
    }
}

fn latency_text(figures: &Percentiles) -> String {
    let Percentiles { p50, p99, p999, max } = figures;
    format!("{p50:.0} / {p99:.0} / {p999:.0} / {max:.0} us")
}
