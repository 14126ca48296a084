//! Can the time be read without a system call?

use std::fs;

use super::report::Item;

const FOLDER: &str = "/sys/devices/system/clocksource/clocksource0";
/// Sources that are read in user space, in tens of nanoseconds.
const FAST: [&str; 5] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
    "riscv_clocksource",
];

pub(crate) fn check() -> Item {
    let read = |name: &str| {
        fs::read_to_string(format!("{FOLDER}/{name}"))
            .ok()
            .map(|text| text.trim().to_owned())
    };
    judge(
        read("current_clocksource").as_deref(),
        read("available_clocksource").as_deref().unwrap_or_default(),
    )
}

fn judge(current: Option<&str>, available: &str) -> Item {
    let needed = "one that is read without a system call: tsc, kvm-clock or the like";
    let Some(current) = current else {
        return Item::ok("clock source", "can't be read", needed)
            .warn(format!("look at {FOLDER}/current_clocksource on the host"));
    };
    let item = Item::ok("clock source", current, needed);
    if FAST.contains(&current) {
        return item;
    }
    match FAST.iter().find(|fast| available.split_whitespace().any(|name| name == **fast)) {
        Some(fast) => item.warn(format!("each look at the clock costs about a microsecond: echo {fast} > {FOLDER}/current_clocksource")),
        None => item.warn(format!(
            "each look at the clock costs about a microsecond, and the kernel offers no faster one ({available}): see its log for why tsc is unstable"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn slow_sources_are_warned_about() {
        assert_eq!(judge(Some("tsc"), "tsc hpet").status, Status::Ok);
        assert_eq!(judge(Some("kvm-clock"), "kvm-clock").status, Status::Ok);
        let slow = judge(Some("hpet"), "tsc hpet acpi_pm");
        assert!(
            slow.status == Status::Warn && slow.line().contains("echo tsc"),
            "{slow:?}"
        );
        assert_eq!(judge(Some("acpi_pm"), "acpi_pm").status, Status::Warn);
        assert_eq!(judge(None, "").status, Status::Warn);
    }
}
