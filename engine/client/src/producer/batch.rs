//! A whole batch, filled by its caller.

use std::sync::Arc;

use wire_format::{MessageType, batch::BatchBuilder};

use crate::{
    error::{Error, Result},
    message::Message,
};

/// Messages that are stored together, or not at all, with one answer. Made by [`Producer::batch`](super::Producer::batch).
///
/// A push copies the body once, into the bytes that go out; nothing is allocated per message but what growing buffers take,
/// and those are used again for later batches.
pub struct Batch {
    pub(super) pchannel: Arc<str>,
    pub(super) builder: BatchBuilder,
}

impl Batch {
    /// Adds a message. On an error (the batch is full, a name or type is wrong) the batch is as it was before.
    pub fn push<'p>(
        &mut self,
        vchannel: &str,
        message_type: MessageType,
        properties: impl IntoIterator<Item = (&'p str, &'p str)>,
        body: &[u8],
    ) -> Result<()> {
        self.builder
            .push(vchannel, message_type, properties, body)
            .map_err(Error::from_format)
    }

    /// Adds a message that is at hand as a value.
    pub fn push_message(&mut self, message: &Message) -> Result<()> {
        self.push(&message.vchannel, message.message_type, message.pairs(), &message.body)
    }

    /// Messages so far.
    pub fn count(&self) -> u32 {
        self.builder.count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.builder.is_empty()
    }

    /// Bytes that the record would take now, at most.
    pub fn record_bytes(&self) -> usize {
        self.builder.record_bytes()
    }
}
