//! Case 21: a write that was cut off, and the second crash after it.

use super::*;

/// Both how a write is cut: the rest is zeros, or what the file held before.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Zeros,
    Old,
}

/// A log of a few durable blocks and one more, in a file that was recycled and so is full of old blocks. Returns the
/// folder, what is durable, and the bytes that the last block was written over.
async fn log_with_a_last_block(folder: &Path) -> (Vec<Message>, Vec<Message>, Vec<u8>) {
    let config = config(folder, 128 << 10);
    let (log, _) = open(&config, 1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let mut random = rng(1);
    // Until the first file was dropped and is in use again.
    let mut all = Vec::new();
    while log.segments().last().is_none_or(|last| last.index < 6) {
        all.extend(fill(&log, &mut writer, 1, &mut random).await);
        let durable = Offset(writer.next);
        log.checkpoint(durable, Vec::new()).await.unwrap();
        let segments = log.segments();
        if segments.len() > 3 {
            log.truncate(segments[1].base_offset).await.unwrap();
        }
    }
    all.extend(fill(&log, &mut writer, 3, &mut random).await);
    let index = log.segments().last().unwrap().index;
    let path = segment_path(folder, index);
    let (at, header) = *blocks(&path).last().unwrap();
    let place = at + header.disk_len();
    let before = bytes_at(&path, place, 64 << 10);
    let (block, messages) = writer.block(&[&[2_000, 1_500], &[4_000], &[3_000, 10, 2_000]]);
    append(&log, block, Offset(messages[0].offset)).await.unwrap();
    let old = before[..(blocks(&path).last().unwrap().1.disk_len() as usize)].to_vec();
    (all, messages, old)
}

/// Seen failing when `scan::look` takes a block whose records are broken.
#[test]
fn a_torn_block_is_cut_off_as_a_whole_and_the_log_goes_on_over_two_crashes() {
    run(|| async {
        let whole = folder();
        let (durable, torn, old) = log_with_a_last_block(whole.path()).await;
        let last = segment_files(whole.path())
            .into_iter()
            .rfind(|path| !blocks(path).is_empty())
            .unwrap();
        let (at, header) = *blocks(&last).last().unwrap();
        assert_eq!(header.first_offset.get(), torn[0].offset);
        assert!(old.iter().any(|&byte| byte != 0), "the file was in use before");
        for cut in (0..header.disk_len()).step_by(512) {
            for rest in [Rest::Zeros, Rest::Old] {
                let folder = folder();
                copy(whole.path(), folder.path());
                let path = folder.path().join(last.file_name().unwrap());
                let tail = match rest {
                    Rest::Zeros => vec![0; (header.disk_len() - cut) as usize],
                    Rest::Old => old[cut as usize..].to_vec(),
                };
                let written = bytes_at(&path, at + cut, tail.len());
                edit(&path, at + cut, &tail);
                // A cut in the padding, or where the old bytes are the same, tears nothing.
                let is_torn = at + cut < at + 64 + u64::from(header.body_len) && written != tail;
                two_crashes(folder.path(), &durable, is_torn, &torn, &format!("{rest:?} from {cut}")).await;
            }
        }
    });
}

async fn two_crashes(folder: &Path, durable: &[Message], is_torn: bool, torn: &[Message], what: &str) {
    let config = config(folder, 128 << 10);
    let mut expected = durable.to_vec();
    if !is_torn {
        expected.extend_from_slice(torn);
    }
    for term in [2, 3, 4] {
        let (log, opened) = open(&config, term).await.unwrap();
        assert_eq!(opened.damage, [], "{what}");
        assert_eq!(
            opened.facts.next_offset.get(),
            expected.len() as u64,
            "{what}, term {term}"
        );
        let first = opened.facts.first_offset;
        let found = read_all(&log, first, opened.facts.next_offset).await.unwrap();
        assert_eq!(found, expected[first.get() as usize..], "{what}, term {term}");
        let mut writer = Writer::new(opened.facts.next_offset, term);
        expected.extend(fill(&log, &mut writer, 4, &mut rng(term)).await);
        // Dropped without a close: the next crash.
    }
}

/// Blocks of a crashed life that stand behind its cut, at just the place and offset where the next life's block ends. Seen
/// failing with the comparison of terms in `scan::staleness` taken out.
#[test]
fn a_block_behind_the_cut_never_comes_back_though_it_lines_up() {
    run(|| async {
        let folder = folder();
        let config = config(folder.path(), 1 << 20);
        let (log, _) = open(&config, 1).await.unwrap();
        let mut writer = Writer::new(Offset(0), 1);
        let durable = fill(&log, &mut writer, 3, &mut rng(5)).await;
        // Three in flight together: none knows the others to be durable.
        let committed = Offset(writer.next);
        let mut in_flight = Vec::new();
        for _ in 0..3 {
            let (block, _) = writer.block(&[&[1_000, 500]]);
            in_flight.push(log.append(block, committed).await.unwrap().durable);
        }
        for durable in in_flight {
            durable.await.unwrap();
        }
        drop(log);
        let path = segment_path(folder.path(), 0);
        let first_of_three = blocks(&path)[3];
        edit(&path, first_of_three.0, &[0; 4096]);
        let mut expected = durable;
        for term in 2..5 {
            let (log, opened) = open(&config, term).await.unwrap();
            assert_eq!(opened.damage, []);
            assert_eq!(opened.facts.next_offset, Offset(expected.len() as u64), "term {term}");
            assert_eq!(
                read_all(&log, Offset(0), opened.facts.next_offset).await.unwrap(),
                expected
            );
            if term == 2 {
                // The same sizes and offsets as the block that was lost.
                let mut writer = Writer::new(opened.facts.next_offset, term);
                let (block, messages) = writer.block(&[&[1_000, 500]]);
                append(&log, block, opened.facts.next_offset).await.unwrap();
                expected.extend(messages);
            }
        }
    });
}

/// Seen failing when any next file is believed to go on. The next file was begun while the last block of the one
/// before was still in flight, and only the next file's writes
/// arrived.
#[test]
fn a_cut_in_one_file_drops_what_was_begun_in_the_next() {
    run(|| async {
        let folder = folder();
        let config = config(folder.path(), 64 << 10);
        let (log, _) = open(&config, 1).await.unwrap();
        let mut writer = Writer::new(Offset(0), 1);
        let (block, durable) = writer.block(&[&[30_000]]);
        append(&log, block, Offset(0)).await.unwrap();
        let committed = Offset(writer.next);
        let mut in_flight = Vec::new();
        for _ in 0..3 {
            let (block, _) = writer.block(&[&[20_000]]);
            in_flight.push(log.append(block, committed).await.unwrap());
        }
        assert!(in_flight[1].rolled);
        for placed in in_flight {
            placed.durable.await.unwrap();
        }
        drop(log);
        let path = segment_path(folder.path(), 0);
        // The footer was not there yet, nor the last block.
        let (at, header) = blocks(&path)[1];
        let size = fs::metadata(&path).unwrap().len();
        edit(&path, at, &vec![0; header.disk_len() as usize]);
        edit(&path, size - 4096, &[0; 4096]);
        let mut expected = durable;
        for term in 2..6 {
            let (log, opened) = open(&config, term).await.unwrap();
            assert_eq!(opened.damage, []);
            assert_eq!(opened.facts.next_offset, Offset(expected.len() as u64), "term {term}");
            assert_eq!(
                read_all(&log, Offset(0), opened.facts.next_offset).await.unwrap(),
                expected
            );
            if term > 2 {
                let mut writer = Writer::new(opened.facts.next_offset, term);
                let (block, messages) = writer.block(&[&[20_000]]);
                append(&log, block, opened.facts.next_offset).await.unwrap();
                expected.extend(messages);
            }
        }
    });
}

/// Files that lie there without being part of the log, or are cut short, need no human.
#[test]
fn leftover_files_are_cleared_away() {
    run(|| async {
        let folder = folder();
        let config = config(folder.path(), 64 << 10);
        let (log, _) = open(&config, 1).await.unwrap();
        let mut writer = Writer::new(Offset(0), 1);
        let mut expected = fill(&log, &mut writer, 12, &mut rng(9)).await;
        let last = log.segments().last().unwrap().index;
        drop(log);
        let size = config.segment.get() as usize;
        let whole = fs::read(segment_path(folder.path(), 0)).unwrap();
        for (round, content) in [vec![], vec![0; size], vec![7; size], vec![0; 10_000], whole]
            .into_iter()
            .enumerate()
        {
            fs::write(segment_path(folder.path(), last + 3), &content).unwrap();
            fs::write(segment_path(folder.path(), last + 1), &content).unwrap();
            fs::write(folder.path().join("checkpoint.1"), b"").unwrap();
            fs::write(folder.path().join("notes.txt"), b"not ours").unwrap();
            let term = 2 + round as u64;
            let (log, opened) = open(&config, term).await.unwrap();
            assert_eq!(opened.facts.next_offset, Offset(expected.len() as u64));
            assert!(!segment_path(folder.path(), last + 3).exists());
            let mut writer = Writer::new(opened.facts.next_offset, term);
            let (block, messages) = writer.block(&[&[1]]);
            append(&log, block, Offset(0)).await.unwrap();
            expected.extend(messages);
            assert_eq!(read_all(&log, Offset(0), Offset(writer.next)).await.unwrap(), expected);
        }
        assert!(folder.path().join("notes.txt").exists());
    });
}
