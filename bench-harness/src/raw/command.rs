//! `lognode-bench raw`: the limits of this machine on the screen or as JSON.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::{RawError, RawPlan, RawReport, measure};

/// Options of `lognode-bench raw`.
#[derive(Debug, Clone, Args)]
pub struct RawArgs {
    /// Folder on the disk to measure; takes the scratch file for the time of the run.
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Seconds for each of the seven measurements.
    #[arg(long, default_value_t = 2.0, value_parser = positive_seconds)]
    pub seconds: f64,
    /// Bytes of a disk block and of a write to the TCP stream, a multiple of 4096.
    #[arg(long, default_value_t = 1 << 20)]
    pub block_bytes: usize,
    /// Disk blocks in flight.
    #[arg(long, default_value_t = 4)]
    pub depth: usize,
    /// Size of the scratch file in MiB.
    #[arg(long, default_value_t = 512)]
    pub file_mib: u64,
    /// Echo connections.
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    /// Bytes of an echo request.
    #[arg(long, default_value_t = 256)]
    pub request_bytes: usize,
    /// Bytes of an echo reply.
    #[arg(long, default_value_t = 40)]
    pub reply_bytes: usize,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Measures and prints. The progress line goes to standard error and only to a terminal.
///
/// # Errors
/// The first measurement that fails; nothing is printed then.
pub fn execute(args: &RawArgs) -> Result<(), RawError> {
    let mut plan = RawPlan::new(args.dir.clone(), Duration::from_secs_f64(args.seconds))?;
    plan.block_bytes = args.block_bytes;
    plan.depth = args.depth;
    plan.file_bytes = args.file_mib << 20;
    plan.connections = args.connections;
    plan.request_bytes = args.request_bytes;
    plan.reply_bytes = args.reply_bytes;
    let progress = ProgressBar::new_spinner();
    progress.set_style(ProgressStyle::default_spinner());
    progress.enable_steady_tick(Duration::from_millis(200));
    let report = measure(&plan, &mut |step| progress.set_message(step.to_owned()));
    progress.finish_and_clear();
    let report = report?;
    if args.json {
        println!("{}", serde_json::json!(report));
    } else {
        print!("{}", as_text(&plan, &report));
    }
    Ok(())
}

fn positive_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3_600.0 => Ok(seconds),
        _ => Err("a number of seconds above 0 and up to 3600".to_owned()),
    }
}

fn as_text(plan: &RawPlan, report: &RawReport) -> String {
    let mb = |bytes_per_s: f64| bytes_per_s / 1e6;
    let disk = &report.disk;
    let echo = &report.echo.round_trip_us;
    let latency =
        |figures: &super::LatencyUs| format!("{:.0} / {:.0} / {:.0} us", figures.p50, figures.p99, figures.max);
    format!(
        "durable write of 4 KiB    p50/p99/max  {}\n\
         durable write of 64 KiB   p50/p99/max  {}\n\
         durable writes, {} KiB, depth {}        {:.0} MB/s (dsync writes {:.0}, rolling sync {:.0})\n\
         direct reads, {} KiB, depth {}          {:.0} MB/s\n\
         one TCP stream over loopback          {:.0} MB/s (CPU {} to CPU {})\n\
         echo, {} connections, {}+{} bytes      {:.0} round trips/s, p50/p99/max {}\n",
        latency(&disk.dsync_4k_us),
        latency(&disk.dsync_64k_us),
        plan.block_bytes >> 10,
        plan.depth,
        mb(disk.write.best_bytes_per_s()),
        mb(disk.write.dsync_bytes_per_s),
        mb(disk.write.rolling_sync_bytes_per_s),
        plan.block_bytes >> 10,
        plan.depth,
        mb(disk.read_bytes_per_s),
        mb(report.limit.loopback_bytes_per_s),
        report.cores.client,
        report.cores.server,
        plan.connections,
        plan.request_bytes,
        plan.reply_bytes,
        report.limit.echo_per_s,
        latency(echo),
    )
}
