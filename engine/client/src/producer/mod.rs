//! Sending: what callers touch. The work is done by one driver task per producer.

mod batch;
mod driver;
mod intake;
mod load;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, Semaphore},
    task::JoinHandle,
    time::timeout_at,
};
use wire_format::{
    Limits, ProducerEpoch, ProducerId,
    batch::BatchBuilder,
    frame::Ack as BatchAck,
    limits::{check_pchannel_name, check_vchannel_name},
    protocol::{Hello, HelloReply, Intent},
};

pub use self::batch::Batch;
use self::{driver::Driver, intake::Intake};
use crate::{
    config::{ClientConfig, FAR, ProducerConfig},
    connection::{self, check_address},
    error::{Error, Outcome, Result},
    message::{Ack, Message},
    pending::{Pending, PendingBatch},
};

/// What a batch is charged at least: what the producer keeps beside its bytes.
const CHARGE_MIN: usize = 1 << 10;

/// Sends messages to one pchannel: batched, pipelined, each stored exactly once however often the connection breaks.
///
/// All methods take `&self`; put it into an `Arc` to send from many tasks. Dropping it lets the batches already taken run on in
/// the background until they are answered or their deadlines are over, at most; [`Producer::close`] waits for them.
///
/// # Order
/// Messages are stored in the order in which [`Producer::enqueue`] (or the first poll of [`Producer::send`]) took them.
///
/// # Deadlines
/// Each call has one, counted from its first poll. When it is over the call fails with [`Error::DeadlineExceeded`], and its
/// [`Outcome`] says what is known:
/// - [`Outcome::NotStored`]: it was never sent, or each try was refused. The batch is taken out; it will never be stored.
/// - [`Outcome::Unknown`]: it was sent and not answered. The batch stays at its place at the head of the pipeline and is retried
///   in the background until the server answers, so that nothing overtakes it and it is stored at most once. It goes on
///   taking its share of `max_in_flight_bytes` until then: with a server that stays away, later calls fail as `NotStored`.
///
/// Batches share the earliest deadline of their messages.
pub struct Producer {
    shared: Arc<Shared>,
    driver: Option<JoinHandle<()>>,
}

/// What callers and the driver share.
struct Shared {
    pchannel: Arc<str>,
    client: Arc<ClientConfig>,
    config: ProducerConfig,
    deadline: Duration,
    /// Bytes that may still be taken from callers.
    room: Semaphore,
    room_total: usize,
    wake: Notify,
    intake: Mutex<Intake>,
}

impl Shared {
    fn intake(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The smaller one of the caller's limits and the server's.
    fn limits_with(&self, reply: &HelloReply) -> Limits {
        let own = self.config.limits;
        // A server that names no limit has none to name.
        let least = |own: u32, server: u32| if server == 0 { own } else { own.min(server) };
        Limits {
            batch_bytes: least(own.batch_bytes, reply.max_batch_bytes),
            messages: least(own.messages, reply.max_batch_messages),
            ..own
        }
    }
}

impl Producer {
    /// Connects with the default [`ProducerConfig`].
    pub async fn connect(config: ClientConfig, pchannel: &str) -> Result<Self> {
        Self::connect_with(config, pchannel, ProducerConfig::default()).await
    }

    /// Connects to the owner of `pchannel`. One try, within `connect_timeout`, so that a wrong address is told at once; a
    /// connection that breaks later is opened again by itself.
    pub async fn connect_with(client: ClientConfig, pchannel: &str, mut config: ProducerConfig) -> Result<Self> {
        check_address(&client.server)?;
        check_pchannel_name(pchannel).map_err(Error::InvalidMessage)?;
        check_config(&config)?;
        config.linger = config.linger.min(FAR);
        config.stall_timeout = config.stall_timeout.min(FAR);
        let client = Arc::new(client);
        let hello = Arc::new(Hello::new(&client.client_name, Intent::Produce, pchannel));
        let first = client.server.clone();
        let connection = connection::connect(Arc::clone(&client), Arc::clone(&hello), first).await?;
        let pchannel: Arc<str> = pchannel.into();
        let room_total = config.max_in_flight_bytes;
        let intake = Intake::new(Arc::clone(&pchannel), config.limits, config.batch_bytes);
        let identity = config
            .identity
            .unwrap_or_else(|| (ProducerId(rand::random_range(1..=u64::MAX)), ProducerEpoch::ZERO));
        let shared = Arc::new(Shared {
            pchannel,
            deadline: config.deadline.unwrap_or(client.request_deadline).min(FAR),
            room: Semaphore::new(room_total),
            room_total,
            wake: Notify::new(),
            intake: Mutex::new(intake),
            client,
            config,
        });
        shared.intake().set_limits(shared.limits_with(&connection.reply));
        let driver = Driver::new(Arc::clone(&shared), hello, identity, connection);
        Ok(Self {
            shared,
            driver: Some(tokio::spawn(driver.run())),
        })
    }

    /// Sends one message; returns when it is durable. Many at once make a batch: call it from many tasks, or use
    /// [`Producer::enqueue`].
    pub async fn send(&self, message: Message) -> Result<Ack> {
        self.enqueue(message).await?.await
    }

    /// Takes one message; the answer comes with the future returned. Waits while there is no room for it.
    pub async fn enqueue(&self, message: Message) -> Result<Pending> {
        let now = Instant::now();
        let deadline = now + self.shared.deadline;
        let cost = BatchBuilder::cost_bytes(&message.vchannel, message.properties_bytes(), message.body.len());
        self.check_size(&message, cost)?;
        let charged = self.take_room(cost, deadline).await?;
        let added = {
            let mut intake = self.shared.intake();
            match &intake.ended {
                Some(why) => Err(self.ended(why)),
                None => intake.add(&message, charged, now, deadline),
            }
        };
        match added {
            Ok((pending, look)) => {
                if look {
                    self.shared.wake.notify_one();
                }
                Ok(pending)
            }
            Err(error) => {
                self.shared.room.add_permits(charged);
                Err(error)
            }
        }
    }

    /// An empty batch for [`Producer::send_batch`].
    pub fn batch(&self) -> Result<Batch> {
        Ok(Batch {
            pchannel: Arc::clone(&self.shared.pchannel),
            builder: self.shared.intake().builder()?,
        })
    }

    /// Sends a whole batch; returns when it is durable. All of it is stored in one piece, or nothing.
    pub async fn send_batch(&self, batch: Batch) -> Result<BatchAck> {
        self.enqueue_batch(batch).await?.await
    }

    /// Sends messages as one batch; returns when they are durable. All are stored in one piece, or none.
    pub async fn send_messages(&self, messages: &[Message]) -> Result<BatchAck> {
        let mut batch = self.batch()?;
        messages.iter().try_for_each(|message| batch.push_message(message))?;
        self.send_batch(batch).await
    }

    /// Takes a whole batch; the answer comes with the future returned. Waits while there is no room for it.
    pub async fn enqueue_batch(&self, batch: Batch) -> Result<PendingBatch> {
        let now = Instant::now();
        let deadline = now + self.shared.deadline;
        if batch.is_empty() {
            return Err(Error::InvalidMessage(wire_format::FormatError::Empty));
        }
        if batch.pchannel != self.shared.pchannel {
            return Err(Error::InvalidConfig {
                setting: "pchannel of a batch",
                value: batch.pchannel.to_string(),
                why: "it was made by a producer of another pchannel",
            });
        }
        let charged = self.take_room(batch.record_bytes().max(CHARGE_MIN), deadline).await?;
        let added = {
            let mut intake = self.shared.intake();
            match &intake.ended {
                Some(why) => Err(self.ended(why)),
                None => Ok(intake.add_batch(batch.builder, charged, now, deadline)),
            }
        };
        match added {
            Ok(pending) => {
                self.shared.wake.notify_one();
                Ok(pending)
            }
            Err(error) => {
                self.shared.room.add_permits(charged);
                Err(error)
            }
        }
    }

    /// Sends what lingers and waits until everything taken before is answered or over its deadline.
    ///
    /// # Errors
    /// The first error among the batches it waited for; their own callers are told theirs as well.
    pub async fn flush(&self) -> Result<()> {
        let waited_for = self.shared.intake().flush();
        self.shared.wake.notify_one();
        let mut first = Ok(());
        for batch in waited_for {
            if let Err(error) = batch.await
                && first.is_ok()
            {
                first = Err(error);
            }
        }
        first
    }

    /// Flushes, then ends the driver and the connection. Takes at most the longest deadline that is running.
    pub async fn close(mut self) -> Result<()> {
        let flushed = self.flush().await;
        self.say_closing();
        if let Some(driver) = self.driver.take() {
            // An end by panic or shutdown of the runtime has settled all calls already.
            drop(driver.await);
        }
        flushed
    }

    /// The pchannel that it sends to.
    pub fn pchannel(&self) -> &str {
        &self.shared.pchannel
    }

    /// The limits on a batch: the smaller of its own and the server's.
    pub fn limits(&self) -> Limits {
        self.shared.intake().limits()
    }

    /// Refuses at once what no batch could hold.
    fn check_size(&self, message: &Message, cost: usize) -> Result<()> {
        let limits = self.limits();
        if cost > limits.batch_bytes as usize {
            return Err(Error::TooLarge {
                what: "bytes of a batch with only this message",
                found: cost as u64,
                limit: limits.batch_bytes.into(),
            });
        }
        check_vchannel_name(&message.vchannel, &limits).map_err(Error::InvalidMessage)
    }

    /// Waits for room, in order. What is larger than all the room takes all of it.
    async fn take_room(&self, bytes: usize, deadline: Instant) -> Result<usize> {
        let charged = bytes.min(self.shared.room_total);
        let permits = u32::try_from(charged).unwrap_or(u32::MAX);
        if let Ok(permit) = self.shared.room.try_acquire_many(permits) {
            permit.forget();
            return Ok(charged);
        }
        // What lingers may be what holds the room.
        self.shared.intake().hurry();
        self.shared.wake.notify_one();
        match timeout_at(deadline.into(), self.shared.room.acquire_many(permits)).await {
            Ok(Ok(permit)) => {
                permit.forget();
                Ok(charged)
            }
            Ok(Err(_)) => {
                let intake = self.shared.intake();
                Err(self.ended(intake.ended.as_ref().unwrap_or(&Error::Closed)))
            }
            Err(_) => Err(Error::DeadlineExceeded {
                pchannel: self.shared.pchannel.to_string(),
                waited: self.shared.deadline,
                outcome: Outcome::NotStored,
                last: self.shared.intake().trouble.clone().map(Box::new),
            }),
        }
    }

    fn ended(&self, cause: &Error) -> Error {
        Error::ProducerEnded {
            pchannel: self.shared.pchannel.to_string(),
            outcome: Outcome::NotStored,
            cause: Box::new(cause.clone()),
        }
    }

    fn say_closing(&self) {
        self.shared.intake().closing = true;
        self.shared.wake.notify_one();
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.say_closing();
    }
}

fn check_config(config: &ProducerConfig) -> Result<()> {
    let fault = |setting, value: usize, why| {
        Err(Error::InvalidConfig {
            setting,
            value: value.to_string(),
            why,
        })
    };
    let room = config.max_in_flight_bytes;
    if room < CHARGE_MIN || room > Semaphore::MAX_PERMITS.min(u32::MAX as usize) {
        return fault("max_in_flight_bytes", room, "it must lie between 1 KiB and 4 GiB");
    }
    if config.max_in_flight_batches == 0 {
        return fault("max_in_flight_batches", 0, "nothing could be sent");
    }
    if config.limits.batch_bytes > Limits::BATCH_BYTES_MAX {
        let value = config.limits.batch_bytes as usize;
        return fault("limits.batch_bytes", value, "no record may be larger than 64 MiB");
    }
    match config.identity {
        Some((ProducerId::ZERO, _)) => fault(
            "identity",
            0,
            "producer 0 asks for no deduplication, so a retry would store twice",
        ),
        _ => Ok(()),
    }
}
