//! A verified record, read in place.

use super::{
    header::Header,
    layout::{HEADER_BYTES, Layout, u32_at, u64_at},
    properties::Properties,
};
use crate::{
    ids::{MessageType, Offset, ProducerEpoch, ProducerId, Sequence, Term},
    timetick::Timetick,
};

/// Positions of the meta struct's fields; a test holds them against the generated accessors.
pub(crate) mod field {
    pub const BASE_OFFSET: usize = 0;
    pub const TERM: usize = 8;
    pub const MIN_TIMETICK: usize = 16;
    pub const MAX_TIMETICK: usize = 24;
    pub const PROMISED_TIMETICK: usize = 32;
    pub const PRODUCER_ID: usize = 40;
    pub const FIRST_SEQUENCE: usize = 48;
    pub const TYPE_BITMAP: usize = 56;
    pub const PRODUCER_EPOCH: usize = 64;
    pub const SPAN: usize = 68;
}

/// What a record says of itself as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// Offset of the first message that the record covers.
    pub base_offset: Offset,
    /// Term of the owner that stored it.
    pub term: Term,
    /// Timetick of its first message.
    pub min_timetick: Timetick,
    /// Timetick of its last message.
    pub max_timetick: Timetick,
    /// Largest timetick promised to readers before it.
    pub promised_timetick: Timetick,
    /// Who produced it.
    pub producer_id: ProducerId,
    /// Sequence of its first message.
    pub first_sequence: Sequence,
    /// Which message types may be in it.
    pub type_bitmap: u64,
    /// Incarnation of the producer.
    pub producer_epoch: ProducerEpoch,
    /// How many offsets it covers.
    pub span: u32,
}

impl Meta {
    /// The offset behind the record.
    pub fn next_offset(&self) -> Offset {
        self.base_offset.plus(self.span.into())
    }
}

/// A record that passed [`super::verify`], or whose [`Layout`] is remembered from when it did.
#[derive(Clone, Copy)]
pub struct BatchView<'a> {
    record: &'a [u8],
    layout: Layout,
}

/// One message of a record.
#[derive(Clone, Copy)]
pub struct MessageView<'a> {
    /// Its position in the pchannel.
    pub offset: Offset,
    /// Its place in time.
    pub timetick: Timetick,
    /// Its vchannel.
    pub vchannel: &'a str,
    /// What it is.
    pub message_type: MessageType,
    /// Its properties.
    pub properties: Properties<'a>,
    /// Its body.
    pub body: &'a [u8],
}

impl<'a> BatchView<'a> {
    /// The view of a record whose layout was found by [`super::verify`] over the same bytes.
    ///
    /// # Panics
    /// May panic on access if `record` holds other bytes than those verified.
    #[inline]
    pub fn new(record: &'a [u8], layout: Layout) -> Self {
        Self {
            record: &record[..layout.record_len()],
            layout,
        }
    }

    /// Where its parts stand; keep it to come back without a second verification.
    #[inline]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The whole record.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.record
    }

    /// Messages present.
    #[inline]
    pub fn count(&self) -> u32 {
        self.layout.count
    }

    /// What the record says of itself.
    pub fn meta(&self) -> Meta {
        let at = self.layout.meta_at as usize;
        let long = |field| u64_at(self.record, at + field);
        let short = |field| u32_at(self.record, at + field);
        Meta {
            base_offset: Offset(long(field::BASE_OFFSET)),
            term: Term(long(field::TERM)),
            min_timetick: Timetick(long(field::MIN_TIMETICK)),
            max_timetick: Timetick(long(field::MAX_TIMETICK)),
            promised_timetick: Timetick(long(field::PROMISED_TIMETICK)),
            producer_id: ProducerId(long(field::PRODUCER_ID)),
            first_sequence: Sequence(long(field::FIRST_SEQUENCE)),
            type_bitmap: long(field::TYPE_BITMAP),
            producer_epoch: ProducerEpoch(short(field::PRODUCER_EPOCH)),
            span: short(field::SPAN),
        }
    }

    /// The bits of all message types present, without reading the rest of the meta.
    #[inline]
    pub fn type_bitmap(&self) -> u64 {
        u64_at(self.record, self.layout.meta_at as usize + field::TYPE_BITMAP)
    }

    /// The first and the last timetick.
    #[inline]
    pub fn timetick_range(&self) -> (Timetick, Timetick) {
        let at = self.layout.meta_at as usize;
        (
            Timetick(u64_at(self.record, at + field::MIN_TIMETICK)),
            Timetick(u64_at(self.record, at + field::MAX_TIMETICK)),
        )
    }

    /// The pchannel that it belongs to.
    pub fn pchannel(&self) -> &'a str {
        let at = self.layout.pchannel_at as usize;
        text(&self.record[at..at + self.layout.pchannel_len as usize])
    }

    /// How many names its dictionary has.
    #[inline]
    pub fn vchannel_count(&self) -> u32 {
        self.layout.vchannel_count
    }

    /// Name number `index` of its dictionary, as bytes.
    #[inline]
    pub(crate) fn vchannel_bytes(&self, index: u32) -> &'a [u8] {
        self.text_of_entry(self.layout.vchannels_at as usize + 4 * index as usize)
    }

    /// The names of its dictionary, as bytes.
    #[inline]
    pub(crate) fn vchannel_names(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let view = *self;
        let first = view.layout.vchannels_at as usize;
        let end = first + 4 * view.layout.vchannel_count as usize;
        (first..end).step_by(4).map(move |entry| view.text_of_entry(entry))
    }

    /// The text that the dictionary's entry at `entry` points to.
    #[inline]
    fn text_of_entry(&self, entry: usize) -> &'a [u8] {
        let text = &self.record[entry + u32_at(self.record, entry) as usize..];
        let len = u32_at(text, 0) as usize;
        &text[4..4 + len]
    }

    /// Name number `index` of its dictionary.
    pub fn vchannel(&self, index: u16) -> &'a str {
        text(self.vchannel_bytes(index.into()))
    }

    /// The names of its dictionary.
    pub fn vchannels(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.vchannel_names().map(text)
    }

    /// All headers, as one array.
    #[inline]
    pub(crate) fn header_array(&self) -> &'a [[u8; HEADER_BYTES]] {
        let at = self.layout.headers_at as usize;
        let bytes = &self.record[at..at + self.layout.count as usize * HEADER_BYTES];
        bytes.as_chunks::<HEADER_BYTES>().0
    }

    /// All headers, in order.
    #[inline]
    pub fn headers(&self) -> impl ExactSizeIterator<Item = Header<'a>> + use<'a> {
        self.header_array().iter().map(Header)
    }

    /// Header number `index`.
    #[inline]
    pub fn header(&self, index: u32) -> Header<'a> {
        Header(&self.header_array()[index as usize])
    }

    /// The payload area.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.record[self.layout.payload_at as usize..]
    }

    /// The bytes of one message: properties, then body.
    #[inline]
    pub fn message_bytes(&self, header: Header<'_>) -> &'a [u8] {
        let at = header.payload_offset() as usize;
        &self.payload()[at..at + header.payload_length() as usize]
    }

    /// Message number `index`.
    pub fn message(&self, index: u32) -> MessageView<'a> {
        let header = self.header(index);
        let (properties, body) = self.message_bytes(header).split_at(header.properties_length().into());
        let base = Offset(u64_at(self.record, self.layout.meta_at as usize + field::BASE_OFFSET));
        MessageView {
            offset: base.plus(header.offset_delta().into()),
            timetick: header.timetick(),
            vchannel: self.vchannel(header.vchannel()),
            message_type: header.message_type(),
            properties: Properties(properties),
            body,
        }
    }

    /// All messages, in order.
    pub fn messages(&self) -> impl Iterator<Item = MessageView<'a>> + use<'a> {
        let view = *self;
        (0..view.count()).map(move |index| view.message(index))
    }
}

/// Names were checked to be UTF-8 by the verifier; bytes changed since then read as an empty name, not as undefined behaviour.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{batch::META_BYTES, generated::batch::Meta as Table};

    /// Each byte differs, so that a field read at a wrong place can't give the right value.
    #[test]
    fn fields_stand_where_the_generated_code_puts_them() {
        let bytes: [u8; META_BYTES] = std::array::from_fn(|i| i as u8 + 1);
        let theirs = Table(bytes);
        assert_eq!(size_of::<Table>(), META_BYTES);
        let layout = Layout {
            meta_at: 0,
            headers_at: 0,
            count: 0,
            pchannel_at: 0,
            pchannel_len: 0,
            vchannels_at: 0,
            vchannel_count: 0,
            payload_at: META_BYTES as u32,
            payload_len: 0,
        };
        let view = BatchView::new(&bytes, layout);
        let ours = view.meta();
        assert_eq!(ours.base_offset.get(), theirs.base_offset());
        assert_eq!(ours.term.get(), theirs.term());
        assert_eq!(ours.min_timetick.get(), theirs.min_timetick());
        assert_eq!(ours.max_timetick.get(), theirs.max_timetick());
        assert_eq!(ours.promised_timetick.get(), theirs.promised_timetick());
        assert_eq!(ours.producer_id.get(), theirs.producer_id());
        assert_eq!(ours.first_sequence.get(), theirs.first_sequence());
        assert_eq!(ours.type_bitmap, theirs.type_bitmap());
        assert_eq!(ours.producer_epoch.get(), theirs.producer_epoch());
        assert_eq!(ours.span, theirs.span());
        assert_eq!(view.type_bitmap(), ours.type_bitmap);
        assert_eq!(view.timetick_range(), (ours.min_timetick, ours.max_timetick));
    }
}
