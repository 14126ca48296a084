//! How fast a producer may write: a token bucket whose rate sinks smoothly as something downstream falls behind.

use wire_format::{Bytes, Millis};

/// The limit named in a refusal when the configured rate itself was passed.
pub const RATE_LIMIT: &str = "rate_bytes_per_s";

const FULL: u64 = 1_000_000;

/// What a quota allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Bytes a second; 0 is unlimited.
    pub rate: Bytes,
    /// Bytes that may come at once after a pause.
    pub burst: Bytes,
    /// The rate that pressure divides when `rate` is unlimited: what the node is known to sustain.
    pub rate_under_pressure: Bytes,
    /// What pressure may leave of the rate at most pressure, in parts per million; 0 refuses everything there.
    pub min_factor_ppm: u32,
    /// A batch that would have to wait longer is refused instead.
    pub max_delay: Millis,
}

impl Default for QuotaLimits {
    /// No rate limit; under pressure from 1 GiB/s down to a hundredth; delays up to 1 s.
    fn default() -> Self {
        Self {
            rate: Bytes::ZERO,
            burst: Bytes(16 << 20),
            rate_under_pressure: Bytes(1 << 30),
            min_factor_ppm: 10_000,
            max_delay: Millis(1_000),
        }
    }
}

/// Something that slows producers when it falls behind: flush lag, L0 backlog, memory. Without effect up to `low`, full
/// effect from `high` on, linear in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its name, as metrics and refusals show it.
    pub name: &'static str,
    /// The value last measured.
    pub measured: u64,
    /// Where slowing begins.
    pub low: u64,
    /// Where it is fullest.
    pub high: u64,
}

impl Signal {
    /// What this signal leaves of the rate, in parts per million.
    pub fn factor_ppm(&self, min_factor_ppm: u32) -> u32 {
        let min = u64::from(min_factor_ppm).min(FULL);
        let over = u128::from(self.measured.saturating_sub(self.low));
        let span = u128::from(self.high.saturating_sub(self.low)).max(1);
        let lost = (u128::from(FULL - min) * over.min(span) / span) as u64;
        (FULL - lost) as u32
    }
}

/// Names a signal within one quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalId(usize);

/// The answer to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Go on; the bytes are counted.
    Now,
    /// Accepted and counted, but go on only after this long.
    Delay(Millis),
    /// Not accepted, nothing counted.
    Refused(RateLimited),
}

/// A refusal that tells what was passed and when to come again. Retryable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slowed down by {limit}: measured {measured}, limit {limit_value}. Try again in {retry_after} ms")]
pub struct RateLimited {
    /// The limit that decided: [`RATE_LIMIT`] or the name of a signal.
    pub limit: &'static str,
    /// Its measured value: bytes asked for in the last second, or the signal's value.
    pub measured: u64,
    /// The value that it must stay below: the rate in force, or the signal's `high`.
    pub limit_value: u64,
    /// When this batch would pass if nothing else came.
    pub retry_after: Millis,
}

/// A token bucket with pressure signals, for one pchannel or producer. Lives on one shard. `now` is the boot clock.
#[derive(Debug)]
pub struct Quota {
    limits: QuotaLimits,
    signals: Vec<Signal>,
    /// Byte-milliseconds: a byte a second adds one each millisecond. Negative: debt of accepted batches.
    tokens: i128,
    last: Millis,
    asked: AskedRate,
}

impl Quota {
    /// A full bucket.
    pub fn new(limits: QuotaLimits, now: Millis) -> Self {
        Self {
            limits,
            signals: Vec::new(),
            tokens: full(limits),
            last: now,
            asked: AskedRate::new(now),
        }
    }

    /// Adds a signal that presses nothing yet.
    pub fn add_signal(&mut self, name: &'static str, low: u64, high: u64) -> SignalId {
        self.signals.push(Signal {
            name,
            measured: 0,
            low,
            high,
        });
        SignalId(self.signals.len() - 1)
    }

    /// Sets a signal to what was measured now. What is gone for good (a dropped vchannel) is set to 0.
    pub fn measure(&mut self, id: SignalId, measured: u64) {
        if let Some(signal) = self.signals.get_mut(id.0) {
            signal.measured = measured;
        }
    }

    /// The signals, for metrics.
    pub fn signals(&self) -> &[Signal] {
        &self.signals
    }

    /// The rate in force, in bytes a second; `None` is unlimited.
    pub fn rate_in_force(&self) -> Option<Bytes> {
        let factor = self.strongest().map_or(FULL, |(_, factor)| u64::from(factor));
        match (self.limits.rate.0, factor) {
            (0, FULL) => None,
            (0, factor) => Some(scaled(self.limits.rate_under_pressure, factor)),
            (_, factor) => Some(scaled(self.limits.rate, factor)),
        }
    }

    /// Decides over a batch of `bytes`. One larger than the burst passes when the bucket is full, and leaves a debt.
    pub fn admit(&mut self, now: Millis, bytes: Bytes) -> Admission {
        self.asked.add(now, bytes);
        let elapsed = now.0.saturating_sub(self.last.0);
        self.last = self.last.max(now);
        let Some(rate) = self.rate_in_force() else {
            self.tokens = full(self.limits);
            return Admission::Now;
        };
        let gained = i128::from(rate.0) * i128::from(elapsed);
        self.tokens = self.tokens.saturating_add(gained).min(full(self.limits));
        let cost = i128::from(bytes.0) * 1_000;
        let missing = cost.min(full(self.limits)) - self.tokens;
        let wait = match (missing, rate.0) {
            (..=0, _) => Millis::ZERO,
            (_, 0) => Millis(u64::MAX),
            (missing, rate) => Millis(u64::try_from((missing - 1) / i128::from(rate) + 1).unwrap_or(u64::MAX)),
        };
        if wait > self.limits.max_delay {
            return Admission::Refused(self.refusal(now, rate, wait));
        }
        self.tokens -= cost;
        if wait == Millis::ZERO {
            Admission::Now
        } else {
            Admission::Delay(wait)
        }
    }

    /// The signal that leaves least of the rate, if one leaves less than all.
    fn strongest(&self) -> Option<(&Signal, u32)> {
        let factors = self
            .signals
            .iter()
            .map(|signal| (signal, signal.factor_ppm(self.limits.min_factor_ppm)));
        factors
            .min_by_key(|(_, factor)| *factor)
            .filter(|(_, factor)| u64::from(*factor) < FULL)
    }

    fn refusal(&self, now: Millis, rate: Bytes, wait: Millis) -> RateLimited {
        // Where the rate is zero no time can be foretold: the signal must fall first.
        let retry_after = if wait.0 == u64::MAX {
            Millis(self.limits.max_delay.0.max(100))
        } else {
            wait
        };
        match self.strongest() {
            Some((signal, _)) => RateLimited {
                limit: signal.name,
                measured: signal.measured,
                limit_value: signal.high,
                retry_after,
            },
            None => RateLimited {
                limit: RATE_LIMIT,
                measured: self.asked.per_second(now).0,
                limit_value: rate.0,
                retry_after,
            },
        }
    }
}

fn full(limits: QuotaLimits) -> i128 {
    i128::from(limits.burst.0.max(1)) * 1_000
}

fn scaled(rate: Bytes, factor_ppm: u64) -> Bytes {
    Bytes((u128::from(rate.0) * u128::from(factor_ppm) / u128::from(FULL)) as u64)
}

/// Bytes asked for in the last second, from eight slots of 125 ms.
#[derive(Debug)]
struct AskedRate {
    slots: [u64; 8],
    at: u64,
}

impl AskedRate {
    const SLOT_MS: u64 = 125;

    fn new(now: Millis) -> Self {
        Self {
            slots: [0; 8],
            at: now.0 / Self::SLOT_MS,
        }
    }

    fn add(&mut self, now: Millis, bytes: Bytes) {
        let at = (now.0 / Self::SLOT_MS).max(self.at);
        for passed in 0..(at - self.at).min(8) {
            self.slots[((self.at + 1 + passed) % 8) as usize] = 0;
        }
        self.at = at;
        let slot = &mut self.slots[(at % 8) as usize];
        *slot = slot.saturating_add(bytes.0);
    }

    fn per_second(&self, now: Millis) -> Bytes {
        let fresh = (now.0 / Self::SLOT_MS).saturating_sub(self.at) < 8;
        Bytes(if fresh {
            self.slots.iter().fold(0, |sum, slot| sum.saturating_add(*slot))
        } else {
            0
        })
    }
}
