//! Is the limit of locked memory high enough for the rings and registered buffers of the shards?

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::needs::Needs;
use super::report::{Item, bytes_text};

/// The executor of a shard refuses to start below this limit, whoever runs it.
const EXECUTOR_MINIMUM_BYTES: u64 = 512 << 10;
/// Each shard has three rings and registers its buffers with each of them; the kernel counts them each time.
const RINGS_PER_SHARD: u64 = 3;
/// What one ring itself takes, rounded up: 16 KiB for 128 entries were measured on Linux 6.18. Kernels 5.12 to about 6.13 do not
/// count it.
const RING_BYTES: u64 = 32 << 10;

pub(crate) fn check(needs: &Needs) -> Item {
    // With this capability the kernel counts nothing.
    let privileged = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    judge(needs, getrlimit(Resource::Memlock).maximum, privileged)
}

/// `limit` is the highest value that this process can set itself, in bytes; none for unlimited.
fn judge(needs: &Needs, limit: Option<u64>, privileged: bool) -> Item {
    let rings = needs.shards as u64 * RINGS_PER_SHARD;
    let minimum = if privileged {
        EXECUTOR_MINIMUM_BYTES
    } else {
        EXECUTOR_MINIMUM_BYTES.max(rings * RING_BYTES)
    };
    let full = EXECUTOR_MINIMUM_BYTES.max(rings * (RING_BYTES + needs.io_memory_per_shard_bytes));
    let wanted = if privileged { minimum } else { full };
    let note = if privileged {
        "this process has CAP_IPC_LOCK, so only the minimum is asked for"
    } else {
        "all processes of this user count together"
    };
    let shards = needs.shards;
    let needed = format!(
        "{} for {shards} shards, at the very least {} ({note})",
        bytes_text(wanted),
        bytes_text(minimum)
    );
    let Some(limit) = limit else {
        return Item::ok("locked memory", "limit: unlimited", needed);
    };
    let item = Item::ok("locked memory", format!("limit: {}", bytes_text(limit)), needed);
    let kib = full.div_ceil(1 << 10);
    let raise = format!(
        "raise it: ulimit -l {kib} as root before the start, or LimitMEMLOCK={full} in the systemd unit, \
         or \"* hard memlock {kib}\" in /etc/security/limits.conf"
    );
    if limit < minimum {
        item.fail(raise)
    } else if limit < wanted {
        item.warn(format!(
            "runs slower, with I/O buffers that are not registered; {raise}"
        ))
    } else {
        item
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    fn status(limit_kib: u64, shards: usize, privileged: bool) -> Status {
        judge(&Needs::new(shards), Some(limit_kib << 10), privileged).status
    }

    #[test]
    fn minimum_and_registered_memory() {
        assert_eq!(status(64, 1, true), Status::Fail);
        assert_eq!(status(511, 1, false), Status::Fail);
        assert_eq!(status(512, 1, true), Status::Ok);
        assert_eq!(status(512, 64, true), Status::Ok);
        assert_eq!(status(512, 1, false), Status::Warn);
        // The buffers alone would fit; the rings beside them do not.
        assert_eq!(status(3 << 10, 1, false), Status::Warn);
        assert_eq!(status(4 << 10, 1, false), Status::Ok);
        assert_eq!(status(8 << 10, 2, false), Status::Ok);
        assert_eq!(status(8 << 10, 4, false), Status::Warn);
        assert_eq!(status(4 << 10, 64, false), Status::Fail);
    }

    #[test]
    fn unlimited_is_enough_and_the_cure_names_the_full_value() {
        let needs = Needs::new(2);
        assert_eq!(judge(&needs, None, false).status, Status::Ok);
        let line = judge(&needs, Some(64 << 10), false).line();
        for part in [
            "limit: 64 KiB",
            "6.2 MiB for 2 shards",
            "512 KiB",
            "ulimit -l 6336",
            "LimitMEMLOCK=6488064",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
}
