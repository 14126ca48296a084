//! The block: what is written to disk at once, and kept in memory as the tail.

mod builder;
mod format;

pub use builder::{Block, BlockBuilder, PlacedBlock};
pub use format::{
    ALIGNMENT, BLOCK_HEADER_BYTES, BLOCK_TAIL_BYTES, BlockFault, BlockHeader, RecordEntry, align_up, block_len,
    pchannel_hash, read_records, record_room,
};
