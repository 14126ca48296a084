//! Footer of a sealed segment: a sparse index and the segment's extent, an rkyv archive read in place.

use rkyv::{Archive, Deserialize, Serialize, rancor, util::AlignedVec};
use wire_format::{Offset, Timetick};

use super::segment::SEGMENT_HEADER_BYTES;
use crate::block::BlockHeader;

/// Bytes of blocks between two entries of the sparse index.
pub const INDEX_STEP_BYTES: u64 = 256 << 10;

/// A block that can be found without a scan.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// First offset of the block.
    pub offset: u64,
    /// First timetick of the block.
    pub timetick: u64,
    /// Where it begins in the file.
    pub position: u64,
}

/// Everything about a segment that a reader or a recovery needs to know without scanning it.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct Footer {
    /// Offset of the first message.
    pub base_offset: u64,
    /// Offset behind the last message.
    pub next_offset: u64,
    /// Timetick of the first message.
    pub first_timetick: u64,
    /// Timetick of the last message.
    pub last_timetick: u64,
    /// Largest term in it.
    pub term: u64,
    /// The segment's nonce; see [`super::segment::SegmentHeader`].
    pub nonce: u64,
    /// First byte behind the last block.
    pub end: u64,
    /// Blocks in it.
    pub blocks: u64,
    /// Every so many bytes a block, in order.
    pub index: Vec<IndexEntry>,
}

impl Footer {
    /// Of a segment that holds nothing yet and begins at `base_offset`.
    pub fn begin(base_offset: Offset, nonce: u64) -> Self {
        Self {
            base_offset: base_offset.get(),
            next_offset: base_offset.get(),
            end: SEGMENT_HEADER_BYTES,
            nonce,
            ..Self::default()
        }
    }

    /// Notes a block that stands at `position` and takes `len` bytes.
    pub fn add(&mut self, header: &BlockHeader, timeticks: (Timetick, Timetick), position: u64) {
        if self.first_timetick == 0 {
            self.first_timetick = timeticks.0.get();
        }
        if self
            .index
            .last()
            .is_none_or(|last| position - last.position >= INDEX_STEP_BYTES)
        {
            self.index.push(IndexEntry {
                offset: header.first_offset.get(),
                timetick: timeticks.0.get(),
                position,
            });
        }
        self.next_offset = header.next_offset.get();
        self.last_timetick = self.last_timetick.max(timeticks.1.get());
        self.term = self.term.max(header.term.get());
        self.end = position + header.disk_len();
        self.blocks += 1;
    }

    /// The part of it that lies before byte `position` and below `offset`, the first offset of the block there.
    pub fn before(&self, position: u64, offset: Offset) -> Self {
        let mut part = self.clone();
        if position < self.end {
            part.index.retain(|entry| entry.position < position);
            // How many blocks that are is not known exactly: one at least if any byte is.
            part.blocks = part.index.len() as u64;
        }
        (part.end, part.next_offset) = (position, offset.get());
        part
    }

    /// Position and first offset of the last indexed block at or before `offset`.
    pub fn indexed(&self, offset: Offset) -> Option<(u64, Offset)> {
        let after = self.index.partition_point(|entry| entry.offset <= offset.get());
        let entry = self.index.get(after.checked_sub(1)?)?;
        Some((entry.position, Offset(entry.offset)))
    }

    /// First offset of the last indexed block that begins at or before `timetick`.
    pub fn offset_at(&self, timetick: Timetick) -> Offset {
        let after = self.index.partition_point(|entry| entry.timetick <= timetick.get());
        let entry = after.checked_sub(1).and_then(|at| self.index.get(at));
        Offset(entry.map_or(self.base_offset, |entry| entry.offset))
    }

    /// The archive.
    pub fn to_bytes(&self) -> Result<AlignedVec, rancor::Error> {
        rkyv::to_bytes(self)
    }
}

/// A footer as it was read from the file, checked once.
pub struct StoredFooter {
    bytes: AlignedVec,
}

impl StoredFooter {
    /// Takes bytes whose crc was checked; says what is wrong if they are no footer.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        let mut aligned = AlignedVec::with_capacity(bytes.len());
        aligned.extend_from_slice(bytes);
        rkyv::access::<ArchivedFooter, rancor::Error>(&aligned).map_err(|e| e.to_string())?;
        Ok(Self { bytes: aligned })
    }

    /// The archive.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The footer, in place.
    pub fn get(&self) -> Option<&ArchivedFooter> {
        // Checked again each time: a few thousand entries at most, and no unsafe code for it.
        rkyv::access::<ArchivedFooter, rancor::Error>(&self.bytes).ok()
    }
}

impl ArchivedFooter {
    /// Position and first offset of the last indexed block at or before `offset`.
    pub fn indexed(&self, offset: Offset) -> Option<(u64, Offset)> {
        let index = &self.index;
        let after = index.partition_point(|entry| entry.offset.to_native() <= offset.get());
        let entry = index.get(after.checked_sub(1)?)?;
        Some((entry.position.to_native(), Offset(entry.offset.to_native())))
    }

    /// First offset of the last indexed block that begins at or before `timetick`.
    pub fn offset_at(&self, timetick: Timetick) -> Offset {
        let index = &self.index;
        let after = index.partition_point(|entry| entry.timetick.to_native() <= timetick.get());
        let entry = after.checked_sub(1).and_then(|at| index.get(at));
        Offset(entry.map_or(self.base_offset.to_native(), |entry| entry.offset.to_native()))
    }
}
