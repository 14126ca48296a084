//! The memory tail of one pchannel: its newest blocks, shared with readers without a copy.

use std::{collections::VecDeque, rc::Rc};

use backends::block::PlacedBlock;
use wire_format::Offset;

/// Blocks in log order, without gaps. Belongs to the pchannel's shard; its memory is counted by the shard.
#[derive(Default)]
pub struct Tail {
    blocks: VecDeque<Rc<PlacedBlock>>,
    bytes: usize,
}

impl Tail {
    /// Adds the block that follows.
    pub fn push(&mut self, block: Rc<PlacedBlock>) {
        self.bytes += block.memory();
        self.blocks.push_back(block);
    }

    /// Drops the oldest block if all of it lies below `durable`. Returns the bytes that it took.
    pub fn drop_oldest(&mut self, durable: Offset) -> Option<usize> {
        let oldest = self.blocks.front()?;
        if oldest.header.next_offset > durable {
            return None;
        }
        let bytes = oldest.memory();
        self.blocks.pop_front();
        self.bytes -= bytes;
        Some(bytes)
    }

    /// Drops everything. Returns the bytes that it took.
    pub fn clear(&mut self) -> usize {
        self.blocks.clear();
        std::mem::take(&mut self.bytes)
    }

    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first offset that it holds.
    pub fn first_offset(&self) -> Option<Offset> {
        self.blocks.front().map(|block| block.header.first_offset)
    }

    /// The block that holds `offset`.
    pub fn find(&self, offset: Offset) -> Option<Rc<PlacedBlock>> {
        let after = self.blocks.partition_point(|block| block.header.first_offset <= offset);
        let block = self.blocks.get(after.checked_sub(1)?)?;
        (offset < block.header.next_offset).then(|| block.clone())
    }
}
