//! Going through the blocks of the files.

use std::{collections::BTreeMap, io, path::PathBuf};

use wire_format::{Bytes, Offset, Term, Timetick};

use super::{
    super::{
        rubble::PIECE_BYTES,
        scan::{Expect, Found, SalvageRule, blocks_in, look, salvage},
        segment::SEGMENT_HEADER_BYTES,
    },
    InspectOptions, Part, SegmentInspection, SegmentState,
    file::SegmentBytes,
};
use crate::{
    block::{ALIGNMENT, BlockHeader, RecordEntry},
    wal::Damage,
};

pub struct Walk<'p> {
    options: InspectOptions,
    /// Everything below was durable: what is broken there is damage.
    proven: Offset,
    progress: &'p mut dyn FnMut(Bytes, Bytes),
    done: u64,
    total: u64,
    pub pchannel: Option<String>,
    pchannel_hash: u64,
}

/// One file while it is gone through.
struct Visit<'f> {
    file: &'f SegmentBytes,
    found: SegmentInspection,
    position: u64,
    due: Offset,
    term: Term,
    /// Base of the next file in use.
    next_base: Option<Offset>,
}

impl<'p> Walk<'p> {
    pub fn new(options: InspectOptions, proven: Offset, progress: &'p mut dyn FnMut(Bytes, Bytes)) -> Self {
        Self {
            options,
            proven,
            progress,
            done: 0,
            total: 0,
            pchannel: None,
            pchannel_hash: 0,
        }
    }

    pub fn all(&mut self, files: Vec<(u64, PathBuf)>) -> io::Result<Vec<SegmentInspection>> {
        let mut opened = Vec::with_capacity(files.len());
        for (index, path) in files {
            opened.push(SegmentBytes::open(index, path)?);
        }
        for file in &opened {
            let next = file
                .footer
                .as_ref()
                .map_or(Offset::ZERO, |footer| Offset(footer.next_offset));
            self.proven = self.proven.max(next);
        }
        self.pchannel_hash = opened.iter().find_map(|file| file.pchannel_hash).unwrap_or_default();
        self.total = opened
            .iter()
            .filter(|file| self.reads(file))
            .map(SegmentBytes::blocks_end)
            .sum();
        let mut found = Vec::with_capacity(opened.len());
        for (at, file) in opened.iter().enumerate() {
            let later = &opened[at + 1..];
            found.push(self.segment(file, later)?);
        }
        (self.progress)(Bytes(self.total), Bytes(self.total));
        Ok(found)
    }

    /// Whether the blocks of a file are read.
    fn reads(&self, file: &SegmentBytes) -> bool {
        file.identity.is_some() && (file.footer.is_none() || self.options.verify || self.options.vchannels)
    }

    fn segment(&mut self, file: &SegmentBytes, later: &[SegmentBytes]) -> io::Result<SegmentInspection> {
        let is_last = later.iter().all(|file| file.identity.is_none());
        let state = match (&file.footer, file.identity) {
            (Some(_), _) => SegmentState::Sealed,
            (None, Some(_)) => SegmentState::Open,
            (None, None) if file.is_unused && is_last => SegmentState::Prepared,
            (None, None) => SegmentState::Unknown,
        };
        let base = file.identity.map_or(Offset::ZERO, |(base, _)| base);
        let mut found = SegmentInspection {
            file: file.path.clone(),
            index: file.index,
            state,
            size: Bytes(file.size),
            used: Bytes(0),
            base_offset: base,
            next_offset: base,
            first_timetick: Timetick::ZERO,
            last_timetick: Timetick::ZERO,
            terms: (Term::ZERO, Term::ZERO),
            blocks: 0,
            records: None,
            messages: 0,
            verified: false,
            header: file.header_part.clone(),
            footer: file.footer_part.clone(),
            trailer: file.trailer_part.clone(),
            damage: Vec::new(),
            torn_tail: None,
            vchannels: BTreeMap::new(),
        };
        if state == SegmentState::Prepared {
            (found.header, found.footer, found.trailer) = (Part::Absent, Part::Absent, Part::Absent);
        }
        if !self.reads(file) {
            if let Some(footer) = &file.footer {
                found.next_offset = Offset(footer.next_offset);
                found.first_timetick = Timetick(footer.first_timetick);
                found.last_timetick = Timetick(footer.last_timetick);
                found.terms = (Term(footer.term), Term(footer.term));
                (found.blocks, found.used) = (footer.blocks, Bytes(footer.end));
                found.messages = footer.next_offset - footer.base_offset;
            }
            return Ok(found);
        }
        let visit = Visit {
            file,
            found,
            position: SEGMENT_HEADER_BYTES,
            due: base,
            term: Term::ZERO,
            next_base: later.iter().find_map(|file| file.identity).map(|(base, _)| base),
        };
        self.blocks(visit, later)
    }

    fn blocks(&mut self, mut visit: Visit<'_>, later: &[SegmentBytes]) -> io::Result<SegmentInspection> {
        let (file, end) = (visit.file, visit.file.blocks_end());
        let done_before = self.done;
        let mut len = PIECE_BYTES;
        let mut entries = Vec::new();
        visit.found.records = Some(0);
        loop {
            let bytes = file.read(visit.position, len.min(end.saturating_sub(visit.position)))?;
            let is_all = visit.position + bytes.len() as u64 >= end.min(file.size);
            let (used, stop) = self.window(&mut visit, &bytes, is_all, &mut entries);
            visit.position += used;
            self.done = done_before + visit.position.min(end);
            (self.progress)(Bytes(self.done), Bytes(self.total.max(self.done)));
            len = if used == 0 && stop.is_none() {
                len * 4
            } else {
                PIECE_BYTES
            };
            let Some((detail, own)) = stop else { continue };
            if self.is_end(&visit) {
                break;
            }
            if !self.is_proven(&visit, own, later)? {
                let is_begun = own.is_some() || !matches!(detail.as_str(), "no block header");
                visit.found.torn_tail = (is_begun && visit.position < end).then_some(detail);
                break;
            }
            self.wound(&mut visit, detail, own)?;
        }
        self.done = done_before + end;
        let mut found = visit.found;
        (found.next_offset, found.used) = (visit.due, Bytes(visit.position));
        found.verified = true;
        if let Some(footer) = &file.footer
            && (Offset(footer.next_offset), footer.end) != (visit.due, visit.position)
        {
            let detail = format!(
                "it says that the blocks end at byte {} and offset {}",
                footer.end, footer.next_offset
            );
            found.footer = Part::Damaged(detail);
        }
        Ok(found)
    }

    /// Whether the blocks of the file end here as they should.
    fn is_end(&self, visit: &Visit<'_>) -> bool {
        let footer = visit.file.footer.as_ref();
        footer.is_some_and(|footer| Offset(footer.next_offset) <= visit.due) || visit.next_base == Some(visit.due)
    }

    /// As recovery decides it: whether what should stand here was durable once.
    fn is_proven(&self, visit: &Visit<'_>, own: Option<BlockHeader>, later: &[SegmentBytes]) -> io::Result<bool> {
        if self.proven > visit.due {
            return Ok(true);
        }
        let skip = own.map_or(ALIGNMENT as u64, |own| own.disk_len());
        let here = std::iter::once((visit.file, visit.position + skip));
        for (file, from) in here.chain(later.iter().map(|file| (file, SEGMENT_HEADER_BYTES))) {
            let expect = expect(file, visit.due, visit.term);
            let wanted = |_, header: &BlockHeader| header.committed > visit.due;
            if next_block(file, expect, from, wanted)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes all whole blocks at the beginning of `bytes`. Returns their length and why the next is none.
    #[allow(clippy::type_complexity)] // read by one caller, two lines away
    fn window(
        &mut self,
        visit: &mut Visit<'_>,
        bytes: &[u8],
        is_all: bool,
        entries: &mut Vec<RecordEntry>,
    ) -> (u64, Option<(String, Option<BlockHeader>)>) {
        let mut at = 0;
        loop {
            entries.clear();
            let rest = &bytes[at as usize..];
            let expect = expect(visit.file, visit.due, visit.term);
            match look(rest, &expect, entries) {
                Found::Block(header) => {
                    let block = &rest[..header.disk_len() as usize];
                    self.count(visit, block, entries);
                    visit.found.blocks += 1;
                    let lowest = if visit.found.blocks == 1 {
                        header.term
                    } else {
                        visit.found.terms.0
                    };
                    visit.found.terms = (lowest, header.term);
                    if BlockHeader::read_tail(block) != Ok(header) || header.positions(block).is_none() {
                        let detail = "the block's tail is broken; its records are whole".to_owned();
                        let from = visit.position + at;
                        let offsets = (header.first_offset, header.first_offset);
                        let damage = damage(visit, (from, from + header.disk_len()), offsets, detail);
                        visit.found.damage.push(damage);
                    }
                    (visit.due, visit.term) = (header.next_offset, header.term);
                    at += header.disk_len();
                }
                Found::NeedBytes(need) if is_all => {
                    let own = BlockHeader::read(rest).ok();
                    let detail = format!("{need} bytes are needed, {} are there", rest.len());
                    return (at, Some((detail, own)));
                }
                Found::NeedBytes(_) => return (at, None),
                Found::Broken(header, fault) => return (at, Some((fault.to_string(), Some(header)))),
                Found::Invalid(fault) => return (at, Some((fault.to_string(), None))),
            }
        }
    }

    fn count(&mut self, visit: &mut Visit<'_>, bytes: &[u8], entries: &[RecordEntry]) {
        for entry in entries {
            let view = entry.view(bytes);
            if self.pchannel.is_none() {
                self.pchannel = Some(view.pchannel().to_owned());
            }
            let found = &mut visit.found;
            found.records = Some(found.records.unwrap_or_default() + 1);
            found.messages += u64::from(view.count());
            if found.first_timetick == Timetick::ZERO {
                found.first_timetick = entry.min_timetick;
            }
            found.last_timetick = found.last_timetick.max(entry.max_timetick);
            if self.options.vchannels {
                let names: Vec<&str> = view.vchannels().collect();
                for header in view.headers() {
                    let name = names.get(usize::from(header.vchannel())).copied().unwrap_or_default();
                    match found.vchannels.get_mut(name) {
                        Some(count) => *count += 1,
                        None => drop(found.vchannels.insert(name.to_owned(), 1)),
                    }
                }
            }
        }
    }

    /// Notes what is lost at a broken block, counts what is whole in it, and goes behind it.
    fn wound(&mut self, visit: &mut Visit<'_>, detail: String, own: Option<BlockHeader>) -> io::Result<()> {
        let (file, from, end) = (visit.file, visit.position, visit.file.blocks_end());
        let expected = expect(file, visit.due, visit.term);
        let next = match own {
            Some(own) => Some((from, own)),
            None => next_block(file, expected, from, |position, _| position >= from)?,
        };
        let footer_next = file.footer.as_ref().map(|footer| Offset(footer.next_offset));
        let next_base = visit.next_base.filter(|&base| base > visit.due);
        let (own, to, limit) = match next {
            Some((position, own)) if position == from && own.first_offset == visit.due => {
                (Some(own), from + own.disk_len(), own.next_offset)
            }
            Some((position, next)) if position > from || next.first_offset > visit.due => {
                (None, position, next.first_offset)
            }
            _ => (None, end.max(from), footer_next.or(next_base).unwrap_or(self.proven)),
        };
        let rule = SalvageRule {
            pchannel_hash: self.pchannel_hash,
            min_term: visit.term,
            due: visit.due,
            limit,
        };
        let bytes = file.read(from, to - from)?;
        let (entries, _) = salvage(&bytes, own.as_ref(), &rule);
        self.count(visit, &bytes, &entries);
        let mut whole_to = from;
        for entry in &entries {
            let at = from + u64::from(entry.at);
            if entry.base_offset > visit.due {
                let offsets = (visit.due, entry.base_offset);
                let damage = damage(visit, (whole_to, at), offsets, detail.clone());
                visit.found.damage.push(damage);
            }
            whole_to = at + entry.layout.record_len() as u64;
            visit.due = entry.next_offset;
        }
        if limit > visit.due || entries.is_empty() || whole_to == from {
            let damage = damage(visit, (whole_to, to), (visit.due, limit.max(visit.due)), detail);
            visit.found.damage.push(damage);
        } else if visit.found.damage.last().is_none_or(|last| last.from < from) {
            // All records are whole: the header is what was lost.
            let damage = damage(visit, (from, to), (limit, limit), detail);
            visit.found.damage.push(damage);
        }
        (visit.due, visit.position) = (limit.max(visit.due), to);
        Ok(())
    }
}

fn expect(file: &SegmentBytes, due: Offset, min_term: Term) -> Expect {
    Expect {
        pchannel: file.pchannel_hash,
        tag: file.identity.map_or(0, |(_, tag)| tag),
        segment_index: file.index,
        due,
        min_term,
    }
}

fn damage(visit: &Visit<'_>, bytes: (u64, u64), offsets: (Offset, Offset), detail: String) -> Damage {
    Damage {
        file: visit.file.path.clone(),
        from: bytes.0,
        to: bytes.1,
        first_offset: offsets.0,
        next_offset: offsets.1,
        detail,
    }
}

/// The first block that begins or ends behind byte `from` of a file and is wanted.
fn next_block(
    file: &SegmentBytes,
    expect: Expect,
    from: u64,
    wanted: impl Fn(u64, &BlockHeader) -> bool,
) -> io::Result<Option<(u64, BlockHeader)>> {
    let (mut at, end) = (from, file.blocks_end());
    while at < end && file.identity.is_some() {
        let bytes = file.read(at, PIECE_BYTES.min(end - at))?;
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
