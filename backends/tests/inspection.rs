//! What inspection tells of a log that is sound, and of one that is not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

use backends::{
    Wal,
    local::inspect::{InspectOptions, Inspection, Part, SegmentState, inspect},
};
use support::*;
use wire_format::{Bytes, Offset, Term};

const VERIFY: InspectOptions = InspectOptions {
    verify: true,
    vchannels: true,
};

fn look(folder: &Path, options: InspectOptions) -> Inspection {
    let mut last = (Bytes(0), Bytes(0));
    let found = inspect(folder, options, &mut |done, total| {
        assert!(
            done >= last.0 && done <= total,
            "progress went from {last:?} to {done} of {total}"
        );
        last = (done, total);
    });
    assert_eq!(last.0, last.1, "it ends at the end");
    found.unwrap()
}

fn edit(path: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Three full segments, one open, one that lies ready. 60 messages in 30 records and blocks.
async fn write_log(folder: &Path) -> u64 {
    let config = config(folder, 128 << 10);
    let (log, _) = open(&config, 3).await.unwrap();
    let mut writer = Writer::new(Offset(0), 3);
    for _ in 0..30 {
        let (block, messages) = writer.block(&[&[9_000, 3_000]]);
        append(&log, block, Offset(messages[0].offset)).await.unwrap();
    }
    log.checkpoint(Offset(20), b"state".to_vec()).await.unwrap();
    log.make_room(Bytes(120 << 10)).await.unwrap();
    log.close(b"closed".to_vec()).await.unwrap();
    log.segments().len() as u64
}

#[test]
fn a_sound_log_is_told_as_it_is() {
    let folder = folder();
    let path = folder.path().to_owned();
    let segments = run(move || async move { write_log(&path).await });
    for options in [InspectOptions::default(), VERIFY] {
        let found = look(folder.path(), options);
        assert!(found.is_sound(), "{found:#?}");
        assert_eq!(found.lost_messages(), 0);
        let checkpoint = found.checkpoint.unwrap();
        assert!(checkpoint.clean);
        assert_eq!((checkpoint.upto, checkpoint.state), (Offset(60), Bytes(6)));
        let states: Vec<_> = found.segments.iter().map(|segment| segment.state).collect();
        let (ready, used) = states.split_last().unwrap();
        assert_eq!(*ready, SegmentState::Prepared);
        assert_eq!(used.len() as u64, segments);
        let (open, sealed) = used.split_last().unwrap();
        assert_eq!(*open, SegmentState::Open);
        assert!(sealed.iter().all(|state| *state == SegmentState::Sealed));
        let total =
            |of: fn(&backends::local::inspect::SegmentInspection) -> u64| found.segments.iter().map(of).sum::<u64>();
        assert_eq!((total(|s| s.messages), total(|s| s.blocks)), (60, 30));
        for (one, next) in found.segments.iter().zip(&found.segments[1..used.len()]) {
            assert_eq!(one.next_offset, next.base_offset);
            assert!(one.last_timetick < next.first_timetick);
            assert_eq!(one.terms, (Term(3), Term(3)));
            assert_eq!(
                (&one.header, &one.footer, &one.trailer),
                (&Part::Whole, &Part::Whole, &Part::Whole)
            );
        }
        if options.verify {
            assert_eq!(found.pchannel.as_deref(), Some(PCHANNEL));
            assert_eq!(total(|s| s.records.unwrap_or_default()), 30);
            assert_eq!(total(|s| s.vchannels.get("v0").copied().unwrap_or_default()), 20);
        } else {
            assert!(!found.segments[0].verified && found.segments[segments as usize - 1].verified);
        }
    }
}

#[test]
fn only_verification_sees_rot_in_a_sealed_segment() {
    let folder = folder();
    let path = folder.path().to_owned();
    run(move || async move { write_log(&path).await });
    let victim = segment_path(folder.path(), 1);
    // The second block's second half: one record of two messages.
    let block_len = 16_384;
    edit(&victim, 4096 + block_len + 9_000, &[0xa5; 16]);
    assert!(look(folder.path(), InspectOptions::default()).is_sound());
    let found = look(folder.path(), VERIFY);
    assert_eq!(found.lost_messages(), 2);
    let damage = &found.segments[1].damage[0];
    assert_eq!(damage.file, victim);
    assert!(
        damage.from <= 4096 + block_len + 9_000 && damage.to >= 4096 + block_len + 9_016,
        "{damage:?}"
    );
    assert!(!damage.detail.is_empty());
    assert_eq!(found.segments[1].messages, found.segments[0].messages - 2);
}

#[test]
fn lost_pages_and_files_are_named() {
    let folder = folder();
    let path = folder.path().to_owned();
    run(move || async move { write_log(&path).await });
    edit(&segment_path(folder.path(), 0), 8, &[0xff; 4]);
    let size = fs::metadata(segment_path(folder.path(), 0)).unwrap().len();
    edit(&segment_path(folder.path(), 0), size - 4096, &[0xff; 64]);
    fs::remove_file(segment_path(folder.path(), 2)).unwrap();
    fs::write(folder.path().join("stray.txt"), b"?").unwrap();
    edit(&folder.path().join("checkpoint.1"), 100, &[0xff; 64]);
    for options in [InspectOptions::default(), VERIFY] {
        let found = look(folder.path(), options);
        assert!(!found.is_sound());
        assert!(matches!(found.segments[0].header, Part::Damaged(_)));
        assert!(matches!(found.segments[0].trailer, Part::Damaged(_)));
        assert_eq!(found.segments[0].messages, 16, "counted from its blocks");
        assert_eq!(found.gaps.len(), 1);
        assert_eq!(found.lost_messages(), 16);
        assert_eq!(found.others, [folder.path().join("stray.txt")]);
        assert_eq!(found.damaged_checkpoints.len(), 1);
    }
}

/// An unfinished write is told, but it is no damage.
#[test]
fn a_torn_tail_is_no_damage() {
    let folder = folder();
    let path = folder.path().to_owned();
    run(move || async move {
        let (log, _) = open(&config(&path, 1 << 20), 1).await.unwrap();
        let mut writer = Writer::new(Offset(0), 1);
        for _ in 0..3 {
            let (block, messages) = writer.block(&[&[9_000]]);
            append(&log, block, Offset(messages[0].offset)).await.unwrap();
        }
    });
    edit(&segment_path(folder.path(), 0), 4096 + 2 * 12_288 + 8_192, &[0; 4096]);
    let found = look(folder.path(), VERIFY);
    assert!(found.is_sound(), "{found:#?}");
    assert!(found.segments[0].torn_tail.is_some());
    assert_eq!(found.segments[0].messages, 2);
}

#[test]
fn a_folder_that_is_empty_or_missing() {
    let folder = folder();
    let found = look(folder.path(), VERIFY);
    assert!(found.is_sound() && found.segments.is_empty());
    assert!(inspect(&folder.path().join("none"), VERIFY, &mut |_, _| {}).is_err());
}
