//! Opening a log: footers are read, only what lies behind the checkpoint is scanned.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    rc::Rc,
};

use glommio::io::DmaFile;
use wire_format::{Offset, Term, Timetick, batch::Meta, crc::crc32c};

use super::{
    checkpoint::{self, Checkpoint},
    config::LocalConfig,
    files,
    footer::{Footer, StoredFooter},
    scan::{Expect, Found, find_later, look},
    segment::{self, SEGMENT_HEADER_BYTES, SegmentHeader, TRAILER_BYTES, Trailer},
    segment_file::SegmentFile,
};
use crate::{
    block::{ALIGNMENT, BlockHeader, RecordEntry},
    wal::{Damage, LogFacts, WalError},
};

/// A scan reads this much at once.
const WINDOW_BYTES: u64 = 4 << 20;
/// How far behind an unclean end a proof of rot is looked for: more than all writes that can be in flight.
const LOOKAHEAD_BYTES: u64 = 32 << 20;

/// What a recovery tells of the log's content.
pub enum Replay<'a> {
    /// The state stored with the last checkpoint: the fold of everything below the offset.
    State(Offset, &'a [u8]),
    /// A record behind it.
    Record(&'a Meta),
}

/// What a recovery found.
pub(super) struct Recovered {
    pub facts: LogFacts,
    pub segments: VecDeque<Rc<SegmentFile>>,
    pub prepared: Option<(u64, PathBuf)>,
    pub next_index: u64,
    pub damage: Vec<Damage>,
    pub checkpoint: Checkpoint,
    pub scanned_bytes: u64,
}

/// A file of the folder as its first and last 4 KiB describe it.
struct Candidate {
    index: u64,
    path: PathBuf,
    file: Rc<DmaFile>,
    size: u64,
    header: Option<SegmentHeader>,
    footer: Option<StoredFooter>,
}

/// Where the scan stands.
struct Scan<'a> {
    config: &'a LocalConfig,
    hash: u64,
    due: Offset,
    last_timetick: Timetick,
    term: Term,
    damage: Vec<Damage>,
    bytes: u64,
    replay_from: Offset,
    on_replay: &'a mut dyn FnMut(Replay<'_>),
}

/// Opens what is in the folder, which must exist.
pub(super) async fn recover(
    config: &LocalConfig,
    hash: u64,
    on_replay: &mut dyn FnMut(Replay<'_>),
) -> Result<Recovered, WalError> {
    let stored =
        checkpoint::load(&config.folder).map_err(|e| files::io_error("read checkpoint of", &config.folder, &e))?;
    let mut damage = Vec::new();
    let checkpoint = stored.unwrap_or_else(|detail| {
        damage.push(damaged(
            &config.folder.join(checkpoint::FILE_NAME),
            (0, 0),
            Offset::ZERO,
            Offset::ZERO,
            detail,
        ));
        None
    });
    let candidates = read_candidates(config, hash).await?;
    let known = checkpoint.clone().unwrap_or_default();
    if let Some(checkpoint) = &checkpoint {
        (on_replay)(Replay::State(Offset(checkpoint.upto), &checkpoint.state));
    }
    let mut scan = Scan {
        config,
        hash,
        due: Offset(known.scan_offset),
        last_timetick: Timetick(known.scan_timetick),
        term: Term(known.scan_term),
        damage,
        bytes: 0,
        replay_from: Offset(known.upto),
        on_replay,
    };
    let (segments, leftover) = scan.all(candidates, checkpoint.as_ref()).await?;
    let next_index = segments.back().map_or(known.scan_segment, |s| s.index + 1);
    let mut prepared = None;
    for candidate in leftover {
        if candidate.index == next_index && candidate.size == config.segment.get() {
            prepared = Some((candidate.index, candidate.path));
        } else {
            files::remove(candidate.path).await?;
        }
    }
    let first_kept = segments.front().map_or(scan.due, |s| s.base_offset());
    let facts = LogFacts {
        first_offset: first_kept.max(Offset(known.first_offset)).min(scan.due),
        next_offset: scan.due,
        last_timetick: scan.last_timetick,
        last_term: scan.term,
    };
    Ok(Recovered {
        facts,
        segments,
        prepared,
        next_index,
        damage: scan.damage,
        checkpoint: known,
        scanned_bytes: scan.bytes,
    })
}

async fn read_candidates(config: &LocalConfig, hash: u64) -> Result<Vec<Candidate>, WalError> {
    let listing = std::fs::read_dir(&config.folder).map_err(|e| files::io_error("list", &config.folder, &e))?;
    let mut indices: Vec<u64> = listing
        .filter_map(|entry| {
            entry
                .ok()
                .and_then(|entry| segment::index_of(entry.file_name().to_str()?))
        })
        .collect();
    indices.sort_unstable();
    let mut candidates = Vec::with_capacity(indices.len());
    for index in indices {
        let path = config.folder.join(segment::file_name(index));
        let file = files::open(&path, true).await?;
        let size = file.file_size().await.map_err(|e| files::error("stat", &path, &e))?;
        let header = files::read(&file, &path, 0, SEGMENT_HEADER_BYTES).await?;
        let header = SegmentHeader::read(&header).filter(|h| h.pchannel_hash == hash && h.index == index);
        let footer = read_footer(&file, &path, size, hash, index).await?;
        candidates.push(Candidate {
            index,
            path,
            file,
            size,
            header,
            footer,
        });
    }
    Ok(candidates)
}

async fn read_footer(
    file: &DmaFile,
    path: &Path,
    size: u64,
    hash: u64,
    index: u64,
) -> Result<Option<StoredFooter>, WalError> {
    if size < SEGMENT_HEADER_BYTES + TRAILER_BYTES || !size.is_multiple_of(ALIGNMENT as u64) {
        return Ok(None);
    }
    let trailer = files::read(file, path, size - TRAILER_BYTES, TRAILER_BYTES).await?;
    let Some(trailer) = Trailer::read(&trailer).filter(|t| t.pchannel_hash == hash && t.index == index) else {
        return Ok(None);
    };
    let inside = trailer
        .footer_at
        .checked_add(trailer.footer_len)
        .is_some_and(|end| end <= size - TRAILER_BYTES);
    if !inside || !trailer.footer_at.is_multiple_of(ALIGNMENT as u64) {
        return Ok(None);
    }
    let bytes = files::read(
        file,
        path,
        trailer.footer_at,
        crate::block::align_up(trailer.footer_len),
    )
    .await?;
    let Some(footer) = bytes
        .get(..trailer.footer_len as usize)
        .filter(|b| crc32c(b) == trailer.footer_crc32c)
    else {
        return Ok(None); // a broken footer costs a scan, nothing else
    };
    Ok(StoredFooter::new(footer).ok())
}

fn damaged(file: &Path, range: (u64, u64), first: Offset, next: Offset, detail: String) -> Damage {
    Damage {
        file: file.to_owned(),
        from: range.0,
        to: range.1,
        first_offset: first,
        next_offset: next,
        detail,
    }
}

/// How the blocks of one file ended.
struct FileEnd {
    footer: Footer,
    fault: Option<String>,
}

impl Scan<'_> {
    /// Goes through all files in order. Returns the segments that hold messages, and the files that hold none.
    async fn all(
        &mut self,
        candidates: Vec<Candidate>,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<(VecDeque<Rc<SegmentFile>>, Vec<Candidate>), WalError> {
        let scan_segment = checkpoint.map_or(0, |c| c.scan_segment);
        let mut segments = VecDeque::new();
        let mut leftover = Vec::new();
        let mut candidates = VecDeque::from(candidates);
        let mut started = checkpoint.is_some();
        while let Some(candidate) = candidates.pop_front() {
            if candidate.index < scan_segment {
                match candidate.footer {
                    Some(footer) => {
                        segments.push_back(Rc::new(SegmentFile::sealed(
                            candidate.index,
                            candidate.path,
                            candidate.size,
                            footer,
                        )));
                    }
                    None => segments.push_back(self.rebuild(candidate).await?),
                }
                continue;
            }
            if !started && let Some(header) = candidate.header {
                // No checkpoint: the log begins with the oldest file.
                self.due = header.base_offset;
                started = true;
            }
            let from = match checkpoint {
                Some(c) if c.scan_segment == candidate.index => c.scan_position.max(SEGMENT_HEADER_BYTES),
                _ => SEGMENT_HEADER_BYTES,
            };
            let follower = candidates
                .front()
                .and_then(|next| next.header)
                .map(|header| header.base_offset);
            let clean = checkpoint.is_some_and(|c| c.clean && c.scan_segment == candidate.index);
            if let Some(segment) = self.file(&candidate, from, follower, clean).await? {
                segments.push_back(segment);
            } else {
                leftover.push(candidate);
            }
        }
        self.note_gaps(&segments);
        Ok((segments, leftover))
    }

    /// Scans one file from a block boundary. `None` if it holds no message of this log.
    async fn file(
        &mut self,
        candidate: &Candidate,
        from: u64,
        follower: Option<Offset>,
        clean: bool,
    ) -> Result<Option<Rc<SegmentFile>>, WalError> {
        let begins_here = from == SEGMENT_HEADER_BYTES;
        if begins_here
            && let Some(header) = candidate.header
            && header.base_offset > self.due
        {
            let detail = "the segment before ends too early".to_owned();
            self.damage
                .push(damaged(&candidate.path, (0, 0), self.due, header.base_offset, detail));
            self.due = header.base_offset;
        }
        let before = if begins_here {
            None
        } else {
            Some(self.footer_before(candidate, from).await?)
        };
        let end = self.blocks(candidate, from, before, follower, clean).await?;
        if end.footer.blocks == 0 {
            return Ok(None);
        }
        if let Some(detail) = end.fault
            && let Some(next) = follower
            && next > self.due
        {
            self.damage.push(damaged(
                &candidate.path,
                (end.footer.end, candidate.size),
                self.due,
                next,
                detail,
            ));
            self.due = next;
        }
        let sealed_end = candidate
            .footer
            .as_ref()
            .and_then(StoredFooter::get)
            .map(|f| f.end.to_native());
        let path = candidate.path.clone();
        if sealed_end == Some(end.footer.end)
            && let Ok(bytes) = end.footer.to_bytes()
            && let Ok(stored) = StoredFooter::new(&bytes)
        {
            return Ok(Some(Rc::new(SegmentFile::sealed(
                candidate.index,
                path,
                candidate.size,
                stored,
            ))));
        }
        let file = candidate.file.clone();
        Ok(Some(Rc::new(SegmentFile::open(
            candidate.index,
            path,
            candidate.size,
            file,
            end.footer,
        ))))
    }

    /// The footer of a file up to the scan's start: from its index if it was sealed, else by a scan of its own.
    async fn footer_before(&mut self, candidate: &Candidate, upto: u64) -> Result<Footer, WalError> {
        let base = candidate.header.map_or(self.due, |header| header.base_offset);
        let kept = (self.due, self.last_timetick, self.term, self.replay_from);
        (self.due, self.term, self.replay_from) = (base, Term::ZERO, Offset::MAX);
        let mut footer = Footer {
            end: SEGMENT_HEADER_BYTES,
            base_offset: base.get(),
            ..Footer::default()
        };
        let mut position = SEGMENT_HEADER_BYTES;
        let mut entries = Vec::new();
        while position < upto {
            let len = WINDOW_BYTES.min(upto - position);
            let bytes = files::read(&candidate.file, &candidate.path, position, len).await?;
            let (used, _) = self.window(candidate.index, &bytes, position, &mut footer, &mut entries);
            if used == 0 {
                let bytes = files::read(&candidate.file, &candidate.path, position, upto - position).await?;
                let (used, fault) = self.window(candidate.index, &bytes, position, &mut footer, &mut entries);
                if used == 0 {
                    let detail = fault.unwrap_or_else(|| "the file ends early".to_owned());
                    self.damage
                        .push(damaged(&candidate.path, (position, upto), self.due, kept.0, detail));
                    break;
                }
                position += used;
            } else {
                position += used;
            }
        }
        (self.due, self.last_timetick, self.term, self.replay_from) = kept;
        footer.next_offset = self.due.get();
        footer.end = upto;
        footer.blocks = footer.blocks.max(1);
        Ok(footer)
    }

    /// Rebuilds the footer of a file that should have one.
    async fn rebuild(&mut self, candidate: Candidate) -> Result<Rc<SegmentFile>, WalError> {
        let kept = (self.due, self.last_timetick, self.term, self.replay_from);
        self.due = candidate.header.map_or(self.due, |header| header.base_offset);
        (self.term, self.replay_from) = (Term::ZERO, Offset::MAX);
        let end = self
            .blocks(&candidate, SEGMENT_HEADER_BYTES, None, Some(Offset::MAX), false)
            .await?;
        (self.due, self.last_timetick, self.term, self.replay_from) = kept;
        let broken = |detail: String| WalError::Broken {
            path: candidate.path.clone(),
            detail,
        };
        let bytes = end.footer.to_bytes().map_err(|e| broken(e.to_string()))?;
        let stored = StoredFooter::new(&bytes).map_err(broken)?;
        Ok(Rc::new(SegmentFile::sealed(
            candidate.index,
            candidate.path.clone(),
            candidate.size,
            stored,
        )))
    }

    /// Scans the blocks of one file until nothing valid follows, over rotten places where later blocks prove them.
    async fn blocks(
        &mut self,
        candidate: &Candidate,
        from: u64,
        before: Option<Footer>,
        follower: Option<Offset>,
        clean: bool,
    ) -> Result<FileEnd, WalError> {
        let mut footer = before.unwrap_or_else(|| Footer {
            end: from,
            base_offset: self.due.get(),
            ..Footer::default()
        });
        let end = candidate.size.saturating_sub(TRAILER_BYTES);
        let (mut position, mut window, mut entries) = (from, WINDOW_BYTES, Vec::new());
        loop {
            if position >= end || follower == Some(self.due) {
                return Ok(FileEnd { footer, fault: None });
            }
            let len = window.min(end - position);
            let bytes = files::read(&candidate.file, &candidate.path, position, len).await?;
            self.bytes += bytes.len() as u64;
            let (used, fault) = self.window(candidate.index, &bytes, position, &mut footer, &mut entries);
            position += used;
            window = WINDOW_BYTES;
            match fault {
                None if used == 0 && (bytes.len() as u64) < len => {
                    return Ok(FileEnd {
                        footer,
                        fault: Some("the file is cut short".to_owned()),
                    });
                }
                // A block longer than the window: read it whole.
                None if used == 0 => window = (len * 2).min(end - position),
                None => {}
                Some(_) if clean && footer.end == position && self.damage.is_empty() => {
                    return Ok(FileEnd { footer, fault: None });
                }
                Some(fault) => match self.later(candidate, position, end, follower.is_some()).await? {
                    Some((at, header)) => {
                        self.damage.push(damaged(
                            &candidate.path,
                            (position, at),
                            self.due,
                            header.first_offset,
                            fault,
                        ));
                        (self.due, position) = (header.first_offset, at);
                    }
                    None => {
                        return Ok(FileEnd {
                            footer,
                            fault: Some(fault),
                        });
                    }
                },
            }
        }
    }

    /// Looks behind a broken place. Where a later file follows, any later block counts; at the end of the log only one that
    /// proves the place was durable.
    async fn later(
        &mut self,
        candidate: &Candidate,
        from: u64,
        end: u64,
        followed: bool,
    ) -> Result<Option<(u64, BlockHeader)>, WalError> {
        let expect = self.expect(candidate.index);
        let limit = if followed { end } else { end.min(from + LOOKAHEAD_BYTES) };
        let mut at = from + ALIGNMENT as u64;
        while at < limit {
            let len = WINDOW_BYTES.min(limit - at);
            let bytes = files::read(&candidate.file, &candidate.path, at, len).await?;
            self.bytes += bytes.len() as u64;
            if let Some((found, header)) = find_later(&bytes, &expect, !followed) {
                return Ok(Some((at + found, header)));
            }
            at += len;
        }
        Ok(None)
    }

    fn expect(&self, segment_index: u64) -> Expect {
        Expect {
            pchannel_hash: self.hash,
            segment_index,
            due: self.due,
            min_term: self.term,
        }
    }

    /// Takes all whole blocks at the beginning of `bytes`. Returns how many bytes they take, and why the next is none.
    fn window(
        &mut self,
        index: u64,
        bytes: &[u8],
        position: u64,
        footer: &mut Footer,
        entries: &mut Vec<RecordEntry>,
    ) -> (u64, Option<String>) {
        let mut at = 0;
        loop {
            entries.clear();
            let rest = &bytes[at as usize..];
            match look(rest, &self.expect(index), entries) {
                Found::Block(header) => {
                    self.take(&header, rest, entries);
                    let ticks = (
                        entries.first().map_or(Timetick::ZERO, |e| e.min_timetick),
                        entries.last().map_or(Timetick::ZERO, |e| e.max_timetick),
                    );
                    footer.add(
                        (header.first_offset, header.next_offset),
                        ticks,
                        header.term.get(),
                        position + at,
                        header.disk_len(),
                    );
                    at += header.disk_len();
                }
                Found::NeedBytes(_) => return (at, None),
                Found::Invalid(fault) => return (at, Some(fault.to_string())),
            }
        }
    }

    fn take(&mut self, header: &BlockHeader, block: &[u8], entries: &[RecordEntry]) {
        for entry in entries {
            let meta = entry.view(block).meta();
            if meta.base_offset >= self.replay_from {
                (self.on_replay)(Replay::Record(&meta));
            }
            self.last_timetick = self.last_timetick.max(meta.max_timetick).max(meta.promised_timetick);
        }
        self.due = header.next_offset;
        self.term = header.term;
    }

    /// Notes offsets that no file holds.
    fn note_gaps(&mut self, segments: &VecDeque<Rc<SegmentFile>>) {
        for (one, next) in segments.iter().zip(segments.iter().skip(1)) {
            let (ends, begins) = (one.next_offset(), next.base_offset());
            let known = self
                .damage
                .iter()
                .any(|d| d.first_offset <= ends && d.next_offset >= begins);
            if ends != begins && !known {
                let detail = format!("{} begins at {begins}, not at {ends}", next.path.display());
                self.damage.push(damaged(
                    &one.path,
                    (one.next_position.get(), one.size),
                    ends,
                    begins,
                    detail,
                ));
            }
        }
        debug_assert!(self.config.segment.get() > 0);
    }
}
