//! One segment of an open log.

use std::{
    cell::{Cell, RefCell},
    path::PathBuf,
    rc::Rc,
};

use glommio::io::DmaFile;
use wire_format::{Offset, Timetick, crc::crc32c};

use super::{
    files,
    footer::{Footer, StoredFooter},
    group_sync::GroupSync,
    segment::{SEGMENT_HEADER_BYTES, TRAILER_BYTES, Trailer, block_tag},
};
use crate::{
    block::{ALIGNMENT, PlacedBlock, align_up},
    signal::Signal,
    wal::WalError,
};

/// Extent and index of a segment: growing in memory, or as it was sealed.
enum Extent {
    Open(Footer),
    Sealed(StoredFooter),
}

impl Extent {
    fn extents(&self) -> Extents {
        match self {
            Self::Open(f) => Extents {
                base_offset: Offset(f.base_offset),
                next_offset: Offset(f.next_offset),
                last_timetick: Timetick(f.last_timetick),
                term: f.term,
                end: f.end,
                nonce: f.nonce,
            },
            Self::Sealed(stored) => stored.get().map_or_else(Default::default, |f| Extents {
                base_offset: Offset(f.base_offset.to_native()),
                next_offset: Offset(f.next_offset.to_native()),
                last_timetick: Timetick(f.last_timetick.to_native()),
                term: f.term.to_native(),
                end: f.end.to_native(),
                nonce: f.nonce.to_native(),
            }),
        }
    }
}

/// What became of a segment's footer on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDisk {
    /// It is there.
    Yes,
    /// Not yet.
    No,
    /// It is being written.
    Begun,
    /// It must not be written: damaged bytes stand where it would go, or the file has another size.
    Never,
}

/// What a segment holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extents {
    /// Offset of its first message.
    pub base_offset: Offset,
    /// Offset behind its last message.
    pub next_offset: Offset,
    /// Its last timetick.
    pub last_timetick: Timetick,
    /// The largest term in it.
    pub term: u64,
    /// First byte behind its last block.
    pub end: u64,
    /// Drawn when the file was taken into use.
    pub nonce: u64,
}

/// A segment file. Belongs to one shard. Its blocks are durable as far as `sync` says.
pub struct SegmentFile {
    /// Its index, and its name.
    pub index: u64,
    /// Where it lies.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    extent: RefCell<Extent>,
    /// What `extent` says, at hand.
    extents: Cell<Extents>,
    footer_on_disk: Cell<OnDisk>,
    /// Kept open while it is written to.
    file: RefCell<Option<Rc<DmaFile>>>,
    /// The same file, once more, for small blocks that bring their own sync.
    synced_file: RefCell<Option<Rc<DmaFile>>>,
    sync: RefCell<GroupSync>,
    sync_signal: Signal,
}

impl SegmentFile {
    /// A segment that takes blocks.
    pub fn open(index: u64, path: PathBuf, size: u64, file: Rc<DmaFile>, footer: Footer) -> Self {
        Self::new(index, path, size, Extent::Open(footer), OnDisk::No, Some(file))
    }

    /// A segment that takes no more blocks.
    pub fn sealed(index: u64, path: PathBuf, size: u64, footer: StoredFooter, on_disk: OnDisk) -> Self {
        Self::new(index, path, size, Extent::Sealed(footer), on_disk, None)
    }

    fn new(index: u64, path: PathBuf, size: u64, extent: Extent, on_disk: OnDisk, file: Option<Rc<DmaFile>>) -> Self {
        Self {
            index,
            path,
            size,
            extents: Cell::new(extent.extents()),
            extent: RefCell::new(extent),
            footer_on_disk: Cell::new(on_disk),
            file: RefCell::new(file),
            synced_file: RefCell::default(),
            sync: RefCell::default(),
            sync_signal: Signal::default(),
        }
    }

    /// What it holds.
    pub fn extents(&self) -> Extents {
        self.extents.get()
    }

    /// Position and first offset of a block at or before `offset`, from which a reader can go on.
    pub fn indexed(&self, offset: Offset) -> (u64, Offset) {
        let found = match &*self.extent.borrow() {
            Extent::Open(footer) => footer.indexed(offset),
            Extent::Sealed(stored) => stored.get().and_then(|footer| footer.indexed(offset)),
        };
        found.unwrap_or_else(|| (SEGMENT_HEADER_BYTES, self.extents().base_offset))
    }

    /// First offset of an indexed block at or before `timetick`.
    pub fn offset_at(&self, timetick: Timetick) -> Offset {
        match &*self.extent.borrow() {
            Extent::Open(footer) => footer.offset_at(timetick),
            Extent::Sealed(stored) => stored.get().map_or(Offset::ZERO, |f| f.offset_at(timetick)),
        }
    }

    /// Its footer as far as the block at `position`, whose first offset is `offset`.
    pub fn footer_before(&self, position: u64, offset: Offset) -> Footer {
        match &*self.extent.borrow() {
            Extent::Open(footer) => footer.before(position, offset),
            Extent::Sealed(stored) => {
                let whole = stored
                    .get()
                    .and_then(|f| rkyv::deserialize::<Footer, rkyv::rancor::Error>(f).ok());
                whole.unwrap_or_default().before(position, offset)
            }
        }
    }

    /// The file, opened if it is not.
    pub async fn file(&self) -> Result<Rc<DmaFile>, WalError> {
        let open = self.file.borrow().clone();
        match open {
            Some(file) => Ok(file),
            None => files::open(&self.path, false).await,
        }
    }

    /// Takes the place of a block; returns its position.
    pub fn take_place(&self, block: &PlacedBlock) -> u64 {
        let position = self.extents().end;
        let first = block.entries.first().map_or(Timetick::ZERO, |entry| entry.min_timetick);
        if let Extent::Open(footer) = &mut *self.extent.borrow_mut() {
            footer.add(&block.header, (first, block.last_timetick()), position);
        }
        self.extents.set(self.extent.borrow().extents());
        position
    }

    /// Writes a block to its place and waits until a sync covers it. Must not be cancelled: others wait for its sync.
    pub async fn write_durably(&self, block: &PlacedBlock, position: u64) -> Result<(), WalError> {
        let result = self.write_and_sync(block, position).await;
        if result.is_err() {
            self.sync.borrow_mut().fail();
            self.sync_signal.notify();
        }
        result
    }

    /// Its header page was written, and waits for a sync as a block does.
    pub fn header_written(&self) {
        self.sync.borrow_mut().write_done();
    }

    /// The file as it is opened for blocks that bring their own sync.
    async fn synced_file(&self) -> Result<Rc<DmaFile>, WalError> {
        let open = self.synced_file.borrow().clone();
        if let Some(file) = open {
            return Ok(file);
        }
        let file = files::open_synced(&self.path).await?;
        // Another block may have been faster.
        Ok(self.synced_file.borrow_mut().get_or_insert(file).clone())
    }

    async fn write_and_sync(&self, block: &PlacedBlock, position: u64) -> Result<(), WalError> {
        let goes_alone = self.sync.borrow().goes_alone(block.bytes().len());
        if goes_alone {
            let file = self.synced_file().await?;
            files::write_synced(&file, &self.path, block.buffer.clone(), position).await?;
            return self.check_sync();
        }
        let file = self.file().await?;
        let written = file.write_rc_at(block.buffer.clone(), position).await;
        let written = written.map_err(|e| files::error("write", &self.path, &e))?;
        files::whole(written, block.bytes().len(), &self.path)?;
        let ticket = self.sync.borrow_mut().write_done();
        loop {
            let seen = self.sync_signal.epoch();
            if self.sync.borrow().is_synced(ticket) {
                return Ok(());
            }
            self.check_sync()?;
            let begins = self.sync.borrow_mut().begin();
            if begins {
                let result = files::sync(&file, &self.path).await;
                self.sync.borrow_mut().done(result.is_ok());
                self.sync_signal.notify();
                result?;
            } else {
                self.sync_signal.changed(seen).await;
            }
        }
    }

    fn check_sync(&self) -> Result<(), WalError> {
        if self.sync.borrow().is_failed() {
            return Err(WalError::Io {
                action: "sync",
                path: self.path.clone(),
                detail: "another write or sync of this file failed, so what it covers is not known".to_owned(),
            });
        }
        Ok(())
    }

    /// Makes durable whatever an earlier life wrote to it, if that may not be.
    pub async fn settle_found(&self) -> Result<(), WalError> {
        if self.footer_on_disk.get() == OnDisk::Yes {
            return Ok(());
        }
        let file = self.file().await?;
        files::sync(&file, &self.path).await
    }

    /// Takes no more blocks from now on; its footer is not written.
    pub fn close_extent(&self) -> Result<(), String> {
        let footer = match &*self.extent.borrow() {
            Extent::Open(footer) => footer.to_bytes().map_err(|e| e.to_string())?,
            Extent::Sealed(_) => return Ok(()),
        };
        *self.extent.borrow_mut() = Extent::Sealed(StoredFooter::new(&footer)?);
        Ok(())
    }

    /// Claims the writing of its footer; false if there is nothing to write.
    pub fn begin_seal(&self) -> bool {
        let due = self.footer_on_disk.get() == OnDisk::No;
        if due {
            self.footer_on_disk.set(OnDisk::Begun);
        }
        due
    }

    /// Writes footer and trailer. The caller has claimed it, waited until all its blocks are durable, and appends no more.
    pub async fn seal(&self, pchannel_hash: u64) -> Result<(), WalError> {
        let result = self.write_footer(pchannel_hash).await;
        self.footer_on_disk
            .set(if result.is_ok() { OnDisk::Yes } else { OnDisk::No });
        self.file.borrow_mut().take();
        self.synced_file.borrow_mut().take();
        result
    }

    async fn write_footer(&self, pchannel_hash: u64) -> Result<(), WalError> {
        let broken = |detail: String| WalError::Broken {
            path: self.path.clone(),
            detail,
        };
        self.close_extent().map_err(broken)?;
        let footer = match &*self.extent.borrow() {
            Extent::Open(_) => return Err(broken("it is still open".to_owned())),
            Extent::Sealed(stored) => stored.bytes().to_vec(),
        };
        let open = self.file.borrow().clone();
        let file = match open {
            Some(file) => file,
            None => files::open(&self.path, true).await?,
        };
        let footer_at = self.extents().end;
        let room = (self.size - TRAILER_BYTES).saturating_sub(footer_at);
        let padded = align_up(footer.len() as u64);
        if padded > room {
            // Without a footer the segment is scanned at the next start: slower, not wrong.
            return Err(broken(format!("its footer takes {padded} bytes, {room} are left")));
        }
        files::write_page(&file, &self.path, footer_at, padded as usize, |out| {
            out[..footer.len()].copy_from_slice(&footer)
        })
        .await?;
        let trailer = Trailer {
            pchannel_hash,
            index: self.index,
            footer_at,
            footer_len: footer.len() as u64,
            footer_crc32c: crc32c(&footer),
        };
        files::write_page(&file, &self.path, self.size - TRAILER_BYTES, ALIGNMENT, |out| {
            trailer.write(out)
        })
        .await?;
        files::sync(&file, &self.path).await
    }

    /// Whether nothing will be written to it any more.
    pub fn is_settled(&self) -> bool {
        self.is_sealed() && self.footer_on_disk.get() != OnDisk::Begun
    }

    /// What its blocks carry.
    pub fn tag(&self, pchannel_hash: u64) -> u64 {
        block_tag(pchannel_hash, self.extents().nonce)
    }

    /// Whether it takes no more blocks.
    pub fn is_sealed(&self) -> bool {
        matches!(&*self.extent.borrow(), Extent::Sealed(_))
    }
}
