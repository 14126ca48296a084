//! What one run of the load generator saw.

use crate::{error::BenchError, latency::Latencies};

/// One run. All counts begin with it.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Seconds in which batches were sent.
    pub window_s: f64,
    /// Seconds until all was acked and delivered.
    pub whole_s: f64,
    /// Messages acked in the window: what rates are made of.
    pub window_messages: u64,
    /// Messages acked in all.
    pub messages: u64,
    /// From the moment a batch should have left until its ack was read.
    pub acks: Latencies,
    /// From the moment an ack was read until a reader had read the delivery; 0 if the delivery came first.
    pub deliveries: Latencies,
    /// Deliveries that came before the ack of their batch.
    pub deliveries_before_ack: u64,
    /// Messages delivered to readers.
    pub delivered_messages: u64,
    /// Bytes of their bodies.
    pub delivered_bytes: u64,
    /// Deliveries whose checksums were all verified.
    pub deliveries_verified: u64,
    /// Ticks that readers got.
    pub ticks: u64,
    /// Time between two ticks at a reader.
    pub tick_gaps: Latencies,
    /// CPU time of the client's thread, in seconds.
    pub client_cpu_s: f64,
}

impl Sample {
    pub(super) fn new() -> Result<Self, BenchError> {
        Ok(Self {
            window_s: 0.0,
            whole_s: 0.0,
            window_messages: 0,
            messages: 0,
            acks: Latencies::new()?,
            deliveries: Latencies::new()?,
            deliveries_before_ack: 0,
            delivered_messages: 0,
            delivered_bytes: 0,
            deliveries_verified: 0,
            ticks: 0,
            tick_gaps: Latencies::new()?,
            client_cpu_s: 0.0,
        })
    }

    pub(super) fn acked(&mut self, messages: u32, latency_ns: u64, in_window: bool) {
        self.messages += u64::from(messages);
        if in_window {
            self.window_messages += u64::from(messages);
        }
        self.acks.record_ns(latency_ns);
    }

    pub(super) fn delivered(&mut self, messages: u32, bytes: u64, behind_ack_ns: Option<u64>) {
        self.delivered_messages += u64::from(messages);
        self.delivered_bytes += bytes;
        self.deliveries_before_ack += u64::from(behind_ack_ns.is_none());
        self.deliveries.record_ns(behind_ack_ns.unwrap_or(0));
    }

    pub(super) fn ticked(&mut self, gap_ns: Option<u64>) {
        self.ticks += 1;
        if let Some(gap_ns) = gap_ns {
            self.tick_gaps.record_ns(gap_ns);
        }
    }

    /// Grows with every ack and delivery. Ticks don't count: they come from a server that has lost a batch, too.
    pub(super) fn progress(&self) -> u64 {
        self.messages + self.deliveries.count()
    }

    /// Messages acked per second.
    pub fn messages_per_s(&self) -> f64 {
        self.window_messages as f64 / self.window_s
    }
}
