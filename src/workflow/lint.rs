//! Lints: constructs that run but are almost certainly unintended.
//!
//! Some lints are found during compilation and reported with every run; the lints that only this
//! file finds are reported by `validate` alone. Each lint has an id. The comment `# allow: ID`
//! suppresses it: on the same line, on the line above, or, for the whole file, before the first
//! line that is not a comment.

use std::collections::HashSet;

use super::nodes::graph;
use super::plan::{AGENT_VISITS, Action, Block, JoinRule, Plan, RoundsKind, Step, Target};
use super::steps::flow;
use super::{check, shell};
use crate::template::{Hole, Template};
use crate::workflow::fields::in_text;
use crate::yaml::problem::{At, Place, Problem, located};
use crate::yaml::{Node, Value};

/// A step that handles a failure also runs after a success.
pub(crate) const FALL_THROUGH: &str = "fall-through";
/// A reference is inside quotes in a shell script.
pub(crate) const QUOTED_REFERENCE: &str = "quoted-reference";
/// A timeout is longer than a day.
pub(crate) const LONG_TIMEOUT: &str = "long-timeout";
/// A pattern contains syntax that only a shell would expand.
pub(crate) const SHELL_IN_GLOB: &str = "shell-in-glob";
/// A value becomes part of a shell script's text.
pub(crate) const SHELL_VALUE: &str = "shell-value";
/// The fix for [`SHELL_VALUE`] in a script.
pub(crate) const SHELL_ARGUMENT: &str = "pass it as an argument: `sh -c 'echo \"$1\"' sh VALUE`";
/// A file, program, provider or secret is missing on this machine.
pub(crate) const MISSING_HERE: &str = "missing-here";
/// A step is unreachable.
pub(crate) const UNREACHABLE: &str = "unreachable-step";
/// A parameter is given to a provider whose command does not use it.
pub(crate) const UNUSED_PARAMETER: &str = "unused-parameter";
/// A `goto` cycle asks an agent in each round.
pub(crate) const AGENT_CYCLE: &str = "agent-cycle";
/// A node after a gate uses a result that the gate did not show to the person.
pub(crate) const UNSHOWN: &str = "unshown-input";

#[cfg(test)]
pub(crate) const ALL: [&str; 10] = [
    FALL_THROUGH,
    QUOTED_REFERENCE,
    AGENT_CYCLE,
    LONG_TIMEOUT,
    MISSING_HERE,
    SHELL_IN_GLOB,
    SHELL_VALUE,
    UNREACHABLE,
    UNSHOWN,
    UNUSED_PARAMETER,
];

/// Lints a compiled workflow. `document` is the parsed `text`. `max_visits` is the limit on `goto`
/// cycles from the settings, if there is one.
pub(crate) fn look(
    text: &str,
    document: &Node,
    plan: &Plan,
    max_visits: Option<u32>,
) -> Vec<Problem> {
    let mut found = Vec::new();
    // Only the `steps:` dialect has both `version` and `steps`.
    if let (Some(steps), Some(_)) = (document.get("steps"), document.get("version")) {
        steps_of(steps, &mut Values::of(&plan.root), &mut found);
        unreachable(steps, &plan.root, plan.strict_flow, &mut found);
        providers_of(document, &Values::of(&plan.root), &mut found);
        if max_visits.is_none() {
            agent_cycles(steps, &plan.root, plan.strict_flow, &mut found);
        }
    }
    if let Some(Value::List(nodes)) = document.get("nodes").map(|nodes| &nodes.value) {
        unshown(nodes, &plan.root, &mut found);
        behind_cancel(nodes, &plan.root, &mut found);
    }
    let mut found = located(text, found);
    found.sort_by_key(|problem| problem.place);
    found
}

/// Removes the lints that the author allows.
pub(crate) fn without_allowed(text: &str, problems: Vec<Problem>) -> Vec<Problem> {
    let lines: Vec<&str> = text.lines().collect();
    let head = lines.iter().take_while(|line| {
        let line = line.trim_start();
        line.is_empty() || line.starts_with('#')
    });
    let of_file: HashSet<&str> = head.flat_map(|line| allowed(line)).collect();
    let allows = |id: &str, place: Option<Place>| {
        let on = |number: usize| number.checked_sub(1).and_then(|at| lines.get(at));
        // The line above counts only if it is a comment and nothing else.
        let above = |number| on(number).filter(|line| line.trim_start().starts_with('#'));
        let near = place.into_iter().flat_map(|place| [on(place.line), above(place.line - 1)]);
        of_file.contains(id) || near.flatten().flat_map(|line| allowed(line)).any(|a| a == id)
    };
    let told = |problem: &Problem| problem.lint.is_none_or(|id| !allows(id, problem.place));
    problems.into_iter().filter(told).collect()
}

/// Returns the ids that a comment on this line allows.
fn allowed(line: &str) -> impl Iterator<Item = &str> {
    let list = line.split_once("# allow:").map_or("", |(_, list)| list);
    list.split([',', ' ']).filter(|id| !id.is_empty())
}

/// Knowledge about the variables in scope.
struct Values<'a> {
    /// The names of all steps: some contain dots.
    steps: HashSet<&'a str>,
    /// The names of loop items, and true for each whose values the author wrote into the file.
    items: Vec<(&'a str, bool)>,
}

impl<'a> Values<'a> {
    fn of(root: &'a Block) -> Values<'a> {
        let mut steps = HashSet::new();
        names_of(root, &mut steps);
        Values { steps, items: Vec::new() }
    }

    /// Returns true if a value may contain text from an untrusted source.
    fn is_strange(&self, hole: &Hole) -> bool {
        let root = hole.root();
        let item = |(name, _): &&(&str, bool)| *name == root || root == "item";
        match root {
            "PROMPT" | "context" => true,
            "run" | "loop" => false,
            "steps" => !self.is_ours(hole),
            // A name that is not an item is reported as undefined.
            _ => self.items.iter().rev().find(item).is_some_and(|(_, own)| !own),
        }
    }

    /// Returns true if a value is a number or keyword that orchestrate itself produces: exactly
    /// `steps.NAME.FIELD`.
    fn is_ours(&self, hole: &Hole) -> bool {
        let [_, name @ .., field] = hole.path.as_slice() else { return false };
        let whole = name.len() == 1 || self.steps.contains(name.join(".").as_str());
        whole && OURS.contains(&field.as_str())
    }
}

fn names_of<'a>(block: &'a Block, into: &mut HashSet<&'a str>) {
    for step in &block.steps {
        into.insert(&step.name);
        if let Action::Each(each) = &step.action {
            names_of(&each.block, into);
        }
    }
}

fn steps_of<'a>(steps: &'a Node, values: &mut Values<'a>, found: &mut Vec<Problem>) {
    let Value::List(steps) = &steps.value else { return };
    for step in steps {
        let name = step.get("name").and_then(Node::text).unwrap_or_default();
        shell_value(step, &format!("step `{name}`"), values, found);
        globs(step, name, found);
        long_timeout(step, name, "timeout_sec", found);
        if let Some(wait) = step.get("wait_for") {
            long_timeout(wait, name, "timeout_sec", found);
        }
        let Some(each) = step.get("for_each") else { continue };
        let Some(inner) = each.get("steps") else { continue };
        let own = matches!(each.get("items").map(|items| &items.value), Some(Value::List(items))
            if !items.iter().any(|item| item.to_json().to_string().contains("${")));
        values.items.push((each.get("as").and_then(Node::text).unwrap_or("item"), own));
        steps_of(inner, values, found);
        values.items.pop();
    }
}

/// Lints the workflow's own providers.
fn providers_of(document: &Node, values: &Values, found: &mut Vec<Problem>) {
    let Some(Value::Map(providers)) = document.get("providers").map(|node| &node.value) else {
        return;
    };
    for (name, provider) in providers {
        let what = format!("provider `{}`", name.text().unwrap_or_default());
        shell_value(provider, &what, values, found);
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

/// Fields of a step's result whose values are numbers or keywords that orchestrate produces.
const OURS: [&str; 9] = [
    "exit_code",
    "duration_ms",
    "duration",
    "attempt",
    "status",
    "truncated",
    "wait_duration_ms",
    "poll_count",
    "timed_out",
];

/// Reports values inside a shell script, once for each script.
fn shell_value(node: &Node, what: &str, values: &Values, found: &mut Vec<Problem>) {
    let texts = node.get("command").map(check::texts).unwrap_or_default();
    let parsed =
        texts.iter().filter_map(|(text, place)| Some((*text, *place, Template::parse(text).ok()?)));
    let parsed: Vec<_> = parsed.collect();
    let strange = |template: &Template| {
        let mut placed = template.placed().filter(|(hole, _)| values.is_strange(hole));
        placed.next().map(|(hole, at)| (hole.raw.clone(), at.clone()))
    };
    if !parsed.iter().any(|(.., template)| strange(template).is_some()) {
        return;
    }
    // NUL stands for a value: it is never a word with a meaning to a shell.
    let argv: Vec<String> =
        parsed.iter().map(|(.., template)| template.with_holes_as("\u{0}")).collect();
    for (number, program) in shell::scripts_of(&argv) {
        let (text, place, template) = &parsed[number];
        let Some((raw, at)) = strange(template) else { continue };
        let message =
            format!("`${{{raw}}}` becomes part of the script that `{program}` runs in {what}");
        let hint = "whoever sets the value writes program: give it as an argument, [\"sh\", \
                    \"-c\", \"… \\\"$1\\\"\", \"_\", \"${…}\"]";
        found.push(warn(SHELL_VALUE, in_text(text, *place, &at), message, hint));
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
                let hint = "no shell reads patterns: let a step with `output_capture: lines` \
                            print it, and use ${steps.NAME.lines.0}";
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

/// Reports the first step of each stretch that is unreachable from the first step of the block.
fn unreachable(node: &Node, block: &Block, strict: bool, found: &mut Vec<Problem>) {
    let Value::List(nodes) = &node.value else { return };
    let ways = flow::Ways::of(block, strict);
    let reached = ways.from(0);
    for (index, (step, node)) in block.steps.iter().zip(nodes).enumerate() {
        if !reached[index] {
            let before = index.checked_sub(1);
            // Skip a step that only follows a step which is already reported.
            if before
                .is_some_and(|before| !reached[before] && flow::falls(&block.steps[before], strict))
            {
                continue;
            }
            let place = node.get("name").map_or(node.place, |name| name.place);
            let message = format!("nothing leads to step `{}`", step.name);
            let hint = match ways.lead_to(index) {
                false => "the step before it always goes elsewhere: go to it, or remove it",
                true => {
                    "only steps that are never reached go to it: go to it from another one, \
                         or remove it"
                }
            };
            found.push(warn(UNREACHABLE, place, message, hint));
        } else if let (Action::Each(each), Some(inner)) =
            (&step.action, node.get("for_each").and_then(|each| each.get("steps")))
        {
            unreachable(inner, &each.block, strict, found);
        }
    }
}

/// Warns of each `goto` cycle that asks an agent, at the first `goto` that leads back in it.
fn agent_cycles(node: &Node, block: &Block, strict: bool, found: &mut Vec<Problem>) {
    let Value::List(nodes) = &node.value else { return };
    for cycle in flow::agent_cycles(block, strict) {
        let mut names: Vec<_> =
            cycle.iter().map(|step| format!("`{}`", block.steps[*step].name)).collect();
        if names.len() > 6 {
            let more = format!("and {} more", names.len() - 5);
            names.splice(5.., [more]);
        }
        let mut asked: Vec<_> = cycle.iter().flat_map(|step| block.steps[*step].asked()).collect();
        asked.sort_unstable();
        asked.dedup();
        let asked: Vec<_> = asked.iter().map(|provider| format!("`{provider}`")).collect();
        let (steps, repeat) =
            if names.len() > 1 { ("steps", "repeat") } else { ("step", "repeats") };
        let message = format!(
            "{steps} {} {repeat} by `goto`, and each round asks {}: the run fails after \
             {AGENT_VISITS} visits",
            names.join(", "),
            asked.join(" and "),
        );
        let hint = "count the rounds in a step that leaves the cycle, or set `limits.max_visits` \
                    in the settings";
        let place = cycle.iter().find_map(|step| back(&block.steps[*step], *step, &nodes[*step]));
        let place = place.unwrap_or(nodes[cycle[0]].place);
        found.push(warn(AGENT_CYCLE, place, message, hint));
    }
    for (step, node) in block.steps.iter().zip(nodes) {
        let inner = node.get("for_each").and_then(|each| each.get("steps"));
        if let (Action::Each(each), Some(inner)) = (&step.action, inner) {
            agent_cycles(inner, &each.block, strict, found);
        }
    }
}

/// Returns the place of the `goto` that leads back from a step to itself or to an earlier step.
fn back(step: &Step, index: usize, node: &Node) -> Option<Place> {
    let targets =
        [("success", step.on.success), ("failure", step.on.failure), ("always", step.on.always)];
    let is_back = |target| matches!(target, Some(Target::Step { out: 0, step }) if step <= index);
    let (key, _) = targets.into_iter().find(|(_, target)| is_back(*target))?;
    Some(node.get("on")?.get(key)?.get("goto")?.place)
}

/// Reports nodes that wait for a node which unconditionally ends the run.
fn behind_cancel(nodes: &[Node], block: &Block, found: &mut Vec<Problem>) {
    let Some(edges) = block.edges() else { return };
    let ends = |up: &&usize| {
        let step = &block.steps[**up];
        matches!(step.action, Action::Cancel { .. }) && step.when.is_none()
    };
    for (index, before) in edges.before.iter().enumerate() {
        // Under another rule, the node may run if the cancelling node was skipped.
        let needs = edges.rules[index] == JoinRule::AllSuccess;
        let Some(up) = before.iter().find(ends).filter(|_| needs) else { continue };
        let (name, up) = (&block.steps[index].name, &block.steps[*up].name);
        let place = graph::place_of_dependency(&nodes[index], Some(up));
        let message = format!("nothing leads to node `{name}`: `{up}` before it ends the run");
        let hint = format!("give `{up}` a `when`, or remove what follows it");
        found.push(warn(UNREACHABLE, place.unwrap_or(nodes[index].place), message, &hint));
    }
}

/// Maximum number of pairs (gate before a node × other dependency) to check for one node.
const MOST_PAIRS: usize = 4096;

/// Reports nodes directly after a gate that also depend on a node which no gate before them shows.
/// Its result may change after the approval, and no gate asks again.
fn unshown(nodes: &[Node], block: &Block, found: &mut Vec<Problem>) {
    let Some(edges) = block.edges() else { return };
    let Ok(order) = graph::order(&edges.before, &edges.after) else { return };
    let is_gate = |index: &usize| match &block.steps[*index].action {
        Action::Gate(_) => true,
        Action::Rounds(rounds) => rounds.kind == RoundsKind::Approval,
        _ => false,
    };
    // Triples of a node, one of its gates, and one of its other dependencies.
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
    let shown = graph::comes_before(&order, &edges.before, &pairs);
    // One gate that shows the dependency is enough; so is one gate that the dependency comes after.
    let pairs: Vec<_> = asked.iter().map(|(_, gate, up)| (*up, *gate)).collect();
    let behind = graph::comes_before(&order, &edges.before, &pairs);
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
        let place = graph::place_of_dependency(&nodes[node], Some(up));
        let message = format!(
            "node `{name}` waits for `{up}`, which is not shown at the gate `{gate}` before it"
        );
        let hint = "an approval covers what leads to its gate: let the gate wait for it too, else \
                    nobody is asked again when it changes";
        found.push(warn(UNSHOWN, place.unwrap_or(nodes[node].place), message, hint));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::compile;
    use crate::yaml;

    fn looked(text: &str, plan: &Plan) -> Vec<Problem> {
        look(text, &yaml::parse(text).expect("YAML"), plan, None)
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
            ("  - { name: A, command: [bash, -e, -c, '${context.x}'] }\n", (SHELL_VALUE, 3)),
            (
                "  - { name: A, command: [bash, -o, pipefail, -c, '${context.x}'] }\n",
                (SHELL_VALUE, 3),
            ),
            ("  - { name: A, command: [env, bash, -c, '${context.x}'] }\n", (SHELL_VALUE, 3)),
            (
                "  - { name: A, command: [timeout, '5', bash, -cx, '${context.x}'] }\n",
                (SHELL_VALUE, 3),
            ),
            ("  - { name: A, command: [bash, --norc, -c, '${context.x}'] }\n", (SHELL_VALUE, 3)),
            ("  - { name: A, command: [bash, +x, -c, '${context.x}'] }\n", (SHELL_VALUE, 3)),
            (
                "  - { name: A, command: [xargs, busybox, sh, -c, '${context.x}'] }\n",
                (SHELL_VALUE, 3),
            ),
            ("  - { name: A, command: [su, me, -c, '${context.x}'] }\n", (SHELL_VALUE, 3)),
            ("  - { name: A, command: [flock, f, -c, '${context.x}'] }\n", (SHELL_VALUE, 3)),
            ("  - { name: A, command: [sh, -c, '${steps.B.json.status}'] }\n", (SHELL_VALUE, 3)),
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
    fn steps_that_only_lead_to_each_other_are_told() {
        let step = |name: &str, on: &str| format!("  - {{ name: {name}, command: [x]{on} }}\n");
        let to = |when: &str, name: &str| format!(", on: {{ {when}: {{ goto: {name} }} }}");
        let steps = step("A", &to("always", "E"))
            + &step("C", &to("success", "D"))
            + &step("D", &to("success", "C"))
            + &step("E", "");
        assert_eq!(told(&steps), [(UNREACHABLE, 4), (UNREACHABLE, 5)]);
        let steps =
            step("A", &to("success", "_end")) + &step("B", &to("failure", "B")) + &step("C", "");
        assert_eq!(told(&steps), [(UNREACHABLE, 4)]);
        // A loop leads out by what is reached in it.
        let inner = "  - { name: L, on: { success: { goto: _end } }, for_each: { items: [a], \
             steps: [\n    \
             { name: I, command: [i], on: { always: { goto: _end } } },\n    \
             { name: J, command: [j], on: { success: { goto: Z } } } ] } }\n";
        assert_eq!(
            told(&(inner.to_owned() + &step("Z", ""))),
            [(UNREACHABLE, 5), (UNREACHABLE, 6)]
        );
    }

    #[test]
    fn a_handler_that_is_fallen_into_is_told_of_in_loops_and_behind_conditions() {
        let each = "  - name: A\n    for_each:\n      items: [x]\n      steps:\n        \
             - { name: B, command: [b], on: { failure: { goto: H } } }\n        \
             - { name: H, command: [h] }\n";
        assert_eq!(told(each), [(FALL_THROUGH, 8)]);
        let skipped = "  - { name: Build, command: [b], on: { failure: { goto: Fix } } }\n  \
             - { name: Ship, command: [s], when: { exists: a }, \
             on: { success: { goto: _end } } }\n  \
             - { name: Fix, command: [f] }\n";
        assert_eq!(told(skipped), [(FALL_THROUGH, 5)]);
    }

    /// The lines of lints about cycles in these steps, the first of which is in line 5.
    fn cycles(steps: &str, max_visits: Option<u32>) -> Vec<usize> {
        let text = format!(
            "version: \"1.1\"\nproviders: {{ p: {{ command: [p] }} }}\n\
             context: {{}}\nsteps:\n{steps}"
        );
        let plan = compile(&text, &()).unwrap_or_else(|problems| panic!("{problems:#?}")).plan;
        let document = yaml::parse(&text).expect("YAML");
        let found = look(&text, &document, &plan, max_visits).into_iter();
        let found = found.filter(|problem| problem.lint == Some(AGENT_CYCLE));
        found.filter_map(|problem| Some(problem.place?.line)).collect()
    }

    #[test]
    fn a_cycle_that_asks_an_agent_is_told_once() {
        let none: [usize; 0] = [];
        let fix = "  - { name: Test, command: [t], on: { success: { goto: _end } } }\n  \
             - { name: Fix, provider: p, on: { success: { goto: Test } } }\n";
        // `Test` fails only where nothing follows a failure, so `Fix` is reached by no way.
        assert_eq!(cycles(fix, None), none);
        let fix = fix.replace("goto: _end }", "goto: _end }, failure: { goto: Fix }");
        assert_eq!(cycles(&fix, None), [6]);
        assert_eq!(cycles(&fix, Some(10_000)), none, "the author chose a limit");
        assert_eq!(cycles(&fix.replace("provider: p", "command: [f]"), None), none);
        // An agent before, behind or beside the cycle is asked once.
        let poll = "  - { name: Ask, provider: p }\n  \
             - { name: Poll, command: [t], on: { failure: { goto: Poll } } }\n  \
             - { name: Tell, provider: p }\n";
        assert_eq!(cycles(poll, None), none);
        let each = "  - { name: L, for_each: { items: [a], steps: [\n    \
             { name: I, provider: p, on: { failure: { goto: I } } },\n    \
             { name: J, command: [j], on: { failure: { goto: L } } } ] } }\n";
        assert_eq!(cycles(each, None), [5, 6], "the one inside, and the one around the loop");
    }

    #[test]
    fn a_prompt_in_the_script_of_a_provider_is_told() {
        let text = "version: \"1.1\"\nproviders:\n  p:\n    \
             command: [bash, -c, \"x '${PROMPT}'\"]\n  \
             q: { command: [bash, -c, 'x \"$1\" ${model}', _, '${PROMPT}'] }\n\
             steps: [{ name: A, command: [a] }]\n";
        let plan = compile(text, &()).expect("valid").plan;
        let found = looked(text, &plan);
        let lines: Vec<_> =
            found.iter().map(|problem| problem.place.map(|p| (p.line, p.column))).collect();
        assert_eq!(lines, [Some((4, 29))], "{found:?}");
    }

    #[test]
    fn what_follows_a_cancel_is_told() {
        let nodes = |more: &str| {
            let text = format!(
                "name: n\ndescription: d\nnodes:\n  - {{ id: a, cancel: enough{more} }}\n  \
                 - {{ id: b, depends_on: [a], bash: ls }}\n"
            );
            let plan = compile(&text, &()).unwrap_or_else(|problems| panic!("{problems:#?}")).plan;
            looked(&text, &plan).len()
        };
        assert_eq!((nodes(""), nodes(", when: \"'x' == 'y'\"")), (1, 0));
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
            // It is told of as undefined.
            "  - { name: A, command: [bash, -c, 'for f in a b; do echo ${f}; done'] }\n",
            "  - { name: A, command: [bash, x.sh, -c, '${context.x}'] }\n",
            "  - { name: A, command: [ssh, '${context.x}', uptime] }\n",
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
