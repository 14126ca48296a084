//! The load generator: one thread, one epoll, blocking on nothing else; it speaks the protocol's frames directly.
//!
//! ```text
//!  Pace -> Due --start--> Producer --batches--> server --acks--> Places (each place once, no gap), Latencies
//!                                               server --deliveries, ticks--> Reader --> Latencies from ack to delivery
//! ```
//! A [`Load`] lives on one thread, which the caller pins.

mod greeting;
mod input;
mod pace;
mod places;
mod poll;
mod producer;
mod reader;
mod records;
mod sample;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustix::time::{ClockId, clock_gettime};
use wire_format::{
    Bytes, MessageType, Offset, Timetick,
    batch::Filter,
    protocol::{Intent, ReadRequest, Start},
};

pub use greeting::greet;
pub use pace::Pace;
pub use reader::ReaderPlan;
pub use records::{BatchShape, Records, pchannel_name, vchannel_name};
pub use sample::Sample;

use self::{
    pace::Due,
    places::Places,
    poll::Poll,
    producer::Producer,
    reader::{Came, Reader},
};
use crate::error::{BenchError, During};

/// A server that says nothing for so long, while something is due from it, has failed.
const SILENCE_NS: u64 = 15_000_000_000;
/// A shorter wait is not worth its two switches.
const NAP_MIN_NS: u64 = 10_000;
/// Longest sleep in the poll, so that silence is noticed.
const NAP_NS: u64 = 500_000_000;

/// Connections to one server, and what came of them.
#[derive(Debug)]
pub struct Load {
    address: SocketAddr,
    poll: Poll,
    producers: Vec<Producer>,
    readers: Vec<Reader>,
    places: Vec<Places>,
}

impl Load {
    /// No connection yet. `keep_ack_times`: needed for the time from ack to delivery.
    ///
    /// Connects a producer to each of `pchannels` for a moment, which creates those that do not exist.
    ///
    /// # Errors
    /// When the server can't be reached.
    pub fn new(address: SocketAddr, pchannels: usize, messages: u32, keep_ack_times: bool) -> Result<Self, BenchError> {
        let mut places = Vec::with_capacity(pchannels);
        for index in 0..pchannels {
            let name = pchannel_name(index);
            let (_, reply) = greet(address, &name, Intent::Produce, None)?;
            places.push(Places::new(name, messages, reply.next_offset, keep_ack_times));
        }
        Ok(Self {
            address,
            poll: Poll::new()?,
            producers: Vec::new(),
            readers: Vec::new(),
            places,
        })
    }

    /// Adds `connections` producers, spread over the pchannels round and round, and builds the records that they send.
    ///
    /// # Errors
    /// When a record can't be built or the server can't be reached.
    pub fn add_producers(&mut self, connections: usize, shape: BatchShape) -> Result<(), BenchError> {
        let pchannels = self.places.len();
        let mut records = Vec::with_capacity(pchannels);
        for index in 0..pchannels.min(connections) {
            records.push(Arc::new(Records::build(&pchannel_name(index), shape, pchannels)?));
        }
        for connection in 0..connections {
            let pchannel = connection % pchannels;
            let (stream, _) = greet(self.address, &pchannel_name(pchannel), Intent::Produce, None)?;
            stream.set_nonblocking(true).during("producer's connection")?;
            self.poll.add(&stream, token(self.producers.len(), false))?;
            let records = records[pchannel].clone();
            self.producers.push(Producer::new(stream, pchannel, records));
        }
        Ok(())
    }

    /// Adds a reader that begins at `start`, and says where it really does.
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub fn add_reader(&mut self, plan: ReaderPlan, start: Start) -> Result<Offset, BenchError> {
        let request = ReadRequest {
            start,
            filter: Filter::new(
                plan.vchannel.iter().cloned().collect(),
                Vec::<MessageType>::new(),
                Timetick::ZERO,
                Timetick::MAX,
            ),
            credit: Bytes(plan.credit_bytes),
        };
        let name = pchannel_name(plan.pchannel);
        let (stream, reply) = greet(self.address, &name, Intent::Read, Some(request))?;
        stream.set_nonblocking(true).during("reader's connection")?;
        self.poll.add(&stream, token(self.readers.len(), true))?;
        self.readers.push(Reader::new(stream, plan, reply.start_offset));
        Ok(reply.start_offset)
    }

    /// Closes all connections of readers.
    pub fn drop_readers(&mut self) {
        // Closing takes them out of the poll.
        self.readers.clear();
    }

    /// Closes all connections of producers.
    pub fn drop_producers(&mut self) {
        self.producers.clear();
    }

    /// Sends by `pace` for `duration`, then waits until all is acked and every reader has passed the end of its log.
    ///
    /// # Errors
    /// When the server refuses, closes, breaks a promise or falls silent for 15 s.
    pub fn run(&mut self, pace: Pace, duration: Duration) -> Result<Sample, BenchError> {
        let mut sample = Sample::new()?;
        let cpu_before = thread_cpu_s();
        let begin = now_ns();
        let end = begin + u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2);
        let connections = self.producers.len();
        for (index, producer) in self.producers.iter_mut().enumerate() {
            producer.due = Due::new(pace, begin, end, index, connections);
        }
        self.readers.iter_mut().for_each(|reader| reader.last_tick_at_ns = 0);
        let verified_before = self.verified();
        let is_timed = matches!(pace, Pace::Rate(_));
        let mut heard = begin;
        let mut first = true;
        loop {
            let now = now_ns();
            if is_timed || first {
                self.start_all(now)?;
                first = false;
            }
            if now >= end && self.is_settled() {
                break;
            }
            self.poll.wait(self.nap_ns(now, end))?;
            let known = sample.progress();
            self.take_in(&mut sample, end)?;
            if sample.progress() > known || self.is_settled() {
                heard = now;
            } else if now.saturating_sub(heard) > SILENCE_NS {
                return Err(self.silence());
            }
        }
        sample.window_s = duration.as_secs_f64();
        sample.whole_s = (now_ns() - begin) as f64 / 1e9;
        sample.client_cpu_s = thread_cpu_s() - cpu_before;
        sample.deliveries_verified = self.verified() - verified_before;
        Ok(sample)
    }

    /// How long there is nothing to do but to hear. A client that polls instead takes processor time from the server where a
    /// hypervisor counts both together.
    fn nap_ns(&self, now: u64, end: u64) -> u64 {
        let due = self
            .producers
            .iter()
            .filter_map(|producer| producer.due.due_at_ns())
            .min();
        match (due, end.saturating_sub(now)) {
            (Some(at), _) => match at.saturating_sub(now) {
                ..NAP_MIN_NS => 0,
                left => left.min(NAP_NS),
            },
            (None, 0) => NAP_NS,
            (None, left) => left.min(NAP_NS),
        }
    }

    fn start_all(&mut self, now: u64) -> Result<(), BenchError> {
        for index in 0..self.producers.len() {
            self.producers[index].start_due(now);
            self.send(index)?;
        }
        Ok(())
    }

    fn send(&mut self, index: usize) -> Result<(), BenchError> {
        let producer = &mut self.producers[index];
        let wants_room = !producer.send()?;
        if wants_room != producer.watches_room {
            self.poll
                .watch_room(&producer.stream, token(index, false), wants_room)?;
            producer.watches_room = wants_room;
        }
        Ok(())
    }

    /// Looks at every connection that the poll reported; producers first, so that an ack is known before its deliveries.
    fn take_in(&mut self, sample: &mut Sample, end: u64) -> Result<(), BenchError> {
        for at in 0..self.poll.ready().len() {
            let (index, is_reader) = untoken(self.poll.ready()[at]);
            if !is_reader {
                self.take_acks(index, sample, end)?;
                self.producers[index].start_due(now_ns());
                self.send(index)?;
            }
        }
        for at in 0..self.poll.ready().len() {
            let (index, is_reader) = untoken(self.poll.ready()[at]);
            if is_reader {
                self.take_deliveries(index, sample)?;
            }
        }
        Ok(())
    }

    fn take_acks(&mut self, index: usize, sample: &mut Sample, end: u64) -> Result<(), BenchError> {
        let producer = &mut self.producers[index];
        let places = &mut self.places[producer.pchannel];
        producer.receive(|ack, sent_at| {
            let now = now_ns();
            places.note(ack.base_offset, ack.count, now)?;
            sample.acked(ack.count, now.saturating_sub(sent_at), now < end);
            Ok(())
        })
    }

    fn take_deliveries(&mut self, index: usize, sample: &mut Sample) -> Result<(), BenchError> {
        let reader = &mut self.readers[index];
        let places = &self.places[reader.plan.pchannel];
        reader.receive(|last_tick_at, came| {
            let now = now_ns();
            match came {
                Came::Delivery { base, messages, bytes } => {
                    sample.delivered(
                        messages,
                        bytes,
                        places.acked_at_ns(base).map(|at| now.saturating_sub(at)),
                    );
                }
                Came::Tick => {
                    let gap = (*last_tick_at > 0).then(|| now.saturating_sub(*last_tick_at));
                    *last_tick_at = now;
                    sample.ticked(gap);
                }
            }
            Ok(())
        })
    }

    /// Nothing is in flight and every reader has passed the end of its log.
    fn is_settled(&self) -> bool {
        self.producers.iter().all(Producer::is_idle)
            && self
                .readers
                .iter()
                .all(|reader| reader.next >= self.places[reader.plan.pchannel].end())
    }

    fn silence(&self) -> BenchError {
        let unacked = self.producers.iter().filter(|p| !p.is_idle()).count();
        let behind: Vec<String> = self
            .readers
            .iter()
            .filter(|reader| reader.next < self.places[reader.plan.pchannel].end())
            .map(|reader| format!("{} of {}", reader.next, self.places[reader.plan.pchannel].end()))
            .collect();
        BenchError::Server(format!(
            "said nothing for {} s, while acks were due on {unacked} connections and readers stood at {behind:?}",
            SILENCE_NS / 1_000_000_000
        ))
    }

    fn verified(&self) -> u64 {
        self.readers.iter().map(|reader| reader.verified).sum()
    }

    /// Messages acked on all connections so far.
    pub fn acked_messages(&self) -> u64 {
        self.places.iter().map(Places::messages).sum()
    }

    /// After the server's process was replaced: a load on the new one, once it is seen that each log goes on behind what was
    /// acked by the old one. What was in flight may be stored or not.
    ///
    /// # Errors
    /// When the server can't be reached, or something that was acked is missing.
    pub fn reconnected(&self, address: SocketAddr) -> Result<Self, BenchError> {
        let mut places = Vec::with_capacity(self.places.len());
        for (index, before) in self.places.iter().enumerate() {
            let (_, reply) = greet(address, &pchannel_name(index), Intent::Produce, None)?;
            places.push(before.going_on(reply.next_offset)?);
        }
        Ok(Self {
            address,
            poll: Poll::new()?,
            producers: Vec::new(),
            readers: Vec::new(),
            places,
        })
    }

    /// With nothing in flight: asks the server where each log ends, and holds it against what was acked.
    ///
    /// # Errors
    /// When a place was given twice or not at all, or a log does not end behind the last acked message.
    pub fn check_dense(&self) -> Result<(), BenchError> {
        for (index, places) in self.places.iter().enumerate() {
            let (_, reply) = greet(self.address, &pchannel_name(index), Intent::Produce, None)?;
            places.check_dense(reply.next_offset)?;
        }
        Ok(())
    }
}

fn token(index: usize, is_reader: bool) -> u64 {
    (index as u64) << 1 | u64::from(is_reader)
}

fn untoken(token: u64) -> (usize, bool) {
    ((token >> 1) as usize, token & 1 == 1)
}

/// The monotonic clock in nanoseconds.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CPU time of the calling thread in seconds.
fn thread_cpu_s() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
