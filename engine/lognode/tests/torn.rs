//! Case 21 through the process: a half-written end of the log is cut off as a whole, and the log goes on behind it.
//!
//! `backends` cuts at every offset; here a few of them go through kill, start, write, kill, start. Seen to fail with: a
//! recovery that
//! does not check payloads, and so takes a record with bytes of the file's earlier life in it for whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use backends::block::{ALIGNMENT, BLOCK_HEADER_BYTES, BlockHeader};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rustix::process::Signal;
use support::{
    Options, Scratch, Server,
    raw::{Answer, Got, PATIENCE, RawProducer, inserts, read_all, truncate},
    send_signal,
};

/// A block as it lies in a file.
#[derive(Debug, Clone, Copy)]
struct Placed {
    at: u64,
    header: BlockHeader,
}

impl Placed {
    /// Where its last record ends; padding and the block's tail follow.
    fn records_end(&self) -> u64 {
        self.at + BLOCK_HEADER_BYTES as u64 + u64::from(self.header.body_len)
    }
}

/// The last file of the log with its blocks in order.
fn last_file(folder: &Path) -> (PathBuf, Vec<Placed>) {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    files.sort();
    for path in files.into_iter().rev() {
        let index: u64 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let bytes = fs::read(&path).unwrap();
        let (mut at, mut blocks) = (ALIGNMENT, Vec::<Placed>::new());
        while let Some(Ok(header)) = bytes.get(at..).map(BlockHeader::read) {
            let follows = blocks
                .last()
                .is_none_or(|last| last.header.next_offset == header.first_offset);
            if header.segment_index != index || !follows {
                break;
            }
            blocks.push(Placed { at: at as u64, header });
            at += header.disk_len() as usize;
        }
        if blocks.len() >= 3 {
            return (path, blocks);
        }
    }
    panic!("no file with blocks in {}", folder.display());
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.metadata().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Writes `count` messages of 1 to 9 KiB whose bodies begin with `life` and their number; up to 6 at once on their way.
/// Returns the offsets that were acked; with `kill` the server dies under the writing, soon after the count is reached.
fn write(server: &Server, life: &str, count: usize, seed: u64, kill: bool) -> Vec<u64> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut producer = RawProducer::open(&server.address, "p").unwrap();
    let killer = kill.then(|| server.pid());
    let mut acked = Vec::new();
    let mut sent = 0;
    loop {
        while sent < acked.len() + 6 && (kill || sent < count) {
            let mut body = format!("{life} {sent} ").into_bytes();
            // Each life has a filling of its own: old bytes in a new record must show.
            body.resize(random.random_range(1_024..9_216), life.as_bytes()[0]);
            if producer.send(sent as u64, &inserts("p", "v", &[&body])).is_err() {
                return acked;
            }
            sent += 1;
        }
        if acked.len() == sent {
            return acked;
        }
        match producer.answer(PATIENCE) {
            Ok((_, Answer::Ack(ack))) => acked.push(ack.base_offset.get()),
            Ok((_, Answer::Refused(refusal))) => panic!("refused: {refusal}"),
            Err(_) => return acked,
        }
        if let Some(pid) = killer.filter(|_| acked.len() == count) {
            send_signal(pid, Signal::KILL);
        }
    }
}

fn life_of(message: &Got) -> &str {
    std::str::from_utf8(&message.body).unwrap().split(' ').next().unwrap()
}

enum Edit {
    /// The file ends here.
    Cut(u64),
    /// Zeros from here on.
    Zeros(u64),
    /// 512 bytes at the end of the last record are those of the file's earlier life. (At the end of its block there is only
    /// padding and the block's tail, without which its records are still whole.)
    Old,
}

#[test]
fn a_torn_end_is_cut_off_whole_and_the_log_goes_on() {
    let scratch = Scratch::new("torn");
    let data = scratch.path().join("data");
    let server = Server::start_with(&data, &Options::small());
    // An earlier life of the files: written, dropped, recycled.
    write(&server, "old", 700, 1, false);
    let first_kept = truncate(&server.address, "p", 700).unwrap().first_offset.get();
    assert_eq!(first_kept, 700);
    thread::sleep(Duration::from_millis(500));
    let acked = write(&server, "new", 100, 2, true);
    assert!(acked.len() >= 100);
    server.kill();
    let (file, blocks) = last_file(&data.join("pchannels/p"));
    let [.., before, last] = blocks.as_slice() else {
        panic!("two blocks at least")
    };
    let end = last.at + last.header.disk_len();

    let mut edits = vec![
        Edit::Old,
        Edit::Cut(last.at),
        Edit::Cut(last.at + 100),
        Edit::Zeros(last.at + 512),
    ];
    let mut random = SmallRng::seed_from_u64(3);
    for i in 0..10 {
        let at = (random.random_range(before.at + 1..end) / 512 * 512).max(before.at + 512);
        edits.push(if i % 2 == 0 { Edit::Cut(at) } else { Edit::Zeros(at) });
    }
    for (case, edit) in edits.iter().enumerate() {
        let data = scratch.path().join(format!("case{case}"));
        copy(&scratch.path().join("data"), &data);
        let path = data.join("pchannels/p").join(file.file_name().unwrap());
        let torn = fs::File::options().read(true).write(true).open(&path).unwrap();
        let at = match *edit {
            Edit::Cut(at) => {
                torn.set_len(at).unwrap();
                at
            }
            Edit::Zeros(at) => {
                let len = torn.metadata().unwrap().len();
                torn.write_all_at(&vec![0; (len - at) as usize], at).unwrap();
                at
            }
            Edit::Old => {
                // What lies behind the end is from before; so is the whole of an older file.
                let mut old = [0; 512];
                torn.read_exact_at(&mut old, end + 512).unwrap();
                let at = last.records_end() - 520;
                torn.write_all_at(&old, at).unwrap();
                at
            }
        };
        let cut = if at < last.at { before } else { last };
        let server = Server::start_with(&data, &Options::small());
        let (first, log) = read_all(&server.address, "p");
        // All blocks in front of the edit, and nothing that it touched. Of its own block, records that are still whole may
        // be saved, up to all of them if only padding was hit.
        let log_end = first + log.len() as u64;
        let saved_most = cut.header.next_offset.get() - u64::from(at < cut.records_end());
        let saved = cut.header.first_offset.get()..=saved_most;
        assert_eq!(first, 700);
        assert!(
            saved.contains(&log_end),
            "case {case}: the log ends at {log_end} after an edit at {at} in {cut:?}"
        );
        assert!(
            log.iter().all(|m| life_of(m) == "new"),
            "case {case}: an earlier life came back"
        );
        let mine = write(&server, "after", 10, 4, false);
        assert_eq!(mine, (log_end..log_end + 10).collect::<Vec<_>>());
        server.kill();
        let server = Server::start_with(&data, &Options::small());
        let (_, again) = read_all(&server.address, "p");
        assert_eq!(again[..log.len()], log[..], "case {case}");
        assert_eq!(again.len(), log.len() + 10, "case {case}");
        assert!(again[log.len()..].iter().all(|m| life_of(m) == "after"), "case {case}");
        server.stop();
        fs::remove_dir_all(&data).unwrap();
    }
    // Without an edit nothing that was acked is missing.
    let server = Server::start_with(&data, &Options::small());
    let (first, log) = read_all(&server.address, "p");
    for offset in acked {
        assert!(offset >= first && log[(offset - first) as usize].offset == offset);
    }
}
