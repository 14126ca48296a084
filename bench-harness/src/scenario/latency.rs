//! `latency`: time until an ack at a fixed rate.

use clap::Args;
use serde_json::{Map, json};

use super::{Ratio, check_appends, print, report, verdict};
use crate::{
    error::BenchError,
    load::{Load, Pace},
    options::{LoadArgs, LoadPlan, StageArgs},
    report::{Report, median_run},
    server::Server,
    stage::{Stage, Wishes},
};

/// Options of `latency`.
#[derive(Debug, Clone, Args)]
pub struct LatencyArgs {
    /// Options of every scenario.
    #[command(flatten)]
    pub stage: StageArgs,
    /// What is sent.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Messages per second over all connections [default: a fifth of the peak, measured first].
    #[arg(long)]
    pub rate: Option<f64>,
}

/// Measures and prints.
///
/// # Errors
/// Whatever keeps it from a result; nothing is printed to standard output then.
pub fn execute(args: &LatencyArgs) -> Result<(), BenchError> {
    let plan = args.load.plan(Some(1), 4)?;
    if args.rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
        return Err(BenchError::Options("--rate: use a number above 0".to_owned()));
    }
    let stage = Stage::new(&args.stage, &plan, Wishes::default())?;
    let mut server = stage.start_server()?;
    let report = measure(&stage, &server, &plan, args.rate).map_err(|error| server.explain(error))?;
    server.stop()?;
    print(&stage, &report);
    Ok(())
}

fn measure(stage: &Stage<'_>, server: &Server, plan: &LoadPlan, rate: Option<f64>) -> Result<Report, BenchError> {
    let mut load = Load::new(server.address, plan.pchannels, plan.shape.messages, false)?;
    load.add_producers(plan.connections, plan.shape)?;
    stage.step("warm-up and peak");
    let peak = peak(stage, &mut load, plan)?;
    let rate = rate.unwrap_or(peak / 5.0);
    let pace = Pace::Rate(rate / f64::from(plan.shape.messages));
    let mut runs = Vec::new();
    for number in 1..=stage.runs {
        stage.step(&format!("run {number} of {} at {rate:.0} messages/s", stage.runs));
        runs.push(stage.measured_run(server, &mut load, plan, pace)?.0);
    }
    stage.step("checks");
    let end = check_appends(server, &load, plan)?;
    let p50 = median_run(&runs, |run| run.ack_us.p50);
    let ratio = Ratio {
        value: stage
            .limits
            .map(|limits| p50 / (limits.limit.dsync_us_p50 + limits.limit.echo_us_p50)),
        name: "ack p50 by dsync_us_p50 + echo_us_p50; 1 is the least possible, more is worse".to_owned(),
    };
    let bottleneck = verdict::open_loop(&runs, rate);
    let extra = Map::from_iter([
        ("rate_messages_per_s".to_owned(), json!(rate)),
        ("peak_messages_per_s".to_owned(), json!(peak)),
        (
            "latency_from".to_owned(),
            json!("the moment at which a batch should have left (corrected for coordinated omission)"),
        ),
    ]);
    let judged = (ratio, bottleneck);
    Ok(report("latency", stage, plan, runs, end, judged, (extra, Map::new())))
}

/// Messages per second in a closed loop, after a warm-up.
pub(super) fn peak(stage: &Stage<'_>, load: &mut Load, plan: &LoadPlan) -> Result<f64, BenchError> {
    let pace = Pace::Window(plan.window);
    stage.run(load, pace, stage.args.warmup)?;
    let peak = stage.run(load, pace, stage.args.warmup)?.messages_per_s();
    if peak > 0.0 {
        return Ok(peak);
    }
    Err(BenchError::Check(format!(
        "no message was acked within the {} s in which the peak was measured",
        stage.args.warmup
    )))
}
