//! Is the kernel new enough?

use super::report::Item;

/// The oldest kernel with every io_uring operation that the shards use.
const OLDEST: Version = Version { major: 5, minor: 8 };

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u32,
    minor: u32,
}

pub(crate) fn check() -> Item {
    judge(&rustix::system::uname().release().to_string_lossy())
}

fn judge(release: &str) -> Item {
    let item = Item::ok(
        "kernel",
        format!("Linux {release}"),
        format!("{}.{} or later", OLDEST.major, OLDEST.minor),
    );
    match parse(release) {
        Some(version) if version >= OLDEST => item,
        Some(_) => item.fail("upgrade the kernel: older ones lack io_uring operations that the shards are built on"),
        None => item.warn("the release is not of the known form: make sure that the kernel is new enough"),
    }
}

fn parse(release: &str) -> Option<Version> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some(Version {
        major: parts.next()?.parse().ok()?,
        minor: parts.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(judge("5.7.19-generic").status, Status::Fail);
        assert_eq!(judge("4.18.0-553.el8_10.x86_64").status, Status::Fail);
        assert_eq!(judge("5.8.0").status, Status::Ok);
        assert_eq!(judge("5.15.153.1-microsoft-standard-WSL2").status, Status::Ok);
        assert_eq!(judge("6.18.44-fc-v1045").status, Status::Ok);
        assert_eq!(judge("10.0-rc1").status, Status::Ok);
        assert_eq!(judge("unknown").status, Status::Warn);
        assert!(judge("5.4.0").line().contains("5.8"));
    }

    #[test]
    fn this_kernel_is_understood() {
        assert_eq!(check().status, Status::Ok, "{:?}", check());
    }
}
