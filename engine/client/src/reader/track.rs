//! Where a reader stands, and what may come next.

use wire_format::{
    Offset, Timetick,
    batch::BatchView,
    frame::Tick,
    protocol::{HelloReply, ReadRequest, Start},
};

/// The reader's position in offsets and in time. It survives connections: what was given is never given again, and what would
/// break the order or leave a gap is an error, not data. No I/O, no clock.
#[derive(Debug)]
pub(super) struct Track {
    pchannel: String,
    request: ReadRequest,
    /// Where reading goes on; known from the first hello reply on.
    position: Option<Offset>,
    /// Messages up to here were given, or were not asked for.
    given: Timetick,
    /// The largest tick that was given.
    tick: Timetick,
    /// Whether offsets must follow each other without a gap from here on.
    dense: bool,
}

impl Track {
    pub(super) fn new(pchannel: &str, request: ReadRequest) -> Self {
        let given = match request.start {
            Start::Timetick(first) => first.previous(),
            _ => Timetick::ZERO,
        };
        Self {
            pchannel: pchannel.to_owned(),
            dense: request.filter.is_open() && !matches!(request.start, Start::Timetick(_)),
            request,
            position: None,
            given,
            tick: Timetick::ZERO,
        }
    }

    /// What to ask for on the next connection.
    pub(super) fn request(&self) -> ReadRequest {
        let mut request = self.request.clone();
        if let Some(position) = self.position {
            if let Start::Timetick(first) = request.start {
                // Nothing at or above it may have come yet.
                request.filter.min_timetick = request.filter.min_timetick.max(first);
            }
            request.start = Start::Offset(position);
        }
        request
    }

    /// Where reading goes on.
    pub(super) fn position(&self) -> Offset {
        self.position.unwrap_or_default()
    }

    /// Everything with a timetick up to this one was given.
    pub(super) fn timetick(&self) -> Timetick {
        self.given.max(self.tick)
    }

    /// A connection is up.
    pub(super) fn on_open(&mut self, reply: &HelloReply) -> Result<(), String> {
        let asked = match (self.position, self.request.start) {
            (Some(position), _) => position,
            (None, Start::Offset(offset)) => offset,
            (None, _) => reply.start_offset,
        };
        if reply.start_offset > asked {
            return Err(format!("begins at offset {} instead of {asked}", reply.start_offset));
        }
        self.position = Some(asked);
        Ok(())
    }

    /// A delivery. Gives the index of its first message that is new; `None` if none is.
    pub(super) fn on_batch(&mut self, view: &BatchView<'_>) -> Result<Option<u32>, String> {
        let position = self.position();
        let meta = view.meta();
        if view.pchannel() != self.pchannel {
            return Err(format!("delivered messages of pchannel {}", view.pchannel()));
        }
        if meta.next_offset() <= position {
            return Ok(None);
        }
        if self.dense && meta.base_offset > position {
            return Err(format!("skipped from offset {position} to {}", meta.base_offset));
        }
        let skip = |header: &wire_format::batch::Header<'_>| {
            meta.base_offset.plus(header.offset_delta().into()) < position
                || (!self.dense && matches!(self.request.start, Start::Timetick(first) if header.timetick() < first))
        };
        let first = view.headers().take_while(skip).count() as u32;
        if first < view.count() {
            let timetick = view.header(first).timetick();
            if timetick <= self.timetick() {
                return Err(format!(
                    "delivered timetick {} after everything up to {} was promised to have come",
                    timetick.get(),
                    self.timetick().get()
                ));
            }
        }
        self.position = Some(meta.next_offset());
        self.given = self.given.max(meta.max_timetick);
        self.dense |= self.request.filter.is_open() && first < view.count();
        Ok((first < view.count()).then_some(first))
    }

    /// A tick. Says whether it is news.
    pub(super) fn on_tick(&mut self, tick: &Tick) -> Result<bool, String> {
        let position = self.position();
        if self.dense && tick.next_offset > position {
            return Err(format!("skipped from offset {position} to {}", tick.next_offset));
        }
        self.position = Some(position.max(tick.next_offset));
        let news = tick.timetick > self.tick && tick.timetick >= self.given;
        if news {
            self.tick = tick.timetick;
        }
        Ok(news)
    }
}
