//! Where `produce` takes its messages from: a thread of its own reads and decodes, so that the network never waits for it.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
    thread,
};

use lognode_client::{Message, MessageType};
use tokio::sync::mpsc;

use super::{fault::Fault, jsonl, parquet_in::VectorFile, progress::Unit};

/// Portions that wait to be sent: bounds the memory.
const PORTIONS_WAITING: usize = 4;
/// Lines that go on together if they are there together.
const LINES_AT_ONCE: usize = 256;
/// A longer line can't be a message: the largest batch is far smaller, even as base64.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// Some messages, and how much of the input they are.
pub struct Portion {
    /// The messages, in order.
    pub messages: Vec<Message>,
    /// Rows or bytes of the input that they stood in.
    pub taken: u64,
}

/// An opened input.
pub enum Source {
    /// A Parquet file.
    Vectors(VectorFile),
    /// Lines of JSON.
    Lines(JsonLines),
}

impl Source {
    /// What progress is counted in, and how much there is, if that is known.
    pub fn extent(&self) -> (Unit, Option<u64>) {
        match self {
            Self::Vectors(file) => (Unit::Count("rows"), Some(file.rows())),
            Self::Lines(lines) => (Unit::Bytes, lines.total_bytes),
        }
    }

    fn next(&mut self) -> Result<Option<Portion>, Fault> {
        match self {
            Self::Vectors(file) => {
                let messages = file.next_rows()?;
                Ok(messages.map(|messages| Portion {
                    taken: messages.len() as u64,
                    messages,
                }))
            }
            Self::Lines(lines) => lines.next(),
        }
    }

    /// Begins to read. The thread ends with the input, with the first fault, or when nobody takes its portions any more.
    pub fn start(mut self) -> Result<mpsc::Receiver<Result<Portion, Fault>>, Fault> {
        let (give, take) = mpsc::channel(PORTIONS_WAITING);
        let read = move || {
            while let Some(portion) = self.next().transpose() {
                let over = portion.is_err();
                if give.blocking_send(portion).is_err() || over {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("input".to_owned())
            .spawn(read)
            .map_err(|e| Fault::Failed(format!("no thread for the input: {e}")))?;
        Ok(take)
    }
}

/// Lines of JSON from a file or from standard input.
pub struct JsonLines {
    input: BufReader<Box<dyn Read + Send>>,
    default_type: MessageType,
    total_bytes: Option<u64>,
    line_number: u64,
    line: Vec<u8>,
    /// Found behind good lines, which go first.
    fault: Option<Fault>,
}

impl JsonLines {
    /// Opens a file, or standard input for `-`.
    pub fn open(path: &Path, default_type: MessageType) -> Result<Self, Fault> {
        let (input, total_bytes): (Box<dyn Read + Send>, _) = if path == Path::new("-") {
            (Box::new(std::io::stdin()), None)
        } else {
            let wrong = |e| {
                let place = path.display();
                Fault::Usage(format!(
                    "{place}: {e}; give an existing file with --jsonl, or - for standard input"
                ))
            };
            let file = File::open(path).map_err(wrong)?;
            let facts = file.metadata().map_err(wrong)?;
            (Box::new(file), facts.is_file().then_some(facts.len()))
        };
        Ok(Self {
            input: BufReader::with_capacity(256 << 10, input),
            default_type,
            total_bytes,
            line_number: 0,
            line: Vec::new(),
            fault: None,
        })
    }

    /// The lines that are there, up to a bound; waits for the first.
    fn next(&mut self) -> Result<Option<Portion>, Fault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut portion = Portion {
            messages: Vec::new(),
            taken: 0,
        };
        loop {
            match self.one(&mut portion) {
                Ok(true) => {}
                Ok(false) if portion.taken == 0 => return Ok(None),
                Ok(false) => return Ok(Some(portion)),
                Err(fault) if portion.messages.is_empty() => return Err(fault),
                Err(fault) => {
                    self.fault = Some(fault);
                    return Ok(Some(portion));
                }
            }
            // A slow pipe must not hold back what it has given already.
            if portion.messages.len() >= LINES_AT_ONCE || !self.input.buffer().contains(&b'\n') {
                return Ok(Some(portion));
            }
        }
    }

    fn one(&mut self, portion: &mut Portion) -> Result<bool, Fault> {
        self.line.clear();
        self.line_number += 1;
        let at = |problem: &dyn std::fmt::Display| Fault::Failed(format!("line {}: {problem}", self.line_number));
        let read = (&mut self.input).take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line);
        let bytes = read.map_err(|e| at(&e))? as u64;
        if bytes >= LINE_BYTES_MAX {
            return Err(at(&format!(
                "it is longer than {LINE_BYTES_MAX} bytes; is this a file of JSON lines?"
            )));
        }
        portion.taken += bytes;
        if let Some(message) = jsonl::parse(&self.line, self.default_type).map_err(|fault| at(&fault.text()))? {
            portion.messages.push(message);
        }
        Ok(bytes > 0)
    }
}
