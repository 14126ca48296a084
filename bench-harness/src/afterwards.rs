//! What is to be done if this program is ended from outside, when no destructor runs.

use std::{
    ffi::OsStr,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use crate::error::{BenchError, During};

/// A shell that waits for the end of this process, then does its work. Dropped, it ends without having done it.
#[derive(Debug)]
pub(crate) struct Afterwards(Child);

impl Afterwards {
    /// Gets `work` ready, a line of shell whose `$1` is `argument`.
    ///
    /// # Errors
    /// When no shell can be started.
    pub(crate) fn new(work: &str, argument: &OsStr) -> Result<Self, BenchError> {
        // Its input is a pipe that only we hold: it ends when we do, however we do. A group of its own, so that ctrl-c on the
        // terminal, which ends us, leaves it to its work.
        let shell = Command::new("sh")
            .args(["-c", &format!("read -r _; {work}"), "afterwards"])
            .arg(argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        shell
            .map(Self)
            .during("start of a shell that clears up if this program is killed")
    }
}

impl Drop for Afterwards {
    fn drop(&mut self) {
        // The pipe closes only after this, so the work is not begun. Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
