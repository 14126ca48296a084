//! The quick part of the probe, at every start of `lognode serve`.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::needs::Needs;
use super::report::{Item, Status};

/// This machine can't run the LogNode that was asked for. Its text is one line that names each limit with its value, the value
/// needed and the cure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", one_line(.items))]
pub struct StartupError {
    /// The failing items, at least one.
    pub items: Vec<Item>,
}

fn one_line(items: &[Item]) -> String {
    let lines: Vec<_> = items.iter().map(Item::line).collect();
    format!(
        "this machine does not suit: {} (all checks: lognode probe)",
        lines.join(" | ")
    )
}

/// Raises the soft limits of locked memory and open files to the hard ones, which needs no privilege. Limits of the whole process.
/// A refusal changes nothing and is not reported: the checks that follow tell what is missing.
pub fn raise_soft_limits() {
    for resource in [Resource::Memlock, Resource::Nofile] {
        let hard = getrlimit(resource).maximum;
        let _ = setrlimit(
            resource,
            Rlimit {
                current: hard,
                maximum: hard,
            },
        );
    }
}

/// Raises the soft limits, then runs the checks that take a few milliseconds together, for `shards` shards and `pchannels`
/// pchannels on `data_dir`. To be called before any shard is started, on a thread that is not pinned.
///
/// Returns one line for each item that is worth a warning.
///
/// # Errors
/// When an item keeps the LogNode from running.
pub fn startup_check(data_dir: &Path, shards: usize, pchannels: usize) -> Result<Vec<String>, StartupError> {
    raise_soft_limits();
    let needs = Needs {
        pchannels,
        ..Needs::new(shards)
    };
    let (failing, rest): (Vec<_>, Vec<_>) = super::quick_items(data_dir, &needs)
        .into_iter()
        // A full disk must not keep a node from serving its readers, or from truncating what fills it.
        .partition(|item| item.status == Status::Fail && item.name != super::disk_space::NAME);
    if failing.is_empty() {
        Ok(rest
            .iter()
            .filter(|item| item.status != Status::Ok)
            .map(Item::line)
            .collect())
    } else {
        Err(StartupError { items: failing })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn is_quick_and_lets_a_fitting_machine_pass() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let fastest = (0..5)
            .map(|_| {
                let begin = Instant::now();
                startup_check(dir.path(), 1, 16).unwrap();
                begin.elapsed()
            })
            .min();
        assert!(fastest < Some(Duration::from_millis(50)), "{fastest:?}");
    }

    #[test]
    fn tells_all_failing_items_in_one_line() {
        let error = startup_check(Path::new("."), 10_000, 1_000_000_000).unwrap_err();
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line}");
        assert!(line.contains("CPUs: ") && line.contains("run at most"), "{line}");
        assert!(
            line.contains("open files: ") && line.contains("1000000000 pchannels"),
            "{line}"
        );
    }
}
