//! Does the file system of the data folder take direct I/O in blocks of 4 KiB?

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, FsWord, OFlags, StatxFlags, fstatfs, statx};

use super::place::{AlignedBlock, nearest_existing, open_unnamed};
use super::report::Item;

/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: FsWord = 0x0102_1994;
/// `RAMFS_MAGIC` of linux/magic.h.
const RAMFS: FsWord = 0x8584_58f6;

/// Blocks of the log begin at multiples of this many bytes.
const BLOCK_BYTES: u32 = 4_096;

const NEEDED: &str = "O_DIRECT with an alignment of at most 4096 bytes, on a disk";

pub(crate) fn check(data_dir: &Path) -> Item {
    let dir = nearest_existing(data_dir);
    let item = |measured: String| Item::ok("direct I/O", measured, NEEDED);
    let direct = match i32::try_from(OFlags::DIRECT.bits()) {
        Ok(flag) => flag,
        Err(_) => return item("O_DIRECT is not known here".to_owned()).fail("use a supported platform"),
    };
    let file = match open_unnamed(&dir, direct) {
        Ok(file) => file,
        Err(error) => return refused(&dir, &error),
    };
    if let Err(error) = write_and_read(&file) {
        if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) {
            return refused(&dir, &error);
        }
        return item(format!("a block of 4096 bytes in {} failed: {error}", dir.display()))
            .fail("use a data folder on a local disk with ext4 or xfs");
    }
    let in_memory = fstatfs(&file).is_ok_and(|system| system.f_type == TMPFS || system.f_type == RAMFS);
    if in_memory {
        return item(format!("{} is kept in memory", dir.display()))
            .warn("all is lost at a power cut: use a data folder on a disk");
    }
    match alignment(&file) {
        Some(bytes) if bytes > BLOCK_BYTES => item(format!("alignment of {bytes} bytes in {}", dir.display()))
            .fail("use a data folder on a device with blocks of at most 4096 bytes"),
        Some(bytes) => item(format!("works in {}, alignment {bytes} bytes", dir.display())),
        None => item(format!("works in {}", dir.display())),
    }
}

fn refused(dir: &Path, error: &io::Error) -> Item {
    let item = Item::ok(
        "direct I/O",
        format!("no file with O_DIRECT in {}: {error}", dir.display()),
        NEEDED,
    );
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => item.fail("let the user of this process write the folder"),
        Some(libc::EROFS) => item.fail("mount it for writing or use another data folder"),
        // A full disk says nothing about direct I/O, and must not keep a node from serving what it has.
        Some(libc::ENOSPC | libc::EDQUOT) => item.warn("make room on the disk"),
        Some(libc::ENOTDIR) => item.fail("a file is in the way: choose another data folder"),
        Some(libc::EMFILE | libc::ENFILE) => item.fail("raise the limit of open files: ulimit -n"),
        _ => item.fail("this file system knows no direct I/O: use a data folder on a local disk with ext4 or xfs"),
    }
}

fn write_and_read(file: &File) -> io::Result<()> {
    let mut block = Box::new(AlignedBlock([0x5A; 4096]));
    file.write_all_at(&block.0, 0)?;
    block.0 = [0; 4096];
    file.read_exact_at(&mut block.0, 0)?;
    if block.0 == [0x5A; 4096] {
        Ok(())
    } else {
        Err(io::Error::other("other bytes were read than written"))
    }
}

/// Granularity of direct I/O in bytes, where the kernel (6.1 on) tells.
fn alignment(file: &File) -> Option<u32> {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let bytes = found.stx_dio_offset_align.max(found.stx_dio_mem_align);
    (StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN) && bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn works_on_the_disk_of_the_sources() {
        let item = check(Path::new("."));
        assert_eq!(item.status, Status::Ok, "{item:?}");
    }

    #[test]
    fn each_refusal_has_its_own_cure() {
        let cure = |code| refused(Path::new("/x"), &io::Error::from_raw_os_error(code)).line();
        assert!(cure(libc::EINVAL).contains("ext4"));
        assert!(cure(libc::EACCES).contains("let the user"));
        assert!(cure(libc::EROFS).contains("mount"));
        assert!(cure(libc::ENOSPC).contains("room"));
        assert!(cure(libc::EMFILE).contains("ulimit -n"));
    }

    #[test]
    fn a_file_in_place_of_the_folder_is_named() {
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        let item = check(file.path());
        assert_eq!(item.status, Status::Fail);
        assert!(item.line().contains("in the way"), "{item:?}");
    }

    #[test]
    fn a_pseudo_file_system_fails() {
        assert_eq!(check(Path::new("/proc/self")).status, Status::Fail);
    }
}
