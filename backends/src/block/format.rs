//! The bytes of a block, without any I/O.
//!
//! ```text
//!  0                      64                                              disk_len (a multiple of 4096)
//!  +----------------------+----------+-----+----------+-----+-------+-----+
//!  | header (crc of itself)| record 0 | pad8| record 1 | pad8| zeros | tail |
//!  +----------------------+----------+-----+----------+-----+-------+-----+
//!  header: magic u32 | crc32c u32 of bytes 8..64 | tag u64 | segment index u64 | term u64 | first offset u64
//!          | next offset u64 | committed offset u64 | body length u32 | record count u32
//!  tail:   position u32 of each record | crc32c u32 of the positions | zero u32 | the header again, with another magic
//! ```
//! A block is believed only where its tag (pchannel and use of the file), segment, term and first offset are the ones due, so
//! what a recycled file held before, or what a crashed term wrote beyond its last ack, can never come back. Records carry
//! their own checksums. The tail is looked at only when something else of the block is broken: it tells which block this was
//! and where its other records stand, so that nothing has to be searched for between bytes that producers sent.

use thiserror::Error;
use wire_format::{
    FormatError, Limits, Offset, Term, Timetick,
    batch::{BatchView, Door, Layout, Meta, verify},
    crc::crc32c,
};

/// Writes begin and end at multiples of this.
pub const ALIGNMENT: usize = 4096;
/// Bytes in front of the first record.
pub const BLOCK_HEADER_BYTES: usize = 64;
/// Bytes behind the positions of the records.
pub const BLOCK_TAIL_BYTES: usize = 8 + BLOCK_HEADER_BYTES;
/// Bytes that each record takes in the tail.
const POSITION_BYTES: usize = 4;
/// "LNBK", little endian.
const MAGIC: u32 = 0x4b42_4e4c;
/// "LNBT", little endian.
const TAIL_MAGIC: u32 = 0x5442_4e4c;

/// The smallest multiple of [`ALIGNMENT`] that holds `bytes`.
pub const fn align_up(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGNMENT as u64) * ALIGNMENT as u64
}

/// Bytes that a record of `len` bytes takes in a block: records begin at multiples of 8.
pub const fn record_room(len: usize) -> usize {
    len.div_ceil(8) * 8
}

/// Bytes on disk of a block with `records` records that take `body` bytes.
pub const fn block_len(body: u64, records: u64) -> u64 {
    align_up(BLOCK_HEADER_BYTES as u64 + body + records * POSITION_BYTES as u64 + BLOCK_TAIL_BYTES as u64)
}

/// What a block says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// [`pchannel_hash`] of its pchannel, mixed with the nonce of its segment.
    pub tag: u64,
    /// Index of the segment that it was written to.
    pub segment_index: u64,
    /// Term of the owner that wrote it.
    pub term: Term,
    /// Offset of its first message.
    pub first_offset: Offset,
    /// Offset behind its last message.
    pub next_offset: Offset,
    /// Everything below was durable when the block was written. A broken block below a later block's committed offset was
    /// whole once: that is rot, and no torn tail.
    pub committed: Offset,
    /// Bytes of records, with their padding.
    pub body_len: u32,
    /// Records in it.
    pub record_count: u32,
}

/// Why bytes are no block that is due here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BlockFault {
    /// No block was ever finished here: other magic, or a header that does not match its checksum.
    #[error("no block header")]
    NoHeader,
    /// A block of another pchannel, segment, term or offset: left over from an earlier use of the file.
    #[error("a stale block ({0})")]
    Stale(&'static str),
    /// The header is right but the file or the read ends before the body does.
    #[error("the block needs {need} bytes, {have} are there")]
    Short {
        /// Bytes of the whole block.
        need: u64,
        /// Bytes there are.
        have: u64,
    },
    /// The header is right but a record is broken.
    #[error("record {index} of the block: {fault}")]
    Record {
        /// Which record.
        index: u32,
        /// What is wrong with it.
        fault: FormatError,
    },
    /// The records do not add up to what the header says.
    #[error("the block says {says} {what}, its records give {gives}")]
    Sum {
        /// What was counted.
        what: &'static str,
        /// The header's value.
        says: u64,
        /// The records' value.
        gives: u64,
    },
}

/// The hash that ties blocks to a pchannel.
pub fn pchannel_hash(pchannel: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(pchannel.as_bytes())
}

impl BlockHeader {
    /// Bytes on disk, padding and tail included.
    pub fn disk_len(&self) -> u64 {
        block_len(u64::from(self.body_len), u64::from(self.record_count))
    }

    /// Writes header and tail into `block`, which has [`disk_len`](Self::disk_len) bytes, with the positions of the records.
    pub fn write(&self, block: &mut [u8], positions: impl Iterator<Item = u32>) {
        let tail_at = block.len() - BLOCK_TAIL_BYTES;
        let positions_at = tail_at - POSITION_BYTES * self.record_count as usize;
        for (place, position) in block[positions_at..tail_at]
            .chunks_exact_mut(POSITION_BYTES)
            .zip(positions)
        {
            place.copy_from_slice(&position.to_le_bytes());
        }
        let crc = crc32c(&block[positions_at..tail_at]);
        block[tail_at..tail_at + 4].copy_from_slice(&crc.to_le_bytes());
        block[tail_at + 4..tail_at + 8].fill(0);
        self.write_part(&mut block[tail_at + 8..], TAIL_MAGIC);
        self.write_part(block, MAGIC);
    }

    fn write_part(&self, out: &mut [u8], magic: u32) {
        let longs = [
            self.tag,
            self.segment_index,
            self.term.get(),
            self.first_offset.get(),
            self.next_offset.get(),
            self.committed.get(),
        ];
        out[..4].copy_from_slice(&magic.to_le_bytes());
        for (at, value) in (8..).step_by(8).zip(longs) {
            out[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        out[56..60].copy_from_slice(&self.body_len.to_le_bytes());
        out[60..64].copy_from_slice(&self.record_count.to_le_bytes());
        let crc = crc32c(&out[8..BLOCK_HEADER_BYTES]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads a header that matches its checksum, of whatever pchannel and offset.
    pub fn read(bytes: &[u8]) -> Result<Self, BlockFault> {
        Self::read_part(bytes, MAGIC)
    }

    /// Reads the header's copy at the end of `bytes`, where a block may end.
    pub fn read_tail(bytes: &[u8]) -> Result<Self, BlockFault> {
        let at = bytes
            .len()
            .checked_sub(BLOCK_HEADER_BYTES)
            .ok_or(BlockFault::NoHeader)?;
        Self::read_part(&bytes[at..], TAIL_MAGIC)
    }

    /// The positions of the records in `block`, which is as long as the header says; `None` if they are damaged.
    pub fn positions(&self, block: &[u8]) -> Option<Vec<u32>> {
        let tail_at = (self.disk_len() as usize).checked_sub(BLOCK_TAIL_BYTES)?;
        let at = tail_at.checked_sub(POSITION_BYTES * self.record_count as usize)?;
        let (positions, crc) = (block.get(at..tail_at)?, block.get(tail_at..tail_at + 4)?);
        if crc != crc32c(positions).to_le_bytes() {
            return None;
        }
        let positions = positions.as_chunks::<POSITION_BYTES>().0.iter();
        Some(positions.map(|bytes| u32::from_le_bytes(*bytes)).collect())
    }

    fn read_part(bytes: &[u8], magic: u32) -> Result<Self, BlockFault> {
        let head = bytes.first_chunk::<BLOCK_HEADER_BYTES>().ok_or(BlockFault::NoHeader)?;
        let short = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
        if short(0) != magic || short(4) != crc32c(&head[8..]) {
            return Err(BlockFault::NoHeader);
        }
        Ok(Self {
            tag: long(8),
            segment_index: long(16),
            term: Term(long(24)),
            first_offset: Offset(long(32)),
            next_offset: Offset(long(40)),
            committed: Offset(long(48)),
            body_len: short(56),
            record_count: short(60),
        })
    }
}

/// One record in a block that was verified.
#[derive(Debug, Clone, Copy)]
pub struct RecordEntry {
    /// Where it begins, from the block's first byte.
    pub at: u32,
    /// Where its parts stand.
    pub layout: Layout,
    /// Offset of its first message.
    pub base_offset: Offset,
    /// Offset behind its last message.
    pub next_offset: Offset,
    /// Its first timetick.
    pub min_timetick: Timetick,
    /// Its last timetick.
    pub max_timetick: Timetick,
}

impl RecordEntry {
    /// The entry of a record at `at`.
    pub fn new(at: u32, layout: Layout, meta: &Meta) -> Self {
        Self {
            at,
            layout,
            base_offset: meta.base_offset,
            next_offset: meta.next_offset(),
            min_timetick: meta.min_timetick,
            max_timetick: meta.max_timetick,
        }
    }

    /// The record's view in its block.
    pub fn view<'a>(&self, block: &'a [u8]) -> BatchView<'a> {
        BatchView::new(&block[self.at as usize..], self.layout)
    }
}

/// Verifies the records of a block whose header was read from the same bytes, and appends their entries to `entries`
/// (positions count from the first byte of `block`).
///
/// All or nothing: on an error `entries` is as it was. Costs one crc32c pass.
pub fn read_records(block: &[u8], header: &BlockHeader, entries: &mut Vec<RecordEntry>) -> Result<(), BlockFault> {
    let before = entries.len();
    let result = append_records(block, header, entries);
    if result.is_err() {
        entries.truncate(before);
    }
    result
}

fn append_records(block: &[u8], header: &BlockHeader, entries: &mut Vec<RecordEntry>) -> Result<(), BlockFault> {
    let end = BLOCK_HEADER_BYTES + header.body_len as usize;
    let Some(body) = block.get(..end) else {
        return Err(BlockFault::Short {
            need: header.disk_len(),
            have: block.len() as u64,
        });
    };
    let (mut at, mut due) = (BLOCK_HEADER_BYTES, header.first_offset);
    for index in 0..header.record_count {
        let rest = body.get(at..).unwrap_or_default();
        let view = verify(rest, Door::Storage, &Limits::WIDEST).map_err(|fault| BlockFault::Record { index, fault })?;
        let meta = view.meta();
        if meta.base_offset != due {
            return Err(BlockFault::Sum {
                what: "offset",
                says: due.get(),
                gives: meta.base_offset.get(),
            });
        }
        entries.push(RecordEntry::new(at as u32, view.layout(), &meta));
        due = meta.next_offset();
        at += record_room(view.bytes().len());
    }
    if due != header.next_offset {
        return Err(BlockFault::Sum {
            what: "next offset",
            says: header.next_offset.get(),
            gives: due.get(),
        });
    }
    if at != end {
        return Err(BlockFault::Sum {
            what: "body bytes",
            says: header.body_len.into(),
            gives: (at - BLOCK_HEADER_BYTES) as u64,
        });
    }
    Ok(())
}
