//! An epoll whose events carry a token.

use std::{mem::MaybeUninit, net::TcpStream};

use rustix::{
    event::{
        Timespec,
        epoll::{self, EventData, EventFlags},
    },
    fd::OwnedFd,
    io::Errno,
};

use crate::error::{BenchError, During};

const STEP: &str = "epoll";
const EVENTS_AT_ONCE: usize = 256;

#[derive(Debug)]
pub(super) struct Poll {
    epoll: OwnedFd,
    ready: Vec<u64>,
}

impl Poll {
    pub(super) fn new() -> Result<Self, BenchError> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).during(STEP)?,
            ready: Vec::with_capacity(EVENTS_AT_ONCE),
        })
    }

    pub(super) fn add(&self, stream: &TcpStream, token: u64) -> Result<(), BenchError> {
        epoll::add(&self.epoll, stream, EventData::new_u64(token), EventFlags::IN).during(STEP)
    }

    /// Reports room to write on a connection, or no longer.
    pub(super) fn watch_room(&self, stream: &TcpStream, token: u64, wanted: bool) -> Result<(), BenchError> {
        let flags = if wanted {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        };
        epoll::modify(&self.epoll, stream, EventData::new_u64(token), flags).during(STEP)
    }

    /// Waits for something to do, at most for `nap_ns`.
    pub(super) fn wait(&mut self, nap_ns: u64) -> Result<(), BenchError> {
        let timeout = Timespec {
            tv_sec: (nap_ns / 1_000_000_000) as i64,
            tv_nsec: (nap_ns % 1_000_000_000) as _,
        };
        self.ready.clear();
        // Not kept: an event may hold a pointer, so a poll that kept some could not move to another thread.
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_AT_ONCE];
        match epoll::wait(&self.epoll, events.as_mut_slice(), Some(&timeout)) {
            Ok((came, _)) => self.ready.extend(came.iter().map(|event| event.data.u64())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).during(STEP),
        }
        Ok(())
    }

    /// Tokens of the connections that had something to do.
    pub(super) fn ready(&self) -> &[u64] {
        &self.ready
    }
}
