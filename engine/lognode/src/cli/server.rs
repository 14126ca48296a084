//! What all commands share that talk to a server: its address, a runtime, and the signals that end them.

use std::{future::Future, time::Duration};

use clap::Args;
use lognode_client::ClientConfig;
use tokio::signal::unix::{Signal, SignalKind, signal};
use wire_format::limits::check_pchannel_name;

use super::fault::Fault;

/// Which server to talk to.
#[derive(Args)]
pub struct ServerArgs {
    /// Address of the LogNode, as host:port.
    #[arg(long, env = "LOGNODE_SERVER", default_value = "127.0.0.1:9400", value_name = "ADDR")]
    pub server: String,
}

impl ServerArgs {
    /// How to reach it. Everything is bounded: a server that is not there is told within 3 seconds, one that falls silent
    /// within 10.
    pub fn client(&self, command: &str) -> ClientConfig {
        ClientConfig::new(&self.server)
            .client_name(format!("lognode {command}"))
            .connect_timeout(Duration::from_secs(3))
            .request_deadline(Duration::from_secs(10))
    }
}

/// Runs a command to its end on a runtime of this thread.
pub fn run<T>(command: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| {
            Fault::Failed(format!(
                "no runtime: {e}; is the limit of open files too low? (ulimit -n)"
            ))
        })?;
    runtime.block_on(command)
}

/// SIGINT and SIGTERM, taken over so that a command can end in order.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes them over for the rest of the process. Needs a runtime.
    pub fn take() -> Result<Self, Fault> {
        let take = |kind| signal(kind).map_err(|e| Fault::Failed(format!("signals can't be taken over: {e}")));
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
        })
    }

    /// Ends with the next one. May be dropped and asked again.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Parses the name of a pchannel, for clap.
pub fn pchannel_name(text: &str) -> Result<String, String> {
    check_pchannel_name(text)
        .map(|()| text.to_owned())
        .map_err(|e| e.to_string())
}
