//! Stub of the skeleton.

pub mod probe;
