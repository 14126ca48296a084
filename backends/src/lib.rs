//! Where a pchannel's log is durable. One trait, [`Wal`], one module per backend; now: [`local`].
//!
//! ```text
//!   shard (lognode)
//!     records --BlockBuilder--> Block --Wal::append--> Placed { block, durable }
//!                                                        |         `--> await: durable -> acks go out
//!                                                        `--> the memory tail keeps it for readers
//!     readers <--Chunk-- Wal::read(cursor) <-- segment files, read ahead
//! ```
//!
//! - [`block`]: what is written at once: one or more records behind a header that ties them to their place.
//! - [`wal`]: the trait, its errors, what it returns.
//! - [`local`]: segment files: O_DIRECT, pre-written, recycled, group sync, footers, checkpoint, recovery.
//! - [`signal`], [`gate`]: waiting on one shard without atomics.
//!
//! Everything here runs on the shard that owns the pchannel and is not `Send`. Nothing is durable until the `durable`
//! future of an append says so. A reader is a cursor in the caller's hands: no state of it is kept in the log.

#[cfg(test)]
extern crate self as backends; // the tests' support names it so

pub mod block;
pub mod gate;
pub mod local;
pub mod signal;
pub mod wal;

pub use wal::{Chunk, Damage, LogFacts, Placed, Wal, WalError};
