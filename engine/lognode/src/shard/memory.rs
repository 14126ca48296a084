//! The memory of a shard: what is filled, what is kept, what is received; each within its share of the budget.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::{Rc, Weak},
};

use backends::signal::Signal;
use lognode_core::{MemoryBudget, PartId};
use wire_format::Bytes;

use super::pchannel::Pchannel;

/// One budgeted part.
struct Share {
    budget: RefCell<MemoryBudget>,
    part: PartId,
}

impl Share {
    fn new(name: &'static str, total: u64) -> Self {
        let mut budget = MemoryBudget::new(Bytes(total));
        let part = budget.add_part(name);
        Self {
            budget: RefCell::new(budget),
            part,
        }
    }

    fn try_take(&self, bytes: usize) -> bool {
        self.budget
            .borrow_mut()
            .try_reserve(self.part, Bytes(bytes as u64))
            .is_ok()
    }

    fn give_back(&self, bytes: usize) {
        let released = self.budget.borrow_mut().release(self.part, Bytes(bytes as u64));
        debug_assert!(released.is_ok(), "a share got back more than it gave: {released:?}");
    }

    fn used(&self) -> u64 {
        self.budget.borrow().used().get()
    }

    fn total(&self) -> u64 {
        self.budget.borrow().total().get()
    }
}

/// The shares of one shard. Not shared with other threads.
///
/// Blocks being filled wait for room; sealed blocks push the oldest durable ones out of the tail; a connection that can't
/// get a receive buffer is told to come again; readers read less far ahead, then wait for each other. So memory stays
/// inside the budget, and over budget means slower.
pub struct ShardMemory {
    filling: Share,
    kept: Share,
    receiving: Share,
    reading: Share,
    /// Readers that wait for memory.
    reading_waiters: Cell<u32>,
    /// Told when a reader begins to wait: those that hold memory and can't use it let go of it.
    pub reading_wanted: Signal,
    order: RefCell<VecDeque<Weak<Pchannel>>>,
    /// Those that may hold an empty block, the one that has held its longest first.
    keep_empty: RefCell<VecDeque<Weak<Pchannel>>>,
    waiters: Cell<u32>,
    /// Told whenever room may have come free.
    pub freed: Signal,
}

impl ShardMemory {
    /// Four sixteenths for blocks being filled, six for sealed blocks, three each for what is received and what is read.
    pub fn new(total: u64) -> Self {
        Self {
            filling: Share::new("blocks being filled", total / 4),
            kept: Share::new("sealed blocks", total / 16 * 6),
            receiving: Share::new("receive buffers", total / 16 * 3),
            reading: Share::new("readers", total / 16 * 3),
            reading_waiters: Cell::new(0),
            reading_wanted: Signal::default(),
            order: RefCell::default(),
            keep_empty: RefCell::default(),
            waiters: Cell::new(0),
            freed: Signal::default(),
        }
    }

    /// Takes memory for a block to fill; if there is none left, from pchannels that keep an empty block for later.
    pub fn take_filling(&self, bytes: usize) -> bool {
        while !self.filling.try_take(bytes) {
            let Some(owner) = self.keep_empty.borrow_mut().pop_front() else {
                return false;
            };
            if let Some(pchannel) = owner.upgrade() {
                pchannel.give_up_empty();
            }
        }
        true
    }

    /// Takes memory for an empty block that `owner` keeps for later. [`Self::take_filling`] may have it given up.
    pub fn take_spare(&self, bytes: usize, owner: &Rc<Pchannel>) -> bool {
        let taken = !self.is_tight() && self.filling.try_take(bytes);
        if taken && !owner.keeps_empty.replace(true) {
            self.keep_empty.borrow_mut().push_back(Rc::downgrade(owner));
        }
        taken
    }

    /// Gives the memory of a block to fill back.
    pub fn give_back_filling(&self, bytes: usize) {
        self.filling.give_back(bytes);
        self.freed.notify();
    }

    /// Whether empty blocks should be given back rather than kept.
    fn is_tight(&self) -> bool {
        self.waiters.get() > 0 || self.filling.used() * 2 > self.filling.total()
    }

    /// Takes memory for a block that is sealed, pushing the oldest durable blocks out. `false`: wait for writes in flight.
    pub fn take_kept(&self, bytes: usize, owner: &Rc<Pchannel>) -> bool {
        let taken = self.take_pushing_out(bytes);
        if taken {
            self.order.borrow_mut().push_back(Rc::downgrade(owner));
        }
        taken
    }

    fn take_pushing_out(&self, bytes: usize) -> bool {
        let mut tries = self.order.borrow().len();
        while !self.kept.try_take(bytes) {
            if tries == 0 {
                return false;
            }
            tries -= 1;
            self.drop_oldest();
        }
        true
    }

    /// A sealed block turned out to take `now` bytes instead of `before`; old durable blocks make room for more. Returns what
    /// is counted for it from now on: `before` if not even that helped, as it can't be taken back any more.
    pub fn correct_kept(&self, before: usize, now: usize) -> usize {
        let Some(more) = now.checked_sub(before) else {
            self.kept.give_back(before - now);
            return now;
        };
        if self.take_pushing_out(more) { now } else { before }
    }

    fn drop_oldest(&self) {
        let Some(owner) = self.order.borrow_mut().pop_front() else {
            return;
        };
        let Some(pchannel) = owner.upgrade() else { return };
        match pchannel.drop_oldest() {
            Some(bytes) => self.kept.give_back(bytes),
            None => self.order.borrow_mut().push_back(owner),
        }
    }

    /// Gives back what a closed pchannel kept.
    pub fn give_back_kept(&self, bytes: usize) {
        self.kept.give_back(bytes);
        self.freed.notify();
    }

    /// Takes memory for a receive buffer.
    pub fn take_receiving(&self, bytes: usize) -> bool {
        self.receiving.try_take(bytes)
    }

    /// Gives a receive buffer back.
    pub fn give_back_receiving(&self, bytes: usize) {
        self.receiving.give_back(bytes);
    }

    /// Takes memory for what a reader holds.
    pub fn take_reading(&self, bytes: usize) -> bool {
        self.reading.try_take(bytes)
    }

    /// Gives back what a reader held.
    pub fn give_back_reading(&self, bytes: usize) {
        self.reading.give_back(bytes);
        self.freed.notify();
    }

    /// What all readers may hold together.
    pub fn reading_total(&self) -> usize {
        self.reading.total() as usize
    }

    /// Whether so much is held by readers that none should read further ahead than it must.
    pub fn reading_is_tight(&self) -> bool {
        self.reading.used() * 2 > self.reading.total()
    }

    /// Whether a reader waits for memory.
    pub fn reading_is_wanted(&self) -> bool {
        self.reading_waiters.get() > 0
    }

    /// Waits until a reader's memory may have come free after `seen`. May be cancelled.
    pub async fn wait_to_read(&self, seen: u64) {
        self.reading_waiters.set(self.reading_waiters.get() + 1);
        let _waiting = WaitingToRead(self);
        self.reading_wanted.notify();
        self.freed.changed(seen).await;
    }

    /// Waits until room may have come free after `seen`. May be cancelled.
    pub async fn wait(&self, seen: u64) {
        self.waiters.set(self.waiters.get() + 1);
        let _waiting = Waiting(self);
        self.freed.changed(seen).await;
    }

    /// Bytes of blocks being filled, of sealed blocks, of receive buffers, of readers; and how much each may take.
    pub fn report(&self) -> [(&'static str, u64, u64); 4] {
        [
            ("filling", &self.filling),
            ("tail", &self.kept),
            ("receiving", &self.receiving),
            ("reading", &self.reading),
        ]
        .map(|(name, share)| (name, share.used(), share.total()))
    }
}

/// Somebody waits for memory, until this is dropped.
struct Waiting<'a>(&'a ShardMemory);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiters.set(self.0.waiters.get() - 1);
    }
}

/// A reader waits for memory, until this is dropped.
struct WaitingToRead<'a>(&'a ShardMemory);

impl Drop for WaitingToRead<'_> {
    fn drop(&mut self) {
        self.0.reading_waiters.set(self.0.reading_waiters.get() - 1);
    }
}
