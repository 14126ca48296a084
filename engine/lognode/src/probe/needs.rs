//! What a LogNode asks of a machine, derived from its counts.

/// Memory that each shard registers with its rings for I/O, in bytes. The shards must be started with this value, as the check of
/// the locked-memory limit counts with it.
pub const IO_MEMORY_PER_SHARD_BYTES: u64 = 1 << 20;

/// Pchannels that `lognode probe` counts with when it is not told.
pub const DEFAULT_PCHANNELS: usize = 64;

/// Client connections that are counted with when nobody says.
pub const DEFAULT_CONNECTIONS: usize = 1_000;

/// Files that a process of this kind has open anyway: standard streams, listeners, rings, event descriptors, sysfs.
const BASE_FILES: u64 = 64;
/// Rings, event and timer descriptors of one shard.
const FILES_PER_SHARD: u64 = 16;
/// Active segment, the next one being prepared, checkpoint and its successor, and two old segments read by a reader far behind.
const FILES_PER_PCHANNEL: u64 = 6;

/// The counts that the limits depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Pinned threads, each with three rings.
    pub shards: usize,
    /// Pchannels that this node may own.
    pub pchannels: usize,
    /// Client connections at one time.
    pub connections: usize,
    /// Registered I/O memory of one shard in bytes.
    pub io_memory_per_shard_bytes: u64,
}

impl Needs {
    /// `shards` shards and the default counts of all else.
    pub fn new(shards: usize) -> Self {
        Self {
            shards,
            pchannels: DEFAULT_PCHANNELS,
            connections: DEFAULT_CONNECTIONS,
            io_memory_per_shard_bytes: IO_MEMORY_PER_SHARD_BYTES,
        }
    }

    /// Open files without a single client: below this the log itself can't be kept open.
    pub(crate) fn files_without_clients(&self) -> u64 {
        BASE_FILES + FILES_PER_SHARD * self.shards as u64 + FILES_PER_PCHANNEL * self.pchannels as u64
    }

    /// Open files with all clients connected.
    pub(crate) fn files(&self) -> u64 {
        self.files_without_clients() + self.connections as u64
    }
}
