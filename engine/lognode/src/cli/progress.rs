//! Progress of what takes longer than a moment.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Nobody needs a bar before that.
const SHOW_AFTER: Duration = Duration::from_secs(1);

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Rows, messages or offsets.
    Count(&'static str),
    /// Bytes.
    Bytes,
}

/// A bar on standard error: only on a terminal, only after a second, and gone at the end.
pub struct Progress {
    bar: ProgressBar,
    begin: Instant,
    wanted: bool,
    shown: bool,
}

impl Progress {
    /// A bar that is not seen yet. Without a total it counts up.
    pub fn new(unit: Unit, total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let count = match unit {
            Unit::Count(_) => ["{human_pos}", "{human_len}", "{per_sec}"],
            Unit::Bytes => ["{binary_bytes}", "{binary_total_bytes}", "{binary_bytes_per_sec}"],
        };
        let word = match unit {
            Unit::Count(word) => word,
            Unit::Bytes => "",
        };
        let [at, of, speed] = count;
        let template = match total {
            Some(_) => format!("{{wide_bar}} {at} of {of} {word} {speed}, {{eta}} to go"),
            None => format!("{{spinner}} {at} {word} {speed}"),
        };
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        Self {
            bar,
            begin: Instant::now(),
            wanted: std::io::stderr().is_terminal(),
            shown: false,
        }
    }

    /// A bar that is never seen: what it would count goes to the same terminal.
    pub fn none() -> Self {
        let mut none = Self::new(Unit::Bytes, None);
        none.wanted = false;
        none
    }

    /// So far.
    pub fn set(&mut self, position: u64) {
        if !self.wanted {
            return;
        }
        if !self.shown && self.begin.elapsed() >= SHOW_AFTER {
            self.shown = true;
            // At most 10 times a second, whatever the pace of the calls.
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        }
        self.bar.set_position(position);
    }

    /// More of the same.
    pub fn advance(&mut self, count: u64) {
        self.set(self.bar.position() + count);
    }

    /// Time since it was made.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
