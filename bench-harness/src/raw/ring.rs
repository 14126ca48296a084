//! The only `unsafe` of the raw measurements: reads, writes and syncs of one file through an io_uring.
//!
//! Why it is sound: the kernel works on memory and on a file descriptor that are named in a submission until its completion is
//! seen. [`BlockRing`] owns the ring, the file and every block; a block named in a submission is marked busy and can be
//! neither changed nor queued again until its completion was taken; the blocks never move on the heap; and when the ring is
//! dropped, it first waits for all that is in flight, or, if the kernel refuses even that, gives the memory up instead of freeing it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};

use super::aligned::AlignedBlock;

/// Marks the completion of a sync; no block has this index.
const SYNC: u64 = u64::MAX;

/// Must a write be on stable storage when it completes?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Yes: the write carries `RWF_DSYNC`.
    Synced,
    /// No: a later sync covers it.
    Unsynced,
}

/// What has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    /// The read or write of the block with this index; it may be queued again.
    Block(usize),
    /// The sync.
    Sync,
}

/// A ring over one file with a fixed set of equally long blocks. Lives on one thread.
pub(crate) struct BlockRing {
    ring: IoUring,
    file: File,
    blocks: Vec<AlignedBlock>,
    busy: Vec<bool>,
    block_len: u32,
    in_flight: usize,
}

impl BlockRing {
    /// A ring over `file` (open for direct I/O) with `depth` blocks of `block_bytes`.
    pub(crate) fn new(file: File, block_bytes: usize, depth: usize) -> io::Result<Self> {
        if depth == 0 {
            return Err(io::Error::other("a depth of 0 moves nothing"));
        }
        let block_len = u32::try_from(block_bytes).map_err(io::Error::other)?;
        // One entry for each block and one for the sync.
        let entries = u32::try_from(depth + 1).map_err(io::Error::other)?;
        let ring = IoUring::new(entries)?;
        let mut blocks: Vec<_> = (0..depth).map(|_| AlignedBlock::new(block_bytes)).collect();
        blocks.iter_mut().for_each(AlignedBlock::fill_with_noise);
        Ok(Self {
            ring,
            file,
            blocks,
            busy: vec![false; depth],
            block_len,
            in_flight: 0,
        })
    }

    /// How many operations are queued or running.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues the write of block `index` at file offset `offset` (bytes, aligned).
    pub(crate) fn queue_write(&mut self, index: usize, offset: u64, durability: Durability) -> io::Result<()> {
        self.claim(index)?;
        let flags = if durability == Durability::Synced {
            libc::RWF_DSYNC
        } else {
            0
        };
        let bytes = self.blocks[index].as_slice().as_ptr();
        let entry = opcode::Write::new(Fd(self.file.as_raw_fd()), bytes, self.block_len)
            .offset(offset)
            .rw_flags(flags)
            .build();
        self.push(entry.user_data(index as u64))
    }

    /// Queues a read into block `index` from file offset `offset` (bytes, aligned).
    pub(crate) fn queue_read(&mut self, index: usize, offset: u64) -> io::Result<()> {
        self.claim(index)?;
        let bytes = self.blocks[index].as_mut_slice().as_mut_ptr();
        let entry = opcode::Read::new(Fd(self.file.as_raw_fd()), bytes, self.block_len)
            .offset(offset)
            .build();
        self.push(entry.user_data(index as u64))
    }

    /// Queues an fdatasync: covers the writes whose completions were taken before this call.
    pub(crate) fn queue_sync(&mut self) -> io::Result<()> {
        let entry = opcode::Fsync::new(Fd(self.file.as_raw_fd()))
            .flags(FsyncFlags::DATASYNC)
            .build();
        self.push(entry.user_data(SYNC))
    }

    /// Hands over what is queued, waits for at least one completion and appends all that there are to `done`.
    /// A failed or short operation is an error.
    pub(crate) fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        submit_and_wait(&self.ring)?;
        for completion in self.ring.completion() {
            self.in_flight -= 1;
            let result = completion.result();
            let finished = match completion.user_data() {
                SYNC => Done::Sync,
                index => Done::Block(index as usize),
            };
            if let Done::Block(index) = finished {
                self.busy[index] = false;
            }
            if result < 0 {
                return Err(io::Error::from_raw_os_error(-result));
            }
            if finished != Done::Sync && result.unsigned_abs() != self.block_len {
                return Err(io::Error::other(format!("{result} of {} bytes moved", self.block_len)));
            }
            done.push(finished);
        }
        Ok(())
    }

    /// Marks block `index` as the kernel's until its completion.
    fn claim(&mut self, index: usize) -> io::Result<()> {
        match self.busy.get_mut(index) {
            Some(busy) if !*busy => {
                *busy = true;
                Ok(())
            }
            _ => Err(io::Error::other(format!(
                "block {index} is in flight or does not exist"
            ))),
        }
    }

    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: the entry names `self.file`, open as long as this ring, and at most one block of `self.blocks`, which its
        // caller has claimed; both outlive the operation, as written at the top of this file.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        self.in_flight += 1;
        Ok(())
    }
}

impl Drop for BlockRing {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if submit_and_wait(&self.ring).is_err() {
                // The kernel may still write into the blocks: freeing them would be the worse fault.
                std::mem::forget(std::mem::take(&mut self.blocks));
                return;
            }
            self.in_flight = self.in_flight.saturating_sub(self.ring.completion().count());
        }
    }
}

fn submit_and_wait(ring: &IoUring) -> io::Result<()> {
    loop {
        match ring.submit_and_wait(1) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scratch::ScratchFile;
    use super::*;

    const BLOCK: usize = 8_192;

    fn ring(depth: usize) -> (tempfile::TempDir, BlockRing) {
        let dir = tempfile::tempdir_in(".").unwrap();
        let scratch = ScratchFile::create(dir.path(), 1 << 20).unwrap();
        let ring = BlockRing::new(scratch.handle().unwrap(), BLOCK, depth).unwrap();
        (dir, ring)
    }

    fn wait_for_all(ring: &mut BlockRing) -> io::Result<Vec<Done>> {
        let mut done = Vec::new();
        while ring.in_flight() > 0 {
            ring.wait(&mut done)?;
        }
        Ok(done)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let (_dir, mut ring) = ring(2);
        ring.queue_write(0, 16_384, Durability::Synced).unwrap();
        assert_eq!(wait_for_all(&mut ring).unwrap(), [Done::Block(0)]);
        assert_ne!(ring.blocks[0].as_slice(), ring.blocks[1].as_slice());
        ring.queue_read(1, 16_384).unwrap();
        assert_eq!(wait_for_all(&mut ring).unwrap(), [Done::Block(1)]);
        assert_eq!(ring.blocks[0].as_slice(), ring.blocks[1].as_slice());
        ring.queue_sync().unwrap();
        assert_eq!(wait_for_all(&mut ring).unwrap(), [Done::Sync]);
    }

    #[test]
    fn a_block_in_flight_is_refused() {
        let (_dir, mut ring) = ring(1);
        ring.queue_write(0, 0, Durability::Unsynced).unwrap();
        assert!(ring.queue_write(0, 8_192, Durability::Unsynced).is_err());
        assert!(ring.queue_read(0, 0).is_err());
        assert!(ring.queue_read(1, 0).is_err());
        wait_for_all(&mut ring).unwrap();
        ring.queue_read(0, 0).unwrap();
    }

    #[test]
    fn dropping_waits_for_what_is_in_flight() {
        let (_dir, mut ring) = ring(8);
        for index in 0..8 {
            ring.queue_write(index, index as u64 * BLOCK as u64, Durability::Synced)
                .unwrap();
        }
        drop(ring);
    }

    #[test]
    fn short_and_failed_operations_are_errors() {
        let (_dir, mut ring) = ring(1);
        ring.queue_read(0, (1 << 20) - 4_096).unwrap();
        let error = wait_for_all(&mut ring).unwrap_err();
        assert!(error.to_string().contains("4096 of 8192"), "{error}");
        ring.queue_write(0, 1, Durability::Unsynced).unwrap();
        assert_eq!(wait_for_all(&mut ring).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
