//! The one error of the raw measurements: which step failed, and why.

use std::io;

/// A raw measurement that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("raw limit \"{step}\" could not be measured: {source}")]
pub struct RawError {
    /// What was being done, in words a user understands.
    pub step: String,
    /// The system's own reason.
    #[source]
    pub source: io::Error,
}

/// Names the step in which a system call failed.
pub(crate) trait Step<T> {
    /// Turns the error of a system call into a [`RawError`] of the step `step`.
    fn step(self, step: &str) -> Result<T, RawError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &str) -> Result<T, RawError> {
        self.map_err(|error| RawError {
            step: step.to_owned(),
            source: error.into(),
        })
    }
}

/// An error of our own making in step `step`.
pub(crate) fn failed(step: &str, reason: impl Into<String>) -> RawError {
    RawError {
        step: step.to_owned(),
        source: io::Error::other(reason.into()),
    }
}
