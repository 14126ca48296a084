//! Reading a log from its files, block by block, with the next read already under way.

use std::rc::Rc;

use glommio::{
    Task,
    io::{DmaFile, ReadResult},
    spawn_local,
};
use wire_format::{Bytes, Offset, Term};

use super::{
    LocalWal, files,
    rubble::{Rubble, Wound},
    scan::{Expect, Found, look},
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
    /// Bytes of one read, unless a block needs more.
    window: u64,
    /// Whether the next read is begun before anybody asks.
    reads_ahead: bool,
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
    /// Whole records that were given already.
    given: usize,
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
            window: u64::MAX,
            reads_ahead: true,
            rubble: None,
        }
    }

    /// Reads at most `window` bytes at once, unless a block needs more, and the next ones before anybody asks only if `ahead`;
    /// in any case no more than the log's read-ahead.
    pub fn read_at_most(&mut self, window: Bytes, ahead: bool) {
        (self.window, self.reads_ahead) = (window.get(), ahead);
        if !ahead {
            self.ahead = None;
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
            *cursor = LocalCursor {
                window: cursor.window,
                reads_ahead: cursor.reads_ahead,
                ..LocalCursor::new(asked)
            };
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
                match from_rubble(cursor)? {
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
            match self.read_at_place(cursor, place, extents.end, durable).await? {
                Step::Chunk(chunk) => return Ok(Some(chunk)),
                Step::Again => {}
                Step::AtEnd => return Ok(None),
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

    /// Reads at a place and parses what is durable.
    async fn read_at_place(
        &self,
        cursor: &mut LocalCursor,
        mut place: Place,
        end: u64,
        durable: Offset,
    ) -> Result<Step, WalError> {
        let (bytes, ahead_durable) = self.bytes_at(cursor, &place, end).await?;
        let seen_durable = ahead_durable.unwrap_or(durable).min(durable);
        let (mut entries, mut at) = (Vec::new(), 0u64);
        let mut fault = None;
        while place.due < seen_durable && fault.is_none() {
            let before = entries.len();
            let rest = bytes.get(at as usize..).unwrap_or_default();
            match look(rest, &self.expectation(&place), &mut entries) {
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
            return Ok(Step::Again);
        }
        place.position += at;
        if at > 0 {
            cursor.need = 0;
            cursor.ahead = self.begin_ahead(cursor, &place, end, durable);
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
        let window = self.window(cursor).max(cursor.need);
        let len = align_up(window.min(end.saturating_sub(place.position)));
        if len == 0 {
            return Ok((ReadResult::default(), None));
        }
        let bytes = files::read(&place.file, &place.segment.path, place.position, len).await?;
        Ok((bytes, None))
    }

    fn window(&self, cursor: &LocalCursor) -> u64 {
        self.inner
            .config
            .read_ahead
            .get()
            .min(cursor.window)
            .max(ALIGNMENT as u64)
    }

    fn expectation(&self, place: &Place) -> Expect {
        Expect {
            pchannel: Some(self.inner.hash),
            tag: place.segment.tag(self.inner.hash),
            segment_index: place.segment.index,
            due: place.due,
            min_term: Term::ZERO,
        }
    }

    fn begin_ahead(&self, cursor: &LocalCursor, place: &Place, end: u64, durable: Offset) -> Option<Ahead> {
        if place.due >= durable || place.position >= end || !cursor.reads_ahead {
            return None;
        }
        let len = align_up(self.window(cursor).min(end - place.position));
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
        let wound = Wound {
            position: place.position,
            end,
            end_offset: place.segment.extents().next_offset,
            own: fault.own,
            detail: fault.detail,
        };
        let (path, hash) = (&place.segment.path, self.inner.hash);
        let rubble = Rubble::look(&place.file, path, hash, self.expectation(&place), wound).await?;
        let (to, limit) = (rubble.to, rubble.limit);
        cursor.rubble = Some(InRubble { rubble, given: 0 });
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

/// What a step came to.
enum Step {
    Chunk(Chunk),
    /// Go on looking.
    Again,
    /// Nothing more is durable.
    AtEnd,
}

/// Makes a chunk of the records that the cursor wants, and moves it behind them.
fn give(cursor: &mut LocalCursor, bytes: ReadResult, mut entries: Vec<RecordEntry>, durable: Offset) -> Step {
    if entries.last().is_some_and(|last| last.next_offset > durable) {
        // The caller's end lies in this block: come back for the rest.
        cursor.place = None;
        entries.retain(|entry| entry.next_offset <= durable);
    }
    entries.retain(|entry| entry.next_offset > cursor.next);
    let Some(last) = entries.last() else {
        return if cursor.place.is_some() {
            Step::Again
        } else {
            Step::AtEnd
        };
    };
    cursor.next = last.next_offset;
    Step::Chunk(Chunk::Disk {
        bytes,
        entries: Rc::new(entries),
    })
}

/// The next whole records of a damaged place, or an error for what is lost before them. `None` behind its end.
fn from_rubble(cursor: &mut LocalCursor) -> Result<Option<Chunk>, WalError> {
    while let Some(InRubble { rubble, given }) = &mut cursor.rubble {
        let next = cursor.next;
        let Some(entry) = rubble.entries.get(*given) else {
            let damage = (next < rubble.limit).then(|| rubble.lost(next, None));
            cursor.rubble = None;
            let Some(damage) = damage else { return Ok(None) };
            cursor.next = damage.next_offset;
            return Err(WalError::Damaged(Box::new(damage)));
        };
        if entry.base_offset > next {
            let damage = rubble.lost(next, Some(entry));
            cursor.next = damage.next_offset;
            return Err(WalError::Damaged(Box::new(damage)));
        }
        // All that follow one another without a gap.
        let mut due = entry.base_offset;
        let run = rubble.entries[*given..].iter().take_while(|entry| {
            let follows = entry.base_offset == due;
            due = entry.next_offset;
            follows
        });
        let mut run: Vec<RecordEntry> = run.copied().collect();
        *given += run.len();
        if let Some(last) = run.last() {
            rubble.told(last);
        }
        run.retain(|entry| entry.next_offset > next);
        if let Some(last) = run.last() {
            cursor.next = last.next_offset;
            return Ok(Some(Chunk::Disk {
                bytes: rubble.bytes.clone(),
                entries: Rc::new(run),
            }));
        }
    }
    Ok(None)
}
