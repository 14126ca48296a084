//! `lognode inspect` and `lognode verify` on the files of a real server: sound, rotten, torn, and not there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;
use support::{
    Options, Scratch, Server,
    command::{at, lognode, many_lines, produce_lines, start},
};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn segment(data: &Path, index: u64) -> PathBuf {
    data.join(format!("pchannels/p/{index:010}.seg"))
}

/// Flips one bit of the only place in a file that holds these bytes, and tells where.
fn flip(file: &Path, needle: &str) -> u64 {
    let mut bytes = fs::read(file).unwrap();
    let places: Vec<usize> = bytes
        .windows(needle.len())
        .enumerate()
        .filter(|(_, w)| *w == needle.as_bytes())
        .map(|(at, _)| at)
        .collect();
    assert_eq!(places.len(), 1, "{needle:?} in {}", file.display());
    bytes[places[0]] ^= 1;
    fs::write(file, bytes).unwrap();
    places[0] as u64
}

#[test]
fn a_sound_folder_is_told_as_it_is_with_and_without_its_server() {
    let scratch = Scratch::new("cli-sound");
    let (server, data) = start(&scratch, &Options::small());
    lognode(&["inspect", text(&data)]).ok().says(&["no pchannel yet"]);
    produce_lines(&server, &many_lines(0, 3_000)).ok();
    let check = |running: bool| {
        for path in [data.clone(), data.join("pchannels"), data.join("pchannels/p")] {
            lognode(&["inspect", text(&path)])
                .ok()
                .says(&["p: sound", "0..3000", "sealed", "open", "0000000000.seg"]);
            lognode(&["verify", text(&path)]).ok().says(&[
                "p: sound",
                "0..3000",
                "3,000 messages",
                "1 of 1 pchannel sound",
            ]);
        }
        let whole = lognode(&["inspect", text(&data), "--json", "--vchannels", "--verify"])
            .ok()
            .json();
        assert_eq!((&whole["sound"], &whole["lost_messages"]), (&json!(true), &json!(0)));
        let p = &whole["pchannels"][0];
        assert_eq!(
            (&p["name"], &p["stored_name"], &p["messages"]),
            (&json!("p"), &json!("p"), &json!(3_000))
        );
        assert_eq!((&p["first_offset"], &p["next_offset"]), (&json!(0), &json!(3_000)));
        assert_eq!(p["vchannels"], json!({"v0": 1_000, "v1": 1_000, "v2": 1_000}));
        assert_eq!(p["checkpoint"]["clean"], !running);
        let mut due = 0;
        for segment in p["segments"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|s| s["state"] != "prepared")
        {
            assert_eq!(segment["first_offset"], due);
            assert_eq!(segment["verified"], true);
            due = segment["next_offset"].as_u64().unwrap();
        }
        assert_eq!(due, 3_000);
        let verdict = lognode(&["verify", text(&data), "--json"]).ok().json();
        assert_eq!((&verdict["sound"], &verdict["messages"]), (&json!(true), &json!(3_000)));
        assert!(verdict["bytes"].as_u64().unwrap() > 3_000_000, "{verdict}");
    };
    check(true);
    server.stop();
    check(false);
}

#[test]
fn a_flipped_bit_is_named_by_file_bytes_and_offset_and_reading_goes_on_behind_it() {
    let scratch = Scratch::new("cli-flip");
    let (server, data) = start(&scratch, &Options::default());
    // Each in a record of its own: exactly one message is lost.
    for body in ["first", "unlucky message", "last"] {
        produce_lines(&server, &json!({"vchannel": "v", "body": body}).to_string()).ok();
    }
    server.stop();
    let file = segment(&data, 0);
    let at_byte = flip(&file, "unlucky message");

    let told = [text(&file), "offsets 1..2 are lost (1 message)", "--from offset:2"];
    let verdict = ["1 of 1 pchannel damaged", "1 message lost"];
    lognode(&["verify", text(&data)])
        .fails(1, &verdict)
        .says(&told)
        .says(&["0 of 1 pchannel sound", "2 messages in"]);
    lognode(&["inspect", text(&data), "--verify"])
        .fails(1, &verdict)
        .says(&told);
    for command in ["verify", "inspect"] {
        let report = lognode(&[command, text(&data), "--json"]).fails(1, &verdict).json();
        assert_eq!((&report["sound"], &report["lost_messages"]), (&json!(false), &json!(1)));
        let problems = report["pchannels"][0]["problems"].as_array().unwrap();
        assert_eq!(problems.len(), 1, "{report}");
        let problem = &problems[0];
        assert_eq!(problem["file"], text(&file));
        assert_eq!(
            (&problem["first_offset"], &problem["next_offset"]),
            (&json!(1), &json!(2))
        );
        let bytes = problem["from"].as_u64().unwrap()..problem["to"].as_u64().unwrap();
        assert!(
            bytes.contains(&at_byte) && bytes.end - bytes.start <= 4096,
            "{at_byte} in {problem}"
        );
    }

    let server = Server::start(&data);
    let cut = at(&server, "consume", &["--until-caught-up"]).fails(1, &[text(&file), "read on from 2 (with --from"]);
    assert!(
        !cut.err.contains("offset:1"),
        "that would only end there again: {cut:#?}"
    );
    assert_eq!(cut.json()["body"], "first");
    let rest = at(&server, "consume", &["--from", "offset:2", "--until-caught-up"]).ok();
    assert_eq!(rest.json()["body"], "last");
    server.stop();
}

#[test]
fn rot_in_a_full_segment_is_seen_by_whoever_reads_it() {
    let scratch = Scratch::new("cli-rot");
    let (server, data) = start(&scratch, &Options::small());
    produce_lines(&server, &many_lines(0, 3_000)).ok();
    server.stop();
    flip(&segment(&data, 0), "message 17 ");
    lognode(&["inspect", text(&data)]).ok().says(&["footer"]);
    for args in [&["verify"][..], &["inspect", "--verify"], &["inspect", "--vchannels"]] {
        let report = lognode(&[args, &[text(&data), "--json"]].concat())
            .fails(1, &["damaged"])
            .json();
        let problem = &report["pchannels"][0]["problems"][0];
        let lost = problem["first_offset"].as_u64().unwrap()..problem["next_offset"].as_u64().unwrap();
        assert!(lost.contains(&17), "{report}");
        assert_eq!(report["lost_messages"], lost.end - lost.start);
    }
    fs::remove_file(segment(&data, 1)).unwrap();
    lognode(&["inspect", text(&data)])
        .fails(1, &["lost"])
        .says(&["missing", "DAMAGED"]);
}

#[test]
fn a_torn_end_is_told_and_is_no_damage() {
    let scratch = Scratch::new("cli-torn");
    let (server, data) = start(&scratch, &Options::default());
    for body in ["first", "cut short"] {
        produce_lines(&server, &json!({"vchannel": "v", "body": body}).to_string()).ok();
    }
    server.kill();
    flip(&segment(&data, 0), "cut short");
    for command in ["inspect", "verify"] {
        lognode(&[command, text(&data)])
            .ok()
            .says(&["p: sound", "0..1", "not finished", "harmless after a crash"]);
    }
}

#[test]
fn a_wrong_path_is_answered_with_what_was_expected() {
    let scratch = Scratch::new("cli-path");
    let file = scratch.path().join("file");
    fs::write(&file, "x").unwrap();
    let bad = scratch.path().join("pchannels/bad/0000000000.seg");
    fs::create_dir_all(&bad).unwrap();
    let strange = scratch.path().join("strange");
    fs::create_dir_all(strange.join("x")).unwrap();
    for command in ["inspect", "verify"] {
        for path in [&scratch.path().join("nowhere"), &file, &strange] {
            lognode(&[command, text(path)]).fails(2, &[text(path), "DATA_DIR/pchannels/NAME", "data folder"]);
        }
        // A folder where a file should be: not even the owner of everything can read it.
        let ran = lognode(&[command, text(scratch.path())]).fails(1, &["1 of 1 pchannel can't be read"]);
        ran.says(&["bad: can't be read", text(&bad), "directory"]);
    }
}
