//! Which producers' connections are to look at their answers, and when: each is woken for what is its own.
//!
//! A block that becomes durable concerns the few connections whose batches lie in it, not the hundreds that write to the same
//! pchannel: waking all of them for each block cost more than the acks themselves.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

use backends::signal::Signal;
use wire_format::Offset;

/// One connection's place in the queue. Told when its first answer may be due, or everything is off.
#[derive(Default)]
pub struct Acker {
    /// Told when there is something to look at.
    pub wake: Signal,
    /// Waits in the queue for its first answer.
    queued: Cell<bool>,
}

/// The connections that write one pchannel. On its shard only.
#[derive(Default)]
pub struct AckQueue {
    /// Smallest offset first.
    waiting: RefCell<VecDeque<(Offset, Rc<Acker>)>>,
    all: RefCell<Vec<Rc<Acker>>>,
}

impl AckQueue {
    /// A connection came.
    pub fn join(&self) -> Rc<Acker> {
        let acker = Rc::new(Acker::default());
        self.all.borrow_mut().push(acker.clone());
        acker
    }

    /// A connection went.
    pub fn leave(&self, acker: &Rc<Acker>) {
        self.all.borrow_mut().retain(|other| !Rc::ptr_eq(other, acker));
        self.waiting.borrow_mut().retain(|(_, other)| !Rc::ptr_eq(other, acker));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.borrow().len()
    }

    /// Wakes `acker` once everything below `needs` is durable. Does nothing if it waits already: for an earlier answer.
    pub fn wait(&self, needs: Offset, acker: &Rc<Acker>) {
        if acker.queued.replace(true) {
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        // Places are given out in order, so this is nearly always the end.
        let at = waiting.iter().rev().take_while(|(other, _)| *other > needs).count();
        let at = waiting.len() - at;
        waiting.insert(at, (needs, acker.clone()));
    }

    /// Everything below `durable` is durable.
    pub fn advance(&self, durable: Offset) {
        loop {
            let mut waiting = self.waiting.borrow_mut();
            let is_due = waiting.front().is_some_and(|(needs, _)| *needs <= durable);
            let Some((_, acker)) = is_due.then(|| waiting.pop_front()).flatten() else {
                return;
            };
            drop(waiting);
            acker.queued.set(false);
            acker.wake.notify();
        }
    }

    /// The pchannel closed, gave places back, or the node stops: everyone is to look.
    pub fn wake_all(&self) {
        for (_, acker) in self.waiting.take() {
            acker.queued.set(false);
        }
        for acker in self.all.borrow().iter() {
            acker.wake.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn woken(acker: &Acker) -> u64 {
        acker.wake.epoch()
    }

    /// Seen failing when `advance` wakes all, and when it stops one short.
    #[test]
    fn only_those_are_woken_whose_answer_is_due() {
        let queue = AckQueue::default();
        let [a, b, c] = [queue.join(), queue.join(), queue.join()];
        queue.wait(Offset(10), &a);
        queue.wait(Offset(30), &c);
        queue.wait(Offset(20), &b);
        queue.advance(Offset(9));
        assert_eq!([woken(&a), woken(&b), woken(&c)], [0, 0, 0]);
        queue.advance(Offset(20));
        assert_eq!([woken(&a), woken(&b), woken(&c)], [1, 1, 0]);
        queue.wait(Offset(25), &a);
        queue.wait(Offset(40), &a);
        queue.advance(Offset(30));
        assert_eq!([woken(&a), woken(&b), woken(&c)], [2, 1, 1]);
    }

    #[test]
    fn all_are_woken_when_everything_is_off_and_none_that_left() {
        let queue = AckQueue::default();
        let [a, b, c] = [queue.join(), queue.join(), queue.join()];
        queue.wait(Offset(10), &a);
        queue.wait(Offset(10), &c);
        queue.leave(&c);
        queue.wake_all();
        assert_eq!([woken(&a), woken(&b), woken(&c)], [1, 1, 0]);
        assert_eq!(queue.len(), 2);
        queue.wait(Offset(20), &a);
        queue.advance(Offset(20));
        assert_eq!([woken(&a), woken(&b), woken(&c)], [2, 1, 0]);
    }
}
