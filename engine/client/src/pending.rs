//! The fate of a batch, shared by the calls whose messages are in it.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use wire_format::frame::Ack as BatchAck;

use crate::{
    error::{Error, Result},
    message::Ack,
};

/// One cell per batch, so that a message costs its caller no allocation but the place of its waker.
#[derive(Default)]
pub(crate) struct Fate {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    verdict: Option<Result<BatchAck>>,
    wakers: Vec<Waker>,
}

impl Fate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the verdict. The first one stands: a caller is told once.
    pub(crate) fn settle(&self, verdict: Result<BatchAck>) {
        let wakers = {
            let mut state = self.state();
            if state.verdict.is_some() {
                return;
            }
            state.verdict = Some(verdict);
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.state().verdict.is_some()
    }

    fn poll(&self, place: &mut Option<usize>, cx: &mut Context<'_>) -> Poll<Result<BatchAck>> {
        let mut state = self.state();
        if let Some(verdict) = &state.verdict {
            return Poll::Ready(verdict.clone());
        }
        match place {
            Some(at) => state.wakers[*at].clone_from(cx.waker()),
            None => {
                *place = Some(state.wakers.len());
                state.wakers.push(cx.waker().clone());
            }
        }
        Poll::Pending
    }
}

/// A batch that the producer took: resolves when it is durable, or when the call's deadline is over.
///
/// Dropping it does not take the batch back.
#[must_use = "the batch may fail; await it or keep it"]
pub struct PendingBatch {
    fate: Arc<Fate>,
    place: Option<usize>,
}

impl PendingBatch {
    pub(crate) fn new(fate: Arc<Fate>) -> Self {
        Self { fate, place: None }
    }
}

impl Future for PendingBatch {
    type Output = Result<BatchAck, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.fate.poll(&mut this.place, cx)
    }
}

/// A message that the producer took: resolves when it is durable, or when the call's deadline is over.
///
/// Dropping it does not take the message back.
#[must_use = "the message may fail; await it or keep it"]
pub struct Pending {
    batch: PendingBatch,
    index: u32,
}

impl Pending {
    pub(crate) fn new(fate: Arc<Fate>, index: u32) -> Self {
        Self {
            batch: PendingBatch::new(fate),
            index,
        }
    }
}

impl Future for Pending {
    type Output = Result<Ack, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let index = u64::from(self.index);
        Pin::new(&mut self.batch).poll(cx).map_ok(|ack| Ack {
            offset: ack.base_offset.plus(index),
            timetick: ack.first_timetick.plus(index),
            duplicate: ack.duplicate,
        })
    }
}
