//! `lognode serve`.

use std::{io::IsTerminal, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use tracing_subscriber::EnvFilter;

use super::fail;
use crate::{
    config::{Config, LogFormat, LoggingConfig},
    node::Node,
    probe,
};

/// How to run the node. Flags win over the environment, the environment over the file.
#[derive(Args)]
#[command(after_help = "Examples:
  lognode serve --data-dir ./data
  lognode serve --config configs/lognode.toml
  LOGNODE_LOG__SEGMENT_BYTES=268435456 lognode serve

The node stops in order on SIGTERM or ctrl-c. It writes the addresses that it serves into DATA_DIR/lognode.addr and \
DATA_DIR/http.addr, so that port 0 can be used.")]
pub struct ServeArgs {
    /// Configuration file; see configs/lognode.toml for every key.
    #[arg(long, env = "LOGNODE_CONFIG")]
    config: Option<PathBuf>,
    /// Folder of logs and metadata.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Address of the native protocol.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long)]
    http_listen: Option<SocketAddr>,
    /// CPUs to pin a shard to, one each, such as 1 or 2,3.
    #[arg(long, value_delimiter = ',')]
    cpus: Option<Vec<usize>>,
    /// Start although the metadata is missing or damaged. Only if the wall clock was never set ahead.
    #[arg(long)]
    rebuild_metadata: bool,
}

/// Runs until SIGTERM or ctrl-c.
pub fn execute(args: ServeArgs) -> ExitCode {
    let mut config = match Config::load(args.config.as_deref()) {
        Ok(config) => config,
        Err(error) => return fail(2, error),
    };
    config.data_dir = args.data_dir.unwrap_or(config.data_dir);
    config.listen = args.listen.unwrap_or(config.listen);
    config.http_listen = args.http_listen.unwrap_or(config.http_listen);
    config.shards.cpus = args.cpus.unwrap_or(config.shards.cpus);
    if let Err(error) = config.check() {
        return fail(2, error);
    }
    if let Err(detail) = start_logging(&config.logging) {
        return fail(2, detail);
    }
    let shards = config.cpus().len();
    match probe::startup_check(&config.data_dir, shards, 64) {
        Ok(warnings) => warnings.iter().for_each(|warning| tracing::warn!("{warning}")),
        Err(error) => return fail(1, error),
    }
    let data_dir = config.data_dir.clone();
    // Signals are taken over before any thread starts, so that none of them is ended by one.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, format!("no runtime for signals: {error}")),
    };
    let signals = runtime.block_on(async { Signals::take() });
    let mut signals = match signals {
        Ok(signals) => signals,
        Err(error) => return fail(1, format!("signals can't be taken over: {error}")),
    };
    let node = match Node::start(config, args.rebuild_metadata) {
        Ok(node) => node,
        Err(error) => return fail(1, error),
    };
    let noted =
        note(&data_dir, "lognode.addr", node.address).and_then(|()| note(&data_dir, "http.addr", node.http_address));
    if let Err(error) = noted {
        tracing::warn!(%error, "the addresses could not be written down");
    }
    tracing::info!(address = %node.address, http = %node.http_address, shards, data_dir = %data_dir.display(), "lognode serves");
    let reason = runtime.block_on(signals.wait(&node));
    tracing::info!(reason, "stopping: connections are told, logs are closed");
    match node.stop() {
        Ok(()) if reason != BROKEN => {
            tracing::info!("stopped; nothing is left to recover");
            ExitCode::SUCCESS
        }
        Ok(()) => fail(1, "a thread of the node ended by itself"),
        Err(detail) => fail(1, detail),
    }
}

const BROKEN: &str = "a thread ended by itself";

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn take() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn wait(&mut self, node: &Node) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "ctrl-c",
                () = tokio::time::sleep(Duration::from_millis(500)) => if node.is_broken() { return BROKEN },
            }
        }
    }
}

fn note(data_dir: &std::path::Path, name: &str, address: SocketAddr) -> std::io::Result<()> {
    // Renamed into place, so that whoever waits for the file never reads half of it.
    let beside = data_dir.join(format!("{name}.new"));
    std::fs::write(&beside, address.to_string())?;
    std::fs::rename(beside, data_dir.join(name))
}

fn start_logging(logging: &LoggingConfig) -> Result<(), String> {
    let filter = EnvFilter::try_new(&logging.level)
        .map_err(|e| format!("logging.level {:?}: {e}; use info or lognode=debug,info", logging.level))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
        .with_writer(std::io::stderr);
    match logging.format {
        LogFormat::Text => lines.with_target(false).init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}
