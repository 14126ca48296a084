//! The test's own book of what was appended and what became of it, and the check of a log against it.

use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
};

use lognode_client::{Ack, Error, Message, MessageType, Outcome};
use wire_format::Timetick;

use super::raw::Got;

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Sent, and nothing heard.
    Unknown,
    Refused,
    Acked {
        offset: u64,
        timetick: Timetick,
    },
}

/// One book per pchannel; shared by its producers.
#[derive(Default)]
pub struct Book(Mutex<HashMap<u64, Fate>>);

/// A message that carries its number, with a body that follows from it: one in eight is empty.
pub fn numbered(key: u64, largest: usize) -> Message {
    let types = [MessageType::INSERT, MessageType::DELETE, MessageType::FLUSH];
    let (vchannel, message_type) = (format!("v{}", key % 4), types[(key % 3) as usize]);
    Message::new(vchannel, message_type, body(key, largest)).property("key", key.to_string())
}

fn body(key: u64, largest: usize) -> Vec<u8> {
    let mut state = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let len = match next() % 8 {
        0 => 0,
        1..=5 => next() as usize % 200,
        _ => next() as usize % largest.max(1),
    };
    (0..len).map(|i| (key as usize + i) as u8).collect()
}

/// The number that a message carries.
pub fn key_of(message: &Got) -> u64 {
    let pair = message.properties.iter().find(|(name, _)| name == "key");
    pair.and_then(|(_, key)| key.parse().ok())
        .unwrap_or_else(|| panic!("a message without its number: {message:?}"))
}

impl Book {
    /// Notes a message before it is sent.
    pub fn sending(&self, key: u64) {
        assert!(self.0.lock().unwrap().insert(key, Fate::Unknown).is_none());
    }

    /// Notes the answer.
    pub fn answered(&self, key: u64, answer: &Result<Ack, Error>) {
        let fate = match answer {
            Ok(ack) => Fate::Acked {
                offset: ack.offset.get(),
                timetick: ack.timetick,
            },
            Err(error) if error.outcome() == Outcome::NotStored => Fate::Refused,
            Err(_) => Fate::Unknown,
        };
        self.0.lock().unwrap().insert(key, fate);
    }

    /// Messages acked, refused and unknown.
    pub fn counts(&self) -> (usize, usize, usize) {
        let book = self.0.lock().unwrap();
        let count = |wanted: fn(&Fate) -> bool| book.values().filter(|fate| wanted(fate)).count();
        (
            count(|fate| matches!(fate, Fate::Acked { .. })),
            count(|fate| matches!(fate, Fate::Refused)),
            count(|fate| matches!(fate, Fate::Unknown)),
        )
    }

    /// The log, read from its first kept message on, against the book: each acked message once at its place, no refused one,
    /// an unknown one once or not at all, each as it was sent. Order and density were the reader's to check.
    pub fn check(&self, first_kept: u64, log: &[Got], largest: usize) {
        let book = self.0.lock().unwrap();
        let mut seen = HashSet::new();
        for message in log {
            let key = key_of(message);
            assert!(
                seen.insert(key),
                "message {key} is stored twice, again at {}",
                message.offset
            );
            let sent = numbered(key, largest);
            assert_eq!(message.body, sent.body, "body of message {key}");
            assert_eq!(message.vchannel, sent.vchannel, "vchannel of message {key}");
            assert_eq!(message.message_type, sent.message_type, "type of message {key}");
            match book.get(&key) {
                None => panic!("message {key} was never sent"),
                Some(Fate::Refused) => panic!("message {key} was refused and is stored at {}", message.offset),
                Some(Fate::Unknown) => {}
                Some(&Fate::Acked { offset, timetick }) => {
                    assert_eq!(
                        (message.offset, message.timetick),
                        (offset, timetick),
                        "place of message {key}"
                    );
                }
            }
        }
        for (key, fate) in book.iter() {
            if let Fate::Acked { offset, .. } = fate
                && *offset >= first_kept
            {
                assert!(seen.contains(key), "message {key}, acked at {offset}, is lost");
            }
        }
    }
}
