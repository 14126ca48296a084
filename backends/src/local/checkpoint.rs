//! The checkpoint file of a pchannel: where a recovery may begin, and the state folded up to there.
//!
//! Replaced as a whole: written beside, synced, renamed, folder synced. Losing it costs a longer scan, never data, except
//! for the first kept offset, which then falls back to the start of the oldest segment file.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use rkyv::{Archive, Deserialize, Serialize, rancor, util::AlignedVec};
use wire_format::crc::crc32c;

/// Its file name.
pub const FILE_NAME: &str = "checkpoint";
const MAGIC: u64 = u64::from_le_bytes(*b"LNCHKPT1");
const HEAD_BYTES: usize = 16;

/// What is remembered.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// Messages below are not kept.
    pub first_offset: u64,
    /// `state` is the fold of everything below.
    pub upto: u64,
    /// Opaque to the log: the shard's deduplication table.
    pub state: Vec<u8>,
    /// A block at or before `upto` begins here: segment and position in its file.
    pub scan_segment: u64,
    /// See `scan_segment`.
    pub scan_position: u64,
    /// Offset of that block's first message.
    pub scan_offset: u64,
    /// Largest timetick below `scan_offset`.
    pub scan_timetick: u64,
    /// Largest term below `scan_offset`.
    pub scan_term: u64,
    /// The log was closed in order and ends at the scan position: nothing was in flight.
    pub clean: bool,
}

/// Replaces the checkpoint in `folder`. Blocks the thread. Durable when it returns.
pub fn store(folder: &Path, checkpoint: &Checkpoint) -> io::Result<()> {
    let body = rkyv::to_bytes::<rancor::Error>(checkpoint).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    let beside = folder.join("checkpoint.new");
    let mut file = File::create(&beside)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&beside, folder.join(FILE_NAME))?;
    File::open(folder)?.sync_all()
}

/// Reads the checkpoint of `folder`. `Ok(None)` if there is none; an error text if it is damaged.
pub fn load(folder: &Path) -> io::Result<Result<Option<Checkpoint>, String>> {
    let bytes = match fs::read(folder.join(FILE_NAME)) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Ok(None)),
        Err(e) => return Err(e),
    };
    Ok(parse(&bytes).map(Some))
}

/// Reads the bytes of a checkpoint file.
pub fn parse(bytes: &[u8]) -> Result<Checkpoint, String> {
    let (head, body) = bytes.split_at_checked(HEAD_BYTES).ok_or("shorter than its head")?;
    let short = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if head[..8] != MAGIC.to_le_bytes() {
        return Err("not a checkpoint".to_owned());
    }
    if short(8) as usize != body.len() || short(12) != crc32c(body) {
        return Err("its checksum does not match".to_owned());
    }
    let mut aligned: AlignedVec = AlignedVec::with_capacity(body.len());
    aligned.extend_from_slice(body);
    rkyv::from_bytes::<Checkpoint, rancor::Error>(&aligned).map_err(|e| e.to_string())
}
