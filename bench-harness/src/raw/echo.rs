//! A bare echo server on epoll that stores nothing, and clients that each wait for a reply before they ask again: the most that any
//! server with these connections and sizes could answer on this machine.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use serde::Serialize;

use super::cores::{Cores, pin_to};
use super::error::{RawError, Step, failed};
use super::latency::{LatencyRecorder, LatencyUs};
use super::pair;

const STEP: &str = "echo";
/// At most this much is read at once.
const READ_BYTES: usize = 256 << 10;
/// A client that hears nothing for so long gives up.
const SILENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// One echo measurement.
#[derive(Debug, Clone, Copy)]
pub struct EchoPlan {
    /// Server and client CPU.
    pub cores: Cores,
    /// Connections, each with one request under way.
    pub connections: usize,
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Bytes of a reply.
    pub reply_bytes: usize,
    /// How long requests are sent.
    pub duration: Duration,
}

/// What the echo server answered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EchoLimit {
    /// Round trips per second, over all connections.
    pub round_trips_per_s: f64,
    /// From just before the request is written until the reply is read in full, as the client sees it.
    pub round_trip_us: LatencyUs,
}

/// Measures one echo plan. Two threads of its own, each pinned.
///
/// # Errors
/// When the plan asks for nothing, sockets or threads can't be made (open files limit), a CPU can't be used, or no reply comes for 5 s.
pub fn measure(plan: EchoPlan) -> Result<EchoLimit, RawError> {
    if plan.connections == 0 || plan.request_bytes == 0 || plan.reply_bytes == 0 {
        return Err(failed(STEP, "connections, request and reply must not be 0"));
    }
    let (servers, clients): (Vec<_>, Vec<_>) = pair::connect(plan.connections)?
        .into_iter()
        .map(|pair| (pair.server, pair.client))
        .unzip();
    let serving = thread::Builder::new()
        .name("raw-echo-server".to_owned())
        .spawn(move || pin_to(plan.cores.server).and_then(|()| serve(servers, &plan)))
        .step(STEP)?;
    let asking = thread::Builder::new()
        .name("raw-echo-client".to_owned())
        .spawn(move || pin_to(plan.cores.client).and_then(|()| ask(clients, &plan)))
        .step(STEP)?;
    // Each side ends when the other one closes its sockets, which it does even when it fails.
    let asked = asking.join().map_err(|_| failed(STEP, "the client panicked"))?;
    let served = serving.join().map_err(|_| failed(STEP, "the server panicked"))?;
    let limit = asked?;
    served?;
    Ok(limit)
}

/// Answers until all connections are closed.
fn serve(streams: Vec<TcpStream>, plan: &EchoPlan) -> Result<(), RawError> {
    let mut poll = Poll::new(streams.len())?;
    let mut ends = poll.add_all(streams, plan.request_bytes)?;
    let reply = vec![0x5A_u8; plan.reply_bytes];
    let mut buffer = vec![0_u8; READ_BYTES];
    let mut open = ends.len();
    while open > 0 {
        for index in poll.wait(None)? {
            let end = &mut ends[index];
            match end.receive(&mut buffer).step(STEP)? {
                Received::Whole(messages) => end.unsent += messages * plan.reply_bytes,
                Received::Part => {}
                Received::Closed => {
                    // Taken out of the poll, as a closed socket would be reported again and again.
                    epoll::delete(&poll.epoll, &end.stream).step(STEP)?;
                    open -= 1;
                    continue;
                }
            }
            poll.send(index, end, &reply)?;
        }
    }
    Ok(())
}

/// Asks on all connections until the time is over, then lets the requests under way end.
fn ask(streams: Vec<TcpStream>, plan: &EchoPlan) -> Result<EchoLimit, RawError> {
    let mut poll = Poll::new(streams.len())?;
    let mut ends = poll.add_all(streams, plan.reply_bytes)?;
    let request = vec![0xA5_u8; plan.request_bytes];
    let mut buffer = vec![0_u8; READ_BYTES];
    let mut recorder = LatencyRecorder::new()?;
    let mut asked_at = vec![Instant::now(); ends.len()];
    let begin = Instant::now();
    for (index, end) in ends.iter_mut().enumerate() {
        asked_at[index] = Instant::now();
        end.unsent = plan.request_bytes;
        poll.send(index, end, &request)?;
    }
    let mut under_way = ends.len();
    while under_way > 0 {
        let ready = poll.wait(Some(&SILENCE))?;
        if ready.is_empty() {
            return Err(failed(STEP, format!("no reply for {} s", SILENCE.tv_sec)));
        }
        for index in ready {
            let end = &mut ends[index];
            match end.receive(&mut buffer).step(STEP)? {
                Received::Whole(_) => {
                    let now = Instant::now();
                    recorder.record(now - asked_at[index]);
                    if now - begin < plan.duration {
                        asked_at[index] = now;
                        end.unsent = plan.request_bytes;
                    } else {
                        under_way -= 1;
                    }
                }
                Received::Part => {}
                Received::Closed => return Err(failed(STEP, "the server closed a connection")),
            }
            poll.send(index, end, &request)?;
        }
    }
    let round_trip_us = recorder.summary();
    let round_trips_per_s = round_trip_us.samples as f64 / begin.elapsed().as_secs_f64();
    Ok(EchoLimit {
        round_trips_per_s,
        round_trip_us,
    })
}

/// One side of a connection.
struct End {
    stream: TcpStream,
    /// Size of one incoming message.
    message_bytes: usize,
    /// Bytes of the current incoming message that have arrived.
    arrived: usize,
    /// Bytes that wait to be sent.
    unsent: usize,
    /// Whether the poll reports room to write.
    watches_room: bool,
}

enum Received {
    /// So many messages are complete now.
    Whole(usize),
    Part,
    Closed,
}

impl End {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        match self.stream.read(buffer) {
            Ok(0) => Ok(Received::Closed),
            Ok(count) => {
                let arrived = self.arrived + count;
                self.arrived = arrived % self.message_bytes;
                let messages = arrived / self.message_bytes;
                Ok(if messages == 0 {
                    Received::Part
                } else {
                    Received::Whole(messages)
                })
            }
            Err(error) if is_transient(&error) => Ok(Received::Part),
            // The other side went while bytes for it were under way.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Received::Closed),
            Err(error) => Err(error),
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// An epoll whose events carry the index of an [`End`].
struct Poll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poll {
    fn new(connections: usize) -> Result<Self, RawError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).step(STEP)?;
        Ok(Self {
            epoll,
            events: Vec::with_capacity(connections.clamp(1, 1_024)),
        })
    }

    fn add_all(&mut self, streams: Vec<TcpStream>, message_bytes: usize) -> Result<Vec<End>, RawError> {
        let mut ends = Vec::with_capacity(streams.len());
        for (index, stream) in streams.into_iter().enumerate() {
            stream.set_nonblocking(true).step(STEP)?;
            epoll::add(
                &self.epoll,
                &stream,
                epoll::EventData::new_u64(index as u64),
                epoll::EventFlags::IN,
            )
            .step(STEP)?;
            ends.push(End {
                stream,
                message_bytes,
                arrived: 0,
                unsent: 0,
                watches_room: false,
            });
        }
        Ok(ends)
    }

    /// Indices of the ends that have something to do; none when the time is over first.
    fn wait(&mut self, timeout: Option<&Timespec>) -> Result<Vec<usize>, RawError> {
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout) {
                Ok(_) => return Ok(self.events.drain(..).map(|event| event.data.u64() as usize).collect()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).step(STEP),
            }
        }
    }

    /// Sends what `end` has unsent, out of repetitions of `message`, and has the poll report room if not all fits now.
    fn send(&mut self, index: usize, end: &mut End, message: &[u8]) -> Result<(), RawError> {
        let mut room = true;
        while end.unsent > 0 && room {
            let length = end.unsent.min(message.len());
            match end.stream.write(&message[..length]) {
                Ok(count) => end.unsent -= count,
                Err(error) if is_transient(&error) => room = false,
                Err(error) => return Err(error).step(STEP),
            }
        }
        let wants_room = end.unsent > 0;
        if wants_room != end.watches_room {
            let flags = if wants_room {
                epoll::EventFlags::IN | epoll::EventFlags::OUT
            } else {
                epoll::EventFlags::IN
            };
            epoll::modify(&self.epoll, &end.stream, epoll::EventData::new_u64(index as u64), flags).step(STEP)?;
            end.watches_room = wants_room;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(connections: usize, request_bytes: usize, reply_bytes: usize) -> EchoPlan {
        let cores = Cores::pick().unwrap();
        EchoPlan {
            cores,
            connections,
            request_bytes,
            reply_bytes,
            duration: Duration::from_millis(50),
        }
    }

    #[test]
    fn small_requests_on_many_connections() {
        let limit = measure(plan(16, 256, 40)).unwrap();
        assert!(limit.round_trips_per_s > 100.0, "{limit:?}");
        assert!(
            limit.round_trip_us.samples >= 16 && limit.round_trip_us.p50 > 0.0,
            "{limit:?}"
        );
        assert!(limit.round_trip_us.max >= limit.round_trip_us.p99, "{limit:?}");
    }

    #[test]
    fn messages_larger_than_the_socket_buffers() {
        let limit = measure(plan(2, 16 << 20, 9 << 20)).unwrap();
        assert!(limit.round_trip_us.samples >= 2, "{limit:?}");
    }

    #[test]
    fn what_can_not_be_measured_is_an_error_and_not_a_hang() {
        let begin = Instant::now();
        assert!(measure(plan(0, 1, 1)).is_err());
        let mut wrong_cpu = plan(4, 64, 64);
        wrong_cpu.cores.server = 1_023;
        assert!(measure(wrong_cpu).is_err());
        wrong_cpu = plan(4, 64, 64);
        wrong_cpu.cores.client = 1_023;
        assert!(measure(wrong_cpu).is_err());
        assert!(begin.elapsed() < Duration::from_secs(3));
    }
}
