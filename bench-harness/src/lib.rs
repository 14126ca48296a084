//! Measures the log service and the machine it runs on.
//!
//! ```text
//!  scenario::*  --Stage--> raw limits, then the real `lognode` as a child on one CPU
//!               --Load---> frames over sockets from one thread on another CPU, every ack checked
//!               <-Report-- figures beside the limits of the same invocation, and which side was the bottleneck
//! ```
//! - [`raw`]: the limits of the machine (disk, loopback, bare echo). Uses no code of the product.
//! - [`options`], [`stage`]: what was asked for; folder, CPUs and repeated runs.
//! - [`server`]: the child process, its counters and what the kernel counts for it.
//! - [`load`]: the load generator, over `wire-format` only; an open loop counts from the moment a batch should have left.
//! - [`scenario`]: `append`, `latency`, `tail`, `catchup`, `idle`, each a file; [`latency`] and [`report`]: their figures.
//!
//! A figure is printed only if the server kept its promises on the way: each acked batch at a place of its own, no gap, the
//! log's end behind the last one, no delivery at or below a promised timetick, nothing acked that was not written.

mod afterwards;
pub mod error;
pub mod latency;
pub mod load;
pub mod options;
pub mod raw;
pub mod report;
pub mod scenario;
pub mod server;
pub mod stage;
