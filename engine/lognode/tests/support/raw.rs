//! The native protocol by hand, over blocking sockets: what the server really sends, not what a forgiving client makes of it.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use wire_format::{
    Bytes, Limits, MessageType, Offset, ProducerEpoch, ProducerId, Sequence, Timetick,
    batch::{BatchBuilder, Door, Filter, Origin, verify},
    frame::{Ack, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Tick, frame},
    protocol::{
        AdminReply, AdminRequest, Hello, HelloReply, Intent, PchannelInfo, ReadRequest, Refusal, RefusalCode, Start,
    },
};

/// Nothing in these tests may take longer than this.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Why no frame came.
#[derive(Debug)]
pub enum NoFrame {
    /// The peer closed or cut the connection.
    Gone,
    /// Nothing within the time given.
    Late,
}

/// One connection.
pub struct Raw {
    pub stream: TcpStream,
    buffer: Vec<u8>,
    start: usize,
}

impl Raw {
    pub fn connect(address: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            buffer: Vec::new(),
            start: 0,
        })
    }

    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub fn send(&mut self, kind: FrameKind, correlation: u64, body: &[u8]) -> std::io::Result<()> {
        self.write(&frame(kind, correlation, body))
    }

    /// The next frame within `wait`.
    pub fn frame(&mut self, wait: Duration) -> Result<(FrameHeader, Vec<u8>), NoFrame> {
        let deadline = Instant::now() + wait;
        self.fill(FRAME_HEADER_BYTES, deadline)?;
        let mut head = [0; FRAME_HEADER_BYTES];
        head.copy_from_slice(&self.buffer[self.start..self.start + FRAME_HEADER_BYTES]);
        let header = FrameHeader::read(&head, &Limits::WIDEST).expect("the server sends well-formed headers");
        let whole = FRAME_HEADER_BYTES + header.length as usize;
        self.fill(whole, deadline)?;
        let body = self.buffer[self.start + FRAME_HEADER_BYTES..self.start + whole].to_vec();
        self.start += whole;
        Ok((header, body))
    }

    fn fill(&mut self, need: usize, deadline: Instant) -> Result<(), NoFrame> {
        while self.buffer.len() - self.start < need {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoFrame::Late);
            }
            self.buffer.drain(..std::mem::take(&mut self.start));
            self.stream
                .set_read_timeout(Some(left.max(Duration::from_micros(100))))
                .unwrap();
            let mut some = [0; 64 << 10];
            match self.stream.read(&mut some) {
                Ok(0) => return Err(NoFrame::Gone),
                Ok(n) => self.buffer.extend_from_slice(&some[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(NoFrame::Late);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(NoFrame::Gone),
            }
        }
        Ok(())
    }

    /// Reads until the peer closes; what came is thrown away. `false` if it does not close in time.
    pub fn ends_within(&mut self, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        loop {
            match self.frame(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(NoFrame::Gone) => return true,
                Err(NoFrame::Late) => return false,
            }
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub enum NoWelcome {
    Refused(Box<Refusal>),
    Gone,
}

impl NoWelcome {
    /// The refusal; panics if the peer was just gone.
    pub fn refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => *refusal,
            Self::Gone => panic!("no answer to the hello"),
        }
    }
}

/// Says hello and hears the answer.
pub fn greet(address: &str, hello: &Hello) -> Result<(Raw, HelloReply), NoWelcome> {
    let mut raw = Raw::connect(address).map_err(|_| NoWelcome::Gone)?;
    raw.send(FrameKind::Hello, 0, &hello.to_body())
        .map_err(|_| NoWelcome::Gone)?;
    match raw.frame(PATIENCE) {
        Ok((header, body)) => match header.kind {
            FrameKind::HelloReply => Ok((raw, HelloReply::read(&body).unwrap())),
            FrameKind::Refusal => Err(NoWelcome::Refused(Box::new(Refusal::read(&body).unwrap()))),
            other => panic!("a hello was answered by a {} frame", other.name()),
        },
        Err(NoFrame::Gone) => Err(NoWelcome::Gone),
        Err(NoFrame::Late) => panic!("a hello was not answered within {PATIENCE:?}"),
    }
}

/// The server's answer to one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Ack(Ack),
    Refused(Box<Refusal>),
}

impl Answer {
    pub fn ack(self) -> Ack {
        match self {
            Self::Ack(ack) => ack,
            Self::Refused(refusal) => panic!("refused: {refusal:?}"),
        }
    }

    pub fn refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => *refusal,
            Self::Ack(ack) => panic!("acked: {ack:?}"),
        }
    }
}

/// A producer's connection without any cleverness.
pub struct RawProducer {
    pub raw: Raw,
    pub reply: HelloReply,
}

impl RawProducer {
    pub fn open(address: &str, pchannel: &str) -> Result<Self, NoWelcome> {
        let (raw, reply) = greet(address, &Hello::new("raw producer", Intent::Produce, pchannel))?;
        Ok(Self { raw, reply })
    }

    pub fn send(&mut self, correlation: u64, record: &[u8]) -> std::io::Result<()> {
        self.raw.send(FrameKind::Produce, correlation, record)
    }

    /// The next answer and what it answers.
    pub fn answer(&mut self, wait: Duration) -> Result<(u64, Answer), NoFrame> {
        let (header, body) = self.raw.frame(wait)?;
        let answer = match header.kind {
            FrameKind::Ack => Answer::Ack(Ack::read(&body).unwrap()),
            FrameKind::Refusal => Answer::Refused(Box::new(Refusal::read(&body).unwrap())),
            FrameKind::Goodbye => return Err(NoFrame::Gone),
            other => panic!("a producer got a {} frame", other.name()),
        };
        Ok((header.correlation, answer))
    }

    /// Sends a record and waits for its answer.
    pub fn ask(&mut self, record: &[u8]) -> Answer {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let correlation = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.send(correlation, record).unwrap();
        let (of, answer) = self.answer(PATIENCE).expect("an answer");
        assert_eq!(of, correlation, "an answer to something else: {answer:?}");
        answer
    }
}

/// A record of messages `(vchannel, type, body)`. Producer 0 asks for no dedupe.
pub fn record(
    pchannel: &str,
    producer: u64,
    epoch: u32,
    sequence: u64,
    messages: &[(&str, MessageType, &[u8])],
) -> Vec<u8> {
    let mut builder = BatchBuilder::new(pchannel, Limits::WIDEST).unwrap();
    for (vchannel, message_type, body) in messages {
        builder.push(vchannel, *message_type, [], body).unwrap();
    }
    let origin = Origin {
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(epoch),
        first_sequence: Sequence(sequence),
    };
    builder.finish(origin).unwrap().to_bytes()
}

/// A record of `bodies` on one vchannel, all inserts, without dedupe.
pub fn inserts(pchannel: &str, vchannel: &str, bodies: &[&[u8]]) -> Vec<u8> {
    let messages: Vec<_> = bodies
        .iter()
        .map(|body| (vchannel, MessageType::INSERT, *body))
        .collect();
    record(pchannel, 0, 0, 0, &messages)
}

/// A message as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    pub offset: u64,
    pub timetick: Timetick,
    pub vchannel: String,
    pub message_type: MessageType,
    pub properties: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// What a reader heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    Messages(Vec<Got>),
    Tick(Tick),
}

/// Why a reader heard nothing.
#[derive(Debug)]
pub enum Silence {
    Late,
    Gone,
    Refused(Box<Refusal>),
}

/// A reader that holds the server to its word: offsets grow (without a gap if nothing is filtered), timeticks grow, nothing at
/// or below a tick follows it, ticks grow. A breach panics.
pub struct RawReader {
    pub raw: Raw,
    pub reply: HelloReply,
    pub watch: Watch,
    pub grant: bool,
    pub delivered_bytes: u64,
    /// The last tick of this connection: a later one may begin below what an earlier one was told, but never go back.
    last_tick: Timetick,
}

/// What a reader knows; it outlives connections.
#[derive(Debug, Clone)]
pub struct Watch {
    pub next: u64,
    pub given: Timetick,
    pub ticked: Timetick,
    pub dense: bool,
}

impl RawReader {
    pub fn open(address: &str, pchannel: &str, start: Start) -> Result<Self, NoWelcome> {
        Self::open_with(address, pchannel, start, Filter::default(), 8 << 20)
    }

    pub fn open_with(
        address: &str,
        pchannel: &str,
        start: Start,
        filter: Filter,
        credit: u64,
    ) -> Result<Self, NoWelcome> {
        let dense = filter.is_open() && !matches!(start, Start::Timetick(_));
        let mut hello = Hello::new("raw reader", Intent::Read, pchannel);
        hello.read = Some(ReadRequest {
            start,
            filter,
            credit: Bytes(credit),
        });
        let (raw, reply) = greet(address, &hello)?;
        if let Start::Offset(offset) = start {
            assert_eq!(reply.start_offset, offset, "an offset start is taken as it is");
        }
        let watch = Watch {
            next: reply.start_offset.get(),
            given: Timetick::ZERO,
            ticked: Timetick::ZERO,
            dense,
        };
        Ok(Self {
            raw,
            reply,
            watch,
            grant: true,
            delivered_bytes: 0,
            last_tick: Timetick::ZERO,
        })
    }

    /// Goes on where `watch` stood, with all that it knows.
    pub fn resume(address: &str, pchannel: &str, watch: Watch) -> Result<Self, NoWelcome> {
        let mut reader = Self::open(address, pchannel, Start::Offset(Offset(watch.next)))?;
        reader.watch = watch;
        Ok(reader)
    }

    /// The next delivery or tick.
    pub fn next(&mut self, wait: Duration) -> Result<Heard, Silence> {
        let (header, body) = self.raw.frame(wait).map_err(|end| match end {
            NoFrame::Gone => Silence::Gone,
            NoFrame::Late => Silence::Late,
        })?;
        match header.kind {
            FrameKind::Deliver => {
                let bytes = (FRAME_HEADER_BYTES + body.len()) as u64;
                self.delivered_bytes += bytes;
                let messages = self.take(&body);
                if self.grant {
                    // A server that is going down does not hear it.
                    let _ = self.raw.send(FrameKind::Credit, 0, &bytes.to_le_bytes());
                }
                Ok(Heard::Messages(messages))
            }
            FrameKind::Tick => {
                let tick = Tick::read(&body).unwrap();
                let watch = &mut self.watch;
                let last = std::mem::replace(&mut self.last_tick, tick.timetick);
                assert!(tick.timetick >= last, "tick {} after tick {last}", tick.timetick);
                assert!(
                    tick.next_offset.get() >= watch.next,
                    "a tick went back to offset {}, {} was reached: {watch:?}",
                    tick.next_offset,
                    watch.next
                );
                if watch.dense {
                    assert_eq!(
                        tick.next_offset.get(),
                        watch.next,
                        "a tick jumped over messages: {watch:?}"
                    );
                }
                (watch.ticked, watch.next) = (watch.ticked.max(tick.timetick), tick.next_offset.get());
                Ok(Heard::Tick(tick))
            }
            FrameKind::Refusal => Err(Silence::Refused(Box::new(Refusal::read(&body).unwrap()))),
            FrameKind::Goodbye => Err(Silence::Gone),
            other => panic!("a reader got a {} frame", other.name()),
        }
    }

    fn take(&mut self, body: &[u8]) -> Vec<Got> {
        let batch = verify(body, Door::Storage, &Limits::WIDEST).expect("a delivery is a valid record");
        assert_eq!(batch.bytes().len(), body.len());
        let mut messages = Vec::new();
        for message in batch.messages() {
            let watch = &mut self.watch;
            let offset = message.offset.get();
            if watch.dense {
                assert_eq!(offset, watch.next, "a gap or a repeat: {watch:?}");
            } else {
                assert!(offset >= watch.next, "offset {offset} came again: {watch:?}");
            }
            assert!(
                message.timetick > watch.given && message.timetick > watch.ticked,
                "message {offset} at {} comes too late: {watch:?}",
                message.timetick
            );
            (watch.next, watch.given) = (offset + 1, message.timetick);
            messages.push(Got {
                offset,
                timetick: message.timetick,
                vchannel: message.vchannel.to_owned(),
                message_type: message.message_type,
                // The server never looks into properties, so wrongly written ones are the reader's to find.
                properties: message
                    .properties
                    .iter()
                    .map(|pair| {
                        pair.map_or_else(
                            |e| ("unreadable".to_owned(), e.to_string()),
                            |(k, v)| (k.to_owned(), v.to_owned()),
                        )
                    })
                    .collect(),
                body: message.body.to_vec(),
            });
        }
        messages
    }

    /// Reads until `count` messages came; panics if they do not within `wait`.
    pub fn collect(&mut self, count: usize, wait: Duration) -> Vec<Got> {
        let deadline = Instant::now() + wait;
        let mut all = Vec::new();
        while all.len() < count {
            match self.next(deadline.saturating_duration_since(Instant::now())) {
                Ok(Heard::Messages(messages)) => all.extend(messages),
                Ok(Heard::Tick(_)) => {}
                Err(end) => panic!("{} of {count} messages came, then {end:?}; {:?}", all.len(), self.watch),
            }
        }
        all
    }

    /// Waits for the next tick and drops messages before it.
    pub fn tick(&mut self, wait: Duration) -> Tick {
        let deadline = Instant::now() + wait;
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now())) {
                Ok(Heard::Tick(tick)) => return tick,
                Ok(Heard::Messages(_)) => {}
                Err(end) => panic!("no tick: {end:?}; {:?}", self.watch),
            }
        }
    }

    /// Everything that comes within `span`.
    pub fn listen(&mut self, span: Duration) -> Vec<Heard> {
        let deadline = Instant::now() + span;
        let mut heard = Vec::new();
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now())) {
                Ok(event) => heard.push(event),
                Err(Silence::Late) => return heard,
                Err(end) => panic!("the reader ended: {end:?}"),
            }
        }
    }

    /// Reads until the server says no.
    pub fn refusal(&mut self, wait: Duration) -> Refusal {
        let deadline = Instant::now() + wait;
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(Silence::Refused(refusal)) => return *refusal,
                Err(end) => panic!("no refusal but {end:?}"),
            }
        }
    }
}

/// One request of administration.
pub fn truncate(address: &str, pchannel: &str, upto: u64) -> Result<AdminReply, Refusal> {
    let (mut raw, _) = greet(address, &Hello::new("raw admin", Intent::Admin, pchannel)).map_err(NoWelcome::refusal)?;
    let request = AdminRequest::Truncate { upto: Offset(upto) };
    raw.send(FrameKind::AdminRequest, 7, &request.to_body()).unwrap();
    let (header, body) = raw.frame(PATIENCE).expect("an answer");
    assert_eq!(header.correlation, 7);
    match header.kind {
        FrameKind::AdminReply => Ok(AdminReply::read(&body).unwrap()),
        FrameKind::Refusal => Err(Refusal::read(&body).unwrap()),
        other => panic!("an admin request was answered by a {} frame", other.name()),
    }
}

/// The node's pchannels as its shards published them last.
pub fn list(address: &str) -> Vec<PchannelInfo> {
    let (mut raw, _) = greet(address, &Hello::new("raw admin", Intent::Admin, ""))
        .map_err(NoWelcome::refusal)
        .unwrap();
    raw.send(FrameKind::AdminRequest, 1, &AdminRequest::ListPchannels.to_body())
        .unwrap();
    let (_, body) = raw.frame(PATIENCE).expect("an answer");
    AdminReply::read(&body).unwrap().pchannels
}

/// Everything of a pchannel from the earliest kept message to the end as it is now.
pub fn read_all(address: &str, pchannel: &str) -> (u64, Vec<Got>) {
    let mut reader = RawReader::open(address, pchannel, Start::Earliest).unwrap();
    let (first, end) = (reader.reply.start_offset.get(), reader.reply.next_offset.get());
    let messages = reader.collect((end - first) as usize, PATIENCE * 6);
    (first, messages)
}

/// Asserts that a refusal has a code and names all of `words`.
pub fn assert_says(refusal: &Refusal, code: RefusalCode, words: &[&str]) {
    assert_eq!(refusal.code, code, "{refusal:?}");
    for word in words {
        assert!(
            refusal.message.contains(word),
            "{:?} does not name {word:?}",
            refusal.message
        );
    }
}
