//! Messages as plain owned values, to hold records against.
#![allow(dead_code, reason = "each test binary uses its part")]

use wire_format::{
    Limits, MessageType, Offset, Term, Timetick,
    batch::{BatchBuilder, BatchView, Filter, Origin, Stamp},
};

/// What a producer pushes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub vchannel: String,
    pub message_type: u16,
    pub properties: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Message {
    pub fn new(vchannel: &str, message_type: u16, properties: &[(&str, &str)], body: &[u8]) -> Self {
        let own = |&(k, v): &(&str, &str)| (k.to_owned(), v.to_owned());
        Self {
            vchannel: vchannel.to_owned(),
            message_type,
            properties: properties.iter().map(own).collect(),
            body: body.to_vec(),
        }
    }

    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.properties.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }
}

/// What a reader gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub offset: Offset,
    pub timetick: Timetick,
    pub message: Message,
}

pub fn builder_of(pchannel: &str, messages: &[Message], limits: Limits) -> BatchBuilder {
    let mut builder = BatchBuilder::new(pchannel, limits).unwrap();
    for m in messages {
        builder
            .push(&m.vchannel, MessageType(m.message_type), m.pairs(), &m.body)
            .unwrap();
    }
    builder
}

pub fn record_of(pchannel: &str, messages: &[Message]) -> Vec<u8> {
    let mut builder = builder_of(pchannel, messages, Limits::default());
    builder.finish(Origin::default()).unwrap().to_bytes()
}

pub fn stamp_of(base_offset: u64, first_timetick: u64) -> Stamp {
    Stamp {
        base_offset: Offset(base_offset),
        term: Term(3),
        first_timetick: Timetick(first_timetick),
        promised_timetick: Timetick(first_timetick - 1),
    }
}

/// The messages of a record, and every accessor of it called once.
pub fn stored(view: &BatchView<'_>) -> Vec<Stored> {
    let own = |pair: Result<(&str, &str), _>| pair.map(|(k, v)| (k.to_owned(), v.to_owned()));
    let one = |m: wire_format::batch::MessageView<'_>| Stored {
        offset: m.offset,
        timetick: m.timetick,
        message: Message {
            vchannel: m.vchannel.to_owned(),
            message_type: m.message_type.0,
            properties: m.properties.iter().map_while(|pair| own(pair).ok()).collect(),
            body: m.body.to_vec(),
        },
    };
    view.messages().map(one).collect()
}

/// The filter's meaning, message by message.
pub fn wanted(filter: &Filter, m: &Stored) -> bool {
    let vchannels = filter.vchannels();
    let types = filter.message_types();
    (vchannels.is_empty() || vchannels.contains(&m.message.vchannel))
        && (types.is_empty() || types.contains(&MessageType(m.message.message_type)))
        && filter.min_timetick <= m.timetick
        && m.timetick <= filter.max_timetick
}
