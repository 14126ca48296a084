//! Where `consume` puts messages: lines on standard output, or a Parquet file.

use std::io::{self, BufWriter, Stdout, Write};

use lognode_client::{MessageView, Offset, Timetick};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    fault::Fault,
    jsonl::{OutputLine, TickLine},
    parquet_out::VectorSink,
};

/// An open output.
pub enum Sink {
    /// JSON lines on standard output.
    Lines {
        /// Holds lines back until the next tick at most.
        out: BufWriter<Stdout>,
        /// Whether bodies are printed as they are.
        raw: bool,
        /// Whether ticks are printed.
        ticks: bool,
    },
    /// A Parquet file.
    Vectors(Box<VectorSink>),
}

impl Sink {
    /// JSON lines on standard output.
    pub fn lines(raw: bool, ticks: bool) -> Self {
        Self::Lines {
            out: BufWriter::with_capacity(64 << 10, io::stdout()),
            raw,
            ticks,
        }
    }

    /// Takes a message. Says `false` if it has no place here.
    pub fn message(&mut self, message: &MessageView<'_>) -> Result<bool, Fault> {
        match self {
            Self::Lines { out, raw, .. } => write_line(out, &OutputLine::new(*message, *raw)).map(|()| true),
            Self::Vectors(file) => file.push(message),
        }
    }

    /// Takes a tick: a good moment to show what has come. Faults with [`Fault::OutputClosed`] when nobody reads any more.
    pub fn tick(&mut self, timetick: Timetick, next_offset: Offset) -> Result<(), Fault> {
        let Self::Lines { out, ticks, .. } = self else {
            return Ok(());
        };
        if *ticks {
            let line = TickLine {
                tick: timetick.get(),
                next_offset: next_offset.get(),
            };
            write_line(out, &line)?;
        }
        out.flush().map_err(|e| Fault::output(&e))?;
        // Without a message there is no write that would tell.
        if is_hung_up(&io::stdout()) {
            Err(Fault::OutputClosed)
        } else {
            Ok(())
        }
    }

    /// Everything has come.
    pub fn finish(self) -> Result<(), Fault> {
        match self {
            Self::Lines { mut out, .. } => out.flush().map_err(|e| Fault::output(&e)),
            Self::Vectors(file) => file.finish(),
        }
    }

    /// Not everything has come. Gives a remark on what is there.
    pub fn finish_partly(self) -> Result<String, Fault> {
        match self {
            Self::Lines { mut out, .. } => out.flush().map(|()| String::new()).map_err(|e| Fault::output(&e)),
            Self::Vectors(file) => {
                let rows = file.rows();
                let part = file.finish_partly()?;
                Ok(format!("; the {rows} rows so far are in {}", part.display()))
            }
        }
    }
}

fn write_line(out: &mut BufWriter<Stdout>, line: &impl serde::Serialize) -> Result<(), Fault> {
    serde_json::to_writer(&mut *out, line).map_err(|e| match e.io_error_kind() {
        Some(kind) => Fault::output(&kind.into()),
        None => Fault::failed(e),
    })?;
    out.write_all(b"\n").map_err(|e| Fault::output(&e))
}

fn is_hung_up(out: &Stdout) -> bool {
    let mut fds = [PollFd::new(out, PollFlags::empty())];
    let asked = poll(&mut fds, Some(&Timespec::default()));
    asked.is_ok() && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}
