//! What a node must remember outside its logs: terms given out, and how far time was promised.
//!
//! One file with two pages that are written in turn; the valid one with the larger sequence counts. A page is one 512-byte
//! sector, so it is written whole or not at all, and the other page survives a torn write anyway.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use lognode_core::StoredClock;
use thiserror::Error;
use wire_format::{Term, Timetick, crc::crc32c};

const FILE_NAME: &str = "node.meta";
const PAGE_BYTES: usize = 512;
/// Pages lie this far apart, so that no device sector holds both.
const PAGE_STRIDE: u64 = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"LNNODE01");

/// The values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeState {
    /// The last term that was given to a pchannel here.
    pub term: Term,
    /// No promise above this was made.
    pub mark: Timetick,
    /// How this boot's clock goes on.
    pub clock: Option<StoredClock>,
}

/// Why the metadata can't be used. The node does not start: time could go back.
#[derive(Debug, Error)]
pub enum MetadataError {
    /// The operating system refused.
    #[error("metadata {path}: {cause}; the node does not start, since time could go back without it")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Neither page is valid.
    #[error(
        "metadata {path}: both pages are damaged; restore the file from a copy, or start once with --rebuild-metadata \
         if the wall clock is right and was never set ahead"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// There are logs but no metadata.
    #[error(
        "metadata {path} is missing, but there are logs; restore the file from a copy, or start once with \
         --rebuild-metadata if the wall clock is right and was never set ahead"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
}

/// The open file. Belongs to the keeper thread.
pub struct Metadata {
    file: File,
    path: PathBuf,
    sequence: u64,
    state: NodeState,
    written: u64,
}

impl Metadata {
    /// Opens the metadata of `data_dir`. `has_logs`: a missing file is then an error unless `rebuild`.
    pub fn open(data_dir: &Path, has_logs: bool, rebuild: bool) -> Result<Self, MetadataError> {
        let path = data_dir.join(FILE_NAME);
        let error = |cause| MetadataError::Io {
            path: path.clone(),
            cause,
        };
        let fresh = NodeState {
            term: Term::ZERO,
            mark: Timetick::ZERO,
            clock: None,
        };
        let exists = path.try_exists().map_err(error)?;
        if !exists && has_logs && !rebuild {
            return Err(MetadataError::Missing { path });
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(error)?;
        let mut pages = [None, None];
        for (slot, page) in pages.iter_mut().enumerate() {
            let mut bytes = [0; PAGE_BYTES];
            match file.read_exact_at(&mut bytes, slot as u64 * PAGE_STRIDE) {
                Ok(()) => *page = read_page(&bytes),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(cause) => return Err(error(cause)),
            }
        }
        let damaged = pages.iter().filter(|page| page.is_none()).count();
        let newest = pages.into_iter().flatten().max_by_key(|(sequence, _)| *sequence);
        let (sequence, state) = match newest {
            // A first life writes one page before the other.
            Some((sequence, mut state)) if damaged > 0 && sequence > 1 => {
                tracing::warn!(
                    file = %path.display(), sequence,
                    "one of the two pages is damaged, or its writing was cut off; going on from the other"
                );
                // The page that is lost may have been the newer one, of a later term.
                state.term = Term(state.term.get().saturating_add(1));
                (sequence, state)
            }
            Some(found) => found,
            None if rebuild || !exists => (0, fresh),
            None if file.metadata().map_err(error)?.len() == 0 && !has_logs => (0, fresh),
            None => return Err(MetadataError::Damaged { path }),
        };
        // Also where the file is found: the life that made it may have ended before its name was durable.
        File::open(data_dir)
            .and_then(|folder| folder.sync_all())
            .map_err(error)?;
        Ok(Self {
            file,
            path,
            sequence,
            state,
            written: 0,
        })
    }

    /// What is stored.
    pub fn state(&self) -> NodeState {
        self.state
    }

    /// Bytes written since the start.
    pub fn written_bytes(&self) -> u64 {
        self.written
    }

    /// Replaces the values. Durable when it returns.
    pub fn store(&mut self, state: NodeState) -> Result<(), MetadataError> {
        let error = |cause| MetadataError::Io {
            path: self.path.clone(),
            cause,
        };
        let sequence = self.sequence + 1;
        let page = write_page(sequence, &state);
        self.file
            .write_all_at(&page, (sequence % 2) * PAGE_STRIDE)
            .map_err(error)?;
        self.file.sync_data().map_err(error)?;
        (self.sequence, self.state) = (sequence, state);
        self.written += PAGE_BYTES as u64;
        Ok(())
    }
}

fn write_page(sequence: u64, state: &NodeState) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    page[..8].copy_from_slice(&MAGIC.to_le_bytes());
    page[16..24].copy_from_slice(&sequence.to_le_bytes());
    page[24..32].copy_from_slice(&state.term.get().to_le_bytes());
    page[32..40].copy_from_slice(&state.mark.get().to_le_bytes());
    if let Some(clock) = state.clock {
        page[40..48].copy_from_slice(&clock.difference_ms.to_le_bytes());
        page[48..64].copy_from_slice(&clock.boot_id);
        page[64] = 1;
    }
    let crc = crc32c(&page[16..]);
    page[8..12].copy_from_slice(&crc.to_le_bytes());
    page
}

fn read_page(page: &[u8; PAGE_BYTES]) -> Option<(u64, NodeState)> {
    let long = |at: usize| page[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default();
    if long(0) != MAGIC || long(8) as u32 != crc32c(&page[16..]) {
        return None;
    }
    let clock = (page[64] == 1).then(|| StoredClock {
        boot_id: page[48..64].try_into().unwrap_or_default(),
        difference_ms: long(40) as i64,
    });
    Some((
        long(16),
        NodeState {
            term: Term(long(24)),
            mark: Timetick(long(32)),
            clock,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(term: u64) -> NodeState {
        let clock = Some(StoredClock {
            boot_id: [7; 16],
            difference_ms: -5,
        });
        NodeState {
            term: Term(term),
            mark: Timetick(term << 20),
            clock,
        }
    }

    #[test]
    fn the_newest_page_counts_and_a_torn_one_falls_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut metadata = Metadata::open(folder.path(), false, false).unwrap();
        for term in 1..=3 {
            metadata.store(state(term)).unwrap();
        }
        drop(metadata);
        assert_eq!(Metadata::open(folder.path(), true, false).unwrap().state(), state(3));
        let file = OpenOptions::new()
            .write(true)
            .open(folder.path().join(FILE_NAME))
            .unwrap();
        file.write_all_at(&[0xff; 100], PAGE_STRIDE + 20).unwrap();
        // Of a term above the lost page's, which may have been given out.
        let expected = NodeState {
            term: Term(3),
            ..state(2)
        };
        assert_eq!(Metadata::open(folder.path(), true, false).unwrap().state(), expected);
        file.write_all_at(&[0xff; 100], 20).unwrap();
        assert!(matches!(
            Metadata::open(folder.path(), true, false),
            Err(MetadataError::Damaged { .. })
        ));
        assert_eq!(
            Metadata::open(folder.path(), true, true).unwrap().state().term,
            Term::ZERO
        );
    }

    #[test]
    fn logs_without_metadata_do_not_start() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(
            Metadata::open(folder.path(), true, false),
            Err(MetadataError::Missing { .. })
        ));
        std::fs::create_dir(folder.path().join(FILE_NAME)).unwrap();
        assert!(matches!(
            Metadata::open(folder.path(), true, false),
            Err(MetadataError::Io { .. })
        ));
    }
}
