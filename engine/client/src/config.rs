//! What a caller may set, each with a default that suits a server in the same data centre.

use std::time::Duration;

use wire_format::{Limits, ProducerEpoch, ProducerId, batch::Filter, protocol::Start};

/// Longer than anybody waits. Spans are cut to it, so that adding one to a moment can't overflow.
pub(crate) const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

/// How to reach a server, and how long to wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// Where the server listens, as `host:port`.
    pub server: String,
    /// Who asks, for the server's log.
    pub client_name: String,
    /// How long name lookup, TCP connect and the hello's answer may take together, for one try.
    pub connect_timeout: Duration,
    /// How long one administrative request may take, and the default of a producer's deadline.
    pub request_deadline: Duration,
    /// First wait before a new try to connect; it doubles with each try that fails.
    pub backoff_min: Duration,
    /// Longest wait between two tries.
    pub backoff_max: Duration,
    /// How many times in a row "another node owns that" is followed before it counts as an error.
    pub redirects_max: u32,
}

impl ClientConfig {
    /// The defaults, for a server at `host:port`.
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            client_name: "lognode-client".to_owned(),
            connect_timeout: Duration::from_secs(3),
            request_deadline: Duration::from_secs(10),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(1),
            redirects_max: 4,
        }
    }

    /// Sets the name that the server's log shows.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = name.into();
        self
    }

    /// Sets how long one try to connect may take.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long one request may take.
    pub fn request_deadline(mut self, deadline: Duration) -> Self {
        self.request_deadline = deadline;
        self
    }

    /// Sets the shortest and the longest wait between tries to connect.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        self.backoff_min = min;
        self.backoff_max = max.max(min);
        self
    }
}

/// Most batches that may be on their way at once: as many as a server remembers of one producer, so that each can be retried.
pub const IN_FLIGHT_BATCHES_MAX: usize = 64;

/// How a producer batches and how much it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerConfig {
    /// A batch of single messages is closed when its record would take this many bytes.
    pub batch_bytes: usize,
    /// How long the first message of a batch may wait for company. Zero: it goes as soon as the window has room.
    pub linger: Duration,
    /// Batches sent and not yet answered, at most; values above [`IN_FLIGHT_BATCHES_MAX`] count as that.
    pub max_in_flight_batches: usize,
    /// Bytes taken from callers and not yet answered, at most. Callers wait for room beyond that: this bounds the memory.
    pub max_in_flight_bytes: usize,
    /// How long a call may take, from its first poll to its answer. `None`: the client's `request_deadline`.
    pub deadline: Option<Duration>,
    /// With answers outstanding and none coming for this long, the connection counts as dead and a new one is opened.
    pub stall_timeout: Duration,
    /// Limits on a batch. The server's own limits hold as well; the smaller one counts.
    pub limits: Limits,
    /// A fixed identity, to fence an earlier incarnation of this producer with a larger epoch. `None`: chosen at random.
    pub identity: Option<(ProducerId, ProducerEpoch)>,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            batch_bytes: 256 << 10,
            linger: Duration::from_millis(1),
            max_in_flight_batches: 16,
            max_in_flight_bytes: 32 << 20,
            deadline: None,
            stall_timeout: Duration::from_secs(5),
            limits: Limits::default(),
            identity: None,
        }
    }
}

impl ProducerConfig {
    /// Sets the size at which a batch of single messages is closed.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes;
        self
    }

    /// Sets how long the first message of a batch waits for company.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Sets how much may be on its way: batches on the wire, and bytes in all.
    pub fn in_flight(mut self, batches: usize, bytes: usize) -> Self {
        self.max_in_flight_batches = batches;
        self.max_in_flight_bytes = bytes;
        self
    }

    /// Sets how long a call may take.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets after how long without an answer the connection counts as dead.
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = timeout;
        self
    }

    /// Sets the limits on a batch.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

/// Where a reader begins, what it wants, and when it gives up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// Where it begins.
    pub start: Start,
    /// What it wants; everything by default.
    pub filter: Filter,
    /// Bytes of deliveries that may be on their way: this bounds the memory.
    pub credit_bytes: u64,
    /// A server that sends nothing, not even a tick, for this long counts as gone: a new connection is opened.
    pub idle_timeout: Duration,
    /// When the server could not be reached for this long, `next` returns an error instead of trying on.
    pub outage_deadline: Duration,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            start: Start::Earliest,
            filter: Filter::default(),
            credit_bytes: 8 << 20,
            idle_timeout: Duration::from_secs(3),
            outage_deadline: Duration::from_secs(30),
        }
    }
}

impl ReadOptions {
    /// The defaults, beginning at `start`.
    pub fn from(start: Start) -> Self {
        Self {
            start,
            ..Self::default()
        }
    }

    /// Sets what is wanted.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Sets how many bytes may be on their way.
    pub fn credit_bytes(mut self, bytes: u64) -> Self {
        self.credit_bytes = bytes;
        self
    }

    /// Sets how long silence is taken for life.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Sets how long an outage is waited out.
    pub fn outage_deadline(mut self, deadline: Duration) -> Self {
        self.outage_deadline = deadline;
        self
    }
}
