//! A connection that was just handed over: answered, then served by what it asked for.

use std::rc::Rc;

use futures_lite::AsyncWriteExt;
use futures_util::{AsyncReadExt, FutureExt, select_biased};
use glommio::net::TcpStream;
use wire_format::{
    frame::{FrameKind, frame},
    protocol::{AdminReply, AdminRequest, Hello, HelloReply, Intent, Refusal},
};

use super::{
    Creates, Shard,
    frames::{FrameEnd, FrameReader},
    pchannel::{self, Pchannel},
    produce, refusals, scan, socket,
};
use crate::handover::Connection;

/// Serves a connection to its end.
pub async fn serve(shard: Rc<Shard>, connection: Connection) {
    let Connection {
        stream,
        hello,
        seat: _seat,
    } = connection;
    let stream = match socket::adopt(stream) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(%error, "a socket could not be taken over");
            return;
        }
    };
    let (read, mut write) = stream.split();
    let input = FrameReader::new(read, shard.limits, shard.memory.clone());
    let creates = match hello.intent {
        Intent::Produce | Intent::Read => Creates::Yes,
        _ => Creates::No,
    };
    match shard.pchannel(&hello.pchannel, creates).await {
        Err(refusal) => say_no(&shard, &mut write, &refusal).await,
        Ok(pchannel) => match hello.intent {
            Intent::Produce => {
                if greet(&shard, &pchannel, &mut write, pchannel.durable()).await {
                    produce::serve(shard, pchannel, input, write).await;
                }
            }
            Intent::Read => read_on(shard, pchannel, hello, input, write).await,
            _ => administrate(shard, pchannel, input, write).await,
        },
    }
}

type Input = FrameReader<futures_util::io::ReadHalf<TcpStream>>;
type Output = futures_util::io::WriteHalf<TcpStream>;

async fn read_on(shard: Rc<Shard>, pchannel: Rc<Pchannel>, hello: Hello, input: Input, mut write: Output) {
    let request = hello.read.unwrap_or_default();
    match scan::begin(&pchannel, &request) {
        Err(refusal) => say_no(&shard, &mut write, &refusal).await,
        Ok(beginning) => {
            if greet(&shard, &pchannel, &mut write, beginning.offset).await {
                scan::serve(shard, pchannel, beginning, request.credit, input, write).await;
            }
        }
    }
}

async fn greet(shard: &Shard, pchannel: &Pchannel, write: &mut Output, start: wire_format::Offset) -> bool {
    let view = pchannel.view();
    let reply = HelloReply {
        version: wire_format::frame::PROTOCOL_VERSION,
        features: 0,
        server_name: shard.server_name.clone(),
        term: pchannel.term,
        first_offset: view.first_kept,
        next_offset: view.durable,
        last_timetick: pchannel.last_timetick(),
        max_batch_bytes: shard.limits.batch_bytes,
        max_batch_messages: shard.limits.messages,
        start_offset: start,
    };
    shard
        .write_bounded(write, &frame(FrameKind::HelloReply, 0, &reply.to_body()))
        .await
}

async fn say_no(shard: &Shard, write: &mut Output, refusal: &Refusal) {
    shard.stats.refused();
    if shard
        .write_bounded(write, &frame(FrameKind::Refusal, 0, &refusal.to_body()))
        .await
    {
        // The peer hears the end of stream; closing may fail if it is gone already.
        let _ = write.close().await;
    }
}

/// Requests about one pchannel. Listing all is the acceptor's, since no single shard knows them.
async fn administrate(shard: Rc<Shard>, pchannel: Rc<Pchannel>, mut input: Input, mut write: Output) {
    if !greet(&shard, &pchannel, &mut write, pchannel.durable()).await {
        return;
    }
    loop {
        let seen = shard.stop_told.epoch();
        if shard.is_stopping() {
            return say_no(&shard, &mut write, &pchannel::shutting_down()).await;
        }
        let next = select_biased! {
            next = input.next().fuse() => next,
            () = shard.stop_told.changed(seen).fuse() => continue,
        };
        let header = match next {
            Ok(header) => header,
            Err(FrameEnd::Gone) => return,
            Err(FrameEnd::Refused(refusal)) => return say_no(&shard, &mut write, &refusal).await,
        };
        let request = match header.kind {
            FrameKind::AdminRequest => AdminRequest::read(input.body(&header)),
            other => Err(wire_format::FormatError::UnexpectedFrame {
                found: other.name(),
                expected: "an admin request",
            }),
        };
        let answer = match request {
            // The log may be open anew already, under another owner's hands.
            _ if pchannel.closed().is_some() => {
                Err(Box::new(pchannel.closed().unwrap_or_else(pchannel::shutting_down)))
            }
            Ok(AdminRequest::Truncate { upto }) => shard.truncate(&pchannel, upto).await,
            Ok(AdminRequest::ListPchannels) => Ok(AdminReply {
                pchannels: vec![pchannel.info(shard.id)],
                ..AdminReply::default()
            }),
            Err(error) => Err(Box::new(refusals::of_format(&error))),
        };
        let bytes = match answer {
            Ok(reply) => frame(FrameKind::AdminReply, header.correlation, &reply.to_body()),
            Err(refusal) => frame(FrameKind::Refusal, header.correlation, &refusal.to_body()),
        };
        input.consume(&header);
        if !shard.write_bounded(&mut write, &bytes).await {
            return;
        }
    }
}
