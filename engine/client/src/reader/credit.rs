//! How many bytes the server may send on.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{io::AsyncWrite, net::tcp::OwnedWriteHalf};
use wire_format::frame::{FrameKind, frame};

/// Bytes that the consumer took and that were not granted back yet. Begins anew with each connection.
#[derive(Debug)]
pub(super) struct Credit {
    window: u64,
    taken: u64,
    unsent: Vec<u8>,
}

impl Credit {
    pub(super) fn new(window: u64) -> Self {
        Self {
            window,
            taken: 0,
            unsent: Vec::new(),
        }
    }

    /// The consumer is through with a delivery.
    pub(super) fn take(&mut self, frame_bytes: u64) {
        self.taken += frame_bytes;
        if self.taken >= self.window / 2 {
            self.grant();
        }
    }

    /// Whether something is held back.
    pub(super) fn holds(&self) -> bool {
        self.taken > 0
    }

    /// Gives back all that was taken, however little: the server may wait for exactly that.
    pub(super) fn grant(&mut self) {
        if self.taken > 0 && self.unsent.is_empty() {
            self.unsent = frame(FrameKind::Credit, 0, &self.taken.to_le_bytes());
            self.taken = 0;
        }
    }

    /// Writes what the socket takes. Pending registers the waker; that is no reason to wait.
    pub(super) fn poll_write(&mut self, socket: &mut OwnedWriteHalf, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match Pin::new(&mut *socket).poll_write(cx, &self.unsent) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(written)) => drop(self.unsent.drain(..written)),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(()),
            }
        }
        Ok(())
    }
}
