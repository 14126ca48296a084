//! Records that no builder makes: the parts of the table stand anywhere, also over each other, and still the record is
//! as right as it can be, with right headers, bitmap and checksums.

use rand::{RngExt, rngs::SmallRng};
use wire_format::{
    MessageType,
    batch::{META_BYTES, PREFIX_BYTES},
    crc,
};

use super::check::mend;

/// A table under construction. Parts only set bits: where two lie over each other, both may still be right as long as
/// one of them has zeros there. Those are the interesting cases.
struct Table<'r> {
    bytes: Vec<u8>,
    /// Beginnings and ends of parts, and of the texts and lengths in them.
    edges: Vec<usize>,
    rng: &'r mut SmallRng,
}

impl Table<'_> {
    /// A place for `len` bytes behind `after`: mostly free room, at times at or about the edge of another part.
    fn place(&mut self, after: usize, len: usize, align: usize) -> usize {
        let free = self.edges.iter().copied().max().unwrap_or(0);
        let near = match self.rng.random_range(0..20) {
            0 => self.edges[self.rng.random_range(0..self.edges.len())],
            1 => {
                (self.edges[self.rng.random_range(0..self.edges.len())] + self.rng.random_range(0..9)).saturating_sub(4)
            }
            2 => self.edges[self.rng.random_range(0..self.edges.len())].saturating_sub(len),
            3 => free + self.rng.random_range(0..12),
            // Room for another part to lie over this one and nothing else.
            4..7 => free + 80,
            _ => free,
        };
        let at = near.max(after).next_multiple_of(align);
        if self.bytes.len() < at + len {
            self.bytes.resize(at + len, 0);
        }
        self.edges.extend([at, at + len]);
        at
    }

    fn set(&mut self, at: usize, part: &[u8]) {
        for (byte, bits) in self.bytes[at..].iter_mut().zip(part) {
            *byte |= bits;
        }
    }

    fn set_word(&mut self, at: usize, value: usize) {
        self.set(at, &(value as u32).to_le_bytes());
    }

    /// Places a text behind `slot` and points the slot at it.
    fn text(&mut self, slot: usize, text: &str) -> usize {
        let at = self.place(slot + 4, 4 + text.len() + 1, 4);
        self.edges.push(at + 4 + text.len());
        self.set_word(slot, at - slot);
        self.set_word(at, text.len());
        self.set(at + 4, text.as_bytes());
        at
    }

    /// The dictionary behind `slot`; its entries share one text if `shared`.
    fn dictionary(&mut self, slot: usize, names: &[String], shared: bool) {
        let list_at = self.place(slot + 4, 4 + 4 * names.len(), 4);
        self.set_word(slot, list_at - slot);
        self.set_word(list_at, names.len());
        if shared {
            let last = list_at + 4 * names.len();
            let text = self.text(last, &names[0]);
            for entry in (list_at + 4..last).step_by(4) {
                self.set_word(entry, text - entry);
            }
            return;
        }
        for (i, name) in names.iter().enumerate() {
            self.text(list_at + 4 + 4 * i, name);
        }
    }

    /// The headers behind `slot`, for messages of these lengths in `payload`. Gives their type bitmap.
    fn headers(&mut self, slot: usize, lengths: &[usize], payload: &[u8], names: usize) -> u64 {
        let at = self.place(slot + 4, 4 + 32 * lengths.len(), 4);
        self.set_word(slot, at - slot);
        self.set_word(at, lengths.len());
        let (mut bitmap, mut offset) = (0, 0);
        for (i, &length) in lengths.iter().enumerate() {
            let (at, message_type) = (at + 4 + 32 * i, MessageType(2 + i as u16));
            bitmap |= message_type.bit();
            self.set_word(at + 8, offset);
            self.set_word(at + 12, length);
            self.set_word(at + 16, crc::crc32c(&payload[offset..offset + length]) as usize);
            self.set_word(at + 20, i);
            self.set(at + 24, &((i % names) as u16).to_le_bytes());
            self.set(at + 26, &message_type.0.to_le_bytes());
            offset += length;
        }
        bitmap
    }
}

/// One such record. Many are refused; all must be refused or work.
pub fn record(rng: &mut SmallRng) -> Vec<u8> {
    let shared = rng.random_bool(0.2);
    let count = if shared { 11 } else { rng.random_range(1..4) };
    let names: Vec<String> = (0..count).map(|_| "v".repeat(rng.random_range(1..20))).collect();
    let mut lengths = vec![1; count];
    if shared {
        lengths[0] = rng.random_range(900..1500);
    }
    let payload: Vec<u8> = (0..lengths.iter().sum::<usize>()).map(|i| i as u8).collect();
    let mut table = Table {
        bytes: vec![0; 4],
        edges: vec![4],
        rng,
    };
    let table_at = table.place(4, 4, 4);
    let vtable_at = table.place(0, 12, 2);
    let slots = [(); 3].map(|()| table.place(table_at + 4, 4, 4));
    let meta_align = if table.rng.random_bool(0.5) { 8 } else { 1 };
    let meta_at = table.place(table_at, META_BYTES, meta_align);
    let [pchannel, vchannels, headers] = slots;
    table.text(pchannel, "pchannel");
    table.dictionary(vchannels, &names, shared);
    let bitmap = table.headers(headers, &lengths, &payload, names.len());

    table.set_word(0, table_at);
    table.set_word(table_at, table_at.wrapping_sub(vtable_at));
    let fields = [meta_at, pchannel, vchannels, headers].map(|at| at - table_at);
    for (i, field) in [12, 8].into_iter().chain(fields).enumerate() {
        table.set(vtable_at + 2 * i, &(field as u16).to_le_bytes());
    }
    // What the server fills in is nobody's business before: it may be all zeros or all ones.
    if table.rng.random_bool(0.1) {
        table.set(meta_at, &[0xff; 40]);
    }
    table.set(meta_at + 56, &bitmap.to_le_bytes());
    table.set_word(meta_at + 68, lengths.len());

    let mut index = table.bytes;
    index.resize(index.len().next_multiple_of(8), 0);
    let mut record = vec![0; PREFIX_BYTES];
    record[8..12].copy_from_slice(&(index.len() as u32).to_le_bytes());
    record.extend(index);
    record.extend(payload);
    mend(&mut record);
    record
}
