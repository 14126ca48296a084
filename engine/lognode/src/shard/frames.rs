//! Reading frames from a socket: bounded, with a buffer that grows with what really arrives.

use std::{rc::Rc, time::Duration};

use futures_lite::{AsyncReadExt, FutureExt};
use glommio::timer::sleep;
use wire_format::{
    FormatError, Limits,
    frame::{FRAME_HEADER_BYTES, FrameHeader},
    protocol::Refusal,
};

use super::{memory::ShardMemory, refusals};

/// A peer that began a frame must send some more of it within this.
const GOES_ON_WITHIN: Duration = Duration::from_secs(30);
const BUFFER_MIN_BYTES: usize = 4 << 10;
/// A buffer larger than this is given back when its big frame is done and small ones follow.
const BUFFER_KEEP_BYTES: usize = 64 << 10;
/// So many small frames in a row before a big buffer is given back.
const SMALL_FRAMES: u32 = 64;

/// Why no further frame comes.
pub enum FrameEnd {
    /// The peer is gone, in order or not.
    Gone,
    /// The peer sent something that can't be; tell it and close.
    Refused(Box<Refusal>),
}

impl From<FormatError> for FrameEnd {
    fn from(error: FormatError) -> Self {
        Self::Refused(Box::new(refusals::of_format(&error)))
    }
}

/// The receiving half of a connection. Its buffer is counted in the shard's memory.
pub struct FrameReader<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    small: u32,
    limits: Limits,
    memory: Rc<ShardMemory>,
}

impl<R: AsyncReadExt + Unpin> FrameReader<R> {
    /// Reads from `input` under `limits`.
    pub fn new(input: R, limits: Limits, memory: Rc<ShardMemory>) -> Self {
        Self {
            input,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            small: 0,
            limits,
            memory,
        }
    }

    /// Waits for the next whole frame. It stays in the buffer until the next call: take it with [`body`](Self::body).
    pub async fn next(&mut self) -> Result<FrameHeader, FrameEnd> {
        self.fill(FRAME_HEADER_BYTES, false).await?;
        let mut head = [0; FRAME_HEADER_BYTES];
        head.copy_from_slice(&self.buffer[self.start..self.start + FRAME_HEADER_BYTES]);
        let header = FrameHeader::read(&head, &self.limits)?;
        self.fill(FRAME_HEADER_BYTES + header.length as usize, true).await?;
        self.start += FRAME_HEADER_BYTES;
        Ok(header)
    }

    /// The body of the frame that [`next`](Self::next) found.
    pub fn body(&self, header: &FrameHeader) -> &[u8] {
        &self.buffer[self.start..self.start + header.length as usize]
    }

    /// Done with the frame.
    pub fn consume(&mut self, header: &FrameHeader) {
        self.start += header.length as usize;
        self.small = if header.length as usize > BUFFER_MIN_BYTES {
            0
        } else {
            self.small.saturating_add(1)
        };
    }

    /// Reads until `need` bytes are there. `is_body`: a frame's header has come.
    async fn fill(&mut self, need: usize, is_body: bool) -> Result<(), FrameEnd> {
        while self.end - self.start < need {
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
                self.shrink();
            }
            if self.buffer.len() - self.start < need || self.end == self.buffer.len() {
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
                self.grow(need)?;
            }
            let begun = self.end > self.start || is_body;
            let read = self.input.read(&mut self.buffer[self.end..]);
            // Between two frames a connection may be quiet for ever. One that stops in the middle of a frame holds memory that
            // others wait for.
            let read = match begun {
                true => read.or(stalled()).await,
                false => read.await,
            };
            let read = read.map_err(|_| FrameEnd::Gone)?;
            if read == 0 {
                return Err(FrameEnd::Gone);
            }
            self.end += read;
        }
        Ok(())
    }

    /// Grows to hold `need`, but at most to twice what has arrived: a lying length costs the liar bytes, not us memory.
    fn grow(&mut self, need: usize) -> Result<(), FrameEnd> {
        let want = need.min((self.end * 2).max(BUFFER_MIN_BYTES));
        let Some(more) = want.checked_sub(self.buffer.len()).filter(|&more| more > 0) else {
            return Ok(());
        };
        if !self.memory.take_receiving(more) {
            let [.., (_, used, total), _] = self.memory.report();
            return Err(FrameEnd::Refused(Box::new(refusals::no_receive_memory(used, total))));
        }
        self.buffer.resize(want, 0);
        Ok(())
    }

    fn shrink(&mut self) {
        if self.small > SMALL_FRAMES && self.buffer.len() > BUFFER_KEEP_BYTES {
            self.memory.give_back_receiving(self.buffer.len() - BUFFER_MIN_BYTES);
            self.buffer.truncate(BUFFER_MIN_BYTES);
            self.buffer.shrink_to_fit();
        }
    }
}

async fn stalled() -> std::io::Result<usize> {
    sleep(GOES_ON_WITHIN).await;
    Err(std::io::ErrorKind::TimedOut.into())
}

impl<R> Drop for FrameReader<R> {
    fn drop(&mut self) {
        self.memory.give_back_receiving(self.buffer.len());
    }
}
