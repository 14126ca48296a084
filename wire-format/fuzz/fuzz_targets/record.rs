//! Any bytes, with the crc put right, at the record's door: the rules are those of `tests/hostile/check.rs`.
#![no_main]

#[path = "../../tests/hostile/check.rs"]
#[allow(dead_code)]
mod check;
#[path = "../../tests/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut record = data.to_vec();
    check::mend(&mut record);
    check::mend_payloads(&mut record);
    check::check_record(&record);
});
