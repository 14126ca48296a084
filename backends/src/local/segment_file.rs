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
    segment::{TRAILER_BYTES, Trailer},
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

/// A segment file. Belongs to one shard. Its blocks are durable as far as `sync` says.
pub struct SegmentFile {
    /// Its index, and its name.
    pub index: u64,
    /// Where it lies.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    extent: RefCell<Extent>,
    /// Kept open while it is written to.
    file: RefCell<Option<Rc<DmaFile>>>,
    /// Where the next block goes.
    pub next_position: Cell<u64>,
    sync: RefCell<GroupSync>,
    sync_signal: Signal,
    in_flight: Cell<u32>,
}

impl SegmentFile {
    /// A segment that takes blocks.
    pub fn open(index: u64, path: PathBuf, size: u64, file: Rc<DmaFile>, footer: Footer) -> Self {
        let next_position = Cell::new(footer.end);
        Self {
            index,
            path,
            size,
            extent: RefCell::new(Extent::Open(footer)),
            file: RefCell::new(Some(file)),
            next_position,
            sync: RefCell::default(),
            sync_signal: Signal::default(),
            in_flight: Cell::new(0),
        }
    }

    /// A segment that was sealed in an earlier life.
    pub fn sealed(index: u64, path: PathBuf, size: u64, footer: StoredFooter) -> Self {
        let end = footer.get().map_or(0, |footer| footer.end.to_native());
        Self {
            index,
            path,
            size,
            extent: RefCell::new(Extent::Sealed(footer)),
            file: RefCell::new(None),
            next_position: Cell::new(end),
            sync: RefCell::default(),
            sync_signal: Signal::default(),
            in_flight: Cell::new(0),
        }
    }

    /// First and next offset, first and last timetick, largest term.
    pub fn extent(&self) -> (Offset, Offset, Timetick, Timetick, u64) {
        match &*self.extent.borrow() {
            Extent::Open(f) => (
                Offset(f.base_offset),
                Offset(f.next_offset),
                Timetick(f.first_timetick),
                Timetick(f.last_timetick),
                f.term,
            ),
            Extent::Sealed(stored) => stored.get().map_or_else(Default::default, |f| {
                (
                    Offset(f.base_offset.to_native()),
                    Offset(f.next_offset.to_native()),
                    Timetick(f.first_timetick.to_native()),
                    Timetick(f.last_timetick.to_native()),
                    f.term.to_native(),
                )
            }),
        }
    }

    /// Offset of its first message.
    pub fn base_offset(&self) -> Offset {
        self.extent().0
    }

    /// Offset behind its last message.
    pub fn next_offset(&self) -> Offset {
        self.extent().1
    }

    /// Where an indexed block at or before `offset` begins.
    pub fn position_of(&self, offset: Offset) -> u64 {
        match &*self.extent.borrow() {
            Extent::Open(footer) => {
                let after = footer.index.partition_point(|entry| entry.offset <= offset.get());
                let entry = after.checked_sub(1).and_then(|at| footer.index.get(at));
                entry.map_or(super::segment::SEGMENT_HEADER_BYTES, |entry| entry.position)
            }
            Extent::Sealed(stored) => stored
                .get()
                .map_or(super::segment::SEGMENT_HEADER_BYTES, |f| f.position_of(offset)),
        }
    }

    /// First offset of the block that begins at the position that [`position_of`](Self::position_of) gives for `offset`.
    pub fn offset_of_indexed(&self, offset: Offset) -> Offset {
        match &*self.extent.borrow() {
            Extent::Open(footer) => {
                let after = footer.index.partition_point(|entry| entry.offset <= offset.get());
                let entry = after.checked_sub(1).and_then(|at| footer.index.get(at));
                Offset(entry.map_or(footer.base_offset, |entry| entry.offset))
            }
            Extent::Sealed(stored) => stored.get().map_or(Offset::ZERO, |f| {
                let after = f
                    .index
                    .partition_point(|entry| entry.offset.to_native() <= offset.get());
                let entry = after.checked_sub(1).and_then(|at| f.index.get(at));
                Offset(entry.map_or(f.base_offset.to_native(), |entry| entry.offset.to_native()))
            }),
        }
    }

    /// First offset of an indexed block at or before `timetick`.
    pub fn offset_at(&self, timetick: Timetick) -> Offset {
        match &*self.extent.borrow() {
            Extent::Open(footer) => {
                let after = footer.index.partition_point(|entry| entry.timetick <= timetick.get());
                let entry = after.checked_sub(1).and_then(|at| footer.index.get(at));
                Offset(entry.map_or(footer.base_offset, |entry| entry.offset))
            }
            Extent::Sealed(stored) => stored.get().map_or(Offset::ZERO, |f| f.offset_at(timetick)),
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
        let position = self.next_position.get();
        let len = block.bytes().len() as u64;
        self.next_position.set(position + len);
        let timeticks = (
            block.entries.first().map_or(Timetick::ZERO, |entry| entry.min_timetick),
            block.last_timetick(),
        );
        if let Extent::Open(footer) = &mut *self.extent.borrow_mut() {
            let offsets = (block.header.first_offset, block.header.next_offset);
            footer.add(offsets, timeticks, block.header.term.get(), position, len);
        }
        self.in_flight.set(self.in_flight.get() + 1);
        position
    }

    /// Writes a block to its place and waits until a sync covers it.
    pub async fn write_durably(self: Rc<Self>, block: Rc<PlacedBlock>, position: u64) -> Result<(), WalError> {
        let result = self.write_and_sync(&block, position).await;
        self.in_flight.set(self.in_flight.get() - 1);
        if result.is_err() {
            self.sync.borrow_mut().fail();
        }
        self.sync_signal.notify();
        result
    }

    async fn write_and_sync(&self, block: &PlacedBlock, position: u64) -> Result<(), WalError> {
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
            if self.sync.borrow().is_failed() {
                return Err(WalError::Io {
                    action: "sync",
                    path: self.path.clone(),
                    detail: "another write or sync of this file failed, so what it covers is not known".to_owned(),
                });
            }
            let begins = self.sync.borrow_mut().begin();
            if begins {
                let result = file.fdatasync().await;
                self.sync.borrow_mut().done(result.is_ok());
                self.sync_signal.notify();
                result.map_err(|e| files::error("sync", &self.path, &e))?;
            } else {
                self.sync_signal.changed(seen).await;
            }
        }
    }

    /// Waits for all writes in flight, then writes footer and trailer. Nothing is appended any more.
    pub async fn seal(&self, pchannel_hash: u64) -> Result<(), WalError> {
        while self.in_flight.get() > 0 {
            let seen = self.sync_signal.epoch();
            if self.in_flight.get() > 0 {
                self.sync_signal.changed(seen).await;
            }
        }
        if self.sync.borrow().is_failed() {
            return Err(WalError::Closed {
                first_cause: format!("{}: a write failed", self.path.display()),
            });
        }
        let footer = match &*self.extent.borrow() {
            Extent::Open(footer) => footer.to_bytes(),
            Extent::Sealed(_) => return Ok(()),
        };
        let broken = |detail: String| WalError::Broken {
            path: self.path.clone(),
            detail,
        };
        let footer = footer.map_err(|e| broken(e.to_string()))?;
        let file = self.file().await?;
        let footer_at = self.next_position.get();
        let room = self.size - TRAILER_BYTES - footer_at;
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
        file.fdatasync()
            .await
            .map_err(|e| files::error("sync", &self.path, &e))?;
        *self.extent.borrow_mut() = Extent::Sealed(StoredFooter::new(&footer).map_err(broken)?);
        self.file.borrow_mut().take();
        Ok(())
    }

    /// Whether it takes no more blocks.
    pub fn is_sealed(&self) -> bool {
        matches!(&*self.extent.borrow(), Extent::Sealed(_))
    }
}
