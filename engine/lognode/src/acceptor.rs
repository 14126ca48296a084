//! The one TCP port: a connection's first frame is read here, then its socket goes to the shard that owns the pchannel.
//!
//! Runs on the side thread. A stranger costs a bounded buffer for a bounded time; nothing behind the hello is read, so
//! the shard gets the stream exactly where the hello ends.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, oneshot},
    time::timeout,
};
use wire_format::{
    FormatError, Limits,
    frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, PROTOCOL_VERSION, frame},
    protocol::{
        AdminReply, AdminRequest, FEATURES_KNOWN, Hello, HelloReply, Intent, PchannelInfo, Refusal, RefusalCode,
    },
};

use crate::{
    handover::{Arrival, Connection, Inbox},
    shard::Published,
};

/// A stranger must say hello within this.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// A shard must tell its pchannels within this.
const LIST_WITHIN: Duration = Duration::from_secs(5);

/// What the acceptor needs of the node.
pub struct Acceptor {
    /// Inboxes of the shards.
    pub inboxes: Vec<Inbox>,
    /// What they published.
    pub published: Vec<Arc<Mutex<Published>>>,
    /// Told once when the node stops.
    pub stop: Arc<Notify>,
    /// Connections at once.
    pub connections_max: usize,
    /// Name of the node, for greetings.
    pub server_name: String,
    /// Strangers whose hello is awaited.
    pub strangers: AtomicUsize,
}

impl Acceptor {
    /// Accepts until the node stops.
    pub async fn run(self: Arc<Self>, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                () = self.stop.notified() => return,
                accepted = listener.accept() => accepted,
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
            tokio::spawn(async move { acceptor.welcome(accepted.0, accepted.1).await });
        }
    }

    async fn welcome(&self, mut stream: TcpStream, peer: SocketAddr) {
        // The shard's acks are small; waiting to make them larger would only delay producers.
        let _ = stream.set_nodelay(true);
        // A producer whose machine vanished sends nothing and gets nothing: only this finds out.
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(30))
            .with_interval(Duration::from_secs(10));
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        self.strangers.fetch_add(1, Ordering::Relaxed);
        let hello = timeout(HELLO_WITHIN, read_hello(&mut stream)).await;
        self.strangers.fetch_sub(1, Ordering::Relaxed);
        let refusal = match hello {
            Err(_) | Ok(Err(HelloEnd::Gone)) => return,
            Ok(Err(HelloEnd::Broken(error))) => {
                tracing::debug!(%peer, %error, "a connection began with something that is no hello");
                Refusal::new(RefusalCode::BadRequest, error.to_string())
            }
            Ok(Ok(hello)) => match self.route(hello, &mut stream).await {
                Ok(Some((inbox, hello))) => return hand_over(stream, inbox, hello),
                Ok(None) => return,
                Err(refusal) => *refusal,
            },
        };
        // A stranger that is gone does not hear it.
        let _ = stream
            .write_all(&frame(FrameKind::Refusal, 0, &refusal.to_body()))
            .await;
    }

    /// Which shard a hello goes to; `None` if it was served here.
    async fn route(&self, hello: Hello, stream: &mut TcpStream) -> Result<Option<(&Inbox, Hello)>, Box<Refusal>> {
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
        let connected: usize = self.published.iter().map(|p| lock(p).connections).sum();
        if connected >= self.connections_max {
            let mut refusal = Refusal::new(
                RefusalCode::RateLimited,
                format!(
                    "the node serves {connected} connections of {}; come again, or raise limits.connections",
                    self.connections_max
                ),
            );
            refusal.limit_name = "connections".to_owned();
            (refusal.measured, refusal.limit_value) = (connected as u64, self.connections_max as u64);
            refusal.retry_after = wire_format::Millis(1_000);
            return Err(Box::new(refusal));
        }
        if hello.intent == Intent::Admin && hello.pchannel.is_empty() {
            self.list(stream).await;
            return Ok(None);
        }
        let shard = shard_of(&hello.pchannel, self.inboxes.len());
        match self.inboxes.get(shard) {
            Some(inbox) => Ok(Some((inbox, hello))),
            None => Err(Box::new(Refusal::new(
                RefusalCode::ShuttingDown,
                "this node has no shard",
            ))),
        }
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
            if stream.write_all(&answer).await.is_err() {
                return;
            }
            let Ok(Ok((header, body))) = timeout(HELLO_WITHIN, read_frame(stream)).await else {
                return;
            };
            let request = match header.kind {
                FrameKind::AdminRequest => AdminRequest::read(&body),
                other => Err(FormatError::UnexpectedFrame {
                    found: other.name(),
                    expected: "an admin request",
                }),
            };
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

fn lock(published: &Mutex<Published>) -> std::sync::MutexGuard<'_, Published> {
    // Plain values: a thread that died while holding the lock left nothing half done.
    published.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
    let (header, body) = read_frame(stream).await?;
    if header.kind != FrameKind::Hello {
        let error = FormatError::UnexpectedFrame {
            found: header.kind.name(),
            expected: "a hello",
        };
        return Err(HelloEnd::Broken(error));
    }
    Hello::read(&body).map_err(HelloEnd::Broken)
}

/// Reads one frame that carries no batch, and not a byte more.
async fn read_frame(stream: &mut TcpStream) -> Result<(FrameHeader, Vec<u8>), HelloEnd> {
    let mut head = [0; FRAME_HEADER_BYTES];
    stream.read_exact(&mut head).await.map_err(|_| HelloEnd::Gone)?;
    let header = FrameHeader::read(&head, &Limits::default()).map_err(HelloEnd::Broken)?;
    if matches!(header.kind, FrameKind::Produce | FrameKind::Deliver) {
        let error = FormatError::UnexpectedFrame {
            found: header.kind.name(),
            expected: "a hello",
        };
        return Err(HelloEnd::Broken(error));
    }
    let mut body = vec![0; header.length as usize];
    stream.read_exact(&mut body).await.map_err(|_| HelloEnd::Gone)?;
    Ok((header, body))
}

fn hand_over(stream: TcpStream, inbox: &Inbox, hello: Hello) {
    let stream = match stream.into_std() {
        Ok(stream) => stream,
        Err(error) => return tracing::warn!(%error, "a socket could not be handed over"),
    };
    if inbox.push(Arrival::Connection(Connection { stream, hello })).is_err() {
        tracing::warn!("too many connections wait for one shard; the newest was closed");
    }
}
