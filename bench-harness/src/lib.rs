//! Measures the log service and the machine it runs on.
//!
//! ```text
//!  scenario::*  --Stage--> raw limits, then the real `lognode` as a child on one CPU
//!               --Load---> frames over sockets from one thread on another CPU, every ack checked
//!               <-Report-- figures beside the limits of the same invocation, and which side was the bottleneck
//! ```
//! - [`raw`]: the limits of the machine (disk, loopback, bare echo). Uses no code of the product.
//! - [`scenario`]: `append`, `latency`, `tail`, `catchup`, `idle`.
//! - [`load`]: the load generator, over `wire-format` only; [`server`]: the child process and its figures.

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
