//! A damaged place in a segment file: how far it reaches, which whole records lie in it, and what is lost.

use std::path::{Path, PathBuf};

use glommio::io::{DmaFile, ReadResult};
use wire_format::Offset;

use super::{
    files,
    scan::{Expect, SalvageRule, blocks_in, salvage},
};
use crate::{
    block::{BlockHeader, RecordEntry, align_up},
    wal::{Damage, WalError},
};

/// Files are searched in pieces of this size.
pub const PIECE_BYTES: u64 = 4 << 20;

/// Where a block should stand that is not whole.
pub struct Wound {
    /// Its first byte; aligned.
    pub position: u64,
    /// The first byte that no block of the file reaches.
    pub end: u64,
    /// The offset due behind all blocks of the file, if no later block tells.
    pub end_offset: Offset,
    /// The block's header, if that is whole.
    pub own: Option<BlockHeader>,
    /// What is wrong.
    pub detail: String,
}

/// A damaged place that was looked at.
pub struct Rubble {
    path: PathBuf,
    /// First byte behind it.
    pub to: u64,
    /// The offset due there.
    pub limit: Offset,
    detail: String,
    /// End of the last whole record told of, or the first byte of the place.
    told_to: u64,
    from: u64,
    /// Bytes of the place, from its first on.
    pub bytes: ReadResult,
    /// The whole records in it, in order. There may be gaps between them.
    pub entries: Vec<RecordEntry>,
}

impl Rubble {
    /// Looks at a wound of a log.
    pub async fn look(
        file: &DmaFile,
        path: &Path,
        pchannel_hash: u64,
        expect: Expect,
        wound: Wound,
    ) -> Result<Self, WalError> {
        let (own, to, limit) = extent(file, path, expect, &wound).await?;
        let rule = SalvageRule {
            pchannel_hash,
            min_term: expect.min_term,
            due: expect.due,
            limit,
        };
        let all = align_up(to.saturating_sub(wound.position));
        // The extent of a block without header and tail is not known: begin with a little.
        let mut len = if own.is_some() { all } else { all.min(PIECE_BYTES) };
        let (bytes, entries) = loop {
            if len == 0 {
                break (ReadResult::default(), Vec::new());
            }
            let bytes = files::read(file, path, wound.position, len).await?;
            let (entries, more) = salvage(&bytes, own.as_ref(), &rule);
            match more.map(|need| align_up(need).min(all)) {
                Some(need) if need > len => len = need,
                _ => break (bytes, entries),
            }
        };
        Ok(Self {
            path: path.to_owned(),
            to,
            limit,
            detail: wound.detail,
            told_to: wound.position,
            from: wound.position,
            bytes,
            entries,
        })
    }

    /// Describes what is lost between the last whole record told of and the whole record `until`, or the end of the place.
    pub fn lost(&self, first_offset: Offset, until: Option<&RecordEntry>) -> Damage {
        let (to, next_offset) = until.map_or((self.to, self.limit), |entry| {
            (self.from + u64::from(entry.at), entry.base_offset)
        });
        Damage {
            file: self.path.clone(),
            from: self.told_to,
            to,
            first_offset,
            next_offset,
            detail: self.detail.clone(),
        }
    }

    /// Notes that a whole record was told of.
    pub fn told(&mut self, entry: &RecordEntry) {
        self.told_to = self.from + u64::from(entry.at) + entry.layout.record_len() as u64;
    }
}

/// The block at a wound if its tail tells, and where the next one begins: position and offset.
async fn extent(
    file: &DmaFile,
    path: &Path,
    expect: Expect,
    wound: &Wound,
) -> Result<(Option<BlockHeader>, u64, Offset), WalError> {
    let of_own = |own: BlockHeader| {
        let to = (wound.position + own.disk_len()).min(wound.end);
        (Some(own), to, own.next_offset)
    };
    if let Some(own) = wound.own {
        return Ok(of_own(own));
    }
    let range = (wound.position, wound.end);
    let found = next_block(file, path, expect, range, |position, _| position >= wound.position).await?;
    Ok(match found {
        Some((position, own)) if position == wound.position && own.first_offset == expect.due => of_own(own),
        Some((position, next)) if position > wound.position || next.first_offset > expect.due => {
            (None, position, next.first_offset)
        }
        _ => (None, wound.end.max(wound.position), wound.end_offset),
    })
}

/// The first block of the segment that begins or ends in a range of a file and is `wanted`: its position and header.
pub async fn next_block(
    file: &DmaFile,
    path: &Path,
    expect: Expect,
    (from, to): (u64, u64),
    wanted: impl Fn(u64, &BlockHeader) -> bool,
) -> Result<Option<(u64, BlockHeader)>, WalError> {
    let mut at = from;
    while at < to {
        let bytes = files::read(file, path, at, PIECE_BYTES.min(align_up(to - at))).await?;
        let found = blocks_in(&bytes, expect)
            .filter_map(|(position, header)| Some((at.checked_add_signed(position)?, header)))
            .find(|(position, header)| wanted(*position, header));
        if found.is_some() || bytes.is_empty() {
            return Ok(found);
        }
        at += PIECE_BYTES;
    }
    Ok(None)
}
