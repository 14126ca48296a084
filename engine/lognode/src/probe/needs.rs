//! What a LogNode asks of a machine, derived from its counts.

/// Memory that each shard registers with its rings for I/O, in bytes. The shards must be started with this value, as the check of
/// the locked-memory limit counts with it.
pub const IO_MEMORY_PER_SHARD_BYTES: u64 = 1 << 20;

/// Pchannels that `lognode probe` counts with when it is not told.
pub const DEFAULT_PCHANNELS: usize = 64;

/// Client connections that are counted with when nobody says.
pub const DEFAULT_CONNECTIONS: usize = 1_000;

/// Files that a process of this kind has open anyway: standard streams, listeners, rings, event descriptors, sysfs, HTTP.
const BASE_FILES: u64 = 64 + crate::http::CONNECTIONS_MAX as u64;
/// Rings, event and timer descriptors of one shard.
const FILES_PER_SHARD: u64 = 16;
/// Active segment twice, the next one being prepared, checkpoint and its successor, and two old segments read by a reader far behind.
const FILES_PER_PCHANNEL: u64 = 7;

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

/// Files that connections may hold, so that the logs never go without: a log that can't open its next segment closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientFiles {
    /// Connections whose hello is awaited.
    pub strangers: usize,
    /// Connections of clients.
    pub clients: usize,
}

impl ClientFiles {
    /// Strangers at once, where files are plenty.
    const STRANGERS_MAX: u64 = 1_024;
    /// Below this a node is of no use.
    const MIN: u64 = 8;

    /// Shares out what is left of `limit` open files (`None`: no limit) after the needs of shards and pchannels, with up to
    /// `wanted` clients.
    pub fn share(needs: &Needs, limit: Option<u64>, wanted: usize) -> Self {
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(needs.files_without_clients()));
        let strangers = (left / 4).clamp(Self::MIN, Self::STRANGERS_MAX);
        let clients = left.saturating_sub(strangers).max(Self::MIN).min(wanted as u64);
        Self {
            strangers: strangers as usize,
            clients: clients as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_the_logs_their_files() {
        let needs = Needs::new(1);
        let bare = needs.files_without_clients();
        for limit in [bare + 32, 1_024, 4_096, 20_000] {
            let share = ClientFiles::share(&needs, Some(limit), 9_000);
            let all = bare + (share.strangers + share.clients) as u64;
            assert!(
                all <= limit && share.strangers >= 8 && share.clients >= 8,
                "{limit}: {share:?}"
            );
        }
        assert_eq!(ClientFiles::share(&needs, Some(20_000), 9_000).clients, 9_000);
        let plenty = ClientFiles::share(&needs, None, 9_000);
        assert_eq!((plenty.strangers, plenty.clients), (1_024, 9_000));
    }
}
