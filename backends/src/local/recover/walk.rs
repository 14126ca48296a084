//! Going through the files of a log, block by block, to its end.

use std::{collections::VecDeque, path::PathBuf, rc::Rc};

use glommio::io::DmaFile;
use wire_format::{Offset, Term, Timetick};

use super::{
    super::{
        checkpoint::Checkpoint,
        config::LocalConfig,
        files,
        footer::{Footer, StoredFooter},
        rubble::{PIECE_BYTES, Rubble, Wound, next_block},
        scan::{Expect, Found, look},
        segment::{SEGMENT_HEADER_BYTES, file_name},
        segment_file::{OnDisk, SegmentFile},
    },
    Candidate, Replay, damaged, missing,
};
use crate::{
    block::{ALIGNMENT, BlockHeader, RecordEntry},
    wal::{Damage, WalError},
};

/// Where the walk stands.
pub struct Walk<'a> {
    pub config: &'a LocalConfig,
    pub pchannel_hash: u64,
    /// The offset that the next block begins at.
    pub due: Offset,
    /// Everything below was durable once: what is broken there is rot.
    pub proven: Offset,
    pub first_offset: Offset,
    pub last_timetick: Timetick,
    /// Term of the last block.
    pub term: Term,
    pub highest_term: Term,
    pub damage: Vec<Damage>,
    /// Read so far.
    pub bytes: u64,
    pub replay_from: Offset,
    pub on_replay: &'a mut dyn FnMut(Replay<'_>),
    pub segments: VecDeque<Rc<SegmentFile>>,
    /// Files that hold nothing.
    pub useless: Vec<PathBuf>,
}

/// One file while it is walked through.
struct Visit<'c> {
    candidate: &'c Candidate,
    file: Rc<DmaFile>,
    position: u64,
    footer: Footer,
    /// The last thing in it is damage.
    damaged_tail: bool,
}

/// What stops a run of whole blocks.
struct Stop {
    detail: String,
    /// The broken block's own header, if that is whole.
    own: Option<BlockHeader>,
}

impl Walk<'_> {
    /// Goes through all files in order. Returns those that are no part of the log.
    pub async fn all(
        &mut self,
        candidates: Vec<Candidate>,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Vec<Candidate>, WalError> {
        let checkpoint = checkpoint.filter(|checkpoint| checkpoint.has_place());
        let scan_segment = checkpoint.map_or(0, |c| c.scan_segment);
        let mut rest = VecDeque::from(candidates);
        while let Some(candidate) = rest.pop_front_if(|c| c.index < scan_segment) {
            self.trusted(candidate, rest.front(), checkpoint).await?;
        }
        if let Some(checkpoint) = checkpoint {
            match rest.pop_front_if(|c| c.index == scan_segment) {
                Some(candidate) => {
                    let later = rest.make_contiguous();
                    if !self.behind_checkpoint(candidate, checkpoint, later).await? {
                        return Ok(rest.into());
                    }
                }
                None if rest.iter().any(Candidate::is_segment) => {}
                None => self.lost_end(scan_segment),
            }
        }
        while let Some(candidate) = rest.pop_front() {
            if !candidate.is_segment() && !rest.iter().any(Candidate::is_segment) {
                rest.push_front(candidate);
                break;
            }
            let base = candidate.base.unwrap_or(self.due);
            let is_old = base < self.due;
            if is_old || !self.whole_file(&candidate, base, rest.make_contiguous()).await? {
                if self.segments.back().is_none_or(|last| last.index != candidate.index) {
                    rest.push_front(candidate);
                }
                break;
            }
        }
        Ok(rest.into())
    }

    /// Offsets below `base` that should have come first.
    fn gap_before(&mut self, candidate: &Candidate, base: Offset) {
        let from = self.due.max(self.first_offset);
        if base > from {
            let before = self.segments.back().map(|segment| segment.index);
            self.damage.push(missing(self.config, before, candidate, (from, base)));
        }
        self.due = self.due.max(base);
    }

    /// A file before the scan's start: all of it was durable. Its footer counts.
    async fn trusted(
        &mut self,
        candidate: Candidate,
        next: Option<&Candidate>,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<(), WalError> {
        let base = candidate.base.unwrap_or(self.due);
        self.gap_before(&candidate, base);
        if let Some(footer) = candidate.footer {
            let (index, path) = (candidate.index, candidate.path);
            let segment = SegmentFile::sealed(index, path, candidate.size, footer, OnDisk::Yes);
            self.due = segment.extents().next_offset;
            self.push(segment);
            return Ok(());
        }
        let kept = (self.term, self.replay_from, self.proven);
        (self.term, self.replay_from) = (Term::ZERO, Offset::MAX);
        self.proven = next.and_then(|next| next.base).unwrap_or_default();
        self.proven = self
            .proven
            .max(Offset(checkpoint.map_or(0, |c| c.scan_footer.base_offset)));
        let next = next.map(std::slice::from_ref).unwrap_or_default();
        self.whole_file(&candidate, base, next).await?;
        (self.term, self.replay_from, self.proven) = kept;
        Ok(())
    }

    /// The file that the checkpoint names. Whether the log may go on behind it.
    async fn behind_checkpoint(
        &mut self,
        candidate: Candidate,
        checkpoint: &Checkpoint,
        later: &[Candidate],
    ) -> Result<bool, WalError> {
        let candidate = Candidate {
            base: Some(Offset(checkpoint.scan_footer.base_offset)),
            nonce: Some(checkpoint.scan_footer.nonce),
            ..candidate
        };
        self.gap_before(&candidate, Offset(checkpoint.scan_footer.base_offset));
        self.due = Offset(checkpoint.scan_offset);
        let visit = Visit {
            file: files::open(&candidate.path, true).await?,
            candidate: &candidate,
            position: checkpoint.scan_position,
            footer: checkpoint.scan_footer.clone(),
            damaged_tail: false,
        };
        if checkpoint.clean {
            self.cut_short(&visit);
            self.keep(visit);
            return Ok(false);
        }
        self.visit(visit, later).await
    }

    /// A file from its first block on. Whether the log may go on behind it.
    async fn whole_file(&mut self, candidate: &Candidate, base: Offset, later: &[Candidate]) -> Result<bool, WalError> {
        self.gap_before(candidate, base);
        let visit = Visit {
            file: files::open(&candidate.path, true).await?,
            candidate,
            position: SEGMENT_HEADER_BYTES,
            footer: Footer::begin(base, candidate.nonce.unwrap_or_default()),
            damaged_tail: false,
        };
        self.visit(visit, later).await
    }

    async fn visit(&mut self, mut visit: Visit<'_>, later: &[Candidate]) -> Result<bool, WalError> {
        let go_on = self.blocks(&mut visit, later).await?;
        if !go_on {
            self.cut_short(&visit);
        }
        // An empty file at the end of the log takes the next blocks.
        if visit.footer.next_offset > visit.footer.base_offset || !go_on {
            self.keep(visit);
        } else {
            self.useless.push(visit.candidate.path.clone());
        }
        Ok(go_on)
    }

    /// The log ends in this file, which has lost its end: what stood there, if anything did, is lost. A file is reserved in full
    /// before it is used, so no crash leaves it shorter.
    fn cut_short(&mut self, visit: &Visit<'_>) {
        let Candidate { size, path, .. } = visit.candidate;
        // Without a header the size of today's files is the best guess.
        let full = visit.candidate.full_size.unwrap_or(self.config.segment.get());
        if *size < full {
            let detail = format!("the file was cut short: {size} of its {full} bytes are left");
            let offsets = (self.due, self.due.max(self.proven));
            self.damage.push(damaged(path, (*size, full), offsets, detail));
        }
    }

    /// Makes a segment of what was found in a file.
    fn keep(&mut self, visit: Visit<'_>) {
        let Visit {
            candidate,
            file,
            footer,
            damaged_tail,
            ..
        } = visit;
        let (index, path, size) = (candidate.index, candidate.path.clone(), candidate.size);
        let full_size = size == self.config.segment.get();
        let segment = match &candidate.footer {
            Some(stored) => StoredFooter::new(stored.bytes())
                .map(|stored| SegmentFile::sealed(index, path, size, stored, OnDisk::Yes)),
            None if full_size && !damaged_tail => Ok(SegmentFile::open(index, path, size, file, footer)),
            None => footer
                .to_bytes()
                .map_err(|e| e.to_string())
                .and_then(|bytes| StoredFooter::new(&bytes))
                .map(|stored| SegmentFile::sealed(index, path, size, stored, OnDisk::Never)),
        };
        match segment {
            Ok(segment) => self.push(segment),
            Err(detail) => tracing::error!(file = %candidate.path.display(), detail, "no footer can be made"),
        }
    }

    fn push(&mut self, segment: SegmentFile) {
        self.last_timetick = self.last_timetick.max(segment.extents().last_timetick);
        // The one before takes no more blocks.
        if let Some(last) = self.segments.back()
            && let Err(detail) = last.close_extent()
        {
            tracing::error!(file = %last.path.display(), detail, "no footer can be made");
        }
        self.segments.push_back(Rc::new(segment));
    }

    /// Goes through the blocks of a file until nothing of the log follows in it, over rotten places. Whether the log may go
    /// on in the next file.
    async fn blocks(&mut self, visit: &mut Visit<'_>, later: &[Candidate]) -> Result<bool, WalError> {
        let end = visit.candidate.blocks_end();
        let mut window = PIECE_BYTES;
        let mut entries = Vec::new();
        loop {
            let len = window.min(end.saturating_sub(visit.position));
            let (used, stop) = if len == 0 {
                let detail = "the file is full".to_owned();
                (0, Some(Stop { detail, own: None }))
            } else {
                let bytes = files::read(&visit.file, &visit.candidate.path, visit.position, len).await?;
                self.bytes += bytes.len() as u64;
                let is_short = (bytes.len() as u64) < len || len == end - visit.position;
                self.window(visit, &bytes, is_short, &mut entries)
            };
            // A block longer than the window: read more of it.
            window = if used == 0 && stop.is_none() {
                window * 4
            } else {
                PIECE_BYTES
            };
            let Some(stop) = stop else { continue };
            if visit.candidate.footer_next().is_some_and(|next| next <= self.due) {
                return Ok(true);
            }
            let next = later.iter().find(|candidate| candidate.is_segment());
            if next.is_some_and(|next| next.base == Some(self.due)) {
                return Ok(true);
            }
            if !self.is_proven(visit, &stop, end, later).await? {
                tracing::info!(
                    file = %visit.candidate.path.display(), position = visit.position, offset = %self.due,
                    what = stop.detail, "the log ends here"
                );
                return Ok(false);
            }
            self.rot(visit, stop, end, next.and_then(|next| next.base)).await?;
        }
    }

    /// Takes all whole blocks at the beginning of `bytes`. Returns how many bytes they take, and why the next is none unless
    /// more bytes are needed to tell.
    fn window(
        &mut self,
        visit: &mut Visit<'_>,
        bytes: &[u8],
        is_short: bool,
        entries: &mut Vec<RecordEntry>,
    ) -> (u64, Option<Stop>) {
        let mut at = 0;
        let stop = |detail: String, own| Some(Stop { detail, own });
        loop {
            entries.clear();
            let rest = &bytes[at as usize..];
            match look(rest, &self.expectation(visit.candidate), entries) {
                Found::Block(header) => {
                    let first = entries.first().map_or(Timetick::ZERO, |e| e.min_timetick);
                    let last = entries.last().map_or(Timetick::ZERO, |e| e.max_timetick);
                    visit.footer.add(&header, (first, last), visit.position);
                    visit.damaged_tail = false;
                    self.take(rest, entries);
                    (self.due, self.term) = (header.next_offset, header.term);
                    visit.position += header.disk_len();
                    at += header.disk_len();
                }
                Found::NeedBytes(need) if is_short => {
                    let own = BlockHeader::read(rest).ok();
                    return (
                        at,
                        stop(format!("{need} bytes are needed, {} are there", rest.len()), own),
                    );
                }
                Found::NeedBytes(_) => return (at, None),
                Found::Broken(header, fault) => return (at, stop(fault.to_string(), Some(header))),
                Found::Invalid(fault) => return (at, stop(fault.to_string(), None)),
            }
        }
    }

    fn expectation(&self, candidate: &Candidate) -> Expect {
        Expect {
            pchannel: Some(self.pchannel_hash),
            tag: candidate.tag(self.pchannel_hash),
            segment_index: candidate.index,
            due: self.due,
            min_term: self.term,
        }
    }

    /// Tells of records that are whole.
    fn take(&mut self, bytes: &[u8], entries: &[RecordEntry]) {
        for entry in entries {
            let meta = entry.view(bytes).meta();
            if meta.base_offset >= self.replay_from {
                (self.on_replay)(Replay::Record(&meta));
            }
            self.last_timetick = self.last_timetick.max(meta.max_timetick).max(meta.promised_timetick);
        }
    }

    /// Whether the broken place was durable once: a checkpoint or a footer covers it, or a later block calls it committed.
    async fn is_proven(
        &mut self,
        visit: &Visit<'_>,
        stop: &Stop,
        end: u64,
        later: &[Candidate],
    ) -> Result<bool, WalError> {
        if self.proven > self.due {
            return Ok(true);
        }
        // Not inside a block whose extent is known.
        let skip = stop.own.map_or(ALIGNMENT as u64, |own| own.disk_len());
        if let Some(own) = stop.own {
            self.highest_term = self.highest_term.max(own.term);
        }
        let range = (visit.position + skip, end);
        if self.commits(&visit.file, visit.candidate, range).await? {
            return Ok(true);
        }
        for candidate in later.iter().filter(|candidate| candidate.is_segment()) {
            let file = files::open(&candidate.path, false).await?;
            let range = (SEGMENT_HEADER_BYTES, candidate.blocks_end());
            if self.commits(&file, candidate, range).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a block in a range of a file says that the offset due was durable.
    async fn commits(&mut self, file: &DmaFile, candidate: &Candidate, range: (u64, u64)) -> Result<bool, WalError> {
        let (due, mut highest) = (self.due, self.highest_term);
        let seen = std::cell::Cell::new(highest);
        let wanted = |_, header: &BlockHeader| {
            seen.set(seen.get().max(header.term));
            header.committed > due
        };
        let found = next_block(file, &candidate.path, self.expectation(candidate), range, wanted).await?;
        highest = highest.max(seen.get());
        self.highest_term = highest;
        let read_to = found.map_or(range.1, |(position, _)| position);
        self.bytes += read_to.saturating_sub(range.0);
        Ok(found.is_some())
    }

    /// Goes over a rotten place: takes the whole records in it, notes what is lost.
    async fn rot(
        &mut self,
        visit: &mut Visit<'_>,
        stop: Stop,
        end: u64,
        next_base: Option<Offset>,
    ) -> Result<(), WalError> {
        let next_base = next_base.filter(|&base| base > self.due);
        let wound = Wound {
            position: visit.position,
            end,
            end_offset: visit.candidate.footer_next().or(next_base).unwrap_or(self.proven),
            own: stop.own,
            detail: stop.detail,
        };
        let (path, hash) = (&visit.candidate.path, self.pchannel_hash);
        let mut rubble = Rubble::look(&visit.file, path, hash, self.expectation(visit.candidate), wound).await?;
        self.bytes += rubble.bytes.len() as u64;
        let entries = std::mem::take(&mut rubble.entries);
        self.take(&rubble.bytes, &entries);
        for entry in &entries {
            if entry.base_offset > self.due {
                self.damage.push(rubble.lost(self.due, Some(entry)));
            }
            rubble.told(entry);
            self.due = entry.next_offset;
            visit.footer.last_timetick = visit.footer.last_timetick.max(entry.max_timetick.get());
        }
        if rubble.limit > self.due {
            self.damage.push(rubble.lost(self.due, None));
        }
        self.due = rubble.limit;
        visit.position = rubble.to;
        (visit.footer.next_offset, visit.footer.end) = (rubble.limit.get(), rubble.to);
        visit.damaged_tail = true;
        Ok(())
    }

    /// The last file of the log is gone, and with it what was stored since the checkpoint that names it.
    fn lost_end(&mut self, index: u64) {
        let path = self.config.folder.join(file_name(index));
        let detail =
            "the file is missing; what was stored in it since the last checkpoint is lost with it, if anything was";
        let from = self.due.max(self.first_offset);
        let offsets = (from, from.max(self.proven));
        self.damage.push(damaged(&path, (0, 0), offsets, detail.to_owned()));
        self.due = offsets.1;
    }

    /// Notes what is known to have been stored but is in no file.
    pub fn end_of_log(&mut self) {
        if self.proven > self.due {
            let detail = "what stood behind the end of this file is missing".to_owned();
            let last = self
                .segments
                .back()
                .map(|segment| (segment.path.clone(), segment.extents().end));
            let (path, at) = last.unwrap_or_else(|| (self.config.folder.clone(), 0));
            self.damage
                .push(damaged(&path, (at, at), (self.due, self.proven), detail));
            self.due = self.proven;
        }
    }
}
