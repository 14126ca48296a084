//! The one TCP port: a connection's first frame is read here, then its socket goes to the shard that owns the pchannel.
//!
//! Runs on the side thread. A stranger costs a bounded buffer for a bounded time; nothing behind the hello is read, so
//! the shard gets the stream exactly where the hello ends.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, oneshot},
    time::timeout,
};
use wire_format::{
    FormatError, Limits,
    frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, PROTOCOL_VERSION, frame},
    protocol::{
        AdminReply, AdminRequest, FEATURES_KNOWN, Hello, HelloReply, Intent, PchannelInfo, Refusal, RefusalCode,
    },
};

use crate::handover::{Arrival, Connection, Inbox, Seat, Seats};

/// A stranger must say hello within this.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// A stranger must take an answer within this.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
/// A shard must tell its pchannels within this.
const LIST_WITHIN: Duration = Duration::from_secs(5);

/// What the acceptor needs of the node.
pub struct Acceptor {
    /// Inboxes of the shards.
    pub inboxes: Vec<Inbox>,
    /// Told once when the node stops.
    pub stop: Arc<Notify>,
    /// Strangers whose hello is awaited at once: each holds a file and up to 64 KiB. Others wait to be accepted.
    pub strangers: usize,
    /// How many connections there are and may be.
    pub seats: Arc<Seats>,
    /// Name of the node, for greetings.
    pub server_name: String,
}

impl Acceptor {
    /// Accepts until the node stops.
    pub async fn run(self: Arc<Self>, listener: TcpListener) {
        let strangers = Arc::new(Semaphore::new(self.strangers));
        loop {
            let next = async {
                let stranger = strangers.clone().acquire_owned().await;
                (stranger, listener.accept().await)
            };
            let (stranger, accepted) = tokio::select! {
                () = self.stop.notified() => return,
                next = next => next,
            };
            let accepted = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted; if files are short, raise the limit with ulimit -n");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let acceptor = self.clone();
            tokio::spawn(async move { acceptor.welcome(accepted.0, accepted.1, stranger).await });
        }
    }

    async fn welcome(&self, mut stream: TcpStream, peer: SocketAddr, stranger: impl Sized) {
        // The shard's acks are small; waiting to make them larger would only delay producers.
        let _ = stream.set_nodelay(true);
        // A producer whose machine vanished sends nothing and gets nothing: only this finds out.
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(30))
            .with_interval(Duration::from_secs(10));
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        let hello = timeout(HELLO_WITHIN, read_hello(&mut stream)).await;
        drop(stranger);
        let refusal = match hello {
            Err(_) | Ok(Err(HelloEnd::Gone)) => return,
            Ok(Err(HelloEnd::Broken(error))) => {
                tracing::debug!(%peer, %error, "a connection began with something that is no hello");
                Refusal::new(RefusalCode::BadRequest, error.to_string())
            }
            Ok(Ok(hello)) => match self.route(hello, &mut stream).await {
                Ok(Some((inbox, hello, seat))) => return hand_over(stream, inbox, hello, seat),
                Ok(None) => return,
                Err(refusal) => *refusal,
            },
        };
        // A stranger that is gone does not hear it.
        let answer = frame(FrameKind::Refusal, 0, &refusal.to_body());
        let _ = timeout(TAKEN_WITHIN, stream.write_all(&answer)).await;
    }

    /// Which shard a hello goes to; `None` if it was served here.
    async fn route(&self, hello: Hello, stream: &mut TcpStream) -> Result<Option<(&Inbox, Hello, Seat)>, Box<Refusal>> {
        if hello.version != PROTOCOL_VERSION {
            let detail = format!(
                "protocol version {} is not spoken here; this node speaks {PROTOCOL_VERSION}",
                hello.version
            );
            return Err(Box::new(Refusal::new(RefusalCode::VersionUnsupported, detail)));
        }
        if hello.features & !FEATURES_KNOWN != 0 {
            let detail = format!(
                "features {:#x} are not known here; this node knows {FEATURES_KNOWN:#x}",
                hello.features
            );
            return Err(Box::new(Refusal::new(RefusalCode::FeatureUnsupported, detail)));
        }
        let Some(seat) = self.seats.clone().take() else {
            return Err(self.no_seat());
        };
        if hello.intent == Intent::Admin && hello.pchannel.is_empty() {
            self.list(stream).await;
            return Ok(None);
        }
        let shard = shard_of(&hello.pchannel, self.inboxes.len());
        match self.inboxes.get(shard) {
            Some(inbox) => Ok(Some((inbox, hello, seat))),
            None => Err(Box::new(Refusal::new(
                RefusalCode::ShuttingDown,
                "this node has no shard",
            ))),
        }
    }

    fn no_seat(&self) -> Box<Refusal> {
        let (taken, max) = (self.seats.taken(), self.seats.max);
        let mut refusal = Refusal::new(
            RefusalCode::RateLimited,
            format!(
                "the node serves {taken} connections of {max}; come again, or raise limits.connections (and, if it is higher, ulimit -n)"
            ),
        );
        refusal.limit_name = "connections".to_owned();
        (refusal.measured, refusal.limit_value) = (taken as u64, max as u64);
        refusal.retry_after = wire_format::Millis(1_000);
        Box::new(refusal)
    }

    /// The pchannels of all shards, as they stand now: whoever asks after an ack must find what was acked.
    async fn pchannels(&self) -> Result<Vec<PchannelInfo>, Box<Refusal>> {
        let mut asked = Vec::with_capacity(self.inboxes.len());
        for (shard, inbox) in self.inboxes.iter().enumerate() {
            let (tell, told) = oneshot::channel();
            if inbox.push(Arrival::List(tell)).is_err() {
                return Err(too_busy(shard));
            }
            asked.push(told);
        }
        let mut pchannels = Vec::new();
        for (shard, told) in asked.into_iter().enumerate() {
            match timeout(LIST_WITHIN, told).await {
                Ok(Ok(list)) => pchannels.extend(list),
                Ok(Err(_)) => {
                    return Err(Box::new(Refusal::new(
                        RefusalCode::ShuttingDown,
                        "the node is shutting down",
                    )));
                }
                Err(_) => return Err(too_busy(shard)),
            }
        }
        pchannels.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(pchannels)
    }

    /// Serves requests about the whole node, which no single shard knows.
    async fn list(&self, stream: &mut TcpStream) {
        let reply = HelloReply {
            version: PROTOCOL_VERSION,
            server_name: self.server_name.clone(),
            ..HelloReply::default()
        };
        let mut answer = frame(FrameKind::HelloReply, 0, &reply.to_body());
        loop {
            if !matches!(timeout(TAKEN_WITHIN, stream.write_all(&answer)).await, Ok(Ok(()))) {
                return;
            }
            let (header, body) = match timeout(HELLO_WITHIN, read_frame(stream, FrameKind::AdminRequest)).await {
                Ok(Ok(request)) => request,
                Ok(Err(HelloEnd::Broken(error))) => {
                    let refusal = Refusal::new(RefusalCode::BadRequest, error.to_string());
                    let answer = frame(FrameKind::Refusal, 0, &refusal.to_body());
                    // A stranger that is gone does not hear it.
                    let _ = timeout(TAKEN_WITHIN, stream.write_all(&answer)).await;
                    return;
                }
                _ => return,
            };
            let request = AdminRequest::read(&body);
            answer = match request {
                Ok(AdminRequest::ListPchannels) => {
                    let (kind, body) = match self.pchannels().await {
                        Ok(pchannels) => {
                            let reply = AdminReply {
                                pchannels,
                                ..AdminReply::default()
                            };
                            (FrameKind::AdminReply, reply.to_body())
                        }
                        Err(refusal) => (FrameKind::Refusal, refusal.to_body()),
                    };
                    frame(kind, header.correlation, &body)
                }
                Ok(_) => {
                    let refusal = Refusal::new(
                        RefusalCode::BadRequest,
                        "this request needs a pchannel; name it in the hello",
                    );
                    frame(FrameKind::Refusal, header.correlation, &refusal.to_body())
                }
                Err(error) => {
                    let refusal = Refusal::new(RefusalCode::BadRequest, error.to_string());
                    frame(FrameKind::Refusal, header.correlation, &refusal.to_body())
                }
            };
        }
    }
}

/// The shard that owns a pchannel.
pub fn shard_of(pchannel: &str, shards: usize) -> usize {
    (xxhash_rust::xxh3::xxh3_64(pchannel.as_bytes()) % shards.max(1) as u64) as usize
}

/// A shard does not take questions in time: it opens pchannels, or is stuck.
fn too_busy(shard: usize) -> Box<Refusal> {
    let mut refusal = Refusal::new(
        RefusalCode::RateLimited,
        format!("shard {shard} is too busy to tell its pchannels, or still opens them (/readyz tells); ask again"),
    );
    refusal.limit_name = "shard_answer_ms".to_owned();
    refusal.limit_value = LIST_WITHIN.as_millis() as u64;
    refusal.measured = refusal.limit_value;
    refusal.retry_after = wire_format::Millis(1_000);
    Box::new(refusal)
}

enum HelloEnd {
    Gone,
    Broken(FormatError),
}

async fn read_hello(stream: &mut TcpStream) -> Result<Hello, HelloEnd> {
    let (_, body) = read_frame(stream, FrameKind::Hello).await?;
    Hello::read(&body).map_err(HelloEnd::Broken)
}

/// Reads one frame of the kind that is due, and not a byte more. No other is given memory.
async fn read_frame(stream: &mut TcpStream, due: FrameKind) -> Result<(FrameHeader, Vec<u8>), HelloEnd> {
    let mut head = [0; FRAME_HEADER_BYTES];
    stream.read_exact(&mut head).await.map_err(|_| HelloEnd::Gone)?;
    let header = FrameHeader::read(&head, &Limits::default()).map_err(HelloEnd::Broken)?;
    if header.kind != due {
        let error = FormatError::UnexpectedFrame {
            found: header.kind.name(),
            expected: due.name(),
        };
        return Err(HelloEnd::Broken(error));
    }
    let mut body = vec![0; header.length as usize];
    stream.read_exact(&mut body).await.map_err(|_| HelloEnd::Gone)?;
    Ok((header, body))
}

fn hand_over(stream: TcpStream, inbox: &Inbox, hello: Hello, seat: Seat) {
    let stream = match stream.into_std() {
        Ok(stream) => stream,
        Err(error) => return tracing::warn!(%error, "a socket could not be handed over"),
    };
    if inbox
        .push(Arrival::Connection(Connection { stream, hello, seat }))
        .is_err()
    {
        tracing::warn!("too many connections wait for one shard; the newest was closed");
    }
}
