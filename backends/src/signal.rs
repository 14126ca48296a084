//! "Something changed": wakes every waiter on one shard, without atomics.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    task::{Poll, Waker},
};

/// A counter of changes that tasks of one shard wait on. Not `Send`: it never leaves its shard.
///
/// Waiting looks through the other waiters, so it is for few of them; where many wait, each has a signal of its own.
#[derive(Default)]
pub struct Signal {
    epoch: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}

impl Signal {
    /// The number of changes so far. Read it *before* looking at the state that changes.
    pub fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Tells all waiters that something changed.
    pub fn notify(&self) {
        self.epoch.set(self.epoch.get() + 1);
        let mut waiters = self.waiters.take();
        for waker in waiters.drain(..) {
            waker.wake();
        }
        // The room that was allocated is kept, unless a waker that ran at once came back to wait.
        let mut now = self.waiters.borrow_mut();
        if now.is_empty() {
            *now = waiters;
        }
    }

    /// Waits until there was a change after `seen`.
    pub async fn changed(&self, seen: u64) {
        poll_fn(|context| {
            if self.epoch.get() != seen {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.borrow_mut();
            if !waiters.iter().any(|waker| waker.will_wake(context.waker())) {
                waiters.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}
