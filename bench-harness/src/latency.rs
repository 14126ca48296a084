//! Latencies of requests, as they are reported: percentiles in microseconds out of a histogram of nanoseconds.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::error::BenchError;

/// Largest latency that is told apart, in nanoseconds; what is above counts as this.
const HIGHEST_NS: u64 = 120_000_000_000;

/// Percentiles in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half of the samples were at or below this.
    pub p50: f64,
    /// 99 of 100 were at or below this.
    pub p99: f64,
    /// 999 of 1,000 were at or below this.
    pub p999: f64,
    /// The slowest sample.
    pub max: f64,
}

/// Collects latencies on one thread; three significant digits, no allocation while recording.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// An empty histogram.
    ///
    /// # Errors
    /// Never with these bounds; the library's error is passed on all the same.
    pub fn new() -> Result<Self, BenchError> {
        Histogram::new_with_bounds(1, HIGHEST_NS, 3)
            .map(Self)
            .map_err(|error| BenchError::Check(format!("histogram: {error}")))
    }

    /// Adds one latency in nanoseconds.
    pub fn record_ns(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The figures of all so far; all zero if there are none.
    pub fn percentiles(&self) -> Percentiles {
        let us = |ns: u64| ns as f64 / 1_000.0;
        Percentiles {
            p50: us(self.0.value_at_quantile(0.5)),
            p99: us(self.0.value_at_quantile(0.99)),
            p999: us(self.0.value_at_quantile(0.999)),
            max: us(self.0.max()),
        }
    }
}

impl Percentiles {
    /// The median of each percentile over several runs, and the slowest sample of all of them.
    pub fn median_of(runs: &[Self]) -> Self {
        let each = |pick: fn(&Self) -> f64| median(runs.iter().map(pick));
        Self {
            p50: each(|p| p.p50),
            p99: each(|p| p.p99),
            p999: each(|p| p.p999),
            max: runs.iter().map(|p| p.max).fold(0.0, f64::max),
        }
    }
}

/// The middle value, or the mean of the two middle ones; 0 of nothing.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_microseconds_and_the_slowest_is_not_lost() {
        let mut latencies = Latencies::new().unwrap();
        assert_eq!(latencies.percentiles().max, 0.0);
        (1..=998).for_each(|us| latencies.record_ns(us * 1_000));
        latencies.record_ns(0);
        latencies.record_ns(u64::MAX);
        let figures = latencies.percentiles();
        assert_eq!(latencies.count(), 1_000);
        assert!((figures.p50 - 499.0).abs() < 1.5, "{figures:?}");
        assert!((figures.p99 - 989.0).abs() < 1.5, "{figures:?}");
        assert!(figures.max > 119e6, "{figures:?}");
    }

    #[test]
    fn the_median_takes_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert_eq!(median(std::iter::empty()), 0.0);
    }
}
