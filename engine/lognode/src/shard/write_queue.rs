//! What all pchannels of a shard have in flight to the disk, counted together: they share its queue.

use std::{cell::Cell, rc::Rc};

use wire_format::Bytes;

/// The queue of one shard. Not shared with other threads.
#[derive(Debug, Clone, Default)]
pub struct WriteQueue(Rc<Cell<u64>>);

/// One pchannel's part of it; given back when dropped.
#[derive(Debug)]
pub struct QueueShare {
    queue: WriteQueue,
    own: Cell<u64>,
}

impl WriteQueue {
    /// A part with nothing in it.
    pub fn share(&self) -> QueueShare {
        QueueShare {
            queue: self.clone(),
            own: Cell::new(0),
        }
    }
}

impl QueueShare {
    /// What this pchannel has in flight now.
    pub fn set(&self, own: Bytes) {
        let Bytes(own) = own;
        let queue = &self.queue.0;
        queue.set(queue.get() - self.own.replace(own) + own);
    }

    /// What all others have in flight.
    pub fn elsewhere(&self) -> Bytes {
        Bytes(self.queue.0.get() - self.own.get())
    }
}

impl Drop for QueueShare {
    fn drop(&mut self) {
        self.set(Bytes::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sees_what_the_others_have_in_flight() {
        let queue = WriteQueue::default();
        let (a, b) = (queue.share(), queue.share());
        a.set(Bytes(10));
        b.set(Bytes(5));
        a.set(Bytes(7));
        assert_eq!((a.elsewhere(), b.elsewhere()), (Bytes(5), Bytes(7)));
        drop(a);
        assert_eq!((b.elsewhere(), queue.0.get()), (Bytes::ZERO, 5));
    }
}
