//! The pipeline against a model of the server and of a bad network, by property.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use wire_format::{Millis, Offset, Timetick};

use super::*;

const WINDOW: usize = 4;
/// Longer than any run of the calm end.
const LONG: Duration = Duration::from_secs(1_000_000);

/// One batch as it travels.
#[derive(Debug, Clone, Copy)]
struct Copy {
    request: u64,
    id: usize,
    count: u32,
    origin: Origin,
}

#[derive(Debug, Clone)]
enum Answer {
    Ack(u64, Ack),
    Refusal(u64, Refusal),
}

/// What a server remembers of the one producer.
#[derive(Debug, Default)]
struct Known {
    epoch: u32,
    next: u64,
    /// First sequence -> count, offset.
    batches: Vec<(u64, u32, u64)>,
}

/// Stores batches by the rules of the design: dense per epoch, a larger epoch fences, retries are answered with the first position.
#[derive(Debug, Default)]
struct Server {
    known: Option<Known>,
    /// Batch ids as stored.
    log: Vec<usize>,
    next_offset: u64,
    /// Refuse the next batch so, once.
    mood: Option<(RefusalCode, bool)>,
    /// Batches that are over a limit from now on.
    poison: Vec<usize>,
    remembers: usize,
}

impl Server {
    fn handle(&mut self, copy: Copy) -> Answer {
        let refuse = |code| {
            let mut refusal = Refusal::new(code, "no");
            refusal.retry_after = Millis(3);
            Answer::Refusal(copy.request, refusal)
        };
        if self.poison.contains(&copy.id) {
            return refuse(RefusalCode::TooLarge);
        }
        let (epoch, sequence) = (copy.origin.producer_epoch.0, copy.origin.first_sequence.0);
        if self.known.is_none() && sequence != 0 {
            return refuse(RefusalCode::WindowOver);
        }
        let known = self.known.get_or_insert_default();
        if epoch < known.epoch {
            return refuse(RefusalCode::ProducerFenced);
        }
        let expected = if epoch > known.epoch { 0 } else { known.next };
        if sequence > expected {
            let mut refusal = Refusal::new(RefusalCode::SequenceGap, "gap");
            refusal.expected_sequence = Sequence(expected);
            return Answer::Refusal(copy.request, refusal);
        }
        if sequence < expected {
            return match known.batches.iter().find(|b| b.0 == sequence) {
                Some(&(_, count, offset)) => {
                    assert_eq!(count, copy.count, "a retry has the boundaries of the first try");
                    self.ack(copy, offset, true)
                }
                None => refuse(RefusalCode::WindowOver),
            };
        }
        match self.mood.take() {
            Some((code, stored)) => {
                // Only what may have reached the disk can be refused and stored at once.
                if stored && code != RefusalCode::RateLimited {
                    self.store(copy);
                }
                refuse(code)
            }
            None => {
                let offset = self.store(copy);
                self.ack(copy, offset, false)
            }
        }
    }

    fn store(&mut self, copy: Copy) -> u64 {
        let offset = self.next_offset;
        let known = self.known.get_or_insert_default();
        if copy.origin.producer_epoch.0 != known.epoch {
            *known = Known {
                epoch: copy.origin.producer_epoch.0,
                ..Known::default()
            };
        }
        known.next = copy.origin.first_sequence.0 + u64::from(copy.count);
        known.batches.push((copy.origin.first_sequence.0, copy.count, offset));
        if known.batches.len() > self.remembers {
            known.batches.remove(0);
        }
        self.log.push(copy.id);
        self.next_offset += u64::from(copy.count);
        offset
    }

    fn ack(&self, copy: Copy, offset: u64, duplicate: bool) -> Answer {
        let ack = Ack {
            base_offset: Offset(offset),
            first_timetick: Timetick(offset + 1),
            count: copy.count,
            duplicate,
        };
        Answer::Ack(copy.request, ack)
    }
}

/// What a caller was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Acked,
    Failed(Outcome),
}

struct World {
    pipeline: Pipeline<usize>,
    server: Server,
    now: Instant,
    up: bool,
    to_server: VecDeque<Copy>,
    to_client: VecDeque<Answer>,
    /// What dead connections still hold on the server's side, oldest first.
    late: VecDeque<VecDeque<Copy>>,
    counts: Vec<u32>,
    told: BTreeMap<usize, Told>,
    done: BTreeMap<usize, u32>,
    faults_allowed: bool,
    stopped: bool,
}

impl World {
    fn new(remembers: usize) -> Self {
        Self {
            pipeline: Pipeline::new(ProducerId(9), ProducerEpoch(0), WINDOW),
            server: Server {
                remembers,
                ..Server::default()
            },
            now: Instant::now(),
            up: false,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            late: VecDeque::new(),
            counts: Vec::new(),
            told: BTreeMap::new(),
            done: BTreeMap::new(),
            faults_allowed: false,
            stopped: false,
        }
    }

    fn admit(&mut self, count: u32, patience: Duration) {
        let id = self.counts.len();
        self.counts.push(count);
        self.pipeline.admit(id, count, self.now + patience);
    }

    fn connect(&mut self) {
        if !self.up {
            self.up = true;
            self.pipeline.on_connected();
        }
    }

    fn disconnect(&mut self) {
        if self.up {
            self.up = false;
            self.pipeline.on_disconnected();
            self.to_client.clear();
            self.late.push_back(std::mem::take(&mut self.to_server));
        }
    }

    fn send(&mut self) -> bool {
        let Some(dispatch) = self.pipeline.next_send(self.now) else {
            return false;
        };
        let id = *dispatch.load;
        self.to_server.push_back(Copy {
            request: dispatch.request,
            id,
            count: self.counts[id],
            origin: dispatch.origin,
        });
        assert!(self.to_server.len() <= WINDOW);
        true
    }

    fn serve(&mut self) -> bool {
        let Some(copy) = self.to_server.pop_front() else {
            return false;
        };
        let answer = self.server.handle(copy);
        self.to_client.push_back(answer);
        true
    }

    /// The server gets to what a dead connection left behind; nobody hears its answer.
    fn serve_late(&mut self) {
        let Some(oldest) = self.late.front_mut() else {
            return;
        };
        match oldest.pop_front() {
            Some(copy) => {
                // What was refused as missing its predecessor may now be taken: answers then contradict each other.
                self.faults_allowed = true;
                drop(self.server.handle(copy));
            }
            None => drop(self.late.pop_front()),
        }
    }

    fn hear(&mut self) -> bool {
        let Some(answer) = self.to_client.pop_front() else {
            return false;
        };
        let step = match answer {
            Answer::Ack(request, ack) => match self.pipeline.on_ack(request, &ack) {
                Ok(done) => {
                    if let Some(id) = done {
                        self.finish(id, Told::Acked);
                    }
                    Ok(Then::Continue)
                }
                Err(fault) => Err(fault),
            },
            Answer::Refusal(request, refusal) => self.pipeline.on_refusal(request, &refusal).map(|step| {
                for (id, outcome) in step.failed {
                    self.finish(id, Told::Failed(outcome));
                }
                step.then
            }),
        };
        match step {
            Ok(Then::Continue) => {}
            Ok(Then::Pause) => self.pipeline.pause(self.now + Duration::from_millis(3)),
            Ok(Then::Reconnect) => self.disconnect(),
            Ok(Then::Stop) => self.stopped = true,
            Err(fault) => {
                assert!(self.faults_allowed, "an honest server was called faulty: {fault:?}");
                self.disconnect();
            }
        }
        true
    }

    fn finish(&mut self, id: usize, told: Told) {
        *self.done.entry(id).or_default() += 1;
        assert_eq!(self.done[&id], 1, "batch {id} left the pipeline twice");
        self.told.entry(id).or_insert(told);
    }

    fn pass(&mut self, span: Duration) {
        self.now += span;
        let (mut tell, mut dropped) = (Vec::new(), Vec::new());
        self.pipeline
            .expire(self.now, |&mut id| tell.push(id), |id| dropped.push(id));
        for id in tell {
            let before = self.told.insert(id, Told::Failed(Outcome::Unknown));
            assert_eq!(before, None, "batch {id} was told twice");
        }
        for id in dropped {
            self.finish(id, Told::Failed(Outcome::NotStored));
        }
        if let Some(deadline) = self.pipeline.next_deadline() {
            assert!(deadline > self.now, "a caller was not told in time");
        }
    }

    /// From now on nothing goes wrong: all must come to an end.
    fn calm(&mut self) {
        self.server.mood = None;
        for _ in 0..2_000 {
            self.connect();
            while self.send() {}
            while self.serve() {}
            while self.hear() {}
            if self.stopped || self.pipeline.slots.is_empty() {
                break;
            }
            self.pass(Duration::from_millis(5));
        }
        while !self.late.is_empty() {
            self.serve_late();
        }
    }

    fn check(&self) {
        assert!(!self.stopped, "nobody fenced this producer");
        assert!(
            self.pipeline.slots.is_empty(),
            "did not come to an end: {:?}",
            self.pipeline
        );
        assert!(
            self.server.log.is_sorted(),
            "stored out of order: {:?}",
            self.server.log
        );
        let twice = self.server.log.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None, "stored twice: {:?}", self.server.log);
        for id in 0..self.counts.len() {
            let stored = self.server.log.contains(&id);
            match self.told.get(&id) {
                Some(Told::Acked) => assert!(stored, "batch {id} was acked and is not stored"),
                Some(Told::Failed(Outcome::NotStored)) => assert!(!stored, "batch {id} was denied and is stored"),
                Some(Told::Failed(Outcome::Unknown)) => {}
                None => panic!("the caller of batch {id} was never told"),
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Admit { count: u32, patience_ms: u64 },
    Send,
    Serve,
    ServeLate,
    Hear,
    Connect,
    Disconnect,
    Pass { ms: u64 },
    Refuse { code: RefusalCode, stored: bool },
    Poison { back: usize },
    Forget,
}

fn acts(faults: bool, deadlines: bool, rejects: bool) -> impl Strategy<Value = Vec<Act>> {
    let patience = if deadlines {
        1..60u64
    } else {
        1_000_000_000..1_000_000_001
    };
    let moods = prop_oneof![
        Just(RefusalCode::RateLimited),
        Just(RefusalCode::LogFailed),
        Just(RefusalCode::ShuttingDown),
        Just(RefusalCode::DiskFull),
    ];
    let weight = |on: bool, weight: u32| if on { weight } else { 1 };
    let act = prop_oneof![
        8 => (1..4u32, patience).prop_map(|(count, patience_ms)| Act::Admit { count, patience_ms }),
        12 => Just(Act::Send),
        12 => Just(Act::Serve),
        12 => Just(Act::Hear),
        6 => Just(Act::Connect),
        4 => (0..10u64).prop_map(|ms| Act::Pass { ms }),
        weight(faults, 3) => if faults { Just(Act::Disconnect).boxed() } else { Just(Act::Connect).boxed() },
        3 => Just(Act::ServeLate),
        weight(faults, 3) => if faults {
            (moods, any::<bool>()).prop_map(|(code, stored)| Act::Refuse { code, stored }).boxed()
        } else {
            Just(Act::Connect).boxed()
        },
        1 => if rejects { (0..4usize).prop_map(|back| Act::Poison { back }).boxed() } else { Just(Act::Send).boxed() },
        1 => if rejects { Just(Act::Forget).boxed() } else { Just(Act::Send).boxed() },
    ];
    prop::collection::vec(act, 1..200)
}

fn play(acts: &[Act], remembers: usize) -> World {
    let mut world = World::new(remembers);
    for &act in acts {
        match act {
            Act::Admit { count, patience_ms } => world.admit(count, Duration::from_millis(patience_ms).min(LONG)),
            Act::Send => drop(world.send()),
            Act::Serve => drop(world.serve()),
            Act::ServeLate => world.serve_late(),
            Act::Hear => drop(world.hear()),
            Act::Connect => world.connect(),
            Act::Disconnect => world.disconnect(),
            Act::Pass { ms } => world.pass(Duration::from_millis(ms)),
            Act::Refuse { code, stored } => {
                // Stored and then refused with the connection kept: the answers behind it contradict the refusal.
                world.faults_allowed |= code == RefusalCode::DiskFull && stored;
                world.server.mood = Some((code, stored));
            }
            Act::Poison { back } => {
                let last = world.counts.len();
                world.server.poison.extend(last.checked_sub(1 + back));
            }
            // A server that forgets a producer with batches on their way can't keep them from being stored twice.
            Act::Forget => {
                if world.pipeline.numbered == 0 {
                    world.disconnect();
                    world.late.clear();
                    world.server.known = None;
                }
            }
        }
    }
    world.calm();
    world
}

/// Few cases for every day; `PROPTEST_CASES=20000` for a long run.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(300),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn nothing_is_lost_doubled_or_reordered(acts in acts(true, false, false)) {
        let world = play(&acts, 64);
        world.check();
        // Nobody's time was over and nothing was over a limit: all must be acked.
        prop_assert_eq!(world.server.log.len(), world.counts.len());
        prop_assert!(world.told.values().all(|told| *told == Told::Acked));
    }

    #[test]
    fn what_a_caller_is_told_is_true(acts in acts(true, true, true)) {
        play(&acts, 64).check();
    }

    #[test]
    fn a_server_with_a_short_memory_leaves_doubt_but_no_lie(acts in acts(true, true, true)) {
        play(&acts, 1).check();
    }

    #[test]
    fn without_faults_only_a_limit_fails_a_batch(acts in acts(false, false, true)) {
        let world = play(&acts, 64);
        world.check();
        for (id, told) in &world.told {
            if *told != Told::Acked {
                prop_assert!(world.server.poison.contains(id), "batch {} failed: {:?}", id, told);
            }
        }
    }

    /// A hostile server answers anything to anything: no panic, no hang, no caller told twice.
    #[test]
    fn lies_end_in_faults(lies in prop::collection::vec((0..6u64, 0..20u16, 0..9u64, 0..3u32), 1..120)) {
        let mut world = World::new(64);
        world.faults_allowed = true;
        for (request, code, sequence, count) in lies {
            world.admit(1 + count, Duration::from_millis(20));
            world.connect();
            while world.send() {}
            let due = world.pipeline.outstanding.front().map_or(0, |due| due.0);
            let request = due + request.saturating_sub(4);
            let mut refusal = Refusal::new(RefusalCode::from_number(code), "lie");
            refusal.expected_sequence = Sequence(sequence);
            let ack = Ack { base_offset: Offset(0), first_timetick: Timetick(0), count, duplicate: false };
            world.to_client.push_back(if code == 0 { Answer::Ack(request, ack) } else { Answer::Refusal(request, refusal) });
            world.to_server.clear();
            world.hear();
            world.pass(Duration::from_millis(1));
        }
        world.pass(LONG);
        let mut left = world.pipeline.drain();
        prop_assert!(left.iter().all(|(id, _)| world.told.contains_key(id)));
        left.retain(|(id, _)| world.done.contains_key(id));
        prop_assert!(left.is_empty());
    }
}

#[test]
fn a_refused_batch_makes_room_for_those_behind_it_in_a_new_epoch() {
    let mut world = World::new(64);
    world.connect();
    (0..3).for_each(|_| world.admit(2, LONG));
    world.server.poison.push(0);
    world.calm();
    world.check();
    assert_eq!(world.told[&0], Told::Failed(Outcome::NotStored));
    assert_eq!(world.server.log, [1, 2]);
    assert_eq!(world.server.known.as_ref().unwrap().epoch, 1);
}

#[test]
fn a_batch_told_unknown_is_still_stored_before_those_behind_it() {
    let mut world = World::new(64);
    world.connect();
    world.admit(1, Duration::from_millis(5));
    assert!(world.send());
    world.disconnect();
    world.late.clear();
    world.pass(Duration::from_millis(10));
    assert_eq!(world.told[&0], Told::Failed(Outcome::Unknown));
    world.admit(1, LONG);
    world.calm();
    world.check();
    assert_eq!(world.server.log, [0, 1]);
}

#[test]
fn a_batch_that_was_only_ever_rate_limited_is_known_not_to_be_stored() {
    let mut world = World::new(64);
    world.connect();
    world.admit(1, Duration::from_millis(5));
    world.admit(1, Duration::from_millis(50));
    world.server.mood = Some((RefusalCode::RateLimited, false));
    while world.send() {}
    while world.serve() {}
    while world.hear() {}
    world.pass(Duration::from_millis(6));
    assert_eq!(world.told[&0], Told::Failed(Outcome::NotStored));
    world.calm();
    world.check();
    assert_eq!(world.told[&1], Told::Acked);
    assert_eq!(world.server.log, [1]);
}

#[test]
fn a_try_that_was_given_up_may_still_be_stored_by_a_late_copy() {
    let mut world = World::new(1);
    world.connect();
    (0..3).for_each(|_| world.admit(1, LONG));
    world.server.mood = Some((RefusalCode::RateLimited, false));
    while world.send() {}
    assert!(world.serve() && world.hear());
    // The copies of batches 1 and 2 are still on their way when the connection breaks; both are taken once 0 is stored.
    world.disconnect();
    world.pass(Duration::from_millis(5));
    world.connect();
    assert!(world.send() && world.serve());
    world.serve_late();
    world.serve_late();
    assert_eq!(world.server.log, [0, 1, 2]);
    world.calm();
    world.check();
    // By then the server remembers only the last one: of batch 1 nobody can tell.
    assert_eq!(world.told[&1], Told::Failed(Outcome::Unknown));
    assert_eq!(world.told[&2], Told::Acked);
}

#[test]
fn a_retry_refused_for_now_says_nothing_of_its_earlier_try() {
    let mut world = World::new(64);
    world.connect();
    world.admit(1, Duration::from_millis(10));
    assert!(world.send());
    world.disconnect();
    world.connect();
    world.server.mood = Some((RefusalCode::RateLimited, false));
    assert!(world.send() && world.serve() && world.hear());
    world.serve_late();
    world.pass(Duration::from_millis(20));
    assert_eq!(world.told[&0], Told::Failed(Outcome::Unknown));
    world.calm();
    world.check();
    assert_eq!(world.server.log, [0]);
}
