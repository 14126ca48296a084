//! Any bytes as the body of a frame: the rules are those of `tests/hostile/check.rs`.
#![no_main]

#[path = "../../tests/hostile/check.rs"]
#[allow(dead_code)]
mod check;
#[path = "../../tests/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| check::check_body(data));
