//! `lognode consume`.

use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

use clap::Args;
use lognode_client::{
    Admin, BatchEvent, Error, Filter, MessageType, Offset, PchannelInfo, ReadOptions, Reader, ReceivedBatch, Start,
    Timetick,
};

use super::{
    fault::{Fault, finish, print},
    parquet_out::VectorSink,
    progress::{Progress, Unit},
    server::{self, ServerArgs, Signals, pchannel_name},
    sink::Sink,
    start_position, table,
};

/// What to read, and where to put it.
#[derive(Args)]
#[command(after_help = "Examples:
  lognode consume --pchannel demo                                   from the beginning, for ever
  lognode consume --pchannel demo --from latest --ticks             what is new, and the timeticks
  lognode consume --pchannel demo --vchannel demo-v1 --until-caught-up
  lognode consume --pchannel demo --type delete --from offset:5000 --limit 10
  lognode consume --pchannel demo --until-caught-up --out rows.parquet

A line is {\"offset\", \"timetick\", \"vchannel\", \"type\", \"properties\"} and \"id\" and \"vector\" where the message is a \
vector (see `lognode produce --help`), else \"body\", or \"body_base64\" if it is not text. With --raw every message is \
printed with its body, and `lognode produce --jsonl` takes it. A vector with a number that JSON does not know (NaN, \
infinity) is printed raw. With --ticks there are also lines {\"tick\", \"next_offset\"}: everything with a timetick up to \
`tick` has come, and reading goes on at `next_offset`.

The Parquet file has the columns id, vector, vchannel, offset and timetick; messages that are no vectors are left out. \
What happened is told on standard error at the end. Without an end of its own it runs until ctrl-c.")]
pub struct ConsumeArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Log to read.
    #[arg(long, value_parser = pchannel_name)]
    pchannel: String,
    /// Only this vchannel; may be given several times.
    #[arg(long = "vchannel", value_name = "NAME")]
    vchannels: Vec<String>,
    /// Only this type: a name such as insert, or a number; may be given several times.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<MessageType>,
    /// Where to begin: earliest, latest, offset:N or timetick:T.
    #[arg(long, default_value = "earliest", value_parser = start_position::parse, value_name = "WHERE")]
    from: Start,
    /// End when everything with a timetick up to T has come.
    #[arg(long, value_name = "T")]
    to_timetick: Option<u64>,
    /// End when everything has come that was durable at the start.
    #[arg(long)]
    until_caught_up: bool,
    /// End after N messages.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Print timeticks too.
    #[arg(long, conflicts_with = "out")]
    ticks: bool,
    /// Write vectors to this Parquet file instead of printing lines.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print all bodies as they are, none as a vector.
    #[arg(long, conflicts_with = "out")]
    raw: bool,
}

/// Reads until its end and tells what came.
pub fn execute(args: &ConsumeArgs) -> ExitCode {
    finish(server::run(consume(args)))
}

/// When reading is done.
struct Goal {
    limit: Option<u64>,
    to_timetick: Option<Timetick>,
    /// What was durable at the start, and the largest timetick given out by then.
    caught_up: Option<(Offset, Timetick)>,
}

impl Goal {
    fn is_set(&self) -> bool {
        self.limit.is_some() || self.to_timetick.is_some() || self.caught_up.is_some()
    }

    /// Whether nothing that was there at the start can come: the reader begins behind it.
    fn lies_behind(&self, from: Start) -> bool {
        let behind = |(_, last)| matches!(from, Start::Timetick(from) if from > last);
        self.caught_up.is_some_and(behind)
    }

    /// Whether a tick says that all has come.
    fn is_reached(&self, tick: Timetick, next_offset: Offset) -> bool {
        let in_time = |to: Timetick| tick >= to;
        let at_tail = |(tail, last): (Offset, Timetick)| tick >= last && next_offset >= tail;
        self.to_timetick.is_some_and(in_time) || self.caught_up.is_some_and(at_tail)
    }
}

/// Why reading ended.
enum Ending {
    Reached,
    Interrupted,
    /// Going on where it ended would only end there again.
    Damaged(Fault),
    Fault(Fault),
}

struct Reading {
    sink: Sink,
    goal: Goal,
    messages: u64,
    left_out: u64,
    first: Option<Offset>,
    next_offset: Offset,
    /// Everything up to here has come.
    tick: Timetick,
}

async fn consume(args: &ConsumeArgs) -> Result<(), Fault> {
    let mut signals = Signals::take()?;
    // Asked before the reader opens, so that the end is no further away than it was then.
    let known = Admin::new(args.server.client("consume"))?.list_pchannels().await?;
    let info = known.iter().find(|p| p.name == args.pchannel);
    if info.is_none() {
        unknown(args, &known)?;
    }
    let sink = match &args.out {
        Some(path) => Sink::Vectors(Box::new(VectorSink::create(path)?)),
        None => Sink::lines(args.raw, args.ticks),
    };
    let to_timetick = args.to_timetick.map(Timetick);
    let last = to_timetick.unwrap_or(Timetick::MAX);
    let filter = Filter::new(args.vchannels.clone(), args.types.clone(), Timetick::ZERO, last);
    let options = ReadOptions::from(args.from).filter(filter);
    let mut reader = Reader::open(args.server.client("consume"), &args.pchannel, options).await?;
    if let (Start::Timetick(from), Some(info)) = (args.from, info)
        && from > info.last_timetick
    {
        ahead(args, from, info.last_timetick);
    }
    let mut progress = bar(args, info, reader.position());
    let mut reading = Reading {
        sink,
        goal: Goal {
            limit: args.limit,
            to_timetick,
            caught_up: info
                .filter(|_| args.until_caught_up)
                .map(|p| (p.next_offset, p.last_timetick)),
        },
        messages: 0,
        left_out: 0,
        first: None,
        next_offset: reader.position(),
        tick: Timetick::ZERO,
    };
    let begin = reading.next_offset;
    let ended = loop {
        if reading.goal.lies_behind(args.from) {
            break Ending::Reached;
        }
        let event = tokio::select! {
            biased;
            () = signals.next() => break Ending::Interrupted,
            event = reader.next_batch() => event,
        };
        let event = match event {
            Ok(event) => event,
            Err(error @ Error::Damaged { .. }) => break Ending::Damaged(error.into()),
            Err(error) => break Ending::Fault(error.into()),
        };
        match reading.take(event) {
            Ok(true) => break Ending::Reached,
            Ok(false) => progress.set(match args.limit {
                Some(_) => reading.messages,
                None => reading.next_offset.get().saturating_sub(begin.get()),
            }),
            Err(fault) => break Ending::Fault(fault),
        }
    };
    let seconds = progress.elapsed().as_secs_f64();
    drop(progress);
    reading.end(args, ended, seconds)
}

/// The reader begins behind everything there is.
fn ahead(args: &ConsumeArgs, from: Timetick, last: Timetick) {
    if !args.until_caught_up {
        let late = from.physical().get().saturating_sub(last.physical().get());
        eprintln!(
            "lognode: timetick {from} lies {late} ms ahead of the last one of {}, {last}; waiting for it",
            args.pchannel
        );
    }
}

/// The pchannel does not exist. Reading it creates it where the server allows that; a slip of the keyboard should not.
fn unknown(args: &ConsumeArgs, known: &[PchannelInfo]) -> Result<(), Fault> {
    let mut names: Vec<&str> = known.iter().map(|p| p.name.as_str()).take(8).collect();
    if known.len() > names.len() {
        names.push("...");
    }
    let names = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    let text = format!(
        "{} has no pchannel {}; it has: {names}",
        args.server.server, args.pchannel
    );
    if args.until_caught_up {
        return Err(Fault::Failed(text));
    }
    eprintln!("lognode: {text}; waiting for its first message");
    Ok(())
}

fn bar(args: &ConsumeArgs, info: Option<&PchannelInfo>, from: Offset) -> Progress {
    // Lines and a bar on one terminal would only disturb each other.
    if args.out.is_none() && std::io::stdout().is_terminal() {
        return Progress::none();
    }
    let total = match (args.limit, info) {
        (Some(limit), _) => return Progress::new(Unit::Count("messages"), Some(limit)),
        (None, Some(info)) if args.until_caught_up => Some(info.next_offset.get().saturating_sub(from.get())),
        _ => None,
    };
    Progress::new(Unit::Count("offsets"), total)
}

impl Reading {
    /// Takes what came. Says whether that was all.
    fn take(&mut self, event: BatchEvent) -> Result<bool, Fault> {
        match event {
            BatchEvent::Batch(batch) => self.batch(&batch),
            BatchEvent::Tick { timetick, next_offset } => {
                self.tick = timetick;
                self.next_offset = self.next_offset.max(next_offset);
                self.sink.tick(timetick, next_offset)?;
                Ok(self.goal.is_reached(timetick, next_offset))
            }
        }
    }

    fn batch(&mut self, batch: &ReceivedBatch) -> Result<bool, Fault> {
        for message in batch.messages() {
            self.first.get_or_insert(message.offset);
            if self.sink.message(&message)? {
                self.messages += 1;
            } else {
                self.left_out += 1;
            }
            self.next_offset = message.offset.plus(1);
            if self.goal.limit == Some(self.messages) {
                return Ok(true);
            }
        }
        self.next_offset = batch.meta().next_offset();
        Ok(false)
    }

    fn end(self, args: &ConsumeArgs, ending: Ending, seconds: f64) -> Result<(), Fault> {
        let mut go_on = format!(", go on with --from offset:{}", self.next_offset);
        let why = match ending {
            Ending::Reached => return self.tell(args, seconds),
            // Whoever ends what has no end of its own got what they wanted.
            Ending::Interrupted if !self.goal.is_set() => return self.tell(args, seconds),
            Ending::Interrupted => "interrupted".to_owned(),
            Ending::Damaged(fault) => {
                go_on.clear();
                fault.text().to_owned()
            }
            Ending::Fault(Fault::Failed(text) | Fault::Usage(text)) => text,
            Ending::Fault(Fault::OutputClosed) => return Err(Fault::OutputClosed),
        };
        let messages = table::counted(self.messages, "message");
        let partly = self.sink.finish_partly()?;
        Err(Fault::Failed(format!(
            "{why}; {messages} came before that{go_on}{partly}"
        )))
    }

    fn tell(self, args: &ConsumeArgs, seconds: f64) -> Result<(), Fault> {
        let summary = self.summary(args, seconds);
        self.sink.finish()?;
        match &args.out {
            Some(path) => print(&format!("{}: {summary}\n", path.display())),
            None => {
                eprintln!("{summary}");
                Ok(())
            }
        }
    }

    fn summary(&self, args: &ConsumeArgs, seconds: f64) -> String {
        let from = match self.first {
            Some(first) => format!(", the first at offset {first}"),
            None => String::new(),
        };
        let complete = match self.tick {
            Timetick::ZERO => String::new(),
            tick => format!(", complete up to timetick {tick}"),
        };
        let left_out = match self.left_out {
            0 => String::new(),
            some => format!("; {} that hold no vector were left out", table::count(some)),
        };
        format!(
            "{} of {}{from}; reading goes on at offset {}{complete}; {seconds:.3} s{left_out}",
            table::counted(self.messages, "message"),
            args.pchannel,
            self.next_offset,
        )
    }
}
