//! What can be wrong with bytes.

use thiserror::Error;

/// Why bytes are not what they claim to be. Each text says what, where and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Fewer bytes than the part needs.
    #[error("{part}: {have} bytes where {need} are needed; the sender or the disk cut it short")]
    Short {
        /// Which part of the bytes.
        part: &'static str,
        /// Bytes there are.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// The first bytes are not ours.
    #[error("{part}: begins with {found:#010x} instead of {expected:#010x}; these are not bytes of this format")]
    Magic {
        /// Which part of the bytes.
        part: &'static str,
        /// What stands there.
        found: u32,
        /// What should.
        expected: u32,
    },
    /// A layout of another time.
    #[error("{part}: version {found}, but this build reads {expected}; use a build that speaks version {found}")]
    Version {
        /// Which part of the bytes.
        part: &'static str,
        /// What stands there.
        found: u16,
        /// What this build speaks.
        expected: u16,
    },
    /// A checksum does not match its bytes.
    #[error(
        "{part}: crc32c is {computed:#010x}, but {stored:#010x} is written; the bytes were damaged on the way or on disk"
    )]
    Checksum {
        /// Which part of the bytes.
        part: &'static str,
        /// The checksum that the bytes have.
        computed: u32,
        /// The checksum that they carry.
        stored: u32,
    },
    /// The payload of one message does not match its checksum.
    #[error(
        "message {index}: payload crc32c is {computed:#010x}, but its header says {stored:#010x}; the payload was damaged"
    )]
    PayloadChecksum {
        /// Index of the message in its batch.
        index: u32,
        /// The checksum that the payload has.
        computed: u32,
        /// The checksum that its header carries.
        stored: u32,
    },
    /// A limit is passed.
    #[error(
        "{what} is {found}, over the limit of {limit}; split the batch, or raise the limit in the server's configuration"
    )]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        found: u64,
        /// How large it may be.
        limit: u64,
    },
    /// A name that can't be one.
    #[error("{what} {name:?} is not a valid name: {why}")]
    Name {
        /// What is named.
        what: &'static str,
        /// The name, shortened.
        name: String,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// A FlatBuffers table is broken.
    #[error("{part}: not a valid table: {detail}")]
    Table {
        /// Which table.
        part: &'static str,
        /// What the verifier found.
        detail: String,
    },
    /// A message header contradicts the batch.
    #[error("message {index}: {what} is {found}, expected {expected}")]
    Header {
        /// Index of the message in its batch.
        index: u32,
        /// Which field.
        what: &'static str,
        /// What stands there.
        found: u64,
        /// What the rest of the batch asks for.
        expected: u64,
    },
    /// The batch's meta contradicts its headers.
    #[error("batch meta: {what} is {found}, but the messages give {expected}")]
    Meta {
        /// Which field.
        what: &'static str,
        /// What stands there.
        found: u64,
        /// What the messages give.
        expected: u64,
    },
    /// A producer used a type that only the log may write.
    #[error("message {index}: type {message_type} is written by the log itself; a producer may not send it")]
    ReservedType {
        /// Index of the message in its batch.
        index: u32,
        /// The type.
        message_type: u16,
    },
    /// A batch without messages.
    #[error("a batch must hold at least one message")]
    Empty,
    /// Properties of a message can't be read.
    #[error("properties: {detail}")]
    Properties {
        /// What is wrong.
        detail: &'static str,
    },
    /// A text that names no message type.
    #[error("{text:?} is no message type; use a name such as insert or delete, or a number")]
    UnknownMessageType {
        /// The text.
        text: String,
    },
    /// A number that names no kind of frame.
    #[error("frame kind {kind} is unknown; this build speaks protocol version {version}", version = crate::frame::PROTOCOL_VERSION)]
    UnknownFrame {
        /// The number.
        kind: u8,
    },
    /// A frame came where another was due.
    #[error("a {found} frame came where {expected} was due")]
    UnexpectedFrame {
        /// The kind that came.
        found: &'static str,
        /// What was due.
        expected: &'static str,
    },
}
