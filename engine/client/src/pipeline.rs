//! The bookkeeping of a producer: which batch is sent next, what an answer means, what a lost connection leaves open.
//!
//! ```text
//!            admit                      next_send                         on_ack
//!   caller ---------> [ waiting ... ] ------------> [ window ........ ] -----------> told
//!                     no number yet                 numbered, in order
//!                        ^                             |
//!                        +--- new epoch: renumber -----+   only what is known not to be stored
//! ```
//! No I/O, no clock: events in, decisions out. `L` is whatever the shell ties to a batch.
//!
//! What it rests on, and keeps:
//! - A batch gets its sequence when it is first sent, so a batch whose time is over before that leaves no gap.
//! - The server stores a producer's batches densely. So if a batch is known not to be stored, neither is any behind it.
//! - A batch that was sent and not answered stays in the window, at its place, until an answer comes, whatever its caller was
//!   told meanwhile. Nothing overtakes it and it is not stored twice.
//! - A hole in the sequence (a batch refused for good) can't be closed by renumbering in place: an old copy of a later batch
//!   may still wait in some socket and would be taken for a new one. So the rest moves to the next epoch, which fences copies.

use std::{collections::VecDeque, time::Instant};

use wire_format::{
    ProducerEpoch, ProducerId, Sequence,
    batch::Origin,
    frame::Ack,
    protocol::{Refusal, RefusalCode},
};

use crate::error::Outcome;

/// The batch of a try whose answer nobody needs.
const NOBODY: u64 = u64::MAX;

/// A batch that `next_send` chose.
#[derive(Debug)]
pub(crate) struct Dispatch<'a, L> {
    /// Goes into the frame's correlation; new with each try.
    pub(crate) request: u64,
    /// Which numbers the batch has.
    pub(crate) origin: Origin,
    /// What the shell tied to it.
    pub(crate) load: &'a mut L,
}

/// What an answer decided.
#[derive(Debug)]
pub(crate) struct Step<L> {
    /// Batches that are done and failed, in order, and what is known of each.
    pub(crate) failed: Vec<(L, Outcome)>,
    /// How to go on.
    pub(crate) then: Then,
}

/// How to go on after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// As before; `next_send` knows what to do.
    Continue,
    /// The server can't, now: wait before sending again. The shell says how long with `pause`.
    Pause,
    /// Drop the connection and open another.
    Reconnect,
    /// This producer can't go on.
    Stop,
}

/// The answers contradict each other, be it that the server lies or that it came upon a late copy from an earlier connection
/// in between. A new connection sorts it out: drop this one, then `on_disconnected`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) String);

#[derive(Debug)]
struct Slot<L> {
    id: u64,
    load: L,
    count: u32,
    deadline: Instant,
    /// Set when it is numbered.
    origin: Option<Origin>,
    /// The try on this connection that is not answered, or was answered so that it may still be stored.
    request: Option<u64>,
    /// Whether a try on an earlier connection was left without an answer.
    open_try: bool,
}

impl<L> Slot<L> {
    fn may_be_stored(&self) -> bool {
        self.open_try || self.request.is_some()
    }
}

/// All batches of a producer that are not done. Owned by its one driver task.
#[derive(Debug)]
pub(crate) struct Pipeline<L> {
    producer_id: ProducerId,
    epoch: ProducerEpoch,
    next_sequence: Sequence,
    /// In order of admission; the first `numbered` ones make up the window.
    slots: VecDeque<Slot<L>>,
    numbered: usize,
    /// The next one to send on this connection; never above `numbered` + 1.
    cursor: usize,
    /// How many of the first slots had their caller told that the time is over.
    told: usize,
    /// Tries on this connection, in order, without their answers.
    outstanding: VecDeque<(u64, u64)>,
    window: usize,
    next_id: u64,
    next_request: u64,
    connected: bool,
    paused_until: Option<Instant>,
}

impl<L> Pipeline<L> {
    /// An empty one; at most `window` tries are on their way at once.
    pub(crate) fn new(producer_id: ProducerId, epoch: ProducerEpoch, window: usize) -> Self {
        Self {
            producer_id,
            epoch,
            next_sequence: Sequence::ZERO,
            slots: VecDeque::new(),
            numbered: 0,
            cursor: 0,
            told: 0,
            outstanding: VecDeque::new(),
            window: window.max(1),
            next_id: 0,
            next_request: 1,
            connected: false,
            paused_until: None,
        }
    }

    /// Takes a batch of `count` messages. Deadlines should grow from batch to batch; one that does not counts as the one before.
    pub(crate) fn admit(&mut self, load: L, count: u32, deadline: Instant) {
        let deadline = self.slots.back().map_or(deadline, |last| last.deadline.max(deadline));
        self.slots.push_back(Slot {
            id: self.next_id,
            load,
            count,
            deadline,
            origin: None,
            request: None,
            open_try: false,
        });
        self.next_id += 1;
    }

    /// Whether every caller has been told, so that nobody waits.
    pub(crate) fn nobody_waits(&self) -> bool {
        self.told >= self.slots.len()
    }

    /// Whether an answer is due.
    pub(crate) fn awaits_answer(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Whether one more batch would be sent at once.
    pub(crate) fn has_room(&self, now: Instant) -> bool {
        self.cursor == self.slots.len() && self.may_send(now)
    }

    fn may_send(&self, now: Instant) -> bool {
        self.connected && self.outstanding.len() < self.window && self.paused_until.is_none_or(|until| until <= now)
    }

    /// The next batch to send, if one may be sent now.
    pub(crate) fn next_send(&mut self, now: Instant) -> Option<Dispatch<'_, L>> {
        if !self.may_send(now) {
            return None;
        }
        self.paused_until = None;
        let slot = self.slots.get_mut(self.cursor)?;
        let origin = match slot.origin {
            Some(origin) => origin,
            None => {
                let origin = Origin {
                    producer_id: self.producer_id,
                    producer_epoch: self.epoch,
                    first_sequence: self.next_sequence,
                };
                self.next_sequence = self.next_sequence.plus(slot.count.into());
                self.numbered += 1;
                *slot.origin.insert(origin)
            }
        };
        let request = self.next_request;
        self.next_request += 1;
        slot.request = Some(request);
        self.outstanding.push_back((request, slot.id));
        self.cursor += 1;
        Some(Dispatch {
            request,
            origin,
            load: &mut slot.load,
        })
    }

    /// A connection is up: all of the window is sent again on it, then the rest.
    pub(crate) fn on_connected(&mut self) {
        self.connected = true;
        self.cursor = 0;
    }

    /// The connection is gone, and with it the answers that were due.
    pub(crate) fn on_disconnected(&mut self) {
        self.connected = false;
        self.cursor = 0;
        self.leave_tries_open();
        // A try that was given up on this connection may be read by the server after the one that replaces it was stored.
        for (_, id) in std::mem::take(&mut self.outstanding) {
            if let Ok(index) = self.slots.binary_search_by_key(&id, |slot| slot.id) {
                self.slots[index].open_try = true;
            }
        }
    }

    fn leave_tries_open(&mut self) {
        for slot in self.slots.range_mut(..self.numbered) {
            slot.open_try |= slot.request.take().is_some();
        }
    }

    /// Nothing is sent before `until`.
    pub(crate) fn pause(&mut self, until: Instant) {
        self.paused_until = Some(until);
    }

    /// The batch of the oldest try was stored. `None` if it is done already.
    pub(crate) fn on_ack(&mut self, request: u64, ack: &Ack) -> Result<Option<L>, Fault> {
        let Some(index) = self.answered(request, "ack")? else {
            return Ok(None);
        };
        if index != 0 {
            return Err(Fault(format!("acked request {request} before an earlier one")));
        }
        let count = self.slots[0].count;
        if ack.count != count {
            return Err(Fault(format!(
                "acked {} messages of request {request}, which has {count}",
                ack.count
            )));
        }
        Ok(self.remove_head())
    }

    /// The oldest try was refused.
    pub(crate) fn on_refusal(&mut self, request: u64, refusal: &Refusal) -> Result<Step<L>, Fault> {
        let index = self.answered(request, "refusal")?;
        let go_on = |then| {
            Ok(Step {
                failed: Vec::new(),
                then,
            })
        };
        // An older try of a batch that is sent again, or done: its newer try gets an answer of its own.
        let Some(index) = index.filter(|&index| self.slots[index].request == Some(request)) else {
            return go_on(Then::Continue);
        };
        if index != 0 {
            return Err(Fault(format!(
                "refused request {request} before an earlier one was answered"
            )));
        }
        let head = &self.slots[0];
        let sequence = head.origin.map(|origin| origin.first_sequence).unwrap_or_default();
        match refusal.code {
            RefusalCode::RateLimited => {
                self.rewind();
                go_on(Then::Pause)
            }
            // Refused after it may have been written: its place in the window stays, and so does the doubt.
            RefusalCode::DiskFull => {
                self.leave_tries_open();
                self.rewind();
                go_on(Then::Pause)
            }
            RefusalCode::ShuttingDown | RefusalCode::LogFailed | RefusalCode::NotOwner => go_on(Then::Reconnect),
            RefusalCode::SequenceGap if refusal.expected_sequence < sequence => Ok(self.forgotten()),
            RefusalCode::SequenceGap => Err(Fault(format!(
                "says that sequence {} is due and refuses sequence {sequence}",
                refusal.expected_sequence
            ))),
            RefusalCode::WindowOver if head.open_try => {
                let failed = self
                    .remove_head()
                    .map(|load| (load, Outcome::Unknown))
                    .into_iter()
                    .collect();
                Ok(Step {
                    failed,
                    then: Then::Continue,
                })
            }
            RefusalCode::WindowOver => Ok(self.forgotten()),
            RefusalCode::ProducerFenced => go_on(Then::Stop),
            _ => Ok(self.refused_for_good()),
        }
    }

    /// Takes the oldest try off the list, which must be this one, and finds its batch.
    fn answered(&mut self, request: u64, what: &str) -> Result<Option<usize>, Fault> {
        match self.outstanding.pop_front() {
            Some((due, id)) if due == request => Ok(self.slots.binary_search_by_key(&id, |slot| slot.id).ok()),
            Some((due, _)) => Err(Fault(format!(
                "sent an {what} of request {request} where {due} was due"
            ))),
            None => Err(Fault(format!("sent an {what} of request {request} where none was due"))),
        }
    }

    fn remove_head(&mut self) -> Option<L> {
        let slot = self.slots.pop_front()?;
        self.numbered = self.numbered.saturating_sub(1);
        self.cursor = self.cursor.saturating_sub(1);
        self.told = self.told.saturating_sub(1);
        Some(slot.load)
    }

    /// The head's try was not stored, so neither will be those behind it on this connection: send all of them again. But if an
    /// earlier try of the head was left open, a late copy may still be stored, and then those behind it are taken.
    fn rewind(&mut self) {
        self.cursor = 0;
        if self.slots.front().is_some_and(|head| head.open_try) {
            self.leave_tries_open();
        }
        for slot in self.slots.range_mut(..self.numbered) {
            slot.request = None;
        }
    }

    /// The server does not know the batches before the head, or this producer at all. What may have been stored earlier
    /// can't be told from what was not; the rest goes on in a new epoch.
    fn forgotten(&mut self) -> Step<L> {
        self.rewind();
        let failed = self.fail_doubtful();
        self.next_epoch();
        Step {
            failed,
            then: Then::Continue,
        }
    }

    /// The head will never be taken. Those behind it were sent for nothing: they go on in a new epoch. But if an earlier
    /// try of the head was left open it may be stored, and then so may all that were sent behind it.
    fn refused_for_good(&mut self) -> Step<L> {
        self.rewind();
        let mut failed = self.fail_doubtful();
        let head_is_denied = failed.is_empty();
        self.next_epoch();
        if head_is_denied {
            failed.extend(self.remove_head().map(|load| (load, Outcome::NotStored)));
        }
        Step {
            failed,
            then: Then::Continue,
        }
    }

    /// Removes the batches whose earlier tries were left open: they are at the front.
    fn fail_doubtful(&mut self) -> Vec<(L, Outcome)> {
        let mut failed = Vec::new();
        while self.slots.front().is_some_and(|slot| slot.open_try) {
            failed.extend(self.remove_head().map(|load| (load, Outcome::Unknown)));
        }
        failed
    }

    /// Takes all numbers back. Only when the head is known not to be stored and was not left to a late copy: then those behind
    /// it are not stored either and never will be under their old numbers, however many copies of them are under way.
    fn next_epoch(&mut self) {
        debug_assert!(self.slots.front().is_none_or(|head| !head.may_be_stored()));
        self.epoch = ProducerEpoch(self.epoch.get().saturating_add(1));
        self.next_sequence = Sequence::ZERO;
        for slot in self.slots.range_mut(..self.numbered) {
            (slot.origin, slot.request, slot.open_try) = (None, None, false);
        }
        // Their answers say nothing about the batches any more.
        self.outstanding.iter_mut().for_each(|(_, id)| *id = NOBODY);
        self.numbered = 0;
        self.cursor = 0;
    }

    /// Deals with batches whose time is over: `tell` is called for those that may be stored and stay in the window,
    /// `drop` gets those that are not stored and go.
    pub(crate) fn expire(&mut self, now: Instant, mut tell: impl FnMut(&mut L), mut drop: impl FnMut(L)) {
        if self.next_deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        let in_flight = |slot: &Slot<L>| self.outstanding.iter().any(|&(_, id)| id == slot.id);
        let head_is_free = |slot: &Slot<L>| !slot.may_be_stored() && !in_flight(slot);
        if self.numbered > 0 && self.slots.front().is_some_and(head_is_free) {
            self.next_epoch();
        }
        while self.told < self.numbered && self.slots[self.told].deadline <= now {
            tell(&mut self.slots[self.told].load);
            self.told += 1;
        }
        while self.slots.get(self.numbered).is_some_and(|slot| slot.deadline <= now) {
            if let Some(slot) = self.slots.remove(self.numbered) {
                drop(slot.load);
                self.told -= usize::from(self.numbered < self.told);
            }
        }
    }

    /// When `expire` has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.slots.get(self.told).map(|slot| slot.deadline)
    }

    /// When a pause ends, if something waits for that.
    pub(crate) fn pause_ends(&self) -> Option<Instant> {
        self.paused_until
            .filter(|_| self.connected && self.cursor < self.slots.len())
    }

    /// Gives up all batches, in order, and says what is known of each.
    pub(crate) fn drain(&mut self) -> Vec<(L, Outcome)> {
        self.on_disconnected();
        (self.numbered, self.cursor, self.told) = (0, 0, 0);
        let outcome = |slot: &Slot<L>| match slot.may_be_stored() {
            true => Outcome::Unknown,
            false => Outcome::NotStored,
        };
        self.slots
            .drain(..)
            .map(|slot| (outcome(&slot), slot.load))
            .map(|(o, l)| (l, o))
            .collect()
    }
}

#[cfg(test)]
mod tests;
