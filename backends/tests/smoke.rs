//! The shortest way through a log: write, read, reopen.

#![allow(clippy::unwrap_used)]

mod support;

use support::*;
use wire_format::Offset;

#[test]
fn what_is_written_is_read_again_and_an_orderly_close_leaves_nothing_to_scan() {
    let folder = folder();
    let config = config(folder.path(), 1 << 20);
    run(move || async move {
        let (wal, opened) = open(&config, 1).await.unwrap();
        assert_eq!(
            opened.facts,
            backends::LogFacts {
                last_term: wire_format::Term(0),
                ..Default::default()
            }
        );
        let mut writer = Writer::new(Offset(0), 1);
        let mut expected = Vec::new();
        for records in [&[&[100usize, 0, 3000][..], &[1]][..], &[&[5000]], &[&[0]]] {
            let (block, messages) = writer.block(records);
            append(&wal, block, Offset(expected.len() as u64)).await.unwrap();
            expected.extend(messages);
        }
        assert_eq!(read_all(&wal, Offset(0), Offset(writer.next)).await.unwrap(), expected);
        drop(wal);

        let (wal, opened) = open(&config, 2).await.unwrap();
        assert_eq!(opened.facts.next_offset, Offset(writer.next));
        assert_eq!(opened.facts.last_term.get(), 1);
        assert!(opened.damage.is_empty(), "{:?}", opened.damage);
        assert_eq!(read_all(&wal, Offset(0), Offset(writer.next)).await.unwrap(), expected);
        use backends::Wal;
        wal.close(b"state".to_vec()).await.unwrap();
        drop(wal);

        let (wal, opened) = open(&config, 3).await.unwrap();
        assert_eq!(opened.scanned.get(), 0);
        assert_eq!(opened.facts.next_offset, Offset(writer.next));
        assert_eq!(read_all(&wal, Offset(0), Offset(writer.next)).await.unwrap(), expected);
    });
}
