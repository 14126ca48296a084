//! A damaged place in a segment file: which whole records lie in it, and what is lost.

use std::{path::PathBuf, rc::Rc};

use glommio::io::{DmaFile, ReadResult};
use wire_format::Offset;

use super::{
    files,
    scan::{Expect, SalvageRule, later_headers, salvage},
};
use crate::{
    block::{ALIGNMENT, BlockHeader, RecordEntry, align_up},
    wal::{Damage, WalError},
};

/// A damaged place is gone through in pieces of this size.
pub const PIECE_BYTES: u64 = 4 << 20;

/// A damaged place, gone through once from its beginning to its end.
pub struct Rubble {
    pub file: Rc<DmaFile>,
    pub path: PathBuf,
    /// What to take; its `due` moves on.
    pub rule: SalvageRule,
    /// First byte behind it.
    pub to: u64,
    /// What is wrong.
    pub detail: String,
    /// Where to look next.
    at: u64,
    /// End of the last whole record, or the first byte of the place.
    whole_to: u64,
}

/// Whole records of a damaged place. There may be gaps between them.
pub struct Piece {
    pub bytes: ReadResult,
    /// Where the bytes begin in the file.
    pub from: u64,
    /// Positions count from the first of `bytes`.
    pub entries: Vec<RecordEntry>,
}

impl Rubble {
    /// The place from byte `from` to `to` of a file. `from` is aligned.
    pub fn new(file: Rc<DmaFile>, path: PathBuf, (from, to): (u64, u64), rule: SalvageRule, detail: String) -> Self {
        Self {
            file,
            path,
            rule,
            to,
            detail,
            at: from,
            whole_to: from,
        }
    }

    /// The next whole records; `None` behind the last. Reads as far as the first piece that holds any.
    pub async fn next(&mut self) -> Result<Option<Piece>, WalError> {
        let mut len = PIECE_BYTES;
        while self.at < self.to {
            let from = self.at / ALIGNMENT as u64 * ALIGNMENT as u64;
            let wanted = len.min(align_up(self.to) - from);
            let bytes = files::read(&self.file, &self.path, from, wanted).await?;
            let mut entries = Vec::new();
            let next = from + salvage(&bytes, (self.at - from) as usize, &mut self.rule, &mut entries) as u64;
            let is_last = (bytes.len() as u64) < wanted || from + wanted >= self.to;
            if next == self.at && !is_last {
                len *= 4; // a record longer than the piece
                continue;
            }
            // At the last piece a record that seems to go on can't be whole: look behind its first bytes.
            self.at = match is_last {
                true if next >= from + bytes.len() as u64 => self.to,
                true => next.max(self.at) + if entries.is_empty() { 8 } else { 0 },
                false => next,
            };
            if !entries.is_empty() {
                return Ok(Some(Piece { bytes, from, entries }));
            }
        }
        Ok(None)
    }

    /// Describes what is lost between the last whole record and `until`, a byte of the file.
    pub fn damage(&self, first: Offset, next: Offset, until: u64) -> Damage {
        Damage {
            file: self.path.clone(),
            from: self.whole_to,
            to: until,
            first_offset: first,
            next_offset: next,
            detail: self.detail.clone(),
        }
    }

    /// Notes that everything up to `position` was told of.
    pub fn told_to(&mut self, position: u64) {
        self.whole_to = position;
    }
}

/// The first later block of the segment from byte `from` on, below `to`.
pub async fn next_header(
    file: &DmaFile,
    path: &std::path::Path,
    expect: Expect,
    (from, to): (u64, u64),
    wanted: impl Fn(&BlockHeader) -> bool,
) -> Result<Option<(u64, BlockHeader)>, WalError> {
    let mut at = from;
    while at < to {
        let bytes = files::read(file, path, at, PIECE_BYTES.min(align_up(to) - at)).await?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if let Some((found, header)) = later_headers(&bytes, expect).find(|(_, header)| wanted(header)) {
            return Ok(Some((at + found, header)).filter(|(position, _)| *position < to));
        }
        at += PIECE_BYTES;
    }
    Ok(None)
}
