//! Feeds targets changed YAML trees: values dropped, duplicated, retyped, or swapped.
//!
//! The corpus is every workflow, settings file, bead, and task in the examples and the cases.
//! `ORCHESTRATE_MUTATE=all` tries every single change of every file, which takes minutes.
#![allow(clippy::disallowed_methods, reason = "the caller of a test chooses its size")]

use std::fs;
use std::panic::AssertUnwindSafe;

use super::TARGETS;
use super::texts::texts;
use crate::base::random::Random;
use crate::workflow::bead::Bead;
use crate::workflow::{Place, front, read_config};
use crate::yaml::{self, Node, Value};

/// Changed documents for each target.
const SAMPLE: usize = 2000;
const NOWHERE: Place = Place { line: 1, column: 1, len: 1 };

/// A file of the corpus: the target that reads it, its tree, and the text after the tree.
struct Document {
    target: &'static str,
    tree: Node,
    /// Text after front matter, or `None` if the whole file is YAML.
    body: Option<String>,
}

fn document(name: &str, text: &str) -> Option<Document> {
    if name.ends_with(".md") || name.ends_with(".task") {
        let parts = front::split(text).ok()?;
        let tree = yaml::parse(parts.head?).ok().filter(|tree| tree.to_json().is_object())?;
        let target = if front::read_task_head(parts.head?).is_ok() { "task_text" } else { "bead" };
        return Some(Document { target, tree, body: Some(parts.body.to_owned()) });
    }
    let tree = yaml::parse(text).ok()?;
    if !matches!(&tree.value, Value::Map(pairs) if !pairs.is_empty()) {
        return None;
    }
    let target = match () {
        () if tree.get("steps").is_some() || tree.get("nodes").is_some() => "workflow",
        () if Bead::parse("b.yaml", text).is_ok() => "bead",
        () if read_config(text).is_ok() => "config",
        () => return None,
    };
    Some(Document { target, tree, body: None })
}

/// The path to a value: the index of a child at each level. A map has two children for each pair,
/// the key and then the value.
type Way = Vec<usize>;

fn ways(node: &Node, here: &mut Way, into: &mut Vec<Way>) {
    let children: Vec<&Node> = match &node.value {
        Value::List(items) => items.iter().collect(),
        Value::Map(pairs) => pairs.iter().flat_map(|(key, value)| [key, value]).collect(),
        _ => Vec::new(),
    };
    for (index, child) in children.into_iter().enumerate() {
        here.push(index);
        into.push(here.clone());
        ways(child, here, into);
        here.pop();
    }
}

fn at<'t>(node: &'t mut Node, way: &[usize]) -> Option<&'t mut Node> {
    let Some((index, rest)) = way.split_first() else { return Some(node) };
    let child = match &mut node.value {
        Value::List(items) => items.get_mut(*index)?,
        Value::Map(pairs) => {
            let (key, value) = pairs.get_mut(index / 2)?;
            if index % 2 == 0 { key } else { value }
        }
        _ => return None,
    };
    at(child, rest)
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

/// Returns the replacement of a value that has this number, or `None` if it does not apply.
fn retyped(number: usize, value: Value) -> Option<Value> {
    let node = |value| Node { place: NOWHERE, value };
    Some(match number {
        0 => Value::Null,
        1 => Value::Bool(true),
        2 => Value::Number(7.into()),
        3 => Value::Number((-1).into()),
        4 => text(""),
        5 => text("words that name nothing"),
        6 => text("${steps.A.lines} $a.output {{.a.b}} ${"),
        7 => text("../x/*\u{0}"),
        8 => Value::List(Vec::new()),
        9 => Value::Map(Vec::new()),
        10 => Value::List(vec![node(value)]),
        11 => Value::Map(vec![(node(text("x")), node(value))]),
        12 => text(&format!("{}x", node(value).to_json().as_str()?)),
        _ => return None,
    })
}

const RETYPED: usize = 13;
const CHANGES: usize = RETYPED + 4;

/// Makes one change at a value. `other` is the value to swap it with.
fn change(tree: &mut Node, way: &[usize], number: usize, other: &[usize]) {
    if number < RETYPED {
        let Some(node) = at(tree, way) else { return };
        if let Some(value) = retyped(number, node.value.clone()) {
            node.value = value;
        }
        return;
    }
    let Some((index, around)) = way.split_last() else { return };
    if number == RETYPED {
        let (Some(one), Some(two)) = (at(tree, way).cloned(), at(tree, other).cloned()) else {
            return;
        };
        at(tree, way).into_iter().for_each(|node| *node = two.clone());
        at(tree, other).into_iter().for_each(|node| *node = one.clone());
        return;
    }
    match at(tree, around).map(|node| &mut node.value) {
        Some(Value::List(items)) => siblings(items, *index, number),
        Some(Value::Map(pairs)) => siblings(pairs, index / 2, number),
        _ => {}
    }
}

/// Drops, duplicates, or swaps with the next one.
fn siblings<T: Clone>(list: &mut Vec<T>, index: usize, number: usize) {
    match number - RETYPED {
        _ if index >= list.len() => {}
        1 => drop(list.remove(index)),
        2 => list.insert(index, list[index].clone()),
        _ if index + 1 < list.len() => list.swap(index, index + 1),
        _ => {}
    }
}

/// Writes a tree as YAML, one value to a line.
fn write(node: &Node, depth: usize, into: &mut String) {
    let indent = "  ".repeat(depth);
    match &node.value {
        Value::List(items) if !items.is_empty() => {
            for item in items {
                into.push_str(&format!("\n{indent}-"));
                write(item, depth + 1, into);
            }
        }
        Value::Map(pairs) if !pairs.is_empty() => {
            for (key, value) in pairs {
                into.push_str(&format!("\n{indent}{}:", key.to_json()));
                write(value, depth + 1, into);
            }
        }
        Value::Text(text) if is_block(text) => {
            into.push_str(if text.ends_with('\n') { " |" } else { " |-" });
            text.lines().for_each(|line| into.push_str(&format!("\n{indent}  {line}")));
        }
        _ => into.push_str(&format!(" {}", node.to_json())),
    }
}

/// Returns true if a text can be written as a block scalar.
fn is_block(text: &str) -> bool {
    let plain = |c: char| c == '\n' || !c.is_control();
    text.trim_end_matches('\n').contains('\n')
        && text.chars().all(plain)
        && !text.starts_with([' ', '\n'])
        && !text.ends_with("\n\n")
}

impl Document {
    fn text(&self, tree: &Node) -> String {
        let mut yaml = String::new();
        write(tree, 0, &mut yaml);
        let yaml = yaml.trim_start();
        match &self.body {
            Some(body) => format!("---\n{yaml}\n---\n{body}"),
            None => format!("{yaml}\n"),
        }
    }
}

/// Runs a target on a text. Saves a text that fails, and names it.
fn give(target: &'static str, text: &str) {
    let known = TARGETS.iter().find(|(name, _)| *name == target);
    let (name, read) = known.expect("a target");
    let went = std::panic::catch_unwind(AssertUnwindSafe(|| read(text.as_bytes())));
    if went.is_err() {
        let kept = std::env::temp_dir().join(format!("orchestrate-mutate-{name}"));
        fs::write(&kept, text).expect("a writable temporary directory");
        panic!("target `{name}` failed; the input is in `{}`", kept.display());
    }
}

/// Runs a target on a sample of trees with one to three changes each.
fn mutate(target: &'static str) {
    let documents: Vec<Document> =
        texts().iter().filter_map(|(name, text)| document(name, text)).collect();
    let documents: Vec<&Document> =
        documents.iter().filter(|document| document.target == target).collect();
    assert!(documents.len() > 5, "{} documents for `{target}`", documents.len());
    let ways: Vec<Vec<Way>> = documents
        .iter()
        .map(|document| {
            let mut found = Vec::new();
            ways(&document.tree, &mut Vec::new(), &mut found);
            found
        })
        .collect();
    for document in &documents {
        give(target, &document.text(&document.tree));
    }
    if std::env::var_os("ORCHESTRATE_MUTATE").is_some() {
        for (document, ways) in documents.iter().zip(&ways) {
            all_changes(document, ways);
        }
    }
    let mut random = Random::new(1);
    for _ in 0..SAMPLE {
        let chosen = random.below(documents.len());
        let (document, ways) = (documents[chosen], &ways[chosen]);
        let mut tree = document.tree.clone();
        // Authors make the same mistake at several values.
        let number = random.below(CHANGES);
        for _ in 0..1 + random.below(3) {
            let way = &ways[random.below(ways.len())];
            let other = &ways[random.below(ways.len())];
            change(&mut tree, way, number, other);
        }
        give(target, &document.text(&tree));
    }
}

fn all_changes(document: &Document, ways: &[Way]) {
    for (index, way) in ways.iter().enumerate() {
        for number in 0..CHANGES {
            let mut tree = document.tree.clone();
            change(&mut tree, way, number, &ways[(index * 7 + 3) % ways.len()]);
            give(document.target, &document.text(&tree));
        }
    }
}

/// A spell is not YAML: this changes its actions and the texts between them.
#[test]
fn spell() {
    let spells =
        texts().into_iter().filter(|(name, text)| name.ends_with(".md") && text.contains("{{"));
    let mut random = Random::new(1);
    let mut given = 0;
    for (_, text) in spells {
        let begun = text.split("{{").enumerate();
        let begun =
            begun.map(|(index, part)| if index > 0 { format!("{{{{{part}") } else { part.into() });
        let pieces: Vec<String> = begun
            .flat_map(|part: String| {
                let at = part.find("}}").map_or(part.len(), |at| at + 2);
                [part[..at].to_owned(), part[at..].to_owned()]
            })
            .collect();
        for _ in 0..40 {
            let mut pieces = pieces.clone();
            for _ in 0..1 + random.below(3) {
                let at = random.below(pieces.len());
                siblings(&mut pieces, at, RETYPED + 1 + random.below(3));
            }
            give("spell", &pieces.concat());
            given += 1;
        }
    }
    assert!(given > 1000, "{given}");
}

#[test]
fn workflow() {
    mutate("workflow");
}

#[test]
fn config() {
    mutate("config");
}

#[test]
fn bead() {
    mutate("bead");
}

#[test]
fn task_text() {
    mutate("task_text");
}
