//! Does this machine suit? `lognode probe` answers in full, and `lognode serve` asks the quick part at every start, so that a limit
//! that is too low is named with its value, the value needed and its cure, instead of failing somewhere later.
//!
//! Each check is a file of its own: [`kernel`], [`uring`], [`memlock`], [`open_files`], [`direct_io`], [`disk_space`], [`clock_source`],
//! [`cpus`], [`governor`], [`dsync`], [`loopback`]. A check never panics and never fails as such: what it can't find out it says.

mod clock_source;
pub mod command;
mod cpus;
mod direct_io;
mod disk_space;
mod dsync;
mod governor;
mod kernel;
mod loopback;
mod memlock;
mod needs;
mod open_files;
mod place;
mod report;
mod startup;
mod table;
mod uring;

use std::path::Path;

pub use needs::{ClientFiles, DEFAULT_CONNECTIONS, DEFAULT_PCHANNELS, IO_MEMORY_PER_SHARD_BYTES, Needs};
pub use report::{Item, Report, Status};
pub use startup::{StartupError, raise_soft_limits, startup_check};

/// Runs every check for a LogNode with `shards` shards on `data_dir` and the default counts of pchannels and connections. Takes
/// well under a second on a healthy machine, writes and removes a small file in `data_dir` (or, where that does not exist yet,
/// in the nearest folder above it), and changes nothing else. The calling thread must not be pinned to a CPU.
pub fn run(data_dir: &Path, shards: usize) -> Report {
    run_for(data_dir, &Needs::new(shards))
}

/// [`run`] with every count chosen by the caller.
pub fn run_for(data_dir: &Path, needs: &Needs) -> Report {
    let mut items = quick_items(data_dir, needs);
    items.push(cpus::check_quota(needs));
    items.push(clock_source::check());
    items.push(governor::check());
    items.push(dsync::check(data_dir));
    items.push(loopback::check());
    Report {
        data_dir: data_dir.to_owned(),
        shards: needs.shards,
        items,
    }
}

/// The checks that cost no more than a few milliseconds together.
fn quick_items(data_dir: &Path, needs: &Needs) -> Vec<Item> {
    vec![
        kernel::check(),
        uring::check(),
        memlock::check(needs),
        open_files::check(needs),
        cpus::check_count(needs),
        direct_io::check(data_dir),
        disk_space::check(data_dir),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_answers_and_leaves_no_file_behind() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let report = run(dir.path(), 1);
        let names: Vec<_> = report.items.iter().map(|item| item.name).collect();
        let expected = [
            "kernel",
            "io_uring",
            "locked memory",
            "open files",
            "CPUs",
            "direct I/O",
            "disk space",
            "CPU quota",
            "clock source",
            "CPU governor",
            "dsync latency",
            "loopback",
        ];
        assert_eq!(names, expected);
        for item in &report.items {
            assert_eq!(item.cure.is_none(), item.status == Status::Ok, "{item:?}");
            assert!(!item.measured.is_empty() && !item.needed.is_empty(), "{item:?}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_is_not_there_yet_is_not_made() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let missing = dir.path().join("a/b");
        let report = run(&missing, 1);
        assert!(
            report
                .items
                .iter()
                .any(|item| item.name == "direct I/O" && item.status != Status::Fail),
            "{report:?}"
        );
        assert!(!missing.exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
