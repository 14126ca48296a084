//! Typed errors of the inside as refusals that travel.

use backends::WalError;
use lognode_core::{DedupeRefusal, RateLimited, Refusal as SequencerRefusal};
use wire_format::{
    FormatError, Millis, Offset,
    protocol::{Refusal, RefusalCode},
};

/// Space does not come back from one moment to the next.
const DISK_FULL_RETRY: Millis = Millis(250);

/// Bytes that are not what they claim to be.
pub fn of_format(error: &FormatError) -> Refusal {
    let code = match error {
        FormatError::TooLarge { .. } => RefusalCode::TooLarge,
        FormatError::Version { .. } => RefusalCode::VersionUnsupported,
        _ => RefusalCode::BadRequest,
    };
    let mut refusal = Refusal::new(code, error.to_string());
    if let FormatError::TooLarge { what, found, limit } = error {
        refusal.limit_name = (*what).to_owned();
        (refusal.measured, refusal.limit_value) = (*found, *limit);
    }
    refusal
}

/// A batch that got no place.
pub fn of_sequencer(error: &SequencerRefusal) -> Refusal {
    let code = match error {
        SequencerRefusal::Dedupe(dedupe) => match dedupe {
            DedupeRefusal::StaleEpoch { .. } => RefusalCode::ProducerFenced,
            DedupeRefusal::SequenceGap { .. } => RefusalCode::SequenceGap,
            DedupeRefusal::WindowOver { .. } => RefusalCode::WindowOver,
            DedupeRefusal::Overlap { .. } | DedupeRefusal::SequencesExhausted { .. } => RefusalCode::BadRequest,
        },
        SequencerRefusal::Empty => RefusalCode::BadRequest,
        SequencerRefusal::OffsetsExhausted { .. } | SequencerRefusal::TimeExhausted { .. } => RefusalCode::LogFailed,
    };
    let mut refusal = Refusal::new(code, error.to_string());
    if let SequencerRefusal::Dedupe(DedupeRefusal::SequenceGap { expected, .. }) = error {
        refusal.expected_sequence = *expected;
    }
    refusal
}

/// Slower, please.
pub fn of_quota(limited: &RateLimited) -> Refusal {
    let mut refusal = Refusal::new(RefusalCode::RateLimited, limited.to_string());
    refusal.limit_name = limited.limit.to_owned();
    (refusal.measured, refusal.limit_value) = (limited.measured, limited.limit_value);
    refusal.retry_after = limited.retry_after;
    refusal
}

/// The log failed.
pub fn of_log(pchannel: &str, error: &WalError) -> Refusal {
    match error {
        WalError::DiskFull { .. } => disk_full(format!("pchannel {pchannel}: {error}")),
        WalError::Truncated { asked, first } => truncated(pchannel, *asked, *first),
        WalError::Damaged(damage) => {
            let mut refusal = Refusal::new(RefusalCode::Damaged, format!("pchannel {pchannel}: {error}"));
            refusal.file = damage.file.display().to_string();
            refusal.damaged = (damage.from, damage.to);
            (refusal.first_offset, refusal.next_offset) = (damage.first_offset, damage.next_offset);
            refusal
        }
        other => log_failed(pchannel, &other.to_string()),
    }
}

/// The disk is full, and the batch was given up before anything of it was written.
pub fn not_stored(pchannel: &str) -> Refusal {
    disk_full(format!(
        "the disk is full, so this batch was not stored in pchannel {pchannel}; free space, lower retention, or truncate a \
         pchannel: writing resumes by itself"
    ))
}

fn disk_full(message: String) -> Refusal {
    let mut refusal = Refusal::new(RefusalCode::DiskFull, message);
    refusal.retry_after = DISK_FULL_RETRY;
    refusal
}

/// The log failed, for a reason in words.
pub fn log_failed(pchannel: &str, detail: &str) -> Refusal {
    let message = format!(
        "the log of pchannel {pchannel} failed and is closed; what is not acked may or may not be stored; connect again to have it reopened: {detail}"
    );
    Refusal::new(RefusalCode::LogFailed, message)
}

/// The messages asked for are no longer kept.
pub fn truncated(pchannel: &str, asked: Offset, first: Offset) -> Refusal {
    let message = format!(
        "pchannel {pchannel} is kept from offset {first} on, {asked} was asked for; start at {first} or at earliest"
    );
    let mut refusal = Refusal::new(RefusalCode::Truncated, message);
    (refusal.asked_offset, refusal.first_offset) = (asked, first);
    refusal
}

/// The offset asked for does not exist yet.
pub fn beyond_end(pchannel: &str, asked: Offset, next: Offset) -> Refusal {
    let message = format!(
        "pchannel {pchannel} ends at offset {next}, {asked} was asked for; start at {next} or at latest to wait for new messages"
    );
    let mut refusal = Refusal::new(RefusalCode::BeyondEnd, message);
    (refusal.asked_offset, refusal.next_offset) = (asked, next);
    refusal
}

/// No memory to receive a batch with.
pub fn no_receive_memory(used: u64, total: u64) -> Refusal {
    let message = format!(
        "the shard's receive buffers take {used} of {total} bytes; connect again in a moment, or raise shards.memory_bytes"
    );
    let mut refusal = Refusal::new(RefusalCode::RateLimited, message);
    refusal.limit_name = "receive_buffer_bytes".to_owned();
    (refusal.measured, refusal.limit_value) = (used, total);
    refusal.retry_after = wire_format::Millis(100);
    refusal
}
