//! Does the machine run its CPUs at full speed?

use std::fs;

use super::report::Item;

const FILE: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";

pub(crate) fn check() -> Item {
    judge(fs::read_to_string(FILE).ok().as_deref().map(str::trim))
}

fn judge(governor: Option<&str>) -> Item {
    let needed = "performance, or left to the host";
    match governor {
        None => Item::ok("CPU governor", "not visible (virtual machine or fixed clock)", needed),
        Some("performance") => Item::ok("CPU governor", "performance", needed),
        Some(other) => Item::ok("CPU governor", other, needed)
            .warn("latency grows at low load: cpupower frequency-set -g performance"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn only_a_saving_governor_is_warned_about() {
        assert_eq!(judge(None).status, Status::Ok);
        assert_eq!(judge(Some("performance")).status, Status::Ok);
        assert_eq!(judge(Some("powersave")).status, Status::Warn);
    }
}
