//! Which CPU plays the server and which the client, and pinning a thread to it.

use core_affinity::CoreId;
use serde::Serialize;

use super::error::{RawError, failed};

/// The CPUs of a measurement with two sides. Both are the same where only one CPU may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cores {
    /// Index of the CPU that serves (reads, in the loopback stream).
    pub server: usize,
    /// Index of the CPU that asks (writes, in the loopback stream).
    pub client: usize,
}

impl Cores {
    /// The first allowed CPU for the server and the last one for the client. Must be called before the calling thread is
    /// pinned, as a pinned thread sees only its own CPU.
    ///
    /// # Errors
    /// When the affinity mask of the thread can't be read.
    pub fn pick() -> Result<Self, RawError> {
        let allowed = core_affinity::get_core_ids().unwrap_or_default();
        match (allowed.first(), allowed.last()) {
            (Some(first), Some(last)) => Ok(Self {
                server: first.id,
                client: last.id,
            }),
            _ => Err(failed(
                "choice of CPUs",
                "the affinity mask of this thread can't be read",
            )),
        }
    }
}

/// Pins the calling thread to CPU `cpu`.
pub(crate) fn pin_to(cpu: usize) -> Result<(), RawError> {
    if core_affinity::set_for_current(CoreId { id: cpu }) {
        Ok(())
    } else {
        Err(failed(
            "pinning a thread",
            format!("CPU {cpu} can't be used: it is offline or outside of the cpuset"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cpus_are_told_apart_and_a_missing_one_is_an_error() {
        let cores = Cores::pick().unwrap();
        if std::thread::available_parallelism().unwrap().get() > 1 {
            assert_ne!(cores.server, cores.client);
        }
        let error = std::thread::spawn(|| pin_to(1_023).unwrap_err()).join().unwrap();
        assert!(error.to_string().contains("1023"), "{error}");
    }
}
