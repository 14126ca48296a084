//! A block while it fills, and when it is sealed.

use std::rc::Rc;

use glommio::{allocate_dma_buffer, io::DmaBuffer};
use wire_format::{
    Offset, Term, Timetick,
    batch::{BatchView, Layout, Stamp, stamp},
};

use super::format::{ALIGNMENT, BLOCK_HEADER_BYTES, BlockHeader, RecordEntry, align_up, block_len, record_room};

/// A block that takes records. Belongs to the shard of its pchannel; each record is copied into it once.
pub struct BlockBuilder {
    buffer: DmaBuffer,
    used: usize,
    entries: Vec<RecordEntry>,
}

impl BlockBuilder {
    /// An empty block of `capacity` bytes, rounded up to the alignment. Must be called on a shard.
    pub fn new(capacity: usize) -> Self {
        let capacity = align_up(capacity.max(ALIGNMENT) as u64) as usize;
        Self {
            buffer: allocate_dma_buffer(capacity),
            used: BLOCK_HEADER_BYTES,
            entries: Vec::with_capacity(64),
        }
    }

    /// Bytes of memory that it holds.
    pub fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// Whether it holds no record.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of records so far.
    pub fn used(&self) -> usize {
        self.used - BLOCK_HEADER_BYTES
    }

    /// Whether a record of `len` bytes still fits.
    pub fn fits(&self, len: usize) -> bool {
        let body = self.used() + record_room(len);
        block_len(body as u64, self.entries.len() as u64 + 1) <= self.buffer.len() as u64
    }

    /// The smallest capacity that holds one record of `len` bytes.
    pub fn capacity_for(len: usize) -> usize {
        block_len(record_room(len) as u64, 1) as usize
    }

    /// Offset and timetick of the first message in it.
    pub fn first(&self) -> Option<(Offset, Timetick)> {
        self.entries
            .first()
            .map(|entry| (entry.base_offset, entry.min_timetick))
    }

    /// Copies a verified record in and stamps the copy. The caller has checked that it [`fits`](Self::fits).
    pub fn push(&mut self, record: &[u8], layout: &Layout, given: &Stamp) {
        let (at, len) = (self.used, layout.record_len());
        let room = record_room(len);
        let place = &mut self.buffer.as_bytes_mut()[at..at + room];
        place[..len].copy_from_slice(&record[..len]);
        place[len..].fill(0);
        stamp(&mut place[..len], layout, given);
        let meta = BatchView::new(place, *layout).meta();
        self.entries.push(RecordEntry::new(at as u32, *layout, &meta));
        self.used += room;
    }

    /// Ends the block. Returns it with a fresh builder for the next one: a big buffer that was hardly used is kept and its
    /// few bytes are copied out, so that memory held by sealed blocks is close to the bytes in them.
    pub fn seal(self, term: Term, capacity: usize) -> (Block, Self) {
        let Self {
            mut buffer,
            used,
            entries,
        } = self;
        let body_len = (used - BLOCK_HEADER_BYTES) as u64;
        let padded = block_len(body_len, entries.len() as u64) as usize;
        buffer.as_bytes_mut()[used..padded].fill(0);
        let (buffer, next) = if padded * 2 <= buffer.len() && buffer.len() >= capacity {
            let mut small = allocate_dma_buffer(padded);
            small.as_bytes_mut()[..padded].copy_from_slice(&buffer.as_bytes()[..padded]);
            (
                small,
                Self {
                    buffer,
                    used: BLOCK_HEADER_BYTES,
                    entries: Vec::with_capacity(64),
                },
            )
        } else {
            buffer.trim_to_size(padded);
            (buffer, Self::new(capacity))
        };
        (
            Block {
                buffer,
                body_len: body_len as u32,
                entries,
                term,
            },
            next,
        )
    }
}

/// A sealed block that has no place yet.
pub struct Block {
    buffer: DmaBuffer,
    body_len: u32,
    entries: Vec<RecordEntry>,
    term: Term,
}

impl Block {
    /// Bytes on disk.
    pub fn disk_len(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Records in it.
    pub fn entries(&self) -> &[RecordEntry] {
        &self.entries
    }

    /// The term it was sealed under.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Offset of the first message.
    pub fn first_offset(&self) -> Offset {
        self.entries.first().map_or(Offset::ZERO, |entry| entry.base_offset)
    }

    /// Offset behind the last message.
    pub fn next_offset(&self) -> Offset {
        self.entries.last().map_or(Offset::ZERO, |entry| entry.next_offset)
    }

    /// Gives the block its place: fills in the header and makes it shareable.
    pub(crate) fn place(mut self, tag: u64, segment_index: u64, committed: Offset) -> Rc<PlacedBlock> {
        let header = BlockHeader {
            tag,
            segment_index,
            term: self.term,
            first_offset: self.first_offset(),
            next_offset: self.next_offset(),
            committed,
            body_len: self.body_len,
            record_count: self.entries.len() as u32,
        };
        let positions = self.entries.iter().map(|entry| entry.at);
        header.write(self.buffer.as_bytes_mut(), positions);
        Rc::new(PlacedBlock {
            buffer: Rc::new(self.buffer),
            header,
            entries: self.entries,
        })
    }
}

/// A block that has its place in the log; its bytes never change again. Shared between the write in flight and the tail.
pub struct PlacedBlock {
    pub(crate) buffer: Rc<DmaBuffer>,
    /// What it says of itself.
    pub header: BlockHeader,
    /// Its records.
    pub entries: Vec<RecordEntry>,
}

impl PlacedBlock {
    /// All bytes, header and padding included.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.as_bytes()
    }

    /// Bytes of memory that it holds.
    pub fn memory(&self) -> usize {
        self.buffer.len() + self.entries.capacity() * size_of::<RecordEntry>()
    }

    /// The last timetick in it.
    pub fn last_timetick(&self) -> Timetick {
        self.entries.last().map_or(Timetick::ZERO, |entry| entry.max_timetick)
    }
}
