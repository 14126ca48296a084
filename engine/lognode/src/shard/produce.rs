//! A producer's connection: frames in, acks out, in order.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    time::Duration,
};

use backends::signal::Signal;
use futures_lite::AsyncWriteExt;
use futures_util::io::{ReadHalf, WriteHalf};
use glommio::{net::TcpStream, timer::sleep};
use lognode_core::Admission;
use wire_format::{
    Millis, Offset,
    batch::{Door, verify},
    frame::{Ack, FrameHeader, FrameKind, frame},
    protocol::{Refusal, RefusalCode},
};

use super::{
    Shard,
    ack_queue::Acker,
    frames::{FrameEnd, FrameReader},
    pchannel::{self, Appended, Pchannel},
    refusals,
};

/// Answers that may wait on one connection; beyond that it is not read from.
const ANSWERS_MAX: usize = 4_096;
/// Bytes taken from one connection before others and the disk get a turn; a connection with nothing left to take gives it anyway.
const TURN_BYTES: usize = 256 << 10;
/// Empty frames that count as much.
const TURN_FRAMES: usize = 256;

/// What the peer will hear, in the order of its requests.
enum Answer {
    /// An ack, once everything below the offset is durable; a refusal if its place was taken back since.
    Ack {
        correlation: u64,
        ack: Ack,
        needs: Offset,
        retreats: usize,
    },
    /// A refusal of one request, or with correlation 0 of the connection.
    Refuse { correlation: u64, refusal: Box<Refusal> },
}

/// What both halves of a connection share.
struct Link {
    answers: RefCell<VecDeque<Answer>>,
    /// Woken when the first answer may be due, nothing more will come, or all is off.
    acker: Rc<Acker>,
    /// Told when answers went out.
    sent: Signal,
    input_ended: Cell<bool>,
}

impl Link {
    /// Adds an answer, and sees to it that it goes out when it is due.
    fn push(&self, pchannel: &Pchannel, answer: Answer) {
        let is_first = self.answers.borrow().is_empty();
        match &answer {
            // Behind others its time comes with theirs or after.
            _ if !is_first => {}
            Answer::Ack { needs, .. } if *needs > pchannel.durable() => pchannel.acks.wait(*needs, &self.acker),
            _ => self.acker.wake.notify(),
        }
        self.answers.borrow_mut().push_back(answer);
    }
}

/// Serves one producer until either side ends.
pub async fn serve(
    shard: Rc<Shard>,
    pchannel: Rc<Pchannel>,
    input: FrameReader<ReadHalf<TcpStream>>,
    output: WriteHalf<TcpStream>,
) {
    let link = Rc::new(Link {
        answers: RefCell::default(),
        acker: pchannel.acks.join(),
        sent: Signal::default(),
        input_ended: Cell::new(false),
    });
    let reading = glommio::spawn_local(receive(shard.clone(), pchannel.clone(), link.clone(), input)).detach();
    answer(&shard, &pchannel, &link, output).await;
    // The output ended first or last: either way nothing more may be taken in.
    reading.cancel();
    reading.await;
    pchannel.acks.leave(&link.acker);
}

async fn receive(
    shard: Rc<Shard>,
    pchannel: Rc<Pchannel>,
    link: Rc<Link>,
    mut input: FrameReader<ReadHalf<TcpStream>>,
) {
    let mut turn = 0;
    let end = loop {
        let header = match input.next().await {
            Ok(header) => header,
            Err(end) => break end,
        };
        if header.kind != FrameKind::Produce {
            let detail = format!(
                "a {} frame came on a producer's connection; only produce frames may",
                header.kind.name()
            );
            break FrameEnd::Refused(Box::new(Refusal::new(RefusalCode::BadRequest, detail)));
        }
        let answer = take(&shard, &pchannel, &header, &input).await;
        let fatal = matches!(&answer, Answer::Refuse { refusal, .. } if ends_connection(refusal));
        input.consume(&header);
        link.push(&pchannel, answer);
        if fatal {
            break FrameEnd::Gone;
        }
        wait_for_answers(&link).await;
        turn += TURN_BYTES / TURN_FRAMES + header.length as usize;
        if turn >= TURN_BYTES {
            turn = 0;
            shard.turn().await;
        }
    };
    if let FrameEnd::Refused(refusal) = end {
        shard.stats.refused();
        let correlation = 0;
        link.answers
            .borrow_mut()
            .push_back(Answer::Refuse { correlation, refusal });
    }
    link.input_ended.set(true);
    link.acker.wake.notify();
}

async fn wait_for_answers(link: &Link) {
    loop {
        let seen = link.sent.epoch();
        if link.answers.borrow().len() < ANSWERS_MAX {
            return;
        }
        link.sent.changed(seen).await;
    }
}

/// After these the connection has no future.
fn ends_connection(refusal: &Refusal) -> bool {
    matches!(refusal.code, RefusalCode::LogFailed | RefusalCode::ShuttingDown)
}

/// Takes one batch: check, quota, place. Waits for memory, so that a full node is a slow one.
async fn take(
    shard: &Shard,
    pchannel: &Rc<Pchannel>,
    header: &FrameHeader,
    input: &FrameReader<ReadHalf<TcpStream>>,
) -> Answer {
    let correlation = header.correlation;
    let refuse = |refusal: Refusal| {
        shard.stats.refused();
        Answer::Refuse {
            correlation,
            refusal: Box::new(refusal),
        }
    };
    if shard.is_stopping() {
        return refuse(pchannel::shutting_down());
    }
    shard.stir();
    let body = input.body(header);
    let batch = match verify(body, Door::Producer, &shard.limits) {
        Ok(batch) => batch,
        Err(error) => return refuse(refusals::of_format(&error)),
    };
    if batch.bytes().len() != body.len() {
        let detail = format!("the frame has {} bytes, its batch {}", body.len(), batch.bytes().len());
        return refuse(Refusal::new(RefusalCode::BadRequest, detail));
    }
    if batch.pchannel() != pchannel.name {
        let detail = format!(
            "the batch is for pchannel {}, the connection for {}",
            batch.pchannel(),
            pchannel.name
        );
        return refuse(Refusal::new(RefusalCode::BadRequest, detail));
    }
    match pchannel.admit(shard.boot_now(), body.len()) {
        Admission::Now => {}
        Admission::Delay(Millis(ms)) => sleep(Duration::from_millis(ms)).await,
        Admission::Refused(limited) => return refuse(refusals::of_quota(&limited)),
    }
    loop {
        let seen = shard.memory.freed.epoch();
        match pchannel.append(shard.now(), &batch) {
            Ok(Appended::Taken {
                position,
                retreats,
                duplicate,
            }) => {
                shard.stats.appended(position.count, body.len(), duplicate);
                let ack = Ack {
                    base_offset: position.base_offset,
                    first_timetick: position.first_timetick,
                    count: position.count,
                    duplicate,
                };
                return Answer::Ack {
                    correlation,
                    ack,
                    needs: position.next_offset(),
                    retreats,
                };
            }
            Ok(Appended::NoRoom) => shard.memory.wait(seen).await,
            Err(refusal) => return refuse(*refusal),
        }
    }
}

/// Sends answers as they come due.
async fn answer(shard: &Rc<Shard>, pchannel: &Rc<Pchannel>, link: &Link, mut output: WriteHalf<TcpStream>) {
    let mut out = Vec::with_capacity(4 << 10);
    loop {
        let seen = link.acker.wake.epoch();
        let ended = collect(shard, pchannel, link, &mut out);
        if !out.is_empty() {
            let sent = shard.write_bounded(&mut output, &out).await;
            out.clear();
            link.sent.notify();
            if !sent {
                return;
            }
        }
        if ended {
            // The peer hears the end of stream; closing may fail if it is gone already.
            let _ = output.close().await;
            return;
        }
        link.acker.wake.changed(seen).await;
    }
}

/// Moves due answers to `out`, and has the connection woken for the first that is not. `true`: nothing will follow.
fn collect(shard: &Shard, pchannel: &Pchannel, link: &Link, out: &mut Vec<u8>) -> bool {
    let durable = pchannel.durable();
    let closed = pchannel.closed();
    let mut answers = link.answers.borrow_mut();
    loop {
        match answers.front() {
            Some(Answer::Ack {
                correlation,
                needs,
                retreats,
                ..
            }) if pchannel.is_taken_back(*retreats, *needs) => {
                shard.stats.refused();
                let refusal = refusals::not_stored(&pchannel.name);
                out.extend_from_slice(&frame(FrameKind::Refusal, *correlation, &refusal.to_body()));
            }
            Some(Answer::Ack { needs, .. }) if *needs > durable => {
                let Some(refusal) = &closed else {
                    pchannel.acks.wait(*needs, &link.acker);
                    return false;
                };
                // What is not durable will not be acked in this life.
                out.extend_from_slice(&frame(FrameKind::Refusal, 0, &refusal.to_body()));
                return true;
            }
            Some(Answer::Ack { correlation, ack, .. }) => {
                shard.stats.acked(ack.count);
                out.extend_from_slice(&FrameHeader::new(FrameKind::Ack, Ack::BYTES, *correlation).to_bytes());
                out.extend_from_slice(&ack.to_bytes());
            }
            Some(Answer::Refuse { correlation, refusal }) => {
                out.extend_from_slice(&frame(FrameKind::Refusal, *correlation, &refusal.to_body()));
            }
            None => break,
        }
        answers.pop_front();
    }
    if shard.is_stopping() {
        out.extend_from_slice(&frame(FrameKind::Goodbye, 0, &[]));
        return true;
    }
    if let Some(refusal) = closed {
        out.extend_from_slice(&frame(FrameKind::Refusal, 0, &refusal.to_body()));
        return true;
    }
    link.input_ended.get()
}
