//! A scripted peer: speaks the protocol, or breaks it, exactly as a test says. One thread per connection.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lognode_client::{ClientConfig, Limits, MessageType, Offset, ProducerConfig, Term, Timetick};
use wire_format::{
    batch::{BatchBuilder, Door, Meta, Origin, Stamp, stamp, verify},
    frame::{Ack, FrameHeader, FrameKind, Tick, frame},
    protocol::{Hello, HelloReply, Refusal, RefusalCode},
};

/// How long a test may take that must end "in bounded time" with the short timeouts below.
pub const BOUND: Duration = Duration::from_secs(5);

/// Listens until the test ends.
pub struct Peer {
    pub address: String,
    connections: Arc<AtomicUsize>,
}

impl Peer {
    /// `script` runs for each connection, with its number from 0 on.
    pub fn new(script: impl Fn(usize, Conn) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        let script = Arc::new(script);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let number = counter.fetch_add(1, Ordering::SeqCst);
                let script = Arc::clone(&script);
                thread::spawn(move || {
                    script(
                        number,
                        Conn {
                            stream: stream.unwrap(),
                        },
                    )
                });
            }
        });
        Self { address, connections }
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Settings with short timeouts.
    pub fn client(&self) -> ClientConfig {
        ClientConfig::new(&self.address)
            .connect_timeout(Duration::from_millis(300))
            .request_deadline(Duration::from_millis(600))
            .backoff(Duration::from_millis(5), Duration::from_millis(40))
    }
}

/// The server's end of a connection. Reading and writing give `None` or nothing once the client is gone.
pub struct Conn {
    pub stream: TcpStream,
}

impl Conn {
    pub fn frame(&mut self) -> Option<(FrameHeader, Vec<u8>)> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).ok()?;
        let header = FrameHeader::read(&head, &Limits::WIDEST).expect("the client sends valid frames");
        let mut body = vec![0; header.length as usize];
        self.stream.read_exact(&mut body).ok()?;
        Some((header, body))
    }

    /// The next frame of this kind, whatever comes before it.
    pub fn frame_of(&mut self, kind: FrameKind) -> Option<(FrameHeader, Vec<u8>)> {
        loop {
            let (header, body) = self.frame()?;
            if header.kind == kind {
                return Some((header, body));
            }
        }
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn send(&mut self, kind: FrameKind, correlation: u64, body: &[u8]) {
        self.raw(&frame(kind, correlation, body));
    }

    pub fn refuse(&mut self, correlation: u64, refusal: &Refusal) {
        self.send(FrameKind::Refusal, correlation, &refusal.to_body());
    }

    pub fn tick(&mut self, timetick: u64, next_offset: u64) {
        let tick = Tick {
            timetick: Timetick(timetick),
            next_offset: Offset(next_offset),
        };
        self.send(FrameKind::Tick, 0, &tick.to_bytes());
    }

    /// Reads the hello without answering.
    pub fn hello(&mut self) -> Option<Hello> {
        let (header, body) = self.frame()?;
        assert_eq!(header.kind, FrameKind::Hello);
        Some(Hello::read(&body).unwrap())
    }

    /// Reads the hello and accepts it.
    pub fn welcome(&mut self) -> Option<Hello> {
        self.welcome_with(|_| {})
    }

    pub fn welcome_with(&mut self, change: impl FnOnce(&mut HelloReply)) -> Option<Hello> {
        let hello = self.hello()?;
        let mut reply = HelloReply {
            version: 1,
            server_name: "peer".into(),
            ..HelloReply::default()
        };
        change(&mut reply);
        self.send(FrameKind::HelloReply, 0, &reply.to_body());
        Some(hello)
    }

    /// Answers produce frames by the rules of `store` until the client goes.
    pub fn serve(&mut self, store: &Store) {
        while let Some((header, body)) = self.frame_of(FrameKind::Produce) {
            let answer = store.0.lock().unwrap().take(&body);
            match answer {
                Ok(ack) => self.send(FrameKind::Ack, header.correlation, &ack.to_bytes()),
                Err(refusal) => self.refuse(header.correlation, &refusal),
            }
        }
    }

    /// Holds the connection open and says nothing more, until the client goes.
    pub fn hang(mut self) {
        let mut sink = [0; 4096];
        while matches!(self.stream.read(&mut sink), Ok(n) if n > 0) {}
    }

    /// Holds the connection open and does not even read.
    pub fn freeze(self) {
        thread::sleep(Duration::from_secs(60));
    }

    pub fn close(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A log of one producer's batches, shared by a peer's connections.
#[derive(Clone, Default)]
pub struct Store(pub Arc<Mutex<Stored>>);

#[derive(Default)]
pub struct Stored {
    pub bodies: Vec<Vec<u8>>,
    pub origins: Vec<Origin>,
    batches: Vec<(Origin, u32, u64)>,
    next_offset: u64,
}

impl Stored {
    pub fn take(&mut self, record: &[u8]) -> Result<Ack, Box<Refusal>> {
        let view = verify(record, Door::Producer, &Limits::WIDEST).expect("the client sends valid records");
        let meta = view.meta();
        let origin = Origin {
            producer_id: meta.producer_id,
            producer_epoch: meta.producer_epoch,
            first_sequence: meta.first_sequence,
        };
        let ack = |offset, duplicate| Ack {
            base_offset: Offset(offset),
            first_timetick: Timetick(1_000 + offset),
            count: view.count(),
            duplicate,
        };
        if let Some(&(_, count, offset)) = self.batches.iter().find(|(known, ..)| *known == origin) {
            assert_eq!(count, view.count());
            return Ok(ack(offset, true));
        }
        let expected = match self.batches.last() {
            Some((last, count, _)) if last.producer_epoch == origin.producer_epoch => {
                last.first_sequence.plus(u64::from(*count))
            }
            _ => Default::default(),
        };
        if origin.first_sequence != expected {
            let mut refusal = Refusal::new(RefusalCode::SequenceGap, "a batch is missing");
            refusal.expected_sequence = expected;
            return Err(Box::new(refusal));
        }
        let offset = self.next_offset;
        self.next_offset += u64::from(view.count());
        self.batches.push((origin, view.count(), offset));
        self.origins.push(origin);
        self.bodies.extend(view.messages().map(|m| m.body.to_vec()));
        Ok(ack(offset, false))
    }
}

/// A record as a server stores it: message `i` has the body `i` places after `base_offset` as text.
pub fn record(base_offset: u64, first_timetick: u64, count: u64) -> Vec<u8> {
    let mut builder = BatchBuilder::new("orders", Limits::default()).unwrap();
    for offset in base_offset..base_offset + count {
        let body = offset.to_string();
        let vchannel = ["even", "odd"][(offset % 2) as usize];
        let pairs = [("offset", body.as_str())];
        builder
            .push(vchannel, MessageType::INSERT, pairs, body.as_bytes())
            .unwrap();
    }
    let mut bytes = builder.finish(Origin::default()).unwrap().to_bytes();
    let layout = verify(&bytes, Door::Producer, &Limits::default()).unwrap().layout();
    let place = Stamp {
        base_offset: Offset(base_offset),
        term: Term(1),
        first_timetick: Timetick(first_timetick),
        promised_timetick: Timetick(first_timetick - 1),
    };
    stamp(&mut bytes, &layout, &place);
    bytes
}

pub fn meta(record: &[u8]) -> Meta {
    verify(record, Door::Storage, &Limits::default()).unwrap().meta()
}

/// A producer configuration whose timeouts suit a test.
pub fn quick() -> ProducerConfig {
    ProducerConfig::default().stall_timeout(Duration::from_millis(150))
}

/// Runs `work` and fails the test if it takes longer than `bound`.
pub async fn within<T>(bound: Duration, work: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    match tokio::time::timeout(bound, work).await {
        Ok(done) => done,
        Err(_) => panic!("still not done after {:?}", begun.elapsed()),
    }
}
