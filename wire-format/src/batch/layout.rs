//! The bytes of a record, and where its parts stand.
//!
//! ```text
//!  0            24                        24 + index_len                      + payload_len
//!  +------------+--------------------------+----------------------------------+
//!  | prefix     | FlatBuffers `Batch`      | payload: message 0, message 1, … |
//!  +------------+--------------------------+----------------------------------+
//!  prefix: magic u32 | version u16 | flags u16 | index_len u32 | payload_len u32 | meta crc32c u32 | zero u32
//! ```
//! The meta crc covers the first 16 bytes of the prefix and the whole table; each header carries the crc of its own payload.
//! So any subset of a record's messages can be sent on with the producer's own checksums.

use crate::{crc, error::FormatError, limits::Limits};

/// Bytes before the table.
pub const PREFIX_BYTES: usize = 24;
/// Bytes of one message header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of the meta struct.
pub const META_BYTES: usize = 72;
/// "LNB1", little endian.
pub const MAGIC: u32 = 0x3142_4e4c;
/// Version of this layout.
pub const VERSION: u16 = 1;

const CRC_AT: usize = 16;

/// The lengths that a prefix states. Only checked against limits: the rest of the record may be missing still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Bytes of the table, a multiple of 8.
    pub index_len: u32,
    /// Bytes of the payload area.
    pub payload_len: u32,
    /// crc32c over prefix and table.
    pub meta_crc32c: u32,
}

impl Prefix {
    /// Reads and bounds the first [`PREFIX_BYTES`] of a record.
    pub fn read(bytes: &[u8], limits: &Limits) -> Result<Self, FormatError> {
        let Some((head, _)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
            return Err(FormatError::Short {
                part: "record prefix",
                have: bytes.len() as u64,
                need: PREFIX_BYTES as u64,
            });
        };
        let magic = u32_at(head, 0);
        if magic != MAGIC {
            return Err(FormatError::Magic {
                part: "record prefix",
                found: magic,
                expected: MAGIC,
            });
        }
        let version = u16_at(head, 4);
        if version != VERSION {
            return Err(FormatError::Version {
                part: "record prefix",
                found: version,
                expected: VERSION,
            });
        }
        let prefix = Self {
            index_len: u32_at(head, 8),
            payload_len: u32_at(head, 12),
            meta_crc32c: u32_at(head, CRC_AT),
        };
        let total = prefix.record_len_u64();
        if total > u64::from(limits.batch_bytes) {
            return Err(FormatError::TooLarge {
                what: "batch bytes",
                found: total,
                limit: limits.batch_bytes.into(),
            });
        }
        if u16_at(head, 6) != 0 || u32_at(head, 20) != 0 || !prefix.index_len.is_multiple_of(8) {
            return Err(FormatError::Table {
                part: "record prefix",
                detail: "reserved bytes are set, or the table's length is no multiple of 8".to_owned(),
            });
        }
        Ok(prefix)
    }

    fn record_len_u64(&self) -> u64 {
        PREFIX_BYTES as u64 + u64::from(self.index_len) + u64::from(self.payload_len)
    }

    /// Bytes of the whole record.
    pub fn record_len(&self) -> usize {
        self.record_len_u64() as usize
    }

    /// The prefix of a table and payload of these lengths, with its crc over `index`.
    pub(crate) fn bytes_for(index: &[u8], payload_len: u32) -> [u8; PREFIX_BYTES] {
        let mut head = [0; PREFIX_BYTES];
        put_u32(&mut head, 0, MAGIC);
        head[4..6].copy_from_slice(&VERSION.to_le_bytes());
        put_u32(&mut head, 8, index.len() as u32);
        put_u32(&mut head, 12, payload_len);
        let crc = crc::crc32c_of_parts(&[&head[..CRC_AT], index]);
        put_u32(&mut head, CRC_AT, crc);
        head
    }
}

/// Where the parts of a verified record stand, from its first byte. What it says was checked once; reading by it is cheap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub(crate) meta_at: u32,
    pub(crate) headers_at: u32,
    pub(crate) count: u32,
    pub(crate) pchannel_at: u32,
    pub(crate) pchannel_len: u32,
    pub(crate) vchannels_at: u32,
    pub(crate) vchannel_count: u32,
    pub(crate) payload_at: u32,
    pub(crate) payload_len: u32,
}

impl Layout {
    /// Messages in the record.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the whole record.
    pub fn record_len(&self) -> usize {
        self.payload_at as usize + self.payload_len as usize
    }
}

/// Bytes of the table that the builder writes for `messages` headers, a pchannel name of `pchannel_len` bytes and vchannel
/// names that take `names` bytes by [`name_bytes`]. Exact: the builder aligns what it writes to 4 and 8 bytes.
pub(crate) const fn index_bytes(pchannel_len: usize, names: usize, messages: usize) -> usize {
    const VECTOR_LENGTHS: usize = 2 * 4;
    const SLOTS: usize = 3 * 4;
    const TABLE_TO_VTABLE: usize = 4;
    const VTABLE: usize = 12;
    const ROOT: usize = 8;
    let vectors = VECTOR_LENGTHS + messages * HEADER_BYTES + names + string_bytes(pchannel_len);
    (vectors + SLOTS).next_multiple_of(8) + META_BYTES + TABLE_TO_VTABLE + VTABLE + ROOT
}

/// Bytes that a name of the dictionary takes in the table: its text and its entry in the vector.
pub(crate) const fn name_bytes(len: usize) -> usize {
    4 + string_bytes(len)
}

/// Length, text and terminator, padded.
const fn string_bytes(len: usize) -> usize {
    4 + (len + 1).next_multiple_of(4)
}

/// The crc that a record's prefix and table have now.
pub(crate) fn computed_meta_crc(record: &[u8], index_end: usize) -> u32 {
    crc::crc32c_of_parts(&[&record[..CRC_AT], &record[PREFIX_BYTES..index_end]])
}

pub(crate) fn store_meta_crc(record: &mut [u8], index_end: usize) {
    let crc = computed_meta_crc(record, index_end);
    put_u32(record, CRC_AT, crc);
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[inline]
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[inline]
pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
