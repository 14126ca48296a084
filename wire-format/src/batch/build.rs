//! Building a record: each payload is copied once, into the bytes that go out.

use std::collections::HashMap;

use flatbuffers::FlatBufferBuilder;

use super::{
    layout::{HEADER_BYTES, PREFIX_BYTES, Prefix, index_bytes, name_bytes},
    properties,
};
use crate::{
    crc,
    error::FormatError,
    generated::batch::{Batch, BatchArgs, MessageHeader, Meta},
    ids::{MessageType, ProducerEpoch, ProducerId, Sequence},
    limits::{Limits, check_pchannel_name, check_vchannel_name},
};

/// Who produced a batch, and which of its messages these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// The producer; 0 asks for no deduplication.
    pub producer_id: ProducerId,
    /// Its incarnation.
    pub producer_epoch: ProducerEpoch,
    /// The sequence of the first message.
    pub first_sequence: Sequence,
}

/// A finished record in the two pieces in which it was made; write them one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Prefix and table.
    pub head: Vec<u8>,
    /// Payload area.
    pub payload: Vec<u8>,
    /// Messages in it.
    pub count: u32,
}

impl Record {
    /// Bytes of the whole record.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Never true: a record holds at least one message.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Both pieces in one buffer.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.head.as_slice(), self.payload.as_slice()].concat()
    }
}

/// Collects messages of one pchannel into a record that never grows over the limits. Sizes are exact, not estimates: a
/// record of just `limits.batch_bytes` can be built, one byte more is refused.
pub struct BatchBuilder {
    pchannel: String,
    limits: Limits,
    dictionary: Dictionary,
    headers: Vec<MessageHeader>,
    payload: Vec<u8>,
    type_bitmap: u64,
    table: FlatBufferBuilder<'static>,
}

/// The names so far. A record may hold thousands, so they are found by hash; most messages repeat the name before.
#[derive(Default)]
struct Dictionary {
    names: Vec<String>,
    by_name: HashMap<String, u16>,
    /// Bytes of all names in the table.
    bytes: usize,
    last: u16,
}

impl Dictionary {
    fn find(&self, name: &str) -> Option<u16> {
        /// Comparing this many is quicker than a hash.
        const FEW: usize = 8;
        match self.names.get(usize::from(self.last)) {
            Some(last) if last == name => Some(self.last),
            _ if self.names.len() <= FEW => self.names.iter().position(|known| known == name).map(|i| i as u16),
            _ => self.by_name.get(name).copied(),
        }
    }

    fn add(&mut self, name: &str) -> u16 {
        let index = self.names.len() as u16;
        self.names.push(name.to_owned());
        self.by_name.insert(name.to_owned(), index);
        self.bytes += name_bytes(name.len());
        index
    }

    fn clear(&mut self) {
        self.names.clear();
        self.by_name.clear();
        self.bytes = 0;
        self.last = 0;
    }
}

impl BatchBuilder {
    /// An empty batch for `pchannel`.
    pub fn new(pchannel: &str, limits: Limits) -> Result<Self, FormatError> {
        check_pchannel_name(pchannel)?;
        Ok(Self {
            pchannel: pchannel.to_owned(),
            limits,
            dictionary: Dictionary::default(),
            headers: Vec::new(),
            payload: Vec::new(),
            type_bitmap: 0,
            table: FlatBufferBuilder::new(),
        })
    }

    /// Messages so far.
    pub fn count(&self) -> u32 {
        self.headers.len() as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Bytes that the record would take now. Exact; before the first message: what stands around the messages.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes_with(0, 0)
    }

    fn record_bytes_with(&self, more_names: usize, more_messages: usize) -> usize {
        let (names, messages) = (self.dictionary.bytes + more_names, self.headers.len() + more_messages);
        PREFIX_BYTES + index_bytes(self.pchannel.len(), names, messages) + self.payload.len()
    }

    /// Bytes that a message adds to a record, at most: what to compare with the limit before it is pushed. Exact if it
    /// brings a new vchannel, but for up to 4 bytes of padding; a known vchannel costs nothing again.
    pub fn cost_bytes(vchannel: &str, properties_bytes: usize, body_bytes: usize) -> usize {
        HEADER_BYTES + properties_bytes + body_bytes + name_bytes(vchannel.len()).next_multiple_of(8)
    }

    /// Adds a message. On an error the batch is as it was before.
    pub fn push<'p>(
        &mut self,
        vchannel: &str,
        message_type: MessageType,
        properties: impl IntoIterator<Item = (&'p str, &'p str)>,
        body: &[u8],
    ) -> Result<(), FormatError> {
        if message_type.is_reserved() {
            return Err(FormatError::ReservedType {
                index: self.count(),
                message_type: message_type.0,
            });
        }
        check_room("messages in a batch", self.headers.len() + 1, self.limits.messages)?;
        let known = self.dictionary.find(vchannel);
        let mut more_names = 0;
        if known.is_none() {
            check_vchannel_name(vchannel, &self.limits)?;
            let most = self.limits.vchannels.min(u16::MAX.into());
            check_room("vchannels in a batch", self.dictionary.names.len() + 1, most)?;
            more_names = name_bytes(vchannel.len());
        }
        let around = self.record_bytes_with(more_names, 1);
        let at = self.payload.len();
        let properties_length = properties::append(properties, &mut self.payload)?;
        let total = around + usize::from(properties_length) + body.len();
        if let Err(error) = check_room("batch bytes", total, self.limits.batch_bytes) {
            self.payload.truncate(at);
            return Err(error);
        }
        self.payload.extend_from_slice(body);
        let vchannel = known.unwrap_or_else(|| self.dictionary.add(vchannel));
        self.dictionary.last = vchannel;
        self.type_bitmap |= message_type.bit();
        let bytes = &self.payload[at..];
        self.headers.push(MessageHeader::new(
            0,
            at as u32,
            bytes.len() as u32,
            crc::crc32c(bytes),
            self.headers.len() as u32,
            vchannel,
            message_type.0,
            properties_length,
            0,
        ));
        Ok(())
    }

    /// Takes the messages out as one record; the builder is empty again and keeps its buffers but the payload's.
    pub fn finish(&mut self, origin: Origin) -> Result<Record, FormatError> {
        if self.headers.is_empty() {
            return Err(FormatError::Empty);
        }
        let count = self.count();
        let meta = Meta::new(
            0,
            0,
            0,
            0,
            0,
            origin.producer_id.0,
            origin.first_sequence.0,
            self.type_bitmap,
            origin.producer_epoch.0,
            count,
        );
        let payload = std::mem::take(&mut self.payload);
        let mut head = Vec::new();
        write_head(
            &mut self.table,
            &meta,
            &self.pchannel,
            self.dictionary.names.iter().map(String::as_str),
            &self.headers,
            payload.len() as u32,
            &mut head,
        );
        self.payload.reserve(payload.len());
        self.dictionary.clear();
        self.headers.clear();
        self.type_bitmap = 0;
        Ok(Record { head, payload, count })
    }
}

fn check_room(what: &'static str, wanted: usize, limit: u32) -> Result<(), FormatError> {
    if wanted > limit as usize {
        return Err(FormatError::TooLarge {
            what,
            found: wanted as u64,
            limit: limit.into(),
        });
    }
    Ok(())
}

/// Appends prefix and table of a record to `out`. `table` is only scratch space, kept between calls.
pub(crate) fn write_head<'n>(
    table: &mut FlatBufferBuilder<'static>,
    meta: &Meta,
    pchannel: &str,
    vchannels: impl Iterator<Item = &'n str>,
    headers: &[MessageHeader],
    payload_len: u32,
    out: &mut Vec<u8>,
) {
    table.reset();
    let headers = Some(table.create_vector(headers));
    let names: Vec<_> = vchannels.map(|name| table.create_string(name)).collect();
    let vchannels = Some(table.create_vector(&names));
    let pchannel = Some(table.create_string(pchannel));
    let root = Batch::create(
        table,
        &BatchArgs {
            meta: Some(meta),
            pchannel,
            vchannels,
            headers,
        },
    );
    table.finish_minimal(root);
    let index = table.finished_data();
    debug_assert_eq!(index.len() % 8, 0, "the builder pads to its largest alignment");
    out.reserve(PREFIX_BYTES + index.len());
    out.extend_from_slice(&Prefix::bytes_for(index, payload_len));
    out.extend_from_slice(index);
}
