//! `lognode produce`.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{ArgGroup, Args};
use lognode_client::{MessageType, Offset, Pending, Producer, ProducerConfig, Timetick};
use serde::Serialize;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    fault::{Fault, finish, print, print_json},
    parquet_in::{RowMapping, VectorFile},
    progress::Progress,
    server::{self, ServerArgs, Signals, pchannel_name},
    source::{JsonLines, Portion, Source},
    table,
};

/// What to write, and where to.
#[derive(Args)]
#[command(group = ArgGroup::new("input").required(true))]
#[command(after_help = "Examples:
  lognode produce --pchannel demo --parquet vectors.parquet --vchannels 4
  lognode produce --pchannel demo --parquet train.parquet --id-column pk --vector-column embedding
  echo '{\"vchannel\":\"demo-v1\",\"type\":\"delete\",\"properties\":{\"id\":\"17\"},\"body\":\"\"}' | \\
      lognode produce --pchannel demo --jsonl -
  lognode consume --pchannel demo --raw --until-caught-up | lognode produce --pchannel copy --jsonl -

Parquet: each row is one message. Its body is the vector, its elements one behind the other as little-endian 32-bit \
floats (64-bit if the column is of doubles). Its properties are `id`, `dim` (the number of elements), `id_type` \
(`string`, only if the id is text) and every further column of numbers, text or booleans under its own name. Its \
vchannel is PREFIX and a number from 1 to N: the id modulo N plus 1, for text ids their xxh3 hash modulo N plus 1.

JSON lines: {\"vchannel\": TEXT, \"type\": NAME or NUMBER, \"properties\": {TEXT: TEXT}, \"body\": TEXT}, with \
\"body_base64\" in place of \"body\" for bytes. Type and properties may be left out.

It returns when everything is durable. Exit code 1: something is not, the message says what is.")]
pub struct ProduceArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Log to write to.
    #[arg(long, value_parser = pchannel_name)]
    pchannel: String,
    /// Parquet file of vectors.
    #[arg(long, value_name = "FILE", group = "input")]
    parquet: Option<PathBuf>,
    /// File of JSON lines, - for standard input.
    #[arg(long, value_name = "FILE", group = "input")]
    jsonl: Option<PathBuf>,
    /// Column of ids: whole numbers or text.
    #[arg(long, default_value = "id", conflicts_with = "jsonl", value_name = "NAME")]
    id_column: String,
    /// Column of vectors: lists of floats.
    #[arg(long, default_value = "emb", conflicts_with = "jsonl", value_name = "NAME")]
    vector_column: String,
    /// Vchannels that the rows spread over.
    #[arg(long, default_value_t = 1, conflicts_with = "jsonl", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    vchannels: u32,
    /// What the names of the vchannels begin with [default: the pchannel's name and -v].
    #[arg(long, conflicts_with = "jsonl", value_name = "PREFIX")]
    vchannel_prefix: Option<String>,
    /// Type of the messages: a name such as insert or delete, or a number. JSON lines may have their own.
    #[arg(long = "type", default_value = "insert", value_name = "TYPE")]
    message_type: MessageType,
    /// A batch is sent when it has this many bytes.
    #[arg(long, default_value_t = 256 << 10, value_name = "BYTES")]
    batch_bytes: usize,
    /// The first message of a batch waits this long for company, in milliseconds.
    #[arg(long, default_value_t = 1, value_name = "MS")]
    linger_ms: u64,
    /// How long a message may take to become durable, in seconds.
    #[arg(long, default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    deadline_s: u64,
    /// Print the summary as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Writes everything and prints a summary.
pub fn execute(args: &ProduceArgs) -> ExitCode {
    finish(open(args).and_then(|source| server::run(produce(args, source))))
}

fn open(args: &ProduceArgs) -> Result<Source, Fault> {
    if let Some(path) = &args.jsonl {
        return JsonLines::open(path, args.message_type).map(Source::Lines);
    }
    let prefix = args.vchannel_prefix.clone();
    let mapping = RowMapping {
        id_column: args.id_column.clone(),
        vector_column: args.vector_column.clone(),
        vchannel_prefix: prefix.unwrap_or_else(|| format!("{}-v", args.pchannel)),
        vchannels: args.vchannels,
        message_type: args.message_type,
    };
    let path = args.parquet.as_deref().unwrap_or_else(|| "".as_ref());
    let file = VectorFile::open(path, mapping)?;
    if !file.left_out().is_empty() {
        eprintln!("lognode: these columns are not logged: {}", file.left_out().join(", "));
    }
    Ok(Source::Vectors(file))
}

/// What is stored so far, counted from acks.
#[derive(Debug, Clone, Default, Serialize)]
struct Stored {
    /// Messages that are durable.
    rows: u64,
    /// Offsets of the first and the last of them.
    first_offset: Option<Offset64>,
    last_offset: Option<Offset64>,
    last_timetick: u64,
    /// How many were found to be stored already by an earlier try, after a broken connection.
    duplicates: u64,
}

type Offset64 = u64;

impl Stored {
    fn add(&mut self, offset: Offset, timetick: Timetick, duplicate: bool) {
        self.rows += 1;
        self.first_offset.get_or_insert(offset.get());
        self.last_offset = Some(offset.get());
        self.last_timetick = timetick.get();
        self.duplicates += u64::from(duplicate);
    }

    fn span(&self) -> String {
        match (self.first_offset, self.last_offset) {
            (Some(first), Some(last)) => format!("offsets {first} to {last}"),
            _ => "no offset".to_owned(),
        }
    }
}

#[derive(Serialize)]
struct Summary {
    pchannel: String,
    #[serde(flatten)]
    stored: Stored,
    /// Bytes of their bodies.
    bytes: u64,
    seconds: f64,
    rows_per_s: f64,
}

/// Counts acks in order until the channel is closed or a message failed.
fn count_acks(mut pending: mpsc::UnboundedReceiver<Pending>) -> JoinHandle<(Stored, Option<lognode_client::Error>)> {
    tokio::spawn(async move {
        let mut stored = Stored::default();
        while let Some(next) = pending.recv().await {
            match next.await {
                Ok(ack) => stored.add(ack.offset, ack.timetick, ack.duplicate),
                Err(error) => return (stored, Some(error)),
            }
        }
        (stored, None)
    })
}

async fn produce(args: &ProduceArgs, source: Source) -> Result<(), Fault> {
    let mut signals = Signals::take()?;
    let client = args.server.client("produce");
    let config = ProducerConfig::default()
        .batch_bytes(args.batch_bytes)
        .linger(Duration::from_millis(args.linger_ms))
        .deadline(Duration::from_secs(args.deadline_s));
    let producer = Producer::connect_with(client, &args.pchannel, config).await?;
    let (unit, total) = source.extent();
    let mut progress = Progress::new(unit, total);
    let mut portions = source.start()?;
    // Bounded by the producer: it takes no more than its in-flight bytes before acks come.
    let (hand_over, pending) = mpsc::unbounded_channel();
    let acks = count_acks(pending);
    let mut sent_bytes = 0;
    let sending = async {
        while let Some(portion) = portions.recv().await {
            send(&producer, portion?, &hand_over, &mut progress, &mut sent_bytes).await?;
            if acks.is_finished() {
                break;
            }
        }
        Ok(())
    };
    let mut ended = tokio::select! {
        ended = sending => ended,
        () = signals.next() => Err(Fault::Failed("interrupted".to_owned())),
    };
    // Whatever happened: what was taken is brought to its end, so that it can be told what is stored.
    drop(hand_over);
    let settled = async {
        // Its errors are those of the messages, which `acks` has.
        let _ = producer.flush().await;
        acks.await
    };
    let settled = tokio::select! {
        settled = settled => settled,
        () = signals.next() => return Err(Fault::Failed("interrupted twice: read the log to see what is stored".to_owned())),
    };
    let (stored, failed) = settled.map_err(Fault::failed)?;
    let elapsed = progress.elapsed().as_secs_f64();
    drop(progress);
    if let Some(error) = failed {
        ended = Err(error.into());
    }
    if let Err(fault) = ended {
        let rows = table::counted(stored.rows, "message");
        let before = format!("{rows} before it are stored ({})", stored.span());
        return Err(match fault {
            Fault::Usage(text) | Fault::Failed(text) => Fault::Failed(format!("{text}; {before}")),
            closed @ Fault::OutputClosed => closed,
        });
    }
    let summary = Summary {
        pchannel: args.pchannel.clone(),
        bytes: sent_bytes,
        seconds: elapsed,
        rows_per_s: stored.rows as f64 / elapsed.max(1e-9),
        stored,
    };
    if args.json {
        print_json(&summary)
    } else {
        print(&text(&summary))
    }
}

async fn send(
    producer: &Producer,
    portion: Portion,
    hand_over: &mpsc::UnboundedSender<Pending>,
    progress: &mut Progress,
    sent_bytes: &mut u64,
) -> Result<(), Fault> {
    for message in portion.messages {
        let bytes = message.body.len() as u64;
        let pending = producer.enqueue(message).await?;
        *sent_bytes += bytes;
        if hand_over.send(pending).is_err() {
            // A message before this one failed; its error is told.
            return Ok(());
        }
    }
    progress.advance(portion.taken);
    Ok(())
}

fn text(summary: &Summary) -> String {
    let Summary { stored, .. } = summary;
    if stored.rows == 0 {
        return format!("no rows: nothing was written to {}\n", summary.pchannel);
    }
    let again = match stored.duplicates {
        0 => String::new(),
        some => format!(", {some} of them answered from an earlier try"),
    };
    format!(
        "{} ({} of bodies) durable in {}: {}, last timetick {}; {:.3} s, {} rows/s{again}\n",
        table::counted(stored.rows, "row"),
        table::bytes(summary.bytes),
        summary.pchannel,
        stored.span(),
        stored.last_timetick,
        summary.seconds,
        table::count(summary.rows_per_s as u64),
    )
}
