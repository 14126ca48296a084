//! The file that the disk measurements write: opened for direct I/O, written once in full, without a name.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};

use super::aligned::AlignedBlock;
use super::error::{RawError, Step, failed};

/// How much is written at once while the file is made.
const FILL_BYTES: usize = 1 << 20;

/// A pre-written file without a name: as it is unlinked right after it is made, it vanishes with the process, however that ends.
///
/// Pre-written, since the first write into fresh space also changes the file system's own data, which a recycled segment file
/// never does: that would measure something else than the log's way of writing.
#[derive(Debug)]
pub struct ScratchFile {
    file: File,
    bytes: u64,
}

impl ScratchFile {
    /// Makes a file of `bytes` in `dir`, filled and synced. Takes `bytes` of the disk until dropped.
    ///
    /// # Errors
    /// When the folder can't be written, is full, or its file system knows no direct I/O.
    pub fn create(dir: &Path, bytes: u64) -> Result<Self, RawError> {
        if bytes == 0 || !bytes.is_multiple_of(FILL_BYTES as u64) {
            return Err(failed(
                "scratch file",
                format!("{bytes} bytes is not a multiple of {FILL_BYTES}"),
            ));
        }
        let step = format!("scratch file of {bytes} bytes with direct I/O in {}", dir.display());
        let file = open_unnamed(dir).step(&step)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).step(&step)?;
        // Not zeros: a storage layer below may store zeros for free.
        let mut block = AlignedBlock::new(FILL_BYTES);
        block.fill_with_noise();
        for offset in (0..bytes).step_by(FILL_BYTES) {
            file.write_all_at(block.as_slice(), offset).step(&step)?;
        }
        file.sync_all().step(&step)?;
        Ok(Self { file, bytes })
    }

    /// Size in bytes, a multiple of 1 MiB.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A second handle of the same open file.
    pub(crate) fn handle(&self) -> Result<File, RawError> {
        self.file.try_clone().step("scratch file handle")
    }
}

/// Opens a new file for direct I/O and removes its name at once.
fn open_unnamed(dir: &Path) -> io::Result<File> {
    let direct = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
    let path = dir.join(format!(
        ".lognode-bench-{}-{:016x}",
        std::process::id(),
        rand::random::<u64>()
    ));
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(direct)
        .open(&path);
    // Linux makes the name even where it then refuses direct I/O, so it is removed in both cases.
    let removed = fs::remove_file(&path);
    let file = opened?;
    removed?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_no_name_behind() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let scratch = ScratchFile::create(dir.path(), 2 << 20).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(scratch.handle().unwrap().metadata().unwrap().len(), 2 << 20);
    }

    #[test]
    fn says_which_folder_is_at_fault() {
        let error = ScratchFile::create(Path::new("/proc/self"), 1 << 20).unwrap_err();
        assert!(error.to_string().contains("/proc/self"), "{error}");
        let error = ScratchFile::create(Path::new("."), 4_097).unwrap_err();
        assert!(error.to_string().contains("4097"), "{error}");
    }
}
