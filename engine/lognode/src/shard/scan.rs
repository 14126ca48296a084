//! A reader's connection: from old log over the memory tail to live, filtered, with ticks all the way.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use backends::{
    block::{PlacedBlock, RecordEntry},
    local::LocalCursor,
    signal::Signal,
    wal::{Chunk, Wal},
};
use futures_lite::AsyncWriteExt;
use futures_util::{
    FutureExt,
    io::{ReadHalf, WriteHalf},
    select_biased,
};
use glommio::net::TcpStream;
use lognode_core::{Cursor, Step};
use wire_format::{
    Bytes, Offset, Timetick,
    batch::{Filter, Matched, Selection, SubsetWriter},
    frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, Tick, frame, read_credit},
    protocol::{ReadRequest, Refusal, RefusalCode, Start},
};

use super::{
    Shard,
    frames::{FrameEnd, FrameReader},
    pchannel::Pchannel,
    read_memory::{ReadMemory, ReadPlan, WANTED_PATIENCE},
    refusals,
};

/// What is collected before it is written to the socket.
const FLUSH_BYTES: usize = 128 << 10;
/// Records up to this size are copied into the output; larger ones are written from where they lie.
const COPY_BYTES: usize = 32 << 10;

/// Where a reader begins: its offset, and what of the first batches it does not want.
pub struct Beginning {
    /// First offset wanted.
    pub offset: Offset,
    /// The filter, with the start's timetick in it.
    pub filter: Filter,
}

/// Resolves a request's start against the log as it is now.
pub fn begin(pchannel: &Pchannel, request: &ReadRequest) -> Result<Beginning, Box<Refusal>> {
    let view = pchannel.view();
    let mut filter = request.filter.clone();
    let offset = match request.start {
        Start::Earliest => view.first_kept,
        Start::Latest => view.durable,
        Start::Offset(asked) if asked < view.first_kept => {
            return Err(Box::new(refusals::truncated(&pchannel.name, asked, view.first_kept)));
        }
        Start::Offset(asked) if asked > view.durable => {
            return Err(Box::new(refusals::beyond_end(&pchannel.name, asked, view.durable)));
        }
        Start::Offset(asked) => asked,
        Start::Timetick(timetick) => {
            filter.min_timetick = filter.min_timetick.max(timetick);
            pchannel.log.locate(timetick).min(view.durable)
        }
    };
    Ok(Beginning { offset, filter })
}

/// What the two halves of a connection share.
struct Inbound {
    granted: Cell<u64>,
    ended: RefCell<Option<FrameEnd>>,
    changed: Signal,
}

/// Serves one reader until either side ends.
pub async fn serve(
    shard: Rc<Shard>,
    pchannel: Rc<Pchannel>,
    beginning: Beginning,
    credit: Bytes,
    input: FrameReader<ReadHalf<TcpStream>>,
    output: WriteHalf<TcpStream>,
) {
    let inbound = Rc::new(Inbound {
        granted: Cell::new(credit.get()),
        ended: RefCell::default(),
        changed: Signal::default(),
    });
    let reading = glommio::spawn_local(receive(inbound.clone(), input)).detach();
    shard.listen(&pchannel, 1);
    let copies = !beginning.filter.is_open();
    let mut scan = Scan {
        cursor: Cursor::new(beginning.offset),
        log: None,
        filter: beginning.filter,
        from: beginning.offset,
        selection: Selection::default(),
        subset: SubsetWriter::default(),
        memory: ReadMemory::new(shard.memory.clone(), copies),
        out: Vec::new(),
        output,
        shard: shard.clone(),
        pchannel: pchannel.clone(),
    };
    scan.run(&inbound).await;
    // The peer hears the end of stream; closing may fail if it is gone already.
    let _ = scan.output.close().await;
    shard.listen(&pchannel, -1);
    reading.cancel();
    reading.await;
}

async fn receive(inbound: Rc<Inbound>, mut input: FrameReader<ReadHalf<TcpStream>>) {
    let end = loop {
        let header = match input.next().await {
            Ok(header) => header,
            Err(end) => break end,
        };
        if header.kind != FrameKind::Credit {
            let detail = format!(
                "a {} frame came on a reader's connection; only credit frames may",
                header.kind.name()
            );
            break FrameEnd::Refused(Box::new(Refusal::new(RefusalCode::BadRequest, detail)));
        }
        match read_credit(input.body(&header)) {
            Ok(bytes) => inbound.granted.set(inbound.granted.get().saturating_add(bytes.get())),
            Err(error) => break error.into(),
        }
        input.consume(&header);
        inbound.changed.notify();
    };
    *inbound.ended.borrow_mut() = Some(end);
    inbound.changed.notify();
}

/// Other readers hold the memory that is needed.
struct NoMemory;

/// One scan. Nothing of it outlives the connection.
struct Scan {
    cursor: Cursor,
    log: Option<LocalCursor>,
    filter: Filter,
    from: Offset,
    selection: Selection,
    subset: SubsetWriter,
    memory: ReadMemory,
    out: Vec<u8>,
    output: WriteHalf<TcpStream>,
    shard: Rc<Shard>,
    pchannel: Rc<Pchannel>,
}

impl Scan {
    async fn run(&mut self, inbound: &Inbound) {
        loop {
            let (credits, changed) = (inbound.changed.epoch(), self.pchannel.changed.epoch());
            self.cursor.grant(Bytes(inbound.granted.take()));
            if let Some(end) = inbound.ended.take() {
                if let FrameEnd::Refused(refusal) = end {
                    self.refuse(&refusal).await;
                }
                return;
            }
            if self.shard.is_stopping() {
                self.out.extend_from_slice(&frame(FrameKind::Goodbye, 0, &[]));
                self.flush().await;
                return;
            }
            if let Some(refusal) = self.pchannel.closed() {
                self.refuse(&refusal).await;
                return;
            }
            let going = match self.cursor.step(self.shard.boot_now(), &self.pchannel.view()) {
                Step::Truncated { first_kept } => {
                    self.refuse(&refusals::truncated(
                        &self.pchannel.name,
                        self.cursor.next(),
                        first_kept,
                    ))
                    .await;
                    false
                }
                Step::Tick(timetick) => {
                    self.tick(timetick);
                    true
                }
                Step::FromTail { at } => match self.take_tail(at) {
                    Ok(Some(block)) => self.deliver_tail(block).await,
                    // Evicted between the view and now: the next step reads from the log.
                    Ok(None) => true,
                    Err(NoMemory) => self.wait_for_memory(inbound, (credits, changed)).await,
                },
                Step::FromLog { at } => match self.plan_log(at) {
                    Ok(plan) => self.deliver_log(at, plan).await,
                    Err(NoMemory) => self.wait_for_memory(inbound, (credits, changed)).await,
                },
                Step::Wait => self.wait(inbound, (credits, changed)).await,
            };
            if !going {
                return;
            }
        }
    }

    fn tick(&mut self, timetick: Timetick) {
        let tick = Tick {
            timetick,
            next_offset: self.cursor.next(),
        };
        self.out
            .extend_from_slice(&FrameHeader::new(FrameKind::Tick, Tick::BYTES, 0).to_bytes());
        self.out.extend_from_slice(&tick.to_bytes());
        self.shard.stats.ticked();
    }

    /// Nothing to send: waits for a change of the pchannel or from the peer. Memory that others want is let go.
    async fn wait(&mut self, inbound: &Inbound, (credits, changed): (u64, u64)) -> bool {
        let wanted = self.shard.memory.reading_wanted.epoch();
        if !self.flush().await {
            return false;
        }
        // What is read ahead of a reader without credit is kept for it, unless others can use the memory.
        if self.log.is_none() || self.memory.is_wanted() {
            self.log = None;
            self.memory.release();
            self.out = Vec::new();
        }
        select_biased! {
            () = self.pchannel.changed.changed(changed).fuse() => {}
            () = inbound.changed.changed(credits).fuse() => {}
            () = self.shard.memory.reading_wanted.changed(wanted).fuse() => {}
        }
        true
    }

    /// No memory to send anything: other readers hold it. Ticks go on.
    async fn wait_for_memory(&mut self, inbound: &Inbound, (credits, changed): (u64, u64)) -> bool {
        let freed = self.shard.memory.freed.epoch();
        self.log = None;
        if !self.flush().await {
            return false;
        }
        self.memory.release();
        select_biased! {
            () = self.shard.memory.wait_to_read(freed).fuse() => {}
            () = self.pchannel.changed.changed(changed).fuse() => {}
            () = inbound.changed.changed(credits).fuse() => {}
        }
        true
    }

    /// The block of the tail that holds `at`, with memory to send from it.
    fn take_tail(&mut self, at: Offset) -> Result<Option<Rc<PlacedBlock>>, NoMemory> {
        let Some(block) = self.pchannel.find(at) else {
            return Ok(None);
        };
        // It may fall out of the tail while it is sent, and is this reader's then.
        let bytes = self.memory.for_chunk(block.memory());
        self.memory.hold(bytes).then_some(Some(block)).ok_or(NoMemory)
    }

    async fn deliver_tail(&mut self, block: Rc<PlacedBlock>) -> bool {
        self.log = None;
        let durable = self.pchannel.durable();
        self.deliver(&Chunk::Memory(block), durable).await
    }

    /// How to read from the log at `at`, with memory to do so.
    fn plan_log(&mut self, at: Offset) -> Result<ReadPlan, NoMemory> {
        if self.log.as_ref().is_some_and(|log| log.next_offset() != at) {
            self.log = None;
        }
        let plan = self.memory.plan(self.shard.config.log.read_ahead_bytes as usize);
        self.memory.hold(plan.memory).then_some(plan).ok_or(NoMemory)
    }

    async fn deliver_log(&mut self, at: Offset, plan: ReadPlan) -> bool {
        if !self.flush().await {
            return false;
        }
        let durable = self.pchannel.durable();
        let mut log = match self.log.take() {
            Some(log) => log,
            None => match self.pchannel.log.cursor(at) {
                Ok(log) => log,
                Err(error) => {
                    self.refuse(&refusals::of_log(&self.pchannel.name, &error)).await;
                    return false;
                }
            },
        };
        log.read_at_most(plan.window, plan.ahead);
        match self.pchannel.log.read(&mut log, durable).await {
            Ok(Some(chunk)) => {
                let bytes = chunk.bytes().len();
                self.memory.learn(&plan, bytes);
                // A block larger than all before: read again when there is memory for it.
                if self.memory.for_chunk(bytes) > plan.memory && !self.memory.hold(self.memory.for_chunk(bytes)) {
                    return true;
                }
                self.log = Some(log);
                self.shard.stats.read_from_log(chunk.bytes().len());
                self.deliver(&chunk, durable).await
            }
            Ok(None) => true,
            Err(error) => {
                self.shard.stats.refused();
                self.refuse(&refusals::of_log(&self.pchannel.name, &error)).await;
                false
            }
        }
    }

    /// Sends what of a chunk is wanted. Stops early when credits run out: the cursor then stands between two records.
    async fn deliver(&mut self, chunk: &Chunk, durable: Offset) -> bool {
        let bytes = chunk.bytes();
        for entry in chunk.entries() {
            if entry.next_offset <= self.cursor.next() || entry.next_offset > durable {
                continue;
            }
            if self.cursor.credits() <= 0 {
                return true;
            }
            if !self.deliver_record(bytes, entry).await {
                return false;
            }
        }
        if self.out.len() >= FLUSH_BYTES {
            return self.flush().await;
        }
        self.shard.turn().await;
        true
    }

    async fn deliver_record(&mut self, bytes: &[u8], entry: &RecordEntry) -> bool {
        let batch = entry.view(bytes);
        let matched = self.filter.select(&batch, &mut self.selection);
        let before = self.out.len();
        let inside = self.from.get().saturating_sub(entry.base_offset.get());
        let sent = if inside > 0 && matched != Matched::Nothing {
            // The reader begins in the middle of this batch.
            let wanted: Vec<u32> = match matched {
                Matched::Some => self.selection.indices().to_vec(),
                _ => (0..batch.count()).collect(),
            };
            let wanted: Vec<u32> = wanted
                .into_iter()
                .filter(|&i| u64::from(batch.header(i).offset_delta()) >= inside)
                .collect();
            if wanted.is_empty() {
                0
            } else {
                self.push_subset(&batch, Some(&wanted))
            }
        } else {
            match matched {
                Matched::Nothing => 0,
                Matched::Some => self.push_subset(&batch, None),
                Matched::Everything => {
                    let record = batch.bytes();
                    let header = FrameHeader::new(FrameKind::Deliver, record.len(), 0).to_bytes();
                    self.out.extend_from_slice(&header);
                    if record.len() <= COPY_BYTES {
                        self.out.extend_from_slice(record);
                    } else if !(self.flush().await && self.send(record).await) {
                        return false;
                    }
                    FRAME_HEADER_BYTES + record.len()
                }
            }
        };
        let moved = self
            .cursor
            .delivered(entry.next_offset, entry.max_timetick, Bytes(sent as u64));
        if let Err(error) = moved {
            self.out.truncate(before);
            self.refuse(&refusals::log_failed(&self.pchannel.name, &error.to_string()))
                .await;
            return false;
        }
        if sent > 0 {
            self.shard.stats.delivered(sent);
        }
        self.out.len() < FLUSH_BYTES || self.flush().await
    }

    /// Appends a frame with some messages of a batch; returns its length.
    fn push_subset(&mut self, batch: &wire_format::batch::BatchView<'_>, wanted: Option<&[u32]>) -> usize {
        let at = self.out.len();
        self.out.resize(at + FRAME_HEADER_BYTES, 0);
        self.subset
            .write(batch, wanted.unwrap_or(self.selection.indices()), &mut self.out);
        let length = self.out.len() - at - FRAME_HEADER_BYTES;
        let header = FrameHeader::new(FrameKind::Deliver, length, 0).to_bytes();
        self.out[at..at + FRAME_HEADER_BYTES].copy_from_slice(&header);
        FRAME_HEADER_BYTES + length
    }

    /// Writes `bytes`; gives the peer up sooner if others want the memory that is held for it.
    async fn send(&mut self, bytes: &[u8]) -> bool {
        let memory = &self.memory;
        let sent = self
            .shard
            .write_while(&mut self.output, bytes, WANTED_PATIENCE, || !memory.is_wanted());
        sent.await
    }

    async fn flush(&mut self) -> bool {
        if self.out.is_empty() {
            return true;
        }
        let out = std::mem::take(&mut self.out);
        let sent = self.send(&out).await;
        self.out = out;
        self.out.clear();
        if self.out.capacity() > 4 * FLUSH_BYTES {
            self.out.shrink_to(FLUSH_BYTES);
        }
        sent
    }

    async fn refuse(&mut self, refusal: &Refusal) {
        self.out
            .extend_from_slice(&frame(FrameKind::Refusal, 0, &refusal.to_body()));
        self.flush().await;
    }
}
