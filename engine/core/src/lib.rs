//! What the log service decides, apart from how it is done: state machines that take `(now, event)` and return actions.
//! No file, socket, timer, thread or clock in here, so every one is tested by properties, and all of them together by a
//! seeded simulation (`tests/simulation/`) with a fake clock, a fake disk and crashes.
//!
//! One pchannel on its shard; arrows are calls of the shell, in the order a message meets them:
//!
//! ```text
//!            wall + boot clock                     metadata store
//!                   |                              ^            |
//!                   v                  mark to store            v stored mark
//!             +-------------+              +----------------------+
//!             | HybridClock |--- now ----->|       TimeMark       |
//!             +-------------+              +----------------------+
//!                   | now      \                      | limit of promises
//!  batch            v           \                     v
//!  -----> Quota -> Sequencer <---\--- advance --- TickMachine ---- Promise ----+
//!         delay,   (Dedupe)       \- now, 10 ms ---->  ^                       |
//!         refuse      |                                | oldest unacked        |
//!            Position |                                |                       v
//!                     v        sealed block      +-----------+  durable   +--------+   bytes,
//!                block being ------------------->| Committer |----------->| Cursor |-> Tick(T)
//!                filled        block written --->+-----------+            +--------+   to a reader
//!                                                      | durable             ^
//!                                                      v                     | first kept
//!                                               ack to producer          retention
//! ```
//!
//! At the start `recovery` reads the log back into a `Sequencer`; beside all of it `MemoryBudget` counts bytes.
//!
//! - [`clock`], [`time_mark`]: time that never goes back, and the stored bound of what was promised.
//! - [`sequencer`], [`dedupe`]: offset and timetick of a batch; a retry gets its first place again.
//! - [`committer`]: which blocks are in flight, what is durable, what may be acked.
//! - [`tick`]: the promise of every 10 ms.
//! - [`cursor`]: one reader, from old log to live tail, with ticks all the way.
//! - [`quota`], [`budget`]: slower instead of over a limit.
//! - [`retention`], [`recovery`]: the two ends of a log's life.

pub mod budget;
pub mod clock;
pub mod committer;
pub mod cursor;
pub mod dedupe;
pub mod quota;
pub mod recovery;
pub mod retention;
pub mod sequencer;
pub mod tick;
pub mod time_mark;

pub use budget::{MemoryBudget, OverBudget, PartId, ReleasedTooMuch};
pub use clock::{HybridClock, Reading, SkewEvent, StoredClock};
pub use committer::{BlockFacts, BlockId, CommitFailure, Committer, InFlight, SealError};
pub use cursor::{Cursor, CursorError, LogView, Step};
pub use dedupe::{
    BadSnapshot, BatchKey, BatchSnapshot, Dedupe, DedupeLimits, DedupeOutcome, DedupeRefusal, ProducerSnapshot,
};
pub use quota::{Admission, Quota, QuotaLimits, RateLimited, Signal, SignalId};
pub use recovery::{BatchFacts, LogFacts, OpenError, Plan, Replay, ReplayError, Start};
pub use retention::{Hold, RetentionLimits, RetentionPlan, SegmentFacts};
pub use sequencer::{AppendRequest, Position, Refusal, Sequenced, Sequencer};
pub use tick::{Promise, TICK_INTERVAL, TickMachine};
pub use time_mark::{MARK_AHEAD, MARK_LOW, MARK_RETRY, MARK_TIMEOUT, TimeMark};
