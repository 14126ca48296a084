//! Reading a log from its files, block by block, with the next read already under way.

use std::rc::Rc;

use glommio::{
    Task,
    io::{DmaFile, ReadResult},
    spawn_local,
};
use wire_format::{Offset, Term};

use super::{
    LocalWal, files,
    rubble::{Piece, Rubble, next_header},
    scan::{Expect, Found, SalvageRule, look},
    segment::file_name,
    segment_file::SegmentFile,
};
use crate::{
    block::{ALIGNMENT, BlockHeader, RecordEntry, align_up},
    wal::{Chunk, Damage, WalError},
};

/// Where a reader stands in the files. Belongs to one reader on one shard.
pub struct LocalCursor {
    next: Offset,
    place: Option<Place>,
    ahead: Option<Ahead>,
    /// A read of at least this many bytes is needed for the next block.
    need: u64,
    /// The damaged place that is being gone through; the cursor's place is behind it.
    rubble: Option<InRubble>,
}

struct Place {
    segment: Rc<SegmentFile>,
    file: Rc<DmaFile>,
    position: u64,
    /// Offset of the block at the position: at or before the cursor's next.
    due: Offset,
}

/// A read that was begun before anybody asked.
struct Ahead {
    segment: u64,
    position: u64,
    /// What was durable when it began: its bytes are looked at only below this.
    durable: Offset,
    task: Task<Result<ReadResult, WalError>>,
}

struct InRubble {
    rubble: Rubble,
    limit: Offset,
    /// Whole records not yet given, the first of them being number `given`.
    piece: Option<(Piece, usize)>,
}

/// What stands at a place that is not whole.
struct Fault {
    detail: String,
    own: Option<BlockHeader>,
}

impl LocalCursor {
    pub(super) fn new(next: Offset) -> Self {
        Self {
            next,
            place: None,
            ahead: None,
            need: 0,
            rubble: None,
        }
    }

    /// The next offset that a read gives.
    pub fn next_offset(&self) -> Offset {
        self.next
    }
}

impl LocalWal {
    /// See [`crate::Wal::read`].
    pub(super) async fn read_chunk(
        &self,
        cursor: &mut LocalCursor,
        durable: Offset,
    ) -> Result<Option<Chunk>, WalError> {
        let asked = cursor.next;
        let result = self.next_chunk(cursor, durable).await;
        let first = self.inner.first_offset.get();
        if result.is_err() && asked < first {
            // Truncation was faster: the file that was read is gone, or holds other blocks by now.
            *cursor = LocalCursor::new(asked);
            return Err(WalError::Truncated { asked, first });
        }
        result
    }

    async fn next_chunk(&self, cursor: &mut LocalCursor, durable: Offset) -> Result<Option<Chunk>, WalError> {
        let durable = durable.min(self.inner.durable.get());
        loop {
            let first = self.inner.first_offset.get();
            if cursor.next < first {
                return Err(WalError::Truncated {
                    asked: cursor.next,
                    first,
                });
            }
            if cursor.next >= durable {
                return Ok(None);
            }
            if cursor.rubble.is_some() {
                match from_rubble(cursor).await? {
                    Some(chunk) => return Ok(Some(chunk)),
                    None => continue,
                }
            }
            let place = match cursor.place.take() {
                Some(place) => place,
                None => self.find_place(cursor, durable).await?,
            };
            let extents = place.segment.extents();
            if place.due >= extents.next_offset {
                // The block after this one is in a later segment.
                cursor.next = cursor.next.max(extents.next_offset);
                continue;
            }
            if let Some(chunk) = self.read_at_place(cursor, place, extents.end, durable).await? {
                return Ok(Some(chunk));
            }
        }
    }

    async fn find_place(&self, cursor: &mut LocalCursor, durable: Offset) -> Result<Place, WalError> {
        let offset = cursor.next;
        let segment = {
            let segments = self.inner.segments.borrow();
            let after = segments.partition_point(|segment| segment.extents().base_offset <= offset);
            after.checked_sub(1).and_then(|at| segments.get(at)).cloned()
        };
        let segment = match segment {
            Some(segment) if segment.extents().next_offset > offset => segment,
            before => return Err(self.in_no_file(cursor, before.as_deref(), durable)),
        };
        let file = segment.file().await?;
        let (position, due) = segment.indexed(offset);
        Ok(Place {
            segment,
            file,
            position,
            due,
        })
    }

    /// The cursor's offset is in no file: a hole that recovery has noted. Moves the cursor behind it.
    fn in_no_file(&self, cursor: &mut LocalCursor, before: Option<&SegmentFile>, durable: Offset) -> WalError {
        let first_offset = cursor.next;
        let next = {
            let segments = self.inner.segments.borrow();
            let mut bases = segments.iter().map(|segment| segment.extents().base_offset);
            bases.find(|&base| base > first_offset).unwrap_or(durable)
        };
        cursor.next = next;
        let missing = before.map_or(0, |segment| segment.index + 1);
        WalError::Damaged(Box::new(Damage {
            file: self.inner.config.folder.join(file_name(missing)),
            from: 0,
            to: 0,
            first_offset,
            next_offset: next,
            detail: "no file holds these offsets; this is the one that should".to_owned(),
        }))
    }

    /// Reads at a place and parses what is durable. `None` means: go on looking.
    async fn read_at_place(
        &self,
        cursor: &mut LocalCursor,
        mut place: Place,
        end: u64,
        durable: Offset,
    ) -> Result<Option<Chunk>, WalError> {
        let (bytes, ahead_durable) = self.bytes_at(cursor, &place, end).await?;
        let seen_durable = ahead_durable.unwrap_or(durable).min(durable);
        let (mut entries, mut at) = (Vec::new(), 0u64);
        let mut fault = None;
        while place.due < seen_durable && fault.is_none() {
            let before = entries.len();
            let rest = bytes.get(at as usize..).unwrap_or_default();
            match look(rest, &self.expect(&place), &mut entries) {
                Found::Block(header) => {
                    entries[before..].iter_mut().for_each(|entry| entry.at += at as u32);
                    place.due = header.next_offset;
                    at += header.disk_len();
                }
                Found::NeedBytes(need) if at == 0 => {
                    let is_all = place.position + bytes.len() as u64 >= end || bytes.len() as u64 >= need;
                    let detail = || format!("{need} bytes are needed, {} are there", rest.len());
                    if is_all || cursor.need >= need {
                        let own = BlockHeader::read(rest).ok();
                        fault = Some(Fault { detail: detail(), own });
                    }
                    cursor.need = need;
                    break;
                }
                Found::NeedBytes(_) => break,
                Found::Broken(header, what) => {
                    let detail = what.to_string();
                    fault = Some(Fault {
                        detail,
                        own: Some(header),
                    });
                }
                Found::Invalid(what) => {
                    let detail = what.to_string();
                    fault = Some(Fault { detail, own: None });
                }
            }
        }
        if at == 0
            && let Some(fault) = fault
        {
            self.enter_rubble(cursor, place, end, fault).await?;
            return Ok(None);
        }
        place.position += at;
        if at > 0 {
            cursor.need = 0;
            cursor.ahead = self.begin_ahead(&place, end, durable);
        }
        cursor.place = Some(place);
        Ok(give(cursor, bytes, entries, durable))
    }

    /// The bytes at a place, and what was durable when they were read if they were read ahead.
    async fn bytes_at(
        &self,
        cursor: &mut LocalCursor,
        place: &Place,
        end: u64,
    ) -> Result<(ReadResult, Option<Offset>), WalError> {
        if let Some(ahead) = cursor.ahead.take()
            && (ahead.segment, ahead.position, cursor.need) == (place.segment.index, place.position, 0)
        {
            return Ok((ahead.task.await?, Some(ahead.durable)));
        }
        let read_ahead = self.inner.config.read_ahead.get();
        let len = align_up(read_ahead.max(cursor.need).min(end.saturating_sub(place.position)));
        if len == 0 {
            return Ok((ReadResult::default(), None));
        }
        let bytes = files::read(&place.file, &place.segment.path, place.position, len).await?;
        Ok((bytes, None))
    }

    fn expect(&self, place: &Place) -> Expect {
        Expect {
            tag: place.segment.tag(self.inner.hash),
            segment_index: place.segment.index,
            due: place.due,
            min_term: Term::ZERO,
        }
    }

    fn begin_ahead(&self, place: &Place, end: u64, durable: Offset) -> Option<Ahead> {
        if place.due >= durable || place.position >= end {
            return None;
        }
        let len = align_up(self.inner.config.read_ahead.get().min(end - place.position));
        let (file, segment, position) = (place.file.clone(), place.segment.clone(), place.position);
        let index = segment.index;
        let task = spawn_local(async move { files::read(&file, &segment.path, position, len).await });
        Some(Ahead {
            segment: index,
            position,
            durable,
            task,
        })
    }

    /// Finds out how far a damaged place reaches, and puts the cursor's place behind it.
    async fn enter_rubble(
        &self,
        cursor: &mut LocalCursor,
        place: Place,
        end: u64,
        fault: Fault,
    ) -> Result<(), WalError> {
        let path = place.segment.path.clone();
        let (to, limit) = match fault.own {
            Some(own) => ((place.position + own.disk_len()).min(end), own.next_offset),
            None => {
                let range = (place.position + ALIGNMENT as u64, end);
                let expect = self.expect(&place);
                let next = next_header(&place.file, &path, expect, range, |_| true).await?;
                next.map_or((end, place.segment.extents().next_offset), |(at, header)| {
                    (at, header.first_offset)
                })
            }
        };
        let rule = SalvageRule {
            pchannel: self.inner.config.pchannel.clone(),
            min_term: Term::ZERO,
            due: place.due,
            limit,
        };
        let range = (place.position, to);
        let rubble = Rubble::new(place.file.clone(), path, range, rule, fault.detail);
        cursor.rubble = Some(InRubble {
            rubble,
            limit,
            piece: None,
        });
        cursor.need = 0;
        cursor.ahead = None;
        cursor.place = Some(Place {
            position: to,
            due: limit,
            ..place
        });
        Ok(())
    }
}

/// Makes a chunk of the records that the cursor wants, and moves it behind them.
fn give(cursor: &mut LocalCursor, bytes: ReadResult, mut entries: Vec<RecordEntry>, durable: Offset) -> Option<Chunk> {
    let parsed = entries.len();
    entries.retain(|entry| entry.next_offset > cursor.next && entry.next_offset <= durable);
    let last = entries.last()?.next_offset;
    if entries.len() < parsed && cursor.place.as_ref().is_some_and(|place| place.due > last) {
        cursor.place = None; // a record of a block that is durable in part only: come back for the rest
    }
    cursor.next = last;
    Some(Chunk::Disk {
        bytes,
        entries: Rc::new(entries),
    })
}

/// The next whole records of a damaged place, or an error for what is lost before them. `None` behind its end. The cursor
/// stands in the damaged place until then, also if this is cancelled or fails.
async fn from_rubble(cursor: &mut LocalCursor) -> Result<Option<Chunk>, WalError> {
    while let Some(place) = &mut cursor.rubble {
        if place.piece.is_none() {
            place.piece = place.rubble.next().await?.map(|piece| (piece, 0));
        }
        let next = cursor.next;
        let Some((piece, given)) = &mut place.piece else {
            let (limit, to) = (place.limit, place.rubble.to);
            let damage = place.rubble.damage(next, limit, to);
            cursor.rubble = None;
            if next >= limit {
                return Ok(None);
            }
            cursor.next = limit;
            return Err(WalError::Damaged(Box::new(damage)));
        };
        let entries = &piece.entries[*given..];
        let Some(entry) = entries.first() else {
            place.piece = None;
            continue;
        };
        if entry.base_offset > next {
            cursor.next = entry.base_offset;
            let until = piece.from + u64::from(entry.at);
            let damage = place.rubble.damage(next, entry.base_offset, until);
            return Err(WalError::Damaged(Box::new(damage)));
        }
        // All that follow one another without a gap.
        let mut due = entry.base_offset;
        let run = entries.iter().take_while(|entry| {
            let follows = entry.base_offset == due;
            due = entry.next_offset;
            follows
        });
        let run: Vec<RecordEntry> = run.copied().collect();
        *given += run.len();
        if let Some(last) = run.last() {
            let end = piece.from + u64::from(last.at) + last.layout.record_len() as u64;
            place.rubble.told_to(end);
        }
        let wanted: Vec<RecordEntry> = run.into_iter().filter(|entry| entry.next_offset > next).collect();
        if let Some(last) = wanted.last() {
            cursor.next = last.next_offset;
            return Ok(Some(Chunk::Disk {
                bytes: piece.bytes.clone(),
                entries: Rc::new(wanted),
            }));
        }
    }
    Ok(None)
}
