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
/// get a receive buffer is told to come again. So memory stays inside the budget, and over budget means slower.
pub struct ShardMemory {
    filling: Share,
    kept: Share,
    receiving: Share,
    order: RefCell<VecDeque<Weak<Pchannel>>>,
    waiters: Cell<u32>,
    /// Told whenever room may have come free.
    pub freed: Signal,
}

impl ShardMemory {
    /// A quarter for blocks being filled, half for sealed blocks, a quarter for what is received.
    pub fn new(total: u64) -> Self {
        Self {
            filling: Share::new("blocks being filled", total / 4),
            kept: Share::new("sealed blocks", total / 2),
            receiving: Share::new("receive buffers", total / 4),
            order: RefCell::default(),
            waiters: Cell::new(0),
            freed: Signal::default(),
        }
    }

    /// Takes memory for a block to fill.
    pub fn take_filling(&self, bytes: usize) -> bool {
        self.filling.try_take(bytes)
    }

    /// Gives the memory of a block to fill back.
    pub fn give_back_filling(&self, bytes: usize) {
        self.filling.give_back(bytes);
        self.freed.notify();
    }

    /// Whether empty blocks should be given back rather than kept.
    pub fn is_tight(&self) -> bool {
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

    /// Waits until room may have come free after `seen`.
    pub async fn wait(&self, seen: u64) {
        self.waiters.set(self.waiters.get() + 1);
        self.freed.changed(seen).await;
        self.waiters.set(self.waiters.get() - 1);
    }

    /// Bytes of blocks being filled, of sealed blocks, of receive buffers; and how much each may take.
    pub fn report(&self) -> [(&'static str, u64, u64); 3] {
        [
            ("filling", &self.filling),
            ("tail", &self.kept),
            ("receiving", &self.receiving),
        ]
        .map(|(name, share)| (name, share.used(), share.total()))
    }
}
