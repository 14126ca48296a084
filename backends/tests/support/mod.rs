//! What the tests of the log share: an executor, records with known content, and a reader that checks all it gets.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // each test binary uses a part of it

use std::{
    future::Future,
    path::{Path, PathBuf},
};

use backends::{
    Chunk, Wal, WalError,
    block::{ALIGNMENT, Block, BlockBuilder},
    local::{LocalConfig, LocalWal, Opened, Replay},
};
use glommio::{LocalExecutorBuilder, Placement};
use wire_format::{
    Bytes, Limits, MessageType, Millis, Offset, ProducerEpoch, ProducerId, Sequence, Term, Timetick,
    batch::{BatchBuilder, Door, Origin, Stamp, verify},
};

pub const PCHANNEL: &str = "p0";
/// Room for the header, the footer and the trailer of a segment.
pub const SEGMENT_OVERHEAD: u64 = (256 << 10) + 8192;

/// Runs a future on a fresh executor on a thread of its own. When the future ends the executor is dropped with whatever is
/// still in flight.
pub fn run<F, T>(make: impl FnOnce() -> F + Send + 'static) -> T
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    LocalExecutorBuilder::new(Placement::Unbound)
        .io_memory(1 << 20)
        .spawn(|| async move { make().await })
        .expect("executor")
        .join()
        .expect("the executor's thread")
}

/// A folder on the disk that the build uses: the default place for temporary files may have no direct I/O.
pub fn folder() -> tempfile::TempDir {
    // Cargo names a place to tests beside the sources, not to those within.
    let binary = std::env::current_exe().expect("own path");
    let place = option_env!("CARGO_TARGET_TMPDIR").map_or(binary.parent().expect("its folder"), Path::new);
    tempfile::tempdir_in(place).expect("temporary folder")
}

/// A log with segments that hold `blocks_bytes` of blocks.
pub fn config(folder: &Path, blocks_bytes: u64) -> LocalConfig {
    LocalConfig {
        folder: folder.to_owned(),
        pchannel: PCHANNEL.to_owned(),
        segment: Bytes(SEGMENT_OVERHEAD + blocks_bytes),
        read_ahead: Bytes(64 << 10),
    }
}

/// One message: what a test writes and expects to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub offset: u64,
    pub timetick: u64,
    pub vchannel: String,
    pub body: Vec<u8>,
}

/// The timetick of an offset: a millisecond each.
pub fn tick_of(offset: u64) -> Timetick {
    Timetick::from_physical(Millis(1_000 + offset))
}

/// The body of the message at `offset`: tells offset, `salt` (so that two lives of one offset differ) and length.
pub fn body(offset: u64, salt: u64, len: usize) -> Vec<u8> {
    let mut state = offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ len as u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 11).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Builds one block after the other, offsets and timeticks growing.
pub struct Writer {
    pub next: u64,
    pub term: Term,
    pub salt: u64,
    pub pchannel: &'static str,
}

impl Writer {
    pub fn new(next: Offset, term: u64) -> Self {
        Self {
            next: next.get(),
            term: Term(term),
            salt: term,
            pchannel: PCHANNEL,
        }
    }

    /// A block with one record for each entry of `records`: the body lengths of its messages.
    pub fn block(&mut self, records: &[&[usize]]) -> (Block, Vec<Message>) {
        let mut messages = Vec::new();
        let mut encoded = Vec::new();
        for lengths in records {
            let first = self.next;
            let limits = Limits {
                batch_bytes: Limits::BATCH_BYTES_MAX,
                ..Limits::WIDEST
            };
            let mut batch = BatchBuilder::new(self.pchannel, limits).unwrap();
            for &len in *lengths {
                let (offset, vchannel) = (self.next, format!("v{}", self.next % 3));
                let body = body(offset, self.salt, len);
                batch.push(&vchannel, MessageType::INSERT, [], &body).unwrap();
                // Timeticks in a batch are consecutive from the first's.
                let timetick = tick_of(first).plus(offset - first).get();
                messages.push(Message {
                    offset,
                    timetick,
                    vchannel,
                    body,
                });
                self.next += 1;
            }
            let origin = Origin {
                producer_id: ProducerId(7),
                producer_epoch: ProducerEpoch(1),
                first_sequence: Sequence(first),
            };
            encoded.push((first, batch.finish(origin).unwrap().to_bytes()));
        }
        (seal(&encoded, self.term), messages)
    }
}

/// Verifies and stamps records and puts them into one block.
pub fn seal(encoded: &[(u64, Vec<u8>)], term: Term) -> Block {
    let room: usize = encoded
        .iter()
        .map(|(_, bytes)| BlockBuilder::capacity_for(bytes.len()))
        .sum();
    let mut builder = BlockBuilder::new(room.max(ALIGNMENT));
    for (first, bytes) in encoded {
        let view = verify(bytes, Door::Producer, &Limits::WIDEST).unwrap();
        let stamp = Stamp {
            base_offset: Offset(*first),
            term,
            first_timetick: tick_of(*first),
            promised_timetick: tick_of(*first).previous(),
        };
        assert!(builder.fits(bytes.len()));
        builder.push(bytes, &view.layout(), &stamp);
    }
    builder.seal(term, ALIGNMENT).0
}

/// The messages of a chunk, each verified by its checksum.
pub fn messages(chunk: &Chunk) -> Vec<Message> {
    let mut found = Vec::new();
    for entry in chunk.entries() {
        let view = entry.view(chunk.bytes());
        verify(view.bytes(), Door::Storage, &Limits::WIDEST).expect("a reader gets whole records");
        for message in view.messages() {
            found.push(Message {
                offset: message.offset.get(),
                timetick: message.timetick.get(),
                vchannel: message.vchannel.to_owned(),
                body: message.body.to_vec(),
            });
        }
    }
    found
}

/// Reads from `from` to `durable`, over damaged places: what was read and the errors met, in order.
pub async fn read_over_damage<W: Wal>(wal: &W, from: Offset, durable: Offset) -> (Vec<Message>, Vec<WalError>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    let mut cursor = wal.cursor(from).unwrap();
    loop {
        match wal.read(&mut cursor, durable).await {
            Ok(Some(chunk)) => found.extend(messages(&chunk)),
            Ok(None) => return (found, errors),
            Err(error) => {
                errors.push(error);
                assert!(errors.len() < 1_000, "a reader makes no way: {errors:?}");
            }
        }
    }
}

/// Reads from `from` to `durable`; whole records, so the first may begin below `from`: those messages are left out.
pub async fn read_all<W: Wal>(wal: &W, from: Offset, durable: Offset) -> Result<Vec<Message>, WalError> {
    let mut found = Vec::new();
    let mut cursor = wal.cursor(from)?;
    while let Some(chunk) = wal.read(&mut cursor, durable).await? {
        found.extend(messages(&chunk));
    }
    found.retain(|message| message.offset >= from.get());
    Ok(found)
}

/// Opens a local log whose replay does not matter.
pub async fn open(config: &LocalConfig, term: u64) -> Result<(LocalWal, Opened), WalError> {
    LocalWal::open(config.clone(), Term(term), &mut |_: Replay<'_>| {}).await
}

/// Appends a block and waits until it is durable.
pub async fn append<W: Wal>(wal: &W, block: Block, committed: Offset) -> Result<bool, WalError> {
    let placed = wal.append(block, committed).await?;
    placed.durable.await?;
    Ok(placed.rolled)
}

/// The path of a segment file.
pub fn segment_path(folder: &Path, index: u64) -> PathBuf {
    folder.join(format!("{index:010}.seg"))
}
