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

/// Knows the providers that a workflow may use without defining them. They are asked for only
/// when needed, because reading them takes longer than anything else about a small workflow.
pub trait Configured {
    fn providers(&self) -> &BTreeMap<String, Provider>;
}

/// Nothing is configured.
impl Configured for () {
    fn providers(&self) -> &BTreeMap<String, Provider> {
        static NONE: BTreeMap<String, Provider> = BTreeMap::new();
        &NONE
    }
}

/// Compiles a workflow.
pub fn compile(text: &str, configured: &dyn Configured) -> Result<Compiled, Vec<Problem>> {
    let document = yaml::parse(text).map_err(|problem| vec![problem])?;
    steps::compile(&document, configured)
}

/// What one settings file says.
#[derive(Debug, Default)]
pub struct ConfigLayer {
    pub providers: BTreeMap<String, Provider>,
    pub max_visits: Option<u32>,
    pub grace: Option<std::time::Duration>,
    pub input_bytes: Option<u64>,
}

/// Reads a settings file, strict as a workflow is.
pub fn read_config(text: &str) -> Result<ConfigLayer, Vec<Problem>> {
    const TOP: [fields::Key; 2] = fields::since_1_1(["providers", "limits"]);
    const LIMITS: [fields::Key; 3] = fields::since_1_1(["max_visits", "grace_sec", "input_bytes"]);
    let document = yaml::parse(text).map_err(|problem| vec![problem])?;
    let mut layer = ConfigLayer::default();
    if matches!(document.value, yaml::Value::Null) {
        return Ok(layer);
    }
    let version = plan::Version::V1_1;
    let findings = fields::Findings::default();
    if let Some(top) = fields::Fields::open(&findings, &document, "the file", &TOP, version) {
        if let Some(node) = top.get("providers") {
            layer.providers = steps::providers(&findings, node, version);
        }
        let limits = top
            .get("limits")
            .and_then(|node| fields::Fields::open(&findings, node, "`limits`", &LIMITS, version));
        if let Some(limits) = limits {
            let visits = limits.integer("max_visits", 1, u64::from(u32::MAX));
            layer.max_visits = visits.map(|number| number as u32);
            layer.grace = limits.seconds("grace_sec", true);
            layer.input_bytes = limits.integer("input_bytes", 1, 1 << 40);
        }
    }
    let problems = findings.into_problems();
    if problems.iter().any(Problem::is_error) { Err(problems) } else { Ok(layer) }
}
