//! House rules that no compiler checks, over every file that git tracks. Each rule is one test and names file, line and
//! cure. `can_fail.rs` shows each rule a bad sample.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rust_source::{blank, outline, plain, tokens};

#[path = "tidy/can_fail.rs"]
mod can_fail;
#[path = "tidy/rust_source.rs"]
mod rust_source;

const SRC_LINES: usize = 600;
const TEST_LINES: usize = 900;
const FUNCTION_LINES: usize = 100;
const LINE_WIDTH: usize = 140;
/// rustfmt keeps code at 120; a comment, which it does not break, may stand out a little.
const RUST_LINE_WIDTH: usize = 140;
const CRATE_DOC_LINES: usize = 15;
const GENERATED: &str = "wire-format/src/generated/";

/// Files (or folders, ending in `/`) that may hold `unsafe`, each with its reason.
const UNSAFE_ALLOWED: &[(&str, &str)] = &[
    (GENERATED, "what flatc writes; only reached behind verification"),
    (
        "bench-harness/src/raw/ring.rs",
        "the io-uring crate can't know that a queued buffer outlives its operation",
    ),
    (
        "engine/lognode/src/shard/socket.rs",
        "glommio takes over an accepted socket only by its raw descriptor",
    ),
    (
        "engine/lognode/tests/probe_limits/seccomp.rs",
        "a test puts a seccomp filter on its own thread, for which there is no safe call",
    ),
];

// ---------------------------------------------------------------- the tree

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Every tracked file that still exists, relative to the root.
fn tracked() -> Vec<String> {
    let out = Command::new("git")
        .arg("-C")
        .arg(root())
        .args(["ls-files", "-z"])
        .output()
        .expect("git must be on PATH");
    assert!(
        out.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    let all = String::from_utf8(out.stdout).expect("file names are utf-8");
    let files: Vec<String> = all
        .split('\0')
        .filter(|f| !f.is_empty() && root().join(f).is_file())
        .map(str::to_owned)
        .collect();
    assert!(!files.is_empty(), "git tracks no file below {}", root().display());
    files
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Tracked files for which `pick` holds, with their text.
fn texts(pick: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    tracked()
        .into_iter()
        .filter(|f| pick(f))
        .map(|f| (f.clone(), read(&f)))
        .collect()
}

fn rust_files() -> Vec<(String, String)> {
    texts(|f| f.ends_with(".rs"))
}

fn is_generated(file: &str) -> bool {
    file.starts_with(GENERATED)
}

/// Code that never ships: integration tests, benches, fuzz targets, examples, and `tests` modules below src.
fn is_test_file(file: &str) -> bool {
    let stem = file.rsplit('/').next().unwrap_or(file).trim_end_matches(".rs");
    file.split('/')
        .any(|part| matches!(part, "tests" | "benches" | "fuzz" | "examples"))
        || stem == "tests"
        || stem.ends_with("_tests")
}

fn assert_clean(rule: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{rule}\n  {}\n", found.join("\n  "));
}

// ---------------------------------------------------------------- rules on Rust

fn too_long_files(files: &[(String, String)]) -> Vec<String> {
    let limit = |file: &str| if is_test_file(file) { TEST_LINES } else { SRC_LINES };
    let long = files
        .iter()
        .filter(|(file, text)| !is_generated(file) && text.lines().count() > limit(file));
    long.map(|(file, text)| format!("{file}: {} lines, at most {}", text.lines().count(), limit(file)))
        .collect()
}

#[test]
fn files_stay_short() {
    assert_clean("a file holds one concept: split these", too_long_files(&rust_files()));
}

fn too_long_functions(file: &str, text: &str) -> Vec<String> {
    let long = outline(text)
        .functions
        .into_iter()
        .filter(|(_, from, to)| to - from + 1 > FUNCTION_LINES);
    long.map(|(name, from, to)| format!("{file}:{from}: fn {name} has {} lines", to - from + 1))
        .collect()
}

#[test]
fn functions_stay_short() {
    let files = rust_files();
    let found = files
        .iter()
        .filter(|(file, _)| !is_generated(file))
        .flat_map(|(f, text)| too_long_functions(f, text));
    assert_clean("a function has at most 100 lines: name its steps", found.collect());
}

fn contains_word(line: &str, word: &str) -> bool {
    let edge = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word)
        .any(|(at, _)| edge(line[..at].chars().next_back()) && edge(line[at + word.len()..].chars().next()))
}

fn banned_in(file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // Written in halves, so that this file does not name itself.
    let marks = [concat!("FIX", "ME"), concat!("XX", "X")];
    for (number, line) in text.lines().enumerate() {
        found.extend(
            marks
                .iter()
                .filter(|m| contains_word(line, m))
                .map(|m| format!("{file}:{}: says {m}", number + 1)),
        );
    }
    if file.ends_with(".rs") {
        let code: String = blank(text).into_iter().collect();
        for (number, line) in code.lines().enumerate() {
            let dense: String = line.split_whitespace().collect();
            let calls = ["todo!(", "unimplemented!(", "dbg!(", "#[ignore"];
            found.extend(
                calls
                    .iter()
                    .filter(|c| dense.contains(**c))
                    .map(|c| format!("{file}:{}: uses {c}", number + 1)),
            );
        }
    }
    found
}

#[test]
fn nothing_is_left_for_later() {
    let is_text = |f: &str| {
        [".rs", ".md", ".sh", ".toml", ".fbs", ".yml", "Makefile"]
            .iter()
            .any(|e| f.ends_with(e))
    };
    let files = texts(|f| is_text(f) && !is_generated(f));
    assert_clean(
        "finish it, or open an issue",
        files.iter().flat_map(|(f, text)| banned_in(f, text)).collect(),
    );
}

fn vague_name(name: &str) -> bool {
    let words = ["utils", "util", "common", "helpers", "helper", "manager", "misc"];
    name.split(['_', '-']).any(|part| words.contains(&part))
}

fn vague_names(file: &str, text: &str) -> Vec<String> {
    let mut names: Vec<String> = file
        .split('/')
        .map(|part| part.trim_end_matches(".rs").to_owned())
        .collect();
    let shape = outline(text);
    names.extend(shape.inline_mods);
    names.extend(shape.mods.into_iter().map(|m| m.name));
    let vague: BTreeSet<_> = names.into_iter().filter(|n| vague_name(n)).collect();
    vague
        .into_iter()
        .map(|n| format!("{file}: `{n}` says nothing; name what is inside"))
        .collect()
}

#[test]
fn names_say_what_is_inside() {
    let files = rust_files();
    assert_clean(
        "no drawer for odds and ends",
        files.iter().flat_map(|(f, t)| vague_names(f, t)).collect(),
    );
}

/// Clippy does the real check with types; this one also sees code behind a feature or another target.
fn panicking_calls(file: &str, text: &str) -> Vec<String> {
    let (code, raw): (String, Vec<&str>) = (blank(text).into_iter().collect(), text.lines().collect());
    let tests = outline(text).test_lines;
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let number = index + 1;
        let excused = raw[index.saturating_sub(3)..=index]
            .iter()
            .any(|l| l.contains("clippy::unwrap_used") || l.contains("clippy::expect_used"));
        let in_test = tests.iter().any(|(from, to)| (*from..=*to).contains(&number));
        if !excused && !in_test && (line.contains(".unwrap()") || line.contains(".expect(")) {
            found.push(format!("{file}:{number}: {}", line.trim()));
        }
    }
    found
}

#[test]
fn shipped_code_does_not_unwrap() {
    let test_only = module_tree()
        .into_iter()
        .filter(|(_, test)| *test)
        .map(|(f, _)| f)
        .collect::<BTreeSet<_>>();
    let files = texts(|f| f.ends_with(".rs") && f.contains("/src/") && !is_generated(f) && !is_test_file(f));
    let found = files
        .iter()
        .filter(|(f, _)| !test_only.contains(f))
        .flat_map(|(f, text)| panicking_calls(f, text));
    assert_clean("return a typed error that names what and where", found.collect());
}

fn crate_dirs() -> BTreeSet<String> {
    let sources = tracked().into_iter().filter(|f| f.ends_with(".rs"));
    sources
        .filter_map(|f| f.split_once("/src/").map(|(dir, _)| dir.to_owned()))
        .collect()
}

fn is_crate_root(file: &str, dir: &str) -> bool {
    let Some(inner) = file.strip_prefix(&format!("{dir}/src/")) else {
        return false;
    };
    matches!(inner, "lib.rs" | "main.rs") || (inner.starts_with("bin/") && inner.ends_with(".rs"))
}

/// Every file below a `src` that some `mod` or `include!` reaches from a crate root, and whether only tests reach it.
fn module_tree() -> BTreeMap<String, bool> {
    let mut reached: BTreeMap<String, bool> = BTreeMap::new();
    let files: BTreeSet<String> = tracked().into_iter().collect();
    for dir in crate_dirs() {
        let mut queue: Vec<(String, bool)> = files
            .iter()
            .filter(|f| is_crate_root(f, &dir))
            .map(|f| (f.clone(), false))
            .collect();
        while let Some((file, test)) = queue.pop() {
            // A file that both tests and shipped code reach is shipped code.
            if reached.get(&file).is_some_and(|&known| !known || test) || !root().join(&file).is_file() {
                continue;
            }
            reached.insert(file.clone(), test);
            let shape = outline(&read(&file));
            for decl in shape.mods {
                queue.extend(decl.files(&file).into_iter().map(|f| (f, test || decl.test)));
            }
            let folder = Path::new(&file).parent().unwrap_or(Path::new(""));
            queue.extend(shape.includes.iter().map(|i| (plain(&folder.join(i)), test)));
        }
    }
    reached
}

#[test]
fn every_source_file_is_compiled() {
    let reached = module_tree();
    let dead = tracked()
        .into_iter()
        .filter(|f| f.ends_with(".rs") && f.contains("/src/") && !reached.contains_key(f));
    assert_clean("no `mod` reaches these files: declare or delete them", dead.collect());
}

fn crate_docs_missing(file: &str, text: &str) -> Option<String> {
    let lines = text.lines().take_while(|l| l.starts_with("//!")).count();
    (lines < CRATE_DOC_LINES).then(|| format!("{file}: opens with {lines} lines of //!, needed {CRATE_DOC_LINES}"))
}

#[test]
fn crates_open_with_their_part_of_the_way() {
    let files = texts(|f| f.ends_with("/src/lib.rs"));
    let found = files
        .iter()
        .filter_map(|(f, text)| crate_docs_missing(f, text))
        .collect();
    assert_clean("say what the crate does and how a message passes through it", found);
}

fn unsafe_at(text: &str) -> Vec<usize> {
    let t = tokens(&blank(text));
    t.iter()
        .filter(|token| token.text == "unsafe")
        .map(|token| token.line)
        .collect()
}

fn unsafe_problems(file: &str, text: &str, allowed: &[(&str, &str)]) -> Vec<String> {
    let lines = unsafe_at(text);
    let entry = allowed
        .iter()
        .find(|(p, _)| file == *p || (p.ends_with('/') && file.starts_with(p)));
    match entry {
        None => lines
            .iter()
            .map(|l| format!("{file}:{l}: unsafe in a file that is not on the list"))
            .collect(),
        Some((path, _)) if path.ends_with('/') => Vec::new(),
        Some(_) if lines.is_empty() => vec![format!("{file}: is on the list and has no unsafe any more")],
        Some(_) => {
            let raw: Vec<&str> = text.lines().collect();
            let bare = |l: &&usize| {
                !raw[l.saturating_sub(9)..**l]
                    .iter()
                    .any(|r| r.to_lowercase().contains("safety"))
            };
            lines
                .iter()
                .filter(bare)
                .map(|l| format!("{file}:{l}: unsafe without a SAFETY comment above"))
                .collect()
        }
    }
}

#[test]
fn unsafe_stays_behind_its_fence() {
    let files = rust_files();
    let found = files
        .iter()
        .flat_map(|(f, text)| unsafe_problems(f, text, UNSAFE_ALLOWED))
        .collect();
    assert_clean(
        "unsafe needs an entry with a reason in UNSAFE_ALLOWED of this file",
        found,
    );
}

// ---------------------------------------------------------------- rules on everything else

fn too_wide(file: &str, text: &str) -> Vec<String> {
    let limit = if file.ends_with(".rs") {
        RUST_LINE_WIDTH
    } else {
        LINE_WIDTH
    };
    // A table row, an address or a message can't be broken.
    let in_markdown = |line: &str| line.trim_start().starts_with('|') || line.contains("](");
    let in_rust = |line: &str| line.trim_start().starts_with('"') || line.trim_start().starts_with("#[error(");
    let exempt = |line: &str| {
        line.contains("://") || file.ends_with(".md") && in_markdown(line) || file.ends_with(".rs") && in_rust(line)
    };
    let wide = text
        .lines()
        .enumerate()
        .filter(|(_, l)| l.chars().count() > limit && !exempt(l));
    wide.map(|(n, l)| format!("{file}:{}: {} characters, at most {limit}", n + 1, l.chars().count()))
        .collect()
}

#[test]
fn lines_fit_the_screen() {
    let kinds = [
        ".rs",
        ".md",
        ".sh",
        ".fbs",
        ".yml",
        ".service",
        "Makefile",
        ".ci/run",
        ".ci/setup",
        ".ci/summary",
    ];
    let files = texts(|f| kinds.iter().any(|k| f.ends_with(k)) && !is_generated(f));
    assert_clean(
        "break these lines",
        files.iter().flat_map(|(f, t)| too_wide(f, t)).collect(),
    );
}

/// A line of TOML without its comment; quotes are respected.
fn without_comment(line: &str) -> &str {
    let mut quoted = None;
    for (at, c) in line.char_indices() {
        match (c, quoted) {
            ('"' | '\'', None) => quoted = Some(c),
            (c, Some(q)) if c == q => quoted = None,
            ('#', None) => return &line[..at],
            _ => {}
        }
    }
    line
}

/// The lines that set a key, as (section, line number, line, line above); continuation lines of an array are skipped.
fn toml_keys(text: &str) -> Vec<(String, usize, String, String)> {
    let (mut out, mut section, mut depth, mut above) = (Vec::new(), String::new(), 0i32, "");
    for (index, line) in text.lines().enumerate() {
        let body = without_comment(line);
        if depth == 0 && body.trim_start().starts_with('[') {
            section = body.trim().trim_matches(['[', ']']).to_owned();
        } else {
            if depth == 0 && body.contains('=') {
                out.push((section.clone(), index + 1, line.to_owned(), above.to_owned()));
            }
            let count = |c: char| i32::try_from(body.matches(c).count()).unwrap();
            depth += count('[') + count('{') - count(']') - count('}');
        }
        above = line;
    }
    out
}

fn unexplained_dependencies(file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (section, number, line, _) in toml_keys(text) {
        let body = without_comment(&line);
        if section == "workspace.dependencies" {
            if !body.contains("path =") && line[body.len()..].trim_start_matches('#').trim().len() < 8 {
                found.push(format!("{file}:{number}: no reason after `#`"));
            }
        } else if section.ends_with("dependencies") && file != "Cargo.toml" {
            let from_root = body.contains("workspace = true") || body.contains("workspace=true");
            if !from_root {
                found.push(format!("{file}:{number}: take it from [workspace.dependencies]"));
            }
        }
    }
    found
}

#[test]
fn every_dependency_has_a_reason() {
    // A fuzz folder is its own workspace, and can't inherit.
    let manifests = texts(|f| f.ends_with("Cargo.toml") && !f.contains("/fuzz/"));
    let found = manifests
        .iter()
        .flat_map(|(f, text)| unexplained_dependencies(f, text))
        .collect();
    assert_clean(
        "each external crate stands once in the root Cargo.toml, with the reason why",
        found,
    );
}

fn undocumented_keys(file: &str, text: &str) -> Vec<String> {
    let bare = toml_keys(text)
        .into_iter()
        .filter(|(_, _, _, above)| !above.trim_start().starts_with('#'));
    bare.map(|(_, n, line, _)| format!("{file}:{n}: `{}` has no comment right above", line.trim()))
        .collect()
}

#[test]
fn every_setting_is_explained() {
    let files = texts(|f| f == "configs/lognode.toml");
    assert_clean(
        "say what it does, its unit and its limits",
        files.iter().flat_map(|(f, t)| undocumented_keys(f, t)).collect(),
    );
}

/// The targets of links, and the code spans that look like a path of this tree, each with its line number.
fn references(text: &str) -> Vec<(usize, bool, String)> {
    let (mut out, mut fenced) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            for (i, span) in line.split('`').enumerate() {
                if i % 2 == 1 {
                    out.push((index + 1, false, span.to_owned()));
                }
            }
            for part in line.split("](").skip(1) {
                let target = part.split([')', ' ']).next().unwrap_or_default();
                out.push((index + 1, true, target.split('#').next().unwrap_or_default().to_owned()));
            }
        }
    }
    out
}

fn stale_references(file: &str, text: &str, exists: &dyn Fn(&Path) -> bool, tops: &BTreeSet<String>) -> Vec<String> {
    let folder = Path::new(file).parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    for (line, is_link, target) in references(text) {
        let outside = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
        let path = if is_link {
            folder.join(&target)
        } else {
            PathBuf::from(target.split("::").next().unwrap_or_default())
        };
        let path = plain(&path);
        let path = path.trim_end_matches(|c: char| c == ':' || c.is_ascii_digit() && target.contains(':'));
        let looks_like_ours = |p: &str| {
            let odd = p.contains(|c: char| " *<>{}$|,".contains(c));
            p.contains('/') && !odd && p.split('/').next().is_some_and(|top| tops.contains(top))
        };
        if !outside && (is_link || looks_like_ours(path)) && !exists(Path::new(path)) {
            found.push(format!("{file}:{line}: {target} does not exist"));
        }
    }
    found
}

#[test]
fn docs_point_at_files_that_exist() {
    let tops: BTreeSet<String> = tracked()
        .iter()
        .filter_map(|f| f.split_once('/'))
        .map(|(top, _)| top.to_owned())
        .collect();
    let exists = |p: &Path| root().join(p).exists();
    let files = texts(|f| f.ends_with(".md"));
    let found = files
        .iter()
        .flat_map(|(f, text)| stale_references(f, text, &exists, &tops))
        .collect();
    assert_clean("stale docs", found);
}

/// Rows of the tables below headings that speak of invariants or cases must each name a test that exists.
fn untested_rows(file: &str, text: &str, functions: &BTreeSet<String>) -> Vec<String> {
    let (mut found, mut relevant) = (Vec::new(), false);
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        if line.starts_with('#') {
            let title = line.to_lowercase();
            relevant = title.contains("invariant") || title.contains("cases");
        }
        let is_rule = |l: &str| l.starts_with('|') && l.chars().all(|c| "|-: ".contains(c));
        let header = is_rule(line) || lines.get(index + 1).is_some_and(|next| is_rule(next));
        if !relevant || !line.starts_with('|') || header {
            continue;
        }
        let spans = line.split('`').skip(1).step_by(2).filter_map(|s| s.split("::").last());
        let is_name = |s: &&str| {
            s.contains('_')
                && s.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        let names: Vec<&str> = spans.filter(is_name).collect();
        if names.is_empty() {
            found.push(format!("{file}:{}: names no test: {line}", index + 1));
        }
        let gone = names.iter().filter(|n| !functions.contains(**n));
        found.extend(gone.map(|n| format!("{file}:{}: there is no `fn {n}`", index + 1)));
    }
    found
}

#[test]
fn every_invariant_names_its_tests() {
    let functions = rust_files()
        .iter()
        .flat_map(|(_, text)| outline(text).functions)
        .map(|(name, _, _)| name)
        .collect();
    let files = texts(|f| f == "docs/architecture.md");
    let found = files
        .iter()
        .flat_map(|(f, text)| untested_rows(f, text, &functions))
        .collect();
    assert_clean("an invariant without a test that can fail is a wish", found);
}

fn shell_problems(file: &str, text: &str) -> Option<String> {
    let strict = text.lines().take(30).any(|l| l.starts_with("set -eu"));
    (!text.starts_with("#!") || !strict).then(|| format!("{file}: begins with `#!` and says `set -eu` near the top"))
}

#[test]
fn shell_scripts_stop_at_the_first_error() {
    let scripts: Vec<(String, String)> = tracked()
        .into_iter()
        .filter(|f| f.ends_with(".sh") || f.starts_with(".ci/"))
        .map(|f| (f.clone(), read(&f)))
        .filter(|(f, text)| f.ends_with(".sh") || text.lines().next().is_some_and(|l| l.starts_with("#!")))
        .collect();
    assert!(
        scripts.iter().any(|(f, _)| f == ".ci/run"),
        "the check of a fresh clone, .ci/run, is gone"
    );
    assert_clean(
        "shell scripts",
        scripts.iter().filter_map(|(f, text)| shell_problems(f, text)).collect(),
    );
}
