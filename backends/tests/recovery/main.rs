//! What a log of segment files is after a crash, and after its files were damaged at rest.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crash;
mod mixed_up;
mod rot;
#[path = "../support/mod.rs"]
mod support;
mod torn;

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use backends::{
    Damage, Wal, WalError,
    block::{ALIGNMENT, BlockHeader},
    local::{LocalConfig, LocalWal, Opened, Replay},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use support::*;
use wire_format::{Offset, Term};

/// A copy of a folder's files as they are at this moment. A file that is renamed meanwhile, by a helper thread, makes it begin
/// anew.
fn copy(from: &Path, to: &Path) {
    while copy_once(from, to).is_err() {
        fs::remove_dir_all(to).unwrap();
    }
}

fn copy_once(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        fs::copy(&path, to.join(path.file_name().unwrap()))?;
    }
    Ok(())
}

/// Overwrites bytes of a file.
fn edit(path: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

fn bytes_at(path: &Path, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(path).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

/// The blocks of a segment file that is whole: position and header of each.
fn blocks(path: &Path) -> Vec<(u64, BlockHeader)> {
    let bytes = fs::read(path).unwrap();
    let (mut at, mut found) = (ALIGNMENT, Vec::new());
    let index: u64 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let mut tag = None;
    while let Some(header) = bytes.get(at..).and_then(|bytes| BlockHeader::read(bytes).ok()) {
        if header.segment_index != index || *tag.get_or_insert(header.tag) != header.tag {
            break;
        }
        if found
            .last()
            .is_some_and(|(_, last): &(u64, BlockHeader)| last.next_offset != header.first_offset)
        {
            break;
        }
        found.push((at as u64, header));
        at += header.disk_len() as usize;
    }
    found
}

/// The segment files of a folder, by index.
fn segment_files(folder: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = names
        .filter(|path| path.extension().is_some_and(|e| e == "seg"))
        .collect();
    files.sort();
    files
}

/// Opens a log and notes the first offset of each record replayed.
async fn open_replayed(config: &LocalConfig, term: u64) -> Result<(LocalWal, Opened, Vec<u64>), WalError> {
    let mut replayed = Vec::new();
    let on_replay = &mut |replay: Replay<'_>| {
        if let Replay::Record(meta) = replay {
            replayed.push(meta.base_offset.get());
        }
    };
    let (log, opened) = LocalWal::open(config.clone(), Term(term), on_replay).await?;
    Ok((log, opened, replayed))
}

fn damage_of(error: &WalError) -> &Damage {
    match error {
        WalError::Damaged(damage) => damage,
        other => panic!("not the error of a damaged place: {other}"),
    }
}

/// The one promise about damage: what was read and what was reported lost make up the log, in order, with nothing twice,
/// nothing else, and nothing in silence.
fn account(expected: &[Message], found: &[Message], errors: &[WalError], first: u64) {
    let mut lost: Vec<(u64, u64)> = errors
        .iter()
        .map(|error| (damage_of(error).first_offset.get(), damage_of(error).next_offset.get()))
        .collect();
    lost.sort_unstable();
    let (mut found, mut lost) = (found.iter().peekable(), lost.into_iter().peekable());
    let mut due = first;
    let end = expected.len() as u64;
    while due < end {
        if let Some(message) = found.next_if(|message| message.offset == due) {
            assert_eq!(message, &expected[due as usize]);
            due += 1;
        } else if let Some((from, to)) = lost.next_if(|(from, _)| *from == due) {
            assert!(to > from && to <= end, "lost {from}..{to} of {end}");
            due = to;
        } else {
            panic!(
                "offset {due} neither came nor was reported; next {:?}, lost {:?}",
                found.peek(),
                lost.peek()
            );
        }
    }
    assert_eq!((found.next(), lost.next()), (None, None));
}

fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Writes `blocks` blocks of 1 to 3 records of 1 to 4 messages, one after the other.
async fn fill(log: &LocalWal, writer: &mut Writer, blocks: usize, random: &mut StdRng) -> Vec<Message> {
    let mut all = Vec::new();
    for _ in 0..blocks {
        let records: Vec<Vec<usize>> = (0..random.random_range(1..4))
            .map(|_| {
                (0..random.random_range(1..5))
                    .map(|_| random.random_range(0..3_000))
                    .collect()
            })
            .collect();
        let records: Vec<&[usize]> = records.iter().map(Vec::as_slice).collect();
        let committed = Offset(writer.next);
        let (block, messages) = writer.block(&records);
        append(log, block, committed).await.unwrap();
        all.extend(messages);
    }
    all
}
