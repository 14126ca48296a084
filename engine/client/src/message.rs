//! What goes in and what comes out.

use std::sync::Arc;

use bytes::Bytes;
use wire_format::{
    MessageType, Offset, Timetick,
    batch::{BatchView, Layout, MessageView, Meta},
};

/// A message to send.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// Its vchannel: any text of 1 to 255 bytes without control characters.
    pub vchannel: String,
    /// What it is; not one of the types that only the log writes.
    pub message_type: MessageType,
    /// Pairs of texts that travel with it; the server never looks into them.
    pub properties: Vec<(String, String)>,
    /// Its body; the server never looks into it.
    pub body: Bytes,
}

impl Message {
    /// A message without properties.
    pub fn new(vchannel: impl Into<String>, message_type: MessageType, body: impl Into<Bytes>) -> Self {
        Self {
            vchannel: vchannel.into(),
            message_type,
            properties: Vec::new(),
            body: body.into(),
        }
    }

    /// Adds a property.
    pub fn property(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.push((key.into(), value.into()));
        self
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.properties.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Bytes that its properties take in a record.
    pub(crate) fn properties_bytes(&self) -> usize {
        self.properties.iter().map(|(k, v)| 4 + k.len() + v.len()).sum()
    }
}

/// Where a message is stored, durably.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Its position in the pchannel.
    pub offset: Offset,
    /// Its place in time.
    pub timetick: Timetick,
    /// Whether a retry was answered: the message had been stored by an earlier try.
    pub duplicate: bool,
}

/// A message that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Its position in the pchannel.
    pub offset: Offset,
    /// Its place in time.
    pub timetick: Timetick,
    /// Its vchannel.
    pub vchannel: Arc<str>,
    /// What it is.
    pub message_type: MessageType,
    /// Its properties, in the order in which they were sent.
    pub properties: Vec<(String, String)>,
    /// Its body: a slice of the delivery it came with, which stays in memory as long as the slice does.
    pub body: Bytes,
}

/// What a reader sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A message; offsets and timeticks grow from one to the next.
    Message(ReceivedMessage),
    /// All messages with a timetick up to this one have come; none at or below it will come any more.
    Tick {
        /// The promise.
        timetick: Timetick,
        /// Where reading goes on: everything below was delivered or not wanted.
        next_offset: Offset,
    },
}

/// What a reader sees, a whole delivery at a time.
#[derive(Debug, Clone)]
pub enum BatchEvent {
    /// Messages.
    Batch(ReceivedBatch),
    /// As [`Event::Tick`].
    Tick {
        /// The promise.
        timetick: Timetick,
        /// Where reading goes on.
        next_offset: Offset,
    },
}

/// A verified delivery: its bytes, and which of its messages are new to the reader.
#[derive(Debug, Clone)]
pub struct ReceivedBatch {
    pub(crate) record: Bytes,
    pub(crate) layout: Layout,
    pub(crate) first: u32,
}

impl ReceivedBatch {
    /// The record as it is stored (or the part of it that the filter lets through), checked down to each payload's crc.
    pub fn record(&self) -> &Bytes {
        &self.record
    }

    /// Where its parts stand.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The record, read in place. It may begin with messages that the reader had already: see [`Self::messages`].
    pub fn view(&self) -> BatchView<'_> {
        BatchView::new(&self.record, self.layout)
    }

    /// What the record says of itself.
    pub fn meta(&self) -> Meta {
        self.view().meta()
    }

    /// Messages in it that are new to the reader; at least 1.
    pub fn count(&self) -> u32 {
        self.layout.count() - self.first
    }

    /// The messages that are new to the reader, read in place.
    pub fn messages(&self) -> impl Iterator<Item = MessageView<'_>> {
        let view = self.view();
        (self.first..view.count()).map(move |index| view.message(index))
    }
}
