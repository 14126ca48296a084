//! Case 26: a sync fails once and then "succeeds". What it covered may be gone from the kernel's memory, so nothing may be
//! acked by a later one.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
};

use wire_format::Offset;

use super::LocalWal;
use crate::wal::{Wal, WalError};

#[path = "../../tests/support/mod.rs"]
mod support;

use support::*;

thread_local! {
    /// The folder and how many syncs in it go well before one fails.
    static FAILS: RefCell<Option<(PathBuf, u32)>> = const { RefCell::new(None) };
}

/// Called before each sync of a segment.
pub fn before_sync(path: &Path) -> Result<(), WalError> {
    FAILS.with_borrow_mut(|fails| match fails {
        Some((folder, left)) if path.starts_with(&*folder) && *left > 0 => {
            *left -= 1;
            Ok(())
        }
        Some((folder, _)) if path.starts_with(&*folder) => {
            *fails = None;
            Err(WalError::Io {
                action: "sync",
                path: path.to_owned(),
                detail: "input/output error, made for a test".to_owned(),
            })
        }
        _ => Ok(()),
    })
}

/// Appends with `depth` blocks in flight until one fails. Returns what was acked and the results of those behind it.
async fn until_failure(log: &LocalWal, depth: usize) -> (u64, Vec<Message>, Vec<WalError>) {
    let mut writer = Writer::new(Offset(0), 1);
    let (mut acked, mut all, mut in_flight) = (0, Vec::new(), std::collections::VecDeque::new());
    loop {
        while in_flight.len() < depth {
            let (block, messages) = writer.block(&[&[2_000, 10]]);
            match log.append(block, Offset(acked)).await {
                Ok(placed) => in_flight.push_back((placed.durable, writer.next)),
                Err(error) => {
                    assert!(matches!(error, WalError::Closed { .. }), "{error}");
                    break;
                }
            }
            all.extend(messages);
        }
        let (durable, end) = in_flight.pop_front().unwrap();
        match durable.await {
            Ok(()) => acked = end,
            Err(first) => {
                let mut errors = vec![first];
                for (durable, end) in in_flight {
                    errors.push(
                        durable
                            .await
                            .expect_err(&format!("acked up to {end} behind a failed sync")),
                    );
                }
                return (acked, all, errors);
            }
        }
    }
}

/// Seen failing when a failed write does not close the log.
#[test]
fn nothing_is_acked_after_a_sync_failed_though_the_next_would_go_well() {
    for good in 2..12 {
        run(move || async move {
            let (folder, other) = (folder(), folder());
            let config = config(folder.path(), 1 << 20);
            let (log, _) = open(&config, 1).await.unwrap();
            let (neighbour, _) = open(&support::config(other.path(), 1 << 20), 1).await.unwrap();
            FAILS.set(Some((folder.path().to_owned(), good)));
            let (acked, all, errors) = until_failure(&log, 4).await;
            assert!(FAILS.with_borrow(Option::is_none), "later syncs go well");
            assert!(!errors.is_empty());
            let (block, _) = Writer::new(Offset(all.len() as u64), 1).block(&[&[1]]);
            assert!(matches!(
                log.append(block, Offset(acked)).await,
                Err(WalError::Closed { .. })
            ));
            assert!(matches!(
                log.make_room(wire_format::Bytes(1)).await,
                Err(WalError::Closed { .. })
            ));
            assert!(log.close(Vec::new()).await.is_err());
            assert_eq!(
                read_all(&log, Offset(0), Offset(all.len() as u64)).await.unwrap(),
                all[..acked as usize]
            );
            let (block, _) = Writer::new(Offset(0), 1).block(&[&[1]]);
            append(&neighbour, block, Offset(0)).await.unwrap();
            log.quiet().await;
            drop(log);
            let (log, opened) = open(&config, 2).await.unwrap();
            let end = opened.facts.next_offset;
            assert!(end.get() >= acked && end.get() <= all.len() as u64);
            assert_eq!(read_all(&log, Offset(0), end).await.unwrap(), all[..end.get() as usize]);
            let (block, _) = Writer::new(end, 2).block(&[&[1]]);
            append(&log, block, end).await.unwrap();
        });
    }
}

/// What a life wrote that was killed may lie in the disk's cache only; from the next opening on it counts as durable. Seen
/// failing when an opening syncs nothing that it finds.
#[test]
fn what_an_opening_finds_is_synced_before_it_is_called_durable() {
    run(|| async {
        let folder = folder();
        let config = config(folder.path(), 1 << 20);
        let (log, _) = open(&config, 1).await.unwrap();
        let (block, messages) = Writer::new(Offset(0), 1).block(&[&[2_000, 10]]);
        append(&log, block, Offset(0)).await.unwrap();
        log.quiet().await;
        drop(log);
        FAILS.set(Some((folder.path().to_owned(), 0)));
        let error = open(&config, 2).await.err().expect("an opening without a sync");
        assert!(error.to_string().contains("made for a test"), "{error}");
        let (log, opened) = open(&config, 2).await.unwrap();
        assert_eq!(opened.facts.next_offset.get(), messages.len() as u64);
        log.close(Vec::new()).await.unwrap();
        // After an orderly close nothing is left to be synced.
        drop(log);
        FAILS.set(Some((folder.path().to_owned(), 0)));
        open(&config, 3).await.unwrap();
        FAILS.set(None);
    });
}
