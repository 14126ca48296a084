//! The next segment file, made ready before it is needed.

use std::{
    cell::{Cell, RefCell},
    path::PathBuf,
    rc::Rc,
};

use glommio::{io::DmaFile, spawn_local};

use super::{config::LocalConfig, files, segment, segment_file::SegmentFile};
use crate::{signal::Signal, wal::WalError};

enum State {
    Nothing,
    /// The file is being made, renamed or taken into use.
    Busy,
    /// The file lies ready under its name, which is durable.
    Ready,
    /// It could not be made.
    Failed(WalError),
}

/// At most one file, with the name of the next index, whose content does not matter, and one dropped segment that becomes the
/// next after that: a file used again costs no zeros. Work on them goes on in tasks of its own, so whoever waits for it may be
/// cancelled at any time.
pub struct Prepared {
    config: LocalConfig,
    next_index: Cell<u64>,
    state: RefCell<State>,
    changed: Signal,
    /// A dropped segment under its old name. A start sees it as what it was, and drops it anew.
    spare: RefCell<Option<PathBuf>>,
    /// Recovery found the file: its name may not be durable.
    name_unsure: Cell<bool>,
}

/// The next file, being taken into use. Dropped before [`Taken::used`] it is the next file still.
pub struct Taken {
    claim: Claim,
    /// Its index.
    pub index: u64,
    /// Its path.
    pub path: PathBuf,
    /// The file, open for writing.
    pub file: Rc<DmaFile>,
}

/// The file is busy until this is dropped; then it is in the state that is noted here.
struct Claim(Rc<Prepared>, State);

impl Prepared {
    /// Begins with what recovery found: whether a file of the next index lies there.
    pub fn new(config: LocalConfig, next_index: u64, found: bool) -> Rc<Self> {
        Rc::new(Self {
            config,
            next_index: Cell::new(next_index),
            state: RefCell::new(if found { State::Ready } else { State::Nothing }),
            changed: Signal::default(),
            spare: RefCell::default(),
            name_unsure: Cell::new(found),
        })
    }

    fn path(&self) -> PathBuf {
        self.config.folder.join(segment::file_name(self.next_index.get()))
    }

    fn become_(&self, state: State) {
        *self.state.borrow_mut() = state;
        self.changed.notify();
    }

    fn is_idle(&self) -> bool {
        matches!(*self.state.borrow(), State::Nothing | State::Failed(_))
    }

    /// Begins to make the file unless it is there, or could not be made: no try for each block on a full disk. `zeros`:
    /// written once before use, which makes later syncs cheap.
    pub fn begin(self: &Rc<Self>, zeros: bool) {
        if !matches!(*self.state.borrow(), State::Nothing) {
            return;
        }
        self.become_(State::Busy);
        let this = self.clone();
        let spare = self.spare.take();
        spawn_local(async move {
            let result = match spare {
                Some(spare) => files::rename(spare, this.path()).await,
                None => files::create(&this.path(), this.config.segment.get(), zeros).await,
            };
            this.end(result).await;
        })
        .detach();
    }

    /// Makes the name durable, then says that the file is ready.
    async fn end(&self, made: Result<(), WalError>) {
        let result = match made {
            Ok(()) => files::sync_folder(&self.config.folder).await,
            Err(error) => Err(error),
        };
        self.become_(result.map_or_else(State::Failed, |()| State::Ready));
    }

    /// Waits until the file is there, and makes it now if nobody does. An error leaves nothing behind: try again later.
    pub async fn ready(self: &Rc<Self>, zeros: bool) -> Result<(), WalError> {
        if self.is_idle() {
            *self.state.borrow_mut() = State::Nothing; // after an earlier failure: there may be room now
            self.begin(zeros);
        }
        loop {
            let seen = self.changed.epoch();
            match &*self.state.borrow() {
                State::Ready => return Ok(()),
                State::Failed(error) => return Err(error.clone()),
                State::Busy | State::Nothing => {}
            }
            self.changed.changed(seen).await;
            if matches!(*self.state.borrow(), State::Nothing) {
                self.begin(zeros);
            }
        }
    }

    /// Takes the file into use.
    pub async fn take(self: &Rc<Self>, zeros: bool) -> Result<Taken, WalError> {
        self.ready(zeros).await?;
        let claim = self.claim(State::Ready);
        let (index, path) = (self.next_index.get(), self.path());
        if self.name_unsure.get() {
            files::sync_folder(&self.config.folder).await?;
            self.name_unsure.set(false);
        }
        let file = files::open(&path, true).await?;
        Ok(Taken {
            claim,
            index,
            path,
            file,
        })
    }

    fn claim(self: &Rc<Self>, then: State) -> Claim {
        *self.state.borrow_mut() = State::Busy;
        Claim(self.clone(), then)
    }

    /// Keeps a dropped segment's file as the next one or the one after, or removes it.
    pub async fn recycle(self: &Rc<Self>, dropped: &SegmentFile) -> Result<(), WalError> {
        let is_wanted = self.spare.borrow().is_none() && dropped.size == self.config.segment.get();
        if !is_wanted {
            return files::remove(dropped.path.clone()).await;
        }
        *self.spare.borrow_mut() = Some(dropped.path.clone());
        if self.is_idle() {
            *self.state.borrow_mut() = State::Nothing;
            self.begin(false);
            self.settle().await;
        }
        match &*self.state.borrow() {
            State::Failed(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Removes the file if it lies ready, and the spare one, to give the space to something more urgent. Whether there was any.
    pub async fn give_up(self: &Rc<Self>) -> Result<bool, WalError> {
        self.settle().await;
        let spare = self.spare.take();
        if let Some(spare) = spare {
            return files::remove(spare).await.map(|()| true);
        }
        if !matches!(*self.state.borrow(), State::Ready) {
            return Ok(false);
        }
        let _claim = self.claim(State::Nothing);
        files::remove(self.path()).await.map(|()| true)
    }

    /// Waits for what is being made, so that nothing is left half done.
    pub async fn settle(&self) {
        while matches!(*self.state.borrow(), State::Busy) {
            let seen = self.changed.epoch();
            if matches!(*self.state.borrow(), State::Busy) {
                self.changed.changed(seen).await;
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.become_(std::mem::replace(&mut self.1, State::Nothing));
    }
}

impl Taken {
    /// It is a segment of the log now.
    pub fn used(mut self) {
        self.claim.0.next_index.set(self.index + 1);
        self.claim.1 = State::Nothing;
    }
}
