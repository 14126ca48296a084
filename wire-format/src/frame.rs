//! Frames of the native protocol, and their fixed bodies.
//!
//! ```text
//!  0           4      5       6          8               16
//!  | length u32 | kind | flags | zero u16 | correlation u64 | body: `length` bytes
//! ```
//! Little endian. The correlation of a request comes back in its answer.

use crate::{
    FormatError,
    batch::PREFIX_BYTES,
    ids::{Bytes, Offset},
    limits::Limits,
    timetick::Timetick,
};

/// The version of the protocol that this build speaks.
pub const PROTOCOL_VERSION: u16 = 1;
/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 16;
/// A body that carries no batch may not be longer than this.
pub const CONTROL_BODY_BYTES_MAX: u32 = 1 << 20;
/// An administrative reply may not be longer than this: it lists some ten thousand pchannels.
pub const ADMIN_REPLY_BODY_BYTES_MAX: u32 = 16 << 20;
/// A hello may not be longer than this: it comes from a stranger.
pub const HELLO_BODY_BYTES_MAX: u32 = 64 << 10;

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Client: who I am and what I want. First frame of a connection.
    Hello = 1,
    /// Server: welcome.
    HelloReply = 2,
    /// Server: no, and why. With correlation 0 the connection ends.
    Refusal = 3,
    /// Client: store this record.
    Produce = 4,
    /// Server: stored, here.
    Ack = 5,
    /// Server: a record, or the part of it that was asked for.
    Deliver = 6,
    /// Server: nothing at or below this timetick will come again.
    Tick = 7,
    /// Client: that many more bytes may be in flight.
    Credit = 8,
    /// Client: an administrative request.
    AdminRequest = 9,
    /// Server: its answer.
    AdminReply = 10,
    /// Server: I go away in an orderly way; everything acked is safe.
    Goodbye = 11,
}

impl FrameKind {
    /// The kind's name, for errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::HelloReply => "hello reply",
            Self::Refusal => "refusal",
            Self::Produce => "produce",
            Self::Ack => "ack",
            Self::Deliver => "deliver",
            Self::Tick => "tick",
            Self::Credit => "credit",
            Self::AdminRequest => "admin request",
            Self::AdminReply => "admin reply",
            Self::Goodbye => "goodbye",
        }
    }

    fn from_number(kind: u8) -> Result<Self, FormatError> {
        Ok(match kind {
            1 => Self::Hello,
            2 => Self::HelloReply,
            3 => Self::Refusal,
            4 => Self::Produce,
            5 => Self::Ack,
            6 => Self::Deliver,
            7 => Self::Tick,
            8 => Self::Credit,
            9 => Self::AdminRequest,
            10 => Self::AdminReply,
            11 => Self::Goodbye,
            kind => return Err(FormatError::UnknownFrame { kind }),
        })
    }
}

/// The 16 bytes in front of every body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the body.
    pub length: u32,
    /// What it carries.
    pub kind: FrameKind,
    /// Ties an answer to its request; 0 where there is none.
    pub correlation: u64,
}

impl FrameHeader {
    /// The header of a body of `length` bytes.
    pub fn new(kind: FrameKind, length: usize, correlation: u64) -> Self {
        Self {
            length: length as u32,
            kind,
            correlation,
        }
    }

    /// The bytes that travel.
    pub fn to_bytes(self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[8..].copy_from_slice(&self.correlation.to_le_bytes());
        bytes
    }

    /// Reads a header and bounds its length by what its kind may carry, before anything is allocated.
    pub fn read(bytes: &[u8; FRAME_HEADER_BYTES], limits: &Limits) -> Result<Self, FormatError> {
        let kind = FrameKind::from_number(bytes[4])?;
        if bytes[5..8] != [0; 3] {
            return Err(FormatError::Table {
                part: "frame header",
                detail: "reserved bytes are set".to_owned(),
            });
        }
        let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let (what, least, limit) = match kind {
            FrameKind::Produce | FrameKind::Deliver => ("batch bytes", PREFIX_BYTES as u32, limits.batch_bytes),
            FrameKind::Ack => ("bytes of an ack", Ack::BYTES as u32, Ack::BYTES as u32),
            FrameKind::Tick => ("bytes of a tick", Tick::BYTES as u32, Tick::BYTES as u32),
            FrameKind::Credit => ("bytes of a credit", 8, 8),
            FrameKind::Goodbye => ("bytes of a goodbye", 0, 0),
            FrameKind::Hello => ("bytes of a hello", 8, HELLO_BODY_BYTES_MAX),
            FrameKind::AdminReply => ("bytes of an admin reply", 8, ADMIN_REPLY_BODY_BYTES_MAX),
            _ => ("bytes of a control frame", 8, CONTROL_BODY_BYTES_MAX),
        };
        if length < least {
            return Err(FormatError::Short {
                part: kind.name(),
                have: length.into(),
                need: least.into(),
            });
        }
        if length > limit {
            return Err(FormatError::TooLarge {
                what,
                found: length.into(),
                limit: limit.into(),
            });
        }
        let correlation = bytes[8..].try_into().map(u64::from_le_bytes).unwrap_or_default();
        Ok(Self {
            length,
            kind,
            correlation,
        })
    }
}

/// "Stored": durable, at this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Offset of the first message.
    pub base_offset: Offset,
    /// Its timetick; message `i` has the one `i` steps later.
    pub first_timetick: Timetick,
    /// Messages stored.
    pub count: u32,
    /// Whether this answers a retry of a batch that was stored before.
    pub duplicate: bool,
}

impl Ack {
    /// Bytes of the body.
    pub const BYTES: usize = 24;

    /// The bytes that travel.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.base_offset.get().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first_timetick.get().to_le_bytes());
        bytes[16..20].copy_from_slice(&self.count.to_le_bytes());
        bytes[20] = self.duplicate.into();
        bytes
    }

    /// Reads a body.
    pub fn read(body: &[u8]) -> Result<Self, FormatError> {
        let body: &[u8; Self::BYTES] = exact(body, "ack")?;
        Ok(Self {
            base_offset: Offset(long(body, 0)),
            first_timetick: Timetick(long(body, 8)),
            count: long(body, 16) as u32,
            duplicate: body[20] != 0,
        })
    }
}

/// "Nothing at or below `timetick` will come again, and all of it has come."
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// The promise.
    pub timetick: Timetick,
    /// Where to go on reading: the reader passed everything below, wanted or not.
    pub next_offset: Offset,
}

impl Tick {
    /// Bytes of the body.
    pub const BYTES: usize = 16;

    /// The bytes that travel.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.timetick.get().to_le_bytes());
        bytes[8..].copy_from_slice(&self.next_offset.get().to_le_bytes());
        bytes
    }

    /// Reads a body.
    pub fn read(body: &[u8]) -> Result<Self, FormatError> {
        let body: &[u8; Self::BYTES] = exact(body, "tick")?;
        Ok(Self {
            timetick: Timetick(long(body, 0)),
            next_offset: Offset(long(body, 8)),
        })
    }
}

/// Reads the body of a credit: bytes of deliveries that may be in flight in addition.
pub fn read_credit(body: &[u8]) -> Result<Bytes, FormatError> {
    exact::<8>(body, "credit").map(|b| Bytes(u64::from_le_bytes(*b)))
}

/// A whole frame of a short body, ready to be written.
pub fn frame(kind: FrameKind, correlation: u64, body: &[u8]) -> Vec<u8> {
    let header = FrameHeader::new(kind, body.len(), correlation).to_bytes();
    [header.as_slice(), body].concat()
}

fn exact<'a, const N: usize>(body: &'a [u8], part: &'static str) -> Result<&'a [u8; N], FormatError> {
    body.try_into().map_err(|_| FormatError::Short {
        part,
        have: body.len() as u64,
        need: N as u64,
    })
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default()
}
