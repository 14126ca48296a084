//! `recovery`: a long log, kill -9 in the middle of appends, and the time until the next process serves it.

use std::{
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, json};

use super::{Ratio, check_appends, print, report, verdict};
use crate::{
    error::{BenchError, During},
    latency::median,
    load::{Load, Pace},
    options::{LoadArgs, LoadPlan, StageArgs},
    report::{Report, RunFigures},
    server::Server,
    stage::{Stage, Wishes},
};

/// Options of `recovery`.
#[derive(Debug, Clone, Args)]
pub struct RecoveryArgs {
    /// Options of every scenario; `--seconds` and `--warmup` have no meaning here, `--runs` is how often the server is killed.
    #[command(flatten)]
    pub stage: StageArgs,
    /// What is sent; 4 pchannels if not asked for otherwise.
    #[command(flatten)]
    pub load: LoadArgs,
    /// MiB of message bodies to write first, over all pchannels.
    #[arg(long, default_value_t = 10_240, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub mib: u64,
}

/// pchannels if `--pchannels` is left at 1.
const PCHANNELS: usize = 4;
/// The server is killed so long after appends have begun.
const KILLED_AFTER: Duration = Duration::from_millis(700);

/// One start after a kill.
#[derive(Debug, Clone, Copy)]
struct Recovered {
    /// From the start of the process until it serves.
    serving_s: f64,
    /// Until the first new message was acked on every pchannel.
    first_acks_s: f64,
    /// Messages acked in this life, and still there after the kill.
    acked: u64,
}

/// Measures and prints.
///
/// # Errors
/// Whatever keeps it from a result; nothing is printed to standard output then.
pub fn execute(args: &RecoveryArgs) -> Result<(), BenchError> {
    let mut load = args.load.clone();
    if load.pchannels == 1 {
        load.pchannels = PCHANNELS;
    }
    let plan = load.plan(None, 4)?;
    let wishes = Wishes {
        keep_all: true,
        steps: (2, 3),
        ..Wishes::default()
    };
    let stage = Stage::new(&args.stage, &plan, wishes)?;
    let mut server = stage.start_server()?;
    let (written, mut end) = write(&stage, &server, &plan, args.mib).map_err(|error| server.explain(error))?;
    let mut recovered = Vec::new();
    for number in 1..=stage.runs {
        stage.step(&format!("kill {number} of {}", stage.runs));
        let mut load = Load::new(server.address, plan.pchannels, plan.shape.messages, false)?;
        load.add_producers(plan.connections, plan.shape)?;
        kill_in_mid_append(&stage, server, &mut load, &plan)?;
        let begin = Instant::now();
        server = stage.start_server()?;
        let serving_s = begin.elapsed().as_secs_f64();
        let mut after = load
            .reconnected(server.address)
            .map_err(|error| server.explain(error))?;
        after.add_producers(plan.pchannels, plan.shape)?;
        stage.run(&mut after, Pace::Count { window: 1, batches: 1 }, 0.0)?;
        recovered.push(Recovered {
            serving_s,
            first_acks_s: begin.elapsed().as_secs_f64(),
            acked: load.acked_messages(),
        });
        end.rss_peak_bytes = end.rss_peak_bytes.max(server.rss_peak_bytes()?);
    }
    server.stop()?;
    end.checks.push(format!(
        "after each of {} kills every log went on behind all {:?} messages that were acked",
        recovered.len(),
        recovered.iter().map(|one| one.acked).collect::<Vec<_>>()
    ));
    print(&stage, &conclude(&stage, &plan, args, written, &recovered, end));
    Ok(())
}

fn write(
    stage: &Stage<'_>,
    server: &Server,
    plan: &LoadPlan,
    mib: u64,
) -> Result<(RunFigures, super::End), BenchError> {
    stage.step(&format!("writing {mib} MiB"));
    let mut load = Load::new(server.address, plan.pchannels, plan.shape.messages, false)?;
    load.add_producers(plan.connections, plan.shape)?;
    let batches = (mib << 20).div_ceil(plan.shape.body_bytes() * plan.connections as u64);
    let window = plan.window;
    let sample = stage.run(&mut load, Pace::Count { window, batches }, 0.0)?;
    let end = check_appends(server, &load, plan)?;
    let messages_per_s = sample.messages as f64 / sample.whole_s;
    let figures = RunFigures {
        messages_per_s,
        bytes_per_s: messages_per_s * plan.shape.message_bytes as f64,
        ack_us: sample.acks.percentiles(),
        samples: sample.acks.count(),
        server_cpu_ns_per_message: 0.0,
        server_cpu_share: 0.0,
        server_busiest_thread_share: 0.0,
        client_cpu_share: sample.client_cpu_s / sample.whole_s,
        others_cpu_share: 0.0,
    };
    Ok((figures, end))
}

/// Appends as much as goes in and kills the server meanwhile. `load` knows what was acked.
fn kill_in_mid_append(stage: &Stage<'_>, server: Server, load: &mut Load, plan: &LoadPlan) -> Result<(), BenchError> {
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| BenchError::Server("has no process id".to_owned()))?;
    let (killed, ended) = thread::scope(|scope| {
        let killer = scope.spawn(move || {
            thread::sleep(KILLED_AFTER);
            kill_process(pid, Signal::KILL).during("kill of the server")
        });
        let ended = stage.run(load, Pace::Window(plan.window), 60.0);
        (killer.join(), ended)
    });
    killed.map_err(|_| BenchError::Check("the killing thread panicked".to_owned()))??;
    // Reaps it, so that its folder is free.
    drop(server);
    match ended {
        Ok(_) => Err(BenchError::Check(
            "the load ended although the server was killed".to_owned(),
        )),
        Err(BenchError::Check(what)) => Err(BenchError::Check(what)),
        Err(_) => Ok(()),
    }
}

fn conclude(
    stage: &Stage<'_>,
    plan: &LoadPlan,
    args: &RecoveryArgs,
    written: RunFigures,
    recovered: &[Recovered],
    end: super::End,
) -> Report {
    let serving: Vec<f64> = recovered.iter().map(|one| one.serving_s).collect();
    let first_acks: Vec<f64> = recovered.iter().map(|one| one.first_acks_s).collect();
    let extra = Map::from_iter([
        ("serving_s".to_owned(), json!(median(serving.iter().copied()))),
        ("first_acks_s".to_owned(), json!(median(first_acks.iter().copied()))),
        ("serving_s_of_runs".to_owned(), json!(serving)),
        ("first_acks_s_of_runs".to_owned(), json!(first_acks)),
        ("ack_us_of".to_owned(), json!("the writing before")),
    ]);
    let parameters = Map::from_iter([("mib".to_owned(), json!(args.mib))]);
    let ratio = Ratio {
        value: None,
        name: "none: serving_s is what counts".to_owned(),
    };
    let runs = vec![written];
    let bottleneck = verdict::closed_loop(&runs);
    let mut report = report(
        "recovery",
        stage,
        plan,
        runs,
        end,
        (ratio, bottleneck),
        (extra, parameters),
    );
    report.server_cpu_ns_per_message = None;
    report
}
