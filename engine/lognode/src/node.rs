//! A whole node: folder and metadata, shards, side threads, and their orderly end.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use crossbeam::channel::bounded;
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement};
use lognode_core::HybridClock;
use rustix::fs::{FlockOperation, flock};
use thiserror::Error;
use tokio::sync::Notify;
use wire_format::{Term, Timetick};

use crate::{
    acceptor::{Acceptor, shard_of},
    config::Config,
    handover::{Inbox, Seats},
    heartbeat, http,
    keeper::{self, Keeper},
    metadata::{Metadata, MetadataError},
    probe::{self, ClientFiles, Needs},
    shard::{Published, Shard, ShardSeed},
    time_source::{self, TimeSource},
};

/// Why a node does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The operating system refused.
    #[error("{action} {what}: {cause}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        what: String,
        /// What the system said.
        cause: io::Error,
    },
    /// Another process has the folder.
    #[error("data folder {0} is in use by another lognode; stop that one, or give this one a folder of its own")]
    InUse(PathBuf),
    /// The metadata can't be used.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A shard's thread or its ring can't be had.
    #[error("shard {shard} on CPU {cpu} can't start: {detail}; `lognode probe` tells what this machine lacks")]
    Executor {
        /// The shard.
        shard: usize,
        /// Its CPU.
        cpu: usize,
        /// What failed.
        detail: String,
    },
    /// A shard's thread ended while it opened its pchannels.
    #[error("a shard ended before it was ready; the log tells why, and `lognode probe` what this machine lacks")]
    Shard,
}

/// A running node. Ends by [`Node::stop`]; dropping it without leaves threads behind, so a process does it last.
pub struct Node {
    /// Where the native protocol is served.
    pub address: SocketAddr,
    /// Where HTTP is served.
    pub http_address: SocketAddr,
    stopping: Arc<AtomicBool>,
    stop_side: Arc<Notify>,
    shard_ended: Arc<AtomicBool>,
    shards: Vec<ExecutorJoinHandle<()>>,
    side: thread::JoinHandle<()>,
    heartbeat: thread::JoinHandle<()>,
    keeper: Keeper,
    keeper_thread: thread::JoinHandle<()>,
    _lock: File,
}

impl Node {
    /// Starts everything; when it returns, all existing pchannels are open and the port is served.
    pub fn start(mut config: Config, rebuild_metadata: bool) -> Result<Self, StartError> {
        // glommio opens a folder relative to no folder at all, so a relative path would fail there.
        config.data_dir = std::path::absolute(&config.data_dir).map_err(|cause| StartError::Io {
            action: "find data folder",
            what: config.data_dir.display().to_string(),
            cause,
        })?;
        let config = Arc::new(config);
        let lock = take_folder(&config.data_dir)?;
        let existing = existing_pchannels(&config.pchannels_dir())?;
        let source = TimeSource::from_environment();
        let (keeper, keeper_thread, life) = begin(&config, &source, !existing.is_empty(), rebuild_metadata)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let server_name = format!("lognode-{}", std::process::id());
        let cpus = config.cpus();
        let mut seeds = Vec::with_capacity(cpus.len());
        let count = Arc::new(AtomicUsize::new(existing.len()));
        for id in 0..cpus.len() {
            seeds.push(ShardSeed {
                id: id as u16,
                config: config.clone(),
                inbox: Inbox::default(),
                keeper: keeper.clone(),
                clock: life.clock,
                mark: life.mark,
                term: life.term,
                source: source.clone(),
                published: Arc::default(),
                stopping: stopping.clone(),
                server_name: server_name.clone(),
                existing: count.clone(),
            });
        }
        let published: Vec<Arc<Mutex<Published>>> = seeds.iter().map(|seed| seed.published.clone()).collect();
        let inboxes: Vec<Inbox> = seeds.iter().map(|seed| seed.inbox.clone()).collect();
        let watched = inboxes.iter().cloned().zip(published.iter().cloned()).collect();
        let heartbeat =
            heartbeat::start(watched, stopping.clone()).map_err(|cause| thread_error("heartbeat", cause))?;
        let ready = Arc::new(AtomicBool::new(false));
        let stop_side = Arc::new(Notify::new());
        let files = client_files(&config, existing.len());
        let acceptor = Acceptor {
            inboxes,
            stop: stop_side.clone(),
            strangers: files.strangers,
            seats: Seats::new(files.clients),
            server_name,
        };
        let shown = http::Shown {
            published,
            keeper: keeper.clone(),
            ready: ready.clone(),
            started: std::time::Instant::now(),
        };
        let (side, address, http_address) = start_side(&config, acceptor, shown)?;
        let shard_ended = Arc::new(AtomicBool::new(false));
        let shards = start_shards(&config, seeds, &cpus, &existing, &shard_ended)?;
        ready.store(true, Ordering::Release);
        Ok(Self {
            address,
            http_address,
            stopping,
            stop_side,
            shard_ended,
            shards,
            side,
            heartbeat,
            keeper,
            keeper_thread,
            _lock: lock,
        })
    }

    /// Ends everything in order: connections hear goodbye, logs are closed, nothing is left to recover.
    pub fn stop(self) -> Result<(), String> {
        self.stopping.store(true, Ordering::Release);
        self.stop_side.notify_one();
        let mut failed = None;
        for (shard, handle) in self.shards.into_iter().enumerate() {
            if let Err(error) = handle.join() {
                failed = Some(format!("shard {shard} ended badly: {error}"));
            }
        }
        self.keeper.stop();
        for (name, handle) in [
            ("keeper", self.keeper_thread),
            ("side", self.side),
            ("heartbeat", self.heartbeat),
        ] {
            if handle.join().is_err() {
                failed = Some(format!("the {name} thread ended badly"));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether a thread has ended by itself, which only a fault can cause.
    pub fn is_broken(&self) -> bool {
        self.shard_ended.load(Ordering::Acquire)
            || self.side.is_finished()
            || self.heartbeat.is_finished()
            || self.keeper_thread.is_finished()
    }
}

/// Tells that a shard's thread ends, by a panic too (in a build that unwinds).
struct EndNote(Arc<AtomicBool>);

impl Drop for EndNote {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What a life of the process begins with.
struct Life {
    clock: HybridClock,
    mark: Timetick,
    term: Term,
}

fn begin(
    config: &Config,
    source: &TimeSource,
    has_logs: bool,
    rebuild: bool,
) -> Result<(Keeper, thread::JoinHandle<()>, Life), StartError> {
    let mut metadata = Metadata::open(&config.data_dir, has_logs, rebuild)?;
    let state = metadata.state();
    let reading = source.read();
    let clock = HybridClock::start(reading, time_source::boot_id(), state.clock, state.mark, Timetick::ZERO);
    // After a rebuild no earlier term is known; the wall clock's seconds are larger than any count of starts.
    let at_least = if rebuild {
        Term(reading.wall.get() / 1_000)
    } else {
        Term::ZERO
    };
    let term = keeper::begin_life(&mut metadata, clock.stored(), at_least)?;
    let (keeper, thread) = Keeper::start(metadata).map_err(|cause| thread_error("keeper", cause))?;
    Ok((
        keeper,
        thread,
        Life {
            clock,
            mark: state.mark,
            term,
        },
    ))
}

/// How many connections may be open without taking files from the logs.
fn client_files(config: &Config, pchannels: usize) -> ClientFiles {
    let needs = Needs {
        pchannels: pchannels.max(probe::DEFAULT_PCHANNELS),
        ..Needs::new(config.cpus().len())
    };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let wanted = config.limits.connections;
    let files = ClientFiles::share(&needs, limit, wanted);
    if files.clients < wanted {
        tracing::warn!(
            connections = files.clients,
            "fewer connections than limits.connections = {wanted} are served, since the limit of open files is {}: raise it with \
             ulimit -n or LimitNOFILE=",
            limit.unwrap_or(u64::MAX)
        );
    }
    files
}

fn thread_error(what: &str, cause: io::Error) -> StartError {
    StartError::Io {
        action: "start thread",
        what: what.to_owned(),
        cause,
    }
}

/// Makes the data folder ours alone.
fn take_folder(data_dir: &Path) -> Result<File, StartError> {
    let error = |action, cause| StartError::Io {
        action,
        what: data_dir.display().to_string(),
        cause,
    };
    fs::create_dir_all(data_dir.join("pchannels")).map_err(|cause| error("create data folder", cause))?;
    if let Some(parent) = data_dir.parent() {
        // Where the parent may only be entered, whoever made the folder in it has seen to its name.
        let _ = File::open(parent).and_then(|parent| parent.sync_all());
    }
    // The folder itself is locked: a lock file can be removed by whoever thinks it is stale.
    let lock = File::open(data_dir).map_err(|cause| error("open data folder", cause))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StartError::InUse(data_dir.to_owned())),
        Err(errno) => Err(error("lock", errno.into())),
    }
}

fn existing_pchannels(folder: &Path) -> Result<Vec<String>, StartError> {
    let error = |cause| StartError::Io {
        action: "list",
        what: folder.display().to_string(),
        cause,
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(error)? {
        let entry = entry.map_err(error)?;
        let is_folder = entry.path().is_dir();
        match entry.file_name().into_string() {
            Ok(name) if is_folder && wire_format::limits::check_pchannel_name(&name).is_ok() => names.push(name),
            other => tracing::warn!(name = ?other, "not a pchannel; left alone"),
        }
    }
    names.sort();
    Ok(names)
}

/// Starts the side thread: accept, hello, HTTP. The ports are bound when it returns.
fn start_side(
    config: &Config,
    acceptor: Acceptor,
    shown: http::Shown,
) -> Result<(thread::JoinHandle<()>, SocketAddr, SocketAddr), StartError> {
    let bind = |address: SocketAddr| {
        let listener = std::net::TcpListener::bind(address).and_then(|l| l.set_nonblocking(true).map(|()| l));
        let listener = listener.map_err(|cause| StartError::Io {
            action: "listen on",
            what: address.to_string(),
            cause,
        })?;
        let local = listener.local_addr().map_err(|cause| StartError::Io {
            action: "listen on",
            what: address.to_string(),
            cause,
        })?;
        Ok::<_, StartError>((listener, local))
    };
    let (native, address) = bind(config.listen)?;
    let (web, http_address) = bind(config.http_listen)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| thread_error("side", cause))?;
    let side = thread::Builder::new().name("side".into()).spawn(move || {
        runtime.block_on(async move {
            let listeners = tokio::net::TcpListener::from_std(native)
                .and_then(|native| tokio::net::TcpListener::from_std(web).map(|web| (native, web)));
            match listeners {
                Ok((native, web)) => {
                    let pages = tokio::spawn(http::serve(web, Arc::new(shown)));
                    Arc::new(acceptor).run(native).await;
                    pages.abort();
                }
                Err(error) => tracing::error!(%error, "the listening sockets can't be used"),
            }
        });
    });
    Ok((
        side.map_err(|cause| thread_error("side", cause))?,
        address,
        http_address,
    ))
}

/// Starts the shards, waits until each has opened its pchannels.
fn start_shards(
    config: &Config,
    seeds: Vec<ShardSeed>,
    cpus: &[usize],
    existing: &[String],
    ended: &Arc<AtomicBool>,
) -> Result<Vec<ExecutorJoinHandle<()>>, StartError> {
    let count = seeds.len();
    let (told, outcome) = bounded(count);
    let mut handles = Vec::with_capacity(count);
    for (shard, (seed, &cpu)) in seeds.into_iter().zip(cpus).enumerate() {
        let ended = ended.clone();
        let mine: Vec<String> = existing
            .iter()
            .filter(|name| shard_of(name, count) == shard)
            .cloned()
            .collect();
        let told = told.clone();
        let handle = LocalExecutorBuilder::new(Placement::Fixed(cpu))
            .name(&format!("shard-{shard}"))
            .io_memory(config.shards.io_memory_bytes as usize)
            .spin_before_park(std::time::Duration::from_micros(config.shards.spin_us))
            .spawn(move || async move {
                let _note = EndNote(ended);
                let ready = move || {
                    // Only fails if the node gave up waiting.
                    let _ = told.send(());
                };
                Shard::new(&seed).run(mine, ready).await;
            })
            .map_err(|error| StartError::Executor {
                shard,
                cpu,
                detail: error.to_string(),
            })?;
        handles.push(handle);
    }
    drop(told);
    for _ in 0..count {
        outcome.recv().map_err(|_| StartError::Shard)?;
    }
    Ok(handles)
}
