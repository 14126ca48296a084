//! A random life of a log against a model: every acked message is there after any crash, once, in order.
//!
//! A crash here is worse than a kill: the files are copied while writes are in flight, and of what was not acked at that
//! moment any part is then put back to what the file held before, byte range by byte range, as a power cut may leave it.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use backends::local::LocalDurable;

use super::*;

const BLOCKS_BYTES: u64 = 80 << 10;

/// A block that is not acked yet.
struct InFlight {
    durable: Pin<Box<LocalDurable>>,
    end: u64,
    file: PathBuf,
    position: u64,
    /// What the file held at its place before.
    before: Vec<u8>,
}

/// What the log must hold: everything appended so far, of which a part is acked.
#[derive(Default)]
struct Model {
    messages: Vec<Message>,
    acked: u64,
    first: u64,
    /// The largest offset that a truncation was asked for: it may have happened.
    first_asked: u64,
}

struct Life {
    log: LocalWal,
    writer: Writer,
    in_flight: VecDeque<InFlight>,
    end_position: u64,
    file: PathBuf,
}

impl Life {
    async fn append(&mut self, model: &mut Model, random: &mut StdRng) {
        let lengths: Vec<Vec<usize>> = (0..random.random_range(1..4))
            .map(|_| {
                (0..random.random_range(1..4))
                    .map(|_| random.random_range(0..6_000))
                    .collect()
            })
            .collect();
        let records: Vec<&[usize]> = lengths.iter().map(Vec::as_slice).collect();
        let (block, messages) = self.writer.block(&records);
        let len = block.disk_len();
        let next_file = segment_path(
            self.file.parent().unwrap(),
            self.log.segments().last().map_or(0, |last| last.index + 1),
        );
        // Read before the append begins to overwrite it; which of the two places it gets shows afterwards.
        let here = read_before(&self.file, self.end_position, len);
        let there = read_before(&next_file, ALIGNMENT as u64, len);
        let placed = self.log.append(block, Offset(model.acked)).await.unwrap();
        let (position, before) = if placed.rolled {
            self.file = next_file;
            (ALIGNMENT as u64, there)
        } else {
            (self.end_position, here)
        };
        self.end_position = position + len;
        model.messages.extend(messages);
        self.in_flight.push_back(InFlight {
            durable: Box::pin(placed.durable),
            end: self.writer.next,
            file: self.file.clone(),
            position,
            before,
        });
    }

    /// Acks what the log knows to be durable: that is what a power cut can't undo.
    async fn ack_all_durable(&mut self, model: &mut Model) {
        while let Some(oldest) = self.in_flight.front_mut() {
            let result = poll_fn(|context| Poll::Ready(oldest.durable.as_mut().poll(context))).await;
            let Poll::Ready(result) = result else { return };
            result.unwrap();
            model.acked = oldest.end;
            self.in_flight.pop_front();
        }
    }

    async fn ack_one(&mut self, model: &mut Model) {
        if let Some(oldest) = self.in_flight.pop_front() {
            oldest.durable.await.unwrap();
            model.acked = oldest.end;
        }
    }
}

/// Bytes of a file; zeros where it does not reach or is not there.
fn read_before(path: &Path, at: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    if let Ok(file) = File::open(path) {
        let mut read = 0;
        while let Ok(more) = file.read_at(&mut bytes[read..], at + read as u64) {
            if more == 0 {
                break;
            }
            read += more;
        }
    }
    bytes
}

/// Takes a copy of the folder as a power cut at this moment may leave it.
fn power_cut(folder: &Path, to: &Path, in_flight: &VecDeque<InFlight>, random: &mut StdRng) {
    copy(folder, to);
    for write in in_flight {
        let path = to.join(write.file.file_name().unwrap());
        let size = fs::metadata(&path).unwrap().len();
        let len = write.before.len();
        let kept: Vec<bool> = match random.random_range(0..4) {
            0 => vec![true; len / 512],
            1 => vec![false; len / 512],
            2 => {
                let cut = random.random_range(0..=len / 512);
                (0..len / 512).map(|sector| sector < cut).collect()
            }
            _ => (0..len / 512).map(|_| random.random_bool(0.5)).collect(),
        };
        for (sector, _) in kept.iter().enumerate().filter(|(_, kept)| !**kept) {
            let at = write.position + sector as u64 * 512;
            if at + 512 <= size {
                edit(&path, at, &write.before[sector * 512..][..512]);
            }
        }
    }
}

/// Opens the log and holds it against the model, which then is what the log holds.
async fn reopen(config: &LocalConfig, model: &mut Model, term: u64, what: &str) -> Life {
    let (log, opened, replayed) = open_replayed(config, term)
        .await
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let facts = opened.facts;
    assert_eq!(opened.damage, [], "{what}: a crash is no damage");
    let end = facts.next_offset.get();
    assert!(
        end >= model.acked,
        "{what}: acked up to {}, but the log ends at {end}",
        model.acked
    );
    assert!(
        end <= model.messages.len() as u64,
        "{what}: {end} is beyond what was ever appended"
    );
    let first = facts.first_offset.get();
    assert!(
        first >= model.first && first <= model.first_asked.max(model.first),
        "{what}: begins at {first}"
    );
    model.messages.truncate(end as usize);
    (model.acked, model.first, model.first_asked) = (end, first, first);
    let found = read_all(&log, facts.first_offset, facts.next_offset).await.unwrap();
    assert_eq!(found.len() as u64, end - first, "{what}");
    assert!(found == model.messages[first as usize..], "{what}: other messages");
    assert!(replayed.is_sorted() && replayed.iter().all(|&at| at < end), "{what}");
    if let Some(last) = model.messages.last() {
        assert!(
            facts.last_timetick.get() >= last.timetick,
            "{what}: time went back: {facts:?}, {last:?}"
        );
    }
    let index = log.segments().last().map(|last| last.index);
    let file = segment_path(&config.folder, index.unwrap_or(0));
    let end_position = match index {
        Some(_) => {
            let all = blocks(&file);
            let last = all.iter().rfind(|(_, header)| header.next_offset.get() <= end);
            last.map_or(ALIGNMENT as u64, |(at, header)| at + header.disk_len())
        }
        None => ALIGNMENT as u64,
    };
    Life {
        log,
        writer: Writer::new(facts.next_offset, term),
        in_flight: VecDeque::new(),
        end_position,
        file,
    }
}

async fn life(seed: u64) {
    let mut random = rng(seed);
    let mut model = Model::default();
    let mut term = 1;
    let mut folders = vec![folder()];
    let mut state = reopen(&config(folders[0].path(), BLOCKS_BYTES), &mut model, term, "new").await;
    for step in 0..random.random_range(60..160) {
        let what = format!("seed {seed}, step {step}");
        match random.random_range(0..100) {
            0..60 => {
                if state.in_flight.len() == 3 {
                    state.ack_one(&mut model).await;
                }
                state.append(&mut model, &mut random).await;
            }
            60..75 => state.ack_one(&mut model).await,
            75..82 => {
                let upto = random.random_range(model.acked.saturating_sub(20)..=model.acked);
                if upto >= model.first {
                    state
                        .log
                        .checkpoint(Offset(upto), vec![1; random.random_range(0..40_000)])
                        .await
                        .unwrap();
                }
            }
            82..88 => {
                let upto = random.random_range(model.first..=model.acked + 5);
                model.first_asked = upto;
                let kept = state.log.truncate(Offset(upto)).await.unwrap();
                assert!(kept.get() <= upto.max(model.first) && kept.get() >= upto.min(model.acked).max(model.first));
                (model.first, model.first_asked) = (kept.get(), kept.get());
                state.ack_all_durable(&mut model).await;
                assert!(model.acked >= model.first, "{what}: truncated above what is durable");
            }
            88..91 => {
                while !state.in_flight.is_empty() {
                    state.ack_one(&mut model).await;
                }
                state.log.close(b"closed".to_vec()).await.unwrap();
                assert!(
                    state
                        .log
                        .append(state.writer.block(&[&[1]]).0, Offset(0))
                        .await
                        .is_err()
                );
                term += 1;
                let config = config(folders.last().unwrap().path(), BLOCKS_BYTES);
                let end = model.messages.len();
                state = reopen(&config, &mut model, term, &what).await;
                assert_eq!(model.messages.len(), end, "{what}: closed in order");
            }
            _ => {
                let next = folder();
                // Perhaps let some of what is in flight go on a little.
                for _ in 0..random.random_range(0..3) {
                    glommio::executor().yield_task_queue_now().await;
                }
                let truncating = random
                    .random_bool(0.2)
                    .then(|| random.random_range(model.first..=model.acked));
                if let Some(upto) = truncating {
                    // A crash in the middle of a truncation.
                    model.first_asked = upto;
                    let log = state.log.clone();
                    glommio::spawn_local(async move { log.truncate(Offset(upto)).await.map(drop) }).detach();
                    glommio::timer::sleep(std::time::Duration::from_micros(random.random_range(0..3_000))).await;
                }
                state.ack_all_durable(&mut model).await;
                power_cut(
                    folders.last().unwrap().path(),
                    next.path(),
                    &state.in_flight,
                    &mut random,
                );
                drop(state);
                folders.push(next);
                term += 1;
                state = reopen(
                    &config(folders.last().unwrap().path(), BLOCKS_BYTES),
                    &mut model,
                    term,
                    &what,
                )
                .await;
            }
        }
        assert_eq!(state.writer.next, model.messages.len() as u64);
    }
    let files = segment_files(folders.last().unwrap().path()).len();
    assert!(
        files <= state.log.segments().len() + 2,
        "seed {seed}: {files} files: {:?}, segments {:?}",
        segment_files(folders.last().unwrap().path()),
        state.log.segments()
    );
}

/// Seen failing when a block that is not whole is taken for rot though nothing proves it, and when a next file is believed to
/// begin where this one is cut.
#[test]
fn acked_messages_survive_any_crash() {
    let seeds = std::env::var("LOG_CRASH_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(40);
    for seed in 0..seeds {
        run(move || life(seed));
    }
}
