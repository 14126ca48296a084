//! Shows each rule a bad sample, so that none goes blind unnoticed.

use super::*;

#[test]
fn rules_can_fail() {
    let file = |name: &str, lines: usize| vec![(name.to_owned(), "//\n".repeat(lines))];
    assert_eq!(too_long_files(&file("a/src/x.rs", SRC_LINES + 1)).len(), 1);
    assert_eq!(too_long_files(&file("a/tests/x.rs", SRC_LINES + 1)).len(), 0);
    assert_eq!(
        too_long_functions("x.rs", &format!("fn f() {{\n{}}}", "a;\n".repeat(FUNCTION_LINES))).len(),
        1
    );
    assert_eq!(
        banned_in(
            "x.rs",
            &format!("// {}{}: later\ntodo!()\ndbg!(1)\n// dbg!(", "FIX", "ME")
        )
        .len(),
        3
    );
    assert_eq!(banned_in("x.sh", "mktemp -d demo.XXXXXX").len(), 0);
    assert_eq!(vague_names("a/src/io_utils.rs", "mod common; mod manager { }").len(), 3);
    assert_eq!(vague_names("a/src/committer.rs", "mod commonplace;").len(), 0);
    let calls = "fn f() { a.unwrap() }\n/// b.unwrap()\n#[cfg(test)]\nmod tests { fn g() { c.expect(\"\") } }\n";
    assert_eq!(panicking_calls("x.rs", calls), ["x.rs:1: fn f() { a.unwrap() }"]);
    assert!(crate_docs_missing("lib.rs", &"//! x\n".repeat(CRATE_DOC_LINES - 1)).is_some());
    assert_eq!(unsafe_problems("x.rs", "fn f() { unsafe { g() } }", &[]).len(), 1);
    assert_eq!(
        unsafe_problems("x.rs", "fn f() { unsafe { g() } }", &[("x.rs", "why")]).len(),
        1
    );
    assert_eq!(
        unsafe_problems("x.rs", "// SAFETY: so\nunsafe { g() }", &[("x.rs", "why")]).len(),
        0
    );
    assert_eq!(unsafe_problems("x.rs", "// unsafe\n", &[("x.rs", "why")]).len(), 1);
    assert_eq!(too_wide("x.rs", &"é".repeat(RUST_LINE_WIDTH + 1)).len(), 1);
    assert_eq!(too_wide("x.sh", &"é".repeat(LINE_WIDTH + 1)).len(), 1);
    let root = "[workspace.dependencies]\na = \"1\"\nb = \"1#\" # the only parser of b\nc = { path = \"c\" }\n";
    assert_eq!(
        unexplained_dependencies("Cargo.toml", root),
        ["Cargo.toml:2: no reason after `#`"]
    );
    assert_eq!(
        unexplained_dependencies("x/Cargo.toml", "[dev-dependencies]\na.workspace = true\nb = \"1\"\n").len(),
        1
    );
    assert_eq!(
        undocumented_keys("c.toml", "# why\na = [\n  1,\n]\nb = 2\n\n# far\n\nc = 3\n").len(),
        2
    );
    let (tops, exists) = (BTreeSet::from(["engine".to_owned()]), |p: &Path| {
        p == Path::new("docs/a.md")
    });
    let docs = "[x](a.md#y) [z](b.md)\n`engine/gone.rs:12` `engine/*/x` `make x`\n```\n[no](c.md)\n```\n";
    assert_eq!(stale_references("docs/i.md", docs, &exists, &tops).len(), 2);
    let table = "## Invariants\n| n | test |\n|---|---|\n| 1 | `a::is_kept` |\n| 2 | `gone_test` |\n| 3 | soon |\n";
    assert_eq!(
        untested_rows("a.md", table, &BTreeSet::from(["is_kept".to_owned()])).len(),
        2
    );
    assert!(shell_problems("x.sh", "#!/bin/sh\necho\n").is_some());
}
