//! The house rules that a compiler does not check, read off the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Failed, Trial};

const WIDTH: usize = 100;
const MARKER: &str = "<!-- who may name whom -->";

/// Modules that touch nothing outside themselves.
const PURE: [&str; 5] = ["template", "yaml", "agent", "workflow", "engine"];
const EFFECTS: [&str; 5] = ["std::fs", "std::env", "std::process", "Instant::now", "SystemTime"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A source file: its path below the root, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn places<'a>(
        &'a self,
        wrong: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = String> + 'a {
        let lines = self.text.lines().enumerate().filter(move |(_, line)| wrong(line));
        lines.map(|(index, line)| format!("{}:{}: {}", self.path, index + 1, line.trim()))
    }

    /// The module of `src/` that a file belongs to.
    fn module(&self) -> &str {
        let below = self.path.strip_prefix("src/").unwrap_or(&self.path);
        below.split('/').next().unwrap_or_default().trim_end_matches(".rs")
    }
}

fn sources(below: &str) -> Vec<Source> {
    let mut open = vec![root().join(below)];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(path.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).expect("a source is text");
            let path = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "there are sources in {below}");
    found
}

fn all() -> Vec<Source> {
    ["src", "bin", "tests"].into_iter().flat_map(sources).collect()
}

/// The files that are compiled for tests only, as their parents say.
fn only_for_tests(sources: &[Source]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in sources {
        let directory = Path::new(&source.path).parent().unwrap_or(Path::new(""));
        let mut lines = source.text.lines();
        while let Some(line) = lines.next() {
            let next = if line == "#[cfg(test)]" { lines.next() } else { None };
            let name = next.and_then(|next| next.split_once("mod ")?.1.strip_suffix(';'));
            found.extend(name.map(|name| format!("{}/{name}.rs", directory.display())));
        }
    }
    found
}

/// What is compiled into the program: no tests, no comments.
fn shipped(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn report(what: &str, wrong: Vec<String>) -> Result<(), Failed> {
    if wrong.is_empty() { Ok(()) } else { Err(format!("{what}:\n{}", wrong.join("\n")).into()) }
}

fn openings() -> Result<(), Failed> {
    let bare = all().into_iter().filter(|source| !source.text.starts_with("//!"));
    report("a file opens with `//!`", bare.map(|source| source.path).collect())
}

fn width() -> Result<(), Failed> {
    let wide = |line: &str| line.chars().count() > WIDTH;
    report("lines are too long", all().iter().flat_map(|source| source.places(wide)).collect())
}

fn leftovers() -> Result<(), Failed> {
    // In pieces, or this file would be the first to break the rule.
    let words = [("todo", "!"), ("unimplemented", "!"), ("dbg", "!"), ("FIX", "ME"), ("XX", "X")];
    let words = words.iter().chain(&[("#[", "ignore")]);
    let words: Vec<String> = words.map(|(a, b)| format!("{a}{b}")).collect();
    let wrong = |line: &str| words.iter().any(|word| line.contains(word.as_str()));
    report("leftovers", all().iter().flat_map(|source| source.places(wrong)).collect())
}

fn purity() -> Result<(), Failed> {
    let sources = sources("src");
    let tests = only_for_tests(&sources);
    let mut wrong = Vec::new();
    for source in sources.into_iter().filter(|source| !tests.contains(&source.path)) {
        let code = shipped(&source.text);
        if PURE.contains(&source.module()) {
            let path = source.path;
            wrong.extend(
                Source { path, text: code }
                    .places(|line| EFFECTS.iter().any(|effect| line.contains(effect))),
            );
        }
    }
    report("a pure module touches the world", wrong)
}

/// Code that may trust the kernel: `disk` itself, what starts children and reads `/proc`, the
/// probes and the torture, which look at what the kernel says, and what no other machine makes.
const LOCAL: [&str; 6] = [
    "src/disk/",
    "src/exec/",
    "src/health/doctor/",
    "src/fleet/torture/",
    "src/base/process.rs",
    "src/cli/service.rs",
];
/// Calls whose ENOENT may come from a cache. `disk::fs` has a confirmed one for each.
const UNCONFIRMED: [&str; 12] = [
    ".exists()",
    ".is_dir()",
    ".is_file()",
    "try_exists(",
    ".symlink_metadata()",
    ".read_dir()",
    "use std::fs;",
    "use std::fs::{self",
    "std::fs::read",
    "std::fs::metadata(",
    "File::open(",
    "RealDisk",
];
/// The kind of a file that is open, or listed, is known; and the kernel's own files are local.
const KNOWN: [&str; 5] = ["kind.is_", "data.is_", "metadata()?.is_", "file_type()?.is_", "/proc/"];

/// No code outside of `disk` may take an absence for granted that only a cache tells of: another
/// machine may have made the file.
fn absence() -> Result<(), Failed> {
    let sources = sources("src");
    let tests = only_for_tests(&sources);
    let mut wrong = Vec::new();
    for source in sources.into_iter().filter(|source| !tests.contains(&source.path)) {
        let is_local = LOCAL.iter().any(|place| source.path.starts_with(place));
        if is_local || source.path.starts_with("src/sim/") || source.path.contains("/tests/") {
            continue;
        }
        let (path, text) = (source.path, shipped(&source.text));
        let is_wrong = |line: &str| {
            UNCONFIRMED.iter().any(|call| line.contains(call))
                && !KNOWN.iter().any(|known| line.contains(known))
        };
        wrong.extend(Source { path, text }.places(is_wrong));
    }
    report("absence is decided without `disk`", wrong)
}

/// Serde buffers the fields of such types and cannot read a fraction from the buffer, because
/// `serde_json` keeps numbers as their text. `crate::json` has what reads them.
fn buffered_numbers() -> Result<(), Failed> {
    let mut wrong = Vec::new();
    for source in sources("src") {
        let code = shipped(&source.text);
        // From a derive to the end of its type.
        for (_, rest) in code.match_indices("#[derive(").map(|(at, _)| code.split_at(at)) {
            let item = rest.split("\n}").next().unwrap_or_default();
            let derive = item.split(")]").next().unwrap_or_default();
            let buffers = |line: &str| {
                line.contains("#[serde(flatten)]")
                    || line.contains("#[serde(") && line.contains("tag = \"")
                    || line.contains("#[serde(untagged)]")
            };
            if derive.contains("Deserialize") && item.lines().any(buffers) {
                let name =
                    item.lines().find(|line| line.contains("struct ") || line.contains("enum "));
                wrong.push(format!("{}: {}", source.path, name.unwrap_or_default()));
            }
        }
    }
    report("serde buffers the numbers of these types", wrong)
}

type Table = BTreeMap<String, BTreeSet<String>>;

/// The fenced block after the marker: a line for each module, `module: module module`.
fn table(text: &str) -> Option<Table> {
    let (_, after) = text.split_once(MARKER)?;
    let block = after.split("```").nth(1)?;
    let lines = block.lines().filter_map(|line| line.split_once(':'));
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    Some(lines.map(|(module, may)| (module.trim().to_owned(), words(may))).collect())
}

/// The modules that a text names by `crate::`, also in braces.
fn named(code: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            found.insert(word(rest));
            continue;
        };
        let (mut depth, mut start) = (0, true);
        for (at, letter) in list.char_indices() {
            if start && !letter.is_whitespace() {
                found.insert(word(&list[at..]));
                start = false;
            }
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                _ => {}
            }
        }
    }
    found.remove("");
    found
}

fn who_may_name_whom() -> Result<(), Failed> {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap_or_default();
    let table = table(&text).ok_or("docs/architecture.md has no table of who may name whom")?;
    let sources = sources("src");
    let tests = only_for_tests(&sources);
    let mut wrong = Vec::new();
    for source in &sources {
        let module = source.module();
        if module == "lib" || tests.contains(&source.path) {
            continue;
        }
        let Some(may) = table.get(module) else {
            wrong.push(format!("{}: `{module}` is not in the table", source.path));
            continue;
        };
        for name in named(&shipped(&source.text)) {
            if name != module && !may.contains(&name) {
                wrong.push(format!("{}: `{module}` names `{name}`", source.path));
            }
        }
    }
    let modules: BTreeSet<&str> = sources.iter().map(Source::module).collect();
    for module in table.keys().filter(|module| !modules.contains(module.as_str())) {
        wrong.push(format!("`{module}` is in the table but not in src/"));
    }
    report("somebody names whom they may not", wrong)
}

fn the_table_is_read() -> Result<(), Failed> {
    let text = format!("x\n{MARKER}\n```\na:\nb: a c\n```\n`d: e`");
    let found = table(&text).ok_or("it is there")?;
    assert_eq!(found["b"].iter().collect::<Vec<_>>(), ["a", "c"]);
    assert!(found["a"].is_empty() && found.len() == 2);
    let code = "use crate::a::{b, c};\nuse crate::{d, e::{f, g},\n    h};\nfn x() { crate::i() }";
    assert_eq!(named(code).into_iter().collect::<String>(), "adehi");
    let code = "use a;\n// crate::b\n#[cfg(test)]\nmod tests {\n use crate::c;\n}";
    assert_eq!(shipped(code).trim(), "use a;");
    Ok(())
}

/// Every tracked file that is text.
fn tracked() -> Option<Vec<(PathBuf, String)>> {
    let output = Command::new("git").arg("ls-files").current_dir(root()).output().ok()?;
    let names = String::from_utf8(output.stdout).ok()?;
    let files = names.lines().map(|name| (PathBuf::from(name), root().join(name)));
    let texts = files.filter_map(|(name, path)| Some((name, fs::read_to_string(path).ok()?)));
    Some(texts.collect()).filter(|files: &Vec<_>| output.status.success() && !files.is_empty())
}

/// Paths of somebody's machine, and where packages come from other than the public registry.
fn machines() -> Result<(), Failed> {
    let Some(files) = tracked() else {
        eprintln!("skipped: this is no checkout");
        return Ok(());
    };
    let homes = ["home", "root", "work", "Users"].map(|name| format!("/{name}/"));
    let public = "registry+https://github.com/rust-lang/crates.io-index";
    let mut wrong = Vec::new();
    for (path, text) in files {
        let lock = path.ends_with("Cargo.lock");
        for (index, line) in text.lines().enumerate() {
            let of_a_machine = homes.iter().any(|home| {
                line.match_indices(home.as_str()).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    // In the middle of a path of ours it is a name like any other.
                    before.is_none_or(|c| !c.is_alphanumeric() && !"._-}*>$)".contains(c))
                })
            });
            let source = line.strip_prefix("source = ").filter(|_| lock);
            let of_a_registry = source.is_some_and(|source| source.trim_matches('"') != public)
                || (path.ends_with("Cargo.toml") && line.contains("registry ="));
            if of_a_machine || of_a_registry {
                wrong.push(format!("{}:{}: {line}", path.display(), index + 1));
            }
        }
    }
    report("a path or a registry of one machine", wrong)
}

fn cases() -> Result<(), Failed> {
    let mut open = vec![root().join("tests/cases")];
    let mut wrong = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(path.read_dir()?.flatten().map(|entry| entry.path()));
        } else if path.extension().is_some_and(|ending| ending == "case") {
            let text = fs::read_to_string(&path)?;
            let opening = text.split("\n\n").next().unwrap_or_default();
            let (tag, sentence) = opening.split_once(": ").unwrap_or_default();
            let well = !tag.is_empty() && !tag.contains(' ') && sentence.trim_end().ends_with('.');
            if !well {
                wrong.push(path.display().to_string());
            }
        }
    }
    report("a case begins with `tag: a sentence.`", wrong)
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("tidy/every file says what it is", openings),
        Trial::test("tidy/lines have at most 100 characters", width),
        Trial::test("tidy/nothing was left for later", leftovers),
        Trial::test("tidy/pure modules are pure", purity),
        Trial::test("tidy/absence is confirmed", absence),
        Trial::test("tidy/serde buffers no numbers", buffered_numbers),
        Trial::test("tidy/who may name whom", who_may_name_whom),
        Trial::test("tidy/the table of who may name whom is read", the_table_is_read),
        Trial::test("tidy/nothing of one machine", machines),
        Trial::test("tidy/every case begins with a sentence", cases),
    ]
}
