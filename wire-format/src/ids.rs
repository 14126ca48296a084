//! The small typed numbers that cross every boundary: two of them can never be swapped by accident.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl $name {
            /// The smallest value.
            pub const ZERO: Self = Self(0);
            /// The largest value.
            pub const MAX: Self = Self(<$inner>::MAX);

            /// The bare number, for formats and metrics.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// Position of a message in its pchannel. Dense: the message after offset `n` has offset `n + 1`. The first is 0.
    Offset(u64)
}
number! {
    /// Ownership period of a pchannel. Only grows; a block of a smaller term that follows a larger one is stale.
    Term(u64)
}
number! {
    /// Who produces. Chosen at random by the client and kept over reconnects; 0 means "no deduplication asked for".
    ProducerId(u64)
}
number! {
    /// Incarnation of a producer. A larger one fences the smaller and starts its sequence anew.
    ProducerEpoch(u32)
}
number! {
    /// Number of a message within one producer epoch, dense from 0. Retries of a batch repeat it.
    Sequence(u64)
}
number! {
    /// A count of bytes.
    Bytes(u64)
}
number! {
    /// A span of time in milliseconds, or milliseconds since the Unix epoch where the name says so.
    Millis(u64)
}

impl Offset {
    /// The offset `count` messages later; saturates at the largest.
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

impl Sequence {
    /// The sequence `count` messages later; saturates at the largest.
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

impl Term {
    /// The term after this one.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// What a message is. The numbers are those of Milvus's streaming service
/// (`pkg/proto/messages.proto`); the set is open: an unknown number is carried through untouched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MessageType(pub u16);

macro_rules! message_types {
    ($($(#[$doc:meta])* $konst:ident = $number:literal, $text:literal;)*) => {
        impl MessageType {
            $($(#[$doc])* pub const $konst: Self = Self($number);)*

            /// The name of a known type.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }

            /// The type of a known name, as `name` prints it.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self($number)),)*
                    _ => None,
                }
            }
        }
    };
}

message_types! {
    /// A promise that nothing at or below its timetick follows. Made by the log only, never by a producer.
    TIME_TICK = 1, "timetick";
    /// Rows of a collection.
    INSERT = 2, "insert";
    /// Primary keys to delete.
    DELETE = 3, "delete";
    /// Growing segments were flushed.
    FLUSH = 4, "flush";
    /// A collection comes to life.
    CREATE_COLLECTION = 5, "create_collection";
    /// A collection ends.
    DROP_COLLECTION = 6, "drop_collection";
    /// A partition comes to life.
    CREATE_PARTITION = 7, "create_partition";
    /// A partition ends.
    DROP_PARTITION = 8, "drop_partition";
    /// A user asked for a flush.
    MANUAL_FLUSH = 9, "manual_flush";
    /// A growing segment was opened.
    CREATE_SEGMENT = 10, "create_segment";
    /// Files are imported.
    IMPORT = 11, "import";
    /// A schema changed (older form).
    SCHEMA_CHANGE = 12, "schema_change";
    /// A collection's properties or schema changed.
    ALTER_COLLECTION = 13, "alter_collection";
    /// A transaction opens.
    BEGIN_TXN = 900, "begin_txn";
    /// A transaction takes effect.
    COMMIT_TXN = 901, "commit_txn";
    /// A transaction is undone.
    ROLLBACK_TXN = 902, "rollback_txn";
    /// A whole transaction as one message.
    TXN = 999, "txn";
}

impl MessageType {
    /// The bit of this type in a batch's type bitmap. Types from 63 on share the last bit, so that a set bit means
    /// "may hold this type" and a clear bit means "does not".
    pub const fn bit(self) -> u64 {
        1 << if self.0 < 63 { self.0 } else { 63 }
    }

    /// Whether only the log itself may write this type.
    pub const fn is_reserved(self) -> bool {
        self.0 == Self::TIME_TICK.0 || self.0 == 0
    }
}

impl fmt::Debug for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "type-{}", self.0),
        }
    }
}

impl std::str::FromStr for MessageType {
    type Err = crate::FormatError;

    /// Reads a known name, `type-N`, or a bare number.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(known) = Self::from_name(text) {
            return Ok(known);
        }
        text.strip_prefix("type-")
            .unwrap_or(text)
            .parse()
            .map(Self)
            .map_err(|_| crate::FormatError::UnknownMessageType { text: text.to_owned() })
    }
}
