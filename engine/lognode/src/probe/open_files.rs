//! May this process open enough files for its pchannels and clients?

use rustix::process::{Resource, getrlimit};

use super::needs::Needs;
use super::report::Item;

pub(crate) fn check(needs: &Needs) -> Item {
    judge(needs, getrlimit(Resource::Nofile).maximum)
}

/// `limit` is the highest value that this process can set itself; none for unlimited.
fn judge(needs: &Needs, limit: Option<u64>) -> Item {
    let (bare, full) = (needs.files_without_clients(), needs.files());
    let needed = format!(
        "{full} for {} pchannels and {} connections, {bare} without a client",
        needs.pchannels, needs.connections
    );
    let Some(limit) = limit else {
        return Item::ok("open files", "limit: unlimited", needed);
    };
    let item = Item::ok("open files", format!("limit: {limit}"), needed);
    let raise =
        format!("raise it: ulimit -n {full} as root before the start, or LimitNOFILE={full} in the systemd unit");
    if limit < bare {
        item.fail(format!("{raise}; or give this node fewer pchannels"))
    } else if limit < full {
        item.warn(format!(
            "new connections and new pchannels are refused when it is reached; {raise}"
        ))
    } else {
        item
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn pchannels_must_fit_and_clients_should() {
        let needs = Needs {
            pchannels: 1_000,
            ..Needs::new(2)
        };
        let bare = needs.files_without_clients();
        assert!(bare > 4_000);
        assert_eq!(judge(&needs, Some(256)).status, Status::Fail);
        assert_eq!(judge(&needs, Some(bare - 1)).status, Status::Fail);
        assert_eq!(judge(&needs, Some(bare)).status, Status::Warn);
        assert_eq!(judge(&needs, Some(needs.files())).status, Status::Ok);
        assert_eq!(judge(&needs, None).status, Status::Ok);
        let line = judge(&needs, Some(256)).line();
        assert!(
            line.contains("limit: 256") && line.contains("1000 pchannels") && line.contains("ulimit -n"),
            "{line}"
        );
    }
}
