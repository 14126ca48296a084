//! How long does one durable write take?

use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::{ReadWriteFlags, pwritev2};

use super::place::{AlignedBlock, nearest_existing, open_unnamed};
use super::report::Item;

/// Durable writes that are timed.
const WRITES: u64 = 50;
/// Blocks of the file, written once before so that the timed writes change nothing but their bytes.
const BLOCKS: u64 = 16;
/// On a very slow disk fewer writes are timed.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Above this every ack waits noticeably.
const SLOW: Duration = Duration::from_millis(5);
/// No known disk makes a write durable faster than this.
const UNBELIEVABLE: Duration = Duration::from_micros(4);

pub(crate) fn check(data_dir: &Path) -> Item {
    match measure(&nearest_existing(data_dir)) {
        Ok(latencies) => judge(&latencies),
        Err(error) => Item::ok("dsync latency", format!("can't be measured: {error}"), needed())
            .warn("see the item \"direct I/O\""),
    }
}

/// Latencies of durable writes of 4 KiB, one after the other, sorted.
fn measure(dir: &Path) -> io::Result<Vec<Duration>> {
    let direct = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
    let file = open_unnamed(dir, direct)?;
    let block = Box::new(AlignedBlock([0x5A; 4096]));
    let place = |number: u64| number % BLOCKS * block.0.len() as u64;
    for number in 0..BLOCKS {
        file.write_all_at(&block.0, place(number))?;
    }
    file.sync_all()?;
    let begin = Instant::now();
    let mut latencies = Vec::with_capacity(WRITES as usize);
    for number in 0..WRITES {
        let before = Instant::now();
        let written = pwritev2(&file, &[IoSlice::new(&block.0)], place(number), ReadWriteFlags::DSYNC)?;
        latencies.push(before.elapsed());
        if written != block.0.len() {
            return Err(io::Error::other(format!(
                "{written} of {} bytes written",
                block.0.len()
            )));
        }
        if begin.elapsed() > TIME_LIMIT {
            break;
        }
    }
    latencies.sort_unstable();
    Ok(latencies)
}

fn needed() -> String {
    format!("p50 of at most {} ms for a durable write of 4 KiB", SLOW.as_millis())
}

/// Judges sorted latencies.
fn judge(latencies: &[Duration]) -> Item {
    let p50 = latencies.get(latencies.len() / 2).copied().unwrap_or_default();
    let max = latencies.last().copied().unwrap_or_default();
    let measured = format!(
        "p50 {} us, max {} us, {} writes",
        p50.as_micros(),
        max.as_micros(),
        latencies.len()
    );
    let item = Item::ok("dsync latency", measured, needed());
    if p50 > SLOW {
        item.warn("every ack waits for this: use a data folder on an NVMe disk or one with a protected write cache")
    } else if p50 < UNBELIEVABLE {
        item.warn("too fast to be on stable storage: an acked message may be lost at a power cut; use a data folder on a disk")
    } else {
        item
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn slow_and_unbelievable_disks_are_warned_about() {
        let judge = |us| judge(&[Duration::from_micros(us); 3]).status;
        assert_eq!(judge(1), Status::Warn);
        assert_eq!(judge(100), Status::Ok);
        assert_eq!(judge(12_000), Status::Warn);
    }

    #[test]
    fn measures_this_disk() {
        let latencies = measure(Path::new(".")).unwrap();
        assert!(!latencies.is_empty() && latencies.is_sorted());
    }
}
