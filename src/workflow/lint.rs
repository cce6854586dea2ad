//! What runs, and is surely not what was meant.
//!
//! Some of it is seen while a workflow is compiled and told with every run; what is only here is
//! told by `validate` alone. Each has an id, by which it can be allowed: a comment `# allow: ID` on
//! the line, on the line above, or before the first line that is no comment, for the whole file.

use std::collections::HashSet;

use super::fields::in_text;
use super::nodes_graph;
use super::plan::{Action, Block, Plan, RoundsKind, Target};
use super::problem::{At, Place, Problem, located};
use super::yaml::{Node, Value};
use crate::template::Template;

/// A step that handles a failure also runs after a success.
pub const FALL_THROUGH: &str = "fall-through";
/// A reference stands in quotes in a shell script.
pub const QUOTED_REFERENCE: &str = "quoted-reference";
/// A limit is longer than a day.
pub const LONG_TIMEOUT: &str = "long-timeout";
/// A pattern holds what only a shell would expand.
pub const SHELL_IN_GLOB: &str = "shell-in-glob";
/// A value is pasted into the text of a shell.
pub const SHELL_VALUE: &str = "shell-value";
/// Nothing leads to a step.
pub const UNREACHABLE: &str = "unreachable-step";
/// A parameter is given to a provider that has no place for it.
pub const UNUSED_PARAMETER: &str = "unused-parameter";
/// What comes after a gate uses what the person at the gate was not shown.
pub const UNSHOWN: &str = "unshown-input";

pub const ALL: [&str; 8] = [
    FALL_THROUGH,
    QUOTED_REFERENCE,
    LONG_TIMEOUT,
    SHELL_IN_GLOB,
    SHELL_VALUE,
    UNREACHABLE,
    UNSHOWN,
    UNUSED_PARAMETER,
];

/// Looks at a workflow that was compiled from `text`, which is this document.
pub fn look(text: &str, document: &Node, plan: &Plan) -> Vec<Problem> {
    let mut found = Vec::new();
    // The other languages have no steps with a `version` above them.
    if let (Some(steps), Some(_)) = (document.get("steps"), document.get("version")) {
        steps_of(steps, &mut Vec::new(), &mut found);
        unreachable(steps, &plan.root, plan.strict_flow, &mut found);
    }
    if let Some(Value::List(nodes)) = document.get("nodes").map(|nodes| &nodes.value) {
        unshown(nodes, &plan.root, &mut found);
    }
    let mut found = located(text, found);
    found.sort_by_key(|problem| problem.place);
    found
}

/// Leaves out what the author allows.
pub fn without_allowed(text: &str, problems: Vec<Problem>) -> Vec<Problem> {
    let lines: Vec<&str> = text.lines().collect();
    let head = lines.iter().take_while(|line| {
        let line = line.trim_start();
        line.is_empty() || line.starts_with('#')
    });
    let of_file: HashSet<&str> = head.flat_map(|line| allowed(line)).collect();
    let allows = |id: &str, place: Option<Place>| {
        let on = |number: usize| number.checked_sub(1).and_then(|at| lines.get(at));
        let near = place.into_iter().flat_map(|place| [on(place.line), on(place.line - 1)]);
        of_file.contains(id) || near.flatten().flat_map(|line| allowed(line)).any(|a| a == id)
    };
    let told = |problem: &Problem| problem.lint.is_none_or(|id| !allows(id, problem.place));
    problems.into_iter().filter(told).collect()
}

/// The ids that a comment on this line allows.
fn allowed(line: &str) -> impl Iterator<Item = &str> {
    let list = line.split_once("# allow:").map_or("", |(_, list)| list);
    list.split([',', ' ']).filter(|id| !id.is_empty())
}

/// `own` are the names of items that the author wrote into the file.
fn steps_of<'a>(steps: &'a Node, own: &mut Vec<&'a str>, found: &mut Vec<Problem>) {
    let Value::List(steps) = &steps.value else { return };
    for step in steps {
        let name = step.get("name").and_then(Node::text).unwrap_or_default();
        shell_value(step, name, own, found);
        globs(step, name, found);
        long_timeout(step, name, "timeout_sec", found);
        if let Some(wait) = step.get("wait_for") {
            long_timeout(wait, name, "timeout_sec", found);
        }
        let Some(each) = step.get("for_each") else { continue };
        let Some(inner) = each.get("steps") else { continue };
        let before = own.len();
        if let Some(Value::List(items)) = each.get("items").map(|items| &items.value)
            && !items.iter().any(|item| item.to_json().to_string().contains("${"))
        {
            own.push(each.get("as").and_then(Node::text).unwrap_or("item"));
        }
        steps_of(inner, own, found);
        own.truncate(before);
    }
}

fn warn(lint: &'static str, at: impl Into<At>, message: String, hint: &str) -> Problem {
    Problem::warning(message).at(at).hint(hint).lint(lint)
}

fn texts(node: Option<&Node>) -> impl Iterator<Item = (&str, Place)> {
    let items = match node.map(|node| &node.value) {
        Some(Value::List(items)) => items.as_slice(),
        _ => &[],
    };
    let one = node.into_iter().chain(items);
    one.filter_map(|node| Some((node.text()?, node.place)))
}

/// What of a step is a number or a word of ours.
const NUMBERS: [&str; 9] = [
    ".exit_code",
    ".duration_ms",
    ".duration",
    ".attempt",
    ".status",
    ".truncated",
    ".wait_duration_ms",
    ".poll_count",
    ".timed_out",
];

/// Values that are never more than a number or a name of ours.
fn is_harmless(raw: &str) -> bool {
    raw.starts_with("run.")
        || raw.starts_with("loop.")
        || (raw.starts_with("steps.") && NUMBERS.iter().any(|end| raw.ends_with(end)))
}

fn shell_value(step: &Node, name: &str, own: &[&str], found: &mut Vec<Problem>) {
    let argv: Vec<_> = texts(step.get("command")).collect();
    let [(program, _), (flag, _), (script, place), ..] = argv.as_slice() else { return };
    let program = program.rsplit('/').next().unwrap_or_default();
    let shell = ["sh", "bash", "dash", "zsh", "ksh"].contains(&program);
    let runs = flag.starts_with('-') && !flag.starts_with("--") && flag.ends_with('c');
    let Ok(template) = Template::parse(script) else { return };
    let harmless =
        |raw: &str| is_harmless(raw) || own.contains(&raw.split('.').next().unwrap_or(raw));
    let Some((hole, at)) = template.placed().find(|(hole, _)| !harmless(&hole.raw)) else { return };
    if shell && runs {
        let message = format!(
            "`${{{}}}` becomes part of the script that `{program}` runs in step `{name}`",
            hole.raw
        );
        let hint = "whoever sets the value writes program: give it as an argument, [\"sh\", \
                    \"-c\", \"… \\\"$1\\\"\", \"_\", \"${…}\"]";
        found.push(warn(SHELL_VALUE, in_text(script, *place, at), message, hint));
    }
}

fn globs(step: &Node, name: &str, found: &mut Vec<Problem>) {
    let under = |map: &str, key: &str| step.get(map).and_then(|map| map.get(key));
    let patterns = [
        ("depends_on", "required"),
        ("depends_on", "optional"),
        ("wait_for", "glob"),
        ("when", "exists"),
        ("when", "not_exists"),
    ];
    for (map, key) in patterns {
        for (text, place) in texts(under(map, key)) {
            let sign = ["$(", "`", "~/"].into_iter().find(|sign| match *sign {
                "~/" => text.starts_with(sign),
                _ => text.contains(sign),
            });
            if let Some(sign) = sign {
                let message =
                    format!("`{key}` of `{map}` of step `{name}` has `{sign}`, which is literal");
                let hint = "no shell reads patterns: let a step find out, and use its output as \
                            ${steps.NAME.output}";
                found.push(warn(SHELL_IN_GLOB, place, message, hint));
            }
        }
    }
}

fn long_timeout(map: &Node, name: &str, key: &str, found: &mut Vec<Problem>) {
    let Some(node) = map.get(key) else { return };
    let Value::Number(number) = &node.value else { return };
    let days = number.as_f64().unwrap_or_default() / 86_400.0;
    if days > 1.0 {
        let message = format!("`{key}` of step `{name}` is {days:.1} days long");
        found.push(warn(LONG_TIMEOUT, node.place, message, "it counts seconds"));
    }
}

/// Tells of the first step of each stretch that nothing leads to.
fn unreachable(node: &Node, block: &Block, strict: bool, found: &mut Vec<Problem>) {
    let Value::List(nodes) = &node.value else { return };
    let mut targets = HashSet::new();
    gone_to(block, 0, &mut targets);
    let mut open = true;
    for (index, (step, node)) in block.steps.iter().zip(nodes).enumerate() {
        let reached = open || targets.contains(&index);
        if !reached && (index == 0 || open_before(block, index, strict).is_some()) {
            let place = node.get("name").map_or(node.place, |name| name.place);
            let message = format!("nothing leads to step `{}`", step.name);
            let hint = "the step before it always goes elsewhere: go to it, or remove it";
            found.push(warn(UNREACHABLE, place, message, hint));
        }
        open = falls(step, strict);
        if let (Action::Each(each), Some(inner)) =
            (&step.action, node.get("for_each").and_then(|each| each.get("steps")))
        {
            unreachable(inner, &each.block, strict, found);
        }
    }
}

/// The step before, if it is what closes the way.
fn open_before(block: &Block, index: usize, strict: bool) -> Option<usize> {
    let before = index.checked_sub(1)?;
    (!falls(&block.steps[before], strict)).then_some(before)
}

/// Whether the next step can follow this one by itself.
fn falls(step: &super::plan::Step, strict: bool) -> bool {
    // One that is skipped goes on with the next, whatever it says.
    let skipped = step.when.is_some();
    let after_success = step.on.success.is_none();
    let after_failure = step.on.failure.is_none() && !strict;
    skipped || (step.on.always.is_none() && (after_success || after_failure))
}

/// So many questions about a node are asked at most: gates before it, times what else is.
const MOST_PAIRS: usize = 4096;

/// Tells of nodes right behind a gate that wait for something else too which no gate before them
/// shows: it may change after the approval, and nobody is asked again.
fn unshown(nodes: &[Node], block: &Block, found: &mut Vec<Problem>) {
    let Some(edges) = &block.edges else { return };
    let Ok(order) = nodes_graph::order(&edges.before, &edges.after) else { return };
    let is_gate = |index: &usize| match &block.steps[*index].action {
        Action::Gate(_) => true,
        Action::Rounds(rounds) => rounds.kind == RoundsKind::Approval,
        _ => false,
    };
    // Which node, which of its gates, and what else it waits for.
    let mut asked: Vec<(usize, usize, usize)> = Vec::new();
    for (node, before) in edges.before.iter().enumerate() {
        let (gates, others): (Vec<usize>, Vec<usize>) = before.iter().partition(|up| is_gate(up));
        let acts = !is_gate(&node) && !matches!(block.steps[node].action, Action::Cancel { .. });
        if acts && gates.len() * others.len() <= MOST_PAIRS {
            let pairs = others.iter().flat_map(|up| gates.iter().map(|gate| (node, *gate, *up)));
            asked.extend(pairs);
        }
    }
    let pairs: Vec<_> = asked.iter().map(|(_, gate, up)| (*gate, *up)).collect();
    let shown = nodes_graph::comes_before(&order, &edges.before, &pairs);
    // One gate that shows it is enough, and so is one that it comes after.
    let pairs: Vec<_> = asked.iter().map(|(_, gate, up)| (*up, *gate)).collect();
    let behind = nodes_graph::comes_before(&order, &edges.before, &pairs);
    let fine: HashSet<(usize, usize)> = asked
        .iter()
        .zip(shown.iter().zip(&behind))
        .filter(|(_, (shown, behind))| **shown || **behind)
        .map(|((node, _, up), _)| (*node, *up))
        .collect();
    let mut told = HashSet::new();
    for (node, gate, up) in asked {
        if fine.contains(&(node, up)) || !told.insert((node, up)) {
            continue;
        }
        let name = |index: usize| &block.steps[index].name;
        let (name, gate, up) = (name(node), name(gate), name(up));
        let place = nodes_graph::place_of_dependency(&nodes[node], Some(up));
        let message = format!(
            "node `{name}` waits for `{up}`, which is not shown at the gate `{gate}` before it"
        );
        let hint = "an approval covers what leads to its gate: let the gate wait for it too, else \
                    nobody is asked again when it changes";
        found.push(warn(UNSHOWN, place.unwrap_or(nodes[node].place), message, hint));
    }
}

/// Which steps of the block at `level` something goes to.
fn gone_to(block: &Block, level: usize, into: &mut HashSet<usize>) {
    for step in &block.steps {
        for target in [step.on.success, step.on.failure, step.on.always].into_iter().flatten() {
            if let Target::Step { out, step } = target
                && out == level
            {
                into.insert(step);
            }
        }
        if let Action::Each(each) = &step.action {
            gone_to(&each.block, level + 1, into);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::{compile, yaml};

    fn looked(text: &str, plan: &Plan) -> Vec<Problem> {
        look(text, &yaml::parse(text).expect("YAML"), plan)
    }

    /// The ids and lines of what is told of these steps, the first of which is in line 3.
    fn told(steps: &str) -> Vec<(&'static str, usize)> {
        let text = format!("version: \"1.1\"\nsteps:\n{steps}");
        let compiled = compile(&text, &()).unwrap_or_else(|problems| panic!("{problems:#?}"));
        let mut all = looked(&text, &compiled.plan);
        all.extend(compiled.warnings);
        let left = without_allowed(&text, all).into_iter();
        left.filter_map(|problem| Some((problem.lint?, problem.place?.line))).collect()
    }

    #[test]
    fn what_is_surely_not_meant_is_told() {
        let b = "  - { name: B, command: [b] }\n";
        for (steps, wanted) in [
            ("  - { name: A, command: [bash, -c, 'echo ${context.x}'] }\n", (SHELL_VALUE, 3)),
            ("  - { name: A, command: [/bin/sh, -ec, '${context.x}'] }\n", (SHELL_VALUE, 3)),
            ("  - { name: A, wait_for: { glob: 'x/$(date).md' } }\n", (SHELL_IN_GLOB, 3)),
            (
                "  - { name: A, command: [a], depends_on: { required: ['~/x'] } }\n",
                (SHELL_IN_GLOB, 3),
            ),
            ("  - { name: A, command: [a], timeout_sec: 90000 }\n", (LONG_TIMEOUT, 3)),
            ("  - { name: A, command: [a], on: { always: { goto: _end } } }\n", (UNREACHABLE, 4)),
            ("  - { name: A, command: [a], on: { success: { goto: _end } } }\n", (UNREACHABLE, 4)),
        ] {
            assert_eq!(told(&format!("{steps}{b}")), [wanted], "{steps}");
        }
    }

    #[test]
    fn what_may_be_meant_is_not() {
        for steps in [
            "  - { name: A, command: [bash, -c, 'echo \"$1\" ${run.id}', _, '${context.x}'] }\n",
            "  - { name: A, command: [echo, -c, '${context.x}'] }\n",
            "  - { name: A, command: [sh, -c, 'exit ${steps.B.exit_code}'] }\n  \
             - { name: B, command: [b] }\n",
            "  - name: A\n    \
             for_each: { items: [a, b], \
             steps: [{ name: B, command: [sh, -c, 'echo ${item}'] }] }\n",
            "  - { name: A, wait_for: { glob: 'x/${run.id}*.md', timeout_sec: 86400 } }\n",
            "  - { name: A, command: [a], on: { failure: { goto: _end } } }\n  \
             - { name: B, command: [b] }\n",
            "  - { name: A, command: [a], when: { exists: x }, on: { always: { goto: _end } } }\n  \
             - { name: B, command: [b] }\n",
        ] {
            assert_eq!(told(steps), [], "{steps}");
        }
    }

    /// What is told of nodes of these ids, each with what it waits for; `?` makes an approval.
    fn unshown_in(nodes: &str) -> Vec<String> {
        let mut text = String::from("name: n\ndescription: d\nnodes:\n");
        for node in nodes.split(" | ") {
            let (id, before) = node.split_once(": ").unwrap_or((node, ""));
            let (id, does) = match id.strip_suffix('?') {
                Some(id) => (id, "approval: { message: Well? }"),
                None => (id, "bash: ls"),
            };
            let before = before.replace(' ', ", ");
            text += &format!("  - {{ id: {id}, depends_on: [{before}], {does} }}\n");
        }
        let plan = compile(&text, &()).unwrap_or_else(|problems| panic!("{problems:#?}")).plan;
        looked(&text, &plan).into_iter().map(|problem| problem.message).collect()
    }

    #[test]
    fn what_a_gate_does_not_show_is_told() {
        let told = |node: &str, up: &str, gate: &str| {
            vec![format!(
                "node `{node}` waits for `{up}`, which is not shown at the gate `{gate}` before it"
            )]
        };
        for (nodes, wanted) in [
            ("plan | build | ok?: plan | deploy: ok build", told("deploy", "build", "ok")),
            ("plan | build | ok?: plan build | deploy: ok build", vec![]),
            ("plan | build: plan | ok?: build | deploy: ok plan", vec![]),
            // What comes after the gate is let pass by it.
            ("plan | ok?: plan | build: ok | deploy: ok build", vec![]),
            // One person saw it.
            ("a | b | one?: a | two?: b | c: one two a b", vec![]),
            ("a | b | one?: a | two?: one b | c: two a", vec![]),
            ("a | one? | two?: one | last?: two a", vec![]),
            ("a | b | one?: a | c: one b | d: c", told("c", "b", "one")),
        ] {
            assert_eq!(unshown_in(nodes), wanted, "{nodes}");
        }
    }

    #[test]
    fn an_author_may_allow_it() {
        let line = "  - { name: A, command: [a], timeout_sec: 90000 }";
        assert_eq!(told(&format!("{line} # allow: long-timeout\n")), []);
        assert_eq!(told(&format!("  # allow: shell-value, long-timeout\n{line}\n")), []);
        assert_eq!(told(&format!("  # allow: shell-value\n{line}\n")), [(LONG_TIMEOUT, 4)]);
        let whole = format!("# allow: long-timeout\nversion: \"1.1\"\nsteps:\n\n{line}\n");
        let plan = compile(&whole, &()).expect("valid").plan;
        assert!(without_allowed(&whole, looked(&whole, &plan)).is_empty());
    }
}
