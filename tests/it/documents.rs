//! README and `docs/`: every link resolves, every example workflow is valid, every subcommand is
//! documented, and the pages stay short.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use libtest_mimic::Trial;

use crate::world::{World, trial};

const MAX_WORDS: usize = 35_000;
const MAX_GLOSSARY: usize = 40;
const MAX_ARCHITECTURE_LINES: usize = 150;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the Markdown files of a directory, as paths below the root.
fn markdown(dir: &str) -> Vec<PathBuf> {
    let entries = root().join(dir).read_dir().expect("a directory of documents").flatten();
    let files = entries.map(|entry| Path::new(dir).join(entry.file_name()));
    files.filter(|file| file.extension().is_some_and(|ending| ending == "md")).collect()
}

fn text(file: &Path) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_default()
}

/// The code blocks of a document, each with its language, and its text without them.
fn split(text: &str) -> (Vec<(String, String)>, String) {
    let (mut blocks, mut prose) = (Vec::new(), String::new());
    let mut fence: Option<String> = None;
    for line in text.lines() {
        let ticks: String = line.chars().take_while(|c| *c == '`').collect();
        match &fence {
            None if ticks.len() >= 3 => {
                blocks.push((line[ticks.len()..].to_owned(), String::new()));
                fence = Some(ticks);
            }
            None => prose.extend([line, "\n"]),
            Some(open) if *open == line => fence = None,
            Some(_) => blocks.last_mut().expect("a block is open").1.extend([line, "\n"]),
        }
    }
    (blocks, prose)
}

/// Returns the anchor of a heading, as code hosts compute it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn normalized(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => _ = path.pop(),
            part => path.push(part),
        }
        path
    })
}

fn links() {
    let files: Vec<PathBuf> =
        ["", "docs", "workflows"].iter().flat_map(|dir| markdown(dir)).collect();
    let prose: BTreeMap<&PathBuf, String> =
        files.iter().map(|file| (file, split(&text(file)).1)).collect();
    let anchors = |file: &PathBuf| -> Vec<String> {
        let lines = prose.get(file).map_or("", String::as_str).lines();
        let headings = lines.filter(|line| line.starts_with('#'));
        headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
    };
    let mut broken = Vec::new();
    for (file, prose) in &prose {
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => (*file).clone(),
                path => normalized(&file.parent().unwrap_or(Path::new("")).join(path)),
            };
            let found = root().join(&target).exists();
            if !found || !(anchor.is_empty() || anchors(&target).iter().any(|a| a == anchor)) {
                broken.push(format!("{}: {link}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links lead nowhere:\n{}", broken.join("\n"));
}

/// Whether a block is a whole workflow rather than a part of one.
fn is_workflow(block: &str) -> bool {
    let has = |key: &str| block.lines().any(|line| line.starts_with(key));
    (has("version:") || has("name:")) && (has("steps:") || has("nodes:"))
}

fn workflows() {
    let (world, mut checked) = (World::new(), 0);
    for file in ["docs/steps.md", "docs/nodes.md", "docs/grimoires.md", "docs/spells.md"] {
        let (blocks, _) = split(&text(Path::new(file)));
        let yaml = blocks.iter().filter(|(language, _)| language == "yaml");
        for (_, block) in yaml.filter(|(_, block)| is_workflow(block)) {
            world.write("w.yaml", block);
            world.run(&["validate", "w.yaml", "--quiet"]).exits(0);
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} workflows were found");
}

fn subcommands() {
    let help = World::new().run(&["help"]).exits(0).stdout;
    let listed = help.split("\nConcepts").next().unwrap_or_default().lines();
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let docs: String = markdown("docs").iter().map(|file| text(file)).collect();
    let missing: Vec<&str> = names.filter(|name| !docs.contains(*name)).collect();
    assert!(missing.is_empty(), "not documented: {}", missing.join(", "));
}

fn sizes() {
    let pages = markdown("docs").into_iter().chain([PathBuf::from("README.md")]);
    let words: usize = pages.map(|file| text(&file).split_whitespace().count()).sum();
    assert!(words <= MAX_WORDS, "README.md and docs/ have {words} words");
    let glossary = text(Path::new("docs/words.md"));
    let rows = glossary.lines().filter(|line| line.starts_with("| ")).count() - 1;
    assert!(rows <= MAX_GLOSSARY, "docs/words.md has {rows} words");
    let lines = text(Path::new("docs/architecture.md")).lines().count();
    assert!(lines <= MAX_ARCHITECTURE_LINES, "docs/architecture.md has {lines} lines");
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("documents/links resolve", links),
        trial("documents/workflows are valid", workflows),
        trial("documents/subcommands are described", subcommands),
        trial("documents/pages stay short", sizes),
    ]
}
