//! What stands at a place in a segment file, decided from bytes alone: used by readers, recovery and inspection.

use wire_format::{Offset, Term};

use crate::block::{ALIGNMENT, BLOCK_HEADER_BYTES, BlockFault, BlockHeader, RecordEntry, read_records};

/// What a block must be to be the next one of its log.
#[derive(Debug, Clone, Copy)]
pub struct Expect {
    /// Of this pchannel,
    pub pchannel_hash: u64,
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
    if header.first_offset != expect.due {
        return Found::Invalid(BlockFault::Stale("another offset"));
    }
    if header.disk_len() > bytes.len() as u64 {
        return Found::NeedBytes(header.disk_len());
    }
    match read_records(bytes, &header, entries) {
        Ok(()) => Found::Block(header),
        Err(fault) => Found::Invalid(fault),
    }
}

fn staleness(header: &BlockHeader, expect: &Expect) -> Option<&'static str> {
    if header.pchannel_hash != expect.pchannel_hash {
        Some("another pchannel")
    } else if header.segment_index != expect.segment_index {
        Some("an earlier use of the file")
    } else if header.term < expect.min_term {
        Some("an older term")
    } else {
        None
    }
}

/// Searches `bytes` for a later block of the same segment: position and header of the first at or behind the offset due
/// whose committed offset proves that the place before it was whole once, if `proof` is asked for.
///
/// This is how rot is told from a torn tail: a tail that was never synced is followed by no block that calls it committed.
pub fn find_later(bytes: &[u8], expect: &Expect, proof: bool) -> Option<(u64, BlockHeader)> {
    let at_alignment = bytes.chunks(ALIGNMENT).enumerate();
    at_alignment
        .filter_map(|(page, bytes)| {
            BlockHeader::read(bytes)
                .ok()
                .map(|header| ((page * ALIGNMENT) as u64, header))
        })
        .find(|(_, header)| {
            staleness(header, expect).is_none()
                && header.first_offset >= expect.due
                && (!proof || header.committed > expect.due)
        })
}
