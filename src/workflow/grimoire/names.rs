//! The names of a grimoire's steps and outputs. A name is unique in the whole grimoire, because
//! spells refer to results by name from every block.

use std::collections::HashMap;

use crate::base::ids::name_fault;
use crate::workflow::fields::Findings;
use crate::workflow::spells::{RESERVED, is_variable};
use crate::yaml::problem::{Place, Problem};
use crate::yaml::{Node, Value};

/// Checks all names of a tree of steps.
pub(crate) fn check(findings: &Findings, steps: &Node) {
    let mut seen = Seen { findings, names: HashMap::new() };
    seen.steps(steps);
    seen.outputs(steps);
}

struct Seen<'a> {
    findings: &'a Findings,
    /// Names as written, by their folded form (see [`folded`]).
    names: HashMap<String, String>,
}

impl Seen<'_> {
    fn steps(&mut self, steps: &Node) {
        let Value::List(steps) = &steps.value else { return };
        for step in steps {
            match step.get("name") {
                Some(node) => self.name(node),
                None if matches!(step.value, Value::Map(_)) => {
                    self.findings.error(step.place, "this step has no `name`");
                }
                None => {}
            }
            if let Some(inner) = step.get("steps") {
                self.steps(inner);
            }
        }
    }

    fn name(&mut self, node: &Node) {
        let Some(name) = node.text() else { return };
        let refuse = |why: &str| {
            self.findings.error(node.place, format!("`{name}` cannot name a step: {why}"));
        };
        if let Some(fault) = name_fault(name) {
            refuse(fault);
        } else if RESERVED.contains(&folded(name).as_str()) {
            refuse("spells know something else by it");
        } else {
            if !is_variable(name) {
                let message = format!("spells have no way to name step `{name}`");
                let hint = "letters, digits, `_` and `-`, beginning with a letter or `_`";
                self.findings.add(Problem::warning(message).at(node.place).hint(hint));
            }
            self.once(name, node.place, "two steps");
        }
    }

    fn once(&mut self, name: &str, place: Place, what: &str) {
        let Some(other) = self.names.insert(folded(name), name.to_owned()) else { return };
        if other == name {
            self.findings.error(place, format!("{what} are named `{name}`"));
            return;
        }
        let problem = Problem::error(format!("`{name}` and `{other}` are one name")).at(place);
        self.findings.add(problem.hint("`-` and `_` meet in spells, and letters in file names"));
    }

    fn outputs(&mut self, steps: &Node) {
        let Value::List(steps) = &steps.value else { return };
        for step in steps {
            let name = step.get("name").and_then(Node::text);
            if let Some(node) = step.get("output")
                && let Some(output) = node.text()
                && Some(output) != name
            {
                self.once(output, node.place, "two results");
            }
            if let Some(inner) = step.get("steps") {
                self.outputs(inner);
            }
        }
    }
}

/// Returns the form in which spells and file systems compare a name.
fn folded(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}
