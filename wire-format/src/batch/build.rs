//! Building a record: each payload is copied once, into the bytes that go out.

use flatbuffers::FlatBufferBuilder;

use super::{
    layout::{HEADER_BYTES, PREFIX_BYTES, Prefix},
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

/// Collects messages of one pchannel into a record.
pub struct BatchBuilder {
    pchannel: String,
    limits: Limits,
    vchannels: Vec<String>,
    name_bytes: usize,
    headers: Vec<MessageHeader>,
    payload: Vec<u8>,
    type_bitmap: u64,
    table: FlatBufferBuilder<'static>,
}

/// What stands around names and headers in the table, at most: root, vtable, meta, vectors, padding.
const TABLE_OVERHEAD: usize = 192;
/// Length, terminator, padding and index entry of one name.
const NAME_OVERHEAD: usize = 12;

impl BatchBuilder {
    /// An empty batch for `pchannel`.
    pub fn new(pchannel: &str, limits: Limits) -> Result<Self, FormatError> {
        check_pchannel_name(pchannel)?;
        Ok(Self {
            pchannel: pchannel.to_owned(),
            limits,
            vchannels: Vec::new(),
            name_bytes: 0,
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

    /// Bytes that the record would take now, at most.
    pub fn record_bytes(&self) -> usize {
        PREFIX_BYTES
            + TABLE_OVERHEAD
            + self.pchannel.len()
            + self.name_bytes
            + self.headers.len() * HEADER_BYTES
            + self.payload.len()
    }

    /// Bytes that a message adds to a record, at most: what to compare with the limit before it is pushed.
    pub fn cost_bytes(vchannel: &str, properties_bytes: usize, body_bytes: usize) -> usize {
        HEADER_BYTES + properties_bytes + body_bytes + vchannel.len() + NAME_OVERHEAD
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
        if self.count() >= self.limits.messages {
            let limit = u64::from(self.limits.messages);
            return Err(FormatError::TooLarge {
                what: "messages in a batch",
                found: limit + 1,
                limit,
            });
        }
        let known = self.vchannels.iter().rposition(|name| name == vchannel);
        let name_bytes = if known.is_some() {
            0
        } else {
            vchannel.len() + NAME_OVERHEAD
        };
        if known.is_none() {
            check_vchannel_name(vchannel, &self.limits)?;
            if self.vchannels.len() as u32 >= self.limits.vchannels {
                let limit = u64::from(self.limits.vchannels);
                return Err(FormatError::TooLarge {
                    what: "vchannels in a batch",
                    found: limit + 1,
                    limit,
                });
            }
        }
        let at = self.payload.len();
        let room = (self.limits.batch_bytes as usize).saturating_sub(self.record_bytes() + name_bytes + HEADER_BYTES);
        if body.len() > room {
            let found = (self.record_bytes() + name_bytes + HEADER_BYTES + body.len()) as u64;
            return Err(FormatError::TooLarge {
                what: "batch bytes",
                found,
                limit: self.limits.batch_bytes.into(),
            });
        }
        let properties_length = properties::append(properties, &mut self.payload)?;
        if usize::from(properties_length) + body.len() > room {
            self.payload.truncate(at);
            let found =
                (self.record_bytes() + name_bytes + HEADER_BYTES + body.len()) as u64 + u64::from(properties_length);
            return Err(FormatError::TooLarge {
                what: "batch bytes",
                found,
                limit: self.limits.batch_bytes.into(),
            });
        }
        self.payload.extend_from_slice(body);
        let vchannel_index = known.unwrap_or_else(|| {
            self.vchannels.push(vchannel.to_owned());
            self.name_bytes += name_bytes;
            self.vchannels.len() - 1
        });
        self.type_bitmap |= message_type.bit();
        let bytes = &self.payload[at..];
        self.headers.push(MessageHeader::new(
            0,
            at as u32,
            bytes.len() as u32,
            crc::crc32c(bytes),
            self.headers.len() as u32,
            vchannel_index as u16,
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
            self.vchannels.iter().map(String::as_str),
            &self.headers,
            payload.len() as u32,
            &mut head,
        );
        self.payload.reserve(payload.len());
        self.vchannels.clear();
        self.headers.clear();
        self.name_bytes = 0;
        self.type_bitmap = 0;
        Ok(Record { head, payload, count })
    }
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
