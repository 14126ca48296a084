//! Hello, refusal and administration as typed values. The bytes are FlatBuffers tables (`schemas/protocol.fbs`), verified
//! when read.

use std::fmt;

use flatbuffers::{FlatBufferBuilder, VerifierOptions};

pub use crate::generated::protocol::{AdminKind, Intent, StartKind};
use crate::{
    FormatError,
    batch::Filter,
    frame::PROTOCOL_VERSION,
    generated::protocol as table,
    ids::{Bytes, MessageType, Millis, Offset, Sequence, Term},
    timetick::Timetick,
};

/// Features that this build knows. None yet; the bits are room for later.
pub const FEATURES_KNOWN: u64 = 0;

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// At the first message that is kept. A gap before it is not an error: it was asked for.
    #[default]
    Earliest,
    /// Behind the last message that is durable when the reader arrives.
    Latest,
    /// At this offset; below the first kept one this is an error, never a silent jump.
    Offset(Offset),
    /// At the first message with this timetick or a larger one.
    Timetick(Timetick),
}

/// What a reader asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadRequest {
    /// Where it begins.
    pub start: Start,
    /// What it wants.
    pub filter: Filter,
    /// Bytes of deliveries that may be in flight before it grants more.
    pub credit: Bytes,
}

impl ReadRequest {
    fn of_table(read: table::ReadRequestT) -> Result<Self, FormatError> {
        let start = match read.start {
            StartKind::Earliest => Start::Earliest,
            StartKind::Latest => Start::Latest,
            StartKind::Offset => Start::Offset(Offset(read.start_at)),
            StartKind::Timetick => Start::Timetick(Timetick(read.start_at)),
            StartKind(other) => return Err(unknown("hello", "start", other)),
        };
        let types = read.message_types.unwrap_or_default();
        let filter = Filter::new(
            read.vchannels.unwrap_or_default(),
            types.into_iter().map(MessageType).collect(),
            Timetick(read.min_timetick),
            Timetick(read.max_timetick),
        );
        Ok(Self {
            start,
            filter,
            credit: Bytes(read.credit_bytes),
        })
    }
}

/// First frame of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Protocol version.
    pub version: u16,
    /// Optional features wanted.
    pub features: u64,
    /// Who asks, for logs.
    pub client_name: String,
    /// What it wants.
    pub intent: Intent,
    /// Of which pchannel; may be empty only for [`Intent::Admin`].
    pub pchannel: String,
    /// Room for credentials; not looked at yet.
    pub credentials: Vec<u8>,
    /// With [`Intent::Read`]: what to read.
    pub read: Option<ReadRequest>,
}

impl Hello {
    /// A hello in this build's version.
    pub fn new(client_name: &str, intent: Intent, pchannel: &str) -> Self {
        Self {
            version: PROTOCOL_VERSION,
            features: 0,
            client_name: client_name.to_owned(),
            intent,
            pchannel: pchannel.to_owned(),
            credentials: Vec::new(),
            read: None,
        }
    }

    /// The body of the frame.
    pub fn to_body(&self) -> Vec<u8> {
        let read = self.read.as_ref().map(|read| {
            let (start, start_at) = match read.start {
                Start::Earliest => (StartKind::Earliest, 0),
                Start::Latest => (StartKind::Latest, 0),
                Start::Offset(offset) => (StartKind::Offset, offset.get()),
                Start::Timetick(timetick) => (StartKind::Timetick, timetick.get()),
            };
            Box::new(table::ReadRequestT {
                start,
                start_at,
                vchannels: Some(read.filter.vchannels().to_vec()),
                message_types: Some(read.filter.message_types().iter().map(|t| t.0).collect()),
                min_timetick: read.filter.min_timetick.get(),
                max_timetick: read.filter.max_timetick.get(),
                credit_bytes: read.credit.get(),
            })
        });
        let hello = table::HelloT {
            version: self.version,
            features: self.features,
            client_name: Some(self.client_name.clone()),
            intent: self.intent,
            pchannel: Some(self.pchannel.clone()),
            credentials: Some(self.credentials.clone()),
            read,
        };
        finish(|fbb| hello.pack(fbb).value())
    }

    /// Reads the body of a frame. Another version than this build's is not an error here, since the server answers it with
    /// what it speaks: then `intent` is as it came, and `read` is `None`, as their meaning is not known.
    pub fn read(body: &[u8]) -> Result<Self, FormatError> {
        let hello = root::<table::Hello<'_>>("hello", body)?.unpack();
        let known = hello.version == PROTOCOL_VERSION;
        if known && hello.intent.variant_name().is_none() {
            return Err(unknown("hello", "intent", hello.intent.0));
        }
        let read = hello.read.filter(|_| known).map(|read| ReadRequest::of_table(*read));
        Ok(Self {
            version: hello.version,
            features: hello.features,
            client_name: hello.client_name.unwrap_or_default(),
            intent: hello.intent,
            pchannel: hello.pchannel.unwrap_or_default(),
            credentials: hello.credentials.unwrap_or_default(),
            read: read.transpose()?,
        })
    }
}

/// The server's yes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HelloReply {
    /// Version that the connection speaks from now on.
    pub version: u16,
    /// Features that are on.
    pub features: u64,
    /// Who answers, for logs.
    pub server_name: String,
    /// Term of the owner.
    pub term: Term,
    /// First offset that is kept.
    pub first_offset: Offset,
    /// Offset behind the last durable message.
    pub next_offset: Offset,
    /// Timetick of the last durable message.
    pub last_timetick: Timetick,
    /// Largest record that is taken.
    pub max_batch_bytes: u32,
    /// Most messages in a record.
    pub max_batch_messages: u32,
    /// Where a reader really begins.
    pub start_offset: Offset,
}

impl HelloReply {
    /// The body of the frame.
    pub fn to_body(&self) -> Vec<u8> {
        let reply = table::HelloReplyT {
            version: self.version,
            features: self.features,
            server_name: Some(self.server_name.clone()),
            term: self.term.get(),
            first_offset: self.first_offset.get(),
            next_offset: self.next_offset.get(),
            last_timetick: self.last_timetick.get(),
            max_batch_bytes: self.max_batch_bytes,
            max_batch_messages: self.max_batch_messages,
            start_offset: self.start_offset.get(),
        };
        finish(|fbb| reply.pack(fbb).value())
    }

    /// Reads the body of a frame.
    pub fn read(body: &[u8]) -> Result<Self, FormatError> {
        let reply = root::<table::HelloReply<'_>>("hello reply", body)?.unpack();
        Ok(Self {
            version: reply.version,
            features: reply.features,
            server_name: reply.server_name.unwrap_or_default(),
            term: Term(reply.term),
            first_offset: Offset(reply.first_offset),
            next_offset: Offset(reply.next_offset),
            last_timetick: Timetick(reply.last_timetick),
            max_batch_bytes: reply.max_batch_bytes,
            max_batch_messages: reply.max_batch_messages,
            start_offset: Offset(reply.start_offset),
        })
    }
}

/// Why the server says no. The number travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalCode {
    /// The bytes are wrong; sending them again is of no use.
    BadRequest,
    /// The protocol version is not spoken here.
    VersionUnsupported,
    /// A feature is not known here.
    FeatureUnsupported,
    /// Another node owns the pchannel.
    NotOwner,
    /// The pchannel does not exist and may not be created.
    UnknownPchannel,
    /// The messages asked for are no longer kept.
    Truncated,
    /// The offset asked for lies beyond the end.
    BeyondEnd,
    /// Slower, please.
    RateLimited,
    /// A batch before this one did not arrive.
    SequenceGap,
    /// A newer incarnation of the producer has taken over.
    ProducerFenced,
    /// The retry is older than what is remembered: whether it was stored before is not known.
    WindowOver,
    /// The batch, or something else, is over a limit.
    TooLarge,
    /// The disk is full.
    DiskFull,
    /// Stored bytes are damaged.
    Damaged,
    /// The node goes down in an orderly way.
    ShuttingDown,
    /// The pchannel's log failed; it is closed until it is opened again.
    LogFailed,
    /// A code of a newer server.
    Other(u16),
}

impl RefusalCode {
    const TABLE: [(Self, u16); 16] = [
        (Self::BadRequest, 1),
        (Self::VersionUnsupported, 2),
        (Self::FeatureUnsupported, 3),
        (Self::NotOwner, 4),
        (Self::UnknownPchannel, 5),
        (Self::Truncated, 6),
        (Self::BeyondEnd, 7),
        (Self::RateLimited, 8),
        (Self::SequenceGap, 9),
        (Self::ProducerFenced, 10),
        (Self::WindowOver, 11),
        (Self::TooLarge, 12),
        (Self::DiskFull, 13),
        (Self::Damaged, 14),
        (Self::ShuttingDown, 15),
        (Self::LogFailed, 16),
    ];

    /// The number that travels.
    pub fn number(self) -> u16 {
        match self {
            Self::Other(number) => number,
            known => Self::TABLE
                .iter()
                .find(|(code, _)| *code == known)
                .map_or(0, |&(_, number)| number),
        }
    }

    /// The code of a number.
    pub fn from_number(number: u16) -> Self {
        Self::TABLE
            .iter()
            .find(|&&(_, n)| n == number)
            .map_or(Self::Other(number), |&(code, _)| code)
    }

    /// Whether the same request may succeed later, unchanged.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::RateLimited
                | Self::ShuttingDown
                | Self::LogFailed
                | Self::DiskFull
                | Self::NotOwner
                | Self::SequenceGap
        )
    }
}

/// The server's no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why, for programs.
    pub code: RefusalCode,
    /// What was wrong, where, and what to do, for people.
    pub message: String,
    /// With [`RefusalCode::VersionUnsupported`]: what is spoken.
    pub versions: (u16, u16),
    /// With [`RefusalCode::FeatureUnsupported`]: what is known.
    pub features: u64,
    /// With [`RefusalCode::NotOwner`]: where to go.
    pub address: String,
    /// With [`RefusalCode::NotOwner`]: the owner's term.
    pub term: Term,
    /// With [`RefusalCode::Truncated`] and [`RefusalCode::BeyondEnd`]: what was asked for.
    pub asked_offset: Offset,
    /// First offset that is kept.
    pub first_offset: Offset,
    /// Offset behind the last message.
    pub next_offset: Offset,
    /// With [`RefusalCode::RateLimited`]: which limit.
    pub limit_name: String,
    /// The value that was measured.
    pub measured: u64,
    /// The value that is allowed.
    pub limit_value: u64,
    /// When to try again.
    pub retry_after: Millis,
    /// With [`RefusalCode::SequenceGap`]: the sequence that would be taken.
    pub expected_sequence: Sequence,
    /// With [`RefusalCode::Damaged`]: the file.
    pub file: String,
    /// With [`RefusalCode::Damaged`]: the byte range in it.
    pub damaged: (u64, u64),
}

impl Refusal {
    /// A refusal with nothing but its reason.
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            versions: (PROTOCOL_VERSION, PROTOCOL_VERSION),
            features: FEATURES_KNOWN,
            address: String::new(),
            term: Term::ZERO,
            asked_offset: Offset::ZERO,
            first_offset: Offset::ZERO,
            next_offset: Offset::ZERO,
            limit_name: String::new(),
            measured: 0,
            limit_value: 0,
            retry_after: Millis::ZERO,
            expected_sequence: Sequence::ZERO,
            file: String::new(),
            damaged: (0, 0),
        }
    }

    /// The body of the frame.
    pub fn to_body(&self) -> Vec<u8> {
        let refusal = table::RefusalT {
            code: self.code.number(),
            message: Some(self.message.clone()),
            version_min: self.versions.0,
            version_max: self.versions.1,
            features: self.features,
            address: Some(self.address.clone()),
            term: self.term.get(),
            asked_offset: self.asked_offset.get(),
            first_offset: self.first_offset.get(),
            next_offset: self.next_offset.get(),
            limit_name: Some(self.limit_name.clone()),
            measured: self.measured,
            limit_value: self.limit_value,
            retry_after_ms: u32::try_from(self.retry_after.get()).unwrap_or(u32::MAX),
            expected_sequence: self.expected_sequence.get(),
            file: Some(self.file.clone()),
            damaged_from: self.damaged.0,
            damaged_to: self.damaged.1,
        };
        finish(|fbb| refusal.pack(fbb).value())
    }

    /// Reads the body of a frame.
    pub fn read(body: &[u8]) -> Result<Self, FormatError> {
        let refusal = root::<table::Refusal<'_>>("refusal", body)?.unpack();
        Ok(Self {
            code: RefusalCode::from_number(refusal.code),
            message: refusal.message.unwrap_or_default(),
            versions: (refusal.version_min, refusal.version_max),
            features: refusal.features,
            address: refusal.address.unwrap_or_default(),
            term: Term(refusal.term),
            asked_offset: Offset(refusal.asked_offset),
            first_offset: Offset(refusal.first_offset),
            next_offset: Offset(refusal.next_offset),
            limit_name: refusal.limit_name.unwrap_or_default(),
            measured: refusal.measured,
            limit_value: refusal.limit_value,
            retry_after: Millis(refusal.retry_after_ms.into()),
            expected_sequence: Sequence(refusal.expected_sequence),
            file: refusal.file.unwrap_or_default(),
            damaged: (refusal.damaged_from, refusal.damaged_to),
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// An administrative request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminRequest {
    /// List the pchannels of the node.
    ListPchannels,
    /// Messages of the hello's pchannel below this offset may go.
    Truncate {
        /// First offset that must stay.
        upto: Offset,
    },
}

impl AdminRequest {
    /// The body of the frame.
    pub fn to_body(self) -> Vec<u8> {
        let (kind, upto) = match self {
            Self::ListPchannels => (AdminKind::ListPchannels, 0),
            Self::Truncate { upto } => (AdminKind::Truncate, upto.get()),
        };
        finish(|fbb| table::AdminRequestT { kind, upto }.pack(fbb).value())
    }

    /// Reads the body of a frame.
    pub fn read(body: &[u8]) -> Result<Self, FormatError> {
        let request = root::<table::AdminRequest<'_>>("admin request", body)?;
        match request.kind() {
            AdminKind::ListPchannels => Ok(Self::ListPchannels),
            AdminKind::Truncate => Ok(Self::Truncate {
                upto: Offset(request.upto()),
            }),
            AdminKind(other) => Err(unknown("admin request", "kind", other)),
        }
    }
}

/// One pchannel as its shard sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PchannelInfo {
    /// Its name.
    pub name: String,
    /// The shard that owns it.
    pub shard: u16,
    /// The owner's term.
    pub term: Term,
    /// First offset that is kept.
    pub first_offset: Offset,
    /// Offset behind the last durable message.
    pub next_offset: Offset,
    /// Largest timetick given out.
    pub last_timetick: Timetick,
    /// Bytes in segment files.
    pub stored: Bytes,
    /// Bytes of its tail in memory.
    pub tail: Bytes,
    /// Connections that read it.
    pub readers: u32,
    /// Connections that write it.
    pub producers: u32,
    /// Why it is closed; empty if it is not.
    pub failed: String,
}

/// The answer to an administrative request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AdminReply {
    /// With [`AdminRequest::ListPchannels`]: all of them, by name.
    pub pchannels: Vec<PchannelInfo>,
    /// With [`AdminRequest::Truncate`]: the first offset that is kept now.
    pub first_offset: Offset,
    /// What held the truncation back; empty if nothing did.
    pub held_by: String,
}

impl AdminReply {
    /// The body of the frame.
    pub fn to_body(&self) -> Vec<u8> {
        let info = |p: &PchannelInfo| table::PchannelInfoT {
            name: p.name.clone(),
            shard: p.shard,
            term: p.term.get(),
            first_offset: p.first_offset.get(),
            next_offset: p.next_offset.get(),
            last_timetick: p.last_timetick.get(),
            stored_bytes: p.stored.get(),
            tail_bytes: p.tail.get(),
            readers: p.readers,
            producers: p.producers,
            failed: Some(p.failed.clone()),
        };
        let reply = table::AdminReplyT {
            pchannels: Some(self.pchannels.iter().map(info).collect()),
            first_offset: self.first_offset.get(),
            held_by: Some(self.held_by.clone()),
        };
        finish(|fbb| reply.pack(fbb).value())
    }

    /// Reads the body of a frame.
    pub fn read(body: &[u8]) -> Result<Self, FormatError> {
        let reply = root::<table::AdminReply<'_>>("admin reply", body)?.unpack();
        let info = |p: table::PchannelInfoT| PchannelInfo {
            name: p.name,
            shard: p.shard,
            term: Term(p.term),
            first_offset: Offset(p.first_offset),
            next_offset: Offset(p.next_offset),
            last_timetick: Timetick(p.last_timetick),
            stored: Bytes(p.stored_bytes),
            tail: Bytes(p.tail_bytes),
            readers: p.readers,
            producers: p.producers,
            failed: p.failed.unwrap_or_default(),
        };
        Ok(Self {
            pchannels: reply.pchannels.unwrap_or_default().into_iter().map(info).collect(),
            first_offset: Offset(reply.first_offset),
            held_by: reply.held_by.unwrap_or_default(),
        })
    }
}

fn finish(pack: impl FnOnce(&mut FlatBufferBuilder<'static>) -> flatbuffers::UOffsetT) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let root = pack(&mut fbb);
    fbb.finish_minimal(flatbuffers::WIPOffset::<flatbuffers::UnionWIPOffset>::new(root));
    fbb.finished_data().to_vec()
}

fn root<'b, T>(part: &'static str, body: &'b [u8]) -> Result<T::Inner, FormatError>
where
    T: flatbuffers::Follow<'b> + flatbuffers::Verifiable + 'b,
{
    // Parts may be shared in a table, but not in the values made of it: a few bytes must not unfold to a gigabyte. Tables
    // of one kind share their vtable, which is shorter than they are.
    let options = VerifierOptions {
        max_depth: 8,
        max_tables: body.len() / 4,
        max_apparent_size: body.len().saturating_mul(4),
        ..Default::default()
    };
    flatbuffers::root_with_opts::<T>(&options, body).map_err(|e| FormatError::Table {
        part,
        detail: e.to_string(),
    })
}

fn unknown(part: &'static str, field: &str, value: u8) -> FormatError {
    FormatError::Table {
        part,
        detail: format!("{field} {value} is unknown to this build"),
    }
}
