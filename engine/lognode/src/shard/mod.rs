//! A shard: one pinned thread, one executor, the pchannels that hash to it, and everything that they need.
//!
//! ```text
//!  acceptor --Inbox--> connection --+-- produce: frames -> verify -> Pchannel::append ---+
//!                                   |      ^ acks when durable                           v
//!                                   |      `------------- commit: seal -> LocalWal -> durable
//!                                   +-- scan: cursor -> tail | log -> filter -> deliver, tick
//!  ticker, every 10 ms: Pchannel::tick -> promises        retain: old segments go
//! ```
//! Nothing in here is shared with another thread but the inbox, the keeper's atomics and the published counters. State is
//! changed by synchronous calls only: no borrow lives across an await.

mod ack_queue;
mod commit;
mod connection;
mod dedupe_archive;
mod frames;
mod memory;
mod open;
mod pchannel;
mod produce;
mod read_memory;
mod refusals;
mod retain;
mod scan;
mod socket;
mod stats;
mod tail;
mod ticker;
mod write_queue;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use backends::{gate::Gate, signal::Signal, wal::Wal};
use futures_lite::{AsyncWrite, AsyncWriteExt, FutureExt};
use glommio::timer::{Timer, sleep};
use lognode_core::{HybridClock, StoredClock, TimeMark};
use wire_format::{
    Limits, Millis, Offset, Term, Timetick,
    limits::check_pchannel_name,
    protocol::{AdminReply, PchannelInfo, Refusal, RefusalCode},
};

use self::{memory::ShardMemory, pchannel::Pchannel, stats::Stats, write_queue::WriteQueue};
pub use self::{open::OpenError, stats::Counters};
use crate::{
    config::Config,
    handover::{Arrival, Connection, Inbox},
    keeper::Keeper,
    time_source::TimeSource,
};

/// A peer that takes no byte for so long is given up.
const STALLED: Duration = Duration::from_secs(30);

/// What a shard shows to the other threads.
#[derive(Debug, Clone, Default)]
pub struct Published {
    /// Its counters.
    pub counters: Counters,
    /// Its pchannels.
    pub pchannels: Vec<PchannelInfo>,
    /// Its memory: name, used, total, in bytes.
    pub memory: Vec<(&'static str, u64, u64)>,
    /// Connections that it serves.
    pub connections: usize,
    /// Wall clock minus the log's time, in milliseconds.
    pub clock_skew_ms: i64,
    /// When this was published, by the boot clock.
    pub at: Millis,
}

/// What a shard is started with. Made by the node, moved to the shard's thread.
#[derive(Clone)]
pub struct ShardSeed {
    /// Its number.
    pub id: u16,
    /// The whole configuration.
    pub config: Arc<Config>,
    /// Where connections come in.
    pub inbox: Inbox,
    /// The metadata thread.
    pub keeper: Keeper,
    /// The clock as it starts.
    pub clock: HybridClock,
    /// The stored mark.
    pub mark: Timetick,
    /// The term of this life.
    pub term: Term,
    /// Where the machine's clocks are read.
    pub source: TimeSource,
    /// Where it shows itself.
    pub published: Arc<Mutex<Published>>,
    /// Set when the node stops.
    pub stopping: Arc<std::sync::atomic::AtomicBool>,
    /// Name of the node, for greetings.
    pub server_name: String,
    /// How many pchannels the node has, over all shards.
    pub existing: Arc<AtomicUsize>,
}

/// One shard. Lives on its thread.
pub struct Shard {
    id: u16,
    config: Arc<Config>,
    limits: Limits,
    keeper: Keeper,
    clock: RefCell<HybridClock>,
    mark: RefCell<TimeMark>,
    source: RefCell<TimeSource>,
    term: Term,
    server_name: String,
    writes: WriteQueue,
    memory: Rc<ShardMemory>,
    stats: Stats,
    pchannels: RefCell<BTreeMap<String, Rc<Pchannel>>>,
    /// Those that somebody reads: only they get ticks.
    listened: RefCell<Vec<Rc<Pchannel>>>,
    opening: Gate,
    /// Those that failed in this life, with the end of what was durable then.
    reopened: RefCell<BTreeMap<String, Offset>>,
    /// Those that are there and could not be opened, with the reason.
    unopened: RefCell<BTreeMap<String, String>>,
    /// How many pchannels the node has, over all shards.
    existing: Arc<AtomicUsize>,
    connections: Cell<usize>,
    inbox: Inbox,
    /// The timer has gone to its quiet pace.
    quiet: Cell<bool>,
    /// Told when the quiet timer must go back to its pace.
    stirred: Signal,
    ended: Signal,
    stop_told: Signal,
    published: Arc<Mutex<Published>>,
    stopping: Arc<std::sync::atomic::AtomicBool>,
}

/// Whether naming a pchannel may bring it into being.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Creates {
    Yes,
    No,
}

impl Shard {
    /// The shard of a seed. On its own thread.
    pub fn new(seed: &ShardSeed) -> Rc<Self> {
        let shards = seed.config.cpus().len().max(1) as u64;
        Rc::new(Self {
            id: seed.id,
            limits: seed.config.batch_limits(),
            keeper: seed.keeper.clone(),
            clock: RefCell::new(seed.clock),
            mark: RefCell::new(TimeMark::new(seed.mark)),
            source: RefCell::new(seed.source.clone()),
            term: seed.term,
            server_name: seed.server_name.clone(),
            writes: WriteQueue::default(),
            memory: Rc::new(ShardMemory::new(seed.config.shards.memory_bytes / shards)),
            stats: Stats::default(),
            pchannels: RefCell::default(),
            listened: RefCell::default(),
            opening: Gate::default(),
            reopened: RefCell::default(),
            unopened: RefCell::default(),
            existing: seed.existing.clone(),
            connections: Cell::new(0),
            inbox: seed.inbox.clone(),
            quiet: Cell::new(false),
            stirred: Signal::default(),
            ended: Signal::default(),
            stop_told: Signal::default(),
            published: seed.published.clone(),
            stopping: seed.stopping.clone(),
            config: seed.config.clone(),
        })
    }

    /// Opens the pchannels that exist, tells `ready`, then serves arrivals until the node stops; then closes all logs.
    pub async fn run(self: Rc<Self>, existing: Vec<String>, ready: impl FnOnce()) {
        glommio::spawn_local(ticker::run(self.clone())).detach();
        for name in existing {
            // What can't be opened is told in the log, by `channels` and the metrics, and to whoever asks for it; all others
            // are served.
            let _ = self.pchannel(&name, Creates::No).await;
        }
        glommio::spawn_local(retain::run(self.clone())).detach();
        self.publish();
        ready();
        while !self.is_stopping() {
            match self.inbox.next().await {
                // Whoever asked may have given up.
                Some(Arrival::List(tell)) => drop(tell.send(self.infos())),
                Some(Arrival::Connection(connection)) => self.serve(connection),
                None => {}
            }
        }
        self.stop().await;
    }

    fn serve(self: &Rc<Self>, connection: Connection) {
        let shard = self.clone();
        self.connections.set(self.connections.get() + 1);
        glommio::spawn_local(async move {
            connection::serve(shard.clone(), connection).await;
            shard.connections.set(shard.connections.get() - 1);
            shard.ended.notify();
        })
        .detach();
    }

    fn infos(&self) -> Vec<PchannelInfo> {
        let unopened = self.unopened.borrow();
        let failed = unopened.iter().map(|(name, reason)| PchannelInfo {
            name: name.clone(),
            shard: self.id,
            failed: reason.clone(),
            ..PchannelInfo::default()
        });
        let pchannels = self.pchannels.borrow();
        pchannels.values().map(|p| p.info(self.id)).chain(failed).collect()
    }

    /// Lets connections end in order, then closes every log so that the next start has nothing to recover.
    async fn stop(&self) {
        self.stop_told.notify();
        for pchannel in self.open_pchannels() {
            pchannel.wake_all();
        }
        let patience = Timer::new(Duration::from_secs(5));
        let idle = async {
            while self.connections.get() > 0 {
                let seen = self.ended.epoch();
                if self.connections.get() > 0 {
                    self.ended.changed(seen).await;
                }
            }
        };
        idle.or(async {
            patience.await;
        })
        .await;
        for pchannel in self.open_pchannels() {
            self.close(&pchannel).await;
        }
        self.publish();
    }

    async fn close(&self, pchannel: &Rc<Pchannel>) {
        while pchannel.closed().is_none() && !pchannel.is_settled() {
            let seen = pchannel.changed.epoch();
            if !pchannel.is_settled() {
                pchannel.changed.changed(seen).await;
            }
        }
        if pchannel.closed().is_some() {
            return;
        }
        pchannel.close(pchannel::shutting_down());
        let (_, producers) = pchannel.snapshot();
        if let Err(error) = pchannel.log.close(dedupe_archive::to_bytes(&producers)).await {
            tracing::warn!(pchannel = %pchannel.name, %error, "the log was not closed in order; the next start scans it");
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(std::sync::atomic::Ordering::Acquire)
    }

    fn open_pchannels(&self) -> Vec<Rc<Pchannel>> {
        self.pchannels.borrow().values().cloned().collect()
    }

    /// The pchannel of a name: open, opened now, or created.
    async fn pchannel(self: &Rc<Self>, name: &str, creates: Creates) -> Result<Rc<Pchannel>, Box<Refusal>> {
        check_pchannel_name(name).map_err(|error| Box::new(refusals::of_format(&error)))?;
        if let Some(pchannel) = self.open_pchannel(name) {
            return Ok(pchannel);
        }
        let _turn = self.opening.enter().await;
        if let Some(pchannel) = self.open_pchannel(name) {
            return Ok(pchannel);
        }
        let closed = self.pchannels.borrow().get(name).cloned();
        if let Some(pchannel) = closed {
            // A write that is still on its way must not land in what is opened next.
            pchannel.quiet().await;
            self.pchannels.borrow_mut().remove(name);
            self.reopened.borrow_mut().insert(name.to_owned(), pchannel.durable());
        }
        if self.is_stopping() {
            return Err(Box::new(pchannel::shutting_down()));
        }
        self.may_create(name, creates)?;
        let term = self.term_for(name).await?;
        let pchannel = open::open(self, name, term, self.acked_to(name))
            .await
            .map_err(|error| {
                tracing::error!(pchannel = name, %error, "the pchannel can't be opened; the others are served");
                self.unopened.borrow_mut().insert(name.to_owned(), error.to_string());
                let refusal = match &error {
                    OpenError::Log(error) => refusals::of_log(name, error),
                    other => refusals::log_failed(name, &other.to_string()),
                };
                Box::new(refusal)
            })?;
        self.unopened.borrow_mut().remove(name);
        self.pchannels.borrow_mut().insert(name.to_owned(), pchannel.clone());
        glommio::spawn_local(commit::run(self.clone(), pchannel.clone())).detach();
        Ok(pchannel)
    }

    /// Below this everything of a pchannel was durable once, as far as this life knows.
    fn acked_to(&self, name: &str) -> Offset {
        self.reopened.borrow().get(name).copied().unwrap_or_default()
    }

    fn open_pchannel(&self, name: &str) -> Option<Rc<Pchannel>> {
        let known = self.pchannels.borrow().get(name).cloned();
        known.filter(|pchannel| pchannel.closed().is_none())
    }

    /// Counts the pchannel that is about to be created, if there may be one more.
    fn may_create(&self, name: &str, creates: Creates) -> Result<(), Box<Refusal>> {
        if self.config.pchannels_dir().join(name).exists() {
            return Ok(());
        }
        let max = self.config.pchannels.max;
        let one_more = |count| (count < max).then_some(count + 1);
        let detail = if creates == Creates::No {
            "does not exist; `lognode channels` lists those that do".to_owned()
        } else if !self.config.pchannels.auto_create {
            "does not exist, and pchannels.auto_create is off; create its folder or turn it on".to_owned()
        } else if self.existing.try_update(Relaxed, Relaxed, one_more).is_err() {
            format!("does not exist, and there are {max} already; raise pchannels.max")
        } else {
            return Ok(());
        };
        Err(Box::new(Refusal::new(
            RefusalCode::UnknownPchannel,
            format!("pchannel {name} {detail}"),
        )))
    }

    /// The term of this life, or a new one for a log that failed in it: what its earlier opening left unacked on disk must
    /// be older than anything written now.
    async fn term_for(&self, name: &str) -> Result<Term, Box<Refusal>> {
        if !self.reopened.borrow().contains_key(name) {
            return Ok(self.term);
        }
        let keeper = self.keeper.clone();
        let term = glommio::executor().spawn_blocking(move || keeper.next_term()).await;
        term.map_err(|detail| Box::new(refusals::log_failed(name, &detail)))
    }

    /// Truncates by request.
    async fn truncate(&self, pchannel: &Pchannel, upto: Offset) -> Result<AdminReply, Box<Refusal>> {
        retain::truncate(self, pchannel, upto).await
    }

    /// A reader came or went.
    fn listen(&self, pchannel: &Rc<Pchannel>, change: i32) {
        let readers = pchannel.readers.get().saturating_add_signed(change);
        pchannel.readers.set(readers);
        let mut listened = self.listened.borrow_mut();
        if readers == 0 {
            listened.retain(|other| !Rc::ptr_eq(other, pchannel));
        } else if !listened.iter().any(|other| Rc::ptr_eq(other, pchannel)) {
            listened.push(pchannel.clone());
            self.stir();
        }
    }

    /// There is work: the timer must be at its pace, since it is what wakes an executor that parks with work to do.
    fn stir(&self) {
        if self.quiet.replace(false) {
            self.stirred.notify();
        }
    }

    /// The boot clock.
    fn boot_now(&self) -> Millis {
        self.source.borrow().read().boot
    }

    /// The log's time.
    fn now(&self) -> Timetick {
        let reading = self.source.borrow().read();
        self.clock.borrow_mut().now(reading)
    }

    fn promise_limit(&self) -> Timetick {
        pchannel::promise_limit(&self.clock.borrow(), self.mark.borrow().allows())
    }

    /// Looks at what is stored, and asks for more room ahead if somebody listens.
    fn keep_mark(&self, now: Timetick) {
        let (mut clock, mut mark) = (self.clock.borrow_mut(), self.mark.borrow_mut());
        let stored = self.keeper.mark();
        if stored > mark.allows() {
            mark.stored(stored);
        }
        let kept = StoredClock {
            difference_ms: self.keeper.difference_ms(),
            ..clock.stored()
        };
        clock.confirm(kept);
        let listening = !self.listened.borrow().is_empty();
        // After a jump of the wall clock the stored difference is behind: promises stand still until it is stored.
        let jumped = listening && clock.unconfirmed_ms() >= 10;
        let wanted = mark.wanted(now, listening).or(jumped.then(|| mark.allows()));
        if let Some(wanted) = wanted
            && !self.keeper.ask_mark(wanted, clock.stored())
        {
            mark.failed();
        }
    }

    /// Lets everything else on the shard have its turn, I/O and timers included.
    ///
    /// glommio polls its rings only when its queue runs empty or its 100 ms preemption timer fires, so a task that always
    /// finds more to do must step aside through the reactor.
    async fn turn(&self) {
        Timer::new(Duration::ZERO).await;
    }

    /// Writes all bytes; `false` if the peer is gone or takes nothing for too long.
    async fn write_bounded<W: AsyncWrite + Unpin>(&self, output: &mut W, bytes: &[u8]) -> bool {
        self.write_while(output, bytes, STALLED, || true).await
    }

    /// Writes all bytes; `false` if the peer is gone, or takes nothing for too long, or for one `step` while it not `may_wait`.
    async fn write_while<W: AsyncWrite + Unpin>(
        &self,
        output: &mut W,
        bytes: &[u8],
        step: Duration,
        may_wait: impl Fn() -> bool,
    ) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = output.write(rest).or(async {
                let mut waited = Duration::ZERO;
                while waited < STALLED {
                    sleep(step).await;
                    waited += step;
                    if !may_wait() {
                        break;
                    }
                }
                Err(std::io::ErrorKind::TimedOut.into())
            });
            match written.await {
                Ok(0) | Err(_) => return false,
                Ok(n) => rest = &rest[n..],
            }
        }
        true
    }

    fn publish(&self) {
        let published = Published {
            counters: self.stats.publish(),
            pchannels: self.infos(),
            memory: self.memory.report().to_vec(),
            connections: self.connections.get(),
            clock_skew_ms: self.clock.borrow().skew_ms(),
            at: self.boot_now(),
        };
        // Held for a copy of a few numbers, by a reader that never waits; a poisoned lock still holds plain values.
        *self.published.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = published;
    }
}
