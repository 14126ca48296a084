//! The line to the server: connected, connecting, or waiting to try again.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::time::{Sleep, sleep};
use wire_format::{
    Limits, Offset, Timetick,
    batch::{Door, verify},
    frame::{FRAME_HEADER_BYTES, FrameKind, Tick},
    protocol::{Hello, HelloReply, Intent, ReadRequest, Refusal},
};

use super::{credit::Credit, track::Track};
use crate::{
    backoff::Backoff,
    config::{ClientConfig, FAR, ReadOptions},
    connection::{Connection, Frame, connect, redirect},
    error::{Error, Outcome, Result},
    message::ReceivedBatch,
};

/// Credit that was earned and is held back is granted after this long without a frame.
const GRANT_AFTER: Duration = Duration::from_millis(20);
/// So many times in a row the server may send what it must not; then it is no outage any more.
const STRIKES_MAX: u32 = 5;

type Connecting = Pin<Box<dyn Future<Output = Result<Connection>> + Send + Sync>>;

/// What comes over the line.
pub(super) enum Event {
    Batch { batch: ReceivedBatch, frame_bytes: u64 },
    Tick(Tick),
}

enum Link {
    Up {
        connection: Box<Connection>,
        credit: Credit,
        /// Since when a frame is waited for.
        waiting: Option<Instant>,
    },
    Connecting(Connecting),
    Waiting {
        until: Instant,
    },
}

/// Lives in the reader, in the consumer's task.
pub(super) struct Line {
    client: Arc<ClientConfig>,
    pchannel: Arc<str>,
    idle_timeout: Duration,
    outage_deadline: Duration,
    track: Track,
    link: Link,
    backoff: Backoff,
    owner: Option<String>,
    first_offset: Offset,
    /// Since when there was no good frame.
    outage_since: Option<Instant>,
    strikes: u32,
    timer: Pin<Box<Sleep>>,
    ended: Option<Error>,
}

impl Line {
    pub(super) async fn open(
        client: ClientConfig,
        pchannel: &str,
        request: ReadRequest,
        options: &ReadOptions,
    ) -> Result<Self> {
        let client = Arc::new(client);
        let mut line = Self {
            pchannel: pchannel.into(),
            idle_timeout: options.idle_timeout.min(FAR),
            outage_deadline: options.outage_deadline.min(FAR),
            track: Track::new(pchannel, request),
            link: Link::Waiting { until: Instant::now() },
            backoff: Backoff::new(client.backoff_min, client.backoff_max),
            owner: None,
            first_offset: Offset::ZERO,
            outage_since: None,
            strikes: 0,
            timer: Box::pin(sleep(FAR)),
            ended: None,
            client,
        };
        let connection = line.connecting().await?;
        line.is_up(connection)?;
        Ok(line)
    }

    pub(super) fn pchannel(&self) -> &str {
        &self.pchannel
    }

    pub(super) fn position(&self) -> Offset {
        self.track.position()
    }

    pub(super) fn timetick(&self) -> Timetick {
        self.track.timetick()
    }

    pub(super) fn first_offset(&self) -> Offset {
        self.first_offset
    }

    /// Whether an error ended it for good.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// The consumer is through with a delivery. It is of this connection: the line is not asked for more before that.
    pub(super) fn consumed(&mut self, frame_bytes: u64) {
        if let Link::Up { credit, .. } = &mut self.link {
            credit.take(frame_bytes);
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event>> {
        loop {
            if let Some(error) = &self.ended {
                return Poll::Ready(Err(error.clone()));
            }
            let turn = match &mut self.link {
                Link::Up { .. } => self.poll_up(cx),
                Link::Connecting(connecting) => match connecting.as_mut().poll(cx) {
                    Poll::Ready(Ok(connection)) => Poll::Ready(self.is_up(connection).map(|()| None)),
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    Poll::Pending => self.poll_outage(cx),
                },
                &mut Link::Waiting { until } => {
                    if until <= Instant::now() {
                        self.link = Link::Connecting(self.connecting());
                        continue;
                    }
                    self.poll_timer(until, cx).map(|()| Ok(None))
                }
            };
            match turn {
                Poll::Ready(Ok(Some(event))) => return Poll::Ready(Ok(event)),
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(error)) => {
                    if let Some(error) = self.is_down(error) {
                        return Poll::Ready(Err(error));
                    }
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn connecting(&mut self) -> Connecting {
        let mut hello = Hello::new(&self.client.client_name, Intent::Read, &self.pchannel);
        hello.read = Some(self.track.request());
        let target = self.owner.take().unwrap_or_else(|| self.client.server.clone());
        Box::pin(connect(Arc::clone(&self.client), Arc::new(hello), target))
    }

    fn is_up(&mut self, connection: Connection) -> Result<()> {
        let reply: &HelloReply = &connection.reply;
        let opened = self.track.on_open(reply);
        opened.map_err(|fault| Error::protocol(&connection.server, fault))?;
        self.first_offset = reply.first_offset;
        self.owner = Some(connection.server.to_string());
        self.link = Link::Up {
            connection: Box::new(connection),
            credit: Credit::new(self.track.request().credit.get()),
            waiting: None,
        };
        Ok(())
    }

    /// Takes one frame. `None`: it told nothing new, look again.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Event>>> {
        let Link::Up {
            connection,
            credit,
            waiting,
        } = &mut self.link
        else {
            return Poll::Ready(Ok(None));
        };
        let server = Arc::clone(&connection.server);
        if let Err(error) = credit.poll_write(&mut connection.write, cx) {
            return Poll::Ready(Err(Error::lost(&server, error)));
        }
        let polled = {
            let next = pin!(connection.frames.next());
            next.poll(cx)
        };
        match polled {
            Poll::Ready(Ok(frame)) => {
                *waiting = None;
                Poll::Ready(self.on_frame(&server, frame))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let since = *waiting.get_or_insert_with(Instant::now);
                let (holds, now) = (credit.holds(), Instant::now());
                if since + self.idle_timeout <= now {
                    let detail = format!("nothing came for {:?}, not even a tick", self.idle_timeout);
                    return Poll::Ready(Err(Error::lost(&server, detail)));
                }
                if holds && since + GRANT_AFTER <= now {
                    credit.grant();
                    return Poll::Ready(Ok(None));
                }
                let wait = if holds {
                    self.idle_timeout.min(GRANT_AFTER)
                } else {
                    self.idle_timeout
                };
                self.poll_timer(since + wait, cx).map(|()| Ok(None))
            }
        }
    }

    fn poll_outage(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Event>>> {
        let since = *self.outage_since.get_or_insert_with(Instant::now);
        self.poll_timer(since + self.outage_deadline, cx).map(|()| {
            Err(Error::ConnectTimeout {
                server: self.client.server.clone(),
                waited: self.outage_deadline,
                step: "connecting again",
            })
        })
    }

    fn poll_timer(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let at = tokio::time::Instant::from_std(at);
        if self.timer.deadline() != at || self.timer.is_elapsed() {
            self.timer.as_mut().reset(at);
        }
        self.timer.as_mut().poll(cx)
    }

    fn on_frame(&mut self, server: &str, frame: Frame) -> Result<Option<Event>> {
        let garbled = |e: &dyn std::fmt::Display| Error::protocol(server, e);
        match frame.kind {
            FrameKind::Deliver => {
                let view = verify(&frame.body, Door::Storage, &Limits::WIDEST).map_err(|e| garbled(&e))?;
                if view.bytes().len() != frame.body.len() {
                    return Err(garbled(&"a delivery is longer than its record"));
                }
                let layout = view.layout();
                let first = self.track.on_batch(&view).map_err(|e| garbled(&e))?;
                let frame_bytes = (FRAME_HEADER_BYTES + frame.body.len()) as u64;
                self.is_well();
                self.strikes = 0;
                let Some(first) = first else {
                    self.consumed(frame_bytes);
                    return Ok(None);
                };
                let record = frame.body;
                let batch = ReceivedBatch { record, layout, first };
                Ok(Some(Event::Batch { batch, frame_bytes }))
            }
            FrameKind::Tick => {
                let tick = Tick::read(&frame.body).map_err(|e| garbled(&e))?;
                let news = self.track.on_tick(&tick).map_err(|e| garbled(&e))?;
                self.is_well();
                // A server that ticks and sends no messages may be waiting for the little that is held back.
                if let Link::Up { credit, .. } = &mut self.link {
                    credit.grant();
                }
                Ok(news.then_some(Event::Tick(Tick {
                    next_offset: self.track.position(),
                    ..tick
                })))
            }
            FrameKind::Refusal => {
                let refusal = Refusal::read(&frame.body).map_err(|e| garbled(&e))?;
                Err(Error::from_refusal(server, &self.pchannel, refusal, Outcome::NotStored))
            }
            FrameKind::Goodbye => Err(Error::lost(server, "the server is going down in an orderly way")),
            _ => Err(Connection::unexpected(server, &frame, "a delivery or a tick")),
        }
    }

    fn is_well(&mut self) {
        self.outage_since = None;
        self.backoff.reset();
    }

    /// The line broke. Gives the error if the consumer must know.
    fn is_down(&mut self, error: Error) -> Option<Error> {
        tracing::debug!(pchannel = %self.pchannel, %error, "reader lost its connection");
        let now = Instant::now();
        let mut delay = self.backoff.next_delay();
        if let Some(refusal) = error.refusal() {
            delay = delay.max(Duration::from_millis(refusal.retry_after.get()));
        }
        if let Some(owner) = redirect(&error) {
            self.owner = Some(owner);
        }
        self.strikes += u32::from(matches!(error, Error::Protocol { .. }));
        let since = *self.outage_since.get_or_insert(now);
        let over = since + self.outage_deadline;
        self.link = Link::Waiting {
            until: (now + delay).min(over.max(now)),
        };
        if !error.is_retryable() || self.strikes >= STRIKES_MAX {
            self.ended = Some(error.clone());
            return Some(error);
        }
        if over <= now {
            // The next call begins a new outage, after a wait.
            self.outage_since = None;
            self.link = Link::Waiting { until: now + delay };
            return Some(Error::Outage {
                pchannel: self.pchannel.to_string(),
                waited: now - since,
                position: self.track.position(),
                last: Box::new(error),
            });
        }
        None
    }
}
