//! What one reader holds of the shard's memory: the chunk that is sent, what is read ahead of it, and what waits for the socket.
//!
//! A reader takes its memory before it reads, holds it while anything of the chunk waits for the peer, and lets go of it when it
//! waits for something else and others want it. So a thousand readers that stand still hold no more than the share of all
//! readers; what they can't hold, they read again.

use std::{rc::Rc, time::Duration};

use wire_format::Bytes;

use super::memory::ShardMemory;

/// Bytes of output that may wait beside the chunk that they come from.
const OUTPUT_BYTES: usize = 256 << 10;
/// Bytes of one read where memory is short, if no block was larger.
const SMALL_WINDOW_BYTES: usize = 256 << 10;
/// A peer that takes nothing for so long, while other readers wait for the memory of what it should take, is given up. It comes
/// again at its own position.
pub const WANTED_PATIENCE: Duration = Duration::from_millis(200);

/// The memory of one reader. Given back when dropped.
pub struct ReadMemory {
    memory: Rc<ShardMemory>,
    held: usize,
    /// The largest chunk so far, or a guess before the first.
    largest: usize,
    /// Whether deliveries are copies of parts of a chunk, as large as the chunk at worst.
    copies: bool,
}

/// How the next read is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPlan {
    /// Bytes of one read.
    pub window: Bytes,
    /// Whether the one after it is begun at once.
    pub ahead: bool,
    /// Memory that it takes.
    pub memory: usize,
}

impl ReadMemory {
    /// Holds nothing yet.
    pub fn new(memory: Rc<ShardMemory>, copies: bool) -> Self {
        Self {
            memory,
            held: 0,
            largest: SMALL_WINDOW_BYTES,
            copies,
        }
    }

    /// Memory for a chunk of `bytes`; at most that of all readers together, so that the largest passes when it is alone.
    pub fn for_chunk(&self, bytes: usize) -> usize {
        let all = bytes + OUTPUT_BYTES + if self.copies { bytes } else { 0 };
        all.min(self.memory.reading_total())
    }

    /// How to read on, with `read_ahead` bytes at once where there is room.
    pub fn plan(&self, read_ahead: usize) -> ReadPlan {
        let wide = self.for_chunk(read_ahead.max(self.largest)) + read_ahead;
        if wide <= self.memory.reading_total() && (self.held >= wide || !self.memory.reading_is_tight()) {
            return ReadPlan {
                window: Bytes(read_ahead as u64),
                ahead: true,
                memory: wide,
            };
        }
        let window = read_ahead.min(self.largest);
        ReadPlan {
            window: Bytes(window as u64),
            ahead: false,
            memory: self.for_chunk(self.largest),
        }
    }

    /// A chunk of `bytes` was read by `plan`: more than its window where a block is larger.
    pub fn learn(&mut self, plan: &ReadPlan, bytes: usize) {
        if bytes as u64 > plan.window.get() {
            self.largest = self.largest.max(bytes);
        }
    }

    /// Holds exactly `bytes` from now on; `false`, and nothing changed, if there is no room for more.
    pub fn hold(&mut self, bytes: usize) -> bool {
        if bytes > self.held && !self.memory.take_reading(bytes - self.held) {
            return false;
        }
        if bytes < self.held {
            self.memory.give_back_reading(self.held - bytes);
        }
        self.held = bytes;
        true
    }

    /// Holds nothing any more.
    pub fn release(&mut self) {
        if self.held > 0 {
            self.memory.give_back_reading(self.held);
            self.held = 0;
        }
    }

    /// Whether others wait for what is held here.
    pub fn is_wanted(&self) -> bool {
        self.held > 0 && self.memory.reading_is_wanted()
    }
}

impl Drop for ReadMemory {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: u64 = 64 << 20;
    const AHEAD: usize = 4 << 20;

    #[test]
    fn readers_read_wide_while_there_is_room_then_narrow_then_wait() {
        let memory = Rc::new(ShardMemory::new(TOTAL));
        let mut first = ReadMemory::new(memory.clone(), false);
        let wide = first.plan(AHEAD);
        assert!(wide.ahead && wide.window.get() == AHEAD as u64 && first.hold(wide.memory));
        let mut others = Vec::new();
        let waits = loop {
            let mut reader = ReadMemory::new(memory.clone(), true);
            let plan = reader.plan(AHEAD);
            assert!(!plan.ahead && plan.window.get() == SMALL_WINDOW_BYTES as u64);
            if !reader.hold(plan.memory) {
                break reader;
            }
            others.push(reader);
        };
        assert!(others.len() > 3 && others.iter().all(|reader| !reader.is_wanted()));
        assert!(first.plan(AHEAD).ahead, "who holds enough goes on");
        others.pop();
        let mut waits = waits;
        let plan = waits.plan(AHEAD);
        assert!(waits.hold(plan.memory));
        drop((first, others, waits));
        assert_eq!(memory.report()[3].1, 0);
    }

    #[test]
    fn a_large_block_is_known_from_the_first_on() {
        let memory = Rc::new(ShardMemory::new(TOTAL));
        let mut reader = ReadMemory::new(memory.clone(), false);
        assert!(memory.take_reading(8 << 20));
        let narrow = reader.plan(AHEAD);
        reader.learn(&narrow, 200 << 10);
        assert_eq!(reader.plan(AHEAD), narrow);
        reader.learn(&narrow, 1 << 20);
        assert!(reader.plan(AHEAD).memory > 1 << 20);
        memory.give_back_reading(8 << 20);
    }
}
