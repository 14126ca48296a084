//! The world judged: what must hold after every loss, and what must come to its end once no more faults come.

use std::collections::HashMap;

use lognode_core::BatchFacts;
use wire_format::{Bytes, Millis, Offset, ProducerId, Timetick};

use crate::world::{Key, World};

impl World {
    /// The book against the disk: dense, growing, every ack and everything shown still there, nothing twice.
    pub fn check_log(&self) {
        let mut seen: HashMap<Key, Offset> = HashMap::new();
        let mut before: Option<BatchFacts> = None;
        for batch in self.disk.log.values() {
            if let Some(before) = before {
                assert_eq!(
                    batch.base_offset,
                    before.base_offset.plus(u64::from(before.count)),
                    "offsets are dense"
                );
                assert!(
                    batch.first_timetick > before.last_timetick,
                    "{batch:?} after {before:?}"
                );
                assert!(batch.first_timetick > batch.promised_timetick);
            }
            before = Some(*batch);
            assert_ne!(batch.producer, ProducerId::ZERO);
            for message in 0..u64::from(batch.count) {
                let key = (batch.producer.0, batch.epoch.0, batch.first_sequence.0 + message);
                let twice = seen.insert(key, batch.base_offset.plus(message));
                assert_eq!(twice, None, "{key:?} is stored twice");
            }
        }
        for (key, position) in self.acked.iter().filter(|(_, p)| p.base_offset >= self.disk.first_kept) {
            let stored = self.disk.log.get(&position.base_offset.0);
            let stored = stored.map(|b| ((b.producer.0, b.epoch.0, b.first_sequence.0), b.count, b.first_timetick));
            assert_eq!(
                stored,
                Some((*key, position.count, position.first_timetick)),
                "an acked batch is lost"
            );
        }
        for (base, batch) in self.shown.range(self.disk.first_kept.0..) {
            assert_eq!(self.disk.log.get(base), Some(batch), "a batch that was shown is lost");
        }
    }

    /// No more faults: everything must come to its end within a second, and every reader to the newest tick.
    pub fn settle(&mut self) {
        for _ in 0..100 {
            self.boot_ms += 10;
            self.wall_ms += 10;
            self.node.metadata_done(&mut self.disk, true);
            (0..self.producers.len())
                .filter(|at| !self.producers[*at].connected)
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|at| self.reconnect(at));
            self.node.seal(&mut self.disk);
            while !self.disk.writes.is_empty() {
                self.finish_write();
            }
            self.turn();
            for at in 0..self.readers.len() {
                self.readers[at].cursor.grant(Bytes(100));
                while self.read_step(at) {}
            }
        }
        self.check_log();
        let end = self.node.sequencer.next_offset();
        assert!(
            self.producers.iter().all(|producer| producer.outstanding.is_empty()),
            "a batch was never answered"
        );
        assert!(
            self.readers.iter().all(|reader| reader.next == end),
            "a reader did not reach the end"
        );
        let fresh = Timetick::from_physical(Millis(self.node.clock.current().physical().0 - 100));
        let late = self
            .readers
            .iter()
            .find(|reader| reader.ticked < fresh)
            .map(|reader| reader.ticked);
        assert_eq!(
            late,
            None,
            "a reader has an old tick; time is {:?}",
            self.node.clock.current()
        );
    }
}
