//! A byte block at an address that direct I/O accepts.

/// Address and length granularity that every direct I/O device here accepts, in bytes.
pub(crate) const ALIGNMENT: usize = 4096;

/// `len` bytes whose first one lies at a multiple of [`ALIGNMENT`]. The address stays the same when the block is moved.
#[derive(Debug)]
pub(crate) struct AlignedBlock {
    // Longer than needed; a slice of it is aligned. Never grown, so its heap address stays.
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBlock {
    /// A zeroed block of `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        let bytes = vec![0_u8; len + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start, len }
    }

    /// The aligned bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The aligned bytes, to be changed.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// Fills the block with bytes that neither compress nor repeat.
    pub(crate) fn fill_with_noise(&mut self) {
        rand::fill(self.as_mut_slice());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_and_keeps_its_address_when_moved() {
        let block = AlignedBlock::new(8_192);
        let address = block.as_slice().as_ptr() as usize;
        assert_eq!(address % ALIGNMENT, 0);
        let moved = Box::new(block);
        assert_eq!(moved.as_slice().as_ptr() as usize, address);
        assert_eq!(moved.as_slice().len(), 8_192);
    }
}
