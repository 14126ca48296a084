//! `catchup`: a log that lies on the disk only, read from its beginning.

use clap::Args;
use serde_json::{Map, json};
use wire_format::protocol::Start;

use super::{End, Ratio, check_appends, print, report, verdict};
use crate::{
    error::BenchError,
    latency::Percentiles,
    load::{Load, Pace, ReaderPlan, Sample},
    options::{LoadArgs, LoadPlan, StageArgs},
    report::{Report, RunFigures, median_run},
    server::Server,
    stage::{CpuMeter, Stage, Wishes},
};

/// Options of `catchup`.
#[derive(Debug, Clone, Args)]
pub struct CatchupArgs {
    /// Options of every scenario; `--seconds` and `--warmup` have no meaning here.
    #[command(flatten)]
    pub stage: StageArgs,
    /// What is sent.
    #[command(flatten)]
    pub load: LoadArgs,
    /// MiB of message bodies to write first and then to read, over all pchannels.
    #[arg(long, default_value_t = 4_096, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub mib: u64,
    /// Verify all checksums of every so many deliveries; 1 verifies all.
    #[arg(long, default_value_t = 8)]
    pub verify_every: u64,
}

/// Bytes of deliveries in flight for each reader.
const CREDIT_BYTES: u64 = 32 << 20;

/// What was written before it is read.
struct Written {
    messages: u64,
    ack_us: Percentiles,
    samples: u64,
    end: End,
}

/// One reading of everything.
struct Reading {
    figures: RunFigures,
    sample: Sample,
}

/// Measures and prints.
///
/// # Errors
/// Whatever keeps it from a result; nothing is printed to standard output then.
pub fn execute(args: &CatchupArgs) -> Result<(), BenchError> {
    let plan = args.load.plan(None, 4)?;
    let wishes = Wishes {
        keep_all: true,
        steps: (2, 3),
        ..Wishes::default()
    };
    let stage = Stage::new(&args.stage, &plan, wishes)?;
    let mut server = stage.start_server()?;
    let mut written = write(&stage, &server, &plan, args.mib).map_err(|error| server.explain(error))?;
    server.stop()?;
    let mut readings = Vec::new();
    for number in 1..=stage.runs {
        // A new process: its memory holds nothing of the log, and segments are read past the page cache.
        let mut server = stage.start_server()?;
        stage.step(&format!("run {number} of {}: reading {} MiB", stage.runs, args.mib));
        let reading =
            read(&stage, &server, &plan, args.verify_every, &written).map_err(|error| server.explain(error))?;
        written.end.rss_peak_bytes = written.end.rss_peak_bytes.max(server.rss_peak_bytes()?);
        server.stop()?;
        readings.push(reading);
    }
    print(&stage, &conclude(&stage, &plan, args, written, readings));
    Ok(())
}

fn write(stage: &Stage<'_>, server: &Server, plan: &LoadPlan, mib: u64) -> Result<Written, BenchError> {
    stage.step(&format!("writing {mib} MiB"));
    let mut load = Load::new(server.address, plan.pchannels, plan.shape.messages, false)?;
    load.add_producers(plan.connections, plan.shape)?;
    let batches = (mib << 20).div_ceil(plan.shape.body_bytes() * plan.connections as u64);
    let window = plan.window;
    let sample = stage.run(&mut load, Pace::Count { window, batches }, 0.0)?;
    let end = check_appends(server, &load, plan)?;
    Ok(Written {
        messages: load.acked_messages(),
        ack_us: sample.acks.percentiles(),
        samples: sample.acks.count(),
        end,
    })
}

fn read(
    stage: &Stage<'_>,
    server: &Server,
    plan: &LoadPlan,
    verify_every: u64,
    written: &Written,
) -> Result<Reading, BenchError> {
    let mut load = Load::new(server.address, plan.pchannels, plan.shape.messages, false)?;
    let meter = CpuMeter::start(server)?;
    let sample = stage.on_client_cpu(|| {
        for pchannel in 0..plan.pchannels {
            let reader = ReaderPlan {
                pchannel,
                vchannel: None,
                credit_bytes: CREDIT_BYTES,
                buffer_bytes: 4 << 20,
                verify_every,
                dense: true,
            };
            load.add_reader(reader, Start::Earliest)?;
        }
        load.run(Pace::Window(0), std::time::Duration::ZERO)
    })?;
    let cpu = meter.stop(server, &sample)?;
    let elapsed_s = cpu.elapsed_s;
    if sample.delivered_messages != written.messages {
        return Err(BenchError::Check(format!(
            "{} messages were written, {} read",
            written.messages, sample.delivered_messages
        )));
    }
    let read_from_disk = server.metrics()?.sum("lognode_log_read_bytes_total")?;
    if read_from_disk < sample.delivered_bytes {
        return Err(BenchError::Check(format!(
            "{} bytes were read, but only {read_from_disk} of them from the disk: the log was not cold",
            sample.delivered_bytes
        )));
    }
    let figures = RunFigures {
        messages_per_s: sample.delivered_messages as f64 / elapsed_s,
        bytes_per_s: sample.delivered_bytes as f64 / elapsed_s,
        ack_us: written.ack_us,
        samples: written.samples,
        server_cpu_ns_per_message: cpu.server_s * 1e9 / sample.delivered_messages as f64,
        server_cpu_share: cpu.server_s / elapsed_s,
        server_busiest_thread_share: cpu.busiest_thread_s / elapsed_s,
        client_cpu_share: sample.client_cpu_s / elapsed_s,
        others_cpu_share: cpu.others_s / elapsed_s,
    };
    Ok(Reading { figures, sample })
}

fn conclude(
    stage: &Stage<'_>,
    plan: &LoadPlan,
    args: &CatchupArgs,
    written: Written,
    readings: Vec<Reading>,
) -> Report {
    let runs: Vec<RunFigures> = readings.iter().map(|reading| reading.figures).collect();
    let verified: u64 = readings.iter().map(|reading| reading.sample.deliveries_verified).sum();
    let deliveries: u64 = readings.iter().map(|reading| reading.sample.deliveries.count()).sum();
    let bytes_per_s = median_run(&runs, |run| run.bytes_per_s);
    let raw = stage
        .limits
        .map(|limits| (limits.disk.read_bytes_per_s, limits.limit.loopback_bytes_per_s));
    let ratio = Ratio {
        value: raw.map(|(disk, _)| bytes_per_s / disk),
        name: "bytes_per_s by disk_read_bytes_per_s".to_owned(),
    };
    let mut end = written.end;
    end.checks.push(format!(
        "each of {} readings gave all {} messages in order; all checksums of {verified} of {deliveries} deliveries verified",
        readings.len(),
        written.messages
    ));
    let extra = Map::from_iter([
        ("disk_read_bytes_per_s".to_owned(), json!(raw.map(|raw| raw.0))),
        (
            "ratio_to_loopback".to_owned(),
            json!(raw.map(|(_, loopback)| bytes_per_s / loopback)),
        ),
        ("deliveries".to_owned(), json!(deliveries)),
        ("deliveries_verified".to_owned(), json!(verified)),
        ("ack_us_of".to_owned(), json!("the writing before")),
    ]);
    let parameters = Map::from_iter([
        ("mib".to_owned(), json!(args.mib)),
        ("verify_every".to_owned(), json!(args.verify_every)),
    ]);
    let judged = (ratio, verdict::closed_loop(&runs));
    report("catchup", stage, plan, runs, end, judged, (extra, parameters))
}
