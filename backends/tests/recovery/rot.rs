//! Rot at rest: bits flipped, sectors zeroed, files cut short or lost. A reader gets every whole record and an error for the
//! rest; nothing durable is ever cut off in silence.

use std::collections::BTreeSet;

use backends::local::inspect::{InspectOptions, inspect};

use super::*;

/// A log of several segments; `clean`: closed in order.
async fn log_at_rest(folder: &Path, seed: u64, clean: bool) -> Vec<Message> {
    let config = config(folder, 96 << 10);
    let (log, _) = open(&config, 1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let mut random = rng(seed);
    let mut all = fill(&log, &mut writer, 20, &mut random).await;
    if !seed.is_multiple_of(3) {
        log.checkpoint(Offset(writer.next), b"state".to_vec()).await.unwrap();
    }
    all.extend(fill(&log, &mut writer, 25, &mut random).await);
    log.close(Vec::new()).await.unwrap();
    if !clean {
        // As after a crash with nothing in flight: a block more, whose proof a later block is.
        drop(log);
        let (log, _) = open(&config, 2).await.unwrap();
        let mut writer = Writer::new(Offset(all.len() as u64), 2);
        all.extend(fill(&log, &mut writer, 10, &mut random).await);
    }
    all
}

/// First bytes that no block takes in a file, so damage behind it is none.
fn used(path: &Path) -> u64 {
    blocks(path).last().map_or(0, |(at, header)| at + header.disk_len())
}

/// Opens, reads all, accounts for all; then writes on and does it again. Returns the offsets lost.
async fn check(folder: &Path, expected: &[Message], term: u64, what: &str) -> u64 {
    let config = config(folder, 96 << 10);
    let mut expected = expected.to_vec();
    let mut lost = 0;
    for term in [term, term + 1] {
        let (log, opened, replayed) = open_replayed(&config, term)
            .await
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        let end = opened.facts.next_offset;
        assert_eq!(end.get(), expected.len() as u64, "{what}: the log's end");
        assert_eq!(opened.facts.first_offset, Offset(0), "{what}");
        assert!(replayed.is_sorted());
        let (found, errors) = read_over_damage(&log, Offset(0), end).await;
        account(&expected, &found, &errors, 0);
        lost = errors
            .iter()
            .map(|e| damage_of(e).next_offset.get() - damage_of(e).first_offset.get())
            .sum();
        // From any place the same.
        for start in (0..end.get()).step_by(13) {
            let (mut part, errors) = read_over_damage(&log, Offset(start), end).await;
            part.retain(|message| message.offset >= start);
            account(&expected, &part, &errors, start);
        }
        // Inspection from outside comes to the same.
        let options = InspectOptions {
            verify: true,
            vchannels: true,
        };
        let inspection = inspect(folder, options, &mut |_, _| {}).unwrap();
        let seen = inspection
            .segments
            .iter()
            .flat_map(|segment| &segment.damage)
            .chain(&inspection.gaps);
        let seen: BTreeSet<u64> = seen.flat_map(|d| d.first_offset.get()..d.next_offset.get()).collect();
        let read = errors
            .iter()
            .map(damage_of)
            .flat_map(|d| d.first_offset.get()..d.next_offset.get());
        assert_eq!(seen, read.collect(), "{what}");
        let counted: u64 = inspection
            .segments
            .iter()
            .flat_map(|segment| segment.vchannels.values())
            .sum();
        assert_eq!(counted, found.len() as u64, "{what}");
        for error in &errors {
            let damage = damage_of(error);
            assert!(damage.file.starts_with(folder), "{error}");
            assert!(damage.from <= damage.to, "{error}");
        }
        let mut writer = Writer::new(end, term);
        expected.extend(fill(&log, &mut writer, 3, &mut rng(term)).await);
    }
    lost
}

/// Seen failing when `Walk::is_proven` always says no (the log is cut at the flipped bit), and when the reader jumps to the
/// next block without an error.
#[test]
fn a_flipped_bit_or_a_lost_sector_costs_a_record_and_no_more() {
    for seed in 0..40 {
        run(move || async move {
            let folder = folder();
            let mut random = rng(seed);
            let clean = seed % 2 == 0;
            let all = log_at_rest(folder.path(), seed, clean).await;
            let files: Vec<_> = segment_files(folder.path())
                .into_iter()
                .filter(|path| used(path) > 0)
                .collect();
            let path = &files[random.random_range(0..files.len())];
            // The last block of a log that was not closed in order can't be told from a torn one.
            let spare = if !clean && path == files.last().unwrap() {
                blocks(path).last().unwrap().0
            } else {
                used(path)
            };
            let at = random.random_range(0..spare);
            let what = if seed % 4 < 2 {
                let byte = bytes_at(path, at, 1)[0];
                edit(path, at, &[byte ^ 1 << random.random_range(0..8)]);
                format!("seed {seed}: bit at {at} of {}", path.display())
            } else {
                edit(path, at / 512 * 512, &[0; 512]);
                format!("seed {seed}: sector at {} of {}", at / 512 * 512, path.display())
            };
            let lost = check(folder.path(), &all, 10, &what).await;
            // A sector touches two records at most, of 4 messages each.
            assert!(lost <= 8, "{what}: {lost} messages lost");
        });
    }
}

#[test]
fn many_wounds_at_once_are_all_reported() {
    for seed in 0..25 {
        run(move || async move {
            let folder = folder();
            let mut random = rng(seed + 1_000);
            let all = log_at_rest(folder.path(), seed, true).await;
            let files: Vec<_> = segment_files(folder.path())
                .into_iter()
                .filter(|path| used(path) > 0)
                .collect();
            for _ in 0..random.random_range(2..30) {
                let path = &files[random.random_range(0..files.len())];
                let size = fs::metadata(path).unwrap().len();
                let len = 1 << random.random_range(0..16);
                let at = random.random_range(0..size.saturating_sub(len).max(1));
                let mut bytes = vec![0; len.min(size - at) as usize];
                if random.random_bool(0.5) {
                    random.fill(&mut bytes[..]);
                }
                edit(path, at, &bytes);
            }
            check(folder.path(), &all, 10, &format!("seed {seed}")).await;
        });
    }
}

#[test]
fn a_file_cut_short_or_lost_costs_its_own_messages_only() {
    for seed in 0..24 {
        run(move || async move {
            let folder = folder();
            let mut random = rng(seed + 2_000);
            let all = log_at_rest(folder.path(), seed, true).await;
            let files: Vec<_> = segment_files(folder.path())
                .into_iter()
                .filter(|path| used(path) > 0)
                .collect();
            let path = &files[random.random_range(0..files.len())];
            let held: u64 = blocks(path)
                .iter()
                .map(|(_, h)| h.next_offset.get() - h.first_offset.get())
                .sum();
            let what = format!("seed {seed}: {}", path.display());
            if seed % 2 == 0 {
                fs::remove_file(path).unwrap();
                let lost = check(folder.path(), &all, 10, &format!("{what} removed")).await;
                assert_eq!(lost, held, "{what}");
            } else {
                let len = random.random_range(0..used(path));
                OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
                let lost = check(folder.path(), &all, 10, &format!("{what} cut to {len}")).await;
                assert!(lost <= held, "{what}");
            }
        });
    }
}

/// What is not a message may be lost without losing one: header page, footer, trailer, checkpoints.
#[test]
fn a_lost_header_footer_or_checkpoint_costs_no_message() {
    for clean in [true, false] {
        run(move || async move {
            let whole = folder();
            let all = log_at_rest(whole.path(), 1, clean).await;
            let files: Vec<_> = segment_files(whole.path())
                .into_iter()
                .filter(|path| used(path) > 0)
                .collect();
            assert!(files.len() > 3);
            let checkpoints = ["checkpoint.0", "checkpoint.1"];
            for damage in 0..6 {
                let folder = folder();
                copy(whole.path(), folder.path());
                let mine = |path: &PathBuf| folder.path().join(path.file_name().unwrap());
                match damage {
                    0 => files.iter().for_each(|path| edit(&mine(path), 0, &[0; 4096])),
                    1 => files.iter().for_each(|path| edit(&mine(path), used(path), &[9; 4096])),
                    2 => {
                        for path in &files {
                            edit(&mine(path), fs::metadata(path).unwrap().len() - 4096, &[9; 4096]);
                        }
                    }
                    3 | 4 => edit(&folder.path().join(checkpoints[damage - 3]), 300, &[0xff; 16]),
                    _ => {
                        for name in checkpoints {
                            let _ = fs::remove_file(folder.path().join(name));
                        }
                    }
                }
                let lost = check(folder.path(), &all, 10, &format!("clean {clean}, damage {damage}")).await;
                assert_eq!(lost, 0);
            }
        });
    }
}

/// The clean mark must not outlive the first append: else a broken first block behind it would be taken for the end. Seen
/// failing without `no_longer_clean`, and when what a later block calls committed does not count.
#[test]
fn rot_in_the_first_block_after_an_orderly_close_is_found() {
    run(|| async {
        let folder = folder();
        let config = config(folder.path(), 1 << 20);
        let (log, _) = open(&config, 1).await.unwrap();
        let mut writer = Writer::new(Offset(0), 1);
        let mut all = fill(&log, &mut writer, 3, &mut rng(3)).await;
        log.close(Vec::new()).await.unwrap();
        drop(log);
        let (log, _) = open(&config, 2).await.unwrap();
        all.extend(fill(&log, &mut writer_of(2, all.len()), 4, &mut rng(4)).await);
        drop(log);
        let path = segment_path(folder.path(), 0);
        let (at, header) = blocks(&path)[3];
        edit(&path, at + 64 + 30, &[0xff; 40]);
        let (log, opened) = open(&config, 3).await.unwrap();
        assert_eq!(opened.facts.next_offset.get(), all.len() as u64);
        let (found, errors) = read_over_damage(&log, Offset(0), opened.facts.next_offset).await;
        account(&all, &found, &errors, 0);
        assert_eq!(damage_of(&errors[0]).first_offset, header.first_offset);
        assert_eq!(damage_of(&errors[0]), &opened.damage[0]);
    });
}

fn writer_of(term: u64, next: usize) -> Writer {
    Writer::new(Offset(next as u64), term)
}

/// What a producer sends is never taken for a block or a record of the log, though it looks like one, byte for byte.
#[test]
fn bytes_of_a_log_inside_a_message_stay_a_message() {
    run(|| async {
        let donor = folder();
        let config_of = |folder: &Path| config(folder, 1 << 20);
        let (log, _) = open(&config_of(donor.path()), 1).await.unwrap();
        fill(&log, &mut Writer::new(Offset(0), 1), 6, &mut rng(8)).await;
        drop(log);
        let donor_path = segment_path(donor.path(), 0);
        let stolen = bytes_at(&donor_path, 4096, used(&donor_path) as usize - 4096);

        let folder = folder();
        let config = config_of(folder.path());
        let (log, _) = open(&config, 1).await.unwrap();
        let mut batch = wire_format::batch::BatchBuilder::new(PCHANNEL, wire_format::Limits::WIDEST).unwrap();
        // Blocks at multiples of 4096 in the file, records at multiples of 8.
        for shift in 0..2 {
            let lead = 4096 - (64 + batch.record_bytes() + 200) % 4096 + shift;
            let body = [vec![0; lead], stolen.clone()].concat();
            batch.push("v0", wire_format::MessageType::INSERT, [], &body).unwrap();
        }
        let origin = wire_format::batch::Origin::default();
        let record = batch.finish(origin).unwrap().to_bytes();
        append(&log, seal(&[(0, record)], Term(1)), Offset(0)).await.unwrap();
        let mut writer = Writer::new(Offset(2), 1);
        let rest = fill(&log, &mut writer, 4, &mut rng(2)).await;
        drop(log);
        let path = segment_path(folder.path(), 0);
        let end_of_first = blocks(&path)[0].1.disk_len() + 4096;
        for wound in [4096, 4096 + 64, 4096 + 128, end_of_first - 5_000] {
            let hurt = super::folder();
            copy(folder.path(), hurt.path());
            edit(&segment_path(hurt.path(), 0), wound, &[0xa5; 24]);
            let (log, opened) = open(&config_of(hurt.path()), 2).await.unwrap();
            assert_eq!(opened.facts.next_offset, Offset(writer.next));
            let (found, errors) = read_over_damage(&log, Offset(0), Offset(writer.next)).await;
            // A block header alone may be lost: tail and record are whole then.
            let own = found.iter().filter(|message| message.offset < 2).count();
            assert!(
                own == 2 && wound == 4096 || own == 0 && wound != 4096,
                "wound at {wound}"
            );
            assert_eq!(found[own..], rest, "wound at {wound}");
            assert_eq!(errors.len(), usize::from(own == 0));
        }
    });
}
