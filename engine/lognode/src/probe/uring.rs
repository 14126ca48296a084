//! Can this process use io_uring, and does the kernel know the operations that the shards need?

use std::fs;
use std::io;

use io_uring::{IoUring, Probe, opcode};

use super::report::Item;

/// The operations that the executor of the shards demands at its start.
const OPERATIONS: [(&str, u8); 15] = [
    ("READ", opcode::Read::CODE),
    ("WRITE", opcode::Write::CODE),
    ("READ_FIXED", opcode::ReadFixed::CODE),
    ("WRITE_FIXED", opcode::WriteFixed::CODE),
    ("FSYNC", opcode::Fsync::CODE),
    ("POLL_ADD", opcode::PollAdd::CODE),
    ("TIMEOUT", opcode::Timeout::CODE),
    ("LINK_TIMEOUT", opcode::LinkTimeout::CODE),
    ("ACCEPT", opcode::Accept::CODE),
    ("CONNECT", opcode::Connect::CODE),
    ("FALLOCATE", opcode::Fallocate::CODE),
    ("OPENAT", opcode::OpenAt::CODE),
    ("STATX", opcode::Statx::CODE),
    ("SEND", opcode::Send::CODE),
    ("RECV", opcode::Recv::CODE),
];

pub(crate) fn check() -> Item {
    let item = |measured: String| Item::ok("io_uring", measured, "allowed for this process, all operations known");
    let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    let sysctl = sysctl.as_deref().map(str::trim);
    match missing_operations() {
        Ok(missing) if missing.is_empty() => item("usable".to_owned()),
        Ok(missing) => item(format!("operations missing: {}", missing.join(", "))).fail("upgrade the kernel"),
        Err(error) => {
            let (reason, cure) = explain(&error, sysctl);
            item(format!("refused: {error}{reason}")).fail(cure)
        }
    }
}

fn missing_operations() -> io::Result<Vec<&'static str>> {
    let ring = IoUring::new(8)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    Ok(OPERATIONS
        .iter()
        .filter(|(_, code)| !probe.is_supported(*code))
        .map(|(name, _)| *name)
        .collect())
}

/// Why the kernel refuses a ring, and what to do. `sysctl` is the value of kernel.io_uring_disabled, where there is one.
fn explain(error: &io::Error, sysctl: Option<&str>) -> (String, &'static str) {
    let known = sysctl
        .map(|value| format!(", kernel.io_uring_disabled = {value}"))
        .unwrap_or_default();
    let cure = match (error.raw_os_error(), sysctl) {
        (Some(libc::EPERM), Some("2")) => "switch it on: sysctl -w kernel.io_uring_disabled=0",
        (Some(libc::EPERM), Some("1")) => {
            "sysctl -w kernel.io_uring_disabled=0, or put the user's group into kernel.io_uring_group"
        }
        (Some(libc::EPERM | libc::EACCES), _) => {
            "a seccomp filter or security module forbids it: allow io_uring_setup, io_uring_enter and io_uring_register \
             (Docker: --security-opt seccomp=PROFILE with them; systemd: SystemCallFilter=@io-event io_uring_setup \
             io_uring_enter io_uring_register)"
        }
        (Some(libc::ENOSYS), _) => {
            "the kernel was built without io_uring, or a seccomp filter hides it: allow io_uring_setup, io_uring_enter and \
             io_uring_register, or use a kernel with CONFIG_IO_URING"
        }
        (Some(libc::ENOMEM), _) => "raise the limit of locked memory: ulimit -l, or LimitMEMLOCK= in the systemd unit",
        (Some(libc::EMFILE | libc::ENFILE), _) => {
            "raise the limit of open files: ulimit -n, or LimitNOFILE= in the systemd unit"
        }
        _ => "see the kernel's log for why io_uring is refused",
    };
    (known, cure)
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn works_here() {
        assert_eq!(check().status, Status::Ok, "{:?}", check());
    }

    #[test]
    fn each_refusal_has_its_own_cure() {
        let explain = |code, sysctl| explain(&io::Error::from_raw_os_error(code), sysctl);
        assert!(explain(libc::EPERM, Some("2")).1.contains("io_uring_disabled=0"));
        assert!(explain(libc::EPERM, Some("2")).0.contains("io_uring_disabled = 2"));
        assert!(explain(libc::EPERM, Some("1")).1.contains("io_uring_group"));
        assert!(explain(libc::EPERM, Some("0")).1.contains("seccomp"));
        assert!(explain(libc::EPERM, None).1.contains("seccomp"));
        assert!(explain(libc::ENOSYS, None).1.contains("CONFIG_IO_URING"));
        assert!(explain(libc::ENOMEM, Some("0")).1.contains("LimitMEMLOCK="));
        assert!(explain(libc::EMFILE, Some("0")).1.contains("LimitNOFILE="));
    }
}
