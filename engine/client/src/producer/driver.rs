//! The one task of a producer: connects, sends, listens, and tells callers.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{select, time::sleep_until};
use wire_format::{
    ProducerEpoch, ProducerId,
    frame::{Ack, FrameKind},
    protocol::{Hello, Refusal},
};

use super::{Shared, load::Load};
use crate::{
    backoff::Backoff,
    config::IN_FLIGHT_BATCHES_MAX,
    connection::{Connection, Frame, connect, redirect},
    error::{Error, Outcome, Result},
    outbox::Outbox,
    pipeline::{Pipeline, Step, Then},
};

/// Bytes handed to the socket's queue at once; the rest waits without a number, so that it can still be taken back.
const OUTBOX_BYTES: usize = 256 << 10;
/// How long to wait before sending again to a server that is full or busy and does not say when.
const PAUSE_DEFAULT: Duration = Duration::from_millis(50);

type Connecting = Pin<Box<dyn Future<Output = Result<Connection>> + Send>>;

enum Link {
    Up(Box<Up>),
    Connecting(Connecting),
    Waiting { until: Instant },
}

struct Up {
    connection: Connection,
    outbox: Outbox,
    /// When the server was last heard, or became due to be.
    heard: Instant,
}

/// What a turn of the loop brought.
enum Event {
    Nothing,
    Frame(Frame),
    Up(Connection),
    Failed(Error),
}

/// Owned by its task; callers reach it through `Shared` only.
pub(super) struct Driver {
    shared: Arc<Shared>,
    hello: Arc<Hello>,
    pipeline: Pipeline<Load>,
    link: Link,
    backoff: Backoff,
    /// The owner that the last connection led to.
    owner: Option<String>,
    /// Why it can't go on.
    fatal: Option<Error>,
}

impl Driver {
    pub(super) fn new(
        shared: Arc<Shared>,
        hello: Arc<Hello>,
        (producer_id, epoch): (ProducerId, ProducerEpoch),
        connection: Connection,
    ) -> Self {
        let window = shared.config.max_in_flight_batches.min(IN_FLIGHT_BATCHES_MAX);
        let backoff = Backoff::new(shared.client.backoff_min, shared.client.backoff_max);
        let mut driver = Self {
            pipeline: Pipeline::new(producer_id, epoch, window),
            link: Link::Waiting { until: Instant::now() },
            shared,
            hello,
            backoff,
            owner: None,
            fatal: None,
        };
        driver.is_up(connection);
        driver
    }

    /// Runs until the producer is closed and nobody waits any more, or until it can't go on.
    pub(super) async fn run(mut self) {
        while self.fatal.is_none() {
            let now = Instant::now();
            self.take_in(now);
            self.expire(now);
            if self.is_finished() {
                return;
            }
            self.reconnect_if_due(now);
            if let Err(error) = self.send(now) {
                self.fatal = Some(error);
                return;
            }
            match self.turn(self.wake_at(now)).await {
                Event::Nothing => {}
                Event::Frame(frame) => self.on_frames(frame),
                Event::Up(connection) => self.is_up(connection),
                Event::Failed(error) => self.is_down(error),
            }
        }
    }

    /// Waits for the first thing to happen. Every branch may be dropped without a loss.
    async fn turn(&mut self, wake_at: Option<Instant>) -> Event {
        let wake = async {
            match wake_at {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let called = self.shared.wake.notified();
        match &mut self.link {
            Link::Up(up) => {
                let Up { connection, outbox, .. } = &mut **up;
                let server = &connection.server;
                select! {
                    frame = connection.frames.next() => match frame {
                        Ok(frame) => Event::Frame(frame),
                        Err(error) => Event::Failed(error),
                    },
                    written = outbox.write_some(&mut connection.write), if !outbox.is_empty() => match written {
                        Ok(()) => Event::Nothing,
                        Err(error) => Event::Failed(Error::lost(server, error)),
                    },
                    () = called => Event::Nothing,
                    () = wake => Event::Nothing,
                }
            }
            Link::Connecting(connecting) => select! {
                connected = connecting => match connected {
                    Ok(connection) => Event::Up(connection),
                    Err(error) => Event::Failed(error),
                },
                () = called => Event::Nothing,
                () = wake => Event::Nothing,
            },
            Link::Waiting { .. } => select! {
                () = called => Event::Nothing,
                () = wake => Event::Nothing,
            },
        }
    }

    /// Moves closed batches, and the open one when it is due, into the pipeline.
    fn take_in(&mut self, now: Instant) {
        let mut intake = self.shared.intake();
        intake.forget_settled();
        while let Some(queued) = intake.take_closed() {
            let (count, deadline) = (queued.builder.count(), queued.deadline);
            self.pipeline.admit(Load::new(queued), count, deadline);
        }
        let wire_is_free = self.pipeline.has_room(now) && self.outbox_has_room();
        if let Some(queued) = intake.take_open(self.shared.config.linger, wire_is_free, now) {
            let (count, deadline) = (queued.builder.count(), queued.deadline);
            self.pipeline.admit(Load::new(queued), count, deadline);
        }
    }

    fn outbox_has_room(&self) -> bool {
        matches!(&self.link, Link::Up(up) if up.outbox.bytes() < OUTBOX_BYTES)
    }

    /// Tells callers whose time is over.
    fn expire(&mut self, now: Instant) {
        let shared = &self.shared;
        let trouble = || shared.intake().trouble.clone();
        let over = |outcome| Error::DeadlineExceeded {
            pchannel: shared.pchannel.to_string(),
            waited: shared.deadline,
            outcome,
            last: trouble().map(Box::new),
        };
        self.pipeline.expire(
            now,
            |load| load.fate.settle(Err(over(Outcome::Unknown))),
            |load| {
                load.fate.settle(Err(over(Outcome::NotStored)));
                shared.room.add_permits(load.charged);
            },
        );
    }

    fn is_finished(&self) -> bool {
        let intake = self.shared.intake();
        intake.closing && intake.is_empty() && self.pipeline.nobody_waits()
    }

    /// Fills the socket's queue.
    fn send(&mut self, now: Instant) -> Result<()> {
        let Link::Up(up) = &mut self.link else {
            return Ok(());
        };
        let was_idle = !self.pipeline.awaits_answer();
        while up.outbox.bytes() < OUTBOX_BYTES {
            let Some(dispatch) = self.pipeline.next_send(now) else {
                break;
            };
            let (head, payload, spare) = dispatch.load.record(dispatch.origin).map_err(Error::from_format)?;
            if let Some(spare) = spare {
                self.shared.intake().give_back(spare);
            }
            up.outbox.push(FrameKind::Produce, dispatch.request, head, payload);
        }
        if was_idle {
            up.heard = now;
        }
        Ok(())
    }

    fn reconnect_if_due(&mut self, now: Instant) {
        let until = match &self.link {
            Link::Up(up) if self.pipeline.awaits_answer() && up.heard + self.shared.config.stall_timeout <= now => {
                let waited = now - up.heard;
                let detail = format!("no answer for {waited:?} while batches wait for one");
                let error = Error::lost(&up.connection.server, detail);
                self.is_down(error);
                return;
            }
            Link::Waiting { until } => *until,
            _ => return,
        };
        // With nothing to send there is no hurry, but being connected when a message comes saves its time.
        if until <= now {
            let target = self.owner.take().unwrap_or_else(|| self.shared.client.server.clone());
            let client = Arc::clone(&self.shared.client);
            self.link = Link::Connecting(Box::pin(connect(client, Arc::clone(&self.hello), target)));
        }
    }

    /// The first moment at which something is due by itself.
    fn wake_at(&self, now: Instant) -> Option<Instant> {
        let link = match &self.link {
            Link::Up(up) if self.pipeline.awaits_answer() => Some(up.heard + self.shared.config.stall_timeout),
            Link::Waiting { until } => Some(*until),
            _ => None,
        };
        let open = self.shared.intake().open_since().map(|(opened_at, deadline)| {
            let lingered = opened_at + self.shared.config.linger;
            if lingered > now {
                lingered.min(deadline)
            } else {
                deadline
            }
        });
        [link, open, self.pipeline.next_deadline(), self.pipeline.pause_ends()]
            .into_iter()
            .flatten()
            .min()
    }

    fn is_up(&mut self, connection: Connection) {
        let mut intake = self.shared.intake();
        intake.set_limits(self.shared.limits_with(&connection.reply));
        drop(intake);
        self.owner = Some(connection.server.to_string());
        self.pipeline.on_connected();
        self.link = Link::Up(Box::new(Up {
            connection,
            outbox: Outbox::default(),
            heard: Instant::now(),
        }));
    }

    /// The connection broke or could not be made.
    fn is_down(&mut self, error: Error) {
        tracing::debug!(pchannel = %self.shared.pchannel, %error, "producer lost its connection");
        self.pipeline.on_disconnected();
        let mut delay = self.backoff.next_delay();
        if let Some(refusal) = error.refusal() {
            delay = delay.max(Duration::from_millis(refusal.retry_after.get()));
        }
        if let Some(owner) = redirect(&error) {
            self.owner = Some(owner);
        }
        self.link = Link::Waiting {
            until: Instant::now() + delay,
        };
        if error.is_retryable() {
            self.shared.intake().trouble = Some(error);
        } else {
            self.fatal = Some(error);
        }
    }

    /// Handles a frame and all that came with it.
    fn on_frames(&mut self, first: Frame) {
        let mut next = Some(first);
        while let Some(frame) = next {
            if let Err(error) = self.on_frame(frame) {
                self.is_down(error);
                return;
            }
            let Link::Up(up) = &mut self.link else {
                return;
            };
            next = match up.connection.frames.take_ready() {
                Ok(frame) => frame,
                Err(error) => return self.is_down(error),
            };
        }
    }

    /// Handles one frame; an error ends the connection.
    fn on_frame(&mut self, frame: Frame) -> Result<()> {
        let Link::Up(up) = &mut self.link else {
            return Ok(());
        };
        up.heard = Instant::now();
        let server = Arc::clone(&up.connection.server);
        let garbled = |e| Error::protocol(&server, e);
        match frame.kind {
            FrameKind::Ack => {
                let ack = Ack::read(&frame.body).map_err(garbled)?;
                let done = self.pipeline.on_ack(frame.correlation, &ack);
                let done = done.map_err(|fault| Error::protocol(&server, fault.0))?;
                self.backoff.reset();
                if let Some(load) = done {
                    self.shared.intake().trouble = None;
                    load.fate.settle(Ok(ack));
                    self.shared.room.add_permits(load.charged);
                }
                Ok(())
            }
            FrameKind::Refusal => {
                let refusal = Refusal::read(&frame.body).map_err(garbled)?;
                self.on_refusal(&server, frame.correlation, refusal)
            }
            FrameKind::Goodbye => Err(Error::lost(&server, "the server is going down in an orderly way")),
            _ => Err(Connection::unexpected(&server, &frame, "an ack or a refusal")),
        }
    }

    fn on_refusal(&mut self, server: &str, correlation: u64, refusal: Refusal) -> Result<()> {
        let pchannel = Arc::clone(&self.shared.pchannel);
        let error = |outcome| Error::from_refusal(server, &pchannel, refusal.clone(), outcome);
        if correlation == 0 {
            // The whole connection is refused.
            return Err(error(Outcome::NotStored));
        }
        let step = self.pipeline.on_refusal(correlation, &refusal);
        let Step { failed, then } = step.map_err(|fault| Error::protocol(server, fault.0))?;
        for (load, outcome) in failed {
            load.fate.settle(Err(error(outcome)));
            self.shared.room.add_permits(load.charged);
        }
        match then {
            Then::Continue => Ok(()),
            Then::Pause => {
                let asked = Duration::from_millis(refusal.retry_after.get());
                let pause = if asked.is_zero() {
                    PAUSE_DEFAULT.max(self.backoff.next_delay())
                } else {
                    asked
                };
                self.pipeline.pause(Instant::now() + pause);
                self.shared.intake().trouble = Some(error(Outcome::NotStored));
                Ok(())
            }
            Then::Reconnect => Err(error(Outcome::Unknown)),
            Then::Stop => {
                self.fatal = Some(error(Outcome::Unknown));
                Ok(())
            }
        }
    }
}

/// However the driver ends, closed, stuck on an error or dropped with its runtime: nobody is left waiting.
impl Drop for Driver {
    fn drop(&mut self) {
        let cause = self.fatal.take().unwrap_or(Error::Closed);
        let ended = |outcome| Error::ProducerEnded {
            pchannel: self.shared.pchannel.to_string(),
            outcome,
            cause: Box::new(cause.clone()),
        };
        self.shared.room.close();
        let (queued, live) = self.shared.intake().end(cause.clone());
        for (load, outcome) in self.pipeline.drain() {
            load.fate.settle(Err(ended(outcome)));
        }
        for batch in queued {
            batch.fate.settle(Err(ended(Outcome::NotStored)));
        }
        for fate in live {
            fate.settle(Err(ended(Outcome::Unknown)));
        }
    }
}
