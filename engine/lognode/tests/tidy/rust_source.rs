//! Just enough of Rust's grammar for the house rules: comments and strings blanked, then words and signs, then the
//! modules, functions and test regions of a file.

use std::path::Path;

/// The source with comments and the insides of strings blanked; positions and lines stay as they are.
pub fn blank(source: &str) -> Vec<char> {
    let s: Vec<char> = source.chars().collect();
    let mut out = s.clone();
    let at = |i: usize| s.get(i).copied().unwrap_or('\0');
    let mut wipe = |from: usize, to: usize| {
        for c in &mut out[from..to.min(s.len())] {
            if *c != '\n' {
                *c = ' ';
            }
        }
    };
    let mut i = 0;
    while i < s.len() {
        let word_before = i > 0 && (s[i - 1].is_alphanumeric() || s[i - 1] == '_');
        let end = match at(i) {
            '/' if at(i + 1) == '/' => find(&s, i, |j| s[j] == '\n'),
            '/' if at(i + 1) == '*' => block_comment_end(&s, i),
            '"' => string_end(&s, i),
            'r' if !word_before || matches!(s[i - 1], 'b' | 'c') => match raw_string_end(&s, i) {
                Some(end) => end,
                None => {
                    i += 1;
                    continue;
                }
            },
            '\'' if at(i + 1) == '\\' => find(&s, i + 3, |j| s[j] == '\'') + 1,
            '\'' if at(i + 2) == '\'' => i + 3,
            _ => {
                i += 1;
                continue;
            }
        };
        wipe(i, end);
        i = end;
    }
    out
}

/// The first position from `from` on for which `hit` holds, else the end.
pub fn find(s: &[char], from: usize, hit: impl Fn(usize) -> bool) -> usize {
    (from..s.len()).find(|&j| hit(j)).unwrap_or(s.len())
}

pub fn block_comment_end(s: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i + 1 < s.len() {
        match (s[i], s[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    s.len()
}

pub fn string_end(s: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < s.len() && s[i] != '"' {
        i += if s[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

pub fn raw_string_end(s: &[char], start: usize) -> Option<usize> {
    let hashes = s[start + 1..].iter().take_while(|c| **c == '#').count();
    let open = start + 1 + hashes;
    if s.get(open) != Some(&'"') {
        return None;
    }
    let closes = |j: usize| s[j] == '"' && s[j + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    Some(find(s, open + 1, closes) + 1 + hashes)
}

/// One word or one sign of the code.
pub struct Token {
    pub text: String,
    pub at: usize,
    pub line: usize,
}

pub fn tokens(code: &[char]) -> Vec<Token> {
    let (mut out, mut i, mut line) = (Vec::new(), 0, 1);
    while i < code.len() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let end = if word(code[i]) {
            find(code, i, |j| !word(code[j]))
        } else {
            i + 1
        };
        if code[i] == '\n' {
            line += 1;
        } else if !code[i].is_whitespace() {
            out.push(Token {
                text: code[i..end].iter().collect(),
                at: i,
                line,
            });
        }
        i = end;
    }
    out
}

/// The index of the token that ends the item whose tokens begin at `from`: its closing brace, or its semicolon.
pub fn item_end(tokens: &[Token], from: usize) -> usize {
    let (mut braces, mut brackets) = (0usize, 0usize);
    for (i, token) in tokens.iter().enumerate().skip(from) {
        match token.text.as_str() {
            "(" | "[" => brackets += 1,
            ")" | "]" => brackets = brackets.saturating_sub(1),
            ";" | "," if braces == 0 && brackets == 0 => return i,
            "{" => braces += 1,
            "}" if braces <= 1 => return i,
            "}" => braces -= 1,
            _ => {}
        }
    }
    tokens.len().saturating_sub(1)
}

/// A `mod name;` of a file: the folders of inline modules around it, its `#[path]`, and whether it is for tests only.
pub struct ModDecl {
    pub inside: Vec<String>,
    pub name: String,
    pub path: Option<String>,
    pub test: bool,
}

/// What the structure of one source file says.
#[derive(Default)]
pub struct Outline {
    pub mods: Vec<ModDecl>,
    pub inline_mods: Vec<String>,
    pub includes: Vec<String>,
    pub functions: Vec<(String, usize, usize)>,
    pub test_lines: Vec<(usize, usize)>,
}

pub fn outline(source: &str) -> Outline {
    let raw: Vec<char> = source.chars().collect();
    let t = tokens(&blank(source));
    let text = |i: usize| t.get(i).map_or("", |token| token.text.as_str());
    let raw_between = |from: usize, to: usize| -> String {
        let end = t.get(to).map_or(raw.len(), |token| token.at);
        raw[t[from].at.min(end)..end].iter().collect()
    };
    let mut out = Outline::default();
    let mut scopes: Vec<Option<String>> = Vec::new();
    let mut attributes = String::new();
    let mut i = 0;
    while i < t.len() {
        if text(i) == "#" && (text(i + 1) == "[" || text(i + 1) == "!" && text(i + 2) == "[") {
            let end = close(&t, if text(i + 1) == "[" { i + 1 } else { i + 2 });
            let attribute = raw_between(i, end + 1);
            if attribute.starts_with("#!") && is_cfg_test(&attribute) && scopes.is_empty() {
                out.test_lines.push((1, usize::MAX));
            }
            attributes += &attribute;
            i = end + 1;
            continue;
        }
        if is_cfg_test(&attributes) {
            out.test_lines.push((t[i].line, t[item_end(&t, i)].line));
        }
        match text(i) {
            "pub" if text(i + 1) == "(" => {
                i = close(&t, i + 1) + 1;
                continue;
            }
            "pub" | "unsafe" | "async" | "const" | "extern" => {
                i += 1;
                continue;
            }
            "mod" if text(i + 2) == ";" => out.mods.push(ModDecl {
                inside: scopes.iter().flatten().cloned().collect(),
                name: text(i + 1).to_owned(),
                path: quoted_after(&attributes, "path"),
                test: is_cfg_test(&attributes),
            }),
            "mod" if text(i + 2) == "{" => {
                out.inline_mods.push(text(i + 1).to_owned());
                scopes.push(Some(text(i + 1).to_owned()));
                i += 2;
            }
            "include" if text(i + 1) == "!" => {
                out.includes.extend(quoted_after(&raw_between(i, i + 5), "include"));
            }
            "fn" if text(i + 1).starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                out.functions
                    .push((text(i + 1).to_owned(), t[i].line, t[item_end(&t, i)].line));
            }
            "{" => scopes.push(None),
            "}" => drop(scopes.pop()),
            _ => {}
        }
        attributes.clear();
        i += 1;
    }
    out
}

/// The index of the token that closes the bracket at `open`.
pub fn close(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return i;
        }
    }
    tokens.len().saturating_sub(1)
}

pub fn is_cfg_test(attributes: &str) -> bool {
    let dense: String = attributes.split_whitespace().collect();
    dense.contains("cfg(test)") || dense.contains("cfg(all(test")
}

/// The first string literal after the word `key`.
pub fn quoted_after(text: &str, key: &str) -> Option<String> {
    text.split_once(key)?.1.split('"').nth(1).map(str::to_owned)
}

impl ModDecl {
    /// Where the module declared in `file` may live.
    pub fn files(&self, file: &str) -> Vec<String> {
        let parent = Path::new(file).parent().unwrap_or(Path::new("")).to_path_buf();
        let stem = Path::new(file).file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        let owns_folder = matches!(stem, "lib" | "main" | "mod") || parent.ends_with("bin");
        let mut folder = if owns_folder { parent.clone() } else { parent.join(stem) };
        if let Some(path) = &self.path {
            return vec![plain(&if self.inside.is_empty() {
                parent.join(path)
            } else {
                folder.join(path)
            })];
        }
        folder.extend(&self.inside);
        vec![
            plain(&folder.join(format!("{}.rs", self.name))),
            plain(&folder.join(&self.name).join("mod.rs")),
        ]
    }
}

/// The path with `.` and `..` resolved by name.
pub fn plain(path: &Path) -> String {
    let mut out: Vec<&str> = Vec::new();
    for part in path.iter().filter_map(|p| p.to_str()) {
        match part {
            "." => {}
            ".." => drop(out.pop()),
            _ => out.push(part),
        }
    }
    out.join("/")
}

#[test]
fn scanner_reads_rust() {
    let source = concat!(
        "/* a /* nested */ fn no() {} */ // fn no2() {}\n",
        "fn a<'x>(s: &'x str) -> char { let _ = r#\"fn b() { \" }\"#; let _ = \"\\\"{\"; '{' }\n",
        "mod outer { pub(crate) mod inner; }\n",
        "#[cfg(test)]\n#[path = \"odd.rs\"]\nmod tests;\n",
        "#[cfg(test)]\nmod more {\n  fn t() { x.unwrap() }\n}\nfn last() {\n}\n",
        "const C: [u8; 3] = *b\"}}}\"; include!(\"gen/x.rs\");\n",
        "trait T { fn declared(&self, a: [u8; 2]); }\nfn r#type() { '\\'' ; b'\\\\'; }\n",
    );
    let shape = outline(source);
    let names: Vec<_> = shape
        .functions
        .iter()
        .map(|(n, from, to)| (n.as_str(), *from, *to))
        .collect();
    assert_eq!(
        names,
        [
            ("a", 2, 2),
            ("t", 9, 9),
            ("last", 11, 12),
            ("declared", 14, 14),
            ("r", 15, 15)
        ]
    );
    assert_eq!(shape.test_lines, [(6, 6), (8, 10)]);
    assert_eq!(shape.includes, ["gen/x.rs"]);
    let mods: Vec<_> = shape.mods.iter().flat_map(|m| m.files("c/src/lib.rs")).collect();
    assert_eq!(
        mods,
        ["c/src/outer/inner.rs", "c/src/outer/inner/mod.rs", "c/src/odd.rs"]
    );
    assert_eq!(shape.mods[0].files("c/src/deep.rs")[0], "c/src/deep/outer/inner.rs");
    assert!(shape.mods[1].test && !shape.mods[0].test);
}
