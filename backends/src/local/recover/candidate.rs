//! The files of a folder, as their first and last 4 KiB describe them.

use std::path::{Path, PathBuf};

use glommio::io::DmaFile;
use wire_format::{Offset, crc::crc32c};

use super::super::{
    config::LocalConfig,
    files,
    footer::StoredFooter,
    segment::{self, SEGMENT_HEADER_BYTES, SegmentHeader, TRAILER_BYTES, Trailer, block_tag},
};
use crate::{
    block::{ALIGNMENT, BlockHeader, align_up},
    wal::WalError,
};

/// A file whose name is that of a segment.
pub struct Candidate {
    pub index: u64,
    pub path: PathBuf,
    pub size: u64,
    /// Offset of the first message, if anything in the file tells it.
    pub base: Option<Offset>,
    /// See [`SegmentHeader::nonce`], if anything in the file tells it.
    pub nonce: Option<u64>,
    pub footer: Option<StoredFooter>,
    /// Bytes that it had when it was taken into use, if its header tells.
    pub full_size: Option<u64>,
    /// Its header is whole, and that of another pchannel: somebody copied it here.
    pub is_foreign: bool,
}

impl Candidate {
    /// Whether it is a segment of the log, not a file that lies ready.
    pub fn is_segment(&self) -> bool {
        self.nonce.is_some()
    }

    /// What its blocks carry.
    pub fn tag(&self, pchannel_hash: u64) -> u64 {
        block_tag(pchannel_hash, self.nonce.unwrap_or_default())
    }

    /// First byte that no block reaches.
    pub fn blocks_end(&self) -> u64 {
        self.footer_end().unwrap_or(align_up(self.size))
    }

    fn footer_end(&self) -> Option<u64> {
        Some(self.footer.as_ref()?.get()?.end.to_native())
    }

    /// Offset behind the last message, if a footer tells it.
    pub fn footer_next(&self) -> Option<Offset> {
        Some(Offset(self.footer.as_ref()?.get()?.next_offset.to_native()))
    }
}

/// All of them, by index.
pub async fn read_all(config: &LocalConfig, pchannel_hash: u64) -> Result<Vec<Candidate>, WalError> {
    let listing = std::fs::read_dir(&config.folder).map_err(|e| files::io_error("list", &config.folder, &e))?;
    let mut indices = Vec::new();
    for entry in listing {
        let entry = entry.map_err(|e| files::io_error("list", &config.folder, &e))?;
        indices.extend(entry.file_name().to_str().and_then(segment::index_of));
    }
    indices.sort_unstable();
    let mut candidates = Vec::with_capacity(indices.len());
    for index in indices {
        candidates.push(read_one(config, pchannel_hash, index).await?);
    }
    Ok(candidates)
}

async fn read_one(config: &LocalConfig, pchannel_hash: u64, index: u64) -> Result<Candidate, WalError> {
    let path = config.folder.join(segment::file_name(index));
    let file = files::open(&path, false).await?;
    let size = file.file_size().await.map_err(|e| files::error("stat", &path, &e))?;
    let page = files::read(&file, &path, 0, SEGMENT_HEADER_BYTES).await?;
    let header = SegmentHeader::read(&page);
    let is_foreign = header.is_some_and(|h| h.pchannel_hash != pchannel_hash);
    let header = header.filter(|h| !is_foreign && h.index == index);
    let footer = read_footer(&file, &path, size, pchannel_hash, index).await?;
    let mut base = header.map(|header| header.base_offset);
    let mut nonce = header.map(|header| header.nonce);
    if let Some(footer) = footer.as_ref().and_then(StoredFooter::get) {
        base = Some(Offset(footer.base_offset.to_native()));
        nonce = Some(footer.nonce.to_native());
    }
    if nonce.is_none() && !is_foreign && size > SEGMENT_HEADER_BYTES {
        (base, nonce) = first_block(&file, &path, pchannel_hash, index).await?.unzip();
    }
    file_closed(file, &path).await?;
    Ok(Candidate {
        index,
        path,
        size,
        base,
        nonce,
        footer,
        full_size: header.map(|header| header.size),
        is_foreign,
    })
}

async fn file_closed(file: std::rc::Rc<DmaFile>, path: &Path) -> Result<(), WalError> {
    match std::rc::Rc::try_unwrap(file) {
        Ok(file) => file.close().await.map_err(|e| files::error("close", path, &e)),
        Err(_) => Ok(()),
    }
}

/// What the first block tells of a file whose header and footer can't be read: a file that lies ready holds none.
async fn first_block(
    file: &DmaFile,
    path: &Path,
    pchannel_hash: u64,
    index: u64,
) -> Result<Option<(Offset, u64)>, WalError> {
    let bytes = files::read(file, path, SEGMENT_HEADER_BYTES, ALIGNMENT as u64).await?;
    let header = BlockHeader::read(&bytes).ok().filter(|h| h.segment_index == index);
    Ok(header.map(|header| (header.first_offset, block_tag(pchannel_hash, header.tag))))
}

async fn read_footer(
    file: &DmaFile,
    path: &Path,
    size: u64,
    pchannel_hash: u64,
    index: u64,
) -> Result<Option<StoredFooter>, WalError> {
    if size < SEGMENT_HEADER_BYTES + TRAILER_BYTES || !size.is_multiple_of(ALIGNMENT as u64) {
        return Ok(None);
    }
    let trailer = files::read(file, path, size - TRAILER_BYTES, TRAILER_BYTES).await?;
    let Some(trailer) = Trailer::read(&trailer).filter(|t| t.pchannel_hash == pchannel_hash && t.index == index) else {
        return Ok(None);
    };
    let inside = trailer
        .footer_at
        .checked_add(trailer.footer_len)
        .is_some_and(|end| end <= size - TRAILER_BYTES);
    if !inside || !trailer.footer_at.is_multiple_of(ALIGNMENT as u64) {
        return Ok(None);
    }
    let bytes = files::read(file, path, trailer.footer_at, align_up(trailer.footer_len)).await?;
    let footer = bytes.get(..trailer.footer_len as usize);
    // A broken footer costs a scan, nothing else.
    Ok(footer
        .filter(|bytes| crc32c(bytes) == trailer.footer_crc32c)
        .and_then(|bytes| StoredFooter::new(bytes).ok()))
}
