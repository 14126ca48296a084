//! One producing connection: batches out, acks in. Nothing is allocated per batch once its queues have grown.

use std::{
    collections::VecDeque,
    io::{ErrorKind, IoSlice, Write},
    net::TcpStream,
    sync::Arc,
};

use wire_format::{
    Timetick,
    frame::{Ack, FRAME_HEADER_BYTES, FrameHeader, FrameKind},
    protocol::Refusal,
};

use super::{
    greeting::unexpected,
    input::{Input, Received},
    pace::Due,
    records::Records,
};
use crate::error::{BenchError, During};

/// Frames handed to the kernel at once.
const FRAMES_AT_ONCE: usize = 32;
const INPUT_BYTES: usize = 64 << 10;

/// A frame that waits to be written.
#[derive(Debug)]
struct Queued {
    header: [u8; FRAME_HEADER_BYTES],
    record: u64,
}

#[derive(Debug)]
pub(super) struct Producer {
    pub(super) stream: TcpStream,
    /// Number of its pchannel.
    pub(super) pchannel: usize,
    pub(super) due: Due,
    /// Whether the poll reports room to write.
    pub(super) watches_room: bool,
    records: Arc<Records>,
    queue: VecDeque<Queued>,
    front_sent: usize,
    /// When each unacked batch should have left, oldest first.
    in_flight: VecDeque<u64>,
    next_correlation: u64,
    last_tick: Timetick,
    input: Input,
}

impl Producer {
    pub(super) fn new(stream: TcpStream, pchannel: usize, records: Arc<Records>) -> Self {
        Self {
            stream,
            pchannel,
            due: Due::NEVER,
            watches_room: false,
            records,
            queue: VecDeque::with_capacity(256),
            front_sent: 0,
            in_flight: VecDeque::with_capacity(1_024),
            next_correlation: 1,
            last_tick: Timetick::ZERO,
            input: Input::new(INPUT_BYTES),
        }
    }

    /// Whether everything due was sent and acked.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && !self.due.is_behind()
    }

    /// Queues what is due now.
    pub(super) fn start_due(&mut self, now_ns: u64) {
        while let Some(at) = self.due.take(now_ns, self.in_flight.len(), self.queue.len()) {
            let (correlation, record) = (self.next_correlation, self.next_correlation);
            let length = self.records.get(record).len();
            self.queue.push_back(Queued {
                header: FrameHeader::new(FrameKind::Produce, length, correlation).to_bytes(),
                record,
            });
            self.in_flight.push_back(at);
            self.next_correlation += 1;
        }
    }

    /// Writes as much as the socket takes; `false` if something is left.
    pub(super) fn send(&mut self) -> Result<bool, BenchError> {
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); 2 * FRAMES_AT_ONCE];
            let (mut used, mut skip) = (0, self.front_sent);
            for queued in self.queue.iter().take(FRAMES_AT_ONCE) {
                for part in [queued.header.as_slice(), self.records.get(queued.record)] {
                    let cut = skip.min(part.len());
                    skip -= cut;
                    slices[used] = IoSlice::new(&part[cut..]);
                    used += 1;
                }
            }
            match (&self.stream).write_vectored(&slices[..used]) {
                Ok(count) => self.sent(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The reason stands in what the server said before it closed; reading will find it.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    return Ok(true);
                }
                Err(error) => return Err(error).during("write to the server"),
            }
        }
        Ok(true)
    }

    fn sent(&mut self, count: usize) {
        self.front_sent += count;
        while let Some(front) = self.queue.front() {
            let whole = FRAME_HEADER_BYTES + self.records.get(front.record).len();
            if self.front_sent < whole {
                return;
            }
            self.front_sent -= whole;
            self.queue.pop_front();
        }
    }

    /// Reads what is there and tells each ack with the moment at which its batch should have left.
    pub(super) fn receive(
        &mut self,
        mut on_ack: impl FnMut(Ack, u64) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        loop {
            let received = self.input.receive(&mut self.stream)?;
            if received == Received::Closed {
                return Err(BenchError::Server("closed a producer's connection".to_owned()));
            }
            while let Some((header, body)) = self.input.next_frame()? {
                match header.kind {
                    FrameKind::Ack => {}
                    FrameKind::Refusal => return Err(BenchError::Refused(Box::new(Refusal::read(body)?))),
                    other => return Err(unexpected(other, "an ack").into()),
                }
                let ack = Ack::read(body)?;
                let expected = self.next_correlation - self.in_flight.len() as u64;
                let Some(at) = self.in_flight.pop_front().filter(|_| header.correlation == expected) else {
                    let found = header.correlation;
                    return Err(BenchError::Check(format!("ack {found} came where {expected} was due")));
                };
                if ack.first_timetick <= self.last_tick || ack.duplicate {
                    return Err(BenchError::Check(format!("{ack:?} came behind {:?}", self.last_tick)));
                }
                self.last_tick = ack.first_timetick.plus(u64::from(ack.count).saturating_sub(1));
                on_ack(ack, at)?;
            }
            if received != Received::Full {
                return Ok(());
            }
        }
    }
}
