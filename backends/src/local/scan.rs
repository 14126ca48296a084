//! What stands at a place in a segment file, decided from bytes alone: used by readers, recovery and inspection.

use wire_format::{
    FormatError, Limits, Offset, Term,
    batch::{Door, MAGIC, Prefix, verify},
};

use crate::block::{ALIGNMENT, BLOCK_HEADER_BYTES, BlockFault, BlockHeader, RecordEntry, read_records, record_room};

/// What a block must be to be the next one of its log.
#[derive(Debug, Clone, Copy)]
pub struct Expect {
    /// Of this pchannel and this use of the file,
    pub tag: u64,
    /// in this segment,
    pub segment_index: u64,
    /// with this first offset,
    pub due: Offset,
    /// written under this term or a later one.
    pub min_term: Term,
}

/// What stands at the beginning of some bytes.
#[derive(Debug)]
pub enum Found {
    /// The block that is due, verified; its entries were appended, counted from the beginning of these bytes.
    Block(BlockHeader),
    /// The block that is due begins here, but more bytes are needed: this many from its beginning.
    NeedBytes(u64),
    /// The header is the one that is due, but the records behind it are broken: the block's extent is known.
    Broken(BlockHeader, BlockFault),
    /// Anything else.
    Invalid(BlockFault),
}

/// Looks at the bytes at one place.
pub fn look(bytes: &[u8], expect: &Expect, entries: &mut Vec<RecordEntry>) -> Found {
    if bytes.len() < BLOCK_HEADER_BYTES {
        return Found::NeedBytes(ALIGNMENT as u64);
    }
    let header = match BlockHeader::read(bytes) {
        Ok(header) => header,
        Err(fault) => return Found::Invalid(fault),
    };
    if let Some(why) = staleness(&header, expect) {
        return Found::Invalid(BlockFault::Stale(why));
    }
    if header.first_offset != expect.due || header.next_offset <= header.first_offset {
        return Found::Invalid(BlockFault::Stale("another offset"));
    }
    if header.disk_len() > bytes.len() as u64 {
        return Found::NeedBytes(header.disk_len());
    }
    match read_records(bytes, &header, entries) {
        Ok(()) => Found::Block(header),
        Err(fault) => Found::Broken(header, fault),
    }
}

fn staleness(header: &BlockHeader, expect: &Expect) -> Option<&'static str> {
    if header.tag != expect.tag {
        Some("another pchannel, or an earlier use of the file")
    } else if header.segment_index != expect.segment_index {
        Some("another segment")
    } else if header.term < expect.min_term {
        Some("an older term")
    } else {
        None
    }
}

/// Headers of later blocks of the same segment in `bytes`, with their positions, in order of position.
///
/// This is how rot is told from a torn tail: a tail that was never synced is followed by no block that calls it committed.
pub fn later_headers(bytes: &[u8], expect: Expect) -> impl Iterator<Item = (u64, BlockHeader)> + '_ {
    let pages = (0u64..).step_by(ALIGNMENT).zip(bytes.chunks(ALIGNMENT));
    pages
        .filter_map(|(at, page)| Some((at, BlockHeader::read(page).ok()?)))
        .filter(move |(_, header)| {
            staleness(header, &expect).is_none()
                && header.first_offset >= expect.due
                && header.next_offset > header.first_offset
        })
}

/// Which records may be taken from a place whose block can't be trusted as a whole.
#[derive(Debug, Clone)]
pub struct SalvageRule {
    /// Of this pchannel,
    pub pchannel: String,
    /// written under this term or a later one,
    pub min_term: Term,
    /// covering offsets from here on,
    pub due: Offset,
    /// and below this one.
    pub limit: Offset,
}

/// Finds whole records in bytes of a damaged place, from `from` on. They are appended to `entries`, and `rule.due` moves
/// behind them. Returns where to go on: with bytes from there on, longer than these, if a record may end behind these; the
/// end otherwise.
///
/// A record is believed only if all its checksums hold and its offsets lie in the gap. The bytes of a record whose payload
/// is broken are skipped: nothing that a producer sent is ever taken for a record.
pub fn salvage(bytes: &[u8], from: usize, rule: &mut SalvageRule, entries: &mut Vec<RecordEntry>) -> usize {
    let mut at = from;
    while let Some(start) = next_magic(bytes, at) {
        let rest = &bytes[start..];
        at = match verify(rest, Door::Storage, &Limits::WIDEST) {
            Ok(view) => {
                let (meta, room) = (view.meta(), record_room(view.bytes().len()));
                let wanted = view.pchannel() == rule.pchannel
                    && meta.term >= rule.min_term
                    && meta.base_offset >= rule.due
                    && meta.next_offset() <= rule.limit
                    && meta.span > 0;
                if wanted {
                    entries.push(RecordEntry::new(start as u32, view.layout(), &meta));
                    rule.due = meta.next_offset();
                }
                start + room
            }
            Err(FormatError::Short { .. }) => return start,
            // Here the meta checksum held, so the length is right.
            Err(FormatError::PayloadChecksum { .. }) => {
                start + Prefix::read(rest, &Limits::WIDEST).map_or(8, |prefix| record_room(prefix.record_len()))
            }
            Err(_) => start + 8,
        };
    }
    bytes.len().max(at)
}

/// Records begin at multiples of 8.
fn next_magic(bytes: &[u8], from: usize) -> Option<usize> {
    let magic = MAGIC.to_le_bytes();
    let found = bytes.get(from..)?.chunks(8).position(|bytes| bytes.starts_with(&magic));
    found.map(|steps| from + steps * 8)
}
