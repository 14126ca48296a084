//! The first and the last 4 KiB of a segment file, without any I/O.
//!
//! ```text
//!  0        4096                                    footer_at                       size - 4096   size
//!  +--------+---------+---------+-- ... --+---------+----------------+-- unused --+---------------+
//!  | header | block 0 | block 1 |         | block n | footer (rkyv)  |            | trailer       |
//!  +--------+---------+---------+-- ... --+---------+----------------+------------+---------------+
//! ```
//! Files are recycled, so header and trailer count only if they name this pchannel and this index.

use std::hash::{BuildHasher, Hasher, RandomState};

use wire_format::{Offset, Term, crc::crc32c};

use crate::block::ALIGNMENT;

/// Bytes before the first block.
pub const SEGMENT_HEADER_BYTES: u64 = ALIGNMENT as u64;
/// Bytes of the trailer, at the end of the file.
pub const TRAILER_BYTES: u64 = ALIGNMENT as u64;
const HEADER_MAGIC: u64 = u64::from_le_bytes(*b"LNSEGHD2");
const TRAILER_MAGIC: u64 = u64::from_le_bytes(*b"LNSEGTR1");

/// What a segment says of itself when it is opened for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Hash of the pchannel.
    pub pchannel_hash: u64,
    /// Index of the segment in its pchannel; the file's name.
    pub index: u64,
    /// Offset of its first message.
    pub base_offset: Offset,
    /// Term of the owner that opened it.
    pub term: Term,
    /// Drawn at random each time that a file is taken into use. All its blocks carry it, mixed with the pchannel: nothing that
    /// the file held before, and nothing that a producer sends, can be taken for a block.
    pub nonce: u64,
    /// Bytes of the file. It was reserved in full before it was used: a shorter one was cut later, and is no torn tail.
    pub size: u64,
}

/// Where a sealed segment keeps its footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Hash of the pchannel.
    pub pchannel_hash: u64,
    /// Index of the segment.
    pub index: u64,
    /// First byte of the footer.
    pub footer_at: u64,
    /// Bytes of the footer.
    pub footer_len: u64,
    /// crc32c of the footer.
    pub footer_crc32c: u32,
}

impl SegmentHeader {
    /// The 4 KiB in front of the blocks.
    pub fn write(&self, out: &mut [u8]) {
        seal(
            out,
            HEADER_MAGIC,
            &[
                self.pchannel_hash,
                self.index,
                self.base_offset.get(),
                self.term.get(),
                self.nonce,
                self.size,
            ],
        );
    }

    /// Reads a header that matches its checksum.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let [pchannel_hash, index, base_offset, term, nonce, size] = unseal(bytes, HEADER_MAGIC)?;
        Some(Self {
            pchannel_hash,
            index,
            base_offset: Offset(base_offset),
            term: Term(term),
            nonce,
            size,
        })
    }
}

impl Trailer {
    /// The last 4 KiB of the file.
    pub fn write(&self, out: &mut [u8]) {
        let crc = u64::from(self.footer_crc32c);
        seal(
            out,
            TRAILER_MAGIC,
            &[self.pchannel_hash, self.index, self.footer_at, self.footer_len, crc],
        );
    }

    /// Reads a trailer that matches its checksum.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let [pchannel_hash, index, footer_at, footer_len, crc] = unseal(bytes, TRAILER_MAGIC)?;
        Some(Self {
            pchannel_hash,
            index,
            footer_at,
            footer_len,
            footer_crc32c: crc as u32,
        })
    }
}

/// Magic, crc32c of the values, values; the rest is zero.
fn seal(out: &mut [u8], magic: u64, values: &[u64]) {
    out.fill(0);
    out[..8].copy_from_slice(&magic.to_le_bytes());
    for (place, value) in out[16..].chunks_exact_mut(8).zip(values) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    let crc = crc32c(&out[16..16 + 8 * values.len()]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
}

fn unseal<const N: usize>(bytes: &[u8], magic: u64) -> Option<[u64; N]> {
    let body = bytes.get(16..16 + 8 * N)?;
    let stored = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
    if bytes[..8] != magic.to_le_bytes() || stored != crc32c(body) {
        return None;
    }
    let mut values = [0; N];
    for (value, bytes) in values.iter_mut().zip(body.as_chunks::<8>().0) {
        *value = u64::from_le_bytes(*bytes);
    }
    Some(values)
}

/// A new nonce.
pub fn draw_nonce() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// What the blocks of a segment carry.
pub fn block_tag(pchannel_hash: u64, nonce: u64) -> u64 {
    pchannel_hash ^ nonce
}

/// The file name of segment `index`.
pub fn file_name(index: u64) -> String {
    format!("{index:010}.seg")
}

/// The index in a segment's file name.
pub fn index_of(file_name: &str) -> Option<u64> {
    let digits = file_name.strip_suffix(".seg")?;
    (digits.len() == 10 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}
