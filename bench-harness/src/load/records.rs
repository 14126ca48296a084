//! The records that producers send: built once per pchannel, sent over and over.

use wire_format::{
    Limits, MessageType,
    batch::{BatchBuilder, Origin},
};

use crate::error::BenchError;

/// Records kept for one pchannel at most; a few, so that not all data is the same.
const VARIANTS_MAX: usize = 8;
/// Memory of all records of all pchannels, roughly.
const MEMORY_BYTES: usize = 64 << 20;

/// What one batch looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Bytes of a message's body.
    pub message_bytes: usize,
    /// Messages in a batch.
    pub messages: u32,
    /// Over how many vchannels the messages go round.
    pub vchannels: u32,
}

/// Whole records of one pchannel, ready to be sent.
///
/// They ask for no deduplication (producer id 0), since a sequence would have to be written into every record, and its
/// meta crc renewed, each time it is sent.
#[derive(Debug)]
pub struct Records {
    records: Vec<Vec<u8>>,
    /// Messages in each.
    pub messages: u32,
    /// Bytes of their bodies in each.
    pub body_bytes: u64,
}

impl BatchShape {
    /// How many messages of `message_bytes` make a record of about `record_bytes`; at least one.
    pub fn messages_in(record_bytes: usize, message_bytes: usize) -> u32 {
        let room = record_bytes.saturating_sub(4 << 10);
        let cost = message_bytes + wire_format::batch::HEADER_BYTES;
        u32::try_from(room / cost).unwrap_or(u32::MAX).max(1)
    }

    /// Bytes of the bodies of a batch.
    pub fn body_bytes(&self) -> u64 {
        self.message_bytes as u64 * u64::from(self.messages)
    }
}

impl Records {
    /// Builds the records of `pchannel`, one of `pchannels`. Bodies are noise.
    ///
    /// # Errors
    /// When the shape is over the limits of the format.
    pub fn build(pchannel: &str, shape: BatchShape, pchannels: usize) -> Result<Self, BenchError> {
        let bytes = usize::try_from(shape.body_bytes()).unwrap_or(usize::MAX);
        let variants = (MEMORY_BYTES / bytes.max(1) / pchannels.max(1)).clamp(1, VARIANTS_MAX);
        let mut builder = BatchBuilder::new(pchannel, Limits::default())?;
        let mut body = vec![0; shape.message_bytes];
        let mut records = Vec::with_capacity(variants);
        let mut turn = 0;
        for _ in 0..variants {
            for _ in 0..shape.messages {
                rand::fill(body.as_mut_slice());
                let vchannel = vchannel_name(turn % shape.vchannels.max(1));
                builder.push(&vchannel, MessageType::INSERT, [], &body)?;
                turn = turn.wrapping_add(1);
            }
            records.push(builder.finish(Origin::default())?.to_bytes());
        }
        Ok(Self {
            records,
            messages: shape.messages,
            body_bytes: shape.body_bytes(),
        })
    }

    /// Record number `turn`, round and round.
    pub fn get(&self, turn: u64) -> &[u8] {
        &self.records[(turn % self.records.len() as u64) as usize]
    }
}

/// The name of pchannel number `index`.
pub fn pchannel_name(index: usize) -> String {
    format!("bench-{index:03}")
}

/// The name of vchannel number `index`; all have the same length.
pub fn vchannel_name(index: u32) -> String {
    format!("collection_{index:05}")
}

#[cfg(test)]
mod tests {
    use wire_format::batch::{Door, verify};

    use super::*;

    #[test]
    fn records_pass_the_door_and_go_round_the_vchannels() {
        let shape = BatchShape {
            message_bytes: 100,
            messages: 12,
            vchannels: 4,
        };
        let records = Records::build("p", shape, 1).unwrap();
        for turn in 0..9 {
            let view = verify(records.get(turn), Door::Producer, &Limits::default()).unwrap();
            assert_eq!((view.count(), view.vchannel_count()), (12, 4));
            assert_eq!(view.payload().len() as u64, records.body_bytes);
        }
        assert_eq!(records.get(0), records.get(VARIANTS_MAX as u64));
        assert_ne!(records.get(0), records.get(1));
    }

    #[test]
    fn a_record_of_a_mebibyte_fits_one() {
        for message_bytes in [1, 256, 1_024, 2 << 20] {
            let shape = BatchShape {
                message_bytes,
                messages: BatchShape::messages_in(1 << 20, message_bytes),
                vchannels: 4,
            };
            let length = Records::build("p", shape, 1).unwrap().get(0).len();
            assert!(length <= (1 << 20) || shape.messages == 1, "{message_bytes}: {length}");
        }
    }
}
