//! Checks that need more than one field: names, paths, references, and control flow that runs but
//! is almost certainly unintended.

use std::collections::{HashMap, HashSet};

use super::lint;
use super::plan::{Action, Block, CaptureMode, Each, Items, Step, Target};
use super::steps::{Reading, Visible};
use crate::base::ids::{name_fault, plain_name};
use crate::template::{Hole, Template};
use crate::workflow::fields::{Fields, Findings, in_text, suggest};
use crate::yaml::problem::{Place, Problem, nearest};
use crate::yaml::{Node, Value};

/// The step names of one block, and those of the loops inside it.
#[derive(Default)]
pub(super) struct Names {
    pub by_name: HashMap<String, usize>,
    pub nested: HashSet<String>,
}

/// Collects the names of a block's steps. Reports names that are invalid or duplicate.
pub(super) fn names(findings: &Findings, nodes: &[Node]) -> Names {
    let mut names = Names::default();
    let mut folded: HashMap<String, String> = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        collect_nested(node, &mut names.nested);
        let Some(name_node) = node.get("name") else {
            if matches!(node.value, Value::Map(_)) {
                findings.error(node.place, "this step has no `name`");
            }
            continue;
        };
        let Some(name) = name_node.text() else { continue };
        let place = name_node.place;
        if name == "_end" {
            findings.error(place, "`_end` cannot name a step: a `goto` uses it to end the run");
        } else if let Some(fault) = name_fault(name) {
            findings.add(unfit(format!("`{name}` cannot name a step: {fault}"), name).at(place));
        }
        match folded.insert(name.to_lowercase(), name.to_owned()) {
            Some(other) if other == name => {
                findings.error(place, format!("two steps of this block are named `{name}`"));
            }
            // Both steps would write the same log file on a file system that ignores case.
            Some(other) => findings.error(
                place,
                format!("`{name}` and `{other}` differ only in upper and lower case"),
            ),
            None => {}
        }
        names.by_name.entry(name.to_owned()).or_insert(index);
    }
    names
}

/// Reports an invalid name, with a valid spelling as a hint if there is one.
pub(super) fn unfit(message: String, name: &str) -> Problem {
    let problem = Problem::error(message);
    match plain_name(name) {
        Some(plain) => problem.hint(format!("did you mean `{plain}`?")),
        None => problem,
    }
}

fn collect_nested(node: &Node, into: &mut HashSet<String>) {
    let Some(steps) = node.get("for_each").and_then(|each| each.get("steps")) else { return };
    let Value::List(steps) = &steps.value else { return };
    for step in steps {
        into.extend(step.get("name").and_then(Node::text).map(str::to_owned));
        collect_nested(step, into);
    }
}

/// Returns why a path is refused, judged by its text alone, or `None` if it is acceptable.
pub(crate) fn path_fault(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        Some("it is empty")
    } else if path.starts_with('/') {
        Some("it is absolute")
    } else if path.split('/').any(|part| part == "..") {
        Some("it climbs with `..`")
    } else if path.contains('\0') {
        Some("it holds a NUL byte")
    } else {
        None
    }
}

/// Checks a path without variables and records it, so that its symlinks can be checked on disk too.
pub(super) fn fixed_path(reading: &Reading, path: &str, place: Place, what: &str) {
    match path_fault(path) {
        Some(fault) => reading.findings.add(
            Problem::error(format!("{what} is `{path}`, which is refused: {fault}"))
                .at(place)
                .hint("paths are relative to the workspace and stay inside it"),
        ),
        None => reading.findings.name(|named| named.paths.push((path.to_owned(), place))),
    }
}

/// Checks a path as far as possible before its variables have values.
pub(super) fn path(reading: &Reading, template: &Template, place: Place, what: &str) {
    match template.literal() {
        Some(text) => fixed_path(reading, text, place, what),
        None => {
            let sketch = template.with_holes_as("x");
            if let Some(fault) = path_fault(&sketch) {
                let message = format!("{what} is refused: {fault}");
                reading.findings.error(place, message);
            }
        }
    }
}

/// Checks a glob pattern: a path whose wildcards are all supported.
pub(super) fn glob(reading: &Reading, template: &Template, place: Place, what: &str) {
    path(reading, template, place, what);
    let sketch = template.with_holes_as("x");
    if sketch.contains("**") {
        reading.findings.add(
            Problem::error(format!("{what} is `{sketch}`, but `**` is not supported"))
                .at(place)
                .hint("list files with a `find` step and `output_capture: lines`"),
        );
    } else if let Err(error) = glob::Pattern::new(&sketch) {
        reading.findings.error(place, format!("{what} is no pattern: {error}"));
    }
}

/// Rejects a step named `lifecycle` in such a loop: an item's step results share one object with
/// `lifecycle`.
pub(super) fn no_step_named_lifecycle(each: &Fields) {
    let steps = match each.get("steps").map(|steps| &steps.value) {
        Some(Value::List(steps)) => steps.as_slice(),
        _ => &[],
    };
    if steps.iter().any(|step| step.get("name").and_then(Node::text) == Some("lifecycle")) {
        let message = "a step cannot be named `lifecycle` in a loop with `on_item_complete`";
        each.findings.error(each.node.place, message);
    }
}

/// The fields of a step that are templates: text, or lists and maps of text.
pub(super) const TEMPLATES: [&[&str]; 13] = [
    &["input_file"],
    &["output_file"],
    &["output_schema"],
    &["depends_on", "required"],
    &["depends_on", "optional"],
    &["when", "equals", "left"],
    &["when", "equals", "right"],
    &["when", "exists"],
    &["when", "not_exists"],
    &["command"],
    &["provider_params"],
    &["wait_for", "glob"],
    &["for_each", "items"],
];

/// Warns of references that no run can resolve.
pub(super) fn holes(findings: &Findings, step: &Node, visible: &Visible) {
    for way in TEMPLATES {
        let found = way.iter().try_fold(step, |node, key| node.get(key));
        for (text, place) in found.into_iter().flat_map(texts) {
            // Text that is not a template was rejected when it was read.
            let Ok(template) = Template::parse(text) else { continue };
            for (hole, at) in template.placed() {
                if let Some(problem) = unknown(hole, visible) {
                    findings.add(problem.at(in_text(text, place, at)));
                }
            }
        }
    }
}

/// Returns all texts in a value, with their places.
pub(super) fn texts(node: &Node) -> Vec<(&str, Place)> {
    match &node.value {
        Value::Text(text) => vec![(text, node.place)],
        Value::List(items) => items.iter().flat_map(texts).collect(),
        Value::Map(pairs) => pairs.iter().flat_map(|(_, value)| texts(value)).collect(),
        _ => Vec::new(),
    }
}

/// First segments of variable names.
const ROOTS: [&str; 5] = ["context", "steps", "run", "loop", "item"];

fn unknown(hole: &Hole, visible: &Visible) -> Option<Problem> {
    let raw = &hole.raw;
    let in_loop = !visible.aliases.is_empty();
    let warn = |message: String| Some(Problem::warning(message));
    match hole.root() {
        // Rejected when it was parsed.
        "env" | "context" => None,
        "run" => {
            let known = ["run.id", "run.root", "run.timestamp_utc"];
            let problem = || Problem::warning(format!("`${{{raw}}}` is not defined"));
            (!known.contains(&raw.as_str())).then(|| suggest(problem(), raw, known))
        }
        "loop" if in_loop => None,
        "item" if in_loop => None,
        "loop" | "item" => warn(format!("`${{{raw}}}` is defined only inside a `for_each`")),
        "steps" => {
            let rest = hole.path[1..].join(".");
            let known = || visible.blocks.iter().flat_map(|names| names.by_name.keys());
            let found = known().any(|name| {
                rest.strip_prefix(name.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('.'))
            });
            let name = hole.path.get(1).map(String::as_str).unwrap_or_default();
            let problem = || {
                Problem::warning(format!(
                    "`${{{raw}}}` is not defined: no step `{name}` is in reach"
                ))
            };
            (!found).then(|| suggest(problem(), name, known().map(String::as_str)))
        }
        root if visible.aliases.iter().any(|alias| alias == root) => None,
        root => {
            let problem = Problem::warning(format!("`${{{raw}}}` is not defined"));
            let known = visible.aliases.iter().map(String::as_str).chain(ROOTS);
            let near = nearest(root, known).filter(|_| hole.path.len() > 1);
            Some(problem.hint(match near {
                Some(near) => format!("did you mean `${{{near}{}}}`?", &raw[root.len()..]),
                None => format!("if the shell is meant to expand it, write `$${{{raw}}}`"),
            }))
        }
    }
}

/// Returns the warning for a loop over the output of a step that does not exist, or `None` if the
/// step is visible.
pub(super) fn items_of_nobody(what: &str, hole: &Hole, visible: &Visible) -> Option<Problem> {
    unknown(hole, visible)?;
    let name = hole.path.get(1).map(String::as_str).unwrap_or_default();
    let known = visible.blocks.iter().flat_map(|names| names.by_name.keys());
    let message =
        format!("`items_from` of {what} names step `{name}`, and none of that name is in reach");
    Some(suggest(Problem::warning(message), name, known.map(String::as_str)))
}

/// Warns of a loop over lines or JSON that the named step does not capture. `steps` has an entry
/// for each node: `None` if the node is unreadable, in which case it may capture anything.
pub(super) fn sources_of_items(
    findings: &Findings,
    names: &Names,
    steps: &[Option<Step>],
    nodes: &[Node],
) {
    for (step, node) in steps.iter().zip(nodes) {
        let Some(step) = step else { continue };
        let Action::Each(Each { items: Items::From(hole), .. }) = &step.action else { continue };
        let [_, name, field, ..] = hole.path.as_slice() else { continue };
        let source = names.by_name.get(name).and_then(|index| steps.get(*index)?.as_ref());
        let Some(source) = source else { continue };
        let wanted = if field == "lines" { CaptureMode::Lines } else { CaptureMode::Json };
        let captures = matches!(source.action, Action::Exec { .. } | Action::Ask { .. });
        // An agent's answer by the contract is JSON in every capture mode.
        let answers = wanted == CaptureMode::Json && source.keeps_contract();
        if !answers && (!captures || source.output.capture != wanted) {
            let place = node.get("for_each").and_then(|each| each.get("items_from"));
            let place = place.map_or(node.place, |node| node.place);
            findings.add(
                Problem::warning(format!(
                    "`items_from` of step `{}` names `{field}` of step `{name}`, which has none",
                    step.name
                ))
                .at(place)
                .hint(format!("give `{name}` an `output_capture: {field}`")),
            );
        }
    }
}

/// Warns where control falls through into a step that exists to handle a failure.
pub(super) fn fall_through(findings: &Findings, block: &Block, nodes: &[Node]) {
    let mut on_failure = HashSet::new();
    let mut otherwise = HashSet::new();
    collect_targets(block, 0, None, &mut on_failure, &mut otherwise);
    for (before, index) in block.steps.iter().zip(1..block.steps.len()) {
        let handler = on_failure.contains(&index) && !otherwise.contains(&index);
        let succeeds = before.on.success.is_none() && before.on.always.is_none();
        let skipped = before.when.is_some();
        let chained = on_failure.contains(&(index - 1));
        if !handler || chained || !(succeeds || skipped) {
            continue;
        }
        let (happens, hint) = match succeeds {
            true => (
                "succeeds",
                format!("give `{}` an `on: {{ success: {{ goto: … }} }}`", before.name),
            ),
            false => {
                ("is skipped", "put a step between them that always goes elsewhere".to_owned())
            }
        };
        let place = nodes[index].get("name").map_or(nodes[index].place, |name| name.place);
        findings.add(
            Problem::warning(format!(
                "step `{}` handles a failure, but also runs after `{}` {happens}",
                block.steps[index].name, before.name
            ))
            .at(place)
            .hint(hint)
            .lint(lint::FALL_THROUGH),
        );
    }
}

/// Collects the steps of the block at `level` that are `goto` targets, on failure and otherwise, of
/// the steps in `block`. `within` is the enclosing step at that level.
fn collect_targets(
    block: &Block,
    level: usize,
    within: Option<usize>,
    on_failure: &mut HashSet<usize>,
    otherwise: &mut HashSet<usize>,
) {
    for (index, step) in block.steps.iter().enumerate() {
        let from = within.unwrap_or(index);
        let note = |target: Option<Target>, set: &mut HashSet<usize>| {
            if let Some(Target::Step { out, step }) = target
                && out == level
            {
                set.insert(step);
            }
        };
        // A `goto` back is a retry; its target does not handle a failure.
        let back = matches!(step.on.failure, Some(Target::Step { step, .. }) if step <= from);
        note(step.on.failure, if back { otherwise } else { on_failure });
        note(step.on.success, otherwise);
        note(step.on.always, otherwise);
        if let Action::Each(each) = &step.action {
            collect_targets(&each.block, level + 1, Some(from), on_failure, otherwise);
        }
    }
}
