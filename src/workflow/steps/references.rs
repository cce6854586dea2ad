//! References in steps that no run can resolve: an unknown member, a member that the step does not
//! capture, a step that only comes later, a misspelled key of the context.

use serde_json::{Map, Value as Json};

use super::flow::Ways;
use crate::template::{Hole, Template};
use crate::workflow::check::{TEMPLATES, texts};
use crate::workflow::fields::{Findings, in_text, suggest};
use crate::workflow::plan::{Action, Block, CaptureMode, Step};
use crate::yaml::problem::{Problem, nearest};
use crate::yaml::{Node, Value};

/// Members that a step's result may have.
const MEMBERS: [&str; 13] = [
    "exit_code",
    "output",
    "lines",
    "json",
    "duration_ms",
    "duration",
    "status",
    "truncated",
    "attempt",
    "files",
    "wait_duration_ms",
    "poll_count",
    "timed_out",
];

/// Members that only the result of a waiting step has.
const OF_WAITS: [&str; 4] = ["files", "wait_duration_ms", "poll_count", "timed_out"];

/// A block around a step, in a list from the outside in. `at` is the step of this block that is, or
/// contains, that step.
struct Around<'a> {
    block: &'a Block,
    ways: Ways,
    at: usize,
}

struct Checking<'a> {
    findings: &'a Findings,
    context: &'a Map<String, Json>,
    strict: bool,
}

/// Warns of references that never have a value, given the structure of the plan.
pub(crate) fn check(
    findings: &Findings,
    root: &Block,
    node: &Node,
    strict: bool,
    context: &Map<String, Json>,
) {
    Checking { findings, context, strict }.block(root, node, &mut Vec::new());
}

impl Checking<'_> {
    fn block<'a>(&self, block: &'a Block, node: &Node, around: &mut Vec<Around<'a>>) {
        let Value::List(nodes) = &node.value else { return };
        around.push(Around { block, ways: Ways::of(block, self.strict), at: 0 });
        for (at, (step, node)) in block.steps.iter().zip(nodes).enumerate() {
            around.last_mut().into_iter().for_each(|around| around.at = at);
            for way in TEMPLATES {
                let found = way.iter().try_fold(node, |node, key| node.get(key));
                for (text, place) in found.into_iter().flat_map(texts) {
                    let Ok(template) = Template::parse(text) else { continue };
                    for (hole, range) in template.placed() {
                        if let Some(problem) = self.fault(hole, around) {
                            self.findings.add(problem.at(in_text(text, place, range)));
                        }
                    }
                }
            }
            let inner = node.get("for_each").and_then(|each| each.get("steps"));
            if let (Action::Each(each), Some(inner)) = (&step.action, inner) {
                self.block(&each.block, inner, around);
            }
        }
        around.pop();
    }

    fn fault(&self, hole: &Hole, around: &[Around]) -> Option<Problem> {
        match hole.root() {
            "context" => self.near_key(hole),
            "steps" => of_step(hole, around),
            _ => None,
        }
    }

    /// Returns a warning for a context key that looks like a misspelling. Any other key that is not
    /// in the file may be given to the run.
    fn near_key(&self, hole: &Hole) -> Option<Problem> {
        let rest = hole.path[1..].join(".");
        let key = hole.path.get(1)?;
        if self.context.contains_key(key) || self.context.contains_key(&rest) {
            return None;
        }
        let near = nearest(key, self.context.keys().map(String::as_str))?;
        let message = format!("`${{{}}}` is not in the `context` of this workflow", hole.raw);
        Some(Problem::warning(message).hint(format!("did you mean `{near}`?")))
    }
}

/// Returns the problem with a reference to an existing step, or `None`.
fn of_step(hole: &Hole, around: &[Around]) -> Option<Problem> {
    let rest = &hole.path[1..];
    // Use the nearest block that has the step, and the longest matching name in it.
    let (depth, index, step, path) =
        around.iter().enumerate().rev().find_map(|(depth, around)| {
            (1..=rest.len()).rev().find_map(|cut| {
                let (index, step) = around.block.find(&rest[..cut].join("."))?;
                Some((depth, index, step, &rest[cut..]))
            })
        })?;
    let (raw, name) = (&hole.raw, &step.name);
    let Some(member) = path.first() else {
        let message = format!("`${{{raw}}}` is not defined: it names a step, and nothing of it");
        return Some(Problem::warning(message).hint(format!("write `${{{raw}.output}}`")));
    };
    if !MEMBERS.contains(&member.as_str()) {
        let message = format!("`${{{raw}}}` is not defined: no step has `{member}`");
        return Some(suggest(Problem::warning(message), member, MEMBERS));
    }
    if !leaves(step, member) {
        let message = format!("`${{{raw}}}` is not defined: step `{name}` leaves no `{member}`");
        let problem = Problem::warning(message);
        return Some(match (&step.action, member.as_str()) {
            (Action::Exec { .. } | Action::Ask { .. }, "lines" | "json") => {
                problem.hint(format!("give `{name}` an `output_capture: {member}`"))
            }
            (Action::Exec { .. } | Action::Ask { .. }, "output") => {
                let word = if step.output.capture == CaptureMode::Json { "json" } else { "lines" };
                problem.hint(format!("it captures `{word}`: write `${{steps.{name}.{word}}}`"))
            }
            _ => problem,
        });
    }
    let here = &around[depth];
    let comes_before =
        |around: &Around, index: usize| index < around.at || around.ways.lead(index, around.at);
    // In an outer loop that runs again, the result of the previous round may still exist.
    let again = around[..depth].iter().any(|around| around.ways.lead(around.at, around.at));
    if index <= here.at || comes_before(here, index) || again {
        return None;
    }
    let message = format!("`${{{raw}}}` is not defined yet: step `{name}` comes later");
    Some(Problem::warning(message).hint(format!("put `{name}` before this step")))
}

/// Returns true if the step's result may have this member.
fn leaves(step: &Step, member: &str) -> bool {
    let captures = |mode: CaptureMode| step.output.capture == mode;
    match &step.action {
        Action::Exec { .. } | Action::Ask { .. } => match member {
            "lines" => captures(CaptureMode::Lines),
            "json" => captures(CaptureMode::Json),
            // Output that is not JSON is kept as text if `allow_parse_error` is set.
            "output" => {
                captures(CaptureMode::Text)
                    || captures(CaptureMode::Whole)
                    || step.output.allow_parse_error
            }
            _ => !OF_WAITS.contains(&member),
        },
        Action::Wait(_) => !matches!(member, "output" | "lines" | "json"),
        Action::Each(_) => {
            !matches!(member, "output" | "lines" | "json") && !OF_WAITS.contains(&member)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use crate::workflow::compile;

    /// What is told of these steps.
    fn told(steps: &str) -> Vec<String> {
        let text = format!("version: \"1.1\"\ncontext: {{ title: x, a.b: y }}\nsteps:\n{steps}");
        let compiled = compile(&text, &()).unwrap_or_else(|problems| panic!("{problems:#?}"));
        compiled.warnings.into_iter().map(|problem| problem.message).collect()
    }

    #[test]
    fn what_never_has_a_value_is_told() {
        let a = "  - { name: A, command: [a] }\n";
        for (reference, wanted) in [
            ("context.titel", "is not in the `context` of this workflow"),
            ("steps.A.outptu", "is not defined: no step has `outptu`"),
            ("steps.A", "is not defined: it names a step, and nothing of it"),
            ("steps.A.lines", "is not defined: step `A` leaves no `lines`"),
            ("steps.A.json.x", "is not defined: step `A` leaves no `json`"),
            ("steps.A.files", "is not defined: step `A` leaves no `files`"),
            ("steps.C.output", "is not defined yet: step `C` comes later"),
        ] {
            let steps = format!(
                "{a}  - {{ name: B, command: [b, '${{{reference}}}'] }}\n  \
                 - {{ name: C, command: [c] }}\n"
            );
            assert_eq!(told(&steps), [format!("`${{{reference}}}` {wanted}")], "{reference}");
        }
        let steps = "  - { name: L, command: [l], output_capture: lines }\n  \
             - { name: J, command: [j, '${steps.L.output}'], output_capture: json }\n  \
             - { name: E, for_each: { items_from: steps.L.lines, steps: [\n      \
             { name: I, command: [i, '${steps.E.output}', '${steps.K.exit_code}'] },\n      \
             { name: K, command: [k] } ] } }\n";
        let found = told(steps);
        for wanted in ["`L` leaves no `output`", "`E` leaves no `output`", "`K` comes later"] {
            assert!(found.iter().any(|message| message.contains(wanted)), "{wanted}: {found:?}");
        }
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn what_may_have_one_is_not() {
        for steps in [
            "  - { name: A, command: [a, '${context.title}', '${context.a.b}', '${context.x}'] }\n",
            // It comes back.
            "  - { name: A, command: [a, '${steps.C.output}'] }\n  - { name: B, command: [b] }\n  \
             - { name: C, command: [c], on: { success: { goto: A } } }\n",
            "  - name: E\n    for_each: { items: [x], steps: [\n      \
             { name: I, command: [i, '${steps.Z.output}'], on: { failure: { goto: Z } } } ] }\n    \
             on: { success: { goto: _end } }\n  \
             - { name: Z, command: [z], on: { success: { goto: E } } }\n",
            "  - { name: J, command: [j], output_capture: json, allow_parse_error: true }\n  \
             - { name: K, command: [k, '${steps.J.output}', '${steps.J.json.x.0}'] }\n",
            "  - { name: W, wait_for: { glob: x } }\n  \
             - { name: K, command: [k, '${steps.W.files.0}', '${steps.W.status}'] }\n",
            "  - { name: A, command: [a, '${steps.A.attempt}'] }\n",
            "  - { name: v1.2, command: [a] }\n  \
             - { name: B, command: [b, '${steps.v1.2.output}'] }\n",
        ] {
            assert_eq!(told(steps), [] as [&str; 0], "{steps}");
        }
    }
}
