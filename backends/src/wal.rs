//! The log that a pchannel is durable in, as the shard sees it.

use std::{future::Future, path::PathBuf, rc::Rc};

use thiserror::Error;
use wire_format::{Bytes, Offset, Term, Timetick};

use crate::block::{Block, PlacedBlock, RecordEntry};

/// What a log held when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogFacts {
    /// First offset that is kept.
    pub first_offset: Offset,
    /// Offset behind the last durable message.
    pub next_offset: Offset,
    /// Timetick of the last durable message, or the largest promise that rode with it.
    pub last_timetick: Timetick,
    /// Term of the last owner that stored something.
    pub last_term: Term,
}

/// A span of a log that can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// First damaged byte.
    pub from: u64,
    /// First byte behind it.
    pub to: u64,
    /// First offset that is lost.
    pub first_offset: Offset,
    /// First offset behind it that can be read again, or the end of the log.
    pub next_offset: Offset,
    /// What is wrong with the bytes.
    pub detail: String,
}

/// What goes wrong with a log. Each text says what, where and what to do.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum WalError {
    /// The operating system refused.
    #[error("{action} {path}: {detail}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        detail: String,
    },
    /// No room.
    #[error("{path}: no space left; free space, lower retention, or truncate a pchannel: writing resumes by itself")]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// Stored bytes are broken.
    #[error(
        "{file}: bytes {from}..{to} are damaged ({detail}); offsets {first_offset}..{next_offset} are lost here; read on from {next_offset}",
        file = .0.file.display(), from = .0.from, to = .0.to, detail = .0.detail,
        first_offset = .0.first_offset, next_offset = .0.next_offset
    )]
    Damaged(Box<Damage>),
    /// The offset is no longer kept.
    #[error("offset {asked} is no longer kept: the log begins at {first}; start at {first} or at earliest")]
    Truncated {
        /// What was asked for.
        asked: Offset,
        /// The first offset that is kept.
        first: Offset,
    },
    /// The log was stored by a newer owner, or by one of the same term.
    #[error("the log of {pchannel} was written under term {stored}, not older than {ours}; this owner must stop")]
    StaleTerm {
        /// The pchannel.
        pchannel: String,
        /// The term found.
        stored: Term,
        /// The term asked for.
        ours: Term,
    },
    /// A block does not continue the log. The caller has lost the order.
    #[error(
        "the log of {pchannel} ends at {due}, a block of offsets {first_offset}..{next_offset} does not continue it; open \
         the log again"
    )]
    OutOfOrder {
        /// The pchannel.
        pchannel: String,
        /// Offset behind the last block.
        due: Offset,
        /// First offset of the block.
        first_offset: Offset,
        /// Offset behind the block.
        next_offset: Offset,
    },
    /// A block is larger than the backend can store.
    #[error(
        "a block of {bytes} bytes is over the limit of {limit} bytes of the backend {backend}; send smaller batches"
    )]
    TooLarge {
        /// The backend.
        backend: &'static str,
        /// Bytes of the block.
        bytes: Bytes,
        /// What it takes.
        limit: Bytes,
    },
    /// A file of the log is missing or does not follow the one before.
    #[error("{path}: {detail}; restore the file from a copy, or move the folder away to begin an empty log")]
    Broken {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// An earlier write failed, so nothing may be appended until the log is opened again.
    #[error("the log is closed since an earlier error: {first_cause}")]
    Closed {
        /// The error that closed it.
        first_cause: String,
    },
}

/// Records read from the log, verified. Their bytes are shared with whoever else reads them.
#[derive(Clone)]
pub enum Chunk {
    /// A block from memory.
    Memory(Rc<PlacedBlock>),
    /// Bytes read from a file; entries count from the first byte.
    Disk {
        /// The bytes.
        bytes: glommio::io::ReadResult,
        /// The records in them.
        entries: Rc<Vec<RecordEntry>>,
    },
}

impl Chunk {
    /// The bytes that the entries point into.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Memory(block) => block.bytes(),
            Self::Disk { bytes, .. } => bytes,
        }
    }

    /// The records, in order.
    pub fn entries(&self) -> &[RecordEntry] {
        match self {
            Self::Memory(block) => &block.entries,
            Self::Disk { entries, .. } => entries,
        }
    }
}

/// A block that has its place, and the future that ends when it is durable.
pub struct Placed<F> {
    /// The block, for the tail.
    pub block: Rc<PlacedBlock>,
    /// Ends when the block and everything before it is durable, or can't be. May be dropped: the write goes on.
    pub durable: F,
    /// Whether the block opened a new segment: a good moment for a checkpoint.
    pub rolled: bool,
}

/// A durable log with a reader. Used by one shard only; no call may be made from another thread.
///
/// One writer task appends; any number of readers read. There is no consumer group and no cursor in the log.
#[allow(async_fn_in_trait)] // used through generics on one thread: the missing `Send` bound is wanted
pub trait Wal {
    /// Ends when an appended block is durable.
    type Durable: Future<Output = Result<(), WalError>> + 'static;
    /// Remembers where a reader stands.
    type Cursor;

    /// Takes the next place in the log for `block`. When this returns the order is fixed but nothing is durable; await
    /// `durable` for that. Several may be in flight, and become durable in order. `committed` is the offset below which
    /// everything is durable.
    ///
    /// # Errors
    /// An error means that the block took no place and left no trace. The log goes on, unless it is [`WalError::Closed`].
    async fn append(&self, block: Block, committed: Offset) -> Result<Placed<Self::Durable>, WalError>;

    /// Makes sure that a block of up to `bytes` finds its place without waiting for space. Ask before a block is sealed: on
    /// [`WalError::DiskFull`] the records stay where they are, and a later call succeeds once there is space again.
    async fn make_room(&self, bytes: Bytes) -> Result<(), WalError> {
        let _ = bytes;
        Ok(())
    }

    /// A cursor that stands at `from`.
    fn cursor(&self, from: Offset) -> Result<Self::Cursor, WalError>;

    /// An offset at or before the first message with a timetick of `timetick` or more: where to begin looking.
    fn locate(&self, timetick: Timetick) -> Offset;

    /// The next records at the cursor, which moves behind them; an empty chunk at the durable end. Records below
    /// `durable` only, and whole records: the first may begin below the cursor.
    ///
    /// # Errors
    /// After [`WalError::Damaged`] the cursor stands behind the damage: the next call goes on there. After
    /// [`WalError::Truncated`] it stands where it stood.
    async fn read(&self, cursor: &mut Self::Cursor, durable: Offset) -> Result<Option<Chunk>, WalError>;

    /// Remembers `state` as the fold of everything below `upto`, which must be durable. Durable when it returns.
    async fn checkpoint(&self, upto: Offset, state: Vec<u8>) -> Result<(), WalError>;

    /// Forgets messages below `upto`; storage is freed by whole segments. Returns the first offset kept. Durable when it
    /// returns.
    async fn truncate(&self, upto: Offset) -> Result<Offset, WalError>;

    /// Ends writing: seals what is open and writes a last checkpoint, so that the next open has nothing to recover.
    async fn close(&self, state: Vec<u8>) -> Result<(), WalError>;

    /// First offset that is kept.
    fn first_offset(&self) -> Offset;

    /// Bytes in the log's storage.
    fn stored(&self) -> Bytes;
}
