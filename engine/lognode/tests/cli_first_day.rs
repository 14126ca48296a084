//! What a user met on the first day with the command line, and must not meet again.
//!
//! Each was seen on the binary before it was cured: a documented variable that no command took, a truncation that created the log it
//! was to shorten, a position in the future that was waited for without a word, colour codes in a log file, a configuration that was
//! printed in a form that can't be read back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{fs, process::Output};

use support::{
    Options, Scratch,
    command::{at, bare, lognode, produce_lines, start},
};

fn run_with_env(args: &[&str], env: &[(&str, &str)]) -> Output {
    bare(args).envs(env.iter().copied()).output().unwrap()
}

#[test]
fn variables_of_the_flags_are_no_settings() {
    let scratch = Scratch::new("first-env");
    let file = scratch.path().join("lognode.toml");
    fs::write(&file, "[log]\nsegment_bytes = 16777216\n").unwrap();
    let env = [
        ("LOGNODE_CONFIG", file.to_str().unwrap()),
        ("LOGNODE_SERVER", "127.0.0.1:9400"),
    ];
    let done = run_with_env(&["check-config"], &env);
    let out = String::from_utf8(done.stdout).unwrap();
    assert!(
        done.status.success() && out.contains("segment_bytes = 16777216"),
        "{out}"
    );
    // A setting that there is not is still told, by the name that it was given under.
    let done = run_with_env(&["check-config"], &[("LOGNODE_LOG__SEGMNT_BYTES", "5")]);
    let err = String::from_utf8(done.stderr).unwrap();
    assert!(
        err.contains("LOGNODE_LOG__SEGMNT_BYTES") && err.contains("segment_bytes"),
        "{err}"
    );
    assert_eq!(done.status.code(), Some(2));
}

#[test]
fn a_configuration_is_printed_as_one_and_its_errors_name_the_file() {
    let scratch = Scratch::new("first-config");
    let file = scratch.path().join("lognode.toml");
    let path = file.to_str().unwrap();
    let printed = lognode(&["check-config"]).ok().out;
    fs::write(&file, &printed).unwrap();
    assert_eq!(lognode(&["check-config", path]).ok().out, printed);
    for (text, words) in [
        ("[log]\nsegmnt_bytes = 5\n", [path, "log.segmnt_bytes", "segment_bytes"]),
        ("[log]\nsegment_bytes = \"big\"\n", [path, "log.segment_bytes", "big"]),
        ("[lgo]\nsegment_bytes = 5\n", [path, "lgo", "log"]),
        ("[log\n", [path, "line 1", "]"]),
    ] {
        fs::write(&file, text).unwrap();
        let ran = lognode(&["check-config", path]);
        assert_eq!(ran.code, 2, "{ran:#?}");
        for word in words {
            assert!(ran.err.contains(word), "{word:?} is not told: {ran:#?}");
        }
        assert!(!ran.err.contains("default."), "{ran:#?}");
    }
}

#[test]
fn a_truncation_creates_no_log() {
    let scratch = Scratch::new("first-truncate");
    let (server, data) = start(&scratch, &Options::small());
    at(&server, "truncate", &["--upto", "5"]).fails(1, &["p does not exist", "lognode channels"]);
    assert!(!data.join("pchannels/p").exists());
    produce_lines(&server, "{\"vchannel\":\"v\",\"body\":\"x\"}\n").ok();
    at(&server, "truncate", &["--upto", "5"]).fails(1, &["beyond the end", "--upto 1 or less"]);
    server.stop();
}

#[test]
fn a_start_in_the_future_is_told_and_nothing_is_waited_for_that_can_not_come() {
    let scratch = Scratch::new("first-future");
    let (server, _) = start(&scratch, &Options::small());
    produce_lines(&server, "{\"vchannel\":\"v\",\"body\":\"x\"}\n").ok();
    let future = ["--from", "timetick:999999999999999999"];
    let ran = at(&server, "consume", &[&future[..], &["--until-caught-up"]].concat()).ok();
    assert_eq!(ran.out, "");
    assert!(ran.err.contains("0 messages"), "{ran:#?}");
    assert!(
        !server.log().contains('\u{1b}'),
        "colour codes in a file: {}",
        server.log()
    );
    server.stop();
}

#[test]
fn no_rows_are_told_as_such() {
    let scratch = Scratch::new("first-empty");
    let (server, _) = start(&scratch, &Options::small());
    let empty = scratch.path().join("empty.jsonl");
    fs::write(&empty, "").unwrap();
    let ran = at(&server, "produce", &["--jsonl", empty.to_str().unwrap()]).ok();
    assert!(ran.out.contains("nothing was written"), "{ran:#?}");
    server.stop();
}
