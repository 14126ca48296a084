//! Is there room for the log?

use std::path::Path;

use rustix::fs::statvfs;

use super::place::nearest_existing;
use super::report::{Item, bytes_text};

/// Name of this check.
pub(crate) const NAME: &str = "disk space";
/// Below this not even the first segments can be written.
const MINIMUM_BYTES: u64 = 512 << 20;
/// Below this a busy log fills the disk within minutes.
const COMFORTABLE_BYTES: u64 = 10 << 30;

pub(crate) fn check(data_dir: &Path) -> Item {
    let dir = nearest_existing(data_dir);
    match statvfs(&dir) {
        // What an ordinary user may use, without the blocks reserved for root.
        Ok(found) => judge(found.f_bavail.saturating_mul(found.f_frsize)),
        Err(error) => Item::ok(NAME, format!("can't be told for {}: {error}", dir.display()), needed())
            .warn("make sure that the disk has room"),
    }
}

fn needed() -> String {
    format!(
        "{}, at the very least {}",
        bytes_text(COMFORTABLE_BYTES),
        bytes_text(MINIMUM_BYTES)
    )
}

fn judge(free_bytes: u64) -> Item {
    let item = Item::ok(NAME, format!("{} free", bytes_text(free_bytes)), needed());
    let cure = "make room, use another data folder, or lower the retention";
    if free_bytes < MINIMUM_BYTES {
        item.fail(cure)
    } else if free_bytes < COMFORTABLE_BYTES {
        item.warn(cure)
    } else {
        item
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn free_bytes_are_judged() {
        assert_eq!(judge(0).status, Status::Fail);
        assert_eq!(judge(1 << 30).status, Status::Warn);
        assert_eq!(judge(1 << 40).status, Status::Ok);
        assert_ne!(check(Path::new(".")).measured, "0 B free");
    }
}
