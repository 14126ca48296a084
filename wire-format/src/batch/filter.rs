//! Which messages of a batch a reader wants, decided from headers alone.

use super::{header::Header, view::BatchView};
use crate::{ids::MessageType, timetick::Timetick};

/// What a reader wants. An empty list means "all".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    vchannels: Vec<String>,
    message_types: Vec<MessageType>,
    type_bitmap: u64,
    /// Messages with a smaller timetick are not wanted.
    pub min_timetick: Timetick,
    /// Messages with a larger timetick are not wanted.
    pub max_timetick: Timetick,
}

/// How much of a batch matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matched {
    /// Nothing: send nothing.
    Nothing,
    /// All of it: send the stored bytes as they are.
    Everything,
    /// The messages listed in the selection.
    Some,
}

/// Scratch space of a scan, kept between batches so that a scan allocates nothing.
#[derive(Debug, Default)]
pub struct Selection {
    indices: Vec<u32>,
    wanted: Vec<bool>,
}

impl Selection {
    /// The indices of the messages that matched, growing. Only meaningful after [`Matched::Some`].
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }
}

impl Default for Filter {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new(), Timetick::ZERO, Timetick::MAX)
    }
}

impl Filter {
    /// A filter by vchannels, types and timetick range, both ends included.
    pub fn new(
        mut vchannels: Vec<String>,
        mut message_types: Vec<MessageType>,
        min_timetick: Timetick,
        max_timetick: Timetick,
    ) -> Self {
        vchannels.sort_unstable();
        vchannels.dedup();
        message_types.sort_unstable();
        message_types.dedup();
        let type_bitmap = match message_types.as_slice() {
            [] => u64::MAX,
            types => types.iter().fold(0, |bits, t| bits | t.bit()),
        };
        Self {
            vchannels,
            message_types,
            type_bitmap,
            min_timetick,
            max_timetick,
        }
    }

    /// The vchannels asked for, sorted; empty for all.
    pub fn vchannels(&self) -> &[String] {
        &self.vchannels
    }

    /// The types asked for, sorted; empty for all.
    pub fn message_types(&self) -> &[MessageType] {
        &self.message_types
    }

    /// Whether it lets everything through.
    pub fn is_open(&self) -> bool {
        self.vchannels.is_empty()
            && self.message_types.is_empty()
            && self.min_timetick == Timetick::ZERO
            && self.max_timetick == Timetick::MAX
    }

    #[inline]
    fn wants_vchannel(&self, name: &[u8]) -> bool {
        match self.vchannels.as_slice() {
            [] => true,
            // Names of one family have one length and differ at the end: look there before a call compares all of it.
            [one] => one.as_bytes().last() == name.last() && one.as_bytes() == name,
            many => many.binary_search_by(|probe| probe.as_bytes().cmp(name)).is_ok(),
        }
    }

    #[inline]
    fn wants_type(&self, message_type: MessageType) -> bool {
        match self.message_types.as_slice() {
            [] => true,
            [one] => *one == message_type,
            many => self.type_bitmap & message_type.bit() != 0 && many.binary_search(&message_type).is_ok(),
        }
    }

    #[inline]
    fn wants_timetick(&self, timetick: Timetick) -> bool {
        (self.min_timetick <= timetick) & (timetick <= self.max_timetick)
    }

    /// Looks at a stored batch. Bitmap, timetick range and dictionary decide first; the headers are scanned only if needed.
    pub fn select(&self, batch: &BatchView<'_>, selection: &mut Selection) -> Matched {
        let (first, last) = batch.timetick_range();
        if batch.type_bitmap() & self.type_bitmap == 0 || last < self.min_timetick || first > self.max_timetick {
            return Matched::Nothing;
        }
        let Selection { indices, wanted } = selection;
        let vchannels_all = self.vchannels.is_empty() || {
            let marked = self.mark_wanted(batch, wanted);
            if marked == 0 {
                return Matched::Nothing;
            }
            marked == batch.vchannel_count()
        };
        // Whether every type present is wanted can be told from the bitmap, but for the shared last bit.
        let types_all = self.message_types.is_empty()
            || (batch.type_bitmap() & !self.type_bitmap == 0 && batch.type_bitmap() >> 63 == 0);
        let range_all = first >= self.min_timetick && last <= self.max_timetick;
        if vchannels_all && types_all && range_all {
            return Matched::Everything;
        }
        let scan = Scan {
            wanted: (!vchannels_all).then_some(wanted.as_slice()),
            filter: self,
            types_all,
            range_all,
        };
        match scan.run(batch, indices) {
            0 => Matched::Nothing,
            n if n == batch.count() as usize => Matched::Everything,
            _ => Matched::Some,
        }
    }

    /// Marks the dictionary entries that are wanted and counts them.
    #[inline]
    fn mark_wanted(&self, batch: &BatchView<'_>, wanted: &mut Vec<bool>) -> u32 {
        wanted.clear();
        wanted.resize(batch.vchannel_count() as usize, false);
        let mut marked = 0;
        for (mark, name) in wanted.iter_mut().zip(batch.vchannel_names()) {
            *mark = self.wants_vchannel(name);
            marked += u32::from(*mark);
        }
        marked
    }
}

/// A pass over the headers, with what the batch as a whole did not decide.
struct Scan<'s> {
    /// By dictionary index; `None` if all are wanted.
    wanted: Option<&'s [bool]>,
    filter: &'s Filter,
    types_all: bool,
    range_all: bool,
}

impl Scan<'_> {
    /// Puts the indices that match into `indices` and says how many they are. Each index is written, and kept by counting
    /// it: a branch that depends on the data would be guessed wrong at every other message.
    fn run(&self, batch: &BatchView<'_>, indices: &mut Vec<u32>) -> usize {
        let count = batch.count() as usize;
        if indices.len() < count {
            indices.resize(count, 0);
        }
        let mut kept = 0;
        for (index, header) in (0u32..).zip(batch.headers()) {
            let hit = self.wants(header);
            indices[kept] = index;
            kept += usize::from(hit);
        }
        indices.truncate(kept);
        kept
    }

    #[inline]
    fn wants(&self, header: Header<'_>) -> bool {
        self.wanted.is_none_or(|wanted| wanted[usize::from(header.vchannel())])
            && (self.types_all || self.filter.wants_type(header.message_type()))
            && (self.range_all || self.filter.wants_timetick(header.timetick()))
    }
}
