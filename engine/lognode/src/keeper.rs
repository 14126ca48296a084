//! The thread that writes the node's metadata, so that no shard ever waits for that disk write.
//!
//! Shards ask through a bounded queue and look at two atomics once per tick. One small write serves all shards.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    thread,
};

use crossbeam::channel::{Receiver, Sender, bounded};
use lognode_core::StoredClock;
use wire_format::{Term, Timetick};

use crate::metadata::{Metadata, MetadataError, NodeState};

/// Requests that may wait; one more is dropped and asked again at the next tick.
const QUEUE: usize = 256;

enum Request {
    Mark { mark: Timetick, clock: StoredClock },
    Term(Sender<Result<Term, String>>),
    Stop,
}

/// What shards see of it. Shared by all threads.
#[derive(Clone)]
pub struct Keeper {
    requests: Sender<Request>,
    published: Arc<Published>,
}

struct Published {
    mark: AtomicU64,
    difference_ms: AtomicI64,
    failures: AtomicU64,
    written_bytes: AtomicU64,
}

impl Keeper {
    /// Starts the thread. The state read from `metadata` is already the next life's: its term was raised and stored.
    pub fn start(metadata: Metadata) -> std::io::Result<(Self, thread::JoinHandle<()>)> {
        let (requests, inbox) = bounded(QUEUE);
        let state = metadata.state();
        let published = Arc::new(Published {
            mark: AtomicU64::new(state.mark.get()),
            difference_ms: AtomicI64::new(state.clock.map_or(0, |clock| clock.difference_ms)),
            failures: AtomicU64::new(0),
            written_bytes: AtomicU64::new(metadata.written_bytes()),
        });
        let shown = published.clone();
        let thread = thread::Builder::new()
            .name("keeper".into())
            .spawn(move || run(metadata, &inbox, &shown))?;
        Ok((Self { requests, published }, thread))
    }

    /// The stored mark.
    pub fn mark(&self) -> Timetick {
        Timetick(self.published.mark.load(Ordering::Acquire))
    }

    /// The stored clock difference, in milliseconds.
    pub fn difference_ms(&self) -> i64 {
        self.published.difference_ms.load(Ordering::Acquire)
    }

    /// Writes that failed so far.
    pub fn failures(&self) -> u64 {
        self.published.failures.load(Ordering::Acquire)
    }

    /// Bytes of metadata written so far.
    pub fn written_bytes(&self) -> u64 {
        self.published.written_bytes.load(Ordering::Acquire)
    }

    /// Asks for a mark; never blocks. `false`: the queue is full, ask again later.
    pub fn ask_mark(&self, mark: Timetick, clock: StoredClock) -> bool {
        self.requests.try_send(Request::Mark { mark, clock }).is_ok()
    }

    /// A term that was never given before; durable when it returns. Blocks: call it from a helper thread.
    pub fn next_term(&self) -> Result<Term, String> {
        let (answer, result) = bounded(1);
        let gone = |_| "the metadata thread has ended".to_owned();
        self.requests.send(Request::Term(answer)).map_err(|_| gone(()))?;
        result.recv().map_err(|_| gone(()))?
    }

    /// Ends the thread after what was asked.
    pub fn stop(&self) {
        // Fails only if the thread has ended already.
        let _ = self.requests.send(Request::Stop);
    }
}

fn run(mut metadata: Metadata, inbox: &Receiver<Request>, published: &Published) {
    while let Ok(request) = inbox.recv() {
        match request {
            Request::Stop => return,
            Request::Mark { mark, clock } => raise(&mut metadata, mark, clock, published),
            Request::Term(answer) => {
                let state = metadata.state();
                let term = state.term.next();
                let result = metadata.store(NodeState { term, ..state });
                // Nobody waits any more if the shard went down meanwhile; the term is then never used.
                let _ = answer.send(result.map(|()| term).map_err(|e| e.to_string()));
                published
                    .written_bytes
                    .store(metadata.written_bytes(), Ordering::Release);
            }
        }
    }
}

fn raise(metadata: &mut Metadata, mark: Timetick, clock: StoredClock, published: &Published) {
    let state = metadata.state();
    let newer = match state.clock {
        Some(known) if known.boot_id == clock.boot_id && known.difference_ms >= clock.difference_ms => known,
        _ => clock,
    };
    if mark <= state.mark && state.clock == Some(newer) {
        return;
    }
    let next = NodeState {
        mark: state.mark.max(mark),
        clock: Some(newer),
        ..state
    };
    match metadata.store(next) {
        Ok(()) => {
            published.mark.store(next.mark.get(), Ordering::Release);
            published.difference_ms.store(newer.difference_ms, Ordering::Release);
            published
                .written_bytes
                .store(metadata.written_bytes(), Ordering::Release);
        }
        Err(error) => {
            published.failures.fetch_add(1, Ordering::AcqRel);
            tracing::error!(%error, "the time mark can't be stored; ticks stand still until it can");
        }
    }
}

/// Raises the term for this life of the process and stores it with the clock that starts now.
pub fn begin_life(metadata: &mut Metadata, clock: StoredClock, at_least: Term) -> Result<Term, MetadataError> {
    let state = metadata.state();
    let term = state.term.max(at_least).next();
    metadata.store(NodeState {
        term,
        mark: state.mark,
        clock: Some(clock),
    })?;
    Ok(term)
}
