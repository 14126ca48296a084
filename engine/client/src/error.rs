//! Everything that can go wrong, typed. Each text says what, where, and what to do next.

use std::{io, sync::Arc, time::Duration};

use thiserror::Error;
use wire_format::{
    FormatError, Offset,
    protocol::{Refusal, RefusalCode},
};

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is known of messages whose call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// They are not in the log and this producer will not put them there: sending them again is safe.
    NotStored,
    /// They were sent and not answered: they are in the log once, or not at all. Only reading the log tells.
    Unknown,
}

impl Outcome {
    fn text(self) -> &'static str {
        match self {
            Self::NotStored => "nothing of it was stored; it is safe to send it again",
            Self::Unknown => {
                "it was sent, so it may be stored once or not at all; read the log before sending it again"
            }
        }
    }
}

/// What went wrong.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Error {
    /// No TCP connection.
    #[error("can't connect to {server}: {source}; is a LogNode running there, and is the address right?")]
    Connect {
        /// The address tried.
        server: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The server took the connection, or not even that, and then said nothing.
    #[error("{server} did not answer within {waited:?} ({step}); it is overloaded, stopped, or no LogNode")]
    ConnectTimeout {
        /// The address tried.
        server: String,
        /// How long it was given.
        waited: Duration,
        /// What was waited for.
        step: &'static str,
    },
    /// An open connection broke.
    #[error("connection to {server} lost: {detail}")]
    ConnectionLost {
        /// The address.
        server: String,
        /// What happened.
        detail: String,
    },
    /// Owners pointed at each other.
    #[error("gave up after {hops} redirects, the last to {last}; ownership is moving, try again in a moment")]
    TooManyRedirects {
        /// Redirects followed.
        hops: u32,
        /// Where the last one pointed.
        last: String,
    },
    /// The peer sent bytes that the protocol does not allow.
    #[error("{server} broke the protocol: {detail}; is it a LogNode of a matching version?")]
    Protocol {
        /// The address.
        server: String,
        /// What was wrong.
        detail: String,
    },
    /// The server said no.
    #[error("{server} refused: {refusal}")]
    Refused {
        /// The address.
        server: String,
        /// Its reason, with all details.
        refusal: Box<Refusal>,
        /// What is known of the messages.
        outcome: Outcome,
    },
    /// The messages asked for are no longer kept.
    #[error(
        "{pchannel}: offset {asked} is no longer kept, the first kept one is {first}; start at {first} or at earliest"
    )]
    Truncated {
        /// The pchannel.
        pchannel: String,
        /// The offset asked for.
        asked: Offset,
        /// The first offset that is kept.
        first: Offset,
    },
    /// The offset asked for does not exist yet.
    #[error(
        "{pchannel}: offset {asked} lies beyond the end, the next one will be {next}; start at {next} or at latest"
    )]
    BeyondEnd {
        /// The pchannel.
        pchannel: String,
        /// The offset asked for.
        asked: Offset,
        /// The offset that the next message will get.
        next: Offset,
    },
    /// Stored bytes are damaged.
    #[error(
        "{pchannel}: {file} is damaged in bytes {from}..{to}: {message}; nothing behind it was delivered. \
         Run `lognode inspect` on it, then read on behind the damage"
    )]
    Damaged {
        /// The pchannel.
        pchannel: String,
        /// The damaged file.
        file: String,
        /// First damaged byte.
        from: u64,
        /// First byte behind the damage.
        to: u64,
        /// What the server found.
        message: String,
    },
    /// A message or batch is over a limit; nothing was sent.
    #[error("{what} would be {found}, over the limit of {limit}; split it, or raise the limit on server and client")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        found: u64,
        /// How large it may be.
        limit: u64,
    },
    /// A message can't be sent as it is; nothing was sent.
    #[error("the message can't be sent: {0}")]
    InvalidMessage(#[source] FormatError),
    /// A setting makes no sense.
    #[error("setting {setting} can't be {value}: {why}")]
    InvalidConfig {
        /// Which setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Why not.
        why: &'static str,
    },
    /// The call's time is over.
    #[error("{pchannel}: no answer within {waited:?}; {} (last trouble: {})", outcome.text(), Trouble(last))]
    DeadlineExceeded {
        /// The pchannel.
        pchannel: String,
        /// How long the call was given.
        waited: Duration,
        /// What is known of the messages.
        outcome: Outcome,
        /// What kept the producer from succeeding, if it noticed anything.
        last: Option<Box<Error>>,
    },
    /// A retry came too late: the server no longer remembers whether it stored the first try.
    #[error("{pchannel}: {message}; it may be stored once or not at all, read the log before sending it again")]
    WindowOver {
        /// The pchannel.
        pchannel: String,
        /// The server's words.
        message: String,
    },
    /// The producer has ended: it was closed, or met an error that it can't go on from.
    #[error("{pchannel}: the producer has ended ({cause}); {}. Open a new producer", outcome.text())]
    ProducerEnded {
        /// The pchannel.
        pchannel: String,
        /// What is known of the messages.
        outcome: Outcome,
        /// Why it ended.
        cause: Box<Error>,
    },
    /// It was closed by its owner.
    #[error("closed by the caller")]
    Closed,
    /// A newer incarnation took over the producer's identity.
    #[error("{pchannel}: fenced: {message}; stop this producer, or open it again with a larger epoch")]
    Fenced {
        /// The pchannel.
        pchannel: String,
        /// The server's words.
        message: String,
    },
    /// A message whose properties its producer wrote wrongly. Reading goes on behind it.
    #[error(
        "{pchannel}: message at offset {offset} has unreadable properties ({source}); its producer wrote them wrongly"
    )]
    UnreadableProperties {
        /// The pchannel.
        pchannel: String,
        /// The message.
        offset: Offset,
        /// What is wrong.
        source: FormatError,
    },
    /// A reader could not reach the server for its whole outage deadline. Asking again tries again, from the same position.
    #[error("{pchannel}: no server for {waited:?}, still at offset {position} (last trouble: {last})")]
    Outage {
        /// The pchannel.
        pchannel: String,
        /// How long it tried.
        waited: Duration,
        /// Where reading goes on.
        position: Offset,
        /// Why the last try failed.
        last: Box<Error>,
    },
}

struct Trouble<'a>(&'a Option<Box<Error>>);

impl std::fmt::Display for Trouble<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(error) => std::fmt::Display::fmt(error, f),
            None => f.write_str("none seen; the server takes the data and does not answer, or the load is too high"),
        }
    }
}

impl Error {
    /// Whether the same call may succeed later, unchanged. With [`Outcome::Unknown`] a repeated call may store twice.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::ConnectTimeout { .. }
            | Self::ConnectionLost { .. }
            | Self::TooManyRedirects { .. }
            | Self::DeadlineExceeded { .. }
            | Self::Outage { .. } => true,
            Self::Refused { refusal, .. } => refusal.code.is_retryable(),
            // A peer that restarts can cut or garble a frame; one that does so for ever runs into a deadline.
            Self::Protocol { .. } => true,
            _ => false,
        }
    }

    /// What is known of the messages of the call that returned this error.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Refused { outcome, .. }
            | Self::DeadlineExceeded { outcome, .. }
            | Self::ProducerEnded { outcome, .. } => *outcome,
            Self::WindowOver { .. } => Outcome::Unknown,
            _ => Outcome::NotStored,
        }
    }

    /// The server's refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// A server's no, in the most telling form.
    pub(crate) fn from_refusal(server: &str, pchannel: &str, refusal: Refusal, outcome: Outcome) -> Self {
        let pchannel = pchannel.to_owned();
        match refusal.code {
            RefusalCode::Truncated => Self::Truncated {
                pchannel,
                asked: refusal.asked_offset,
                first: refusal.first_offset,
            },
            RefusalCode::BeyondEnd => Self::BeyondEnd {
                pchannel,
                asked: refusal.asked_offset,
                next: refusal.next_offset,
            },
            RefusalCode::Damaged => Self::Damaged {
                pchannel,
                from: refusal.damaged.0,
                to: refusal.damaged.1,
                file: refusal.file,
                message: refusal.message,
            },
            RefusalCode::ProducerFenced => Self::Fenced {
                pchannel,
                message: refusal.message,
            },
            RefusalCode::WindowOver if outcome == Outcome::Unknown => Self::WindowOver {
                pchannel,
                message: refusal.message,
            },
            _ => Self::Refused {
                server: server.to_owned(),
                refusal: Box::new(refusal),
                outcome,
            },
        }
    }

    /// A message that the builder did not take.
    pub(crate) fn from_format(error: FormatError) -> Self {
        match error {
            FormatError::TooLarge { what, found, limit } => Self::TooLarge { what, found, limit },
            other => Self::InvalidMessage(other),
        }
    }

    pub(crate) fn protocol(server: &str, detail: impl ToString) -> Self {
        Self::Protocol {
            server: server.to_owned(),
            detail: detail.to_string(),
        }
    }

    pub(crate) fn lost(server: &str, detail: impl ToString) -> Self {
        Self::ConnectionLost {
            server: server.to_owned(),
            detail: detail.to_string(),
        }
    }
}
