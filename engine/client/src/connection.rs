//! One TCP connection: opening it, following redirects, and taking frames off it.

use std::{io, net::Ipv6Addr, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout_at,
};
use wire_format::{
    Limits,
    frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, PROTOCOL_VERSION, frame},
    protocol::{Hello, HelloReply, Refusal, RefusalCode},
};

use crate::{
    config::{ClientConfig, FAR},
    error::{Error, Outcome, Result},
};

/// Room made for a read when little is left; many small frames come with one system call.
const READ_BYTES: usize = 64 << 10;
/// How often a quiet connection is probed by the kernel.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A frame as it came.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) correlation: u64,
    pub(crate) body: Bytes,
}

/// Takes frames off a socket. Dropping a pending `next` loses nothing: what was read stays in the inbox.
pub(crate) struct FrameReader {
    read: OwnedReadHalf,
    inbox: BytesMut,
    server: Arc<str>,
}

impl FrameReader {
    /// The next frame. Its length is bounded before memory is taken for it.
    pub(crate) async fn next(&mut self) -> Result<Frame> {
        loop {
            if let Some(frame) = self.take_ready()? {
                return Ok(frame);
            }
            let read = self.read.read_buf(&mut self.inbox).await;
            let bytes = read.map_err(|e| Error::lost(&self.server, e))?;
            if bytes == 0 {
                let detail = match self.inbox.len() {
                    0 => "the server closed it".to_owned(),
                    cut => format!("the server closed it within a frame, after {cut} bytes of it"),
                };
                return Err(Error::lost(&self.server, detail));
            }
        }
    }

    /// A frame that is here already, without asking the socket.
    pub(crate) fn take_ready(&mut self) -> Result<Option<Frame>> {
        let Some((bytes, rest)) = self.inbox.split_first_chunk::<FRAME_HEADER_BYTES>() else {
            self.inbox.reserve(READ_BYTES);
            return Ok(None);
        };
        let header = FrameHeader::read(bytes, &Limits::WIDEST).map_err(|e| Error::protocol(&self.server, e))?;
        let length = header.length as usize;
        if rest.len() < length {
            let missing = length - rest.len();
            // A whole large record in one piece, so that it is never moved once it is here.
            self.inbox.reserve(missing.max(READ_BYTES / 4));
            return Ok(None);
        }
        let mut whole = self.inbox.split_to(FRAME_HEADER_BYTES + length).freeze();
        let body = whole.split_off(FRAME_HEADER_BYTES);
        Ok(Some(Frame {
            kind: header.kind,
            correlation: header.correlation,
            body,
        }))
    }
}

/// An open connection whose hello was accepted.
pub(crate) struct Connection {
    pub(crate) frames: FrameReader,
    pub(crate) write: OwnedWriteHalf,
    pub(crate) reply: HelloReply,
    pub(crate) server: Arc<str>,
}

impl Connection {
    /// Says what to make of a frame that has no place here.
    pub(crate) fn unexpected(server: &str, frame: &Frame, expected: &'static str) -> Error {
        let found = frame.kind.name();
        Error::protocol(server, wire_format::FormatError::UnexpectedFrame { found, expected })
    }
}

/// Connects to `first` and follows redirects from there. The whole takes at most `connect_timeout`.
pub(crate) async fn connect(config: Arc<ClientConfig>, hello: Arc<Hello>, first: String) -> Result<Connection> {
    let deadline = tokio::time::Instant::now() + config.connect_timeout.min(FAR);
    let mut server = first;
    for _ in 0..=config.redirects_max {
        let mut step = "TCP connect";
        let tried = timeout_at(deadline, greet(&config, &hello, &server, &mut step)).await;
        let error = match tried {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => error,
            Err(_) => Error::ConnectTimeout {
                server: server.clone(),
                waited: config.connect_timeout,
                step,
            },
        };
        match redirect(&error) {
            Some(owner) => {
                tracing::debug!(%server, %owner, "following the owner of a pchannel");
                server = owner;
            }
            None => return Err(error),
        }
    }
    Err(Error::TooManyRedirects {
        hops: config.redirects_max,
        last: server,
    })
}

/// Where an error says that the owner is.
pub(crate) fn redirect(error: &Error) -> Option<String> {
    let refusal = error.refusal()?;
    (refusal.code == RefusalCode::NotOwner && !refusal.address.is_empty()).then(|| refusal.address.clone())
}

async fn greet(config: &ClientConfig, hello: &Hello, server: &str, step: &mut &'static str) -> Result<Connection> {
    let failed = |source: io::Error| Error::Connect {
        server: server.to_owned(),
        source: Arc::new(source),
    };
    let stream = TcpStream::connect(server).await.map_err(failed)?;
    refuse_self(&stream).map_err(failed)?;
    tune(&stream, config).map_err(failed)?;
    *step = "answer to hello";
    let server: Arc<str> = server.into();
    let (read, mut write) = stream.into_split();
    let mut frames = FrameReader {
        read,
        inbox: BytesMut::with_capacity(READ_BYTES),
        server: Arc::clone(&server),
    };
    let bytes = frame(FrameKind::Hello, 0, &hello.to_body());
    write.write_all(&bytes).await.map_err(|e| Error::lost(&server, e))?;
    let answer = frames.next().await?;
    match answer.kind {
        FrameKind::HelloReply => {
            let reply = HelloReply::read(&answer.body).map_err(|e| Error::protocol(&server, e))?;
            if reply.version != PROTOCOL_VERSION {
                let detail = format!(
                    "it answers in version {}, this client speaks {PROTOCOL_VERSION}",
                    reply.version
                );
                return Err(Error::protocol(&server, detail));
            }
            Ok(Connection {
                frames,
                write,
                reply,
                server,
            })
        }
        FrameKind::Refusal => {
            let refusal = Refusal::read(&answer.body).map_err(|e| Error::protocol(&server, e))?;
            Err(Error::from_refusal(
                &server,
                &hello.pchannel,
                refusal,
                Outcome::NotStored,
            ))
        }
        FrameKind::Goodbye => Err(Error::lost(&server, "the server is going down")),
        _ => Err(Connection::unexpected(&server, &answer, "a hello reply")),
    }
}

/// A client on the server's machine that tries a port nobody listens on can get that very port as its own and be
/// connected to itself.
fn refuse_self(stream: &TcpStream) -> io::Result<()> {
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(())
}

fn tune(stream: &TcpStream, config: &ClientConfig) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    socket.set_tcp_keepalive(&keepalive)?;
    // A machine that vanished without a word: sent bytes that nobody acknowledges end the connection.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(config.request_deadline.max(config.connect_timeout)))?;
    Ok(())
}

/// Checks `host:port` early: a text that can't be an address is the caller's mistake, not an outage.
pub(crate) fn check_address(server: &str) -> Result<()> {
    let fault = |why| {
        Err(Error::InvalidConfig {
            setting: "server",
            value: format!("{server:?}"),
            why,
        })
    };
    let Some((host, port)) = server.rsplit_once(':') else {
        return fault("it must be host:port");
    };
    if host.is_empty() {
        return fault("the host is missing; it must be host:port");
    }
    if host.parse::<Ipv6Addr>().is_ok() {
        return fault("an IPv6 address with a port must stand in brackets: [::1]:19530");
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => fault("the port must be a number from 1 to 65535"),
    }
}
