//! The memory tail of one pchannel: its newest blocks, shared with readers without a copy.

use std::{collections::VecDeque, rc::Rc};

use backends::block::PlacedBlock;
use wire_format::Offset;

/// Blocks in log order, without gaps. Belongs to the pchannel's shard; its memory is counted by the shard.
#[derive(Default)]
pub struct Tail {
    blocks: VecDeque<Kept>,
    bytes: usize,
}

struct Kept {
    block: Rc<PlacedBlock>,
    /// Bytes that the shard's memory counts for it; exactly these are given back.
    counted: usize,
}

impl Tail {
    /// Adds the block that follows, for which the shard's memory counts `counted` bytes.
    pub fn push(&mut self, block: Rc<PlacedBlock>, counted: usize) {
        self.bytes += block.memory();
        self.blocks.push_back(Kept { block, counted });
    }

    /// Drops the oldest block if all of it lies below `durable`. Returns the bytes counted for it.
    pub fn drop_oldest(&mut self, durable: Offset) -> Option<usize> {
        let oldest = self.blocks.front()?;
        if oldest.block.header.next_offset > durable {
            return None;
        }
        let Kept { block, counted } = self.blocks.pop_front()?;
        self.bytes -= block.memory();
        Some(counted)
    }

    /// Drops everything. Returns the bytes counted for it.
    pub fn clear(&mut self) -> usize {
        self.bytes = 0;
        self.blocks.drain(..).map(|kept| kept.counted).sum()
    }

    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first offset that it holds.
    pub fn first_offset(&self) -> Option<Offset> {
        self.blocks.front().map(|kept| kept.block.header.first_offset)
    }

    /// The block that holds `offset`.
    pub fn find(&self, offset: Offset) -> Option<Rc<PlacedBlock>> {
        let after = self
            .blocks
            .partition_point(|kept| kept.block.header.first_offset <= offset);
        let Kept { block, .. } = self.blocks.get(after.checked_sub(1)?)?;
        (offset < block.header.next_offset).then(|| block.clone())
    }
}
