//! `tail`: readers at the live end of a log, each filtering its part.

use clap::Args;
use serde_json::{Map, Value, json};
use wire_format::protocol::Start;

use super::{check_appends, latency::peak, print, report, verdict};
use crate::{
    error::BenchError,
    latency::{Percentiles, median},
    load::{Load, Pace, ReaderPlan, Sample, vchannel_name},
    options::{LoadArgs, LoadPlan, StageArgs},
    report::{Report, RunFigures, median_run},
    server::Server,
    stage::{Stage, Wishes},
};

/// Options of `tail`.
#[derive(Debug, Clone, Args)]
pub struct TailArgs {
    /// Options of every scenario.
    #[command(flatten)]
    pub stage: StageArgs,
    /// What is sent.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Readers on each pchannel; reader `i` wants vchannel `i` only, round and round.
    #[arg(long, default_value_t = 10)]
    pub readers: u32,
    /// Messages per second of the writer [default: half of the peak, measured first].
    #[arg(long)]
    pub rate: Option<f64>,
    /// Verify all checksums of every so many deliveries of a reader; 1 verifies all.
    #[arg(long, default_value_t = 16)]
    pub verify_every: u64,
}

/// Bytes of deliveries in flight for each reader.
const CREDIT_BYTES: u64 = 8 << 20;

/// Measures and prints.
///
/// # Errors
/// Whatever keeps it from a result; nothing is printed to standard output then.
pub fn execute(args: &TailArgs) -> Result<(), BenchError> {
    let plan = args.load.plan(Some(100), 10)?;
    if args.rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
        return Err(BenchError::Options("--rate: use a number above 0".to_owned()));
    }
    let wishes = Wishes {
        steps: (2, 3),
        ..Wishes::default()
    };
    let stage = Stage::new(&args.stage, &plan, wishes)?;
    let mut server = stage.start_server()?;
    let report = measure(&stage, &server, &plan, args).map_err(|error| server.explain(error))?;
    server.stop()?;
    print(&stage, &report);
    Ok(())
}

/// One run with readers.
struct Tailed {
    deliveries: Percentiles,
    sample: Sample,
}

fn measure(stage: &Stage<'_>, server: &Server, plan: &LoadPlan, args: &TailArgs) -> Result<Report, BenchError> {
    let mut load = Load::new(server.address, plan.pchannels, plan.shape.messages, true)?;
    load.add_producers(plan.connections, plan.shape)?;
    stage.step("warm-up and peak");
    let peak = peak(stage, &mut load, plan)?;
    let rate = args.rate.unwrap_or(peak / 2.0);
    let pace = Pace::Rate(rate / f64::from(plan.shape.messages));
    let (mut alone, mut runs, mut tailed) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=stage.runs {
        stage.step(&format!("run {number} of {} without readers", stage.runs));
        alone.push(stage.measured_run(server, &mut load, plan, pace)?.0);
        stage.step(&format!("run {number} of {} with readers", stage.runs));
        add_readers(&mut load, plan, args)?;
        let (figures, sample) = stage.measured_run(server, &mut load, plan, pace)?;
        load.drop_readers();
        check_deliveries(&sample, plan, args)?;
        runs.push(figures);
        tailed.push(Tailed {
            deliveries: sample.deliveries.percentiles(),
            sample,
        });
    }
    stage.step("checks");
    let mut end = check_appends(server, &load, plan)?;
    end.checks.push(
        "every reader got every batch in order, none at or below a promised timetick, up to the last ack".to_owned(),
    );
    let limits = stage.limits.as_ref().map(|limits| &limits.limit);
    let judged = (
        verdict::append_ratio(limits, plan, &runs),
        verdict::open_loop(&runs, rate),
    );
    let figures = extra(&alone, &runs, &tailed, (rate, peak), stage.seconds);
    let parameters = Map::from_iter([
        ("readers_per_pchannel".to_owned(), json!(args.readers)),
        ("verify_every".to_owned(), json!(args.verify_every)),
    ]);
    Ok(report("tail", stage, plan, runs, end, judged, (figures, parameters)))
}

fn add_readers(load: &mut Load, plan: &LoadPlan, args: &TailArgs) -> Result<(), BenchError> {
    for pchannel in 0..plan.pchannels {
        for number in 0..args.readers {
            let reader = ReaderPlan {
                pchannel,
                vchannel: Some(vchannel_name(number % plan.shape.vchannels)),
                credit_bytes: CREDIT_BYTES,
                buffer_bytes: 256 << 10,
                verify_every: args.verify_every,
                dense: plan.shape.messages >= plan.shape.vchannels,
            };
            load.add_reader(reader, Start::Latest)?;
        }
    }
    Ok(())
}

/// With readers on all vchannels and batches that go round them evenly, the number of deliveries is known.
fn check_deliveries(sample: &Sample, plan: &LoadPlan, args: &TailArgs) -> Result<(), BenchError> {
    let even = plan.shape.messages.is_multiple_of(plan.shape.vchannels);
    let expected = sample.messages / u64::from(plan.shape.vchannels) * u64::from(args.readers);
    if even && sample.delivered_messages != expected {
        return Err(BenchError::Check(format!(
            "{} messages were delivered to readers, {expected} should have been",
            sample.delivered_messages
        )));
    }
    if args.readers > 0 && sample.deliveries.count() == 0 {
        return Err(BenchError::Check("no delivery came".to_owned()));
    }
    Ok(())
}

fn extra(
    alone: &[RunFigures],
    runs: &[RunFigures],
    tailed: &[Tailed],
    (rate, peak): (f64, f64),
    seconds: f64,
) -> Map<String, Value> {
    let deliveries: Vec<Percentiles> = tailed.iter().map(|tail| tail.deliveries).collect();
    let acks_alone: Vec<Percentiles> = alone.iter().map(|run| run.ack_us).collect();
    let sum = |pick: fn(&Sample) -> u64| -> u64 { tailed.iter().map(|tail| pick(&tail.sample)).sum() };
    let p99 = |runs: &[RunFigures]| median_run(runs, |run| run.ack_us.p99);
    let per_s = median(tailed.iter().map(|tail| tail.sample.delivered_bytes as f64 / seconds));
    Map::from_iter([
        ("delivery_us".to_owned(), json!(Percentiles::median_of(&deliveries))),
        (
            "ack_us_without_readers".to_owned(),
            json!(Percentiles::median_of(&acks_alone)),
        ),
        ("ack_p99_by_without_readers".to_owned(), json!(p99(runs) / p99(alone))),
        ("rate_messages_per_s".to_owned(), json!(rate)),
        ("peak_messages_per_s".to_owned(), json!(peak)),
        (
            "messages_per_s_without_readers".to_owned(),
            json!(median_run(alone, |run| run.messages_per_s)),
        ),
        ("delivered_bytes_per_s".to_owned(), json!(per_s)),
        ("deliveries".to_owned(), json!(sum(|sample| sample.deliveries.count()))),
        (
            "deliveries_before_ack".to_owned(),
            json!(sum(|sample| sample.deliveries_before_ack)),
        ),
        (
            "deliveries_verified".to_owned(),
            json!(sum(|sample| sample.deliveries_verified)),
        ),
        ("ticks".to_owned(), json!(sum(|sample| sample.ticks))),
    ])
}
