//! The whole: a machine with two clocks, one node, its disk, its clients, and a book of what was promised to whom.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use lognode_core::{
    AppendRequest, BatchFacts, Cursor, LogView, Position, Reading, RetentionLimits, Sequenced, Step, retention,
};
use wire_format::{Bytes, Millis, Offset, Timetick};

use crate::clients::{Producer, Reader};
use crate::disk::{Checkpoint, Disk};
use crate::node::{LIMITS, Node, Waiting};
use crate::random::Random;

/// A message as its producer knows it.
pub type Key = (u64, u32, u64);

pub struct World {
    pub random: Random,
    pub boot_ms: u64,
    pub wall_ms: u64,
    pub boot_id: [u8; 16],
    pub disk: Disk,
    pub node: Node,
    pub producers: Vec<Producer>,
    pub readers: Vec<Reader>,
    pub counts: Counts,
    pub trace: DefaultHasher,
    /// What producers were told.
    pub acked: HashMap<Key, Position>,
    /// What readers were shown, by base offset of the batch.
    pub shown: BTreeMap<u64, BatchFacts>,
    /// The largest tick that any reader was told.
    pub told: Timetick,
}

/// How much happened: a simulation that does nothing proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub acked: u64,
    pub duplicates: u64,
    pub delivered: u64,
    pub ticks: u64,
    pub crashes: u64,
    pub reopened: u64,
    pub truncated: u64,
    pub from_log: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.acked += other.acked;
        self.duplicates += other.duplicates;
        self.delivered += other.delivered;
        self.ticks += other.ticks;
        self.crashes += other.crashes;
        self.reopened += other.reopened;
        self.truncated += other.truncated;
        self.from_log += other.from_log;
    }
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (boot_ms, wall_ms) = (random.below(100_000), 1_000_000_000 + random.below(1_000_000));
        let mut disk = Disk::new();
        let boot_id = [1; 16];
        let node = Node::start(
            &mut disk,
            Reading {
                boot: Millis(boot_ms),
                wall: Millis(wall_ms),
            },
            boot_id,
        );
        let producers = (1..=2 + random.below(3)).map(Producer::new).collect();
        let readers = (0..4).map(Reader::new).collect();
        Self {
            random,
            boot_ms,
            wall_ms,
            boot_id,
            disk,
            node,
            producers,
            readers,
            counts: Counts::default(),
            trace: DefaultHasher::new(),
            acked: HashMap::new(),
            shown: BTreeMap::new(),
            told: Timetick::ZERO,
        }
    }

    /// A number that two runs share only if they did the same.
    pub fn trace(&self) -> u64 {
        self.trace.finish()
    }

    pub fn reading(&self) -> Reading {
        Reading {
            boot: Millis(self.boot_ms),
            wall: Millis(self.wall_ms),
        }
    }

    fn note(&mut self, event: &str, value: impl Hash) {
        event.hash(&mut self.trace);
        value.hash(&mut self.trace);
    }

    /// One random event.
    pub fn step(&mut self) {
        match self.random.below(100) {
            0..=24 => self.produce(),
            25..=34 => drop(self.node.seal(&mut self.disk)),
            35..=49 => self.finish_write(),
            50..=69 => self.pass_time(),
            70..=88 => self.read(),
            89..=91 => self.reconnect_producer(),
            92 => self.metadata_done(),
            93 | 94 => self.jump_wall(),
            95 => self.checkpoint(),
            96 => self.truncate(),
            97 => self.fail_write(),
            98 => self.reborn_producer(),
            _ => self.crash(),
        }
    }

    fn produce(&mut self) {
        let Some(at) = self.random.pick(self.producers.len()) else {
            return;
        };
        let producer = &mut self.producers[at];
        if !producer.connected || producer.outstanding.len() >= LIMITS.window {
            return;
        }
        let request = producer.batch(1 + self.random.below(5) as u32);
        if self.random.chance(5) {
            self.producers[at].connected = false; // The request is lost on its way.
        } else {
            self.send(at, request);
        }
    }

    fn send(&mut self, at: usize, request: AppendRequest) {
        let reading = self.reading();
        let sequenced = self.node.append(reading, &request);
        let position = sequenced.position();
        match sequenced {
            Sequenced::Fresh(_) => {
                assert!(
                    position.first_timetick > self.told,
                    "{position:?} comes after tick {:?} was told",
                    self.told
                );
            }
            Sequenced::Duplicate(_) => self.counts.duplicates += 1,
        }
        self.note(
            "append",
            (
                request.producer.0,
                request.first_sequence.0,
                position.base_offset,
                position.first_timetick,
            ),
        );
        let connection = self.producers[at].connection;
        self.node.waiting.push(Waiting {
            producer: at,
            connection,
            request,
            position,
        });
        self.send_acks();
    }

    pub fn send_acks(&mut self) {
        let durable = self.node.committer.durable();
        let (ready, waiting) = std::mem::take(&mut self.node.waiting)
            .into_iter()
            .partition(|waiting: &Waiting| waiting.position.next_offset() <= durable);
        self.node.waiting = waiting;
        for ack in ready {
            let producer = &mut self.producers[ack.producer];
            if !producer.connected || producer.connection != ack.connection {
                continue;
            }
            if self.random.chance(5) {
                producer.connected = false; // The answer is lost on its way.
                continue;
            }
            assert_eq!(
                producer.outstanding.pop_front(),
                Some(ack.request),
                "acks come in the order of the requests"
            );
            let key = (
                ack.request.producer.0,
                ack.request.epoch.0,
                ack.request.first_sequence.0,
            );
            let earlier = self.acked.insert(key, ack.position);
            assert!(
                earlier.is_none_or(|earlier| earlier == ack.position),
                "{key:?} was acked at two places"
            );
            self.counts.acked += 1;
            self.note("ack", (key, ack.position.base_offset));
        }
    }

    pub fn finish_write(&mut self) {
        let Some(at) = self.random.pick(self.disk.writes.len()) else {
            return;
        };
        let block = self.disk.finish(at);
        let durable = self.node.committer.completed(block);
        self.note("written", (block, durable));
        self.send_acks();
    }

    pub fn pass_time(&mut self) {
        let span = 1 + self.random.below(20);
        self.boot_ms += span;
        self.wall_ms += span;
        self.turn();
    }

    pub fn turn(&mut self) {
        if self.node.ticks.due(Millis(self.boot_ms)) {
            let reading = self.reading();
            let promise = self.node.turn(reading, true);
            self.note("promise", promise.map(|promise| (promise.timetick, promise.upto)));
        }
    }

    fn jump_wall(&mut self) {
        let hours = self.random.below(5).saturating_sub(2) * 3_600_000 + self.random.below(3_000);
        self.wall_ms = if self.random.chance(50) {
            self.wall_ms + hours
        } else {
            self.wall_ms.saturating_sub(hours)
        };
        self.note("wall", self.wall_ms);
    }

    fn metadata_done(&mut self) {
        let well = self.random.chance(80);
        self.node.metadata_done(&mut self.disk, well);
    }

    fn reconnect_producer(&mut self) {
        let Some(at) = self.random.pick(self.producers.len()) else {
            return;
        };
        self.reconnect(at);
    }

    pub fn reconnect(&mut self, at: usize) {
        let producer = &mut self.producers[at];
        producer.connection += 1;
        producer.connected = true;
        for request in producer.outstanding.clone() {
            if self.producers[at].connected {
                self.send(at, request);
            }
        }
    }

    fn reborn_producer(&mut self) {
        let Some(at) = self.random.pick(self.producers.len()) else {
            return;
        };
        self.producers[at].reborn();
        self.reconnect(at);
    }

    fn checkpoint(&mut self) {
        let upto = self.node.committer.durable();
        let producers = self.node.sequencer.dedupe().snapshot(upto);
        self.disk.checkpoint = Some(Checkpoint { upto, producers });
        self.note("checkpoint", upto);
    }

    fn truncate(&mut self) {
        let Some(checkpoint) = &self.disk.checkpoint else {
            return;
        };
        let kept = self.disk.first_kept;
        let to = Offset(kept.0 + self.random.below(checkpoint.upto.0.saturating_sub(kept.0) + 1));
        let limits = RetentionLimits {
            truncate_to: Some(to),
            ..RetentionLimits::default()
        };
        let whole = retention::SegmentFacts {
            index: 0,
            base_offset: kept,
            next_offset: self.node.committer.durable(),
            bytes: Bytes(1),
            last_timetick: self.node.committer.durable_timetick(),
            sealed: false,
        };
        let plan = retention::plan(self.node.clock.current(), &[whole], kept, &limits, &[]).first_kept;
        assert_eq!(plan, to);
        self.disk.truncate(to, self.node.committer.durable_timetick());
        self.counts.truncated += 1;
        self.note("truncate", to);
    }

    /// A write comes back with an error: its data may be there or not, and a later sync may even claim that all is well. The
    /// pchannel stops and is opened anew from the disk, under a new term.
    fn fail_write(&mut self) {
        let Some(at) = self.random.pick(self.disk.writes.len()) else {
            return;
        };
        let failed = match self.random.chance(50) {
            true => self.disk.finish(at),
            false => self.disk.writes.swap_remove(at).block,
        };
        self.node.committer.failed(failed);
        assert!(!self.node.committer.may_seal(true, Bytes::ZERO));
        if self.random.chance(50) {
            self.node.committer.completed(failed);
        }
        while let Some(at) = self.random.pick(self.disk.writes.len()) {
            if self.random.chance(50) {
                break;
            }
            let block = self.disk.finish(at);
            self.node.committer.completed(block);
        }
        self.send_acks();
        self.disk.crash(&mut self.random);
        let (clock, mark, storing) = (self.node.clock, self.node.mark, self.node.storing);
        self.disk.metadata.boots += 1;
        let term = wire_format::Term(self.disk.metadata.boots);
        self.node = Node::open(&self.disk, clock, mark, term);
        self.node.storing = storing;
        self.counts.reopened += 1;
        self.after_loss("reopen");
    }

    /// kill -9 or a power cut.
    pub fn crash(&mut self) {
        if let Some((mark, clock)) = self.node.storing.take().filter(|_| self.random.chance(50)) {
            self.disk.store_metadata(mark, clock);
        }
        self.disk.crash(&mut self.random);
        if self.random.chance(30) {
            self.boot_id[0] = self.boot_id[0].wrapping_add(1).max(1);
            self.boot_ms = self.random.below(5_000);
            self.jump_wall();
        } else {
            // A restart may come within the same millisecond.
            let span = self.random.below(3) * self.random.below(500);
            self.boot_ms += span;
            self.wall_ms += span;
        }
        if self.random.chance(20) {
            self.jump_wall();
        }
        let reading = self.reading();
        self.node = Node::start(&mut self.disk, reading, self.boot_id);
        self.counts.crashes += 1;
        self.after_loss("crash");
    }

    fn after_loss(&mut self, event: &str) {
        self.producers
            .iter_mut()
            .for_each(|producer| producer.connected = false);
        self.readers.iter_mut().for_each(|reader| reader.connected = false);
        self.note(
            event,
            (
                self.disk.end(),
                self.node.clock.current(),
                self.node.sequencer.last_timetick(),
            ),
        );
        self.check_log();
    }

    fn read(&mut self) {
        let Some(at) = self.random.pick(self.readers.len()) else {
            return;
        };
        match self.random.below(100) {
            0 | 1 => self.readers[at].connected = false,
            2 => {
                let kept = self.disk.first_kept;
                self.readers[at].restart_at(kept);
            }
            3..=30 => self.readers[at].cursor.grant(Bytes(self.random.below(100))),
            _ => drop(self.read_step(at)),
        }
    }

    /// One step of a reader; false when it had nothing to do.
    pub fn read_step(&mut self, at: usize) -> bool {
        let reader = &mut self.readers[at];
        if !reader.connected {
            reader.cursor = Cursor::new(reader.next);
            reader.cursor.grant(Bytes(50));
            reader.connected = true;
            reader.last = Timetick::ZERO; // A tick may repeat what an earlier connection was told.
        }
        let durable = self.node.committer.durable();
        let tail_first = Offset(durable.0.saturating_sub(self.random.below(20))).max(self.disk.first_kept);
        let view = LogView {
            first_kept: self.disk.first_kept,
            tail_first,
            durable,
            promise: self.node.promise,
        };
        let step = reader.cursor.step(Millis(self.boot_ms), &view);
        match step {
            Step::Wait => return false,
            Step::Truncated { first_kept } => {
                assert!(first_kept == self.disk.first_kept && reader.next < first_kept);
                reader.restart_at(first_kept);
            }
            Step::Tick(tick) => self.told(at, tick),
            Step::FromTail { at: offset } | Step::FromLog { at: offset } => {
                assert_eq!(matches!(step, Step::FromTail { .. }), offset >= tail_first);
                self.counts.from_log += u64::from(offset < tail_first);
                self.deliver(at, offset);
            }
        }
        true
    }

    fn told(&mut self, at: usize, tick: Timetick) {
        let reader = &mut self.readers[at];
        assert!(
            tick >= reader.last,
            "tick {tick:?} is below a message {:?} that was delivered",
            reader.last
        );
        reader.ticked = reader.ticked.max(tick);
        let next = reader.next;
        let on_disk = self
            .disk
            .log
            .values()
            .chain(self.disk.writes.iter().flat_map(|write| &write.batches));
        for batch in on_disk
            .chain(&self.node.filling)
            .filter(|batch| batch.base_offset >= next)
        {
            assert!(
                batch.first_timetick > tick,
                "reader at {next} was told {tick:?} before it got {batch:?}"
            );
        }
        self.told = self.told.max(tick);
        self.counts.ticks += 1;
        self.note("tick", (at, tick));
    }

    fn deliver(&mut self, at: usize, offset: Offset) {
        let reader = &mut self.readers[at];
        assert_eq!(offset, reader.next);
        let batch = self.disk.batch_at(offset).expect("what is durable is on the disk");
        let next = batch.base_offset.plus(u64::from(batch.count));
        assert!(next <= self.node.committer.durable());
        assert!(
            batch.first_timetick > reader.ticked,
            "{batch:?} after tick {:?}",
            reader.ticked
        );
        if reader.wants(batch.producer) {
            reader
                .cursor
                .delivered(next, batch.last_timetick, Bytes(10))
                .expect("the batch is in order");
            assert!(batch.first_timetick > reader.last);
            reader.last = batch.last_timetick;
            self.counts.delivered += 1;
            let earlier = self.shown.insert(batch.base_offset.0, batch);
            assert!(
                earlier.is_none_or(|earlier| earlier == batch),
                "{earlier:?} was shown, now {batch:?}"
            );
        } else {
            reader
                .cursor
                .skipped(next, batch.last_timetick)
                .expect("the batch is in order");
        }
        reader.next = next;
        self.note("deliver", (at, next));
    }
}
