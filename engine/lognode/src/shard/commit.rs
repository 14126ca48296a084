//! The task that writes a pchannel's blocks: group commit without a timer.
//!
//! It seals as soon as one more write may be in flight, so a lone message leaves at once, and under load a block fills
//! while others are on their way to the disk.

use std::rc::Rc;

use backends::wal::Wal;
use futures_util::{FutureExt, StreamExt, select_biased, stream::FuturesUnordered};
use lognode_core::BlockId;

use super::{
    Shard, dedupe_archive,
    pchannel::{Pchannel, Sealed},
    refusals, retain,
};

/// Runs until the pchannel closes and nothing is in flight.
pub async fn run(shard: Rc<Shard>, pchannel: Rc<Pchannel>) {
    write(&shard, &pchannel).await;
    pchannel.writing_ended();
}

async fn write(shard: &Rc<Shard>, pchannel: &Rc<Pchannel>) {
    let mut in_flight = FuturesUnordered::new();
    loop {
        let seen = pchannel.work.epoch();
        let memory_seen = shard.memory.freed.epoch();
        if let Some(sealed) = pchannel.seal() {
            if let Some(written) = place(shard, pchannel, sealed).await {
                in_flight.push(written);
            }
            continue;
        }
        if pchannel.closed().is_some() && in_flight.is_empty() {
            return;
        }
        if in_flight.is_empty() && pchannel.has_work() {
            // Nothing of ours is in flight, and yet no block could be sealed: the tail of the shard is full of others' writes.
            shard.memory.wait(memory_seen).await;
            continue;
        }
        select_biased! {
            done = in_flight.select_next_some() => finished(shard, pchannel, done),
            () = pchannel.work.changed(seen).fuse() => {}
        }
    }
}

type Written = (BlockId, Result<(), backends::WalError>);

/// Gives a block its place in the log. The future returned ends when it is durable.
async fn place(
    shard: &Rc<Shard>,
    pchannel: &Rc<Pchannel>,
    sealed: Sealed,
) -> Option<impl Future<Output = Written> + use<>> {
    let Sealed { id, block } = sealed;
    let bytes = block.disk_len();
    match pchannel.log.append(block, pchannel.durable()).await {
        Ok(placed) => {
            shard.stats.written(bytes);
            pchannel.placed(placed.block);
            if placed.rolled {
                glommio::spawn_local(rolled(shard.clone(), pchannel.clone())).detach();
            }
            let durable = placed.durable;
            Some(async move { (id, durable.await) })
        }
        Err(error) => {
            // It will never be in the tail.
            shard.memory.give_back_kept(bytes as usize);
            finished(shard, pchannel, (id, Err(error)));
            None
        }
    }
}

fn finished(shard: &Rc<Shard>, pchannel: &Rc<Pchannel>, (id, result): Written) {
    match result {
        Ok(()) => pchannel.completed(id),
        Err(error) => {
            tracing::error!(pchannel = %pchannel.name, %error, "the log failed; the pchannel is closed until it is opened again");
            shard.stats.log_failed();
            pchannel.failed(id, refusals::of_log(&pchannel.name, &error));
        }
    }
}

/// After a new segment was begun: moves the place where a recovery begins, then lets old segments go, so that one of their
/// files is ready as the next segment before it is needed.
async fn rolled(shard: Rc<Shard>, pchannel: Rc<Pchannel>) {
    let (upto, producers) = pchannel.snapshot();
    let state = dedupe_archive::to_bytes(&producers);
    if let Err(error) = pchannel.log.checkpoint(upto, state).await {
        tracing::warn!(pchannel = %pchannel.name, %error, "no checkpoint was stored; the next start scans more");
    }
    retain::apply_limits(&shard, &pchannel).await;
}
