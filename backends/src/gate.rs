//! One at a time, on one shard.

use std::cell::Cell;

use crate::signal::Signal;

/// Lets one task in at a time. Not `Send`.
#[derive(Default)]
pub struct Gate {
    busy: Cell<bool>,
    freed: Signal,
}

/// The turn of whoever is in; dropping it lets the next one in.
pub struct Turn<'a>(&'a Gate);

impl Gate {
    /// Waits for its turn.
    pub async fn enter(&self) -> Turn<'_> {
        loop {
            let seen = self.freed.epoch();
            if !self.busy.replace(true) {
                return Turn(self);
            }
            self.freed.changed(seen).await;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.set(false);
        self.0.freed.notify();
    }
}
