//! Opening a connection: hello, and what the server says to it.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use wire_format::{
    FormatError, Limits,
    frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, frame},
    protocol::{Hello, HelloReply, Intent, ReadRequest, Refusal},
};

use crate::error::{BenchError, During};

/// Creating a pchannel writes its first segment file, so the first greeting may take a while.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connects and says hello. Not a byte behind the reply is read. The socket is blocking.
///
/// # Errors
/// When the server can't be reached, refuses, or is silent for a minute.
pub fn greet(
    address: SocketAddr,
    pchannel: &str,
    intent: Intent,
    read: Option<ReadRequest>,
) -> Result<(TcpStream, HelloReply), BenchError> {
    let step = format!("greeting for pchannel {pchannel}");
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).during(&step)?;
    stream.set_nodelay(true).during(&step)?;
    stream.set_read_timeout(Some(PATIENCE)).during(&step)?;
    let mut hello = Hello::new("lognode-bench", intent, pchannel);
    hello.read = read;
    stream
        .write_all(&frame(FrameKind::Hello, 0, &hello.to_body()))
        .during(&step)?;
    let mut head = [0; FRAME_HEADER_BYTES];
    stream.read_exact(&mut head).during(&step)?;
    let header = FrameHeader::read(&head, &Limits::WIDEST)?;
    let mut body = vec![0; header.length as usize];
    stream.read_exact(&mut body).during(&step)?;
    match header.kind {
        FrameKind::HelloReply => Ok((stream, HelloReply::read(&body)?)),
        FrameKind::Refusal => Err(BenchError::Refused(Box::new(Refusal::read(&body)?))),
        other => Err(unexpected(other, "a hello reply").into()),
    }
}

/// A frame that has no place here.
pub(super) fn unexpected(found: FrameKind, expected: &'static str) -> FormatError {
    FormatError::UnexpectedFrame {
        found: found.name(),
        expected,
    }
}
