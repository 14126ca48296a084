//! Where a shard reads the machine's clocks.

use std::path::PathBuf;

use lognode_core::Reading;
use rustix::time::{ClockId, clock_gettime};
use wire_format::Millis;

/// Reads boot clock and wall clock. For tests of clock jumps the wall clock can be shifted by a file.
#[derive(Debug, Clone, Default)]
pub struct TimeSource {
    /// A file that holds a number of milliseconds to add to the wall clock.
    offset_file: Option<PathBuf>,
    offset_ms: i64,
}

impl TimeSource {
    /// The machine's clocks; `LOGNODE_WALL_OFFSET_FILE` names the file for tests.
    pub fn from_environment() -> Self {
        let mut source = Self {
            offset_file: std::env::var_os("LOGNODE_WALL_OFFSET_FILE").map(PathBuf::from),
            offset_ms: 0,
        };
        source.refresh();
        source
    }

    /// Reads the test file again. Costs nothing where there is none.
    pub fn refresh(&mut self) {
        if let Some(path) = &self.offset_file
            && let Some(ms) = std::fs::read_to_string(path)
                .ok()
                .and_then(|text| text.trim().parse().ok())
        {
            self.offset_ms = ms;
        }
    }

    /// Both clocks now.
    pub fn read(&self) -> Reading {
        let wall = millis(ClockId::Realtime).saturating_add(self.offset_ms);
        Reading {
            boot: Millis(millis(ClockId::Boottime).unsigned_abs()),
            wall: Millis(wall.max(0).unsigned_abs()),
        }
    }
}

fn millis(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec
        .saturating_mul(1_000)
        .saturating_add(time.tv_nsec / 1_000_000)
}

/// The kernel's id of this boot; zeros where it does not tell, which never match a stored one.
pub fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text
        .bytes()
        .filter_map(|b| (b as char).to_digit(16).map(|d| d as u8))
        .collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    id
}
