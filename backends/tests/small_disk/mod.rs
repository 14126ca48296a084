//! A small file system for one test, where the machine lets an ordinary process have one: the test runs itself again in a mount
//! namespace of its own, and finds the disk there.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Tells the second run where the disk is. Not `LOGNODE_...`: a server would take that for a setting.
const INSIDE: &str = "LOG_TEST_SMALL_DISK";

/// The small disk, if this process is the one that has it.
pub fn inside() -> Option<PathBuf> {
    std::env::var_os(INSIDE).map(PathBuf::from)
}

/// Runs the test of this name again, with a disk of so many MiB at `place`, and fails if it fails. Where the machine does not
/// allow that, says so and tests nothing.
pub fn run_again(test: &str, place: &Path, mib: u32) {
    let probe = Command::new("unshare")
        .args(["-rm", "mount", "-t", "tmpfs", "none"])
        .arg(place)
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("this machine gives a process no file system of its own: not tested here");
        return;
    }
    let script = format!(
        "mount -t tmpfs -o size={mib}m none '{}' && exec \"$0\" --exact {test} --nocapture",
        place.display()
    );
    let status = Command::new("unshare")
        .args(["-rm", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env(INSIDE, place)
        .status();
    assert!(status.unwrap().success());
}
