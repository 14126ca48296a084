//! Producers are slowed smoothly, told why, and never for ever (cases 41 and 42 of the field).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use lognode_core::{Admission, Quota, QuotaLimits, RateLimited, quota::RATE_LIMIT};
use proptest::prelude::*;
use wire_format::{Bytes, Millis};

const MIB: u64 = 1 << 20;

fn limits(rate: u64, burst: u64) -> QuotaLimits {
    QuotaLimits {
        rate: Bytes(rate),
        burst: Bytes(burst),
        ..QuotaLimits::default()
    }
}

fn refusal(admission: Admission) -> RateLimited {
    match admission {
        Admission::Refused(refusal) => refusal,
        other => panic!("{other:?} is no refusal"),
    }
}

#[test]
fn without_a_limit_everything_passes() {
    let mut quota = Quota::new(QuotaLimits::default(), Millis(0));
    assert!((0..10_000).all(|_| quota.admit(Millis(0), Bytes(64 * MIB)) == Admission::Now));
}

#[test]
fn over_the_rate_comes_a_delay_and_then_a_refusal_with_its_reason() {
    let mut quota = Quota::new(limits(8 * MIB, 8 * MIB), Millis(0));
    assert_eq!(quota.admit(Millis(0), Bytes(8 * MIB)), Admission::Now);
    assert_eq!(quota.admit(Millis(0), Bytes(4 * MIB)), Admission::Delay(Millis(500)));
    assert_eq!(quota.admit(Millis(0), Bytes(4 * MIB)), Admission::Delay(Millis(1_000)));
    let refused = refusal(quota.admit(Millis(0), Bytes(MIB)));
    assert_eq!(
        (refused.limit, refused.limit_value, refused.retry_after),
        (RATE_LIMIT, 8 * MIB, Millis(1_125))
    );
    assert_eq!(refused.measured, 17 * MIB);
    assert!(refused.to_string().contains("1125 ms"), "{refused}");
    assert_eq!(
        quota.admit(Millis(1_125), Bytes(MIB)),
        Admission::Now,
        "it passes when it was told to come again"
    );
}

#[test]
fn a_batch_larger_than_the_burst_passes_when_idle_and_leaves_a_debt() {
    let mut quota = Quota::new(limits(8 * MIB, 8 * MIB), Millis(0));
    assert_eq!(quota.admit(Millis(0), Bytes(9 * MIB)), Admission::Now);
    assert_eq!(quota.admit(Millis(0), Bytes(MIB)), Admission::Delay(Millis(250)));
    let mut quota = Quota::new(limits(8 * MIB, MIB), Millis(0));
    assert_eq!(quota.admit(Millis(0), Bytes(9 * MIB)), Admission::Now);
    let again = refusal(quota.admit(Millis(0), Bytes(9 * MIB)));
    assert_eq!(quota.admit(again.retry_after, Bytes(9 * MIB)), Admission::Now);
}

#[test]
fn pressure_slows_linearly_and_ends_with_its_cause() {
    let mut quota = Quota::new(limits(1_000_000, MIB), Millis(0));
    let lag = quota.add_signal("flush_lag_ms", 100, 600);
    let memory = quota.add_signal("memory_percent", 60, 80);
    for (measured, rate) in [
        (0, 1_000_000),
        (100, 1_000_000),
        (350, 505_000),
        (600, 10_000),
        (u64::MAX, 10_000),
    ] {
        quota.measure(lag, measured);
        assert_eq!(quota.rate_in_force(), Some(Bytes(rate)), "at {measured}");
    }
    quota.measure(memory, 70);
    let refused = refusal(quota.admit(Millis(0), Bytes(MIB)).also(&mut quota));
    assert_eq!(
        (refused.limit, refused.measured, refused.limit_value),
        ("flush_lag_ms", u64::MAX, 600)
    );
    quota.measure(lag, 0);
    quota.measure(memory, 0);
    assert_eq!(quota.rate_in_force(), Some(Bytes(1_000_000)));
}

/// Spends the burst, then asks once more.
trait Also {
    fn also(self, quota: &mut Quota) -> Admission;
}

impl Also for Admission {
    fn also(self, quota: &mut Quota) -> Admission {
        assert_eq!(self, Admission::Now);
        quota.admit(Millis(0), Bytes(MIB))
    }
}

#[test]
fn pressure_also_bounds_an_unlimited_quota_and_may_stop_it() {
    let stop = QuotaLimits {
        min_factor_ppm: 0,
        rate_under_pressure: Bytes(1_000),
        burst: Bytes(1),
        ..QuotaLimits::default()
    };
    let mut quota = Quota::new(stop, Millis(0));
    let disk = quota.add_signal("disk_percent", 90, 100);
    assert_eq!(quota.rate_in_force(), None);
    quota.measure(disk, 95);
    assert_eq!(quota.rate_in_force(), Some(Bytes(500)));
    quota.measure(disk, 100);
    assert_eq!(quota.admit(Millis(1), Bytes(1)), Admission::Now);
    let refused = refusal(quota.admit(Millis(1), Bytes(1)));
    assert_eq!((refused.limit, refused.retry_after), ("disk_percent", Millis(1_000)));
    quota.measure(disk, 0);
    assert_eq!(quota.admit(Millis(2), Bytes(1)), Admission::Now);
}

proptest! {
    // Over any stretch no more passes than burst + rate x time + one batch; a refusal's `retry_after` is honest.
    #[test]
    fn the_rate_holds_and_retry_after_is_honest(
        steps in prop::collection::vec((0u64..400, 0u64..3_000), 1..200), rate in 1u64..10_000, burst in 1u64..5_000
    ) {
        let mut quota = Quota::new(limits(rate, burst), Millis(0));
        let (mut now, mut admitted) = (0u64, 0u64);
        for (forward, bytes) in steps {
            now += forward;
            let (ready, bytes) = match quota.admit(Millis(now), Bytes(bytes)) {
                Admission::Now => (now, bytes),
                Admission::Delay(wait) => { prop_assert!(wait.0 > 0 && wait <= Millis(1_000)); (now + wait.0, bytes) }
                Admission::Refused(refused) => {
                    prop_assert!(refused.retry_after > Millis(1_000) && refused.limit_value == rate);
                    now += refused.retry_after.0;
                    prop_assert_eq!(quota.admit(Millis(now), Bytes(bytes)), Admission::Now);
                    (now, bytes)
                }
            };
            admitted += bytes;
            prop_assert!(admitted <= burst + rate * ready / 1_000 + bytes.saturating_sub(burst.min(bytes)) + 1,
                "{admitted} by {ready} ms");
        }
    }
}
