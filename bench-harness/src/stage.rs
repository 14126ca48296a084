//! What all scenarios stand on: folder, server, CPUs, raw limits, repeated runs.

use std::{
    num::NonZeroU64,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::thread::set_current_timer_slack;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    afterwards::Afterwards,
    error::{BenchError, During},
    load::{Load, Pace, Sample},
    options::{LoadPlan, StageArgs},
    raw::{self, Cores, RawPlan, RawReport, pin_to},
    report::RunFigures,
    server::{CpuTimes, Server, ServerPlan, find_binary, fresh_folder, machine_busy_s},
};

/// Bytes of an ack with its frame header.
const ACK_FRAME_BYTES: usize = 40;
/// What each pchannel keeps where old messages are of no use: its segment files are then recycled, as in a log that has
/// run for a while.
const KEPT_BYTES: u64 = 256 << 20;
/// Full blocks in flight that the server's configuration allows by default.
const SERVER_DEPTH: usize = 8;
/// What the raw limits tell of themselves.
const LIMIT_STEPS: u32 = 7;

/// The place of one scenario. The server's folder vanishes with it.
pub struct Stage<'a> {
    /// The options.
    pub args: &'a StageArgs,
    /// Seconds of each run.
    pub seconds: f64,
    /// How many runs.
    pub runs: u32,
    /// The CPUs of server and client.
    pub cores: Cores,
    /// How servers are started.
    pub plan: ServerPlan,
    /// The raw limits, if they were measured.
    pub limits: Option<RawReport>,
    /// Dropped before the folder, which is then removed in order.
    _cleanup: Option<Afterwards>,
    folder: TempDir,
    progress: ProgressBar,
}

/// What a scenario wants of its stage.
#[derive(Debug, Clone, Copy)]
pub struct Wishes {
    /// Whether old messages stay; else each pchannel keeps about 256 MiB.
    pub keep_all: bool,
    /// Size of a segment file, where the server's default will not do.
    pub segment_bytes: Option<u64>,
    /// Seconds of a run, if not asked for.
    pub seconds: f64,
    /// Runs, if not asked for.
    pub runs: u32,
    /// Steps that the progress bar shows for each run, and around them.
    pub steps: (u32, u32),
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            keep_all: false,
            segment_bytes: None,
            seconds: 5.0,
            runs: 3,
            steps: (1, 3),
        }
    }
}

impl<'a> Stage<'a> {
    /// Finds the binary, makes the folder and, unless turned off, measures the raw limits for the connections and sizes of
    /// `load`.
    ///
    /// # Errors
    /// When one of it is not possible.
    pub fn new(args: &'a StageArgs, load: &LoadPlan, wishes: Wishes) -> Result<Self, BenchError> {
        let binary = find_binary(args.lognode.as_deref())?;
        let dir = match &args.dir {
            Some(dir) => dir.clone(),
            None => own_folder()?,
        };
        let mut folder = fresh_folder(&dir)?;
        folder.disable_cleanup(args.keep);
        if args.keep {
            eprintln!("the server's data and log stay in {}", folder.path().display());
        }
        let cleanup = (!args.keep).then(|| {
            // A moment later, so that the server, which ends just then, writes nothing behind it.
            Afterwards::new("sleep 1; rm -rf -- \"$1\"", folder.path().as_os_str())
        });
        let cleanup = cleanup.transpose()?;
        // The server takes the last CPU, since the kernel and everything else tend to use the first.
        let picked = Cores::pick()?;
        let cores = Cores {
            server: picked.client,
            client: picked.server,
        };
        let mut settings = Vec::new();
        if !wishes.keep_all {
            settings.push(("LOGNODE_RETENTION__BYTES_PER_PCHANNEL", KEPT_BYTES.to_string()));
            settings.push(("LOGNODE_RETENTION__INTERVAL_S", "1".to_owned()));
        }
        if let Some(bytes) = wishes.segment_bytes {
            settings.push(("LOGNODE_LOG__SEGMENT_BYTES", bytes.to_string()));
        }
        let runs = args.runs.unwrap_or(wishes.runs);
        let steps = runs * wishes.steps.0 + wishes.steps.1 + if args.no_limits { 0 } else { LIMIT_STEPS };
        let progress = ProgressBar::new(steps.into());
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {msg}") {
            progress.set_style(style);
        }
        progress.enable_steady_tick(Duration::from_millis(250));
        let mut stage = Self {
            args,
            seconds: args.seconds.unwrap_or(wishes.seconds),
            runs,
            cores,
            plan: ServerPlan {
                binary,
                cpu: cores.server,
                settings,
            },
            limits: None,
            _cleanup: cleanup,
            folder,
            progress,
        };
        if !args.no_limits {
            stage.limits = Some(stage.measure_limits(&dir, load)?);
        }
        Ok(stage)
    }

    fn measure_limits(&self, dir: &Path, load: &LoadPlan) -> Result<RawReport, BenchError> {
        let body = usize::try_from(load.shape.body_bytes()).unwrap_or(usize::MAX);
        let mut plan = RawPlan::new(dir.to_owned(), Duration::from_secs_f64(self.args.limit_seconds))?;
        plan.cores = self.cores;
        // What group commit can bring together is a block of the same run, and at most 1 MiB.
        let together = body.saturating_mul(load.connections).saturating_mul(load.window);
        plan.block_bytes = together.clamp(1, 1 << 20).next_multiple_of(4_096);
        plan.depth = SERVER_DEPTH;
        plan.file_bytes = self.args.limit_file_mib << 20;
        plan.connections = load.connections;
        plan.request_bytes = body;
        plan.reply_bytes = ACK_FRAME_BYTES;
        Ok(raw::measure(&plan, &mut |step| self.step(step))?)
    }

    /// Tells what begins, on a terminal.
    pub fn step(&self, what: &str) {
        self.progress.set_message(what.to_owned());
        self.progress.inc(1);
    }

    /// Takes the progress bar off the screen.
    pub fn end_progress(&self) {
        self.progress.finish_and_clear();
    }

    /// The server's data folder.
    pub fn data_dir(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the server on the stage's folder; a second one finds what the first left.
    ///
    /// # Errors
    /// See [`Server::start`].
    pub fn start_server(&self) -> Result<Server, BenchError> {
        self.step("starting the server");
        Server::start(&self.plan, self.data_dir())
    }

    /// Runs `load` once on the client's CPU.
    ///
    /// # Errors
    /// See [`Load::run`]; a run without a single sample is an error too.
    pub fn run(&self, load: &mut Load, pace: Pace, seconds: f64) -> Result<Sample, BenchError> {
        self.on_client_cpu(|| load.run(pace, Duration::from_secs_f64(seconds)))
    }

    /// Calls `work` on a thread that is pinned to the client's CPU.
    ///
    /// # Errors
    /// That of `work`, or when the CPU can't be used.
    pub fn on_client_cpu<T: Send>(&self, work: impl FnOnce() -> Result<T, BenchError> + Send) -> Result<T, BenchError> {
        let cpu = self.cores.client;
        thread::scope(|scope| {
            let thread = thread::Builder::new()
                .name("bench-client".to_owned())
                .spawn_scoped(scope, move || {
                    pin_to(cpu)?;
                    // A sleep ends when it should, not up to 50 us later.
                    set_current_timer_slack(NonZeroU64::new(1)).during("timer slack of the client")?;
                    work()
                });
            thread
                .during("client thread")?
                .join()
                .map_err(|_| BenchError::Check("the client's thread panicked".to_owned()))?
        })
    }

    /// One measured run, with the server's CPU time.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub fn measured_run(
        &self,
        server: &Server,
        load: &mut Load,
        plan: &LoadPlan,
        pace: Pace,
    ) -> Result<(RunFigures, Sample), BenchError> {
        let meter = CpuMeter::start(server)?;
        let sample = self.run(load, pace, self.seconds)?;
        let cpu = meter.stop(server, &sample)?;
        if sample.window_messages == 0 {
            return Err(BenchError::Check(format!(
                "no message was acked within the {} s of a run",
                self.seconds
            )));
        }
        let figures = RunFigures {
            messages_per_s: sample.messages_per_s(),
            bytes_per_s: sample.messages_per_s() * plan.shape.message_bytes as f64,
            ack_us: sample.acks.percentiles(),
            samples: sample.acks.count(),
            server_cpu_ns_per_message: cpu.server_s * 1e9 / sample.messages as f64,
            server_cpu_share: cpu.server_s / cpu.elapsed_s,
            server_busiest_thread_share: cpu.busiest_thread_s / cpu.elapsed_s,
            client_cpu_share: sample.client_cpu_s / cpu.elapsed_s,
            others_cpu_share: cpu.others_s / cpu.elapsed_s,
        };
        Ok((figures, sample))
    }

    /// What was used, for the report.
    pub fn parameters(&self, load: &LoadPlan) -> Value {
        let settings: serde_json::Map<String, Value> = self
            .plan
            .settings
            .iter()
            .map(|(name, value)| {
                let ours = std::env::var(name).unwrap_or_else(|_| value.clone());
                ((*name).to_owned(), ours.into())
            })
            .collect();
        json!({
            "lognode": self.plan.binary,
            "dir": self.folder.path().parent(),
            "server_cpu": self.cores.server,
            "client_cpu": self.cores.client,
            "server_settings": settings,
            "message_bytes": load.shape.message_bytes,
            "batch_messages": load.shape.messages,
            "connections": load.connections,
            "window_batches": load.window,
            "pchannels": load.pchannels,
            "vchannels_per_pchannel": load.shape.vchannels,
            "producer_id": 0,
            "deduplication": "not asked for (producer id 0)",
            "seconds": self.seconds,
            "warmup_s": self.args.warmup,
            "runs": self.runs,
        })
    }
}

/// Who uses the CPUs, from its start to its stop.
pub struct CpuMeter {
    server: CpuTimes,
    machine_s: f64,
    begin: Instant,
}

/// CPU seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuUse {
    /// By the clock.
    pub elapsed_s: f64,
    /// Of the whole server.
    pub server_s: f64,
    /// Of its busiest thread.
    pub busiest_thread_s: f64,
    /// Of everything but the server and the client.
    pub others_s: f64,
}

impl CpuMeter {
    /// Begins.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn start(server: &Server) -> Result<Self, BenchError> {
        Ok(Self {
            server: server.cpu()?,
            machine_s: machine_busy_s()?,
            begin: Instant::now(),
        })
    }

    /// What was used since, with the client's share out of `sample`.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn stop(self, server: &Server, sample: &Sample) -> Result<CpuUse, BenchError> {
        let elapsed_s = self.begin.elapsed().as_secs_f64();
        let cpu = server.cpu()?;
        let server_s = cpu.total_s - self.server.total_s;
        let all_s = machine_busy_s()? - self.machine_s;
        Ok(CpuUse {
            elapsed_s,
            server_s,
            busiest_thread_s: cpu.busiest_thread_since(&self.server),
            others_s: (all_s - server_s - sample.client_cpu_s).max(0.0),
        })
    }
}

fn own_folder() -> Result<PathBuf, BenchError> {
    let program = std::env::current_exe().during("path of this program")?;
    Ok(program.parent().map_or_else(|| ".".into(), Path::to_owned))
}
