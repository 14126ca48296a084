//! Calls to the file system, with errors that name what was tried and where.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
};

use glommio::{
    GlommioError, allocate_dma_buffer,
    io::{Directory, DmaBuffer, DmaFile, OpenOptions, ReadResult},
};

use crate::{block::ALIGNMENT, wal::WalError};

/// Also a quota that is used up.
const NO_SPACE: [i32; 2] = [libc::ENOSPC, libc::EDQUOT];
/// Zeros are written in pieces of this size.
const ZERO_BYTES: usize = 1 << 20;

/// The typed error of a failed call.
pub fn error(action: &'static str, path: &Path, cause: &GlommioError<()>) -> WalError {
    match cause.raw_os_error() {
        Some(code) if NO_SPACE.contains(&code) => WalError::DiskFull { path: path.to_owned() },
        _ => WalError::Io {
            action,
            path: path.to_owned(),
            detail: cause.to_string(),
        },
    }
}

/// The typed error of a failed call of the standard library.
pub fn io_error(action: &'static str, path: &Path, cause: &std::io::Error) -> WalError {
    match cause.raw_os_error() {
        Some(code) if NO_SPACE.contains(&code) => WalError::DiskFull { path: path.to_owned() },
        _ => WalError::Io {
            action,
            path: path.to_owned(),
            detail: cause.to_string(),
        },
    }
}

/// Opens an existing segment file for direct reads, and writes if asked.
pub async fn open(path: &Path, write: bool) -> Result<Rc<DmaFile>, WalError> {
    let file = OpenOptions::new().read(true).write(write).dma_open(path).await;
    file.map(Rc::new).map_err(|e| error("open", path, &e))
}

/// Opens an existing segment file so that each write is durable when it ends.
pub async fn open_synced(path: &Path) -> Result<Rc<DmaFile>, WalError> {
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DSYNC)
        .dma_open(path)
        .await;
    file.map(Rc::new).map_err(|e| error("open", path, &e))
}

/// Creates a file of `size` bytes; its blocks are reserved, and written with zeros if `zeros`. Durable when it returns,
/// but for its name in the folder. On an error nothing is left of it, so that its space is free again.
pub async fn create(path: &Path, size: u64, zeros: bool) -> Result<(), WalError> {
    let result = reserve(path, size, zeros).await;
    if result.is_err() {
        let _ = remove(path.to_owned()).await; // the first error counts
    }
    result
}

async fn reserve(path: &Path, size: u64, zeros: bool) -> Result<(), WalError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .dma_open(path)
        .await;
    let file = file.map_err(|e| error("create", path, &e))?;
    file.pre_allocate(size, false)
        .await
        .map_err(|e| error("reserve space for", path, &e))?;
    if zeros {
        let mut buffer = allocate_dma_buffer(ZERO_BYTES);
        buffer.as_bytes_mut().fill(0);
        let mut buffer = Rc::new(buffer);
        for at in (0..size).step_by(ZERO_BYTES) {
            let len = (size - at).min(ZERO_BYTES as u64) as usize;
            if len < buffer.len()
                && let Some(last) = Rc::get_mut(&mut buffer)
            {
                last.trim_to_size(len);
            }
            let written = file.write_rc_at(buffer.clone(), at).await;
            whole(written.map_err(|e| error("fill with zeros", path, &e))?, len, path)?;
        }
    }
    sync(&file, path).await?;
    file.close().await.map_err(|e| error("close", path, &e))
}

/// Writes a block and makes it durable, and nothing else. `file` is one of [`open_synced`].
pub async fn write_synced(file: &DmaFile, path: &Path, block: Rc<DmaBuffer>, position: u64) -> Result<(), WalError> {
    let len = block.len();
    let written = file.write_rc_at(block, position).await;
    whole(written.map_err(|e| error("write", path, &e))?, len, path)?;
    #[cfg(test)]
    super::sync_failure::before_sync(path)?;
    Ok(())
}

/// Makes what was written to a file durable.
pub async fn sync(file: &DmaFile, path: &Path) -> Result<(), WalError> {
    #[cfg(test)]
    super::sync_failure::before_sync(path)?;
    file.fdatasync().await.map_err(|e| error("sync", path, &e))
}

/// Makes names in a folder durable.
pub async fn sync_folder(folder: &Path) -> Result<(), WalError> {
    let directory = Directory::open(folder)
        .await
        .map_err(|e| error("open folder", folder, &e))?;
    directory.sync().await.map_err(|e| error("sync folder", folder, &e))?;
    directory.close().await.map_err(|e| error("close folder", folder, &e))
}

/// Renames a file on the helper thread of the shard.
pub async fn rename(from: PathBuf, to: PathBuf) -> Result<(), WalError> {
    let path = from.clone();
    let result = glommio::executor()
        .spawn_blocking(move || std::fs::rename(&from, &to))
        .await;
    result.map_err(|e| io_error("rename", &path, &e))
}

/// Removes a file on the helper thread of the shard.
pub async fn remove(path: PathBuf) -> Result<(), WalError> {
    let shown = path.clone();
    let result = glommio::executor()
        .spawn_blocking(move || std::fs::remove_file(&path))
        .await;
    result.map_err(|e| io_error("remove", &shown, &e))
}

/// Reads `len` bytes at `position`, both aligned; fewer only at the end of the file.
pub async fn read(file: &DmaFile, path: &Path, position: u64, len: u64) -> Result<ReadResult, WalError> {
    loop {
        let bytes = file
            .read_at_aligned(position, len as usize)
            .await
            .map_err(|e| error("read", path, &e))?;
        if bytes.len() as u64 == len {
            return Ok(bytes);
        }
        // The kernel may give less than asked for at any time; only the end of the file makes that final.
        let size = file.file_size().await.map_err(|e| error("stat", path, &e))?;
        if position + bytes.len() as u64 >= size {
            return Ok(bytes);
        }
    }
}

/// Writes one small aligned piece whose bytes `fill` makes.
pub async fn write_page(
    file: &DmaFile,
    path: &Path,
    position: u64,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Result<(), WalError> {
    debug_assert_eq!(len % ALIGNMENT, 0, "direct writes are aligned");
    let mut buffer = allocate_dma_buffer(len);
    buffer.as_bytes_mut().fill(0);
    fill(buffer.as_bytes_mut());
    let written = file
        .write_at(buffer, position)
        .await
        .map_err(|e| error("write", path, &e))?;
    whole(written, len, path)
}

/// An error unless all bytes were written.
pub fn whole(written: usize, len: usize, path: &Path) -> Result<(), WalError> {
    if written == len {
        return Ok(());
    }
    Err(WalError::Io {
        action: "write",
        path: path.to_owned(),
        detail: format!("only {written} of {len} bytes"),
    })
}
