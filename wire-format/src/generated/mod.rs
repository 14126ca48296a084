//! Code that `flatc` made from `wire-format/schemas`. `schemas/generate.sh` renews it; a test proves that it is current.
#![allow(
    missing_docs,
    unused_imports,
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    rust_2018_idioms,
    unsafe_op_in_unsafe_fn,
    mismatched_lifetime_syntaxes
)]

#[rustfmt::skip]
mod batch_generated;
#[rustfmt::skip]
mod protocol_generated;

pub use batch_generated::lognode::batch;
pub use protocol_generated::lognode::protocol;
