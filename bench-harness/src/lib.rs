//! Measures the log service and the machine it runs on.
//!
//! - [`raw`]: the limits of the machine (disk, loopback, bare echo), measured beside every scenario.

pub mod raw;
