//! `src/generated` is what `flatc` makes of `schemas`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::{path::Path, process::Command};

#[test]
fn generated_code_is_current() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/generate.sh");
    let run = Command::new("bash").arg(&script).arg("--check").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // The script's last line says whether the compiler was there, or hashes alone were compared.
    println!("{}", text(&run.stdout));
    assert!(run.status.success(), "{}{}", text(&run.stdout), text(&run.stderr));
}
