//! What stands at a place in a segment file, decided from bytes alone: used by readers, recovery and inspection.

use wire_format::{
    FormatError, Limits, Offset, Term,
    batch::{Door, Prefix, verify},
};

use crate::block::{
    ALIGNMENT, BLOCK_HEADER_BYTES, BlockFault, BlockHeader, RecordEntry, pchannel_hash, read_records, record_room,
};

/// What a block must be to be the next one of its log.
#[derive(Debug, Clone, Copy)]
pub struct Expect {
    /// Of the pchannel with this hash, where it is known,
    pub pchannel: Option<u64>,
    /// of this use of the file,
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
    let before = entries.len();
    match read_records(bytes, &header, entries) {
        // Where a file lost its header, its tag was learnt from its blocks: only the records tell whose they are.
        Ok(()) if !is_of(expect.pchannel, bytes, entries.get(before)) => {
            entries.truncate(before);
            Found::Invalid(BlockFault::Stale("another pchannel"))
        }
        Ok(()) => Found::Block(header),
        Err(fault) => Found::Broken(header, fault),
    }
}

fn is_of(pchannel: Option<u64>, bytes: &[u8], first: Option<&RecordEntry>) -> bool {
    let found = first.map(|entry| pchannel_hash(entry.view(bytes).pchannel()));
    found.is_none() || pchannel.is_none() || found == pchannel
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

/// Blocks of the same segment that begin or end in `bytes`, with their positions from the first byte (a block that ends here
/// may begin before), in order. Each is known by its header, its tail, or both.
///
/// This is how rot is told from a torn tail: a tail that was never synced is followed by no block that calls it committed.
pub fn blocks_in(bytes: &[u8], expect: Expect) -> impl Iterator<Item = (i64, BlockHeader)> + '_ {
    let pages = (0i64..).step_by(ALIGNMENT).zip(bytes.chunks(ALIGNMENT));
    pages
        .flat_map(|(at, page)| {
            let begins = BlockHeader::read(page).ok().map(|header| (at, header));
            let ends = BlockHeader::read_tail(page).ok().filter(|_| page.len() == ALIGNMENT);
            let end = at + page.len() as i64;
            let ends = ends.map(|header| (end - header.disk_len() as i64, header));
            begins.into_iter().chain(ends)
        })
        .filter(move |(_, header)| {
            staleness(header, &expect).is_none()
                && header.first_offset >= expect.due
                && header.next_offset > header.first_offset
        })
}

/// Which records may be taken from a place whose block can't be trusted as a whole.
#[derive(Debug, Clone, Copy)]
pub struct SalvageRule {
    /// Of the pchannel with this hash,
    pub pchannel_hash: u64,
    /// written under this term or a later one,
    pub min_term: Term,
    /// covering offsets from here on,
    pub due: Offset,
    /// and below this one.
    pub limit: Offset,
}

/// Finds the whole records in the bytes of a damaged block. `own` is its header, if that or the tail's copy is left. Returns
/// them with how many bytes are needed to see more of them, if not all of the block is here.
///
/// Where a record stands is known from the block's tail, or from the length of the one before if that one's meta checksum
/// holds. Nothing is searched for: bytes that a producer sent are never taken for a record.
pub fn salvage(bytes: &[u8], own: Option<&BlockHeader>, rule: &SalvageRule) -> (Vec<RecordEntry>, Option<u64>) {
    let mut taken = Taken {
        rule,
        due: rule.due,
        entries: Vec::new(),
    };
    if let Some(positions) = own.and_then(|own| own.positions(bytes)) {
        for at in positions {
            let _ = taken.record(bytes, at as usize);
        }
        return (taken.entries, None);
    }
    let end = own.map_or(bytes.len(), |own| BLOCK_HEADER_BYTES + own.body_len as usize);
    let mut at = BLOCK_HEADER_BYTES;
    while at < end.min(bytes.len()) {
        match taken.record(bytes, at) {
            Ok(next) => at = next,
            Err(more) => return (taken.entries, more),
        }
    }
    (taken.entries, None)
}

struct Taken<'r> {
    rule: &'r SalvageRule,
    due: Offset,
    entries: Vec<RecordEntry>,
}

impl Taken<'_> {
    /// Takes the record at a place if it is whole and wanted. Returns where the next one stands; if that can't be known, how
    /// many bytes might tell.
    fn record(&mut self, bytes: &[u8], at: usize) -> Result<usize, Option<u64>> {
        let rest = bytes.get(at..).unwrap_or_default();
        match verify(rest, Door::Storage, &Limits::WIDEST) {
            Ok(view) => {
                let (meta, rule) = (view.meta(), self.rule);
                let is_wanted = pchannel_hash(view.pchannel()) == rule.pchannel_hash
                    && meta.term >= rule.min_term
                    && meta.base_offset >= self.due
                    && meta.next_offset() <= rule.limit
                    && meta.span > 0;
                if is_wanted {
                    self.entries.push(RecordEntry::new(at as u32, view.layout(), &meta));
                    self.due = meta.next_offset();
                }
                Ok(at + record_room(view.bytes().len()))
            }
            // The meta checksum held, so the length is right.
            Err(FormatError::PayloadChecksum { .. }) => match Prefix::read(rest, &Limits::WIDEST) {
                Ok(prefix) => Ok(at + record_room(prefix.record_len())),
                Err(_) => Err(None),
            },
            Err(FormatError::Short { need, .. }) => Err(Some(at as u64 + need)),
            Err(_) => Err(None),
        }
    }
}
