//! The main job on a real server: produce, consume, filter, ticks, restart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::complexity, clippy::result_large_err)] // tests may spell their types out

mod support;

use std::time::Duration;

use lognode_client::{
    Admin, ClientConfig, Event, Filter, Message, MessageType, Offset, Producer, ReadOptions, Reader, Start, Timetick,
};
use support::{Scratch, Server};

async fn messages(reader: &mut Reader, count: usize) -> Vec<(u64, String)> {
    let mut got = Vec::new();
    while got.len() < count {
        let event = tokio::time::timeout(Duration::from_secs(10), reader.next())
            .await
            .expect("in time")
            .unwrap();
        if let Event::Message(message) = event {
            got.push((message.offset.get(), String::from_utf8(message.body.to_vec()).unwrap()));
        }
    }
    got
}

#[tokio::test]
async fn what_is_produced_is_consumed_in_order_live_and_after_a_restart() {
    let scratch = Scratch::new("order");
    let server = Server::start(&scratch.path().join("data"));
    let config = ClientConfig::new(&server.address);
    let mut live = Reader::open(config.clone(), "p", ReadOptions::from(Start::Latest))
        .await
        .unwrap();
    let producer = Producer::connect(config.clone(), "p").await.unwrap();
    let mut last = Timetick::ZERO;
    for i in 0..50u64 {
        let message = Message::new(format!("v{}", i % 4), MessageType::INSERT, i.to_string());
        let ack = producer.send(message).await.unwrap();
        assert_eq!(ack.offset, Offset(i));
        assert!(ack.timetick > last, "timeticks grow");
        last = ack.timetick;
    }
    producer.close().await.unwrap();
    let expected: Vec<(u64, String)> = (0..50).map(|i| (i, i.to_string())).collect();
    assert_eq!(messages(&mut live, 50).await, expected);
    drop(live);
    server.stop();

    let server = Server::start(&scratch.path().join("data"));
    let config = ClientConfig::new(&server.address);
    let mut all = Reader::open(config.clone(), "p", ReadOptions::from(Start::Earliest))
        .await
        .unwrap();
    assert_eq!(messages(&mut all, 50).await, expected);
    let filter = Filter::new(vec!["v2".into()], vec![], Timetick::ZERO, Timetick::MAX);
    let mut one = Reader::open(config, "p", ReadOptions::from(Start::Earliest).filter(filter))
        .await
        .unwrap();
    let wanted: Vec<_> = expected.into_iter().filter(|(i, _)| i % 4 == 2).collect();
    assert_eq!(messages(&mut one, wanted.len()).await, wanted);
    server.stop();
}

#[tokio::test]
async fn ticks_come_at_their_pace_and_only_behind_their_messages() {
    let scratch = Scratch::new("ticks");
    let server = Server::start(&scratch.path().join("data"));
    let config = ClientConfig::new(&server.address);
    let producer = Producer::connect(config.clone(), "p").await.unwrap();
    let mut reader = Reader::open(config, "p", ReadOptions::from(Start::Earliest))
        .await
        .unwrap();
    let sending = tokio::spawn(async move {
        for i in 0..200u32 {
            producer
                .send(Message::new("v", MessageType::INSERT, i.to_string()))
                .await
                .unwrap();
        }
    });
    let (mut ticks, mut told, mut got) = (0, Timetick::ZERO, 0);
    while ticks < 100 || got < 200 {
        match tokio::time::timeout(Duration::from_secs(10), reader.next())
            .await
            .expect("in time")
            .unwrap()
        {
            Event::Message(message) => {
                assert!(
                    message.timetick > told,
                    "a message at {} after tick {told}",
                    message.timetick
                );
                got += 1;
            }
            Event::Tick { timetick, .. } => {
                assert!(timetick > told);
                told = timetick;
                ticks += 1;
            }
        }
    }
    sending.await.unwrap();
    server.stop();
}

#[tokio::test]
async fn the_list_of_pchannels_holds_what_was_acked_a_moment_ago() {
    let scratch = Scratch::new("list");
    let server = Server::start(&scratch.path().join("data"));
    let config = ClientConfig::new(&server.address);
    let admin = Admin::new(config.clone()).unwrap();
    assert_eq!(admin.list_pchannels().await.unwrap(), []);
    let producer = Producer::connect(config, "p").await.unwrap();
    for i in 0..20u64 {
        let ack = producer
            .send(Message::new("v", MessageType::INSERT, "x"))
            .await
            .unwrap();
        let list = admin.list_pchannels().await.unwrap();
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].next_offset, Offset(i + 1));
        assert!(list[0].last_timetick >= ack.timetick);
    }
    producer.close().await.unwrap();
    server.stop();
}
