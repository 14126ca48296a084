//! Where calls leave their messages and the driver picks them up.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use wire_format::{FormatError, Limits, batch::BatchBuilder};

use crate::{
    error::{Error, Result},
    message::Message,
    pending::{Fate, Pending, PendingBatch},
};

/// Builders kept for reuse: one fills while one is sealed.
const SPARE_BUILDERS: usize = 4;

/// A batch that is closed and not yet in the pipeline, or still open.
pub(crate) struct Queued {
    pub(crate) builder: BatchBuilder,
    pub(crate) fate: Arc<Fate>,
    /// Bytes of room that it takes, given back when it is done.
    pub(crate) charged: usize,
    pub(crate) opened_at: Instant,
    pub(crate) deadline: Instant,
}

/// Shared by callers and driver, behind one lock that is never held across an await.
pub(crate) struct Intake {
    pchannel: Arc<str>,
    limits: Limits,
    batch_bytes: usize,
    open: Option<Queued>,
    closed: VecDeque<Queued>,
    /// Fates that may not be settled yet, in order.
    live: VecDeque<Arc<Fate>>,
    spare: Vec<BatchBuilder>,
    flush: bool,
    /// No call will come any more.
    pub(crate) closing: bool,
    /// Why the driver has ended.
    pub(crate) ended: Option<Error>,
    /// What the driver met last and hopes to get over.
    pub(crate) trouble: Option<Error>,
}

impl Intake {
    pub(crate) fn new(pchannel: Arc<str>, limits: Limits, batch_bytes: usize) -> Self {
        Self {
            pchannel,
            limits,
            batch_bytes,
            open: None,
            closed: VecDeque::new(),
            live: VecDeque::new(),
            spare: Vec::new(),
            flush: false,
            closing: false,
            ended: None,
            trouble: None,
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// A server with other limits was found.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        if limits != self.limits {
            self.limits = limits;
            self.spare.clear();
        }
    }

    /// An empty builder, used before if possible.
    pub(crate) fn builder(&mut self) -> Result<BatchBuilder> {
        match self.spare.pop() {
            Some(builder) => Ok(builder),
            None => BatchBuilder::new(&self.pchannel, self.limits).map_err(Error::from_format),
        }
    }

    /// Takes an empty builder back.
    pub(crate) fn give_back(&mut self, builder: BatchBuilder) {
        if self.spare.len() < SPARE_BUILDERS && builder.is_empty() {
            self.spare.push(builder);
        }
    }

    /// Adds a message to the open batch. The flag says whether the driver must look.
    pub(crate) fn add(
        &mut self,
        message: &Message,
        charged: usize,
        now: Instant,
        deadline: Instant,
    ) -> Result<(Pending, bool)> {
        let fresh = self.open.is_none();
        let (index, rolled) = match self.push(message, now, deadline) {
            // Full, or too many vchannels: it may fit into the next one.
            Err(_) if !fresh => {
                self.close_open();
                (self.push(message, now, deadline), true)
            }
            first => (first, fresh),
        };
        let index = match index {
            Ok(index) => index,
            Err(error) => {
                self.drop_empty_open();
                return Err(Error::from_format(error));
            }
        };
        let Some(open) = &mut self.open else {
            return Err(Error::Closed);
        };
        open.charged += charged;
        open.deadline = open.deadline.min(deadline);
        let pending = Pending::new(Arc::clone(&open.fate), index);
        let full = open.builder.record_bytes() >= self.batch_bytes || open.builder.count() >= self.limits.messages;
        if full {
            self.close_open();
        }
        Ok((pending, rolled || full))
    }

    fn push(&mut self, message: &Message, now: Instant, deadline: Instant) -> Result<u32, FormatError> {
        if self.open.is_none() {
            let builder = match self.spare.pop() {
                Some(builder) => builder,
                None => BatchBuilder::new(&self.pchannel, self.limits)?,
            };
            let fate = Arc::new(Fate::default());
            self.live.push_back(Arc::clone(&fate));
            self.open = Some(Queued {
                builder,
                fate,
                charged: 0,
                opened_at: now,
                deadline,
            });
        }
        let Some(open) = &mut self.open else {
            return Err(FormatError::Empty);
        };
        let index = open.builder.count();
        open.builder
            .push(&message.vchannel, message.message_type, message.pairs(), &message.body)?;
        Ok(index)
    }

    fn drop_empty_open(&mut self) {
        if self.open.as_ref().is_some_and(|open| open.builder.is_empty()) {
            if let Some(open) = self.open.take() {
                self.give_back(open.builder);
            }
            self.live.pop_back();
        }
    }

    fn close_open(&mut self) {
        self.closed.extend(self.open.take());
    }

    /// Adds a whole batch, behind what is open.
    pub(crate) fn add_batch(
        &mut self,
        builder: BatchBuilder,
        charged: usize,
        now: Instant,
        deadline: Instant,
    ) -> PendingBatch {
        self.close_open();
        let fate = Arc::new(Fate::default());
        self.live.push_back(Arc::clone(&fate));
        self.closed.push_back(Queued {
            builder,
            fate: Arc::clone(&fate),
            charged,
            opened_at: now,
            deadline,
        });
        PendingBatch::new(fate)
    }

    /// The oldest closed batch.
    pub(crate) fn take_closed(&mut self) -> Option<Queued> {
        self.closed.pop_front()
    }

    /// The open batch, if it has waited long enough and either the wire is free for it or its time is over.
    pub(crate) fn take_open(&mut self, linger: Duration, wire_is_free: bool, now: Instant) -> Option<Queued> {
        let Some(open) = &self.open else {
            self.flush = false;
            return None;
        };
        let lingered = now.saturating_duration_since(open.opened_at) >= linger || self.flush || self.closing;
        if (lingered && wire_is_free) || open.deadline <= now {
            self.flush = false;
            return self.open.take();
        }
        None
    }

    /// When the open batch was opened and when its time is over.
    pub(crate) fn open_since(&self) -> Option<(Instant, Instant)> {
        self.open.as_ref().map(|open| (open.opened_at, open.deadline))
    }

    /// Whether nothing waits here.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_none() && self.closed.is_empty()
    }

    /// Asks for the open batch to go now.
    pub(crate) fn hurry(&mut self) {
        self.flush = true;
    }

    /// Asks for the open batch to go now; all batches that are not settled.
    pub(crate) fn flush(&mut self) -> Vec<PendingBatch> {
        self.hurry();
        let open = self.live.iter().filter(|fate| !fate.is_settled());
        open.cloned().map(PendingBatch::new).collect()
    }

    /// Forgets settled batches.
    pub(crate) fn forget_settled(&mut self) {
        while self.live.front().is_some_and(|fate| fate.is_settled()) {
            self.live.pop_front();
        }
    }

    /// Everything that waits here, and every fate that is open: for an end.
    pub(crate) fn end(&mut self, why: Error) -> (Vec<Queued>, VecDeque<Arc<Fate>>) {
        self.ended.get_or_insert(why);
        self.close_open();
        (self.closed.drain(..).collect(), std::mem::take(&mut self.live))
    }
}
