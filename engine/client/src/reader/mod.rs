//! Reading: a stream of messages and ticks that outlives connections.

mod credit;
mod line;
mod track;

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::Stream;
use wire_format::{Offset, Timetick, limits::check_pchannel_name, protocol::ReadRequest};

use self::line::Line;
use crate::{
    config::{ClientConfig, ReadOptions},
    connection::check_address,
    error::{Error, Result},
    message::{BatchEvent, Event, ReceivedBatch, ReceivedMessage},
};

/// Reads one pchannel from a position on: every wanted message once, in order, and ticks that promise how far time has come.
///
/// It runs inside the caller's task: nothing is read ahead but what the kernel and one buffer hold, and a consumer that is slow
/// stops the server by not granting credit. `next` may be dropped at any await without losing a message.
///
/// When the connection breaks, or the server is silent for `idle_timeout`, it connects again and goes on at its exact position.
/// An outage longer than `outage_deadline` is told as [`Error::Outage`]; asking again goes on trying. Errors for which
/// [`Error::is_retryable`] is false end the reader: it repeats them.
///
/// As a [`Stream`] it yields the same events; it ends after an error that ends the reader.
pub struct Reader {
    line: Line,
    current: Option<Current>,
    /// Names of the last batch's dictionary, used again where the next one's are the same.
    names: Vec<Arc<str>>,
    /// The timetick of the last message given one by one.
    given: Timetick,
    ended: bool,
}

/// A delivery that is given message by message.
struct Current {
    batch: ReceivedBatch,
    next: u32,
    frame_bytes: u64,
}

impl Reader {
    /// Connects to the owner of `pchannel` and asks for messages. One try, within `connect_timeout`, so that a wrong address
    /// or position is told at once.
    pub async fn open(client: ClientConfig, pchannel: &str, options: ReadOptions) -> Result<Self> {
        check_address(&client.server)?;
        check_pchannel_name(pchannel).map_err(Error::InvalidMessage)?;
        if options.credit_bytes == 0 {
            return Err(Error::InvalidConfig {
                setting: "credit_bytes",
                value: "0".to_owned(),
                why: "the server could never send anything",
            });
        }
        let request = ReadRequest {
            start: options.start,
            filter: options.filter.clone(),
            credit: wire_format::Bytes(options.credit_bytes),
        };
        let line = Line::open(client, pchannel, request, &options).await?;
        Ok(Self {
            given: line.timetick(),
            line,
            current: None,
            names: Vec::new(),
            ended: false,
        })
    }

    /// The next message or tick. Waits for one; bounded by the reader's timeouts if the server is gone.
    pub async fn next(&mut self) -> Result<Event> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// The next delivery as a whole, or the next tick: for throughput. Its messages are read in place, none is copied.
    pub async fn next_batch(&mut self) -> Result<BatchEvent> {
        poll_fn(|cx| self.poll_batch(cx)).await
    }

    /// Where reading goes on: all wanted messages below were given. Open a later reader at `Start::Offset` of it.
    pub fn position(&self) -> Offset {
        match &self.current {
            Some(current) => {
                let view = current.batch.view();
                view.meta()
                    .base_offset
                    .plus(view.header(current.next).offset_delta().into())
            }
            None => self.line.position(),
        }
    }

    /// All wanted messages with a timetick up to this one were given.
    pub fn position_timetick(&self) -> Timetick {
        match &self.current {
            Some(_) => self.given,
            None => self.line.timetick(),
        }
    }

    /// The first offset that was kept when the reader connected last.
    pub fn first_offset(&self) -> Offset {
        self.line.first_offset()
    }

    /// The pchannel that it reads.
    pub fn pchannel(&self) -> &str {
        self.line.pchannel()
    }

    /// [`Reader::next_batch`], for callers that poll.
    pub fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Result<BatchEvent>> {
        let rest = match self.current.take() {
            Some(Current {
                mut batch,
                next,
                frame_bytes,
            }) => {
                batch.first = next;
                (batch, frame_bytes)
            }
            None => match ready!(self.line.poll(cx))? {
                line::Event::Batch { batch, frame_bytes } => (batch, frame_bytes),
                line::Event::Tick(tick) => {
                    return Poll::Ready(Ok(BatchEvent::Tick {
                        timetick: tick.timetick,
                        next_offset: tick.next_offset,
                    }));
                }
            },
        };
        let (batch, frame_bytes) = rest;
        self.line.consumed(frame_bytes);
        Poll::Ready(Ok(BatchEvent::Batch(batch)))
    }

    /// [`Reader::next`], for callers that poll.
    pub fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event>> {
        if self.current.is_none() {
            self.given = self.line.timetick();
            match ready!(self.line.poll(cx))? {
                line::Event::Tick(tick) => {
                    return Poll::Ready(Ok(Event::Tick {
                        timetick: tick.timetick,
                        next_offset: tick.next_offset,
                    }));
                }
                line::Event::Batch { batch, frame_bytes } => {
                    self.learn_names(&batch);
                    self.current = Some(Current {
                        next: batch.first,
                        batch,
                        frame_bytes,
                    });
                }
            }
        }
        let Some(mut current) = self.current.take() else {
            return Poll::Ready(Err(Error::Closed));
        };
        let message = self.message(&current.batch, current.next);
        current.next += 1;
        if current.next < current.batch.layout.count() {
            self.current = Some(current);
        } else {
            self.line.consumed(current.frame_bytes);
        }
        Poll::Ready(message.map(Event::Message))
    }

    fn learn_names(&mut self, batch: &ReceivedBatch) {
        let view = batch.view();
        for (index, name) in view.vchannels().enumerate() {
            match self.names.get_mut(index) {
                Some(known) if **known == *name => {}
                Some(known) => *known = name.into(),
                None => self.names.push(name.into()),
            }
        }
    }

    fn message(&mut self, batch: &ReceivedBatch, index: u32) -> Result<ReceivedMessage> {
        let view = batch.view();
        let message = view.message(index);
        self.given = message.timetick;
        let owned = |pair: Result<(&str, &str), _>| pair.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let properties = message.properties.iter().map(owned).collect::<Result<_, _>>();
        let vchannel = self.names.get(usize::from(view.header(index).vchannel()));
        Ok(ReceivedMessage {
            offset: message.offset,
            timetick: message.timetick,
            vchannel: vchannel.cloned().unwrap_or_else(|| message.vchannel.into()),
            message_type: message.message_type,
            properties: properties.map_err(|source| Error::UnreadableProperties {
                pchannel: self.line.pchannel().to_owned(),
                offset: message.offset,
                source,
            })?,
            body: batch.record.slice_ref(message.body),
        })
    }
}

impl Stream for Reader {
    type Item = Result<Event>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let event = ready!(this.poll_event(cx));
        this.ended = this.line.has_ended() && event.is_err();
        Poll::Ready(Some(event))
    }
}
