//! The command line against a real server, as a user drives it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use parquet::{
    file::{reader::FileReader, serialized_reader::SerializedFileReader},
    record::{Field, Row},
};
use serde_json::{Value, json};
use support::{
    Options, Scratch, Server,
    command::{Ran, at, bare, lognode, lognode_with, many_lines, produce_lines, start},
};

const ROWS: usize = 1797;

fn digits() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/demo/digits.parquet");
    file.to_str().unwrap().to_owned()
}

/// The rows of a Parquet file, read by another way than the command's.
fn rows(file: impl AsRef<Path>) -> Vec<BTreeMap<String, Field>> {
    let reader = SerializedFileReader::new(fs::File::open(file).unwrap()).unwrap();
    let row = |row: Row| {
        row.get_column_iter()
            .map(|(name, field)| (name.clone(), field.clone()))
            .collect()
    };
    reader.get_row_iter(None).unwrap().map(|r| row(r.unwrap())).collect()
}

fn whole(field: &Field) -> i64 {
    match field {
        Field::Int(n) => (*n).into(),
        Field::Long(n) => *n,
        other => panic!("{other:?} is no whole number"),
    }
}

fn floats(field: &Field) -> Vec<f32> {
    let Field::ListInternal(list) = field else {
        panic!("{field:?} is no list")
    };
    let float = |field: &Field| match field {
        Field::Float(f) => *f,
        other => panic!("{other:?} is no float"),
    };
    list.elements().iter().map(float).collect()
}

/// The demo's file: id to vector.
fn source() -> BTreeMap<i64, Vec<f32>> {
    let all: BTreeMap<_, _> = rows(digits())
        .iter()
        .map(|row| (whole(&row["id"]), floats(&row["emb"])))
        .collect();
    assert_eq!(all.len(), ROWS);
    assert!(all.values().all(|vector| vector.len() == 64));
    all
}

/// The part of it that belongs into a vchannel, counted from 1, of four.
fn part(number: i64) -> BTreeMap<i64, Vec<f32>> {
    let part: BTreeMap<_, _> = source().into_iter().filter(|(id, _)| id % 4 + 1 == number).collect();
    assert!(part.len() >= ROWS / 4);
    part
}

fn produce_digits(server: &Server) -> Ran {
    let file = digits();
    at(server, "produce", &["--parquet", &file, "--vchannels", "4", "--json"]).ok()
}

fn channel(server: &Server) -> Value {
    let list = lognode(&["channels", "--server", &server.address, "--json"])
        .ok()
        .json();
    let pchannels = list["pchannels"].as_array().unwrap();
    assert_eq!(pchannels.len(), 1);
    pchannels[0].clone()
}

/// id to vector of what was consumed, each id once.
fn by_id(pairs: Vec<(i64, Vec<f32>)>) -> BTreeMap<i64, Vec<f32>> {
    let count = pairs.len();
    let map: BTreeMap<_, _> = pairs.into_iter().collect();
    assert_eq!(map.len(), count, "an id came twice");
    map
}

fn consume_json(server: &Server, vchannel: &str) -> BTreeMap<i64, Vec<f32>> {
    let ran = at(server, "consume", &["--vchannel", vchannel, "--until-caught-up"]).ok();
    let (mut last, mut pairs) = (None, Vec::new());
    for line in ran.lines() {
        assert_eq!(line["vchannel"], vchannel);
        assert_eq!(line["type"], "insert");
        let offset = line["offset"].as_u64();
        assert!(offset > last, "offsets grow");
        last = offset;
        let vector = line["vector"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_f64().unwrap() as f32);
        pairs.push((line["id"].as_i64().unwrap(), vector.collect()));
    }
    by_id(pairs)
}

#[test]
fn one_vchannel_comes_back_as_lines_and_as_parquet() {
    let scratch = Scratch::new("cli-one");
    let (server, _) = start(&scratch, &Options::default());
    let stored = produce_digits(&server).json();
    assert_eq!(stored["rows"], ROWS);
    let expected = part(2);
    assert_eq!(consume_json(&server, "p-v2"), expected);

    let out = scratch.path().join("rows.parquet");
    let args = [
        "--vchannel",
        "p-v2",
        "--until-caught-up",
        "--out",
        out.to_str().unwrap(),
    ];
    at(&server, "consume", &args)
        .ok()
        .says(&["rows.parquet", &expected.len().to_string()]);
    let rows = rows(&out);
    assert!(rows.iter().all(|row| row["vchannel"] == Field::Str("p-v2".to_owned())));
    assert_eq!(
        by_id(
            rows.iter()
                .map(|row| (whole(&row["id"]), floats(&row["vector"])))
                .collect()
        ),
        expected
    );
    server.stop();
}

#[test]
fn all_vchannels_together_are_all_rows_and_none_twice() {
    let scratch = Scratch::new("cli-all");
    let (server, _) = start(&scratch, &Options::default());
    produce_digits(&server);
    let mut together = BTreeMap::new();
    for number in 1..=4 {
        let got = consume_json(&server, &format!("p-v{number}"));
        assert_eq!(got, part(number));
        for (id, vector) in got {
            assert!(
                together.insert(id, vector).is_none(),
                "row {id} came from two vchannels"
            );
        }
    }
    assert_eq!(together, source());
    let info = channel(&server);
    assert_eq!(
        (&info["name"], &info["first_offset"], &info["next_offset"]),
        (&json!("p"), &json!(0), &json!(ROWS))
    );
    assert_eq!(info["failed"], Value::Null);
    server.stop();
}

/// Right behind the ack, with a pchannel that the produce has just created: nothing may be missing.
#[test]
fn whoever_consumes_right_after_an_ack_gets_all_of_it() {
    let scratch = Scratch::new("cli-at-once");
    let (server, _) = start(&scratch, &Options::default());
    for round in 0..8 {
        let pchannel = format!("p{round}");
        let of = |command| {
            [
                command,
                "--server",
                server.address.as_str(),
                "--pchannel",
                pchannel.as_str(),
            ]
        };
        let mut wanted = Vec::new();
        for part in 0..3 {
            let body = format!("{round} {part}");
            let line = json!({"vchannel": "v", "body": body}).to_string();
            lognode_with(&[&of("produce")[..], &["--jsonl", "-"]].concat(), &line).ok();
            wanted.push(body);
            let got = lognode(&[&of("consume")[..], &["--until-caught-up"]].concat()).ok();
            let bodies: Vec<_> = got
                .lines()
                .iter()
                .map(|line| line["body"].as_str().unwrap().to_owned())
                .collect();
            assert_eq!(bodies, wanted);
        }
    }
    server.stop();
}

fn without(line: &Value, keys: &[&str]) -> Value {
    let mut line = line.clone();
    keys.iter()
        .for_each(|key| drop(line.as_object_mut().unwrap().remove(*key)));
    line
}

#[test]
fn lines_come_back_as_they_went_in_and_can_be_produced_again() {
    let scratch = Scratch::new("cli-lines");
    let (server, _) = start(&scratch, &Options::default());
    let lines = [
        json!({"vchannel": "a", "type": "insert", "properties": {"k": "1", "z": "ü \"q\""}, "body": "text\nwith lines"}),
        json!({"vchannel": "b", "type": "delete", "properties": {"id": "17"}, "body": ""}),
        json!({"vchannel": "a", "type": "type-777", "properties": {}, "body_base64": "AP+AgQ=="}),
        json!({"vchannel": "c d/é", "type": "insert", "properties": {"id": "5", "dim": "1"}, "body_base64": "AACAvw=="}),
    ];
    let input: String = lines.iter().map(|line| format!("{line}\n\n")).collect();
    assert_eq!(produce_lines(&server, &input).ok().json()["rows"], 4);
    let raw = at(&server, "consume", &["--raw", "--until-caught-up"]).ok();
    let got = raw.lines();
    for (at, (got, sent)) in got.iter().zip(&lines).enumerate() {
        assert_eq!(got["offset"], at);
        assert!(got["timetick"].as_u64().unwrap() > 0);
        assert_eq!(&without(got, &["offset", "timetick"]), sent);
    }
    assert_eq!(got.len(), lines.len());

    let copy = ["--server", &server.address, "--pchannel", "copy"];
    lognode_with(&[&["produce", "--jsonl", "-"], &copy[..]].concat(), &raw.out).ok();
    let again = lognode(&[&["consume", "--raw", "--until-caught-up"], &copy[..]].concat())
        .ok()
        .lines();
    let bare = |lines: &[Value]| {
        lines
            .iter()
            .map(|line| without(line, &["timetick"]))
            .collect::<Vec<_>>()
    };
    assert_eq!(bare(&again), bare(&got));

    // A type may go in as its number.
    lognode_with(
        &[&["produce", "--jsonl", "-"], &copy[..]].concat(),
        "{\"vchannel\":\"n\",\"type\":777,\"body\":\"\"}",
    )
    .ok();
    let numbered = lognode(&[&["consume", "--vchannel", "n", "--until-caught-up"], &copy[..]].concat());
    assert_eq!(numbered.ok().json()["type"], "type-777");

    // As a vector for people, the last one is a number; a filter by type leaves one.
    let shown = at(&server, "consume", &["--vchannel", "c d/é", "--until-caught-up"])
        .ok()
        .json();
    assert_eq!((&shown["id"], &shown["vector"]), (&json!(5), &json!([-1.0])));
    let deletes = at(&server, "consume", &["--type", "delete", "--until-caught-up"])
        .ok()
        .json();
    assert_eq!(deletes["offset"], 1);
    let limited = at(&server, "consume", &["--from", "offset:1", "--limit", "2"])
        .ok()
        .lines();
    assert_eq!(
        limited
            .iter()
            .map(|line| line["offset"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [1, 2]
    );
    server.stop();
}

#[test]
fn a_bad_line_is_named_and_what_stands_before_it_is_stored() {
    let scratch = Scratch::new("cli-bad-line");
    let (server, _) = start(&scratch, &Options::default());
    let good = "{\"vchannel\":\"v\",\"body\":\"x\"}\n";
    for (bad, word) in [
        ("{\"vchannel\":\"v\",", "EOF"),
        ("{\"vchannel\":\"v\"}", "body"),
        ("17", "object"),
    ] {
        let next = lognode(&["channels", "--server", &server.address, "--json"])
            .ok()
            .json()["pchannels"][0]["next_offset"]
            .as_u64()
            .unwrap_or(0);
        produce_lines(&server, &format!("{good}{good}{bad}\n{good}"))
            .fails(1, &["line 3", word, "2 messages before it"]);
        assert_eq!(channel(&server)["next_offset"], next + 2);
    }
    server.stop();
}

#[test]
fn wrong_columns_are_answered_with_the_right_ones() {
    // Told from the file alone: no server is asked.
    let file = digits();
    let produce = |args: &[&str]| {
        let own = [
            "produce",
            "--server",
            "127.0.0.1:1",
            "--pchannel",
            "p",
            "--parquet",
            file.as_str(),
        ];
        lognode(&[&own, args].concat())
    };
    let columns = ["id (", "emb (list of float32)", "label ("];
    produce(&["--vector-column", "nope"]).fails(2, &[&["nope", "--vector-column"], &columns[..]].concat());
    produce(&["--id-column", "pk"]).fails(2, &[&["pk", "--id-column"], &columns[..]].concat());
    produce(&["--vector-column", "label"]).fails(2, &["label", "a vector is a list of float or double"]);
    produce(&["--id-column", "emb"]).fails(2, &["emb", "a whole number or text"]);
    let no_parquet = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let own = ["produce", "--server", "127.0.0.1:1", "--pchannel", "p", "--parquet"];
    lognode(&[&own[..], &[no_parquet]].concat()).fails(2, &["Cargo.toml", "no Parquet file"]);
    lognode(&[&own[..], &["/nowhere/x.parquet"]].concat()).fails(2, &["/nowhere/x.parquet", "--parquet"]);
}

#[test]
fn a_server_that_is_not_there_is_told_soon() {
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let file = digits();
    let commands: [&[&str]; 4] = [
        &["channels"],
        &["consume", "--pchannel", "p"],
        &["truncate", "--pchannel", "p", "--upto", "1"],
        &["produce", "--pchannel", "p", "--parquet", &file, "--deadline-s", "2"],
    ];
    for command in commands {
        let ran = lognode(&[command, &["--server", &gone]].concat()).fails(1, &[&gone, "--server"]);
        assert!(ran.took < Duration::from_secs(8), "{ran:#?}");
    }
    // One that takes the connection and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let ran = lognode(&["channels", "--server", &address]).fails(1, &[&address]);
    assert!(ran.took < Duration::from_secs(10), "{ran:#?}");
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    let wrong: [&[&str]; 14] = [
        &[],
        &["consum"],
        &["produce", "--pchannel", "p"],
        &["produce", "--pchannel", "p", "--parquet", "a", "--jsonl", "b"],
        &["produce", "--pchannel", "p", "--parquet", "a", "--vchannels", "0"],
        &["produce", "--pchannel", "../p", "--parquet", "a"],
        &["consume"],
        &["consume", "--pchannel", "p", "--from", "first"],
        &["consume", "--pchannel", "p", "--type", "no type"],
        &["consume", "--pchannel", "p", "--limit", "0"],
        &["truncate", "--pchannel", "p"],
        &["inspect"],
        &["inspect", "--deep", "."],
        &["verify", "--json"],
    ];
    for args in wrong {
        let ran = lognode(args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}: {ran:#?}");
        assert!(
            ran.err.contains("--help") || ran.err.contains("Usage"),
            "{args:?}: {ran:#?}"
        );
    }
}

#[test]
fn a_bad_configuration_is_told_by_its_key() {
    let scratch = Scratch::new("cli-config");
    let file = scratch.path().join("lognode.toml");
    let check = || lognode(&["check-config", "--config", file.to_str().unwrap()]);
    for (text, words) in [
        ("[log]\nsegment_bytes = \"much\"\n", ["segment_bytes", "much"]),
        ("[log]\nsegment_byte = 1048576\n", ["segment_byte", "segment_bytes"]),
        ("[log]\nsegment_bytes = 5\n", ["segment_bytes", "5"]),
        ("listen = \"nowhere\"\n", ["listen", "socket address"]),
    ] {
        fs::write(&file, text).unwrap();
        check().fails(2, &words);
    }
    fs::write(&file, "[log]\nsegment_bytes = 16777216\n").unwrap();
    check().ok().says(&["16777216"]);
    lognode(&["check-config", "--config", "/nowhere/x.toml"]).fails(2, &["/nowhere/x.toml"]);
}

#[test]
fn a_reader_below_a_truncation_is_told_where_the_log_begins() {
    let scratch = Scratch::new("cli-truncate");
    let (server, _) = start(&scratch, &Options::small());
    produce_lines(&server, &many_lines(0, 3_000)).ok();
    let done = at(&server, "truncate", &["--upto", "2000", "--json"]).ok().json();
    let first = done["first_offset"].as_u64().unwrap();
    assert!(first > 0 && first <= 2_000, "{done}");
    assert_eq!(channel(&server)["first_offset"], first);
    let place = format!("offset:{first}");
    let below = format!("offset:{}", first - 1);
    for from in ["offset:0", &below] {
        at(&server, "consume", &["--from", from, "--until-caught-up"]).fails(1, &["--from", &place, "earliest"]);
    }
    for from in [&place, "earliest"] {
        let got = at(&server, "consume", &["--from", from, "--until-caught-up"])
            .ok()
            .lines();
        assert_eq!(got[0]["offset"], first);
        assert_eq!(got.len() as u64, 3_000 - first);
    }
    at(&server, "consume", &["--from", "offset:3001", "--until-caught-up"]).fails(1, &["offset:3000", "latest"]);
    server.stop();
}

#[test]
fn whoever_stops_reading_the_output_ends_the_command_in_order() {
    let scratch = Scratch::new("cli-head");
    let (server, _) = start(&scratch, &Options::default());
    produce_digits(&server);
    let mut child = bare(&["consume", "--server", &server.address, "--pchannel", "p"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["offset"], 0);
    let deadline = Instant::now() + Duration::from_secs(10);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                panic!("it goes on though nobody reads");
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let said = child.wait_with_output().unwrap().stderr;
    assert_eq!(
        (status.code(), String::from_utf8(said).unwrap().as_str()),
        (Some(0), "")
    );
    server.stop();
}
