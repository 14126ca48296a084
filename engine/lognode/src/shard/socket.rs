//! Taking over a socket from the acceptor: the one place of the shard with unsafe code.
#![allow(unsafe_code)]

use std::{
    io,
    net::TcpStream as StdStream,
    os::fd::{FromRawFd, IntoRawFd},
};

use glommio::net::TcpStream;

/// Makes a socket that was accepted elsewhere one of this shard's executor. Must be called on the shard.
pub fn adopt(stream: StdStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    // SAFETY: the descriptor is open and ours alone: `into_raw_fd` gave up its only owner.
    Ok(unsafe { TcpStream::from_raw_fd(stream.into_raw_fd()) })
}
