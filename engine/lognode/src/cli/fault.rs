//! What ends a command early, and what it prints.

use std::{fmt, io, process::ExitCode};

use lognode_client::Error;

/// Why a command ends without having done its work.
#[derive(Debug)]
pub enum Fault {
    /// It tried and failed: exit code 1.
    Failed(String),
    /// What it was told makes no sense: exit code 2.
    Usage(String),
    /// Nobody reads its output any more, as with `| head`: it ends without a word and with exit code 0.
    OutputClosed,
}

impl Fault {
    /// It tried and failed.
    pub fn failed(text: impl fmt::Display) -> Self {
        Self::Failed(text.to_string())
    }

    /// A write to standard output failed.
    pub fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Failed(format!("standard output can't be written: {error}")),
        }
    }

    /// The same fault, with the place before its text.
    pub fn within(self, place: impl fmt::Display) -> Self {
        match self {
            Self::Failed(text) => Self::Failed(format!("{place}: {text}")),
            Self::Usage(text) => Self::Usage(format!("{place}: {text}")),
            Self::OutputClosed => Self::OutputClosed,
        }
    }

    /// What it says; empty if nobody reads.
    pub fn text(&self) -> &str {
        match self {
            Self::Failed(text) | Self::Usage(text) => text,
            Self::OutputClosed => "",
        }
    }
}

/// The client's texts say what to do; here the flags that do it are added.
impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match &error {
            Error::Connect { .. } => Self::Failed(format!("{error} (--server or LOGNODE_SERVER)")),
            Error::Truncated { first, .. } => {
                Self::Failed(format!("{error} (--from offset:{first} or --from earliest)"))
            }
            Error::BeyondEnd { next, .. } => Self::Failed(format!("{error} (--from offset:{next} or --from latest)")),
            // The server's own words say which offset that is; the client's would say the rest twice.
            Error::Damaged { message, .. } => Self::Failed(format!("{message} (with --from offset:N)")),
            Error::InvalidMessage(_) | Error::InvalidConfig { .. } => Self::Usage(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Prints what went wrong, on one line, and gives the exit code.
pub fn finish(result: Result<(), Fault>) -> ExitCode {
    match result {
        Ok(()) | Err(Fault::OutputClosed) => ExitCode::SUCCESS,
        Err(Fault::Failed(text)) => super::fail(1, one_line(&text)),
        Err(Fault::Usage(text)) => super::fail(2, one_line(&text)),
    }
}

fn one_line(text: &str) -> String {
    text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Prints a whole answer to standard output.
pub fn print(text: &str) -> Result<(), Fault> {
    use io::Write;
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| Fault::output(&e))
}

/// Prints a value as one line of JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Fault> {
    let line = serde_json::to_string(value).map_err(Fault::failed)?;
    print(&(line + "\n"))
}
