//! What one TCP stream over the loopback carries, writer and reader on a CPU each.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::cores::{Cores, pin_to};
use super::error::{RawError, Step, failed};
use super::pair;

const STEP: &str = "loopback stream";

/// Bytes per second through one TCP stream in writes (and reads) of `write_bytes`, for `duration`. The reader runs on
/// `cores.server`, the writer on `cores.client`; the bytes are looked at by nobody.
///
/// # Errors
/// When the sockets or threads can't be made or a CPU can't be used.
pub fn throughput(cores: Cores, write_bytes: usize, duration: Duration) -> Result<f64, RawError> {
    if write_bytes == 0 {
        return Err(failed(STEP, "writes of 0 bytes carry nothing"));
    }
    let Some(pair) = pair::connect(1)?.pop() else {
        return Err(failed(STEP, "no connection"));
    };
    let (mut reader, mut writer) = (pair.server, pair.client);
    let writing = thread::Builder::new()
        .name("raw-loop-write".to_owned())
        .spawn(move || pin_to(cores.client).and_then(|()| write_until(&mut writer, write_bytes, duration)))
        .step(STEP)?;
    let reading = thread::Builder::new()
        .name("raw-loop-read".to_owned())
        .spawn(move || pin_to(cores.server).and_then(|()| read_to_end(&mut reader, write_bytes)))
        .step(STEP)?;
    // The reader ends when the writer's socket is closed, and the writer when the reader's is: neither waits for ever.
    let read = reading.join().map_err(|_| failed(STEP, "the reader panicked"))?;
    writing.join().map_err(|_| failed(STEP, "the writer panicked"))??;
    read
}

/// Writes for `duration`. The stream is closed by the caller's thread ending.
fn write_until(stream: &mut TcpStream, write_bytes: usize, duration: Duration) -> Result<(), RawError> {
    let bytes = vec![0xA5_u8; write_bytes];
    let end = Instant::now() + duration;
    while Instant::now() < end {
        stream.write_all(&bytes).step(STEP)?;
    }
    Ok(())
}

/// Reads to the end; the rate runs from the first byte to the last.
fn read_to_end(stream: &mut TcpStream, read_bytes: usize) -> Result<f64, RawError> {
    let mut buffer = vec![0_u8; read_bytes];
    let mut total = stream.read(&mut buffer).step(STEP)?;
    let begin = Instant::now();
    loop {
        match stream.read(&mut buffer).step(STEP)? {
            0 => return Ok(total as f64 / begin.elapsed().as_secs_f64()),
            count => total += count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_bytes_and_ends_by_itself() {
        let cores = Cores::pick().unwrap();
        let begin = Instant::now();
        let rate = throughput(cores, 64 << 10, Duration::from_millis(50)).unwrap();
        assert!(rate > 1e6, "{rate}");
        assert!(begin.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_missing_cpu_is_an_error_on_either_side() {
        let cores = Cores::pick().unwrap();
        let duration = Duration::from_millis(20);
        assert!(throughput(Cores { server: 1_023, ..cores }, 4_096, duration).is_err());
        assert!(throughput(Cores { client: 1_023, ..cores }, 4_096, duration).is_err());
        assert!(throughput(cores, 0, duration).is_err());
    }
}
