//! Workflow compiler: [`compile`] turns an author's text into a [`Plan`], or returns every problem
//! with its place.
//!
//! **Invariant:** this module does no I/O. Facts that only the disk knows (does a path lead out of
//! the workspace? does a spell exist?) are listed in [`Named`]; the caller, who has a disk, checks
//! them.

pub(crate) mod bead;
mod check;
mod dialects;
pub(crate) mod fields;
pub(crate) mod front;
pub(crate) mod grimoire;
pub(crate) mod lint;
pub(crate) mod named;
pub(crate) mod nodes;
pub(crate) mod plan;
pub(crate) mod sandbox;
pub(crate) mod schema;
pub(crate) mod settings;
pub(crate) mod shell;
mod spells;
mod steps;

use std::collections::BTreeMap;

pub(crate) use crate::yaml::problem::{Place, Problem, Severity};
pub(crate) use check::path_fault;
pub(crate) use named::Named;
pub(crate) use plan::Plan;
pub(crate) use settings::{ConfigLayer, read_config};
pub(crate) use spells::is_variable;

use crate::workflow::fields::Findings;
use crate::yaml;
use crate::yaml::problem::in_order;
use plan::{Checks, Provider};

/// A plan, the warnings for its author, and the names to check on disk.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub plan: Plan,
    pub warnings: Vec<Problem>,
    pub named: Named,
}

/// The result of a compilation that produced no plan.
#[derive(Debug)]
pub(crate) struct Rejected {
    /// All errors in the text, then all warnings.
    pub problems: Vec<Problem>,
    /// Names that the text refers to. They may be wrong too; report them with the problems.
    pub named: Named,
}

/// Supplies the providers that a workflow may use without defining them. The compiler asks for them
/// only when needed, because reading them is the slowest part of a small workflow.
pub(crate) trait Configured {
    fn providers(&self) -> &BTreeMap<String, Provider>;

    /// Returns the provider of prompts that do not name one.
    fn default_provider(&self) -> &str;

    /// Returns the agents that the settings name.
    fn agent_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns true if an agent whose answer does not report a result is asked once more.
    fn contract_repair(&self) -> bool {
        false
    }

    /// Returns the commands that must succeed in a merged tree, for a merge without checks of its
    /// own.
    fn checks(&self) -> Checks {
        Checks::default()
    }
}

/// An empty configuration.
impl Configured for () {
    fn providers(&self) -> &BTreeMap<String, Provider> {
        static NONE: BTreeMap<String, Provider> = BTreeMap::new();
        &NONE
    }

    fn default_provider(&self) -> &str {
        ""
    }
}

/// Compiles a workflow. Returns all problems if any of them is an error.
pub(crate) fn compile(text: &str, configured: &dyn Configured) -> Result<Compiled, Vec<Problem>> {
    let parsed = yaml::parse(text).map_err(|problem| vec![problem])?;
    compile_parsed(text, &parsed, configured).map_err(|rejected| rejected.problems)
}

/// Compiles a workflow whose text is already parsed. On failure, returns its problems and the names
/// that it refers to.
pub(crate) fn compile_parsed(
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
    if !matches!(document.value, yaml::Value::Map(_)) {
        let what = match document.value {
            yaml::Value::Null => "the file is empty".to_owned(),
            _ => format!("the workflow must be a map, not {}", document.kind()),
        };
        let hint = "write `steps:` or `nodes:`; `orchestrate init DIR` makes an example";
        let problems = vec![Problem::error(what).at(document.place).hint(hint)];
        return Err(Rejected { problems, named: findings.into_parts().1 });
    }
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
