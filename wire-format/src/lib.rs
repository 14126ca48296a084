//! The formats of the log service: what travels over a socket, lies on a disk, and is read in place by both.
//!
//! ```text
//!   producer                       LogNode                              reader
//!   --------                       -------                              ------
//!   BatchBuilder::push  copies a payload once
//!   BatchBuilder::finish
//!     Record { head, payload } --frame(Produce)--> verify(Door::Producer)
//!                                  stamp: offset, term, timetick in place
//!                                  ... stored as it is ...
//!                                  Filter::select: bitmap, dictionary, headers
//!                                  all wanted:  stored bytes ----------> verify(Door::Storage)
//!                                  some wanted: SubsetWriter ---------->   BatchView::messages
//! ```
//!
//! - [`batch`]: the record (prefix, FlatBuffers table, payload), its builder, its verification, its filter.
//! - [`frame`]: the 16 bytes in front of everything on a connection, and the small fixed bodies.
//! - [`protocol`]: hello, refusal and administration, as typed values over FlatBuffers tables.
//! - [`ids`], [`timetick`]: the numbers, each its own type.
//! - [`limits`]: bounds that untrusted bytes are held to before anything is allocated.
//!
//! No I/O, no async, no clock. Nothing here belongs to a shard: all types are plain values or views into bytes that the
//! caller owns. Integrity is a tree: the meta crc covers prefix and table, each header carries the crc32c that the
//! producer computed over its payload. The server renews only the meta crc, so payload checksums are end to end, also
//! for a filtered delivery.

// The generated code names `alloc::` paths, which resolve only from the crate root.
extern crate alloc;

pub mod batch;
pub mod crc;
pub mod error;
pub mod frame;
#[doc(hidden)]
pub mod generated;
pub mod ids;
pub mod limits;
pub mod protocol;
pub mod timetick;

pub use error::FormatError;
pub use ids::{Bytes, MessageType, Millis, Offset, ProducerEpoch, ProducerId, Sequence, Term};
pub use limits::Limits;
pub use timetick::Timetick;
