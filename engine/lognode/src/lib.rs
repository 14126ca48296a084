//! The data plane: a node that owns pchannels, takes batches, makes them durable, and serves readers.
//!
//! ```text
//!                 side thread (tokio)                     shard threads (glommio, pinned)
//!  producer --TCP--> acceptor: hello --Inbox (fd)--> shard::connection -> produce -> Pchannel -> commit -> backends
//!  reader   --TCP--> acceptor: hello --Inbox (fd)--> shard::connection -> scan <- tail | log
//!  operator --HTTP-> http: healthz, readyz, metrics <--Published, once in 250 ms-- shard::ticker
//!                 keeper thread: node.meta (terms, time mark)     heartbeat thread: pokes a shard that is late
//! ```
//!
//! - [`config`]: one file, every key documented in `configs/lognode.toml`.
//! - [`node`]: starts and stops all of it.
//! - [`acceptor`], [`handover`]: from the one port to the owning shard.
//! - [`shard`]: the hot path; its own page says how a message goes through it.
//! - [`metadata`], [`keeper`], [`time_source`]: what must survive outside the logs, and the clocks.
//! - [`http`], [`metrics`], [`heartbeat`]: what watches.
//! - [`probe`]: whether this machine suits. [`cli`]: the commands.
//!
//! Decisions are made in `lognode-core`; this crate does the I/O that they ask for. Nothing here is durable until
//! `backends` says so, and nothing is acked before.

pub mod acceptor;
pub mod cli;
pub mod config;
pub mod handover;
pub mod heartbeat;
pub mod http;
pub mod keeper;
pub mod metadata;
pub mod metrics;
pub mod node;
pub mod probe;
pub mod shard;
pub mod time_source;
