//! How the local log uses its disk: rolling, recycling, a full disk, large records, open files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod small_disk;
mod support;

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use backends::{Wal, WalError, local::LocalWal};
use support::*;
use wire_format::{Bytes, Offset};

fn segment_inodes(folder: &Path) -> Vec<u64> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let segments = entries.filter(|entry| entry.file_name().to_str().unwrap().ends_with(".seg"));
    segments.map(|entry| entry.metadata().unwrap().ino()).collect()
}

async fn append_one(log: &LocalWal, writer: &mut Writer, len: usize) -> Result<Vec<Message>, WalError> {
    let at = writer.next;
    let (block, messages) = writer.block(&[&[len]]);
    match append(log, block, Offset(at)).await {
        Ok(_) => Ok(messages),
        Err(error) => {
            writer.next = at;
            Err(error)
        }
    }
}

/// Keeps the last messages only: the checkpoint moves on and old segments are dropped.
async fn keep_last(log: &LocalWal, writer: &Writer, count: u64) {
    log.checkpoint(Offset(writer.next), Vec::new()).await.unwrap();
    log.truncate(Offset(writer.next.saturating_sub(count))).await.unwrap();
}

#[test]
fn dropped_segments_are_used_again_and_old_readers_are_told() {
    run(|| async {
        let folder = folder();
        let (log, _) = open(&config(folder.path(), 128 << 10), 1).await.unwrap();
        let mut writer = Writer::new(Offset(0), 1);
        let (mut seen, mut kept) = (std::collections::BTreeSet::new(), Vec::new());
        let mut slow = log.cursor(Offset(0)).unwrap();
        for round in 0..200u64 {
            kept.extend(append_one(&log, &mut writer, 10_000).await.unwrap());
            if round == 5 {
                assert!(log.read(&mut slow, Offset(3)).await.unwrap().is_some());
            }
            keep_last(&log, &writer, 25).await;
            seen.extend(segment_inodes(folder.path()));
        }
        let last_index = log.segments().last().unwrap().index;
        assert!(last_index > 15, "many segments: {last_index}");
        assert!(
            seen.len() <= 8,
            "{} different files were used for {last_index} segments",
            seen.len()
        );
        assert!(segment_inodes(folder.path()).len() <= 6);
        let error = log.read(&mut slow, Offset(writer.next)).await.map(|_| ()).unwrap_err();
        assert!(
            matches!(error, WalError::Truncated { first, .. } if first == log.first_offset()),
            "{error}"
        );
        let first = log.first_offset();
        let found = read_all(&log, first, Offset(writer.next)).await.unwrap();
        assert_eq!(found, kept[first.get() as usize..]);
    });
}

/// Case 20: unclean restarts leave neither files behind, nor a new segment each time.
#[test]
fn restarts_leave_nothing_behind() {
    run(|| async {
        let folder = folder();
        let config = config(folder.path(), 128 << 10);
        let mut next = 0;
        let (mut files, mut bytes) = (Vec::new(), Vec::new());
        for round in 1..=40u64 {
            let (log, opened) = open(&config, round).await.unwrap();
            assert_eq!(opened.facts.next_offset, Offset(next));
            let mut writer = Writer::new(Offset(next), round);
            let messages = if round < 4 { 30 } else { 1 };
            for _ in 0..messages {
                append_one(&log, &mut writer, 9_000).await.unwrap();
                keep_last(&log, &writer, 20).await;
            }
            next = writer.next;
            let listing: Vec<_> = fs::read_dir(folder.path())
                .unwrap()
                .map(|e| e.unwrap().metadata().unwrap())
                .collect();
            files.push(listing.len());
            bytes.push(listing.iter().map(|file| file.blocks()).sum::<u64>());
        }
        assert!(files[39] <= files[2], "{files:?}");
        assert!(bytes[39] as f64 <= bytes[2] as f64 * 1.05, "{bytes:?}");
    });
}

/// The next file can't be made: the error leaves no trace, and the log goes on when it can be made again.
#[test]
fn a_next_file_that_can_not_be_made_stops_nothing_for_good() {
    run(|| async {
        let folder = folder();
        let (log, _) = open(&config(folder.path(), 64 << 10), 1).await.unwrap();
        let mut writer = Writer::new(Offset(0), 1);
        let mut all = Vec::new();
        let obstacle = segment_path(folder.path(), 1);
        fs::create_dir(&obstacle).unwrap();
        let error = loop {
            match append_one(&log, &mut writer, 10_000).await {
                Ok(messages) => all.extend(messages),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("0000000001.seg"), "{error}");
        assert!(log.make_room(Bytes(20_000)).await.is_err());
        assert!(append_one(&log, &mut writer, 10_000).await.is_err());
        all.extend(append_one(&log, &mut writer, 100).await.unwrap());
        fs::remove_dir(&obstacle).unwrap();
        log.make_room(Bytes(20_000)).await.unwrap();
        all.extend(append_one(&log, &mut writer, 10_000).await.unwrap());
        assert_eq!(read_all(&log, Offset(0), Offset(writer.next)).await.unwrap(), all);
        drop(log);
        let (log, _) = open(&config(folder.path(), 64 << 10), 2).await.unwrap();
        assert_eq!(read_all(&log, Offset(0), Offset(writer.next)).await.unwrap(), all);
    });
}

/// Blocks larger than what a scan or a reader reads at once, whole, torn and rotten.
#[test]
fn records_of_many_megabytes() {
    run(|| async {
        let folder = folder();
        let config = config(folder.path(), 40 << 20);
        let (log, _) = open(&config, 1).await.unwrap();
        let mut writer = Writer::new(Offset(0), 1);
        let mut all = Vec::new();
        for len in [100, 17 << 20, 5 << 20, 9 << 20, 100, 33 << 20, 1] {
            all.extend(append_one(&log, &mut writer, len).await.unwrap());
        }
        assert!(read_all(&log, Offset(0), Offset(writer.next)).await.unwrap() == all);
        drop(log);
        let (log, opened) = open(&config, 2).await.unwrap();
        assert_eq!(
            (opened.facts.next_offset, opened.damage),
            (Offset(writer.next), Vec::new())
        );
        assert!(read_all(&log, Offset(2), Offset(writer.next)).await.unwrap() == all[2..]);
        drop(log);
        // Header and first bytes of the 17 MiB block.
        let file = fs::OpenOptions::new()
            .write(true)
            .open(segment_path(folder.path(), 0))
            .unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 512], 8192).unwrap();
        let (log, opened) = open(&config, 3).await.unwrap();
        assert_eq!(opened.damage.len(), 1);
        let (found, errors) = read_over_damage(&log, Offset(0), Offset(writer.next)).await;
        assert_eq!(errors.len(), 1);
        assert!(found == [&all[..1], &all[2..]].concat());
    });
}

/// Case 25 on a real small file system, where the machine lets an ordinary process have one of its own.
#[test]
fn a_full_disk_keeps_reads_and_truncation_going_and_writing_resumes() {
    if let Some(disk) = small_disk::inside() {
        return run(move || full_disk(disk));
    }
    let disk = folder();
    small_disk::run_again(
        "a_full_disk_keeps_reads_and_truncation_going_and_writing_resumes",
        disk.path(),
        12,
    );
}

async fn full_disk(disk: std::path::PathBuf) {
    let folder = disk.join("log");
    let config = config(&folder, 1 << 20);
    let (log, _) = open(&config, 1).await.unwrap();
    let mut writer = Writer::new(Offset(0), 1);
    let mut all = Vec::new();
    let begin = std::time::Instant::now();
    let error = loop {
        match append_one(&log, &mut writer, 200_000).await {
            Ok(messages) => all.extend(messages),
            Err(error) => break error,
        }
    };
    assert!(begin.elapsed().as_secs() < 10);
    assert!(matches!(error, WalError::DiskFull { .. }), "{error}");
    assert!(matches!(
        log.make_room(Bytes(204_800)).await,
        Err(WalError::DiskFull { .. })
    ));
    // Nothing left for anybody.
    let filler = disk.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    assert!(matches!(
        append_one(&log, &mut writer, 200_000).await,
        Err(WalError::DiskFull { .. })
    ));
    assert_eq!(read_all(&log, Offset(0), Offset(writer.next)).await.unwrap(), all);
    drop(log);
    let (log, opened) = open(&config, 2).await.unwrap();
    assert_eq!(opened.facts.next_offset, Offset(writer.next));
    assert_eq!(read_all(&log, Offset(0), Offset(writer.next)).await.unwrap(), all);
    // By truncation only. The first checkpoints of a log need a few KiB: the filler gives them back, nothing more.
    file.set_len(file.metadata().unwrap().len() - (128 << 10)).unwrap();
    let mut writer = Writer::new(Offset(writer.next), 2);
    keep_last(&log, &writer, 5).await;
    let first = log.first_offset();
    for _ in 0..8 {
        all.extend(append_one(&log, &mut writer, 200_000).await.unwrap());
    }
    assert_eq!(
        read_all(&log, first, Offset(writer.next)).await.unwrap(),
        all[first.get() as usize..]
    );
    // Full once more, with checkpoints there: no new space is needed to truncate.
    while append_one(&log, &mut writer, 200_000).await.is_ok() {}
    while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    keep_last(&log, &writer, 3).await;
    append_one(&log, &mut writer, 200_000).await.unwrap();
}

/// Who still holds a log that was opened again can neither drop, rename nor write a file of the new opening. Seen failing when a
/// truncation of the old one was not refused: it recycled a file into the place of the new one's active segment.
#[test]
fn a_superseded_log_touches_nothing_of_the_next_opening() {
    run(|| async {
        let folder = folder();
        let config = config(folder.path(), 128 << 10);
        let (old, _) = open(&config, 1).await.unwrap();
        let mut writer = Writer::new(Offset(0), 1);
        let mut all = Vec::new();
        for _ in 0..60 {
            all.extend(append_one(&old, &mut writer, 9_000).await.unwrap());
        }
        old.checkpoint(Offset(writer.next), Vec::new()).await.unwrap();
        // One that is still under way is waited for.
        let (log, upto) = (old.clone(), Offset(writer.next / 4));
        let truncation = glommio::spawn_local(async move { log.truncate(upto).await }).detach();
        old.quiet().await;
        let (new, opened) = open(&config, 2).await.unwrap();
        let _ = truncation.await;
        let mut writer = Writer::new(opened.facts.next_offset, 2);
        for _ in 0..30 {
            all.extend(append_one(&new, &mut writer, 9_000).await.unwrap());
        }
        let files = segment_inodes(folder.path());
        let late = Offset(writer.next / 2);
        assert!(matches!(old.truncate(late).await, Err(WalError::Closed { .. })));
        assert!(matches!(
            old.checkpoint(late, Vec::new()).await,
            Err(WalError::Closed { .. })
        ));
        assert_eq!(segment_inodes(folder.path()), files);
        drop(old);
        for _ in 0..30 {
            all.extend(append_one(&new, &mut writer, 9_000).await.unwrap());
        }
        new.quiet().await;
        drop(new);
        let (again, opened) = open(&config, 3).await.unwrap();
        assert!(opened.damage.is_empty(), "{:?}", opened.damage);
        let first = again.first_offset();
        let found = read_all(&again, first, Offset(writer.next)).await.unwrap();
        assert_eq!(found, all[first.get() as usize..]);
    });
}
