//! `memory`: as much as goes in, beside many readers that take nothing. What the server's memory grows to.

use std::net::TcpStream;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Map, json};
use wire_format::{
    Bytes,
    protocol::{Intent, ReadRequest, Start},
};

use super::{Ratio, check_appends, print, report, verdict};
use crate::{
    error::{BenchError, During},
    load::{Load, Pace, greet, pchannel_name},
    options::{LoadArgs, LoadPlan, StageArgs},
    report::Report,
    server::Server,
    stage::{Stage, Wishes},
};

/// Options of `memory`.
#[derive(Debug, Clone, Args)]
pub struct MemoryArgs {
    /// Options of every scenario.
    #[command(flatten)]
    pub stage: StageArgs,
    /// What is sent.
    #[command(flatten)]
    pub load: LoadArgs,
    /// The server's `shards.memory_bytes`, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    pub budget_mib: u64,
    /// Readers that ask for everything and take nothing.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(0..=8_000))]
    pub stalled_readers: u32,
}

/// Bytes that each of them asks for.
const CREDIT_BYTES: u64 = 16 << 20;

/// Measures and prints.
///
/// # Errors
/// Whatever keeps it from a result; nothing is printed to standard output then.
pub fn execute(args: &MemoryArgs) -> Result<(), BenchError> {
    let hard = getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: hard,
        maximum: hard,
    };
    setrlimit(Resource::Nofile, all).during("raise of the limit of open files")?;
    let plan = args.load.plan(None, 4)?;
    let mut stage = Stage::new(&args.stage, &plan, Wishes::default())?;
    let budget = args.budget_mib << 20;
    stage
        .plan
        .settings
        .push(("LOGNODE_SHARDS__MEMORY_BYTES", budget.to_string()));
    let mut server = stage.start_server()?;
    let report = measure(&stage, &server, &plan, args).map_err(|error| server.explain(error))?;
    server.stop()?;
    print(&stage, &report);
    Ok(())
}

fn measure(stage: &Stage<'_>, server: &Server, plan: &LoadPlan, args: &MemoryArgs) -> Result<Report, BenchError> {
    let pace = Pace::Window(plan.window);
    let mut load = Load::new(server.address, plan.pchannels, plan.shape.messages, false)?;
    load.add_producers(plan.connections, plan.shape)?;
    stage.step("warm-up");
    stage.run(&mut load, pace, stage.args.warmup)?;
    let rss_without_readers = server.rss_peak_bytes()?;
    let stalled = stall(server, plan, args.stalled_readers)?;
    let mut runs = Vec::new();
    for number in 1..=stage.runs {
        stage.step(&format!("run {number} of {}", stage.runs));
        runs.push(stage.measured_run(server, &mut load, plan, pace)?.0);
    }
    stage.step("checks");
    let end = check_appends(server, &load, plan)?;
    let budget = args.budget_mib << 20;
    let ratio = Ratio {
        value: Some(end.rss_peak_bytes as f64 / budget as f64),
        name: "rss_peak_bytes by shards.memory_bytes; more than 1 is over it, the goal is 1.25".to_owned(),
    };
    let extra = Map::from_iter([
        ("budget_bytes".to_owned(), json!(budget)),
        ("rss_peak_without_readers_bytes".to_owned(), json!(rss_without_readers)),
        ("readers_connected".to_owned(), json!(stalled.len())),
    ]);
    let parameters = Map::from_iter([("stalled_readers".to_owned(), json!(args.stalled_readers))]);
    let judged = (ratio, verdict::closed_loop(&runs));
    Ok(report("memory", stage, plan, runs, end, judged, (extra, parameters)))
}

/// Readers that are greeted, and whose socket nobody reads again.
fn stall(server: &Server, plan: &LoadPlan, count: u32) -> Result<Vec<TcpStream>, BenchError> {
    let request = ReadRequest {
        start: Start::Earliest,
        credit: Bytes(CREDIT_BYTES),
        ..ReadRequest::default()
    };
    let one = |number: u32| {
        let pchannel = pchannel_name(number as usize % plan.pchannels);
        greet(server.address, &pchannel, Intent::Read, Some(request.clone())).map(|(stream, _)| stream)
    };
    (0..count).map(one).collect()
}
