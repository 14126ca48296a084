//! One reading connection: deliveries and ticks in, credits out.

use std::{
    io::{ErrorKind, Write},
    net::TcpStream,
};

use wire_format::{
    FormatError, Limits, Offset, Timetick,
    batch::{BatchView, Door, Layout, Prefix, verify},
    frame::{FRAME_HEADER_BYTES, FrameKind, Tick, frame},
    protocol::Refusal,
};

use super::{
    greeting::unexpected,
    input::{Input, Received},
};
use crate::error::{BenchError, During};

/// How a reader is set up.
#[derive(Debug, Clone)]
pub struct ReaderPlan {
    /// Number of its pchannel.
    pub pchannel: usize,
    /// The one vchannel that it wants; `None` for all.
    pub vchannel: Option<String>,
    /// Bytes of deliveries in flight.
    pub credit_bytes: u64,
    /// Receive buffer.
    pub buffer_bytes: usize,
    /// Every so many deliveries all checksums of one are verified; 1 verifies all.
    pub verify_every: u64,
    /// Whether every batch holds something for it, so that none may be missing.
    pub dense: bool,
}

/// Something that came.
#[derive(Debug, Clone, Copy)]
pub(super) enum Came {
    /// Messages of the batch at this offset.
    Delivery { base: Offset, messages: u32, bytes: u64 },
    /// A promise.
    Tick,
}

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) stream: TcpStream,
    pub(super) plan: ReaderPlan,
    /// It passed everything below.
    pub(super) next: Offset,
    /// When its last tick came, for whoever wants to keep it.
    pub(super) last_tick_at_ns: u64,
    /// Deliveries whose checksums were verified.
    pub(super) verified: u64,
    deliveries: u64,
    last_tick: Timetick,
    input: Input,
    /// Bytes taken since the last credit.
    taken: u64,
    known: Option<(Prefix, Layout)>,
}

impl Reader {
    pub(super) fn new(stream: TcpStream, plan: ReaderPlan, start: Offset) -> Self {
        Self {
            stream,
            input: Input::new(plan.buffer_bytes),
            plan,
            next: start,
            last_tick_at_ns: 0,
            verified: 0,
            deliveries: 0,
            last_tick: Timetick::ZERO,
            taken: 0,
            known: None,
        }
    }

    /// Reads what is there, once, and tells all that came.
    pub(super) fn receive(
        &mut self,
        mut on_came: impl FnMut(&mut u64, Came) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        if self.input.receive(&mut self.stream)? == Received::Closed {
            return Err(BenchError::Server("closed a reader's connection".to_owned()));
        }
        // Taken out while frames borrow it: the frames are looked at by the rest of the reader.
        let mut input = std::mem::replace(&mut self.input, Input::NONE);
        while let Some((header, body)) = input.next_frame()? {
            let came = match header.kind {
                FrameKind::Deliver => {
                    self.taken += (FRAME_HEADER_BYTES + body.len()) as u64;
                    self.delivery(body)?
                }
                FrameKind::Tick => self.tick(Tick::read(body)?)?,
                FrameKind::Refusal => return Err(BenchError::Refused(Box::new(Refusal::read(body)?))),
                other => return Err(unexpected(other, "a delivery or tick").into()),
            };
            on_came(&mut self.last_tick_at_ns, came)?;
        }
        self.input = input;
        self.grant()
    }

    fn delivery(&mut self, body: &[u8]) -> Result<Came, BenchError> {
        let whole = self.deliveries.is_multiple_of(self.plan.verify_every.max(1));
        self.deliveries += 1;
        let view = self.view(body, whole)?;
        let meta = view.meta();
        let in_order = if self.plan.dense {
            meta.base_offset == self.next
        } else {
            meta.base_offset >= self.next
        };
        if !in_order || meta.min_timetick <= self.last_tick {
            return Err(BenchError::Check(format!(
                "a reader at offset {} that was promised {:?} got the batch {meta:?}",
                self.next, self.last_tick
            )));
        }
        let (count, bytes) = (view.count(), view.payload().len() as u64);
        self.next = meta.next_offset();
        Ok(Came::Delivery {
            base: meta.base_offset,
            messages: count,
            bytes,
        })
    }

    /// A delivery read in place. Unless it is verified `whole`, it is read by the layout of the one before, which a record
    /// of the same lengths has, as all are of one shape.
    fn view<'b>(&mut self, body: &'b [u8], whole: bool) -> Result<BatchView<'b>, BenchError> {
        let prefix = Prefix::read(body, &Limits::WIDEST)?;
        if let Some((like, layout)) = self.known.filter(|_| !whole)
            && (like.index_len, like.payload_len) == (prefix.index_len, prefix.payload_len)
            && body.len() == prefix.record_len()
        {
            return Ok(BatchView::new(body, layout));
        }
        let view = verify(body, Door::Storage, &Limits::WIDEST)?;
        self.verified += 1;
        if view.bytes().len() != body.len() {
            let (have, need) = (body.len() as u64, view.bytes().len() as u64);
            let part = "delivery";
            return Err(FormatError::Short { part, have, need }.into());
        }
        if let Some(wanted) = &self.plan.vchannel
            && view.vchannels().any(|name| name != wanted)
        {
            let found: Vec<&str> = view.vchannels().collect();
            return Err(BenchError::Check(format!(
                "a reader of vchannel {wanted} got {found:?}"
            )));
        }
        self.known = Some((prefix, view.layout()));
        Ok(view)
    }

    fn tick(&mut self, tick: Tick) -> Result<Came, BenchError> {
        let skips = self.plan.dense && tick.next_offset > self.next;
        if tick.timetick < self.last_tick || tick.next_offset < self.next || skips {
            return Err(BenchError::Check(format!(
                "a reader at offset {} that was promised {:?} got {tick:?}",
                self.next, self.last_tick
            )));
        }
        self.last_tick = tick.timetick;
        self.next = tick.next_offset;
        Ok(Came::Tick)
    }

    /// Grants what was taken once it is a quarter of all credit.
    fn grant(&mut self) -> Result<(), BenchError> {
        if self.taken < self.plan.credit_bytes / 4 || self.taken == 0 {
            return Ok(());
        }
        let credit = frame(FrameKind::Credit, 0, &self.taken.to_le_bytes());
        match self.stream.write(&credit) {
            Ok(count) if count == credit.len() => self.taken = 0,
            Ok(count) => {
                return Err(BenchError::Check(format!(
                    "only {count} bytes of a credit could be sent"
                )));
            }
            // Room will come; then it is one larger credit.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error).during("credit to the server"),
        }
        Ok(())
    }
}
