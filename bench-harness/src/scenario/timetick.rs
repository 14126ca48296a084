//! `timetick`: how regular the ticks are that a reader gets while as much is appended as goes in.

use clap::Args;
use serde_json::{Map, json};
use wire_format::protocol::Start;

use super::{check_appends, print, report, verdict};
use crate::{
    error::BenchError,
    latency::{Percentiles, median},
    load::{Load, Pace, ReaderPlan, Sample},
    options::{LoadArgs, LoadPlan, StageArgs},
    report::{Report, RunFigures},
    server::Server,
    stage::{Stage, Wishes},
};

/// Options of `timetick`.
#[derive(Debug, Clone, Args)]
pub struct TimetickArgs {
    /// Options of every scenario.
    #[command(flatten)]
    pub stage: StageArgs,
    /// What is sent; 16 pchannels if not asked for otherwise.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// pchannels if `--pchannels` is left at 1, which is no test of anything here.
const PCHANNELS: usize = 16;
/// A vchannel that no message is for: its readers get ticks and nothing else.
const NOBODY: &str = "nobody";

/// Measures and prints.
///
/// # Errors
/// Whatever keeps it from a result; nothing is printed to standard output then.
pub fn execute(args: &TimetickArgs) -> Result<(), BenchError> {
    let mut load = args.load.clone();
    if load.pchannels == 1 {
        load.pchannels = PCHANNELS;
    }
    let plan = load.plan(None, 4)?;
    let stage = Stage::new(&args.stage, &plan, Wishes::default())?;
    let mut server = stage.start_server()?;
    let report = measure(&stage, &server, &plan).map_err(|error| server.explain(error))?;
    server.stop()?;
    print(&stage, &report);
    Ok(())
}

fn measure(stage: &Stage<'_>, server: &Server, plan: &LoadPlan) -> Result<Report, BenchError> {
    let pace = Pace::Window(plan.window);
    let mut load = Load::new(server.address, plan.pchannels, plan.shape.messages, false)?;
    load.add_producers(plan.connections, plan.shape)?;
    stage.step("warm-up");
    stage.run(&mut load, pace, stage.args.warmup)?;
    for pchannel in 0..plan.pchannels {
        let reader = ReaderPlan {
            pchannel,
            vchannel: Some(NOBODY.to_owned()),
            credit_bytes: 1 << 20,
            buffer_bytes: 4 << 10,
            verify_every: 1,
            dense: false,
        };
        load.add_reader(reader, Start::Latest)?;
    }
    let (mut runs, mut samples) = (Vec::new(), Vec::new());
    for number in 1..=stage.runs {
        stage.step(&format!("run {number} of {}", stage.runs));
        let (figures, sample) = stage.measured_run(server, &mut load, plan, pace)?;
        runs.push(figures);
        samples.push(sample);
    }
    stage.step("checks");
    let mut end = check_appends(server, &load, plan)?;
    check(&samples)?;
    end.checks.push(
        "no tick went back, no reader of a vchannel without messages got one, and ticks brought each to the end of its log"
            .to_owned(),
    );
    Ok(conclude(stage, plan, runs, &samples, end))
}

fn check(samples: &[Sample]) -> Result<(), BenchError> {
    if samples.iter().any(|sample| sample.tick_gaps.count() == 0) {
        return Err(BenchError::Check("readers got no ticks".to_owned()));
    }
    if samples.iter().any(|sample| sample.delivered_messages > 0) {
        return Err(BenchError::Check(format!(
            "readers of vchannel {NOBODY} got messages, though none was for it"
        )));
    }
    Ok(())
}

fn conclude(stage: &Stage<'_>, plan: &LoadPlan, runs: Vec<RunFigures>, samples: &[Sample], end: super::End) -> Report {
    let gaps: Vec<Percentiles> = samples.iter().map(|sample| sample.tick_gaps.percentiles()).collect();
    let ticks_per_s = median(samples.iter().map(|sample| sample.ticks as f64 / sample.whole_s));
    let extra = Map::from_iter([
        ("tick_gap_us".to_owned(), json!(Percentiles::median_of(&gaps))),
        ("tick_gap_us_of_runs".to_owned(), json!(gaps)),
        ("ticks_per_s".to_owned(), json!(ticks_per_s)),
    ]);
    let limits = stage.limits.as_ref().map(|limits| &limits.limit);
    let judged = (verdict::append_ratio(limits, plan, &runs), verdict::closed_loop(&runs));
    report("timetick", stage, plan, runs, end, judged, (extra, Map::new()))
}
