//! `append`: as much as goes in.

use clap::Args;
use serde_json::Map;

use super::{check_appends, print, report, verdict};
use crate::{
    error::BenchError,
    load::{Load, Pace},
    options::{LoadArgs, LoadPlan, StageArgs},
    report::Report,
    server::Server,
    stage::{Stage, Wishes},
};

/// Options of `append`.
#[derive(Debug, Clone, Args)]
pub struct AppendArgs {
    /// Options of every scenario.
    #[command(flatten)]
    pub stage: StageArgs,
    /// What is sent.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Measures and prints.
///
/// # Errors
/// Whatever keeps it from a result; nothing is printed to standard output then.
pub fn execute(args: &AppendArgs) -> Result<(), BenchError> {
    let plan = args.load.plan(None, 4)?;
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
    let mut runs = Vec::new();
    for number in 1..=stage.runs {
        stage.step(&format!("run {number} of {}", stage.runs));
        runs.push(stage.measured_run(server, &mut load, plan, pace)?.0);
    }
    stage.step("checks");
    let end = check_appends(server, &load, plan)?;
    let limits = stage.limits.as_ref().map(|limits| &limits.limit);
    let judged = (verdict::append_ratio(limits, plan, &runs), verdict::closed_loop(&runs));
    Ok(report(
        "append",
        stage,
        plan,
        runs,
        end,
        judged,
        (Map::new(), Map::new()),
    ))
}
