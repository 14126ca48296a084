//! Lets glommio find out the truth about a device before a log is opened on it.
//!
//! The first direct open of a thread on a device decides for all later ones whether reads and writes are polled: glommio
//! reads the first sector of *that file*, and takes success for "the device polls". A file that is empty, or whose first
//! sector was reserved but never written, is read without asking the device: the answer is then yes on any device, and each
//! later read of stored bytes fails with "operation not supported". So the first file opened must hold written bytes.

use std::{
    cell::RefCell,
    collections::HashSet,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use glommio::io::DmaFile;

use super::{files, segment};
use crate::{block::ALIGNMENT, wal::WalError};

thread_local! {
    /// Devices whose answer is known on this thread.
    static KNOWN: RefCell<HashSet<u64>> = RefCell::default();
}

/// Must be called on a shard before the first direct open in `folder`, which exists. Does nothing from the second call on.
/// Opens a segment file that holds something; writes a small file of its own, and removes it, only where there is none.
pub async fn settle(folder: &Path) -> Result<(), WalError> {
    let device = fs::metadata(folder)
        .map_err(|e| files::io_error("look at folder", folder, &e))?
        .dev();
    if KNOWN.with_borrow(|known| known.contains(&device)) {
        return Ok(());
    }
    let (path, own) = match written_segment(folder) {
        Some(path) => (path, false),
        None => (
            write_own(folder).map_err(|e| files::io_error("try direct access in", folder, &e))?,
            true,
        ),
    };
    let opened = DmaFile::open(&path).await;
    if own {
        let _ = fs::remove_file(&path); // a leftover of 4 KiB, written over by the next start
    }
    let file = opened.map_err(|e| files::error("open for direct access", &path, &e))?;
    file.close().await.map_err(|e| files::error("close", &path, &e))?;
    KNOWN.with_borrow_mut(|known| known.insert(device));
    Ok(())
}

/// A segment whose first bytes were written: a reserved page reads as zeros.
fn written_segment(folder: &Path) -> Option<PathBuf> {
    let is_written = |path: &PathBuf| {
        let mut head = [0; 512];
        let read = File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut head));
        read.is_ok() && head.iter().any(|&byte| byte != 0)
    };
    fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .and_then(|n| n.to_str())
                .and_then(segment::index_of)
                .is_some()
        })
        .find(is_written)
}

fn write_own(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join("direct-access.probe");
    let mut file = File::create(&path)?;
    file.write_all(&[1; ALIGNMENT])?;
    file.sync_data()?;
    Ok(path)
}
