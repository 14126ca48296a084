//! The next segment file, made ready before it is needed.

use std::{cell::RefCell, path::PathBuf, rc::Rc};

use glommio::{Task, io::DmaFile, spawn_local};

use super::{config::LocalConfig, files, segment, segment_file::SegmentFile};
use crate::wal::WalError;

type Ready = Result<(PathBuf, Rc<DmaFile>), WalError>;

enum State {
    Nothing,
    /// A file of this index lies ready; it was made in this or an earlier life.
    Waiting(u64, PathBuf),
    Making(u64, Task<Ready>),
}

/// At most one file, with the name of the next index, whose content does not matter.
pub struct Prepared(RefCell<State>);

impl Prepared {
    /// Begins with what recovery found.
    pub fn new(found: Option<(u64, PathBuf)>) -> Self {
        Self(RefCell::new(
            found.map_or(State::Nothing, |(index, path)| State::Waiting(index, path)),
        ))
    }

    /// Begins to make the file for `index` unless one is there.
    pub fn begin(&self, config: &LocalConfig, index: u64) {
        let mut state = self.0.borrow_mut();
        if matches!(*state, State::Nothing) {
            *state = State::Making(index, spawn_local(make(config.clone(), index, true)));
        }
    }

    /// The file for `index`, made now if it is not there; `zeros`: written once before use, which makes later syncs cheap.
    pub async fn take(&self, config: &LocalConfig, index: u64, zeros: bool) -> Ready {
        match self.0.replace(State::Nothing) {
            State::Waiting(ready, path) if ready == index => {
                let file = files::open(&path, true).await?;
                Ok((path, file))
            }
            State::Making(ready, task) if ready == index => task.await,
            _ => make(config.clone(), index, zeros).await,
        }
    }

    /// Keeps a dropped segment's file as the next one, or removes it.
    pub async fn recycle(&self, config: &LocalConfig, next_index: u64, dropped: &SegmentFile) -> Result<(), WalError> {
        let wanted = matches!(*self.0.borrow(), State::Nothing) && dropped.size == config.segment.get();
        if !wanted {
            return files::remove(dropped.path.clone()).await;
        }
        let path = config.folder.join(segment::file_name(next_index));
        let (from, to, folder) = (dropped.path.clone(), path.clone(), config.folder.clone());
        let task = spawn_local(async move {
            files::rename(from, to.clone()).await?;
            files::sync_folder(&folder).await?;
            let file = files::open(&to, true).await?;
            Ok((to, file))
        });
        self.0.replace(State::Making(next_index, task));
        Ok(())
    }

    /// Waits for what is being made, so that nothing is left half done.
    pub async fn settle(&self) {
        if let State::Making(index, task) = self.0.replace(State::Nothing)
            && let Ok((path, _)) = task.await
        {
            self.0.replace(State::Waiting(index, path));
        }
    }
}

async fn make(config: LocalConfig, index: u64, zeros: bool) -> Ready {
    let path = config.folder.join(segment::file_name(index));
    let file = files::create(&path, config.segment.get(), zeros).await?;
    files::sync_folder(&config.folder).await?;
    Ok((path, file))
}
