//! The checkpoint of a pchannel: where a recovery may begin, and the state folded up to there.
//!
//! Two files take turns, each with a sequence number; the newer whole one counts. They are overwritten in place, so a full
//! disk does not keep a log from being truncated. Losing one costs a longer scan; losing both costs no message either, but
//! the first kept offset, which then falls back to the start of the oldest segment file.
//!
//! A file: magic u64 | sequence u64 | length u32 | crc32c u32 of sequence, length and archive | rkyv archive | zeros.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use rkyv::{Archive, Deserialize, Serialize, rancor, util::AlignedVec};
use wire_format::crc::crc32c_of_parts;

use super::footer::Footer;

/// Their file names.
pub const FILE_NAMES: [&str; 2] = ["checkpoint.0", "checkpoint.1"];
const MAGIC: u64 = u64::from_le_bytes(*b"LNCHKPT2");
const HEAD_BYTES: usize = 24;
/// Files grow by this, so that a state that grows a little needs no new space.
const STEP_BYTES: usize = 16 << 10;

/// What is remembered.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// Grows with each checkpoint of the pchannel.
    pub sequence: u64,
    /// Whose it is: a file copied from another folder must not count.
    pub pchannel_hash: u64,
    /// Messages below are not kept.
    pub first_offset: u64,
    /// `state` is the fold of everything below, and all of it was durable.
    pub upto: u64,
    /// Opaque to the log: the shard's deduplication table.
    pub state: Vec<u8>,
    /// A block at or before `upto` begins here: segment and position in its file.
    pub scan_segment: u64,
    /// See `scan_segment`.
    pub scan_position: u64,
    /// Offset of that block's first message.
    pub scan_offset: u64,
    /// Largest timetick below `upto`, or a larger one.
    pub scan_timetick: u64,
    /// A term that no block from the scan position on is below.
    pub scan_term: u64,
    /// The part of the segment before the scan position, so that it need not be read.
    pub scan_footer: Footer,
    /// The log was closed in order, ends at the scan position, and was not written to since.
    pub clean: bool,
}

impl Checkpoint {
    /// Whether it names a place where a scan may begin: the first truncation of a log may come before the first state.
    pub fn has_place(&self) -> bool {
        self.scan_position > 0
    }
}

/// What was found of the checkpoint.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The newest whole one.
    pub checkpoint: Option<Checkpoint>,
    /// Files that are there but can't be read, with what is wrong. One of them may have been the newest.
    pub damaged: Vec<(PathBuf, String)>,
}

/// Stores a checkpoint of a larger sequence than those in `folder`. Blocks the thread. Durable when it returns.
pub fn store(folder: &Path, checkpoint: &Checkpoint) -> io::Result<()> {
    let path = folder.join(FILE_NAMES[(checkpoint.sequence % 2) as usize]);
    let is_new = !path.exists();
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)?;
    file.write_all(&to_bytes(checkpoint)?)?;
    file.sync_all()?;
    if is_new {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn to_bytes(checkpoint: &Checkpoint) -> io::Result<Vec<u8>> {
    let body = rkyv::to_bytes::<rancor::Error>(checkpoint).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity((HEAD_BYTES + body.len()).next_multiple_of(STEP_BYTES));
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&checkpoint.sequence.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&body);
    let crc = checksum(&bytes);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(STEP_BYTES), 0);
    Ok(bytes)
}

/// Over sequence, length and archive.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c_of_parts(&[&bytes[8..20], &bytes[HEAD_BYTES..]])
}

/// Reads the checkpoint of `folder`, which must be that of the pchannel with this hash, if that is known.
pub fn load(folder: &Path, pchannel_hash: Option<u64>) -> io::Result<Loaded> {
    let mut loaded = Loaded::default();
    for name in FILE_NAMES {
        let path = folder.join(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        match parse(&bytes) {
            Ok(found) if pchannel_hash.is_some_and(|hash| hash != found.pchannel_hash) => {
                let detail = "it is a checkpoint of another pchannel".to_owned();
                loaded.damaged.push((path, detail));
            }
            Ok(found)
                if loaded
                    .checkpoint
                    .as_ref()
                    .is_none_or(|best| best.sequence < found.sequence) =>
            {
                loaded.checkpoint = Some(found);
            }
            Ok(_) => {}
            Err(detail) => loaded.damaged.push((path, detail)),
        }
    }
    Ok(loaded)
}

/// Reads the bytes of a checkpoint file.
pub fn parse(bytes: &[u8]) -> Result<Checkpoint, String> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES).ok_or("shorter than its head")?;
    let short = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if head[..8] != MAGIC.to_le_bytes() {
        return Err("not a checkpoint".to_owned());
    }
    let body = rest.get(..short(16) as usize).ok_or("shorter than it says")?;
    if short(20) != checksum(&bytes[..HEAD_BYTES + body.len()]) {
        return Err("its checksum does not match".to_owned());
    }
    let mut aligned: AlignedVec = AlignedVec::with_capacity(body.len());
    aligned.extend_from_slice(body);
    rkyv::from_bytes::<Checkpoint, rancor::Error>(&aligned).map_err(|e| e.to_string())
}
