//! The raw limits of this machine, measured in the same run as a scenario, so that a result can be told as a share of what was possible.
//!
//! [`measure`] makes all of [`RawLimits`]; the modules offer each limit alone:
//! [`disk`] (durable writes, direct reads), [`loopback`] (one TCP stream) and [`echo`] (round trips without any storing).
//! Nothing here uses code of the product.

mod aligned;
pub mod command;
mod cores;
pub mod disk;
pub mod echo;
mod error;
mod latency;
pub mod loopback;
mod pair;
mod ring;
mod scratch;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

pub use cores::Cores;
pub(crate) use cores::pin_to;
pub use disk::{DiskLimits, DiskPlan, WriteThroughput};
pub use echo::{EchoLimit, EchoPlan};
pub use error::RawError;
pub use latency::LatencyUs;
pub use scratch::ScratchFile;

/// What is to be measured: the sizes and counts of the scenario whose limits these shall be.
#[derive(Debug, Clone)]
pub struct RawPlan {
    /// Folder on the disk of the scenario.
    pub dir: PathBuf,
    /// Time for each single measurement; there are seven.
    pub duration: Duration,
    /// Server and client CPU of the network measurements; the disk's run on the calling thread.
    pub cores: Cores,
    /// Bytes of a disk block and of a write to the loopback stream, a multiple of 4,096.
    pub block_bytes: usize,
    /// Disk blocks in flight.
    pub depth: usize,
    /// Size of the scratch file, a multiple of 1 MiB.
    pub file_bytes: u64,
    /// Echo connections.
    pub connections: usize,
    /// Bytes of an echo request.
    pub request_bytes: usize,
    /// Bytes of an echo reply.
    pub reply_bytes: usize,
}

impl RawPlan {
    /// Blocks of 1 MiB, four in flight, a file of 512 MiB; 64 connections that send 256 bytes and get 40.
    ///
    /// # Errors
    /// When the CPUs of this process can't be told.
    pub fn new(dir: PathBuf, duration: Duration) -> Result<Self, RawError> {
        Ok(Self {
            dir,
            duration,
            cores: Cores::pick()?,
            block_bytes: 1 << 20,
            depth: 4,
            file_bytes: 512 << 20,
            connections: 64,
            request_bytes: 256,
            reply_bytes: 40,
        })
    }
}

/// The limits that every result is held against.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RawLimits {
    /// Durable bytes per second with the plan's block size and depth, the better of the two ways to write.
    pub disk_bytes_per_s: f64,
    /// Bytes per second through one TCP stream.
    pub loopback_bytes_per_s: f64,
    /// Echo round trips per second over all connections.
    pub echo_per_s: f64,
    /// Median echo round trip in microseconds, with the plan's connections.
    pub echo_us_p50: f64,
    /// Median of one durable write of 4 KiB at a time, in microseconds.
    pub dsync_us_p50: f64,
}

/// The limits and what they were taken from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RawReport {
    /// The five figures.
    pub limit: RawLimits,
    /// The disk in full.
    pub disk: DiskLimits,
    /// The echo in full.
    pub echo: EchoLimit,
    /// The CPUs used.
    pub cores: Cores,
}

/// Measures everything, one after the other: about seven times `plan.duration`. `on_step` is told what begins, for a progress line.
///
/// # Errors
/// The first measurement that fails ends the run; its error names it.
pub fn measure(plan: &RawPlan, on_step: &mut dyn FnMut(&str)) -> Result<RawReport, RawError> {
    let disk_plan = DiskPlan {
        dir: plan.dir.clone(),
        file_bytes: plan.file_bytes,
        block_bytes: plan.block_bytes,
        depth: plan.depth,
        duration: plan.duration,
    };
    let disk = disk::measure(&disk_plan, on_step)?;
    on_step("loopback: one TCP stream");
    let loopback_bytes_per_s = loopback::throughput(plan.cores, plan.block_bytes, plan.duration)?;
    on_step("echo: round trips");
    let echo = echo::measure(EchoPlan {
        cores: plan.cores,
        connections: plan.connections,
        request_bytes: plan.request_bytes,
        reply_bytes: plan.reply_bytes,
        duration: plan.duration,
    })?;
    let limit = RawLimits {
        disk_bytes_per_s: disk.write.best_bytes_per_s(),
        loopback_bytes_per_s,
        echo_per_s: echo.round_trips_per_s,
        echo_us_p50: echo.round_trip_us.p50,
        dsync_us_p50: disk.dsync_4k_us.p50,
    };
    Ok(RawReport {
        limit,
        disk,
        echo,
        cores: plan.cores,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_limits_are_there_under_their_agreed_names() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let mut plan = RawPlan::new(dir.path().to_owned(), Duration::from_millis(20)).unwrap();
        plan.file_bytes = 4 << 20;
        let report = measure(&plan, &mut |_| {}).unwrap();
        let json = serde_json::to_value(report.limit).unwrap();
        let mut names: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        names.sort();
        assert_eq!(
            names,
            [
                "disk_bytes_per_s",
                "dsync_us_p50",
                "echo_per_s",
                "echo_us_p50",
                "loopback_bytes_per_s"
            ]
        );
        assert!(names.iter().all(|name| json[name].as_f64().unwrap() > 0.0), "{json}");
    }
}
