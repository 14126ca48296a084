//! The server's counters, read from its `/metrics` page.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::error::{BenchError, During};

const PATIENCE: Duration = Duration::from_secs(5);

/// One reading of the page.
#[derive(Debug, Clone)]
pub struct Metrics(String);

/// Reads the page over a connection of its own.
pub(super) fn read(http: SocketAddr) -> Result<Metrics, BenchError> {
    let step = "metrics page";
    let mut stream = TcpStream::connect_timeout(&http, PATIENCE).during(step)?;
    stream.set_read_timeout(Some(PATIENCE)).during(step)?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: lognode\r\nconnection: close\r\n\r\n")
        .during(step)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).during(step)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, page)) if head.starts_with("HTTP/1.1 200") => Ok(Metrics(page.to_owned())),
        _ => Err(BenchError::Check(format!("{step}: the answer was {answer:?}"))),
    }
}

impl Metrics {
    /// The sum of a counter over all its labels. `name` as it stands on the page.
    ///
    /// # Errors
    /// When there is no such counter.
    pub fn sum(&self, name: &str) -> Result<u64, BenchError> {
        let mut values = self.0.lines().filter_map(|line| {
            let behind = line.strip_prefix(name)?;
            let own = behind.starts_with(['{', ' ']);
            own.then(|| behind.rsplit(' ').next()?.parse::<u64>().ok()).flatten()
        });
        match values.next() {
            Some(first) => Ok(values.fold(first, |sum, value| sum + value)),
            None => Err(BenchError::Check(format!("the metrics page has no {name}"))),
        }
    }

    /// Bytes of blocks written to logs since the server's start.
    ///
    /// # Errors
    /// When the page does not say.
    pub fn log_written_bytes(&self) -> Result<u64, BenchError> {
        self.sum("lognode_log_written_bytes_total")
    }

    /// Bytes of node metadata written since the server's start.
    ///
    /// # Errors
    /// When the page does not say.
    pub fn metadata_written_bytes(&self) -> Result<u64, BenchError> {
        self.sum("lognode_metadata_written_bytes_total")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_added_up_and_longer_names_left_out() {
        let page = Metrics(
            "# TYPE a counter\na_total{shard=\"0\"} 3\na_total{shard=\"1\"} 4\na_total_b 9\nb_total 5\n".into(),
        );
        assert_eq!(page.sum("a_total").unwrap(), 7);
        assert_eq!(page.sum("b_total").unwrap(), 5);
        assert!(page.sum("c_total").is_err());
    }
}
