//! What an application links to use the log service: send messages to a pchannel, read them back, administrate.
//!
//! ```text
//!  your tasks                          one driver task per producer                       LogNode
//!  ----------                          ----------------------------                       -------
//!  Producer::send(Message)
//!    | waits for room (bytes)
//!    v
//!  intake: open batch ---- full, or ----> pipeline (sans-I/O)
//!    body copied once      linger over      numbers, window, retries
//!                                             | outbox: head + payload, vectored
//!                                             +---------- Produce ------------------------> append, sync
//!    Pending <-------- fate of the batch <---- Ack | Refusal, in order <------------------- stored
//!
//!  your task                                                                              LogNode
//!  Reader::next / next_batch / Stream  <- track <- verify crcs <- Deliver | Tick <-------- scan, filter
//!    | consumed                           position, order,
//!    +------------------------------------ Credit ---------------------------------------> may send on
//!
//!  Admin::list_pchannels, truncate  ------ AdminRequest ---------------------------------> answer
//! ```
//!
//! - [`producer`]: batches by bytes and linger, keeps several on their way, retries without doubling.
//! - [`reader`]: from a position on, through a filter, over any number of connections.
//! - [`admin`]: list and truncate pchannels.
//! - [`config`], [`message`], [`error`]: what goes in, what comes out, what went wrong.
//!
//! It runs on tokio, on either kind of runtime. Nothing here waits without a bound: a server that is gone, stopped or babbling
//! ends in a typed error whose text says what, where, and what to do next.
//!
//! # Sending
//! ```no_run
//! # async fn example() -> Result<(), lognode_client::Error> {
//! use lognode_client::{ClientConfig, Message, MessageType, Producer};
//!
//! let producer = Producer::connect(ClientConfig::new("127.0.0.1:19530"), "orders").await?;
//! let ack = producer.send(Message::new("orders_v0", MessageType::INSERT, "a row")).await?;
//! println!("durable at offset {}, timetick {}", ack.offset, ack.timetick);
//!
//! let mut batch = producer.batch()?;
//! for row in [&b"one"[..], b"two"] {
//!     batch.push("orders_v0", MessageType::INSERT, [("source", "import")], row)?;
//! }
//! let ack = producer.send_batch(batch).await?;
//! println!("{} messages from offset {} on", ack.count, ack.base_offset);
//! producer.close().await
//! # }
//! ```
//!
//! # Reading
//! ```no_run
//! # async fn example() -> Result<(), lognode_client::Error> {
//! use lognode_client::{ClientConfig, Event, Filter, ReadOptions, Reader, Start, Timetick};
//!
//! let filter = Filter::new(vec!["orders_v0".into()], vec![], Timetick::ZERO, Timetick::MAX);
//! let options = ReadOptions::from(Start::Earliest).filter(filter);
//! let mut reader = Reader::open(ClientConfig::new("127.0.0.1:19530"), "orders", options).await?;
//! loop {
//!     match reader.next().await? {
//!         Event::Message(message) => println!("{} {:?}", message.offset, message.body),
//!         Event::Tick { timetick, .. } => println!("complete up to {timetick}"),
//!     }
//! }
//! # }
//! ```

pub mod admin;
mod backoff;
pub mod config;
mod connection;
pub mod error;
pub mod message;
mod outbox;
mod pending;
mod pipeline;
pub mod producer;
pub mod reader;

pub use wire_format::{
    Bytes as ByteCount, Limits, MessageType, Millis, Offset, ProducerEpoch, ProducerId, Sequence, Term, Timetick,
    batch::{BatchView, Filter, Layout, MessageView},
    frame::Ack as BatchAck,
    protocol::{PchannelInfo, Refusal, RefusalCode, Start},
};

pub use self::{
    admin::{Admin, Truncated},
    config::{ClientConfig, IN_FLIGHT_BATCHES_MAX, ProducerConfig, ReadOptions},
    error::{Error, Outcome, Result},
    message::{Ack, BatchEvent, Event, Message, ReceivedBatch, ReceivedMessage},
    pending::{Pending, PendingBatch},
    producer::{Batch, Producer},
    reader::Reader,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_can_move_between_threads() {
        fn moves<T: Send>() {}
        fn shares<T: Sync>() {}
        moves::<Producer>();
        shares::<Producer>();
        moves::<Batch>();
        moves::<Pending>();
        moves::<PendingBatch>();
        moves::<Reader>();
        moves::<Admin>();
        shares::<Error>();
    }
}
