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
//!
//! The way of two messages, of which a reader wants one:
//!
//! ```
//! use wire_format::batch::{BatchBuilder, Door, Filter, Matched, Origin, Selection, Stamp, SubsetWriter, stamp, verify};
//! use wire_format::{Limits, MessageType, Offset, Term, Timetick};
//!
//! let limits = Limits::default();
//! // A producer builds a record.
//! let mut builder = BatchBuilder::new("log-7", limits)?;
//! builder.push("books", MessageType::INSERT, [("partition", "2024")], b"rows")?;
//! builder.push("films", MessageType::DELETE, [], b"keys")?;
//! let mut record = builder.finish(Origin::default())?.to_bytes();
//!
//! // The owner of the pchannel checks it once and gives it its place.
//! let layout = verify(&record, Door::Producer, &limits)?.layout();
//! let place = Stamp {
//!     base_offset: Offset(100),
//!     term: Term(1),
//!     first_timetick: Timetick(2_000),
//!     promised_timetick: Timetick(1_999),
//! };
//! stamp(&mut record, &layout, &place);
//!
//! // For a reader of "films" it takes a part of it.
//! let films = Filter::new(vec!["films".to_owned()], vec![], Timetick::ZERO, Timetick::MAX);
//! let stored = verify(&record, Door::Storage, &limits)?;
//! let (mut selection, mut delivery) = (Selection::default(), Vec::new());
//! assert_eq!(films.select(&stored, &mut selection), Matched::Some);
//! SubsetWriter::default().write(&stored, selection.indices(), &mut delivery);
//!
//! // The reader checks it too, and sees the message where it was stored.
//! let delivered = verify(&delivery, Door::Storage, &limits)?;
//! let message = delivered.message(0);
//! assert_eq!((delivered.count(), message.vchannel, message.body), (1, "films", b"keys".as_slice()));
//! assert_eq!((message.offset, message.timetick), (Offset(101), Timetick(2_001)));
//! # Ok::<(), wire_format::FormatError>(())
//! ```

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
