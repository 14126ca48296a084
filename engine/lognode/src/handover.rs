//! Sockets, and questions about a whole shard, on their way from the acceptor to the shard.

use std::{
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Poll,
};

use crossbeam::queue::ArrayQueue;
use futures_util::task::AtomicWaker;
use tokio::sync::oneshot;
use wire_format::{
    Millis,
    protocol::{Hello, PchannelInfo},
};

/// Arrivals that may wait for one shard; one more is closed.
const WAITING_MAX: usize = 1_024;

/// A timer of 10 ms is that late now and then on a busy machine; a poke then does no harm.
const LATE_MS: u64 = 5;

/// A connection whose hello was read, and nothing behind it.
pub struct Connection {
    /// The socket, non-blocking.
    pub stream: TcpStream,
    /// Its first frame.
    pub hello: Hello,
    /// Kept until it ends.
    pub seat: Seat,
}

/// How many connections the node has, and may have: counted the moment that they come and go, on whatever thread.
pub struct Seats {
    taken: AtomicUsize,
    /// How many there may be.
    pub max: usize,
}

/// One connection's seat, until it is dropped.
pub struct Seat(Arc<Seats>);

impl Seats {
    /// `max` free seats.
    pub fn new(max: usize) -> Arc<Self> {
        let taken = AtomicUsize::new(0);
        Arc::new(Self { taken, max })
    }

    /// Takes a seat if there is a free one.
    pub fn take(self: Arc<Self>) -> Option<Seat> {
        let one_more = |taken| (taken < self.max).then_some(taken + 1);
        let taken = self.taken.try_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.ok().map(|_| Seat(self))
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What comes into a shard.
pub enum Arrival {
    /// A connection for one of its pchannels.
    Connection(Connection),
    /// Which pchannels it has, as they stand when it takes the question. Whoever asks may be gone by then.
    List(oneshot::Sender<Vec<PchannelInfo>>),
}

/// A bounded queue into one shard. Any thread may push; only the shard takes.
///
/// The waker is a foreign one for the shard's executor. It serves twice: it makes a hand-over quick on an idle shard, and
/// the heartbeat thread pokes a shard whose timer is late, so that one that fell asleep with work to do (glommio 0.9) wakes
/// up again.
#[derive(Clone)]
pub struct Inbox {
    queue: Arc<ArrayQueue<Arrival>>,
    waker: Arc<AtomicWaker>,
    /// When the shard's timer has its next turn, by the boot clock; 0 until it says so.
    turn_due: Arc<AtomicU64>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            queue: Arc::new(ArrayQueue::new(WAITING_MAX)),
            waker: Arc::new(AtomicWaker::new()),
            turn_due: Arc::default(),
        }
    }
}

impl Inbox {
    /// Hands a connection over, or gives it back if too many wait.
    pub fn push(&self, arrival: Arrival) -> Result<(), Box<Arrival>> {
        self.queue.push(arrival).map_err(Box::new)?;
        self.waker.wake();
        Ok(())
    }

    /// Wakes the shard, whether there is something to take or not.
    pub fn poke(&self) {
        self.waker.wake();
    }

    /// Says when the shard's timer has its next turn, by the boot clock. On the shard only.
    pub fn announce_turn(&self, at: Millis) {
        self.turn_due.store(at.get(), Ordering::Relaxed);
    }

    /// Whether the shard's timer is late at `now`, or never said when it is due.
    pub fn is_late(&self, now: Millis) -> bool {
        now.get() > self.turn_due.load(Ordering::Relaxed) + LATE_MS
    }

    /// Waits for a poke or an arrival, and takes one if there is one. On the shard only.
    pub async fn next(&self) -> Option<Arrival> {
        let mut woken = false;
        std::future::poll_fn(|context| {
            if let Some(arrival) = self.queue.pop() {
                return Poll::Ready(Some(arrival));
            }
            if std::mem::replace(&mut woken, true) {
                return Poll::Ready(None);
            }
            self.waker.register(context.waker());
            // Whoever pushed between the look and the registration did not wake us.
            self.queue
                .pop()
                .map_or(Poll::Pending, |arrival| Poll::Ready(Some(arrival)))
        })
        .await
    }
}
