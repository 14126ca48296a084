//! One pchannel on its shard: every change of its state is a synchronous call here; all I/O is outside.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use backends::{
    block::{Block, BlockBuilder, PlacedBlock},
    local::LocalWal,
    signal::Signal,
    wal::Wal,
};
use lognode_core::{
    Admission, AppendRequest, BlockFacts, BlockId, Committer, HybridClock, InFlight, LogView, Position, Promise, Quota,
    Sequenced, Sequencer, TickMachine,
};
use wire_format::{
    Bytes, Millis, Offset, Term, Timetick,
    batch::{BatchView, Stamp},
    protocol::{PchannelInfo, Refusal, RefusalCode},
};

use super::{ack_queue::AckQueue, memory::ShardMemory, refusals, tail::Tail, write_queue::QueueShare};

/// Smallest block that is allocated to be filled; it grows with the load.
const BLOCK_MIN_BYTES: usize = 64 << 10;

struct State {
    sequencer: Sequencer,
    ticks: TickMachine,
    committer: Committer,
    filling: Option<BlockBuilder>,
    block_bytes: usize,
    tail: Tail,
    quota: Quota,
}

/// What became of a batch.
pub enum Appended {
    /// It has its place, now or since an earlier try; ack it once everything below the position's end is durable.
    Taken {
        /// Its place.
        position: Position,
        /// How often places had been taken back before: see [`Pchannel::is_taken_back`].
        retreats: usize,
        /// Whether it was stored by an earlier try.
        duplicate: bool,
    },
    /// No memory to put it in: wait for the shard's memory and try again.
    NoRoom,
}

/// A block that was sealed and must be written now.
pub struct Sealed {
    /// Names it for [`Pchannel::completed`].
    pub id: BlockId,
    /// The block.
    pub block: Block,
}

/// One pchannel under one term. Lives on its shard until it fails or the node stops.
pub struct Pchannel {
    /// Its name.
    pub name: String,
    /// Where it is durable.
    pub log: LocalWal,
    /// The term of this ownership.
    pub term: Term,
    /// For readers: told when the durable end or a promise moved, or the pchannel closed.
    pub changed: Signal,
    /// Told when there is something to write.
    pub work: Signal,
    /// Told when the writing task has ended.
    pub ended: Signal,
    writing: Cell<bool>,
    /// Whether the shard's memory knows that it may hold an empty block.
    pub keeps_empty: Cell<bool>,
    /// Connections that read it.
    pub readers: Cell<u32>,
    /// Connections that write it.
    pub acks: AckQueue,
    queue: QueueShare,
    block_bytes_max: usize,
    memory: Rc<ShardMemory>,
    state: RefCell<State>,
    closed: RefCell<Option<Refusal>>,
    /// Set while the disk has no room: nothing is taken in.
    full: RefCell<Option<Refusal>>,
    /// Where the log went on after each time that waiting batches were given up.
    retreats: RefCell<Vec<Offset>>,
}

/// What a pchannel begins with.
pub struct Beginning {
    /// Its name.
    pub name: String,
    /// Its open log.
    pub log: LocalWal,
    /// Recovered sequencer.
    pub sequencer: Sequencer,
    /// Its quota.
    pub quota: Quota,
    /// Blocks that may be in flight.
    pub in_flight: InFlight,
    /// Its part of the shard's writes in flight.
    pub queue: QueueShare,
    /// Largest block but for a larger batch.
    pub block_bytes_max: usize,
    /// The shard's memory.
    pub memory: Rc<ShardMemory>,
}

impl Pchannel {
    /// A pchannel whose log was recovered.
    pub fn new(beginning: Beginning) -> Self {
        let Beginning {
            name,
            log,
            sequencer,
            quota,
            in_flight,
            queue,
            block_bytes_max,
            memory,
        } = beginning;
        let (next, last) = (sequencer.next_offset(), sequencer.last_timetick());
        let state = State {
            ticks: TickMachine::new(last, next),
            committer: Committer::new(next, last, in_flight),
            filling: None,
            block_bytes: BLOCK_MIN_BYTES,
            tail: Tail::default(),
            quota,
            sequencer,
        };
        Self {
            name,
            log,
            term: state.sequencer.term(),
            changed: Signal::default(),
            work: Signal::default(),
            ended: Signal::default(),
            writing: Cell::new(true),
            keeps_empty: Cell::new(false),
            readers: Cell::new(0),
            acks: AckQueue::default(),
            queue,
            block_bytes_max,
            memory,
            state: RefCell::new(state),
            closed: RefCell::new(None),
            full: RefCell::new(None),
            retreats: RefCell::default(),
        }
    }

    /// Asks the quota for `bytes`.
    pub fn admit(&self, boot: Millis, bytes: usize) -> Admission {
        self.state.borrow_mut().quota.admit(boot, Bytes(bytes as u64))
    }

    /// Gives a verified batch its place and copies it into the block being filled. Nothing is durable yet.
    pub fn append(&self, now: Timetick, batch: &BatchView<'_>) -> Result<Appended, Box<Refusal>> {
        if let Some(refusal) = self.closed.borrow().as_ref().or(self.full.borrow().as_ref()) {
            return Err(Box::new(refusal.clone()));
        }
        let retreats = self.retreats.borrow().len();
        let state = &mut *self.state.borrow_mut();
        let record = batch.bytes();
        if !self.make_room(state, record.len()) {
            return Ok(Appended::NoRoom);
        }
        let meta = batch.meta();
        let request = AppendRequest {
            producer: meta.producer_id,
            epoch: meta.producer_epoch,
            first_sequence: meta.first_sequence,
            count: batch.count(),
        };
        let sequenced = state
            .sequencer
            .append(now, &request)
            .map_err(|refusal| Box::new(refusals::of_sequencer(&refusal)))?;
        let position = match sequenced {
            Sequenced::Duplicate(position) => {
                return Ok(Appended::Taken {
                    position,
                    retreats,
                    duplicate: true,
                });
            }
            Sequenced::Fresh(position) => position,
        };
        let stamp = Stamp {
            base_offset: position.base_offset,
            term: self.term,
            first_timetick: position.first_timetick,
            promised_timetick: state.ticks.riding(),
        };
        if let Some(block) = &mut state.filling {
            block.push(record, &batch.layout(), &stamp);
        }
        self.work.notify();
        Ok(Appended::Taken {
            position,
            retreats,
            duplicate: false,
        })
    }

    /// Sees to it that a record of `len` bytes fits into the block being filled.
    fn make_room(&self, state: &mut State, len: usize) -> bool {
        match &state.filling {
            Some(block) if block.fits(len) => return true,
            Some(block) if !block.is_empty() => return false,
            Some(block) => {
                self.memory.give_back_filling(block.capacity());
                state.filling = None;
            }
            None => {}
        }
        let capacity = BlockBuilder::capacity_for(len).max(state.block_bytes);
        if !self.memory.take_filling(capacity) {
            return false;
        }
        state.filling = Some(BlockBuilder::new(capacity));
        true
    }

    /// Whether records wait to be sealed.
    pub fn has_work(&self) -> bool {
        self.state
            .borrow()
            .filling
            .as_ref()
            .is_some_and(|block| !block.is_empty())
    }

    /// The block being filled, if it holds something and one more may be in flight.
    fn sealable<'a>(&self, state: &'a State) -> Option<&'a BlockBuilder> {
        let block = state.filling.as_ref().filter(|block| !block.is_empty())?;
        // Half of the largest block: another batch of its size might not fit any more.
        let is_full = block.used() * 2 >= self.block_bytes_max;
        let may_seal = state.committer.may_seal(is_full, self.queue.elsewhere());
        (may_seal && self.closed.borrow().is_none()).then_some(block)
    }

    /// Room that a seal now would ask of the log; `None` if nothing can be sealed.
    pub fn wanted_room(&self) -> Option<Bytes> {
        let state = self.state.borrow();
        // All of the block: it may fill further until the log has answered.
        self.sealable(&state).map(|block| Bytes(block.capacity() as u64))
    }

    /// The disk has no room and nothing is in flight: what waits to be written is given up, as if it had never come, so that
    /// its producers hear of it at once and readers get their ticks. Nothing is taken in until [`Self::has_room_again`].
    pub fn disk_full(&self, refusal: Refusal) {
        let state = &mut *self.state.borrow_mut();
        debug_assert_eq!(state.committer.in_flight(), 0);
        if let Some(block) = state.filling.take() {
            self.memory.give_back_filling(block.capacity());
            if let Some((from, _)) = block.first() {
                state.sequencer.take_back(from);
                self.retreats.borrow_mut().push(from);
            }
        }
        *self.full.borrow_mut() = Some(refusal);
        self.wake_all();
        self.memory.freed.notify();
    }

    /// The log takes blocks again.
    pub fn has_room_again(&self) {
        *self.full.borrow_mut() = None;
    }

    /// Whether the place that a batch was given after `retreats`, up to `next_offset`, was given up since.
    pub fn is_taken_back(&self, retreats: usize, next_offset: Offset) -> bool {
        self.retreats
            .borrow()
            .get(retreats)
            .is_some_and(|&from| next_offset > from)
    }

    /// Seals the block being filled, if there is one and one more may be in flight.
    pub fn seal(self: &Rc<Self>) -> Option<Sealed> {
        let (used, capacity) = {
            let state = self.state.borrow();
            let block = self.sealable(&state)?;
            (block.used(), block.capacity())
        };
        // Without a borrow of the state: making room may push out old blocks of this very pchannel.
        if !self.memory.take_kept(capacity, self) {
            return None;
        }
        let state = &mut *self.state.borrow_mut();
        let block = state.filling.take()?;
        // Blocks follow the load: one filled to the brim asks for twice the size, a nearly empty one for half.
        if used * 8 > capacity * 7 {
            state.block_bytes = (state.block_bytes * 2).min(self.block_bytes_max);
        } else if used * 8 < state.block_bytes {
            state.block_bytes = (state.block_bytes / 2).max(BLOCK_MIN_BYTES.min(self.block_bytes_max));
        }
        let (block, next) = block.seal(self.term, state.block_bytes);
        self.keep_or_drop(state, next, capacity);
        self.memory.correct_kept(capacity, block.disk_len() as usize);
        let first_timetick = block
            .entries()
            .first()
            .map_or(Timetick::ZERO, |entry| entry.min_timetick);
        let last_timetick = block
            .entries()
            .last()
            .map_or(Timetick::ZERO, |entry| entry.max_timetick);
        let facts = BlockFacts {
            first_offset: block.first_offset(),
            next_offset: block.next_offset(),
            first_timetick,
            last_timetick,
            bytes: Bytes(block.disk_len()),
        };
        match state.committer.sealed(facts) {
            Ok(id) => {
                self.queue.set(state.committer.in_flight_bytes());
                Some(Sealed { id, block })
            }
            Err(error) => {
                self.memory.give_back_kept(block.disk_len() as usize);
                self.close_in(state, refusals::log_failed(&self.name, &error.to_string()));
                None
            }
        }
    }

    /// Keeps the next builder within what was reserved for the sealed one, or gives the memory back.
    fn keep_or_drop(self: &Rc<Self>, state: &mut State, next: BlockBuilder, reserved: usize) {
        self.memory.give_back_filling(reserved);
        if self.memory.take_spare(next.capacity(), self) {
            state.filling = Some(next);
        }
    }

    /// Gives up the block being filled if nothing is in it: another pchannel needs the memory.
    pub fn give_up_empty(&self) {
        self.keeps_empty.set(false);
        // Only the caller itself can be in the middle of a change; it has no empty block then.
        let Ok(mut state) = self.state.try_borrow_mut() else {
            return;
        };
        if let Some(block) = state.filling.take_if(|block| block.is_empty()) {
            self.memory.give_back_filling(block.capacity());
        }
    }

    /// The block has its place: readers may find it in memory once it is durable.
    pub fn placed(&self, block: Rc<PlacedBlock>) {
        // Without a borrow of the state: making room may push out old blocks of this very pchannel.
        let counted = self.memory.correct_kept(block.bytes().len(), block.memory());
        self.state.borrow_mut().tail.push(block, counted);
    }

    /// A block is durable, or its write failed.
    pub fn completed(&self, id: BlockId) {
        let (moved, in_flight) = {
            let committer = &mut self.state.borrow_mut().committer;
            (committer.completed(id), committer.in_flight_bytes())
        };
        if moved.is_some() {
            self.queue.set(in_flight);
            self.acks.advance(self.durable());
            self.changed.notify();
        }
        self.memory.freed.notify();
    }

    /// The write of a block failed: nothing from it on is ever acked, and the pchannel closes.
    pub fn failed(&self, id: BlockId, refusal: Refusal) {
        self.state.borrow_mut().committer.failed(id);
        self.close(refusal);
    }

    /// Closes the pchannel: every connection gets `refusal`, nothing more is taken.
    pub fn close(&self, refusal: Refusal) {
        let state = &mut *self.state.borrow_mut();
        self.close_in(state, refusal);
    }

    fn close_in(&self, state: &mut State, refusal: Refusal) {
        self.closed.borrow_mut().get_or_insert(refusal);
        if let Some(block) = state.filling.take() {
            self.memory.give_back_filling(block.capacity());
        }
        self.wake_all();
        self.work.notify();
        self.memory.freed.notify();
    }

    /// Has every connection look anew: the pchannel closed, gave places back, or the node stops.
    pub fn wake_all(&self) {
        self.changed.notify();
        self.acks.wake_all();
    }

    /// Why it is closed, if it is.
    pub fn closed(&self) -> Option<Refusal> {
        self.closed.borrow().clone()
    }

    /// The writing task has ended: nothing of this opening is in flight any more.
    pub fn writing_ended(&self) {
        self.queue.set(Bytes::ZERO);
        self.writing.set(false);
        self.ended.notify();
    }

    /// Waits until nothing of this opening can reach the disk any more, so that the log may be opened again.
    pub async fn quiet(&self) {
        while self.writing.get() {
            let seen = self.ended.epoch();
            if self.writing.get() {
                self.ended.changed(seen).await;
            }
        }
        self.log.quiet().await;
    }

    /// Drops the oldest block of the tail if it is durable.
    pub fn drop_oldest(&self) -> Option<usize> {
        let state = &mut *self.state.borrow_mut();
        state.tail.drop_oldest(state.committer.durable())
    }

    /// Everything below is durable.
    pub fn durable(&self) -> Offset {
        self.state.borrow().committer.durable()
    }

    /// Whether nothing waits or is in flight.
    pub fn is_settled(&self) -> bool {
        self.state.borrow().committer.in_flight() == 0 && !self.has_work()
    }

    /// The log as readers may see it now.
    pub fn view(&self) -> LogView {
        let state = self.state.borrow();
        let durable = state.committer.durable();
        LogView {
            first_kept: self.log.first_offset(),
            tail_first: state.tail.first_offset().unwrap_or(durable).min(durable),
            durable,
            promise: Some(state.ticks.latest()),
        }
    }

    /// The block of the tail that holds `offset`.
    pub fn find(&self, offset: Offset) -> Option<Rc<PlacedBlock>> {
        self.state.borrow().tail.find(offset)
    }

    /// Makes the promise of this moment.
    pub fn tick(&self, now: Timetick, limit: Timetick) -> Option<Promise> {
        let state = &mut *self.state.borrow_mut();
        let filling = state.filling.as_ref().and_then(BlockBuilder::first);
        let oldest = state.committer.oldest_in_flight().or(filling);
        let promise = state.ticks.on_timer(now, &mut state.sequencer, oldest, limit);
        if promise.is_some() {
            self.changed.notify();
        }
        promise
    }

    /// What recovery may rebuild from: the deduplication table as of everything durable.
    pub fn snapshot(&self) -> (Offset, Vec<lognode_core::ProducerSnapshot>) {
        let state = self.state.borrow();
        let durable = state.committer.durable();
        (durable, state.sequencer.dedupe().snapshot(durable))
    }

    /// The time that new messages get at least.
    pub fn last_timetick(&self) -> Timetick {
        self.state.borrow().sequencer.last_timetick()
    }

    /// What administration shows of it.
    pub fn info(&self, shard: u16) -> PchannelInfo {
        let state = self.state.borrow();
        PchannelInfo {
            name: self.name.clone(),
            shard,
            term: self.term,
            first_offset: self.log.first_offset(),
            next_offset: state.committer.durable(),
            last_timetick: state.sequencer.last_timetick(),
            stored: self.log.stored(),
            tail: Bytes(state.tail.bytes() as u64),
            readers: self.readers.get(),
            producers: self.acks.len() as u32,
            failed: self
                .closed
                .borrow()
                .as_ref()
                .map(|refusal| refusal.message.clone())
                .unwrap_or_default(),
        }
    }
}

impl Drop for Pchannel {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        self.memory.give_back_kept(state.tail.clear());
        if let Some(block) = state.filling.take() {
            self.memory.give_back_filling(block.capacity());
        }
    }
}

/// The refusal that connections get when the node stops.
pub fn shutting_down() -> Refusal {
    Refusal::new(
        RefusalCode::ShuttingDown,
        "the node is shutting down; connect again, to this node when it is back or to its successor",
    )
}

/// The time limit of promises on a shard: clock and mark together.
pub fn promise_limit(clock: &HybridClock, mark: Timetick) -> Timetick {
    clock.promise_limit(mark)
}
