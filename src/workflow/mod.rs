//! What to do: [`compile`] turns an author's text into a [`Plan`], or tells every problem with
//! its place.
//!
//! **Invariant:** nothing here touches the world. What only the disk can tell about a plan (do
//! its paths lead out of the workspace?) is asked of [`Compiled::paths`] by whoever has a disk.

mod check;
mod fields;
pub mod plan;
pub mod problem;
mod steps;
mod steps_parts;
pub mod yaml;

use std::collections::BTreeMap;

pub use check::path_fault;
pub use plan::Plan;
pub use problem::{Place, Problem, Severity};

use plan::Provider;

/// A plan, and what its author should know about it.
#[derive(Debug)]
pub struct Compiled {
    pub plan: Plan,
    pub warnings: Vec<Problem>,
    /// Every path in the text that holds no variable, with its place.
    pub paths: Vec<(String, Place)>,
}

/// Compiles a workflow. `providers` are those a workflow may use without defining them.
pub fn compile(text: &str, providers: &BTreeMap<String, Provider>) -> Result<Compiled, Vec<Problem>> {
    let document = yaml::parse(text).map_err(|problem| vec![problem])?;
    steps::compile(&document, providers)
}

/// Reads the `providers:` section of a configuration file.
pub fn compile_providers(node: &yaml::Node) -> Result<BTreeMap<String, Provider>, Vec<Problem>> {
    let report = fields::Report::default();
    let providers = steps::providers(&report, node, plan::Version::V1_1);
    let problems = report.into_problems();
    if problems.iter().any(Problem::is_error) { Err(problems) } else { Ok(providers) }
}
