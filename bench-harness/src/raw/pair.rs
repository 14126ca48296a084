//! Two connected TCP sockets over the loopback, made on one thread.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::error::{RawError, Step};

/// One TCP connection: the side that accepted and the side that connected.
pub(crate) struct Pair {
    /// The accepted side.
    pub(crate) server: TcpStream,
    /// The connecting side.
    pub(crate) client: TcpStream,
}

/// Makes `count` connections, all with Nagle's algorithm off. As the listener's queue takes a connection before it is accepted, one thread
/// can do both sides and no failure can leave another thread waiting.
pub(crate) fn connect(count: usize) -> Result<Vec<Pair>, RawError> {
    let step = format!("{count} TCP connections over the loopback");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).step(&step)?;
    (0..count)
        .map(|_| connect_one(&listener))
        .collect::<io::Result<_>>()
        .step(&step)
}

fn connect_one(listener: &TcpListener) -> io::Result<Pair> {
    let client = TcpStream::connect(listener.local_addr()?)?;
    let own_address = client.local_addr()?;
    loop {
        let (server, peer) = listener.accept()?;
        // Anyone on this machine may connect to the port; only our own counts.
        if peer == own_address {
            server.set_nodelay(true)?;
            client.set_nodelay(true)?;
            return Ok(Pair { server, client });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn both_sides_belong_together() {
        for (number, mut pair) in connect(3).unwrap().into_iter().enumerate() {
            let mut received = [0];
            pair.client.write_all(&[number as u8]).unwrap();
            pair.server.read_exact(&mut received).unwrap();
            assert_eq!(received, [number as u8]);
        }
    }
}
