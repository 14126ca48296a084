//! The one check of untrusted bytes, at the door: of the network (`Door::Producer`) or of the disk (`Door::Storage`).

use std::ops::Range;

use flatbuffers::VerifierOptions;

use super::{
    header::Header,
    layout::{
        HEADER_BYTES, Layout, META_BYTES, PREFIX_BYTES, Prefix, computed_meta_crc, index_bytes, name_bytes, u32_at,
    },
    view::BatchView,
};
use crate::{
    crc,
    error::FormatError,
    generated::batch::Batch,
    limits::{Limits, check_pchannel_name, check_vchannel_name},
    timetick::Timetick,
};

/// Through which door bytes come in: it decides which fields must be filled already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// From a producer: offsets are relative, timeticks not yet given, reserved types refused.
    Producer,
    /// From a disk, a backend or a server: offsets and timeticks must grow and agree with the meta.
    Storage,
}

/// Checks a whole record: lengths, limits, checksums, table, names, indices, tiling of the payload, order.
///
/// `bytes` may be longer than the record. After `Ok` a [`BatchView`] over the same bytes reads without further checks.
/// Costs one pass over the headers and one crc32c pass over all bytes; allocates only on errors.
pub fn verify<'a>(bytes: &'a [u8], door: Door, limits: &Limits) -> Result<BatchView<'a>, FormatError> {
    let prefix = Prefix::read(bytes, limits)?;
    let need = prefix.record_len();
    let Some(record) = bytes.get(..need) else {
        return Err(FormatError::Short {
            part: "record",
            have: bytes.len() as u64,
            need: need as u64,
        });
    };
    let index_end = PREFIX_BYTES + prefix.index_len as usize;
    let computed = computed_meta_crc(record, index_end);
    if computed != prefix.meta_crc32c {
        return Err(FormatError::Checksum {
            part: "batch meta",
            computed,
            stored: prefix.meta_crc32c,
        });
    }
    let layout = read_table(record, index_end, prefix.payload_len, limits)?;
    let view = BatchView::new(record, layout);
    check_names(&view, limits)?;
    check_headers(&view, door)?;
    check_payloads(&view)?;
    Ok(view)
}

/// Lets the FlatBuffers verifier look at the table, then notes where its parts stand.
fn read_table(record: &[u8], index_end: usize, payload_len: u32, limits: &Limits) -> Result<Layout, FormatError> {
    let index = &record[PREFIX_BYTES..index_end];
    let options = VerifierOptions {
        max_depth: 4,
        max_tables: 1,
        max_apparent_size: index.len().saturating_mul(2),
        ..Default::default()
    };
    let batch = flatbuffers::root_with_opts::<Batch<'_>>(&options, index).map_err(|e| FormatError::Table {
        part: "batch",
        detail: e.to_string(),
    })?;
    let position = |part: &[u8]| (part.as_ptr() as usize - record.as_ptr() as usize) as u32;
    let headers = batch.headers();
    let vchannels = batch.vchannels();
    let pchannel = batch.pchannel();
    let (count, vchannel_count) = (headers.len() as u32, vchannels.len() as u32);
    if count == 0 {
        return Err(FormatError::Empty);
    }
    if count > limits.messages {
        return Err(FormatError::TooLarge {
            what: "messages in a batch",
            found: count.into(),
            limit: limits.messages.into(),
        });
    }
    if vchannel_count > limits.vchannels {
        return Err(FormatError::TooLarge {
            what: "vchannels in a batch",
            found: vchannel_count.into(),
            limit: limits.vchannels.into(),
        });
    }
    let headers_at = position(headers.bytes());
    let meta_at = position(&batch.meta().0);
    check_patched_apart(record, &batch, meta_at as usize, headers_at as usize)?;
    let vchannels_at = position(vchannels.bytes());
    Ok(Layout {
        meta_at,
        headers_at,
        count,
        pchannel_at: position(pchannel.as_bytes()),
        pchannel_len: pchannel.len() as u32,
        vchannels_at,
        vchannel_count,
        payload_at: index_end as u32,
        payload_len,
    })
}

/// The server patches meta and headers in place. A crafted table could lay them over its own structure or over names, so
/// that the stamped record would no longer be readable: refuse it.
fn check_patched_apart(record: &[u8], batch: &Batch<'_>, meta_at: usize, headers_at: usize) -> Result<(), FormatError> {
    let position = |part: &[u8]| part.as_ptr() as usize - record.as_ptr() as usize;
    let meta = meta_at..meta_at + META_BYTES;
    let headers = headers_at..headers_at + batch.headers().len() * HEADER_BYTES;
    let overlap = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
    let touches = |at: usize, len: usize| overlap(&meta, &(at..at + len)) || overlap(&headers, &(at..at + len));
    // A text has its length in front and a zero behind; the verifier looks at both.
    let touches_text = |text: &str| touches(position(text.as_bytes()) - 4, 4 + text.len() + 1);
    let table_at = PREFIX_BYTES + batch._tab.loc();
    let vtable = batch._tab.vtable();
    let to_vtable = u32_at(record, table_at) as i32;
    let vtable_at = table_at.wrapping_sub(to_vtable as isize as usize);
    let mut slots = [Batch::VT_PCHANNEL, Batch::VT_VCHANNELS, Batch::VT_HEADERS]
        .iter()
        .map(|&slot| table_at + usize::from(vtable.get(slot)));
    let vchannels = batch.vchannels();
    let clash = overlap(&meta, &headers)
        || touches(PREFIX_BYTES, 4)
        || touches(table_at, 4)
        || touches(vtable_at, vtable.num_bytes())
        || slots.any(|at| touches(at, 4))
        || touches(headers_at - 4, 4)
        || touches(position(vchannels.bytes()) - 4, 4 + vchannels.bytes().len())
        || touches_text(batch.pchannel())
        || vchannels.iter().any(touches_text);
    if clash {
        let detail = "fields that the server patches lie over other parts of the table".to_owned();
        return Err(FormatError::Table { part: "batch", detail });
    }
    Ok(())
}

/// Checks each name, and that the record stays inside the limit when it is written anew: a crafted table may let many
/// entries share one text, and a subset of it, which does not, would be larger than what a reader takes.
fn check_names(view: &BatchView<'_>, limits: &Limits) -> Result<(), FormatError> {
    check_pchannel_name(view.pchannel())?;
    let mut names = 0;
    for name in view.vchannels() {
        check_vchannel_name(name, limits)?;
        names += name_bytes(name.len());
    }
    let index = index_bytes(view.pchannel().len(), names, view.count() as usize);
    let total = (PREFIX_BYTES + index + view.payload().len()) as u64;
    if total > u64::from(limits.batch_bytes) {
        return Err(FormatError::TooLarge {
            what: "batch bytes, with no text shared,",
            found: total,
            limit: limits.batch_bytes.into(),
        });
    }
    Ok(())
}

/// One pass over the headers: tiling, indices, order, and what the meta says of them.
fn check_headers(view: &BatchView<'_>, door: Door) -> Result<(), FormatError> {
    let vchannels = view.vchannel_count();
    let meta = view.meta();
    let (mut payload_at, mut bitmap, mut last_tick, mut next_delta) = (0u64, 0u64, Timetick::ZERO, 0u64);
    for (index, header) in (0u32..).zip(view.headers()) {
        let fault = |what, found, expected| FormatError::Header {
            index,
            what,
            found,
            expected,
        };
        if u32::from(header.vchannel()) >= vchannels {
            return Err(fault(
                "vchannel index",
                header.vchannel().into(),
                vchannels.saturating_sub(1).into(),
            ));
        }
        if u64::from(header.payload_offset()) != payload_at {
            return Err(fault("payload offset", header.payload_offset().into(), payload_at));
        }
        if u32::from(header.properties_length()) > header.payload_length() {
            return Err(fault(
                "properties length",
                header.properties_length().into(),
                header.payload_length().into(),
            ));
        }
        let delta = u64::from(header.offset_delta());
        match door {
            Door::Producer if delta != u64::from(index) => return Err(fault("offset delta", delta, index.into())),
            Door::Producer if header.message_type().is_reserved() => {
                return Err(FormatError::ReservedType {
                    index,
                    message_type: header.message_type().0,
                });
            }
            Door::Storage if delta < next_delta => return Err(fault("offset delta", delta, next_delta)),
            Door::Storage if header.timetick() <= last_tick => {
                return Err(fault(
                    "timetick",
                    header.timetick().get(),
                    last_tick.get().saturating_add(1),
                ));
            }
            _ => {}
        }
        payload_at += u64::from(header.payload_length());
        bitmap |= header.message_type().bit();
        last_tick = header.timetick();
        next_delta = delta + 1;
    }
    let fault = |what, found, expected| FormatError::Meta { what, found, expected };
    if payload_at != view.payload().len() as u64 {
        return Err(fault("payload bytes", view.payload().len() as u64, payload_at));
    }
    if meta.type_bitmap != bitmap {
        return Err(fault("type bitmap", meta.type_bitmap, bitmap));
    }
    if u64::from(meta.span) < next_delta || (door == Door::Producer && meta.span != view.count()) {
        return Err(fault("span", meta.span.into(), next_delta));
    }
    if door == Door::Storage {
        check_stamped(view, last_tick)?;
    }
    Ok(())
}

fn check_stamped(view: &BatchView<'_>, last_tick: Timetick) -> Result<(), FormatError> {
    let meta = view.meta();
    let first_tick = view.header(0).timetick();
    let fault = |what, found, expected| FormatError::Meta { what, found, expected };
    if meta.min_timetick > first_tick {
        return Err(fault("min timetick", meta.min_timetick.get(), first_tick.get()));
    }
    if meta.max_timetick < last_tick {
        return Err(fault("max timetick", meta.max_timetick.get(), last_tick.get()));
    }
    if meta.promised_timetick >= meta.min_timetick {
        return Err(fault(
            "promised timetick",
            meta.promised_timetick.get(),
            meta.min_timetick.previous().get(),
        ));
    }
    if meta.base_offset.get().checked_add(u64::from(meta.span)).is_none() {
        return Err(fault(
            "base offset",
            meta.base_offset.get(),
            u64::MAX - u64::from(meta.span),
        ));
    }
    Ok(())
}

fn check_payloads(view: &BatchView<'_>) -> Result<(), FormatError> {
    (0u32..)
        .zip(view.headers())
        .try_for_each(|(index, header)| check_payload(view, index, header))
}

/// Checks the payload of one message against the producer's checksum.
pub(crate) fn check_payload(view: &BatchView<'_>, index: u32, header: Header<'_>) -> Result<(), FormatError> {
    let computed = crc::crc32c(view.message_bytes(header));
    let stored = header.payload_crc32c();
    if computed != stored {
        return Err(FormatError::PayloadChecksum {
            index,
            computed,
            stored,
        });
    }
    Ok(())
}
