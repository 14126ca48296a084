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
    scan::{Expect, Found, find_later, look},
    segment::TRAILER_BYTES,
    segment_file::SegmentFile,
};
use crate::{
    block::align_up,
    wal::{Chunk, Damage, WalError},
};

/// Where a reader stands in the files. Belongs to one reader on one shard.
pub struct LocalCursor {
    next: Offset,
    place: Option<Place>,
    ahead: Option<Ahead>,
    /// A read of at least this many bytes is needed for the next block.
    need: u64,
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

impl LocalCursor {
    pub(super) fn new(next: Offset) -> Self {
        Self {
            next,
            place: None,
            ahead: None,
            need: 0,
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
            let place = match cursor.place.take() {
                Some(place) => place,
                None => self.find_place(cursor.next).await?,
            };
            let end = if place.segment.is_sealed() {
                place.segment.next_position.get()
            } else {
                place.segment.size - TRAILER_BYTES
            };
            if place.position >= end || place.due >= place.segment.next_offset() {
                // The block after this one is in a later segment.
                cursor.next = cursor.next.max(place.segment.next_offset());
                continue;
            }
            if let Some(chunk) = self.read_at_place(cursor, place, end, durable).await? {
                return Ok(Some(chunk));
            }
        }
    }

    async fn find_place(&self, offset: Offset) -> Result<Place, WalError> {
        let segment = {
            let segments = self.inner.segments.borrow();
            let after = segments.partition_point(|segment| segment.base_offset() <= offset);
            after.checked_sub(1).and_then(|at| segments.get(at)).cloned()
        };
        let Some(segment) = segment else {
            return Err(WalError::Truncated {
                asked: offset,
                first: self.inner.first_offset.get(),
            });
        };
        if segment.next_offset() <= offset {
            return Err(self.gap_error(&segment, offset));
        }
        let file = segment.file().await?;
        let (position, due) = (segment.position_of(offset), segment.offset_of_indexed(offset));
        Ok(Place {
            segment,
            file,
            position,
            due,
        })
    }

    /// The offset lies between two segments: a hole that recovery noted.
    fn gap_error(&self, segment: &SegmentFile, offset: Offset) -> WalError {
        let next = {
            let segments = self.inner.segments.borrow();
            segments
                .iter()
                .map(|s| s.base_offset())
                .find(|&base| base > offset)
                .unwrap_or(Offset::MAX)
        };
        WalError::Damaged(Box::new(Damage {
            file: segment.path.clone(),
            from: segment.next_position.get(),
            to: segment.size,
            first_offset: offset,
            next_offset: next,
            detail: "no block holds these offsets".to_owned(),
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
        let len = self
            .inner
            .config
            .read_ahead
            .get()
            .max(cursor.need)
            .min(end - place.position);
        let (bytes, durable) = match cursor.ahead.take() {
            Some(ahead)
                if ahead.segment == place.segment.index && ahead.position == place.position && cursor.need == 0 =>
            {
                (ahead.task.await?, ahead.durable)
            }
            _ => (
                files::read(&place.file, &place.segment.path, place.position, align_up(len)).await?,
                durable,
            ),
        };
        cursor.need = 0;
        let (mut entries, mut at) = (Vec::new(), 0u64);
        let fault = loop {
            if place.due >= durable || place.position + at >= end {
                break None;
            }
            let expect = self.expect(&place);
            let before = entries.len();
            match look(&bytes[at as usize..], &expect, &mut entries) {
                Found::Block(header) => {
                    entries[before..].iter_mut().for_each(|entry| entry.at += at as u32);
                    place.due = header.next_offset;
                    at += header.disk_len();
                }
                Found::NeedBytes(need) if at == 0 && (bytes.len() as u64) < len.min(need) => {
                    break Some("the file is cut short".to_owned());
                }
                Found::NeedBytes(need) => {
                    if at == 0 {
                        cursor.need = need;
                    }
                    break None;
                }
                Found::Invalid(fault) => break Some(fault.to_string()),
            }
        };
        if at == 0
            && let Some(detail) = fault
        {
            return Err(self.damage_at(cursor, place, end, detail).await);
        }
        place.position += at;
        entries.retain(|entry| entry.next_offset > cursor.next);
        if cursor.need == 0 {
            cursor.ahead = self.begin_ahead(&place, end, durable);
        }
        let next = place.due.max(cursor.next);
        cursor.place = Some(place);
        if entries.is_empty() {
            return Ok(None);
        }
        cursor.next = next;
        Ok(Some(Chunk::Disk {
            bytes,
            entries: Rc::new(entries),
        }))
    }

    fn expect(&self, place: &Place) -> Expect {
        Expect {
            pchannel_hash: self.inner.hash,
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

    /// Describes a damaged place and moves the cursor behind it, so that the reader may go on if it wants to.
    async fn damage_at(&self, cursor: &mut LocalCursor, place: Place, end: u64, detail: String) -> WalError {
        let expect = self.expect(&place);
        let mut at = place.position + crate::block::ALIGNMENT as u64;
        let mut later = None;
        while at < end && later.is_none() {
            let len = align_up(self.inner.config.read_ahead.get().min(end - at));
            match files::read(&place.file, &place.segment.path, at, len).await {
                Ok(bytes) if bytes.is_empty() => break,
                Ok(bytes) => {
                    later = find_later(&bytes, &expect, false).map(|(found, header)| (at + found, header.first_offset))
                }
                Err(error) => return error,
            }
            at += len;
        }
        let (to, next) = later.unwrap_or((end, place.segment.next_offset()));
        let first = place.due.max(cursor.next);
        cursor.next = next.max(first);
        WalError::Damaged(Box::new(Damage {
            file: place.segment.path.clone(),
            from: place.position,
            to,
            first_offset: first,
            next_offset: cursor.next,
            detail,
        }))
    }
}
