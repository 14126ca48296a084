//! Frames on their way to the socket, written without being put together first.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
};

use bytes::Bytes;
use tokio::{io::AsyncWriteExt, net::tcp::OwnedWriteHalf};
use wire_format::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind};

/// Pieces given to one system call, at most.
const PIECES: usize = 12;

struct Outgoing {
    header: [u8; FRAME_HEADER_BYTES],
    head: Bytes,
    payload: Bytes,
}

impl Outgoing {
    fn pieces(&self) -> [&[u8]; 3] {
        [&self.header, &self.head, &self.payload]
    }

    fn len(&self) -> usize {
        self.header.len() + self.head.len() + self.payload.len()
    }
}

/// Frames that wait for the socket. It holds shares of the batches' bytes, not copies.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: VecDeque<Outgoing>,
    /// Bytes of the first frame that are written.
    written: usize,
    bytes: usize,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes - self.written
    }

    /// Adds a frame whose body comes in two pieces.
    pub(crate) fn push(&mut self, kind: FrameKind, correlation: u64, head: Bytes, payload: Bytes) {
        let header = FrameHeader::new(kind, head.len() + payload.len(), correlation).to_bytes();
        let outgoing = Outgoing { header, head, payload };
        self.bytes += outgoing.len();
        self.queue.push_back(outgoing);
    }

    /// Hands one system call's worth to the socket. Dropping it while pending loses and repeats nothing.
    pub(crate) async fn write_some(&mut self, socket: &mut OwnedWriteHalf) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let used = self.fill(&mut slices);
        let written = socket.write_vectored(&slices[..used]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.advance(written);
        Ok(())
    }

    fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>; PIECES]) -> usize {
        let mut skip = self.written;
        let mut used = 0;
        for piece in self.queue.iter().flat_map(Outgoing::pieces) {
            let rest = &piece[skip.min(piece.len())..];
            skip -= piece.len() - rest.len();
            if rest.is_empty() {
                continue;
            }
            if used == PIECES {
                break;
            }
            slices[used] = IoSlice::new(rest);
            used += 1;
        }
        used
    }

    fn advance(&mut self, written: usize) {
        self.written += written;
        while let Some(first) = self.queue.front() {
            let len = first.len();
            if self.written < len {
                return;
            }
            self.written -= len;
            self.bytes -= len;
            self.queue.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_split_of_writes_gives_the_same_bytes(
            frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), prop::collection::vec(any::<u8>(), 0..40)), 1..12),
            steps in prop::collection::vec(1usize..60, 1..40),
        ) {
            let mut outbox = Outbox::default();
            let mut whole = Vec::new();
            for (number, (head, payload)) in (1u64..).zip(&frames) {
                whole.extend(FrameHeader::new(FrameKind::Produce, head.len() + payload.len(), number).to_bytes());
                whole.extend(head);
                whole.extend(payload);
                outbox.push(FrameKind::Produce, number, Bytes::copy_from_slice(head), Bytes::copy_from_slice(payload));
            }
            let mut got: Vec<u8> = Vec::new();
            let mut steps = steps.iter().cycle();
            while !outbox.is_empty() {
                prop_assert_eq!(outbox.bytes(), whole.len() - got.len());
                let mut slices = [IoSlice::new(&[]); PIECES];
                let used = outbox.fill(&mut slices);
                let flat: Vec<u8> = slices[..used].iter().flat_map(|s| s.iter().copied()).collect();
                prop_assert!(!flat.is_empty());
                let n = flat.len().min(*steps.next().unwrap());
                got.extend(&flat[..n]);
                outbox.advance(n);
            }
            prop_assert_eq!(got, whole);
            prop_assert_eq!(outbox.bytes(), 0);
        }
    }
}
