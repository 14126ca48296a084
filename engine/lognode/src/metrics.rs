//! The node's metrics as OpenMetrics text, made from what the shards published last. Units are in the names.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text::encode},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use crate::{
    http::Shown,
    shard::{Counters, Published},
};

/// The page.
pub fn text(shown: &Shown) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("lognode");
    registry.register_collector(Box::new(Snapshot {
        shards: shown.snapshots(),
        metadata_bytes: shown.keeper.written_bytes(),
        metadata_failures: shown.keeper.failures(),
        mark: shown.keeper.mark().get(),
        uptime_s: shown.started.elapsed().as_secs(),
    }));
    let mut page = String::new();
    encode(&mut page, &registry)?;
    Ok(page)
}

#[derive(Debug)]
struct Snapshot {
    shards: Vec<Published>,
    metadata_bytes: u64,
    metadata_failures: u64,
    mark: u64,
    uptime_s: u64,
}

type PerShard = (&'static str, &'static str, fn(&Counters) -> u64);

const COUNTERS: [PerShard; 14] = [
    ("appended_messages", "Messages that got a place in a log", |c| {
        c.messages_appended
    }),
    ("appended_batches", "Batches that got a place in a log", |c| {
        c.batches_appended
    }),
    ("received_bytes", "Bytes of batches received", |c| c.bytes_received),
    ("duplicate_batches", "Batches that were retries of stored ones", |c| {
        c.duplicates
    }),
    ("acked_messages", "Messages acked", |c| c.messages_acked),
    ("refusals", "Requests and connections refused", |c| c.refusals),
    ("written_blocks", "Blocks written to logs", |c| c.blocks_written),
    ("log_written_bytes", "Bytes of blocks written to logs", |c| {
        c.log_bytes_written
    }),
    ("log_read_bytes", "Bytes read from segment files for readers", |c| {
        c.log_bytes_read
    }),
    ("delivered_bytes", "Bytes sent to readers", |c| c.bytes_delivered),
    ("sent_ticks", "Timeticks sent to readers", |c| c.ticks_sent),
    ("log_failures", "Logs that failed and were closed", |c| c.log_failures),
    ("disk_full_stops", "Times that a full disk stopped a pchannel", |c| {
        c.disk_full_stops
    }),
    (
        "timer_turns",
        "Turns of the shard's timer: every 10 ms, every 50 ms while it is quiet",
        |c| c.timer_turns,
    ),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, value) in COUNTERS {
            let values = self
                .shards
                .iter()
                .enumerate()
                .map(|(id, p)| (vec![("shard", id.to_string())], value(&p.counters)));
            family(&mut encoder, name, help, Kind::Counter, values)?;
        }
        let per_shard = |value: fn(&Published) -> i64| {
            self.shards
                .iter()
                .enumerate()
                .map(move |(id, p)| (vec![("shard", id.to_string())], value(p)))
        };
        gauges(
            &mut encoder,
            "connections",
            "Connections served",
            per_shard(|p| p.connections as i64),
        )?;
        gauges(
            &mut encoder,
            "clock_skew_ms",
            "Wall clock minus the log's time",
            per_shard(|p| p.clock_skew_ms),
        )?;
        gauges(
            &mut encoder,
            "timer_gap_max_us",
            "Longest time between two turns of the shard's timer, since the last publication",
            per_shard(|p| p.counters.timer_gap_max_us as i64),
        )?;
        gauges(
            &mut encoder,
            "timer_late_max_us",
            "How late the latest turn of the shard's timer came, since the last publication",
            per_shard(|p| p.counters.timer_late_max_us as i64),
        )?;
        let memory = |used: bool| {
            self.shards.iter().enumerate().flat_map(move |(id, p)| {
                p.memory.iter().map(move |(part, now, total)| {
                    (
                        vec![("shard", id.to_string()), ("part", (*part).to_owned())],
                        (if used { *now } else { *total }) as i64,
                    )
                })
            })
        };
        gauges(
            &mut encoder,
            "memory_used_bytes",
            "Memory in use, by part",
            memory(true),
        )?;
        gauges(
            &mut encoder,
            "memory_budget_bytes",
            "Memory that a part may use",
            memory(false),
        )?;
        let pchannels = |value: fn(&wire_format::protocol::PchannelInfo) -> u64| {
            self.shards
                .iter()
                .flat_map(|p| &p.pchannels)
                .map(move |p| (vec![("pchannel", p.name.clone())], value(p) as i64))
        };
        gauges(
            &mut encoder,
            "pchannel_first_offset",
            "First offset kept",
            pchannels(|p| p.first_offset.get()),
        )?;
        gauges(
            &mut encoder,
            "pchannel_next_offset",
            "Offset behind the last durable message",
            pchannels(|p| p.next_offset.get()),
        )?;
        gauges(
            &mut encoder,
            "pchannel_stored_bytes",
            "Bytes in segment files",
            pchannels(|p| p.stored.get()),
        )?;
        gauges(
            &mut encoder,
            "pchannel_readers",
            "Readers connected",
            pchannels(|p| p.readers.into()),
        )?;
        gauges(
            &mut encoder,
            "pchannel_producers",
            "Producers connected",
            pchannels(|p| p.producers.into()),
        )?;
        gauges(
            &mut encoder,
            "pchannel_failed",
            "1 if the log failed and is closed",
            pchannels(|p| (!p.failed.is_empty()).into()),
        )?;
        let node = |value| std::iter::once((Vec::new(), value));
        family(
            &mut encoder,
            "metadata_written_bytes",
            "Bytes of node metadata written",
            Kind::Counter,
            node(self.metadata_bytes),
        )?;
        family(
            &mut encoder,
            "metadata_failures",
            "Writes of node metadata that failed",
            Kind::Counter,
            node(self.metadata_failures),
        )?;
        gauges(
            &mut encoder,
            "time_mark",
            "Timetick up to which promises may be made",
            node(self.mark).map(|(l, v)| (l, v as i64)),
        )?;
        gauges(
            &mut encoder,
            "uptime_s",
            "Seconds since the process started",
            node(self.uptime_s).map(|(l, v)| (l, v as i64)),
        )
    }
}

type Labels = Vec<(&'static str, String)>;

enum Kind {
    Counter,
}

fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    _: Kind,
    values: impl Iterator<Item = (Labels, u64)>,
) -> fmt::Result {
    let mut descriptor = encoder.encode_descriptor(name, help, None, ConstCounter::new(0u64).metric_type())?;
    for (labels, value) in values {
        ConstCounter::new(value).encode(descriptor.encode_family(&labels)?)?;
    }
    Ok(())
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels, i64)>,
) -> fmt::Result {
    let mut descriptor = encoder.encode_descriptor(name, help, None, ConstGauge::new(0i64).metric_type())?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(descriptor.encode_family(&labels)?)?;
    }
    Ok(())
}
