//! The batch: the unit of everything, one layout from socket to disk to reader.

mod build;
mod filter;
mod header;
mod layout;
mod properties;
mod stamp;
mod subset;
mod verify;
mod view;

pub use build::{BatchBuilder, Origin, Record};
pub use filter::{Filter, Matched, Selection};
pub use header::Header;
pub use layout::{HEADER_BYTES, Layout, MAGIC, META_BYTES, PREFIX_BYTES, Prefix, VERSION};
pub use properties::Properties;
pub use stamp::{Stamp, stamp};
pub use subset::SubsetWriter;
pub use verify::{Door, verify};
pub use view::{BatchView, MessageView, Meta};
