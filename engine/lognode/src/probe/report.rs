//! What a probe found: one item for each check.

use std::path::PathBuf;

use serde::Serialize;

/// How an item stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// A LogNode runs, but slower or with less safety than it could; the cure says how to better it.
    Warn,
    /// A LogNode can't run like this.
    Fail,
}

impl Status {
    /// The word that stands in reports: `ok`, `warn` or `fail`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// Short stable name of the check.
    pub name: &'static str,
    /// How it stands.
    pub status: Status,
    /// What was found, with its unit.
    pub measured: String,
    /// What is needed, with its unit.
    pub needed: String,
    /// What to do; none where the status is ok.
    pub cure: Option<String>,
}

impl Item {
    /// An item that is as it should be.
    pub(crate) fn ok(name: &'static str, measured: impl Into<String>, needed: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            measured: measured.into(),
            needed: needed.into(),
            cure: None,
        }
    }

    /// The same item, but worth a warning.
    pub(crate) fn warn(mut self, cure: impl Into<String>) -> Self {
        self.status = Status::Warn;
        self.cure = Some(cure.into());
        self
    }

    /// The same item, but one that keeps a LogNode from running.
    pub(crate) fn fail(mut self, cure: impl Into<String>) -> Self {
        self.status = Status::Fail;
        self.cure = Some(cure.into());
        self
    }

    /// All of it in one line.
    pub(crate) fn line(&self) -> String {
        let cure = self.cure.as_deref().map(|cure| format!("; {cure}")).unwrap_or_default();
        format!("{}: {}, needed: {}{cure}", self.name, self.measured, self.needed)
    }
}

/// All items of one probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The folder that was asked about.
    pub data_dir: PathBuf,
    /// The number of shards that was asked about.
    pub shards: usize,
    /// One item for each check, the quick ones first.
    pub items: Vec<Item>,
}

impl Report {
    /// The worst status of all items.
    pub fn worst(&self) -> Status {
        self.items.iter().map(|item| item.status).max().unwrap_or(Status::Ok)
    }

    /// Exit code of `lognode probe`: 1 when any item fails, else 0; warnings do not count.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.worst() == Status::Fail)
    }

    /// The report as a JSON object in one line: `data_dir`, `shards`, `worst` and `items`.
    pub fn to_json(&self) -> String {
        serde_json::json!({
            "data_dir": self.data_dir.display().to_string(),
            "shards": self.shards,
            "worst": self.worst(),
            "items": self.items,
        })
        .to_string()
    }
}

/// A byte count for people: whole units of 1,024 where it fits, else one decimal.
pub(crate) fn bytes_text(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(items: Vec<Item>) -> Report {
        Report {
            data_dir: "/data".into(),
            shards: 2,
            items,
        }
    }

    #[test]
    fn only_a_failing_item_makes_the_exit_code_1() {
        let ok = Item::ok("a", "1", "1");
        let warn = Item::ok("b", "1", "2").warn("more");
        let fail = Item::ok("c", "0", "2").fail("much more");
        assert_eq!(report(vec![]).exit_code(), 0);
        assert_eq!(report(vec![ok.clone(), warn.clone()]).exit_code(), 0);
        assert_eq!(report(vec![ok, fail, warn]).exit_code(), 1);
    }

    #[test]
    fn json_has_the_agreed_fields() {
        let json = report(vec![Item::ok("a", "1 us", "2 us").warn("wait")]).to_json();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["worst"], "warn");
        assert_eq!(value["items"][0]["status"], "warn");
        assert_eq!(value["items"][0]["measured"], "1 us");
        assert_eq!(value["items"][0]["needed"], "2 us");
        assert_eq!(value["items"][0]["cure"], "wait");
    }

    #[test]
    fn byte_counts_read_well() {
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(65_536), "64 KiB");
        assert_eq!(bytes_text(8 << 20), "8 MiB");
        assert_eq!(bytes_text(1_610_612_736), "1.5 GiB");
        assert_eq!(bytes_text(u64::MAX), "16777216.0 TiB");
    }
}
