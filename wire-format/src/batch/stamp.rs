//! In-place patching of what only the server knows.

use super::{
    header,
    layout::{HEADER_BYTES, Layout, put_u64, store_meta_crc},
    view::field,
};
use crate::{
    ids::{Offset, Term},
    timetick::Timetick,
};

/// What the owner of a pchannel gives to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Offset of its first message.
    pub base_offset: Offset,
    /// The owner's term.
    pub term: Term,
    /// Timetick of its first message; message `i` gets the one `i` steps later.
    pub first_timetick: Timetick,
    /// The largest timetick promised to readers so far.
    pub promised_timetick: Timetick,
}

/// Writes the stamp into the bytes that the producer sent and renews the meta crc. Payloads are not touched.
///
/// `layout` must be that of `record`, which passed the producer's door.
pub fn stamp(record: &mut [u8], layout: &Layout, stamp: &Stamp) {
    let at = layout.meta_at as usize;
    let last = stamp.first_timetick.plus(u64::from(layout.count) - 1);
    put_u64(record, at + field::BASE_OFFSET, stamp.base_offset.get());
    put_u64(record, at + field::TERM, stamp.term.get());
    put_u64(record, at + field::MIN_TIMETICK, stamp.first_timetick.get());
    put_u64(record, at + field::MAX_TIMETICK, last.get());
    put_u64(record, at + field::PROMISED_TIMETICK, stamp.promised_timetick.get());
    let headers_at = layout.headers_at as usize;
    let headers = &mut record[headers_at..headers_at + layout.count as usize * HEADER_BYTES];
    for (index, bytes) in (0u64..).zip(headers.as_chunks_mut::<HEADER_BYTES>().0) {
        put_u64(bytes, header::field::TIMETICK, stamp.first_timetick.plus(index).get());
    }
    store_meta_crc(record, layout.payload_at as usize);
}
