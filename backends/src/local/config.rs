//! How a local log is laid out.

use std::path::PathBuf;

use wire_format::{Bytes, Limits};

use crate::block::{ALIGNMENT, BlockBuilder};

use super::segment::{SEGMENT_HEADER_BYTES, TRAILER_BYTES};

/// Room that a segment keeps for its footer.
pub const FOOTER_ROOM_BYTES: u64 = 256 << 10;

/// The largest segment whose sparse index fits into the footer's room.
const SEGMENT_MAX_BYTES: u64 = 2 << 30;

/// Where and how a pchannel's log is stored.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// The pchannel's own folder.
    pub folder: PathBuf,
    /// Its name.
    pub pchannel: String,
    /// Size of each segment file; a multiple of 4096.
    pub segment: Bytes,
    /// How much a reader reads ahead from disk at once.
    pub read_ahead: Bytes,
}

impl LocalConfig {
    /// The smallest segment that holds a block with one record of `limits`.
    pub fn segment_min(limits: &Limits) -> Bytes {
        Bytes(Self::overhead() + BlockBuilder::capacity_for(limits.batch_bytes as usize) as u64)
    }

    /// Bytes of a segment that blocks can't use.
    pub(super) const fn overhead() -> u64 {
        SEGMENT_HEADER_BYTES + TRAILER_BYTES + FOOTER_ROOM_BYTES
    }

    /// First byte that blocks may not reach.
    pub(super) fn blocks_end(&self) -> u64 {
        (self.segment.get() / ALIGNMENT as u64 * ALIGNMENT as u64).saturating_sub(TRAILER_BYTES + FOOTER_ROOM_BYTES)
    }

    /// Bytes of the largest block that a segment takes.
    pub(super) fn block_max(&self) -> u64 {
        self.blocks_end().saturating_sub(SEGMENT_HEADER_BYTES)
    }

    /// Whether and why the values can't work.
    pub fn check(&self, limits: &Limits) -> Result<(), String> {
        let min = Self::segment_min(limits);
        if !self.segment.get().is_multiple_of(ALIGNMENT as u64) {
            return Err(format!("segment size {} is no multiple of {ALIGNMENT}", self.segment));
        }
        if self.segment.get() > SEGMENT_MAX_BYTES {
            return Err(format!(
                "segment size {} is too large: use {SEGMENT_MAX_BYTES} or less",
                self.segment
            ));
        }
        if self.segment < min {
            return Err(format!(
                "segment size {} is too small for a batch of {} bytes: use {min} or more",
                self.segment, limits.batch_bytes
            ));
        }
        Ok(())
    }
}
