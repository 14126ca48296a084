//! Where a check that needs a file puts it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// `data_dir` itself, or the nearest folder above it that exists: a new node's folder is made later, on the same file system.
pub(crate) fn nearest_existing(data_dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    absolute
        .ancestors()
        .find(|folder| folder.exists())
        .unwrap_or(Path::new("/"))
        .to_owned()
}

/// Opens a new file in `dir` with extra open flags (`O_...`) and takes its name away at once, so that it vanishes with its handle.
pub(crate) fn open_unnamed(dir: &Path, flags: i32) -> io::Result<File> {
    let path = dir.join(format!(".lognode-probe-{:016x}", rand::random::<u64>()));
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(flags)
        .open(&path);
    // A file system that refuses the flags has made the name all the same.
    let removed = fs::remove_file(&path);
    let file = opened?;
    removed?;
    Ok(file)
}

/// A block of 4 KiB at an address that direct I/O accepts.
#[repr(C, align(4096))]
pub(crate) struct AlignedBlock(pub(crate) [u8; 4096]);
