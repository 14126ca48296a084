//! Latency figures as they are reported: percentiles in microseconds, no averages.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::error::{RawError, failed};

/// Largest latency that is told apart, in nanoseconds; what is above counts as this.
const HIGHEST_NS: u64 = 60_000_000_000;

/// Percentiles of one measurement. All times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyUs {
    /// How many samples stand behind the figures.
    pub samples: u64,
    /// Half of the samples were at or below this.
    pub p50: f64,
    /// 99 of 100 were at or below this.
    pub p99: f64,
    /// The slowest sample.
    pub max: f64,
}

/// Collects single latencies on one thread.
#[derive(Debug)]
pub(crate) struct LatencyRecorder {
    histogram: Histogram<u64>,
}

impl LatencyRecorder {
    /// An empty recorder for 1 ns to 60 s with three significant digits.
    pub(crate) fn new() -> Result<Self, RawError> {
        let histogram = Histogram::new_with_bounds(1, HIGHEST_NS, 3)
            .map_err(|error| failed("latency histogram", error.to_string()))?;
        Ok(Self { histogram })
    }

    /// Adds one sample.
    pub(crate) fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(HIGHEST_NS);
        self.histogram.saturating_record(ns.max(1));
    }

    /// The figures of all samples so far.
    pub(crate) fn summary(&self) -> LatencyUs {
        let us = |ns: u64| ns as f64 / 1_000.0;
        LatencyUs {
            samples: self.histogram.len(),
            p50: us(self.histogram.value_at_quantile(0.50)),
            p99: us(self.histogram.value_at_quantile(0.99)),
            max: us(self.histogram.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_microseconds_and_a_stall_is_not_lost() {
        let mut recorder = LatencyRecorder::new().unwrap();
        for us in 1..=99 {
            recorder.record(Duration::from_micros(us));
        }
        recorder.record(Duration::from_secs(120));
        let summary = recorder.summary();
        assert_eq!(summary.samples, 100);
        assert!((summary.p50 - 50.0).abs() < 0.1, "{summary:?}");
        assert!((summary.p99 - 99.0).abs() < 0.1, "{summary:?}");
        assert!(summary.max >= 59_000_000.0, "{summary:?}");
    }
}
