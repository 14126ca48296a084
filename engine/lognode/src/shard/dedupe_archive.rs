//! The deduplication table as bytes of a checkpoint: an rkyv archive.

use lognode_core::{BatchSnapshot, ProducerSnapshot};
use rkyv::{Archive, Deserialize, Serialize, rancor, util::AlignedVec};
use wire_format::{Offset, ProducerEpoch, ProducerId, Sequence, Timetick};

#[derive(Archive, Serialize, Deserialize)]
struct StoredBatch {
    first_sequence: u64,
    base_offset: u64,
    first_timetick: u64,
    count: u32,
}

#[derive(Archive, Serialize, Deserialize)]
struct StoredProducer {
    producer: u64,
    next_sequence: u64,
    epoch: u32,
    batches: Vec<StoredBatch>,
}

/// The bytes of a table.
pub fn to_bytes(producers: &[ProducerSnapshot]) -> Vec<u8> {
    let stored: Vec<StoredProducer> = producers
        .iter()
        .map(|p| StoredProducer {
            producer: p.producer.get(),
            next_sequence: p.next_sequence.get(),
            epoch: p.epoch.get(),
            batches: p
                .batches
                .iter()
                .map(|b| StoredBatch {
                    first_sequence: b.first_sequence.get(),
                    base_offset: b.base_offset.get(),
                    first_timetick: b.first_timetick.get(),
                    count: b.count,
                })
                .collect(),
        })
        .collect();
    // Plain numbers into memory: this can't fail, and an empty state would only cost a longer replay.
    rkyv::to_bytes::<rancor::Error>(&stored)
        .map(|bytes| bytes.to_vec())
        .unwrap_or_default()
}

/// The table of some bytes; an error text if they are none.
pub fn from_bytes(bytes: &[u8]) -> Result<Vec<ProducerSnapshot>, String> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let mut aligned: AlignedVec = AlignedVec::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    let stored = rkyv::from_bytes::<Vec<StoredProducer>, rancor::Error>(&aligned).map_err(|e| e.to_string())?;
    let batch = |b: StoredBatch| BatchSnapshot {
        first_sequence: Sequence(b.first_sequence),
        count: b.count,
        base_offset: Offset(b.base_offset),
        first_timetick: Timetick(b.first_timetick),
    };
    let producer = |p: StoredProducer| ProducerSnapshot {
        producer: ProducerId(p.producer),
        epoch: ProducerEpoch(p.epoch),
        next_sequence: Sequence(p.next_sequence),
        batches: p.batches.into_iter().map(batch).collect(),
    };
    Ok(stored.into_iter().map(producer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_comes_back() {
        let batch = BatchSnapshot {
            first_sequence: Sequence(3),
            count: 2,
            base_offset: Offset(9),
            first_timetick: Timetick(5),
        };
        let producer = ProducerSnapshot {
            producer: ProducerId(1),
            epoch: ProducerEpoch(2),
            next_sequence: Sequence(5),
            batches: vec![batch],
        };
        assert_eq!(
            from_bytes(&to_bytes(std::slice::from_ref(&producer))),
            Ok(vec![producer])
        );
        assert!(from_bytes(&[1, 2, 3]).is_err());
    }
}
