//! What comes in on a non-blocking connection, cut into frames in place.

use std::{
    io::{ErrorKind, Read},
    net::TcpStream,
};

use wire_format::{
    Limits,
    frame::{FRAME_HEADER_BYTES, FrameHeader},
};

use crate::error::{BenchError, During};

/// A receive buffer. It only grows for a frame that is larger than it.
#[derive(Debug)]
pub(super) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// Outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// Bytes came, and filled all room: there may be more.
    Full,
    /// Bytes came.
    Some,
    /// Nothing was there.
    Nothing,
    /// The peer closed.
    Closed,
}

impl Input {
    /// A place holder that can't receive.
    pub(super) const NONE: Self = Self {
        bytes: Vec::new(),
        start: 0,
        end: 0,
    };

    pub(super) fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes.max(FRAME_HEADER_BYTES)],
            start: 0,
            end: 0,
        }
    }

    /// Reads once. All complete frames must have been taken before, else there may be no room.
    pub(super) fn receive(&mut self, stream: &mut TcpStream) -> Result<Received, BenchError> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = self.bytes.len() - self.end;
        match stream.read(&mut self.bytes[self.end..]) {
            Ok(0) => Ok(Received::Closed),
            Ok(count) => {
                self.end += count;
                Ok(if count == room { Received::Full } else { Received::Some })
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(Received::Nothing)
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(Received::Closed),
            Err(error) => Err(error).during("read from the server"),
        }
    }

    /// The next complete frame: its header and body.
    pub(super) fn next_frame(&mut self) -> Result<Option<(FrameHeader, &[u8])>, BenchError> {
        let Some(head) = self.bytes[self.start..self.end].first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(None);
        };
        let header = FrameHeader::read(head, &Limits::WIDEST)?;
        let whole = FRAME_HEADER_BYTES + header.length as usize;
        if self.end - self.start < whole {
            if whole > self.bytes.len() {
                self.bytes.resize(whole, 0);
            }
            if self.start + whole > self.bytes.len() {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            return Ok(None);
        }
        let body = self.start + FRAME_HEADER_BYTES..self.start + whole;
        self.start += whole;
        Ok(Some((header, &self.bytes[body])))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{Ipv4Addr, TcpListener},
    };

    use wire_format::frame::{FrameKind, frame};

    use super::*;

    #[test]
    fn frames_come_out_whole_however_they_were_cut() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut receiver = listener.accept().unwrap().0;
        let bodies: Vec<Vec<u8>> = (0..200_u64)
            .map(|i| vec![i as u8; 8 + (i as usize * 37) % 900])
            .collect();
        let stream: Vec<u8> = (0..)
            .zip(&bodies)
            .flat_map(|(i, b)| frame(FrameKind::AdminRequest, i, b))
            .collect();
        let writing = std::thread::spawn(move || {
            for piece in stream.chunks(101) {
                sender.write_all(piece).unwrap();
            }
        });
        let mut input = Input::new(300);
        let mut got = Vec::new();
        while input.receive(&mut receiver).unwrap() != Received::Closed {
            while let Some((header, body)) = input.next_frame().unwrap() {
                assert_eq!(header.correlation, got.len() as u64);
                got.push(body.to_vec());
            }
        }
        writing.join().unwrap();
        assert_eq!(got, bodies);
    }
}
