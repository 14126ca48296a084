//! What the disk can do with the log's way of writing and reading: direct I/O into a pre-written file, a block counted only once
//! it is on stable storage.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::error::{RawError, Step, failed};
use super::latency::{LatencyRecorder, LatencyUs};
use super::ring::{BlockRing, Done, Durability};
use super::scratch::ScratchFile;

/// A run of all disk measurements.
#[derive(Debug, Clone)]
pub struct DiskPlan {
    /// Folder on the disk in question.
    pub dir: PathBuf,
    /// Size of the file that is written and read over and over, in bytes, a multiple of 1 MiB. The larger, the less of the reads is
    /// answered by a cache below the operating system.
    pub file_bytes: u64,
    /// Bytes of one write or read where throughput is measured, a multiple of 4,096.
    pub block_bytes: usize,
    /// How many of them are in flight.
    pub depth: usize,
    /// Time for each of the five measurements.
    pub duration: Duration,
}

/// Durable bytes per second of the two ways to write.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WriteThroughput {
    /// Each write carries `RWF_DSYNC`.
    pub dsync_bytes_per_s: f64,
    /// Writes without a flag; one fdatasync after the other runs beside them, and a block counts once a sync that began after
    /// its write has ended.
    pub rolling_sync_bytes_per_s: f64,
}

impl WriteThroughput {
    /// The better of the two.
    pub fn best_bytes_per_s(&self) -> f64 {
        self.dsync_bytes_per_s.max(self.rolling_sync_bytes_per_s)
    }
}

/// All limits of one disk.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DiskLimits {
    /// One durable write of 4 KiB at a time.
    pub dsync_4k_us: LatencyUs,
    /// One durable write of 64 KiB at a time.
    pub dsync_64k_us: LatencyUs,
    /// Durable writes with the plan's block size and depth.
    pub write: WriteThroughput,
    /// Sequential direct reads with the plan's block size and depth.
    pub read_bytes_per_s: f64,
}

/// Measures everything that [`DiskLimits`] names, one after the other, on the calling thread. `on_step` is told what begins.
///
/// # Errors
/// When the folder does not take direct I/O, the disk is full, or io_uring can't be used.
pub fn measure(plan: &DiskPlan, on_step: &mut dyn FnMut(&str)) -> Result<DiskLimits, RawError> {
    on_step("disk: writing the scratch file");
    let scratch = ScratchFile::create(&plan.dir, plan.file_bytes)?;
    on_step("disk: durable writes of 4 KiB, one at a time");
    let dsync_4k_us = dsync_latency(&scratch, 4 << 10, plan.duration)?;
    on_step("disk: durable writes of 64 KiB, one at a time");
    let dsync_64k_us = dsync_latency(&scratch, 64 << 10, plan.duration)?;
    on_step("disk: durable writes, throughput");
    let write = write_throughput(&scratch, plan.block_bytes, plan.depth, plan.duration)?;
    on_step("disk: direct reads, throughput");
    let read_bytes_per_s = read_throughput(&scratch, plan.block_bytes, plan.depth, plan.duration)?;
    Ok(DiskLimits {
        dsync_4k_us,
        dsync_64k_us,
        write,
        read_bytes_per_s,
    })
}

/// Latency of one durable write of `block_bytes` after the other (depth 1, `RWF_DSYNC`), for `duration`.
///
/// # Errors
/// When a write fails or the block does not fit the file.
pub fn dsync_latency(scratch: &ScratchFile, block_bytes: usize, duration: Duration) -> Result<LatencyUs, RawError> {
    let step = "durable write latency";
    let mut places = Places::new(scratch, block_bytes)?;
    let mut ring = BlockRing::new(scratch.handle()?, block_bytes, 1).step(step)?;
    let mut recorder = LatencyRecorder::new()?;
    let mut done = Vec::with_capacity(1);
    let end = Instant::now() + duration;
    loop {
        let begin = Instant::now();
        ring.queue_write(0, places.next_offset(), Durability::Synced)
            .step(step)?;
        ring.wait(&mut done).step(step)?;
        done.clear();
        let now = Instant::now();
        recorder.record(now - begin);
        if now >= end {
            return Ok(recorder.summary());
        }
    }
}

/// Durable bytes per second with `depth` writes of `block_bytes` in flight: both ways, each for `duration`.
///
/// # Errors
/// When a write or sync fails or the block does not fit the file.
pub fn write_throughput(
    scratch: &ScratchFile,
    block_bytes: usize,
    depth: usize,
    duration: Duration,
) -> Result<WriteThroughput, RawError> {
    Ok(WriteThroughput {
        dsync_bytes_per_s: run_blocks(scratch, block_bytes, depth, duration, Kind::Write)?,
        rolling_sync_bytes_per_s: run_rolling_sync(scratch, block_bytes, depth, duration)?,
    })
}

/// Bytes per second of sequential direct reads with `depth` reads of `block_bytes` in flight, for `duration`. The page cache is not
/// involved; a cache below it (a disk's own, a hypervisor's) may be.
///
/// # Errors
/// When a read fails or the block does not fit the file.
pub fn read_throughput(
    scratch: &ScratchFile,
    block_bytes: usize,
    depth: usize,
    duration: Duration,
) -> Result<f64, RawError> {
    run_blocks(scratch, block_bytes, depth, duration, Kind::Read)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

/// Keeps `depth` blocks in flight that are done when they complete.
fn run_blocks(
    scratch: &ScratchFile,
    block_bytes: usize,
    depth: usize,
    duration: Duration,
    kind: Kind,
) -> Result<f64, RawError> {
    let step = if kind == Kind::Read {
        "direct reads"
    } else {
        "durable writes"
    };
    let mut places = Places::new(scratch, block_bytes)?;
    let mut ring = BlockRing::new(scratch.handle()?, block_bytes, depth).step(step)?;
    let mut queue = |ring: &mut BlockRing, index| match kind {
        Kind::Read => ring.queue_read(index, places.next_offset()),
        Kind::Write => ring.queue_write(index, places.next_offset(), Durability::Synced),
    };
    let mut done = Vec::with_capacity(depth);
    let mut blocks = 0_u64;
    let begin = Instant::now();
    for index in 0..depth {
        queue(&mut ring, index).step(step)?;
    }
    while ring.in_flight() > 0 {
        ring.wait(&mut done).step(step)?;
        let more = begin.elapsed() < duration;
        for finished in done.drain(..) {
            blocks += 1;
            if let (Done::Block(index), true) = (finished, more) {
                queue(&mut ring, index).step(step)?;
            }
        }
    }
    Ok(rate(blocks, block_bytes, begin.elapsed()))
}

/// Keeps `depth` unsynced writes in flight and one fdatasync beside them.
fn run_rolling_sync(
    scratch: &ScratchFile,
    block_bytes: usize,
    depth: usize,
    duration: Duration,
) -> Result<f64, RawError> {
    let step = "writes with a rolling sync";
    let mut places = Places::new(scratch, block_bytes)?;
    let mut ring = BlockRing::new(scratch.handle()?, block_bytes, depth).step(step)?;
    let mut done = Vec::with_capacity(depth + 1);
    // A block is first `written`, then `covered` by the running sync, then durable.
    let (mut written, mut covered, mut durable) = (0_u64, 0_u64, 0_u64);
    let mut syncing = false;
    let begin = Instant::now();
    for index in 0..depth {
        ring.queue_write(index, places.next_offset(), Durability::Unsynced)
            .step(step)?;
    }
    while ring.in_flight() > 0 {
        ring.wait(&mut done).step(step)?;
        let more = begin.elapsed() < duration;
        for finished in done.drain(..) {
            match finished {
                Done::Sync => {
                    durable += covered;
                    syncing = false;
                }
                Done::Block(index) => {
                    written += 1;
                    if more {
                        ring.queue_write(index, places.next_offset(), Durability::Unsynced)
                            .step(step)?;
                    }
                }
            }
        }
        if !syncing && written > 0 {
            covered = std::mem::take(&mut written);
            ring.queue_sync().step(step)?;
            syncing = true;
        }
    }
    Ok(rate(durable, block_bytes, begin.elapsed()))
}

fn rate(blocks: u64, block_bytes: usize, elapsed: Duration) -> f64 {
    blocks as f64 * block_bytes as f64 / elapsed.as_secs_f64()
}

/// Hands out file offsets one block after the other, and begins anew at the end of the file.
struct Places {
    next: u64,
    block: u64,
    file: u64,
}

impl Places {
    fn new(scratch: &ScratchFile, block_bytes: usize) -> Result<Self, RawError> {
        let (block, file) = (block_bytes as u64, scratch.bytes());
        if block == 0 || block > file {
            return Err(failed(
                "place of a block",
                format!("{block} bytes do not fit a file of {file}"),
            ));
        }
        Ok(Self { next: 0, block, file })
    }

    fn next_offset(&mut self) -> u64 {
        if self.next + self.block > self.file {
            self.next = 0;
        }
        let offset = self.next;
        self.next += self.block;
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_measured_and_nothing_stays_behind() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let plan = DiskPlan {
            dir: dir.path().to_owned(),
            file_bytes: 4 << 20,
            block_bytes: 128 << 10,
            depth: 3,
            duration: Duration::from_millis(30),
        };
        let mut steps = 0;
        let limits = measure(&plan, &mut |_| steps += 1).unwrap();
        for latency in [limits.dsync_4k_us, limits.dsync_64k_us] {
            assert!(
                latency.samples > 0 && latency.p50 > 0.0 && latency.max >= latency.p50,
                "{limits:?}"
            );
        }
        assert!(limits.write.dsync_bytes_per_s > 0.0, "{limits:?}");
        assert!(limits.write.rolling_sync_bytes_per_s > 0.0, "{limits:?}");
        assert!(
            limits.write.best_bytes_per_s() >= limits.write.dsync_bytes_per_s,
            "{limits:?}"
        );
        assert!(limits.read_bytes_per_s > 0.0, "{limits:?}");
        assert_eq!(steps, 5);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn offsets_stay_inside_the_file() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let scratch = ScratchFile::create(dir.path(), 1 << 20).unwrap();
        let mut places = Places::new(&scratch, 400 << 10).unwrap();
        let offsets: Vec<_> = (0..3).map(|_| places.next_offset()).collect();
        assert_eq!(offsets, [0, 400 << 10, 0]);
        assert!(Places::new(&scratch, 2 << 20).is_err());
        assert!(Places::new(&scratch, 0).is_err());
    }
}
