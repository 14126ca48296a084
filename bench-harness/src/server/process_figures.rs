//! What the kernel counts for a process: CPU time, memory, bytes written.

use std::fs;

use crate::error::{BenchError, During};

/// The unit of CPU time in `/proc`: 1/100 s for user space on every machine that this runs on.
const TICKS_PER_S: f64 = 100.0;

/// CPU time of a process since its start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CpuTimes {
    /// User and system time of all threads, those that ended included, in seconds. Counted in steps of 10 ms.
    pub total_s: f64,
    /// The same for each thread that lives: its id, its seconds.
    threads: Vec<(u64, f64)>,
}

/// Bytes that a process caused to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenBytes(pub u64);

impl CpuTimes {
    /// CPU seconds of the busiest thread between `before` and now.
    pub fn busiest_thread_since(&self, before: &Self) -> f64 {
        let earlier = |id| {
            before
                .threads
                .iter()
                .find(|(other, _)| *other == id)
                .map_or(0.0, |t| t.1)
        };
        let spent = self.threads.iter().map(|&(id, seconds)| seconds - earlier(id));
        spent.fold(0.0, f64::max)
    }
}

/// CPU time that all processes of this machine have used since its start, and that other machines took from it, in seconds.
/// Interrupts are left out: they serve whoever is served.
///
/// # Errors
/// When the kernel does not say.
pub fn machine_busy_s() -> Result<f64, BenchError> {
    let step = "CPU time of this machine";
    let text = fs::read_to_string("/proc/stat").during(step)?;
    let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    match ticks.as_slice() {
        [user, nice, system, _, _, _, _, steal, ..] => Ok((user + nice + system + steal) / TICKS_PER_S),
        _ => Err(unreadable(step, &text)),
    }
}

/// CPU times of process `pid`.
pub(super) fn cpu_times(pid: u32) -> Result<CpuTimes, BenchError> {
    let step = format!("CPU time of process {pid}");
    let total = fs::read_to_string(format!("/proc/{pid}/stat")).during(&step)?;
    let mut times = CpuTimes {
        total_s: cpu_seconds(&total).ok_or_else(|| unreadable(&step, &total))?,
        threads: Vec::new(),
    };
    for entry in fs::read_dir(format!("/proc/{pid}/task")).during(&step)? {
        let entry = entry.during(&step)?;
        let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
        // A thread may end between the listing and the look at it.
        let seconds = fs::read_to_string(entry.path().join("stat"))
            .ok()
            .and_then(|text| cpu_seconds(&text));
        times.threads.extend(id.zip(seconds));
    }
    Ok(times)
}

/// User and system time out of a `stat` line. The name in brackets may hold anything, blanks and brackets too.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_S)
}

pub(super) fn rss_peak_bytes(pid: u32) -> Result<u64, BenchError> {
    let step = format!("memory of process {pid}");
    let text = fs::read_to_string(format!("/proc/{pid}/status")).during(&step)?;
    let kib = number_behind(&text, "VmHWM:").ok_or_else(|| unreadable(&step, &text))?;
    Ok(kib << 10)
}

pub(super) fn written_bytes(pid: u32) -> Result<WrittenBytes, BenchError> {
    let step = format!("bytes written by process {pid}");
    let text = fs::read_to_string(format!("/proc/{pid}/io")).during(&step)?;
    let bytes = number_behind(&text, "\nwrite_bytes:").ok_or_else(|| unreadable(&step, &text))?;
    Ok(WrittenBytes(bytes))
}

fn number_behind(text: &str, key: &str) -> Option<u64> {
    text.split_once(key)?.1.split_whitespace().next()?.parse().ok()
}

fn unreadable(step: &str, text: &str) -> BenchError {
    BenchError::Check(format!("{step}: the kernel's answer can't be read: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_with_a_hostile_name_is_read() {
        let line = "42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 150 25 0 0 20 0 3 0 100 0 0";
        assert_eq!(cpu_seconds(line), Some(1.75));
        assert_eq!(cpu_seconds("42 (x) S 1"), None);
    }

    #[test]
    fn this_process_has_figures() {
        let pid = std::process::id();
        assert!(rss_peak_bytes(pid).unwrap() > 100_000);
        written_bytes(pid).unwrap();
        let before = cpu_times(pid).unwrap();
        let begin = std::time::Instant::now();
        while begin.elapsed() < std::time::Duration::from_millis(60) {}
        let after = cpu_times(pid).unwrap();
        assert!(after.total_s >= before.total_s, "{before:?} {after:?}");
        assert!(after.busiest_thread_since(&before) <= after.total_s, "{after:?}");
        assert!(cpu_times(u32::MAX).is_err());
        assert!(machine_busy_s().unwrap() >= after.total_s - 0.02);
    }
}
