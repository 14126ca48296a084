//! The one error of the load generator.

use std::io;

use wire_format::{FormatError, protocol::Refusal};

use crate::raw::RawError;

/// A scenario that gave no result. Each text says what was being done.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A raw limit could not be measured.
    #[error(transparent)]
    Raw(#[from] RawError),
    /// A system call failed.
    #[error("{step}: {source}")]
    Io {
        /// What was being done.
        step: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The server sent bytes that are not of the protocol.
    #[error("the server sent bytes that can't be: {0}")]
    Format(#[from] FormatError),
    /// The server said no.
    #[error("the server refused: {:?}: {}", .0.code, .0.message)]
    Refused(Box<Refusal>),
    /// The server process could not be started, or ended, or fell silent.
    #[error("server: {0}")]
    Server(String),
    /// What was measured can't be true, or what the server promised was not kept.
    #[error("check failed: {0}")]
    Check(String),
    /// The options can't work together.
    #[error("{0}")]
    Options(String),
}

/// Names the step in which a system call failed.
pub(crate) trait During<T> {
    /// Turns the error of a system call into a [`BenchError`] of the step `step`.
    fn during(self, step: &str) -> Result<T, BenchError>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, step: &str) -> Result<T, BenchError> {
        self.map_err(|error| BenchError::Io {
            step: step.to_owned(),
            source: error.into(),
        })
    }
}
