//! What of a shard's logs may go: by size, by age, by request.

use std::{rc::Rc, time::Duration};

use backends::wal::Wal;
use glommio::timer::sleep;
use lognode_core::{RetentionLimits, SegmentFacts, retention};
use wire_format::{
    Bytes, Millis, Offset,
    protocol::{AdminReply, Refusal},
};

use super::{Shard, pchannel::Pchannel, refusals};

/// Looks at all pchannels again and again: age passes also where nothing is appended.
pub async fn run(shard: Rc<Shard>) {
    loop {
        sleep(Duration::from_secs(shard.config.retention.interval_s)).await;
        for pchannel in shard.open_pchannels() {
            apply_limits(&shard, &pchannel).await;
        }
    }
}

/// Drops what size and age let go of one pchannel.
pub async fn apply_limits(shard: &Shard, pchannel: &Pchannel) {
    let limits = limits(shard, None);
    if limits.max_bytes.is_none() && limits.max_age.is_none() {
        return;
    }
    if let Err(error) = apply(shard, pchannel, &limits).await {
        tracing::warn!(pchannel = %pchannel.name, %error, "old segments could not be dropped; trying again");
    }
}

fn limits(shard: &Shard, truncate_to: Option<Offset>) -> RetentionLimits {
    let retention = &shard.config.retention;
    RetentionLimits {
        max_bytes: Some(retention.bytes_per_pchannel).filter(|&bytes| bytes > 0).map(Bytes),
        max_age: Some(retention.age_s)
            .filter(|&age| age > 0)
            .map(|age| Millis(age.saturating_mul(1_000))),
        truncate_to,
    }
}

async fn apply(shard: &Shard, pchannel: &Pchannel, limits: &RetentionLimits) -> Result<Offset, backends::WalError> {
    let segments: Vec<SegmentFacts> = pchannel
        .log
        .segments()
        .into_iter()
        .map(|segment| SegmentFacts {
            index: segment.index,
            base_offset: segment.base_offset,
            next_offset: segment.next_offset,
            bytes: segment.stored,
            last_timetick: segment.last_timetick,
            sealed: segment.droppable,
        })
        .collect();
    let first = pchannel.log.first_offset();
    let plan = retention::plan(shard.now(), &segments, first, limits, &[]);
    if plan.first_kept <= first && plan.drop.is_empty() {
        return Ok(first);
    }
    // Never past what is durable: the end of the open segment is not yet.
    let upto = plan.first_kept.min(pchannel.durable());
    let first = pchannel.log.truncate(upto).await?;
    pchannel.changed.notify();
    Ok(first)
}

/// An explicit request: messages below `upto` may go.
pub async fn truncate(shard: &Shard, pchannel: &Pchannel, upto: Offset) -> Result<AdminReply, Box<Refusal>> {
    let durable = pchannel.durable();
    if upto > durable {
        return Err(Box::new(refusals::beyond_end(&pchannel.name, upto, durable)));
    }
    let limits = RetentionLimits {
        truncate_to: Some(upto),
        ..RetentionLimits::default()
    };
    let result = apply(shard, pchannel, &limits).await;
    let first_offset = result.map_err(|error| Box::new(refusals::of_log(&pchannel.name, &error)))?;
    Ok(AdminReply {
        first_offset,
        ..AdminReply::default()
    })
}
