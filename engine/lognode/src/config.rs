//! The configuration: one file, every key with a default, every key also an environment variable.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use backends::local::LocalConfig;
use figment::{
    Figment, Source,
    error::Kind,
    providers::{Env, Format, Serialized, Toml},
};
use lognode_core::InFlight;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use wire_format::{Bytes, Limits};

/// Everything that `lognode serve` can be told. `configs/lognode.toml` documents each key; a test holds both together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Folder of logs and metadata.
    pub data_dir: PathBuf,
    /// Address of the native protocol.
    pub listen: SocketAddr,
    /// Address of `/metrics`, `/healthz` and `/readyz`.
    pub http_listen: SocketAddr,
    /// Shards and where they run.
    pub shards: ShardsConfig,
    /// How logs are stored.
    pub log: LogConfig,
    /// What a batch may be.
    pub limits: LimitsConfig,
    /// What is kept.
    pub retention: RetentionConfig,
    /// How fast producers may be.
    pub quota: QuotaConfig,
    /// Which pchannels there may be.
    pub pchannels: PchannelsConfig,
    /// Log lines.
    pub logging: LoggingConfig,
}

/// Shards and where they run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShardsConfig {
    /// CPUs to pin a shard to, one each; empty: all but the first where there is more than one.
    pub cpus: Vec<usize>,
    /// Memory of all shards together, in bytes.
    pub memory_bytes: u64,
    /// Memory that each shard registers with io_uring, in bytes; counts against memlock.
    pub io_memory_bytes: u64,
    /// How long an idle shard polls before it sleeps, in microseconds; burns its CPU.
    pub spin_us: u64,
}

/// How logs are stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Size of a segment file, in bytes.
    pub segment_bytes: u64,
    /// Largest block that is written at once, in bytes; a larger batch makes a larger block.
    pub block_bytes: u64,
    /// Blocks of a pchannel that may be in flight while they are not full.
    pub writes_in_flight: usize,
    /// Bytes of all blocks of a shard that may be in flight; beyond it each pchannel writes one block at a time.
    pub bytes_in_flight: u64,
    /// How much a reader far behind reads from disk at once, in bytes.
    pub read_ahead_bytes: u64,
}

impl LogConfig {
    /// How many blocks of a pchannel may be in flight. A full one is at least half of the largest.
    pub fn in_flight(&self) -> InFlight {
        let full = self.bytes_in_flight / (self.block_bytes / 2).max(1);
        InFlight {
            lone: self.writes_in_flight,
            full: full.clamp(1, 64) as usize,
            bytes: Bytes(self.bytes_in_flight),
        }
    }
}

/// What a batch may be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Whole batch, in bytes.
    pub batch_bytes: u32,
    /// Messages of a batch.
    pub batch_messages: u32,
    /// Distinct vchannels of a batch.
    pub batch_vchannels: u32,
    /// Connections at once.
    pub connections: usize,
}

/// What is kept. 0 sets no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// Bytes of each pchannel.
    pub bytes_per_pchannel: u64,
    /// Age of the last message of a segment, in seconds.
    pub age_s: u64,
    /// How often it is looked at, in seconds.
    pub interval_s: u64,
}

/// How fast producers may be. 0 sets no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaConfig {
    /// Bytes per second and pchannel.
    pub bytes_per_s: u64,
    /// Bytes that may come at once after a pause.
    pub burst_bytes: u64,
    /// A batch that would wait longer is refused with the time to come again, in milliseconds.
    pub max_delay_ms: u64,
}

/// Which pchannels there may be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PchannelsConfig {
    /// Whether a producer or reader may create one by naming it.
    pub auto_create: bool,
    /// How many there may be.
    pub max: usize,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Log lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoggingConfig {
    /// `error`, `warn`, `info`, `debug`, or a filter such as `lognode=debug,info`.
    pub level: String,
    /// Text or JSON.
    pub format: LogFormat,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: "./lognode-data".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 9400)),
            http_listen: SocketAddr::from(([127, 0, 0, 1], 9401)),
            shards: ShardsConfig::default(),
            log: LogConfig::default(),
            limits: LimitsConfig::default(),
            retention: RetentionConfig::default(),
            quota: QuotaConfig::default(),
            pchannels: PchannelsConfig::default(),
            logging: LoggingConfig::default(),
        }
    }
}

impl Default for ShardsConfig {
    fn default() -> Self {
        Self {
            cpus: Vec::new(),
            memory_bytes: 1 << 30,
            io_memory_bytes: crate::probe::IO_MEMORY_PER_SHARD_BYTES,
            spin_us: 0,
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            block_bytes: 1 << 20,
            writes_in_flight: 3,
            bytes_in_flight: 8 << 20,
            read_ahead_bytes: 4 << 20,
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            batch_bytes: limits.batch_bytes,
            batch_messages: limits.messages,
            batch_vchannels: limits.vchannels,
            connections: 9_000,
        }
    }
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            bytes_per_pchannel: 0,
            age_s: 0,
            interval_s: 5,
        }
    }
}

impl Default for QuotaConfig {
    fn default() -> Self {
        Self {
            bytes_per_s: 0,
            burst_bytes: 16 << 20,
            max_delay_ms: 1_000,
        }
    }
}

impl Default for PchannelsConfig {
    fn default() -> Self {
        Self {
            auto_create: true,
            max: 10_000,
        }
    }
}

impl Default for LoggingConfig {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::Text,
        }
    }
}

/// What is wrong with a configuration. Each text names the key and what to do.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error(
        "configuration file {path}: {cause}; give an existing file with --config, or leave it out for the defaults"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A key is unknown or a value has the wrong type.
    #[error("configuration: {}", faults(.0))]
    Invalid(Box<figment::Error>),
    /// A value can't work.
    #[error("configuration: {key}: {detail}")]
    Value {
        /// The key.
        key: &'static str,
        /// What is wrong and what would be right.
        detail: String,
    },
}

/// `LOGNODE_` variables that are no settings: they belong to command-line flags, to the bench and to tests.
const NO_SETTINGS: [&str; 5] = ["config", "server", "bin", "wall_offset_file", "log"];

/// What figment found, each with the place where it stands.
fn faults(error: &figment::Error) -> String {
    let faults = error.clone().into_iter().map(|fault| {
        let what = match &fault.kind {
            Kind::UnknownField(_, known) => format!("no such key; known are {}", known.join(", ")),
            kind => kind.to_string(),
        };
        let source = fault.metadata.as_ref().and_then(|metadata| metadata.source.as_ref());
        let place = match source.and_then(Source::file_path) {
            Some(path) => format!("{}: {}", path.display(), fault.path.join(".")),
            None if fault.path.is_empty() => "configuration file".to_owned(),
            None => format!("environment variable LOGNODE_{}", fault.path.join("__").to_uppercase()),
        };
        format!("{place}: {what}")
    });
    faults.collect::<Vec<_>>().join("; ")
}

const YEAR_S: u64 = 366 * 24 * 3_600;

impl Config {
    /// Defaults, then the file, then `LOGNODE_SECTION__KEY` variables; checked.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(path) = file {
            // Figment takes a file that can't be opened for an empty one.
            std::fs::File::open(path).map_err(|cause| ConfigError::Unreadable {
                path: path.to_owned(),
                cause,
            })?;
            figment = figment.merge(Toml::file_exact(path));
        }
        let env = Env::prefixed("LOGNODE_").split("__").ignore(&NO_SETTINGS);
        let config: Self = figment
            .merge(env)
            .extract()
            .map_err(|e| ConfigError::Invalid(Box::new(e)))?;
        config.check()?;
        Ok(config)
    }

    /// Whether the values can work together.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fault = |key, detail: String| Err(ConfigError::Value { key, detail });
        let limits = self.batch_limits();
        if self.limits.batch_bytes > Limits::BATCH_BYTES_MAX || self.limits.batch_bytes < 4_096 {
            return fault("limits.batch_bytes", format!("use 4096 to {}", Limits::BATCH_BYTES_MAX));
        }
        if !(1..=8_388_608).contains(&self.limits.batch_messages) {
            return fault("limits.batch_messages", "use 1 to 8388608".to_owned());
        }
        if !(1..=65_535).contains(&self.limits.batch_vchannels) {
            return fault("limits.batch_vchannels", "use 1 to 65535".to_owned());
        }
        if let Err(detail) = self.local_log("check").check(&limits) {
            return fault("log.segment_bytes", detail);
        }
        if !(1..=64).contains(&self.log.writes_in_flight) {
            return fault("log.writes_in_flight", "use 1 to 64".to_owned());
        }
        if !(65_536..=1 << 30).contains(&self.log.bytes_in_flight) {
            return fault("log.bytes_in_flight", "use 65536 to 1073741824".to_owned());
        }
        if !(65_536..=67_108_864).contains(&self.log.block_bytes) {
            return fault("log.block_bytes", "use 65536 to 67108864".to_owned());
        }
        if !(65_536..=67_108_864).contains(&self.log.read_ahead_bytes)
            || !self.log.read_ahead_bytes.is_multiple_of(4_096)
        {
            return fault(
                "log.read_ahead_bytes",
                "use a multiple of 4096 from 65536 to 67108864".to_owned(),
            );
        }
        let shards = self.cpus().len() as u64;
        let need = shards * Self::shard_memory_min(&limits, &self.log).get();
        if self.shards.memory_bytes < need {
            let detail = format!(
                "{} is too little for {shards} shard(s) with these limits: use {need} or more",
                self.shards.memory_bytes
            );
            return fault("shards.memory_bytes", detail);
        }
        if !(65_536..=1 << 30).contains(&self.shards.io_memory_bytes) {
            return fault("shards.io_memory_bytes", "use 65536 to 1073741824".to_owned());
        }
        if !(1..=YEAR_S).contains(&self.retention.interval_s) {
            return fault("retention.interval_s", format!("use 1 to {YEAR_S}, which is a year"));
        }
        if self.retention.age_s > 1_000 * YEAR_S {
            let most = 1_000 * YEAR_S;
            return fault(
                "retention.age_s",
                format!("use 0 (for ever) to {most}, which is a thousand years"),
            );
        }
        if self.quota.max_delay_ms > 1_000 * YEAR_S {
            return fault("quota.max_delay_ms", format!("use 0 to {}", 1_000 * YEAR_S));
        }
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&self.logging.level) {
            return fault("logging.level", format!("{error}; use info or lognode=debug,info"));
        }
        Ok(())
    }

    /// Blocks being filled and in flight for one pchannel, a receive buffer, and as much again for the tail.
    fn shard_memory_min(limits: &Limits, log: &LogConfig) -> Bytes {
        let block = log.block_bytes.max(u64::from(limits.batch_bytes) + 4_096);
        Bytes((log.writes_in_flight as u64 + 2) * block + 2 * u64::from(limits.batch_bytes))
    }

    /// Limits on batches.
    pub fn batch_limits(&self) -> Limits {
        Limits {
            batch_bytes: self.limits.batch_bytes,
            messages: self.limits.batch_messages,
            vchannels: self.limits.batch_vchannels,
            name_bytes: Limits::NAME_BYTES_MAX,
        }
    }

    /// The log of a pchannel.
    pub fn local_log(&self, pchannel: &str) -> LocalConfig {
        LocalConfig {
            folder: self.pchannels_dir().join(pchannel),
            pchannel: pchannel.to_owned(),
            segment: Bytes(self.log.segment_bytes),
            read_ahead: Bytes(self.log.read_ahead_bytes),
        }
    }

    /// The folder of all logs.
    pub fn pchannels_dir(&self) -> PathBuf {
        self.data_dir.join("pchannels")
    }

    /// The CPUs of the shards.
    pub fn cpus(&self) -> Vec<usize> {
        if !self.shards.cpus.is_empty() {
            return self.shards.cpus.clone();
        }
        let all: Vec<usize> = core_affinity::get_core_ids()
            .unwrap_or_default()
            .into_iter()
            .map(|core| core.id)
            .collect();
        match all.as_slice() {
            [] => vec![0],
            [one] => vec![*one],
            // The first CPU is left to the side thread, the kernel's interrupts and whoever else runs here.
            [_, rest @ ..] => rest.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_file_holds_the_defaults() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/lognode.toml");
        assert_eq!(Config::load(Some(&file)).unwrap(), Config::default());
        let text = std::fs::read_to_string(file).unwrap();
        let keys = serde_json::to_value(Config::default()).unwrap();
        let nested = |v: &serde_json::Value| {
            v.as_object()
                .map(|o| o.keys().cloned().collect::<Vec<_>>())
                .unwrap_or_default()
        };
        for key in nested(&keys) {
            for inner in nested(&keys[&key]).into_iter().chain([key.clone()]) {
                assert!(text.contains(&inner), "{inner} is not documented");
            }
        }
    }
}
