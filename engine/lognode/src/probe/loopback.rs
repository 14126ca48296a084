//! Do two sockets of this machine reach each other?

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::report::Item;

/// A byte that takes longer than this does not arrive.
const TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn check() -> Item {
    let needed = "a TCP connection over 127.0.0.1";
    match round_trip() {
        Ok(time) => Item::ok("loopback", format!("{} us for a byte there and back", time.as_micros()), needed),
        Err(error) => Item::ok("loopback", format!("failed: {error}"), needed)
            .warn("clients on this machine can't connect: bring it up (ip link set lo up) and let the firewall pass traffic on lo"),
    }
}

fn round_trip() -> io::Result<Duration> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // The kernel completes the connection before it is accepted, so one thread can do both sides.
    let mut client = TcpStream::connect_timeout(&listener.local_addr()?, TIMEOUT)?;
    listener.set_nonblocking(true)?;
    let (mut server, _) = listener.accept()?;
    for socket in [&client, &server] {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_nodelay(true)?;
    }
    let begin = Instant::now();
    let mut byte = [1];
    client.write_all(&byte)?;
    server.read_exact(&mut byte)?;
    server.write_all(&byte)?;
    client.read_exact(&mut byte)?;
    Ok(begin.elapsed())
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn works_here() {
        assert_eq!(check().status, Status::Ok, "{:?}", check());
    }
}
