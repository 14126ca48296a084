//! Footer of a sealed segment: a sparse index and the segment's extent, an rkyv archive read in place.

use rkyv::{Archive, Deserialize, Serialize, rancor, util::AlignedVec};
use wire_format::{Offset, Timetick};

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
    /// First byte behind the last block.
    pub end: u64,
    /// Blocks in it.
    pub blocks: u64,
    /// Every so many bytes a block, in order.
    pub index: Vec<IndexEntry>,
}

impl Footer {
    /// Notes a block that was placed at `position`.
    pub fn add(
        &mut self,
        offsets: (Offset, Offset),
        timeticks: (Timetick, Timetick),
        term: u64,
        position: u64,
        len: u64,
    ) {
        if self.blocks == 0 {
            self.base_offset = offsets.0.get();
            self.first_timetick = timeticks.0.get();
        }
        if self
            .index
            .last()
            .is_none_or(|last| position - last.position >= INDEX_STEP_BYTES)
        {
            self.index.push(IndexEntry {
                offset: offsets.0.get(),
                timetick: timeticks.0.get(),
                position,
            });
        }
        self.next_offset = offsets.1.get();
        self.last_timetick = timeticks.1.get();
        self.term = self.term.max(term);
        self.end = position + len;
        self.blocks += 1;
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

    /// The footer, in place.
    pub fn get(&self) -> Option<&ArchivedFooter> {
        // Checked again: a few hundred entries at most, and no unsafe code for it.
        rkyv::access::<ArchivedFooter, rancor::Error>(&self.bytes).ok()
    }
}

impl ArchivedFooter {
    /// Position of the last indexed block that begins at or before `offset`.
    pub fn position_of(&self, offset: Offset) -> u64 {
        let after = self
            .index
            .partition_point(|entry| entry.offset.to_native() <= offset.get());
        let entry = after.checked_sub(1).and_then(|at| self.index.get(at));
        entry.map_or(super::segment::SEGMENT_HEADER_BYTES, |entry| entry.position.to_native())
    }

    /// First offset of the last indexed block that begins at or before `timetick`.
    pub fn offset_at(&self, timetick: Timetick) -> Offset {
        let after = self
            .index
            .partition_point(|entry| entry.timetick.to_native() <= timetick.get());
        let entry = after.checked_sub(1).and_then(|at| self.index.get(at));
        Offset(entry.map_or(self.base_offset.to_native(), |entry| entry.offset.to_native()))
    }
}
