//! The command line as a user drives it: one command, its exit code and what it printed, in bounded time.

use std::{
    io::{Read, Write},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{Options, Scratch, Server};

/// No command of a test may take longer.
const PATIENCE: Duration = Duration::from_secs(40);

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

/// Runs `lognode` with these arguments and nothing on standard input.
pub fn lognode(args: &[&str]) -> Ran {
    lognode_with(args, "")
}

/// The same with a text on standard input.
pub fn lognode_with(args: &[&str], input: &str) -> Ran {
    let begin = Instant::now();
    let mut child = bare(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_owned());
    // One that does not read its input is no fault of the test.
    let writer = thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let out = gather(child.stdout.take().unwrap());
    let err = gather(child.stderr.take().unwrap());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("lognode {args:?} does not end; it said {:?}", err.join().unwrap());
        }
        thread::sleep(Duration::from_millis(2));
    };
    writer.join().unwrap();
    Ran {
        code: status.code().unwrap_or(-1),
        out: out.join().unwrap(),
        err: err.join().unwrap(),
        took: begin.elapsed(),
    }
}

/// The command without anything of this process's environment that it listens to.
pub fn bare(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lognode"));
    command.args(args);
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("LOGNODE_") {
            command.env_remove(key);
        }
    }
    command
}

/// A command against the server, its pchannel named `p`.
pub fn at(server: &Server, command: &str, args: &[&str]) -> Ran {
    let own = [command, "--server", &server.address, "--pchannel", "p"];
    lognode(&[&own, args].concat())
}

/// Produces these JSON lines into the pchannel `p`.
pub fn produce_lines(server: &Server, lines: &str) -> Ran {
    let args = [
        "produce",
        "--server",
        &server.address,
        "--pchannel",
        "p",
        "--jsonl",
        "-",
        "--json",
    ];
    lognode_with(&args, lines)
}

/// As many lines as asked for, with bodies of about a kilobyte that no other line has.
pub fn many_lines(from: u64, count: u64) -> String {
    let line = |i| format!("{{\"vchannel\":\"v{}\",\"body\":\"message {i} {:01000}\"}}\n", i % 3, i);
    (from..from + count).map(line).collect()
}

/// A server with its data folder in the scratch folder.
pub fn start(scratch: &Scratch, options: &Options) -> (Server, PathBuf) {
    let data = scratch.path().join("data");
    (Server::start_with(&data, options), data)
}

fn gather(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    })
}

impl Ran {
    /// It must have done its work.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:#?}");
        self
    }

    /// It must have failed with this code and one line that holds all these words.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not told: {self:#?}");
        }
        assert_eq!(self.err.trim_end().lines().count(), 1, "{self:#?}");
        self
    }

    /// What it printed must hold all these words.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.out.contains(word), "{word:?} is not told: {self:#?}");
        }
        self
    }

    /// Its output as one JSON object on one line.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{self:#?}");
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:#?}"))
    }

    /// Its output as one JSON object a line.
    #[track_caller]
    pub fn lines(&self) -> Vec<Value> {
        let line = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        self.out.lines().map(line).collect()
    }
}
