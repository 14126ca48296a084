//! `idle`: many pchannels and vchannels and nothing to do.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use clap::Args;
use serde_json::{Map, Value, json};
use wire_format::protocol::Start;

use super::{End, Ratio, check_appends, print, report};
use crate::{
    error::{BenchError, During},
    latency::{Percentiles, median},
    load::{BatchShape, Load, Pace, ReaderPlan, Sample, vchannel_name},
    options::{LoadPlan, StageArgs},
    report::{IdleFigures, Report, RunFigures},
    server::Server,
    stage::{CpuMeter, CpuUse, Stage, Wishes},
};

/// Options of `idle`.
#[derive(Debug, Clone, Args)]
pub struct IdleArgs {
    /// Options of every scenario; `--warmup` has no meaning here.
    #[command(flatten)]
    pub stage: StageArgs,
    /// pchannels, each made by one batch.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=999))]
    pub pchannels: u16,
    /// vchannels of each pchannel, each made by one message.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub vchannels: u32,
    /// Readers that listen, spread over the pchannels round and round.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=8_000))]
    pub readers: u16,
    /// Bytes of each message.
    #[arg(long, default_value_t = 64)]
    pub size: usize,
}

/// Small segment files: of 64 pchannels each has one in use and one prepared.
const SEGMENT_BYTES: u64 = 16 << 20;
/// The server must have written nothing for so long before the measurement begins.
const CALM: Duration = Duration::from_secs(4);
/// It is given so long to prepare its files.
const CALM_WITHIN: Duration = Duration::from_secs(180);

/// One quiet time.
struct Window {
    figures: IdleFigures,
    process_written_bytes: u64,
    cpu: CpuUse,
    sample: Sample,
}

/// Measures and prints.
///
/// # Errors
/// Whatever keeps it from a result; nothing is printed to standard output then.
pub fn execute(args: &IdleArgs) -> Result<(), BenchError> {
    let plan = LoadPlan {
        shape: BatchShape {
            message_bytes: args.size.max(1),
            messages: args.vchannels,
            vchannels: args.vchannels,
        },
        connections: args.pchannels.into(),
        window: 1,
        pchannels: args.pchannels.into(),
    };
    let wishes = Wishes {
        keep_all: true,
        segment_bytes: Some(SEGMENT_BYTES),
        seconds: 60.0,
        runs: 1,
        steps: (1, 3),
    };
    let stage = Stage::new(&args.stage, &plan, wishes)?;
    let mut server = stage.start_server()?;
    let report = measure(&stage, &server, &plan, args).map_err(|error| server.explain(error))?;
    server.stop()?;
    print(&stage, &report);
    Ok(())
}

fn measure(stage: &Stage<'_>, server: &Server, plan: &LoadPlan, args: &IdleArgs) -> Result<Report, BenchError> {
    stage.step(&format!("creating {} pchannels", plan.pchannels));
    let mut load = Load::new(server.address, plan.pchannels, plan.shape.messages, false)?;
    load.add_producers(plan.connections, plan.shape)?;
    let created = stage.run(&mut load, Pace::Count { window: 1, batches: 1 }, 0.0)?;
    load.drop_producers();
    let mut end = check_appends(server, &load, plan)?;
    stage.step("waiting until the server is calm");
    wait_for_calm(server)?;
    add_readers(&mut load, args)?;
    // The first promises ask for room ahead at once; the measurement is about what goes on.
    stage.run(&mut load, Pace::Window(0), 1.0)?;
    let mut windows = Vec::new();
    for number in 1..=stage.runs {
        stage.step(&format!("{} s of nothing, {number} of {}", stage.seconds, stage.runs));
        windows.push(quiet(stage, server, &mut load)?);
    }
    load.check_dense()?;
    check_ticks(&windows, args)?;
    end.rss_peak_bytes = server.rss_peak_bytes()?;
    end.checks
        .push("no offset was given out while nothing was sent".to_owned());
    Ok(conclude(stage, plan, args, &created, &windows, end))
}

/// The server prepares segment files ahead, which is not what is measured here.
fn wait_for_calm(server: &Server) -> Result<(), BenchError> {
    let begin = Instant::now();
    let mut seen = server.written_bytes()?;
    let mut since = Instant::now();
    while since.elapsed() < CALM {
        thread::sleep(Duration::from_millis(200));
        let now = server.written_bytes()?;
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        if begin.elapsed() > CALM_WITHIN {
            return Err(BenchError::Check(format!(
                "the server still writes {} s after the last ack: it is not idle",
                CALM_WITHIN.as_secs()
            )));
        }
    }
    Ok(())
}

fn add_readers(load: &mut Load, args: &IdleArgs) -> Result<(), BenchError> {
    for number in 0..args.readers {
        let reader = ReaderPlan {
            pchannel: usize::from(number % args.pchannels),
            vchannel: Some(vchannel_name(u32::from(number) % args.vchannels)),
            credit_bytes: 1 << 20,
            buffer_bytes: 4 << 10,
            verify_every: 1,
            dense: true,
        };
        load.add_reader(reader, Start::Latest)?;
    }
    Ok(())
}

fn quiet(stage: &Stage<'_>, server: &Server, load: &mut Load) -> Result<Window, BenchError> {
    let metrics = server.metrics()?;
    let (log, metadata) = (metrics.log_written_bytes()?, metrics.metadata_written_bytes()?);
    let log_files = stage.data_dir().join("pchannels");
    let files_before = folder_state(&log_files)?;
    // What came while the page was read is taken in before time runs.
    stage.run(load, Pace::Window(0), 0.05)?;
    let (process, meter) = (server.written_bytes()?.0, CpuMeter::start(server)?);
    let sample = stage.run(load, Pace::Window(0), stage.seconds)?;
    // The page is read after the CPU time, since it costs some.
    let cpu = meter.stop(server, &sample)?;
    let process_written_bytes = server.written_bytes()?.0 - process;
    let metrics = server.metrics()?;
    let metadata = metrics.metadata_written_bytes()? - metadata;
    let mut log = metrics.log_written_bytes()? - log;
    if folder_state(&log_files)? != files_before {
        // The log's files were written: whatever the process wrote counts, whether its own counter knows of it or not.
        log = log.max(process_written_bytes).max(1);
    }
    Ok(Window {
        figures: IdleFigures {
            bytes_written: log,
            metadata_bytes_written: metadata,
            cpu_percent: cpu.server_s / cpu.elapsed_s * 100.0,
        },
        process_written_bytes,
        cpu,
        sample,
    })
}

/// Path, length and time of the last change of every file below `folder`, in order.
fn folder_state(folder: &Path) -> Result<Vec<(PathBuf, u64, SystemTime)>, BenchError> {
    let step = format!("look at {}", folder.display());
    let mut state = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).during(&step)? {
            let entry = entry.during(&step)?;
            let facts = entry.metadata().during(&step)?;
            if facts.is_dir() {
                folders.push(entry.path());
            }
            state.push((entry.path(), facts.len(), facts.modified().during(&step)?));
        }
    }
    state.sort();
    Ok(state)
}

fn check_ticks(windows: &[Window], args: &IdleArgs) -> Result<(), BenchError> {
    if windows.iter().any(|window| window.sample.deliveries.count() > 0) {
        return Err(BenchError::Check(
            "messages were delivered, though none was sent".to_owned(),
        ));
    }
    if args.readers > 0 && windows.iter().any(|window| window.sample.ticks == 0) {
        return Err(BenchError::Check("readers got no tick".to_owned()));
    }
    Ok(())
}

fn conclude(
    stage: &Stage<'_>,
    plan: &LoadPlan,
    args: &IdleArgs,
    created: &Sample,
    windows: &[Window],
    end: End,
) -> Report {
    let runs = windows.iter().map(|window| RunFigures {
        messages_per_s: 0.0,
        bytes_per_s: 0.0,
        ack_us: created.acks.percentiles(),
        samples: created.acks.count(),
        server_cpu_ns_per_message: 0.0,
        server_cpu_share: window.cpu.server_s / window.cpu.elapsed_s,
        server_busiest_thread_share: window.cpu.busiest_thread_s / window.cpu.elapsed_s,
        client_cpu_share: window.sample.client_cpu_s / window.cpu.elapsed_s,
        others_cpu_share: window.cpu.others_s / window.cpu.elapsed_s,
    });
    let heard = windows.iter().filter(|window| window.sample.tick_gaps.count() > 0);
    let gaps: Vec<Percentiles> = heard.map(|window| window.sample.tick_gaps.percentiles()).collect();
    let tick_gap_us = (!gaps.is_empty()).then(|| Percentiles::median_of(&gaps));
    let all: Vec<Value> = windows.iter().map(|window| json!(window.figures)).collect();
    let ticks_per_s = median(windows.iter().map(|w| w.sample.ticks as f64 / w.sample.whole_s));
    let process: Vec<u64> = windows.iter().map(|window| window.process_written_bytes).collect();
    let extra = Map::from_iter([
        ("ticks_per_s".to_owned(), json!(ticks_per_s)),
        ("tick_gap_us".to_owned(), json!(tick_gap_us)),
        ("process_written_bytes".to_owned(), json!(process)),
        ("windows".to_owned(), json!(all)),
        ("ack_us_of".to_owned(), json!("the batches that created the pchannels")),
    ]);
    let parameters = Map::from_iter([("readers".to_owned(), json!(args.readers))]);
    let ratio = Ratio {
        value: None,
        name: "none: nothing is asked of the machine".to_owned(),
    };
    let bottleneck = "none: nothing is to be done".to_owned();
    let mut report = report(
        "idle",
        stage,
        plan,
        runs.collect(),
        end,
        (ratio, bottleneck),
        (extra, parameters),
    );
    report.server_cpu_ns_per_message = None;
    // Of several quiet times the worst counts for what is written, the middle one for the CPU.
    let worst = |pick: fn(&IdleFigures) -> u64| windows.iter().map(|w| pick(&w.figures)).max().unwrap_or(0);
    report.idle = Some(IdleFigures {
        bytes_written: worst(|figures| figures.bytes_written),
        metadata_bytes_written: worst(|figures| figures.metadata_bytes_written),
        cpu_percent: median(windows.iter().map(|window| window.figures.cpu_percent)),
    });
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_into_a_file_below_is_seen() {
        let folder = tempfile::tempdir_in(".").unwrap();
        fs::create_dir(folder.path().join("p")).unwrap();
        let file = folder.path().join("p/1.seg");
        fs::write(&file, "a").unwrap();
        let before = folder_state(folder.path()).unwrap();
        assert_eq!(folder_state(folder.path()).unwrap(), before);
        thread::sleep(Duration::from_millis(30));
        fs::write(&file, "b").unwrap();
        assert_ne!(folder_state(folder.path()).unwrap(), before);
    }
}
