//! The options of the scenarios.

use std::path::PathBuf;

use clap::Args;

use crate::{error::BenchError, load::BatchShape};

/// Options of every scenario.
#[derive(Debug, Clone, Args)]
pub struct StageArgs {
    /// The lognode binary [default: `lognode` beside this program].
    #[arg(long, env = "LOGNODE_BIN", value_name = "PATH")]
    pub lognode: Option<PathBuf>,
    /// Folder on the disk to measure; the server's data lives below it for the time of the run [default: where this program lies].
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
    /// Seconds of each run [default: 5; 60 for `idle`].
    #[arg(long, value_parser = positive_seconds)]
    pub seconds: Option<f64>,
    /// Seconds of load before the first run.
    #[arg(long, default_value_t = 2.0, value_parser = positive_seconds)]
    pub warmup: f64,
    /// Runs; the median of each figure is reported [default: 3; 1 for `idle`].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Leave the raw limits of the machine unmeasured.
    #[arg(long)]
    pub no_limits: bool,
    /// Seconds for each of the seven raw limits.
    #[arg(long, default_value_t = 1.0, value_parser = positive_seconds)]
    pub limit_seconds: f64,
    /// Size of the raw limits' scratch file in MiB.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub limit_file_mib: u64,
    /// Print one JSON object as the last line instead of text.
    #[arg(long)]
    pub json: bool,
    /// Leave the server's data and log in their folder.
    #[arg(long)]
    pub keep: bool,
}

/// What is sent over which connections.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Bytes of a message.
    #[arg(long, default_value_t = 1_024)]
    pub size: usize,
    /// Messages of a batch [default: what makes a record of 1 MiB; 1 for `latency`, 100 for `tail`].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: Option<u32>,
    /// Producing connections, spread over the pchannels [default: one for each pchannel].
    #[arg(long)]
    pub connections: Option<usize>,
    /// Batches in flight on each connection while in a closed loop [default: 1 with more than one connection for each
    /// pchannel, else about 8 MiB].
    #[arg(long)]
    pub window: Option<usize>,
    /// pchannels to append to.
    #[arg(long, default_value_t = 1)]
    pub pchannels: usize,
    /// vchannels that the messages of a pchannel go round [default: 4; 10 for `tail`].
    #[arg(long)]
    pub vchannels: Option<u32>,
}

/// [`LoadArgs`] with every default filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadPlan {
    /// What a batch looks like.
    pub shape: BatchShape,
    /// Producing connections.
    pub connections: usize,
    /// Batches in flight on each.
    pub window: usize,
    /// pchannels.
    pub pchannels: usize,
}

/// Bytes in flight on a lone connection.
const WINDOW_BYTES: usize = 8 << 20;

impl LoadArgs {
    /// Fills in the defaults; `batch` and `vchannels` are those of the scenario.
    ///
    /// # Errors
    /// When a count is 0 or out of all proportion.
    pub fn plan(&self, batch: Option<u32>, vchannels: u32) -> Result<LoadPlan, BenchError> {
        let fault = |text: &str| Err(BenchError::Options(text.to_owned()));
        let connections = self.connections.unwrap_or(self.pchannels);
        if self.size == 0 || self.size > 4 << 20 {
            return fault("--size: use 1 to 4194304");
        }
        if !(1..=999).contains(&self.pchannels) {
            return fault("--pchannels: use 1 to 999");
        }
        if !(self.pchannels..=60_000).contains(&connections) {
            return fault("--connections: use at least one for each pchannel, and 60000 at most");
        }
        let vchannels = self.vchannels.unwrap_or(vchannels);
        if !(1..=4_096).contains(&vchannels) {
            return fault("--vchannels: use 1 to 4096");
        }
        let messages = self.batch.or(batch);
        let shape = BatchShape {
            message_bytes: self.size,
            messages: messages.unwrap_or_else(|| BatchShape::messages_in(1 << 20, self.size)),
            vchannels,
        };
        let deep = WINDOW_BYTES / usize::try_from(shape.body_bytes()).unwrap_or(usize::MAX);
        let window = if connections > self.pchannels {
            1
        } else {
            deep.clamp(2, 256)
        };
        let window = self.window.unwrap_or(window);
        if !(1..=65_536).contains(&window) {
            return fault("--window: use 1 to 65536");
        }
        Ok(LoadPlan {
            shape,
            connections,
            window,
            pchannels: self.pchannels,
        })
    }
}

fn positive_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("a number of seconds above 0 and up to 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(batch: Option<u32>, connections: Option<usize>) -> LoadArgs {
        LoadArgs {
            size: 256,
            batch,
            connections,
            window: None,
            pchannels: 1,
            vchannels: None,
        }
    }

    #[test]
    fn many_connections_make_a_closed_loop_and_one_a_deep_pipeline() {
        let plan = args(Some(1), Some(64)).plan(None, 4).unwrap();
        assert_eq!((plan.window, plan.connections), (1, 64));
        let plan = args(Some(1_000), None).plan(None, 4).unwrap();
        assert_eq!((plan.window, plan.connections), (32, 1));
        assert!(args(Some(1), Some(0)).plan(None, 4).is_err());
    }
}
