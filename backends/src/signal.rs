//! "Something changed": wakes every waiter on one shard, without atomics.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use slab::Slab;

/// A counter of changes that tasks of one shard wait on. Not `Send`: it never leaves its shard.
///
/// Waiting, being told and giving up waiting cost the same however many others wait.
#[derive(Default)]
pub struct Signal {
    epoch: Cell<u64>,
    /// Those who wait for the epoch to change.
    waiters: RefCell<Slab<Waker>>,
}

impl Signal {
    /// The number of changes so far. Read it *before* looking at the state that changes.
    pub fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Tells all waiters that something changed.
    pub fn notify(&self) {
        self.epoch.set(self.epoch.get() + 1);
        for waker in self.waiters.borrow_mut().drain() {
            // Only puts a task of this shard into its queue: nothing runs in here.
            waker.wake();
        }
    }

    /// Waits until there was a change after `seen`. May be dropped at any time.
    pub fn changed(&self, seen: u64) -> Changed<'_> {
        let key = None;
        Changed {
            signal: self,
            seen,
            key,
        }
    }
}

/// See [`Signal::changed`].
pub struct Changed<'a> {
    signal: &'a Signal,
    seen: u64,
    /// Its place among the waiters, as long as the epoch is the one it saw.
    key: Option<usize>,
}

impl Future for Changed<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.signal.epoch.get() != self.seen {
            return Poll::Ready(());
        }
        let mut waiters = self.signal.waiters.borrow_mut();
        match self.key.and_then(|key| waiters.get_mut(key)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => self.key = Some(waiters.insert(context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        // A waker left behind would keep its task's memory for as long as nothing changes.
        if self.signal.epoch.get() == self.seen
            && let Some(key) = self.key
        {
            self.signal.waiters.borrow_mut().try_remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Seen failing without the removal in `drop`.
    #[test]
    fn who_gives_up_waiting_leaves_nothing_behind() {
        let (signal, count) = (Signal::default(), Arc::new(Count::default()));
        let waker = Waker::from(count.clone());
        for _ in 0..1_000 {
            let mut waiting = pin!(signal.changed(signal.epoch()));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(Arc::strong_count(&count), 2);
        signal.notify();
        assert_eq!(count.0.load(Relaxed), 0);
    }

    #[test]
    fn everyone_is_told_once_and_an_old_place_is_nobody_elses() {
        let (signal, count) = (Signal::default(), Arc::new(Count::default()));
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        let mut first = Box::pin(signal.changed(0));
        let mut second = Box::pin(signal.changed(0));
        assert!(first.as_mut().poll(&mut context).is_pending() && second.as_mut().poll(&mut context).is_pending());
        assert!(first.as_mut().poll(&mut context).is_pending(), "polled again");
        signal.notify();
        assert_eq!(count.0.load(Relaxed), 2);
        let mut third = Box::pin(signal.changed(1));
        assert!(third.as_mut().poll(&mut context).is_pending());
        // Its place is the third's by now.
        drop(first);
        signal.notify();
        assert_eq!(count.0.load(Relaxed), 3);
        assert!(second.as_mut().poll(&mut context).is_ready() && third.as_mut().poll(&mut context).is_ready());
    }
}
