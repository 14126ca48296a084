//! A real `lognode serve` process for tests: started on free ports, killed or stopped at will, ended with the test.
#![allow(dead_code)] // each test file uses its own part

pub mod book;
pub mod command;
pub mod raw;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// A folder on the disk (not tmpfs: O_DIRECT) that vanishes with the value, unless the test failed.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{n}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("kept for a look: {}", self.0.display());
        } else {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// How to start the server.
#[derive(Clone, Default)]
pub struct Options {
    pub env: Vec<(String, String)>,
    pub listen: Option<String>,
    pub args: Vec<String>,
    /// Hard limit of open files.
    pub open_files: Option<u32>,
}

impl Options {
    pub fn env(mut self, key: &str, value: impl ToString) -> Self {
        self.env.push((key.to_owned(), value.to_string()));
        self
    }

    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    pub fn open_files(mut self, limit: u32) -> Self {
        self.open_files = Some(limit);
        self
    }

    /// Small segments and a small memory, so that little data reaches every path.
    pub fn small() -> Self {
        Self::default()
            .env("LOGNODE_LIMITS__BATCH_BYTES", 256 << 10)
            .env("LOGNODE_LOG__SEGMENT_BYTES", 1 << 20)
            .env("LOGNODE_LOG__READ_AHEAD_BYTES", 64 << 10)
            .env("LOGNODE_LOG__BLOCK_BYTES", 64 << 10)
            .env("LOGNODE_SHARDS__MEMORY_BYTES", 4 << 20)
    }
}

/// Sends a signal without the `kill` program, which a small machine need not have.
pub fn send_signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A running server.
pub struct Server {
    child: Child,
    pub data_dir: PathBuf,
    pub address: String,
    pub http: String,
}

impl Server {
    pub fn start(data_dir: &Path) -> Self {
        Self::start_with(data_dir, &Options::default())
    }

    pub fn command(data_dir: &Path, options: &Options) -> Command {
        let binary = env!("CARGO_BIN_EXE_lognode");
        let mut command = match options.open_files {
            None => Command::new(binary),
            Some(limit) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\""), binary]);
                shell
            }
        };
        command
            .arg("serve")
            .arg("--data-dir")
            .arg(data_dir)
            .args([
                "--listen",
                options.listen.as_deref().unwrap_or("127.0.0.1:0"),
                "--http-listen",
                "127.0.0.1:0",
            ])
            .args(&options.args)
            .envs(options.env.iter().map(|(k, v)| (k, v)));
        command
    }

    /// Starts and waits until it serves. Panics with the server's log if it does not.
    pub fn start_with(data_dir: &Path, options: &Options) -> Self {
        fs::create_dir_all(data_dir).unwrap();
        for name in ["lognode.addr", "http.addr"] {
            let _ = fs::remove_file(data_dir.join(name));
        }
        let log_path = data_dir.with_extension("log");
        let log = fs::File::options().create(true).append(true).open(&log_path).unwrap();
        let child = Self::command(data_dir, options)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Self {
            child,
            data_dir: data_dir.to_owned(),
            address: String::new(),
            http: String::new(),
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let read = |name: &str| fs::read_to_string(data_dir.join(name)).ok();
            if let (Some(address), Some(http)) = (read("lognode.addr"), read("http.addr")) {
                (server.address, server.http) = (address, http);
                return server;
            }
            if let Some(status) = server.child.try_wait().unwrap() {
                panic!(
                    "the server ended at its start: {status}\n{}",
                    fs::read_to_string(&log_path).unwrap_or_default()
                );
            }
            assert!(
                Instant::now() < deadline,
                "the server does not serve\n{}",
                fs::read_to_string(&log_path).unwrap_or_default()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts and kills soon after, most likely in the middle of its recovery.
    pub fn start_and_kill(data_dir: &Path, options: &Options, after: Duration) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(data_dir.with_extension("log"))
            .unwrap();
        let mut command = Self::command(data_dir, options);
        let mut child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A start that must fail: its exit code and what it said.
    pub fn fails(data_dir: &Path, options: &Options) -> (i32, String) {
        let mut command = Self::command(data_dir, options);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!("the server neither fails nor ends: {:?}", child.wait_with_output());
            }
            thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap_or(-1), said)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        send_signal(self.pid(), signal);
    }

    /// SIGTERM; the exit must be in order.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(
                    status.success(),
                    "the server did not stop in order: {status}\n{}",
                    self.log()
                );
                return;
            }
            assert!(Instant::now() < deadline, "the server does not stop\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.data_dir.with_extension("log")).unwrap_or_default()
    }

    /// A page of the HTTP port.
    pub fn get(&self, path: &str) -> (u16, String) {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&self.http).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: lognode\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        (
            status,
            answer
                .split_once("\r\n\r\n")
                .map(|(_, body)| body.to_owned())
                .unwrap_or_default(),
        )
    }

    /// The sum of a metric over its labels.
    pub fn gauge(&self, name: &str) -> i64 {
        let (_, page) = self.get("/metrics");
        let lines = page.lines().filter(|l| {
            let rest = l.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']) || rest.starts_with("_total"))
        });
        lines
            .filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
            .sum::<f64>() as i64
    }

    /// The same for what only counts up.
    pub fn metric(&self, name: &str) -> u64 {
        self.gauge(name).unsigned_abs()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
