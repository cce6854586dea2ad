//! What to do: [`compile`] turns an author's text into a [`Plan`], or tells every problem with
//! its place.
//!
//! **Invariant:** nothing here touches the world. What only the disk can tell about a workflow (do
//! its paths lead out of the workspace? are its spells there?) is asked of [`Named`] by whoever has
//! a disk.

mod check;
pub mod condition;
mod dialects;
pub mod fields;
mod flow;
pub mod front;
pub mod grimoire;
mod grimoire_names;
#[cfg(test)]
mod grimoire_tests;
pub mod lint;
pub mod named;
mod nodes;
pub mod nodes_commands;
mod nodes_graph;
mod nodes_keys;
mod nodes_modes;
#[cfg(test)]
mod nodes_tests;
mod nodes_texts;
pub mod nodes_tools;
pub mod plan;
pub mod problem;
mod references;
pub mod sandbox;
mod scalar;
pub mod settings;
pub mod shape;
pub mod shell;
mod spells;
mod steps;
mod steps_parts;
pub mod yaml;
mod yaml_fault;
#[cfg(test)]
mod yaml_fault_tests;
mod yaml_open;

use std::collections::BTreeMap;

pub use check::path_fault;
pub use named::Named;
pub use plan::Plan;
pub use problem::{Place, Problem, Severity};
pub use settings::{ConfigLayer, read_config};
pub use spells::is_variable;

use fields::Findings;
use plan::{Checks, Provider};
use problem::in_order;

/// A plan, and what its author should know about it.
#[derive(Debug)]
pub struct Compiled {
    pub plan: Plan,
    pub warnings: Vec<Problem>,
    pub named: Named,
}

/// Why there is no plan.
#[derive(Debug)]
pub struct Rejected {
    /// Everything that is wrong in the text, then what is doubtful.
    pub problems: Vec<Problem>,
    /// What it names all the same: that may be wrong too, and is told with the rest.
    pub named: Named,
}

/// A text without the mark that some editors put before it, which nobody wrote.
pub fn without_bom(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Knows the providers that a workflow may use without defining them. They are asked for only
/// when needed, because reading them takes longer than anything else about a small workflow.
pub trait Configured {
    fn providers(&self) -> &BTreeMap<String, Provider>;

    /// The provider of prompts that name none.
    fn default_provider(&self) -> &str;

    /// The agents that the settings name.
    fn agent_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether an agent is asked once more that does not say how its work went.
    fn contract_repair(&self) -> bool {
        false
    }

    /// What must succeed in a merged tree, where a merge says nothing of its own.
    fn checks(&self) -> Checks {
        Checks::default()
    }
}

/// Nothing is configured.
impl Configured for () {
    fn providers(&self) -> &BTreeMap<String, Provider> {
        static NONE: BTreeMap<String, Provider> = BTreeMap::new();
        &NONE
    }

    fn default_provider(&self) -> &str {
        ""
    }
}

/// Compiles a workflow.
pub fn compile(text: &str, configured: &dyn Configured) -> Result<Compiled, Vec<Problem>> {
    let parsed = yaml::parse(text).map_err(|problem| vec![problem])?;
    compile_parsed(text, &parsed, configured).map_err(|rejected| rejected.problems)
}

/// Compiles a workflow whose text was parsed already, or tells beside its problems what it names.
pub fn compile_parsed(
    text: &str,
    document: &yaml::Node,
    configured: &dyn Configured,
) -> Result<Compiled, Rejected> {
    let pairs = match &document.value {
        yaml::Value::Map(pairs) => pairs.as_slice(),
        _ => &[],
    };
    let key = |name: &str| pairs.iter().map(|(key, _)| key).find(|key| key.text() == Some(name));
    let place_of = |name: &str| key(name).map(|key| key.place);
    let findings = Findings::of(text, configured);
    let plan = match (place_of("nodes"), place_of("steps")) {
        (Some(nodes), Some(steps)) => {
            let what = "the workflow has both `steps` and `nodes`, which exclude each other";
            let hint = "they are two languages: `steps` run one after another, `nodes` as a graph";
            findings.add(Problem::error(what).at(nodes.max(steps)).hint(hint));
            None
        }
        (Some(_), None) => nodes::read(&findings, document, configured),
        (None, _) if grimoire::is(document) => grimoire::read(&findings, document, configured),
        (None, _) => steps::read(&findings, document, configured),
    };
    let (problems, named) = findings.into_parts();
    let (errors, warnings) = problems.into_iter().partition(Problem::is_error);
    match plan.filter(|_| Vec::is_empty(&errors)) {
        Some(plan) => Ok(Compiled { plan, warnings: in_order(text, warnings), named }),
        None => {
            let problems = errors.into_iter().chain::<Vec<_>>(warnings).collect();
            Err(Rejected { problems: in_order(text, problems), named })
        }
    }
}
