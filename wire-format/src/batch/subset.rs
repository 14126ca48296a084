//! A delivery of some of a record's messages, with their offsets, timeticks and checksums as they were stored.

use flatbuffers::FlatBufferBuilder;

use super::{build::write_head, view::BatchView};
use crate::generated::batch::{MessageHeader, Meta};

/// Writes subsets of records; keeps its scratch space between calls.
#[derive(Default)]
pub struct SubsetWriter {
    table: FlatBufferBuilder<'static>,
    headers: Vec<MessageHeader>,
    names: Vec<u16>,
    renamed: Vec<Option<u16>>,
}

impl SubsetWriter {
    /// Appends a record to `out` that holds the messages `indices` (growing, not empty) of `batch`. Its meta, and so its
    /// span of offsets and timeticks, is that of `batch`; its dictionary holds only the names that are used.
    pub fn write(&mut self, batch: &BatchView<'_>, indices: &[u32], out: &mut Vec<u8>) {
        self.headers.clear();
        self.names.clear();
        self.renamed.clear();
        self.renamed.resize(batch.vchannel_count() as usize, None);
        let (mut payload_len, mut bitmap) = (0u32, 0u64);
        for &index in indices {
            let header = batch.header(index);
            let vchannel = *self.renamed[usize::from(header.vchannel())].get_or_insert_with(|| {
                self.names.push(header.vchannel());
                (self.names.len() - 1) as u16
            });
            self.headers.push(MessageHeader::new(
                header.timetick().get(),
                payload_len,
                header.payload_length(),
                header.payload_crc32c(),
                header.offset_delta(),
                vchannel,
                header.message_type().0,
                header.properties_length(),
                header.flags(),
            ));
            payload_len += header.payload_length();
            bitmap |= header.message_type().bit();
        }
        let meta = batch.meta();
        let meta = Meta::new(
            meta.base_offset.get(),
            meta.term.get(),
            meta.min_timetick.get(),
            meta.max_timetick.get(),
            meta.promised_timetick.get(),
            meta.producer_id.get(),
            meta.first_sequence.get(),
            bitmap,
            meta.producer_epoch.get(),
            meta.span,
        );
        let names = self.names.iter().map(|&name| batch.vchannel(name));
        write_head(
            &mut self.table,
            &meta,
            batch.pchannel(),
            names,
            &self.headers,
            payload_len,
            out,
        );
        out.reserve(payload_len as usize);
        for &index in indices {
            out.extend_from_slice(batch.message_bytes(batch.header(index)));
        }
    }
}
