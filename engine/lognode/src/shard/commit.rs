//! The task that writes a pchannel's blocks: group commit without a timer.
//!
//! It seals as soon as one more write may be in flight, so a lone message leaves at once, and under load a block fills
//! while others are on their way to the disk.

use std::{pin::pin, rc::Rc, time::Duration};

use backends::{WalError, wal::Wal};
use futures_lite::FutureExt as _;
use futures_util::{FutureExt, StreamExt, select_biased, stream::FuturesUnordered};
use glommio::timer::sleep;
use lognode_core::BlockId;
use wire_format::Bytes;

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
        if let Some(wanted) = pchannel.wanted_room()
            && let Err(error @ WalError::DiskFull { .. }) =
                beside(shard, pchannel, &mut in_flight, pchannel.log.make_room(wanted)).await
        {
            // Blocks with a place are written first: only what has none can be given up.
            match in_flight.next().await {
                Some(done) => finished(shard, pchannel, done),
                None => wait_for_space(shard, pchannel, wanted, &error).await,
            }
            continue;
        }
        if let Some(sealed) = pchannel.seal() {
            let placed = beside(shard, pchannel, &mut in_flight, place(shard, pchannel, sealed)).await;
            in_flight.extend(placed);
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

/// Does `work`, which may take long where a new segment is made, and acks meanwhile what becomes durable.
async fn beside<T>(
    shard: &Rc<Shard>,
    pchannel: &Rc<Pchannel>,
    in_flight: &mut FuturesUnordered<impl Future<Output = Written>>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work.fuse());
    loop {
        select_biased! {
            result = work => return result,
            done = in_flight.select_next_some() => finished(shard, pchannel, done),
        }
    }
}

/// Between two looks whether a full disk has room again.
const SPACE_EVERY: Duration = Duration::from_millis(250);

/// Refuses producers until the log has room again. Readers and truncation go on meanwhile.
async fn wait_for_space(shard: &Rc<Shard>, pchannel: &Rc<Pchannel>, wanted: Bytes, error: &WalError) {
    tracing::error!(pchannel = %pchannel.name, %error, "the disk is full: producers are refused until there is space");
    shard.stats.disk_full();
    pchannel.disk_full(refusals::of_log(&pchannel.name, error));
    while pchannel.closed().is_none() {
        let seen = pchannel.work.epoch();
        sleep(SPACE_EVERY).or(pchannel.work.changed(seen)).await;
        // Any other error is told by the append that meets it.
        if !matches!(pchannel.log.make_room(wanted).await, Err(WalError::DiskFull { .. })) {
            tracing::info!(pchannel = %pchannel.name, "there is space again: producers are served");
            break;
        }
    }
    pchannel.has_room_again();
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
