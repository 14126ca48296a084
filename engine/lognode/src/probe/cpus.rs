//! Are there as many CPUs as shards, and may they be used all the time?

use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

use super::needs::Needs;
use super::report::Item;

/// Whether each shard can have a CPU of its own inside of the affinity mask (which a cpuset also narrows).
pub(crate) fn check_count(needs: &Needs) -> Item {
    let needed = format!("one for each of {} shards", needs.shards);
    match sched_getaffinity(None) {
        Ok(mask) => judge_count(&allowed(&mask), online(), needs.shards, needed),
        Err(error) => Item::ok("CPUs", format!("the affinity mask can't be read: {error}"), needed)
            .warn("make sure that there is a CPU for each shard"),
    }
}

fn allowed(mask: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|cpu| mask.is_set(*cpu)).collect()
}

/// CPUs of the machine as the kernel lists them, such as `0-7`.
fn online() -> String {
    fs::read_to_string("/sys/devices/system/cpu/online").map_or("?".to_owned(), |text| text.trim().to_owned())
}

fn judge_count(allowed: &[usize], online: String, shards: usize, needed: String) -> Item {
    let measured = format!("{} allowed ({}), online: {online}", allowed.len(), ranges(allowed));
    let item = Item::ok("CPUs", measured, needed);
    if shards == 0 {
        item.fail("ask for at least one shard")
    } else if allowed.len() < shards {
        item.fail(format!(
            "run at most {} shards, or widen the CPU set (taskset, AllowedCPUs=, --cpuset-cpus)",
            allowed.len()
        ))
    } else {
        item
    }
}

/// `[0, 1, 2, 5]` as `0-2,5`.
fn ranges(cpus: &[usize]) -> String {
    cpus.chunk_by(|a, b| a + 1 == *b)
        .map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            [single] => single.to_string(),
            [] => String::new(),
        })
        .collect::<Vec<_>>()
        .join(",")
}

/// Whether the control group leaves the shards the time of their CPUs: a quota stops every thread for the rest of each period
/// once it is used up.
pub(crate) fn check_quota(needs: &Needs) -> Item {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap_or("/")
        .to_owned();
    let root = Path::new("/sys/fs/cgroup");
    let folder = root.join(own.trim_start_matches('/'));
    // A limit may stand at any level above, and the smallest one binds.
    let smallest = folder
        .ancestors()
        .take_while(|level| level.starts_with(root))
        .filter_map(|level| fs::read_to_string(level.join("cpu.max")).ok())
        .filter_map(|text| quota_cpus(&text))
        .min_by(f64::total_cmp);
    judge_quota(smallest, needs.shards)
}

/// CPUs' worth of time that `quota period` grants; none for `max`.
fn quota_cpus(cpu_max: &str) -> Option<f64> {
    let mut parts = cpu_max.split_whitespace().map(str::parse::<f64>);
    match (parts.next()?, parts.next()?) {
        (Ok(quota), Ok(period)) if period > 0.0 => Some(quota / period),
        _ => None,
    }
}

fn judge_quota(cpus: Option<f64>, shards: usize) -> Item {
    let needed = format!("none, or more than {shards} CPUs");
    match cpus {
        None => Item::ok("CPU quota", "none", needed),
        Some(cpus) if cpus > shards as f64 => Item::ok("CPU quota", format!("{cpus:.1} CPUs"), needed),
        Some(cpus) => Item::ok("CPU quota", format!("{cpus:.1} CPUs"), needed).warn(
            "shards stand still when it is used up: give the container whole CPUs (cpuset) instead of a quota, or run fewer shards",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn more_shards_than_cpus_fail() {
        let judge = |allowed: &[usize], shards| judge_count(allowed, "0-3".to_owned(), shards, String::new());
        assert_eq!(judge(&[0, 1], 2).status, Status::Ok);
        assert_eq!(judge(&[3], 2).status, Status::Fail);
        assert_eq!(judge(&[0, 1], 0).status, Status::Fail);
        assert!(judge(&[3], 2).line().contains("1 allowed (3), online: 0-3"));
        assert_eq!(check_count(&Needs::new(10_000)).status, Status::Fail);
    }

    #[test]
    fn cpu_lists_are_short() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }

    #[test]
    fn quotas_are_read_and_judged() {
        assert_eq!(quota_cpus("max 100000\n"), None);
        assert_eq!(quota_cpus("150000 100000\n"), Some(1.5));
        assert_eq!(quota_cpus(""), None);
        assert_eq!(judge_quota(None, 2).status, Status::Ok);
        assert_eq!(judge_quota(Some(1.5), 2).status, Status::Warn);
        assert_eq!(judge_quota(Some(4.0), 2).status, Status::Ok);
    }
}
