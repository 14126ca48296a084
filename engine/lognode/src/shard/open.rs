//! Opening a pchannel's log: from what lies on disk to a pchannel that takes batches.

use std::{path::PathBuf, rc::Rc};

use backends::{
    WalError,
    local::{LocalWal, Opened, Replay},
};
use lognode_core::{
    BatchFacts, Dedupe, DedupeLimits, LogFacts, Quota, QuotaLimits, Sequencer, Start, recovery::Replay as CoreReplay,
};
use thiserror::Error;
use wire_format::{Bytes, Millis, Offset, Term, batch::Meta};

use super::{
    Shard, dedupe_archive,
    pchannel::{Beginning, Pchannel},
};

/// Why a pchannel can't be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Its log can't be.
    #[error(transparent)]
    Log(#[from] WalError),
    /// What the log holds can't be continued.
    #[error(transparent)]
    Plan(#[from] lognode_core::OpenError),
    /// Its batches contradict each other.
    #[error(transparent)]
    Replay(#[from] lognode_core::ReplayError),
    /// What was acked in this life is not there any more.
    #[error(
        "the log in {folder} ends at offset {found}, but was durable up to {acked} while this node ran: its files were \
         removed or replaced. Put them back and connect again; to begin anew without them, restart the node"
    )]
    Shrunk {
        /// Its folder.
        folder: PathBuf,
        /// Where it ends.
        found: Offset,
        /// Where it ended.
        acked: Offset,
    },
}

/// What recovery collects while the log is read.
#[derive(Default)]
struct Collected {
    upto: Option<Offset>,
    state: Vec<u8>,
    batches: Vec<BatchFacts>,
}

impl Collected {
    fn take(&mut self, replay: Replay<'_>) {
        match replay {
            Replay::State(upto, state) => {
                self.upto = Some(upto);
                self.state = state.to_vec();
            }
            Replay::Record(meta) => self.batches.push(facts(meta)),
        }
    }
}

fn facts(meta: &Meta) -> BatchFacts {
    BatchFacts {
        base_offset: meta.base_offset,
        count: meta.span,
        term: meta.term,
        first_timetick: meta.min_timetick,
        last_timetick: meta.max_timetick,
        promised_timetick: meta.promised_timetick,
        producer: meta.producer_id,
        epoch: meta.producer_epoch,
        first_sequence: meta.first_sequence,
    }
}

/// Opens or creates the log of `name` under `term`. It must reach `acked`.
pub async fn open(shard: &Rc<Shard>, name: &str, term: Term, acked: Offset) -> Result<Rc<Pchannel>, OpenError> {
    let config = shard.config.local_log(name);
    let folder = config.folder.clone();
    let mut collected = Collected::default();
    let (log, opened) = LocalWal::open(config, term, &mut |replay| collected.take(replay)).await?;
    let found = opened.facts.next_offset;
    if found < acked {
        log.quiet().await;
        return Err(OpenError::Shrunk { folder, found, acked });
    }
    for damage in &opened.damage {
        tracing::error!(
            pchannel = name, file = %damage.file.display(), from = damage.from, to = damage.to,
            first_offset = %damage.first_offset, next_offset = %damage.next_offset, detail = %damage.detail,
            "stored bytes are damaged; readers get an error there and may read on behind it"
        );
    }
    let sequencer = recover(name, &opened, collected, term)?;
    tracing::info!(
        pchannel = name, %term, first_offset = %opened.facts.first_offset, next_offset = %opened.facts.next_offset,
        scanned_bytes = %opened.scanned, "pchannel is open"
    );
    shard.clock.borrow_mut().reach(sequencer.last_timetick());
    let beginning = Beginning {
        name: name.to_owned(),
        log,
        sequencer,
        quota: Quota::new(quota_limits(shard), shard.boot_now()),
        in_flight: shard.config.log.in_flight(),
        queue: shard.writes.share(),
        block_bytes_max: shard.config.log.block_bytes as usize,
        memory: shard.memory.clone(),
    };
    Ok(Rc::new(Pchannel::new(beginning)))
}

fn quota_limits(shard: &Shard) -> QuotaLimits {
    let quota = &shard.config.quota;
    QuotaLimits {
        rate: Bytes(quota.bytes_per_s),
        burst: Bytes(quota.burst_bytes),
        max_delay: Millis(quota.max_delay_ms),
        ..QuotaLimits::default()
    }
}

/// Folds checkpoint and replayed batches into a sequencer.
fn recover(name: &str, opened: &Opened, collected: Collected, term: Term) -> Result<Sequencer, OpenError> {
    let facts = &opened.facts;
    // What was truncated and still lies in a file is replayed too: its retries must not be stored anew.
    let oldest = collected.batches.first().map(|batch| batch.base_offset);
    let known = LogFacts {
        first_kept: oldest.map_or(facts.first_offset, |oldest| oldest.min(facts.first_offset)),
        next_offset: facts.next_offset,
        last_timetick: facts.last_timetick,
        last_term: facts.last_term,
        checkpoint_upto: collected.upto,
    };
    let plan = Start::plan(&known, term)?;
    let limits = DedupeLimits::default();
    let stored = dedupe_archive::from_bytes(&collected.state);
    let restored = stored.and_then(|producers| Dedupe::restore(limits, producers).map_err(|e| e.to_string()));
    let dedupe = restored.unwrap_or_else(|detail| {
        tracing::warn!(
            pchannel = name,
            detail,
            "the checkpoint's producers are lost; retries from before it can't be told from new batches"
        );
        Dedupe::new(limits)
    });
    let mut replay: CoreReplay = plan.replay(dedupe);
    for batch in &collected.batches {
        if let Err(error) = replay.batch(batch) {
            // A hole in the log, which the store has reported: what lies behind it still counts.
            tracing::warn!(pchannel = name, %error, "going on behind the damage");
            replay.resume_behind_damage(batch)?;
        }
    }
    if opened.ends_in_damage {
        replay.ends_in_damage();
    }
    Ok(replay.finish()?)
}
