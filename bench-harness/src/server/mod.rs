//! The server under test: the real `lognode` binary as a child process in a folder of its own.

mod metrics_page;
mod process_figures;

use std::{
    ffi::OsStr,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub use metrics_page::Metrics;
pub use process_figures::{CpuTimes, WrittenBytes, machine_busy_s};

use crate::{
    afterwards::Afterwards,
    error::{BenchError, During},
};

/// Longest wait for the addresses of a started server; a recovery may take a while.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// Longest wait for an orderly end.
const STOP_PATIENCE: Duration = Duration::from_secs(60);
/// Shards publish their counters four times a second; after this the figures include everything.
const PUBLISHED_WITHIN: Duration = Duration::from_millis(600);
/// How many lines of the server's log an error repeats.
const LOG_LINES: usize = 15;
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// How servers are started.
#[derive(Debug, Clone)]
pub struct ServerPlan {
    /// The binary.
    pub binary: PathBuf,
    /// CPU of its one shard.
    pub cpu: usize,
    /// Settings as environment variables. One that stands in our own environment already wins over the value here.
    pub settings: Vec<(&'static str, String)>,
}

/// Where the binary is: what was asked for, or the file `lognode` beside the running program.
///
/// # Errors
/// When there is no such file; the text says what to do.
pub fn find_binary(asked: Option<&Path>) -> Result<PathBuf, BenchError> {
    let path = match asked {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()
            .during("path of this program")?
            .with_file_name("lognode"),
    };
    if path.is_file() {
        return Ok(path);
    }
    Err(BenchError::Options(format!(
        "there is no lognode binary at {}: build it with `cargo build --release -p lognode`, or name one by --lognode or LOGNODE_BIN",
        path.display()
    )))
}

/// A new empty folder in `parent`, which must be on a disk.
///
/// # Errors
/// When `parent` is in memory (tmpfs) or can't be written.
pub fn fresh_folder(parent: &Path) -> Result<TempDir, BenchError> {
    let step = format!("folder for the server's data in {}", parent.display());
    let kind = rustix::fs::statfs(parent).during(&step)?.f_type;
    if i128::from(kind) == i128::from(TMPFS_MAGIC) {
        return Err(BenchError::Options(format!(
            "{} is in memory (tmpfs), where nothing is durable: give a folder on a disk by --dir",
            parent.display()
        )));
    }
    tempfile::Builder::new()
        .prefix("lognode-bench.")
        .tempdir_in(parent)
        .during(&step)
}

/// A running server. Killed when dropped, unless it was stopped, and when this program is ended from outside.
#[derive(Debug)]
pub struct Server {
    /// Dropped by hand, before the process id may belong to someone else.
    guard: Option<Afterwards>,
    child: Child,
    log: PathBuf,
    /// Address of the native protocol.
    pub address: SocketAddr,
    http: SocketAddr,
}

impl Server {
    /// Starts the server on `data_dir` and waits until it serves. Its log goes to the file `server.log` there.
    ///
    /// Must not be called on a pinned thread: the server would inherit its one CPU for the threads that it does not pin.
    ///
    /// # Errors
    /// When it can't be started or does not serve within two minutes; the last lines of its log are in the text.
    pub fn start(plan: &ServerPlan, data_dir: &Path) -> Result<Self, BenchError> {
        let step = format!("start of {}", plan.binary.display());
        let log = data_dir.join("server.log");
        for name in ["lognode.addr", "http.addr"] {
            remove_if_there(&data_dir.join(name)).during(&step)?;
        }
        let log_file = File::options().create(true).append(true).open(&log).during(&step)?;
        let settings = plan
            .settings
            .iter()
            .filter(|(name, _)| std::env::var_os(name).is_none());
        let child = Command::new(&plan.binary)
            .arg("serve")
            .args([OsStr::new("--data-dir"), data_dir.as_os_str()])
            .args(["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"])
            .args(["--cpus", &plan.cpu.to_string()])
            .envs(settings.map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log_file)
            .spawn()
            .during(&step)?;
        let guard = Afterwards::new("kill -KILL \"$1\"", child.id().to_string().as_ref());
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self {
            guard: None,
            child,
            log,
            address: nowhere,
            http: nowhere,
        };
        server.guard = Some(guard?);
        server.address = server.wait_for_address(&data_dir.join("lognode.addr"))?;
        server.http = server.wait_for_address(&data_dir.join("http.addr"))?;
        Ok(server)
    }

    fn wait_for_address(&mut self, file: &Path) -> Result<SocketAddr, BenchError> {
        let end = Instant::now() + START_PATIENCE;
        loop {
            if let Some(address) = fs::read_to_string(file).ok().and_then(|text| text.parse().ok()) {
                return Ok(address);
            }
            if let Some(status) = self.child.try_wait().during("look at the server")? {
                return Err(self.failure(&format!("ended with {status} before it served")));
            }
            if Instant::now() > end {
                return Err(self.failure(&format!("did not serve within {} s", START_PATIENCE.as_secs())));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// `error`, or the end of the server if that is what lies behind it; with the last lines of its log.
    pub fn explain(&mut self, error: BenchError) -> BenchError {
        // A server that just died may not be seen as dead in the same moment as its sockets close.
        thread::sleep(Duration::from_millis(100));
        match self.child.try_wait() {
            Ok(Some(status)) => self.failure(&format!("ended with {status} in the middle: {error}")),
            _ if matches!(error, BenchError::Check(_)) => error,
            _ => self.failure(&error.to_string()),
        }
    }

    fn failure(&self, what: &str) -> BenchError {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n    ");
        BenchError::Server(format!("{what}\n  its log ends with:\n    {last}"))
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time used so far.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn cpu(&self) -> Result<CpuTimes, BenchError> {
        process_figures::cpu_times(self.pid())
    }

    /// Largest resident memory so far, in bytes.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn rss_peak_bytes(&self) -> Result<u64, BenchError> {
        process_figures::rss_peak_bytes(self.pid())
    }

    /// Bytes that the process caused to be written to a disk so far, the log, metadata and prepared files together.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn written_bytes(&self) -> Result<WrittenBytes, BenchError> {
        process_figures::written_bytes(self.pid())
    }

    /// The metrics page, after what was counted until now was published.
    ///
    /// # Errors
    /// When the page can't be read.
    pub fn metrics(&self) -> Result<Metrics, BenchError> {
        thread::sleep(PUBLISHED_WITHIN);
        metrics_page::read(self.http)
    }

    /// Ends it in order, by SIGTERM.
    ///
    /// # Errors
    /// When it does not end within a minute (it is killed then) or ends with a failure.
    pub fn stop(mut self) -> Result<(), BenchError> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| BenchError::Server("has no process id".to_owned()))?;
        kill_process(pid, Signal::TERM).during("SIGTERM to the server")?;
        let end = Instant::now() + STOP_PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().during("look at the server")? {
                self.guard = None;
                return self.judge_end(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(self.failure(&format!("did not end within {} s of SIGTERM", STOP_PATIENCE.as_secs())))
    }

    fn judge_end(&self, status: ExitStatus) -> Result<(), BenchError> {
        if status.success() {
            return Ok(());
        }
        Err(self.failure(&format!("ended with {status} after SIGTERM")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.guard = None;
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_at_once_is_told_with_its_log() {
        let dir = fresh_folder(Path::new(".")).unwrap();
        let plan = ServerPlan {
            binary: "/bin/false".into(),
            cpu: 0,
            settings: Vec::new(),
        };
        let error = Server::start(&plan, dir.path()).unwrap_err().to_string();
        assert!(error.contains("before it served"), "{error}");
    }

    #[test]
    fn a_missing_binary_and_a_folder_in_memory_are_named() {
        let error = find_binary(Some(Path::new("/nowhere/lognode")))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("/nowhere/lognode") && error.contains("LOGNODE_BIN"),
            "{error}"
        );
        if Path::new("/dev/shm").is_dir() {
            let error = fresh_folder(Path::new("/dev/shm")).unwrap_err().to_string();
            assert!(error.contains("--dir"), "{error}");
        }
    }
}
