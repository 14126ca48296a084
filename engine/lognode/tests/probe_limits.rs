//! The probe under limits that are too low: each test starts this test binary once more in a shell that lowers a limit first, and
//! looks at what the probe says there.

// The functions that the tests share are tests too, which the lints do not see.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use lognode::probe::{Needs, Status, run, run_for, startup_check};
use serde_json::Value;

#[path = "probe_limits/seccomp.rs"]
mod seccomp;

/// Which of the child's reports is wanted; set only in children.
const ROLE: &str = "LOGNODE_PROBE_TEST_ROLE";
const DIR: &str = "LOGNODE_PROBE_TEST_DIR";
/// Precedes what the child reports, so that it is told from what the test runner prints.
const MARK: &str = "REPORT ";

/// Not a test of its own, and without its role it does nothing: what the children run.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = std::env::var(DIR).unwrap();
    let dir = Path::new(&dir);
    let needs = Needs {
        pchannels: 1_000,
        ..Needs::new(1)
    };
    match role.as_str() {
        "report" => println!("\n{MARK}{}", run_for(dir, &needs).to_json()),
        "report-seccomp" => {
            seccomp::forbid_io_uring().unwrap();
            println!("\n{MARK}{}", run_for(dir, &needs).to_json());
        }
        "startup" => {
            let line = match startup_check(dir, needs.shards, needs.pchannels) {
                Ok(warnings) => format!("started {warnings:?}"),
                Err(error) => error.to_string(),
            };
            println!("\n{MARK}{}", serde_json::json!(line));
        }
        other => panic!("unknown role {other}"),
    }
}

/// Runs the child role `role` after the shell commands `before`.
fn output(before: &str, role: &str, dir: &Path) -> Output {
    Command::new("sh")
        .args(["-c", &format!("{before}\nexec \"$0\" --exact child --nocapture")])
        .arg(std::env::current_exe().unwrap())
        .env(ROLE, role)
        .env(DIR, dir)
        .output()
        .unwrap()
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix(MARK));
    let line = line.unwrap_or_else(|| panic!("no report in {text}{}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(line).unwrap()
}

fn item(report: &Value, name: &str) -> Value {
    let items = report["items"].as_array().unwrap();
    items
        .iter()
        .find(|item| item["name"] == name)
        .unwrap_or_else(|| panic!("no {name} in {report}"))
        .clone()
}

fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}

#[test]
fn low_locked_memory_fails_with_its_cure() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let found = report(&output("ulimit -l 64", "report", dir.path()));
    let item = item(&found, "locked memory");
    assert_eq!(item["status"], "fail", "{item}");
    assert_eq!(item["measured"], "limit: 64 KiB");
    assert_contains(item["needed"].as_str().unwrap(), &["512 KiB", "1 shards"]);
    assert_contains(item["cure"].as_str().unwrap(), &["ulimit -l", "LimitMEMLOCK="]);
    assert_eq!(found["worst"], "fail");
}

#[test]
fn low_limits_stop_a_start_with_one_line_in_time() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let begin = Instant::now();
    let line = report(&output("ulimit -l 64; ulimit -n 256", "startup", dir.path()));
    assert!(begin.elapsed() < Duration::from_secs(3));
    let line = line.as_str().unwrap();
    assert!(!line.contains('\n'));
    assert_contains(
        line,
        &["locked memory", "64 KiB", "512 KiB", "ulimit -l", "LimitMEMLOCK="],
    );
    assert_contains(
        line,
        &[
            "open files",
            "limit: 256",
            "1000 pchannels",
            "ulimit -n",
            "LimitNOFILE=",
        ],
    );
}

#[test]
fn a_low_soft_limit_is_raised_at_the_start() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let line = report(&output("ulimit -S -l 64; ulimit -S -n 256", "startup", dir.path()));
    let line = line.as_str().unwrap();
    assert!(!line.contains("64 KiB") && !line.contains("limit: 256"), "{line}");
}

#[test]
fn forbidden_io_uring_is_named() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let item = item(&report(&output("", "report-seccomp", dir.path())), "io_uring");
    assert_eq!(item["status"], "fail", "{item}");
    assert_contains(item["measured"].as_str().unwrap(), &["refused", "not permitted"]);
    assert!(item["cure"].as_str().unwrap().contains("io_uring"), "{item}");
}

#[test]
fn a_file_system_without_direct_io_is_named() {
    let dir = tempfile::tempdir_in(".").unwrap();
    // ramfs knows no direct I/O; to mount one in a namespace of its own takes a privilege.
    let mount = format!(
        "unshare -m sh -c 'mount -t ramfs none {}'",
        dir.path().canonicalize().unwrap().display()
    );
    if !Command::new("sh")
        .args(["-c", &mount])
        .output()
        .is_ok_and(|output| output.status.success())
    {
        eprintln!("not run: this user can't mount a file system");
        return;
    }
    let script = format!(
        "exec unshare -m sh -c 'mount -t ramfs none \"${DIR}\" && exec \"$0\" --exact child --nocapture' \"$0\""
    );
    let item = item(
        &report(&output(&script, "report", &dir.path().canonicalize().unwrap())),
        "direct I/O",
    );
    assert_eq!(item["status"], "fail", "{item}");
    assert_contains(item["cure"].as_str().unwrap(), &["ext4 or xfs"]);
}

#[test]
fn more_shards_than_allowed_cpus_fail() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let report = run(dir.path(), 100_000);
    let cpus = report.items.iter().find(|item| item.name == "CPUs").unwrap();
    assert_eq!(cpus.status, Status::Fail);
    assert_contains(cpus.cure.as_deref().unwrap(), &["run at most"]);
    assert_eq!(report.exit_code(), 1);
    assert_contains(&report.to_table(), &["does not suit", "fail: CPUs"]);
}
