//! The promises of the log, run on each backend.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod suite;
#[path = "../support/mod.rs"]
mod support;

use std::path::PathBuf;

use backends::{
    LogFacts, WalError,
    block::{BLOCK_HEADER_BYTES, BLOCK_TAIL_BYTES},
    local::{LocalWal, Replay},
};
use wire_format::Term;

use suite::{Backend, Told};

/// Segment files in a folder; small ones, so that each test rolls.
#[derive(Clone)]
struct Local {
    folder: PathBuf,
    blocks_bytes: u64,
}

impl Backend for Local {
    type Log = LocalWal;

    async fn open(&self, term: u64) -> Result<(LocalWal, LogFacts, Told), WalError> {
        let config = support::config(&self.folder, self.blocks_bytes);
        let mut told = Told::default();
        let (log, opened) = LocalWal::open(config, Term(term), &mut |replay| match replay {
            Replay::State(upto, state) => told.state = Some((upto.get(), state.to_vec())),
            Replay::Record(meta) => told.records.push((meta.base_offset.get(), meta.next_offset().get())),
        })
        .await?;
        assert!(opened.damage.is_empty(), "{:?}", opened.damage);
        Ok((log, opened.facts, told))
    }

    fn record_max(&self) -> usize {
        // Header, tail and the position of the one record, which ends at a multiple of 8.
        (self.blocks_bytes as usize - BLOCK_HEADER_BYTES - BLOCK_TAIL_BYTES - 4) / 8 * 8
    }
}

macro_rules! on_local {
    ($($(#[$attr:meta])* $name:ident),* $(,)?) => {
        mod local {
            $($(#[$attr])* #[test]
            fn $name() {
                // Many small segments, and one that holds all.
                for blocks_bytes in [64 << 10, 256 << 10, 16 << 20] {
                    if blocks_bytes < super::room_needed(stringify!($name)) {
                        continue;
                    }
                    let folder = super::support::folder();
                    let backend = super::Local { folder: folder.path().to_owned(), blocks_bytes };
                    super::support::run(move || super::suite::$name(backend));
                }
            })*
        }
    };
}

/// Some tests write larger blocks than the smallest segment takes.
fn room_needed(test: &str) -> u64 {
    match test {
        "a_record_at_the_limit_fits_and_one_over_it_is_refused_without_a_trace"
        | "a_small_block_behind_a_large_one_is_not_durable_before_it" => 16 << 20,
        "messages_come_back_in_order_and_offsets_are_dense"
        | "truncation_keeps_what_is_above_and_names_the_first_kept_offset" => 256 << 10,
        _ => 0,
    }
}

on_local! {
    messages_come_back_in_order_and_offsets_are_dense,
    empty_payloads_are_messages_like_others,
    a_record_at_the_limit_fits_and_one_over_it_is_refused_without_a_trace,
    reads_begin_at_each_kind_of_position,
    nothing_is_read_above_the_durable_end_given,
    several_appends_in_flight_become_durable_in_order,
    a_small_block_behind_a_large_one_is_not_durable_before_it,
    a_dropped_durable_future_loses_nothing_and_stops_nobody,
    truncation_keeps_what_is_above_and_names_the_first_kept_offset,
    a_place_is_found_by_timetick,
    a_log_is_the_same_after_it_was_reopened,
    replay_gives_the_state_then_each_record_behind_it,
    an_older_or_equal_term_is_refused,
    a_block_that_does_not_continue_the_log_is_refused,
    nothing_is_appended_after_an_orderly_close_but_reads_go_on,
    a_reader_beside_a_writer_sees_each_message_once,
}
