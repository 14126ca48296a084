//! Each scenario for a moment against the real server: not how fast it is, but that the result is whole and the checks hold.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

/// The server's binary: `LOGNODE_BIN`, or built now beside this test, which cargo does not do for another crate's binary.
fn lognode() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(binary) = std::env::var_os("LOGNODE_BIN") {
            return binary.into();
        }
        let bench = Path::new(env!("CARGO_BIN_EXE_lognode-bench"));
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--locked", "-p", "lognode"]);
        if bench.parent().unwrap().ends_with("release") {
            build.arg("--release");
        }
        let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        bench.with_file_name("lognode")
    })
}

fn bench(args: &str) -> Output {
    bench_of(lognode(), args)
}

fn bench_of(server: &Path, args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lognode-bench"))
        .args(args.split(' '))
        .args(["--json", "--warmup", "0.2", "--runs", "1"])
        .args(["--dir", env!("CARGO_TARGET_TMPDIR")])
        .arg("--lognode")
        .arg(server)
        .output()
        .unwrap()
}

/// Runs a scenario and reads the last line of its output.
fn result(args: &str) -> Value {
    let output = bench(&format!("{args} --seconds 1"));
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args}: {complaint}");
    let result: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_whole(args, &result);
    result
}

fn assert_whole(args: &str, result: &Value) {
    assert_eq!(result["scenario"].as_str(), args.split(' ').next(), "{result}");
    assert_eq!(result["durable"], true, "{result}");
    for percentile in ["p50", "p99", "p999", "max"] {
        assert!(
            result["ack_us"][percentile].as_f64().unwrap() > 0.0,
            "{percentile}: {result}"
        );
    }
    for name in ["limit", "ratio_to_limit", "server_cpu_ns_per_message"] {
        assert!(result.get(name).is_some(), "{name}: {result}");
    }
    assert!(result["rss_peak_bytes"].as_u64().unwrap() > 1 << 20, "{result}");
    assert!(
        result["checks"][0].as_str().unwrap().contains("without a gap"),
        "{result}"
    );
    assert!(!result["bottleneck"].as_str().unwrap().is_empty(), "{result}");
}

fn assert_rates(result: &Value) {
    for name in ["messages_per_s", "bytes_per_s"] {
        assert!(result[name].as_f64().unwrap() > 0.0, "{name}: {result}");
    }
    assert!(result["runs"][0]["samples"].as_u64().unwrap() > 0, "{result}");
}

#[test]
fn append_is_held_against_limits_of_the_same_run() {
    let result = result("append --pchannels 2 --connections 3 --limit-seconds 0.05 --limit-file-mib 4");
    assert_rates(&result);
    for name in [
        "disk_bytes_per_s",
        "loopback_bytes_per_s",
        "echo_per_s",
        "echo_us_p50",
        "dsync_us_p50",
    ] {
        assert!(result["limit"][name].as_f64().unwrap() > 0.0, "{name}: {result}");
    }
    assert_eq!(result["limit"].as_object().unwrap().len(), 5, "{result}");
    assert!(result["ratio_to_limit"].as_f64().unwrap() > 0.0, "{result}");
}

#[test]
fn append_of_single_messages_in_a_closed_loop() {
    let result = result("append --size 256 --batch 1 --connections 16 --no-limits");
    assert_rates(&result);
    assert_eq!(result["parameters"]["window_batches"], 1, "{result}");
    assert!(
        result["limit"].is_null() && result["ratio_to_limit"].is_null(),
        "{result}"
    );
}

#[test]
fn latency_at_a_given_rate() {
    let result = result("latency --rate 200 --no-limits");
    assert_rates(&result);
    assert_eq!(result["rate_messages_per_s"], 200.0, "{result}");
    assert_eq!(
        result["runs"][0]["samples"], 200,
        "the schedule is kept, late or not: {result}"
    );
}

#[test]
fn tail_delivers_every_batch_to_every_reader() {
    let result = result("tail --batch 20 --readers 10 --rate 1000 --verify-every 1 --no-limits");
    assert_rates(&result);
    // 50 batches to 10 readers each.
    assert_eq!(result["deliveries"], 500, "{result}");
    assert_eq!(result["deliveries_verified"], 500, "{result}");
    for figures in ["delivery_us", "ack_us_without_readers"] {
        assert!(result[figures]["p99"].as_f64().unwrap() > 0.0, "{result}");
    }
}

#[test]
fn catchup_reads_all_that_was_written() {
    let result = result("catchup --mib 20 --pchannels 2 --verify-every 1 --no-limits");
    assert_rates(&result);
    assert_eq!(result["deliveries"], result["deliveries_verified"], "{result}");
}

#[test]
fn idle_tells_what_was_written_and_spent() {
    let result = result("idle --pchannels 3 --vchannels 50 --no-limits");
    assert_eq!(result["bytes_written"], 0, "{result}");
    assert_eq!(result["metadata_bytes_written"], 0, "nobody listens: {result}");
    assert!(result["cpu_percent"].as_f64().unwrap() >= 0.0, "{result}");
}

#[test]
fn idle_readers_get_ticks_that_nobody_stores() {
    let result = result("idle --pchannels 2 --vchannels 5 --readers 4 --no-limits");
    assert_eq!(result["bytes_written"], 0, "{result}");
    assert!(result["ticks_per_s"].as_f64().unwrap() > 0.0, "{result}");
}

#[test]
fn ticks_come_to_readers_of_nothing_under_load() {
    let result = result("timetick --pchannels 3 --no-limits");
    assert_rates(&result);
    assert!(result["tick_gap_us"]["p99"].as_f64().unwrap() > 0.0, "{result}");
}

#[test]
fn memory_is_told_beside_readers_that_take_nothing() {
    let result = result("memory --budget-mib 96 --stalled-readers 30 --no-limits");
    assert_rates(&result);
    assert_eq!(result["readers_connected"], 30, "{result}");
    assert_eq!(result["budget_bytes"], 96 << 20, "{result}");
}

#[test]
fn recovery_after_kills_keeps_what_was_acked() {
    let result = result("recovery --mib 50 --pchannels 2 --no-limits");
    assert!(result["serving_s"].as_f64().unwrap() > 0.0, "{result}");
    assert!(
        result["first_acks_s"].as_f64().unwrap() >= result["serving_s"].as_f64().unwrap(),
        "{result}"
    );
}

#[test]
fn a_server_that_dies_on_the_way_makes_a_failure_and_no_figures() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mortal = folder.path().join("mortal");
    let script = format!("#!/bin/sh\nexec timeout -s KILL 2 '{}' \"$@\"\n", lognode().display());
    fs::write(&mortal, script).unwrap();
    fs::set_permissions(&mortal, fs::Permissions::from_mode(0o755)).unwrap();
    let output = bench_of(&mortal, "append --no-limits --seconds 30");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(complaint.contains("ended with"), "{complaint}");
}

/// Whether a process runs whose command line names `folder`.
fn serves(folder: &Path) -> bool {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut lines = processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok());
    lines.any(|line| line.contains("--data-dir") && line.contains(folder.to_str().unwrap()))
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_bench_leaves_no_server_and_no_data() {
    let parent = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_lognode-bench"))
        .args(["append", "--no-limits", "--seconds", "60", "--dir"])
        .args([parent.path(), "--lognode".as_ref(), lognode()])
        .spawn()
        .unwrap();
    wait_until("no server came", || serves(parent.path()));
    bench.kill().unwrap();
    bench.wait().unwrap();
    wait_until("the server goes on", || !serves(parent.path()));
    wait_until("the data lies there still", || {
        fs::read_dir(parent.path()).unwrap().count() == 0
    });
}

#[test]
fn options_that_make_no_sense_are_named() {
    let output = bench("append --size 8000000 --no-limits --seconds 1");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(complaint.contains("--size"), "{complaint}");
}
