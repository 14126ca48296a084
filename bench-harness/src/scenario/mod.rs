//! The scenarios, and what they have in common at their end.

pub mod append;
pub mod catchup;
pub mod idle;
pub mod latency;
pub mod memory;
pub mod recovery;
pub mod tail;
pub mod timetick;

mod verdict;

use serde_json::{Map, Value};

use crate::{
    error::BenchError,
    latency::Percentiles,
    load::Load,
    options::LoadPlan,
    report::{Report, RunFigures, Spread, median_run},
    server::Server,
    stage::Stage,
};

/// A figure as a share of a raw limit.
#[derive(Debug, Clone, PartialEq)]
struct Ratio {
    value: Option<f64>,
    name: String,
}

/// What the server was like after the last run.
#[derive(Debug, Clone)]
struct End {
    rss_peak_bytes: u64,
    durable: bool,
    checks: Vec<String>,
    /// Bytes that the server had written to the disk for each byte of a block: above 1 by the files that it writes ahead.
    disk_bytes_per_log_byte: f64,
}

/// Looks back over all that was appended in this life of the server: places dense, nothing acked that was not written.
fn check_appends(server: &Server, load: &Load, plan: &LoadPlan) -> Result<End, BenchError> {
    load.check_dense()?;
    let acked = load.acked_messages();
    let acked_bytes = acked * plan.shape.message_bytes as u64;
    let written = server.metrics()?.log_written_bytes()?;
    if written < acked_bytes {
        return Err(BenchError::Check(format!(
            "{acked_bytes} bytes were acked, but only {written} written to the log"
        )));
    }
    let on_disk = server.written_bytes()?.0;
    Ok(End {
        rss_peak_bytes: server.rss_peak_bytes()?,
        // The `local` backend acks after its sync only; a disk that lies about that can't be told from here.
        durable: true,
        checks: vec![
            format!("{acked} messages acked, each at an offset of its own, without a gap; next_offset agrees"),
            format!("{written} bytes written to the log for {acked_bytes} acked"),
        ],
        disk_bytes_per_log_byte: on_disk as f64 / written.max(1) as f64,
    })
}

/// Puts the result together out of its runs.
fn report(
    scenario: &'static str,
    stage: &Stage<'_>,
    plan: &LoadPlan,
    runs: Vec<RunFigures>,
    end: End,
    (ratio, bottleneck): (Ratio, String),
    (mut extra, more_parameters): (Map<String, Value>, Map<String, Value>),
) -> Report {
    extra.insert("disk_bytes_per_log_byte".to_owned(), end.disk_bytes_per_log_byte.into());
    let acks: Vec<Percentiles> = runs.iter().map(|run| run.ack_us).collect();
    let mut parameters = stage.parameters(plan);
    if let Value::Object(parameters) = &mut parameters {
        parameters.extend(more_parameters);
    }
    Report {
        scenario,
        messages_per_s: median_run(&runs, |run| run.messages_per_s),
        bytes_per_s: median_run(&runs, |run| run.bytes_per_s),
        ack_us: Percentiles::median_of(&acks),
        limit: stage.limits.map(|limits| limits.limit),
        ratio_to_limit: ratio.value,
        server_cpu_ns_per_message: Some(median_run(&runs, |run| run.server_cpu_ns_per_message)),
        rss_peak_bytes: end.rss_peak_bytes,
        durable: end.durable,
        idle: None,
        limit_name: ratio.name,
        bottleneck,
        spread: Spread::of(&runs),
        runs,
        checks: end.checks,
        parameters,
        extra,
    }
}

/// The last thing a scenario does.
fn print(stage: &Stage<'_>, report: &Report) {
    stage.end_progress();
    if stage.args.json {
        println!("{}", report.to_json());
    } else {
        print!("{}", report.to_text());
    }
}
