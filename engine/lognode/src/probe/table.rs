//! The report as text for a terminal.

use super::report::{Report, Status};

impl Report {
    /// A table of all items, then the cures of those that need one, then the verdict. Ends with a line feed.
    pub fn to_table(&self) -> String {
        let rows: Vec<_> = self
            .items
            .iter()
            .map(|item| {
                [
                    item.status.word(),
                    item.name,
                    item.measured.as_str(),
                    item.needed.as_str(),
                ]
            })
            .collect();
        let heading = ["", "item", "measured", "needed"];
        let width = |column: usize| {
            rows.iter()
                .chain([&heading])
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths = [width(0), width(1), width(2)];
        let mut text = String::new();
        for row in [&heading].into_iter().chain(&rows) {
            for (cell, width) in row.iter().zip(widths) {
                text.push_str(&format!("{cell:width$}  "));
            }
            text.push_str(row[3]);
            text.push('\n');
        }
        for item in &self.items {
            if let Some(cure) = &item.cure {
                text.push_str(&format!("\n{}: {}\n    {cure}\n", item.status.word(), item.name));
            }
        }
        text.push_str(&format!("\n{}\n", self.verdict()));
        text
    }

    fn verdict(&self) -> String {
        let count = |status| self.items.iter().filter(|item| item.status == status).count();
        let plural = if self.shards == 1 { "" } else { "s" };
        let subject = format!("{} shard{plural} on {}", self.shards, self.data_dir.display());
        match self.worst() {
            Status::Ok => format!("This machine suits {subject}"),
            Status::Warn => format!("This machine suits {subject} (warnings: {})", count(Status::Warn)),
            Status::Fail => format!(
                "This machine does not suit {subject} (failing items: {})",
                count(Status::Fail)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{Item, Report};

    #[test]
    fn columns_line_up_and_cures_follow() {
        let items = vec![
            Item::ok("kernel", "Linux 6.1", "5.8 or later"),
            Item::ok("open files", "limit: 256", "4000").fail("raise it"),
        ];
        let report = Report {
            data_dir: "/data".into(),
            shards: 2,
            items,
        };
        let expected = "      item        measured    needed\n\
                        ok    kernel      Linux 6.1   5.8 or later\n\
                        fail  open files  limit: 256  4000\n\
                        \n\
                        fail: open files\n    raise it\n\
                        \n\
                        This machine does not suit 2 shards on /data (failing items: 1)\n";
        assert_eq!(report.to_table(), expected);
    }
}
