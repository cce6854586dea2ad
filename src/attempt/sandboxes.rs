//! Selects the sandboxes of a child process, from the settings of the process that starts it.
//!
//! **Invariant:** no task can regain a permission that a worker's own settings remove: workflows
//! and task files can only add sandboxes.

use std::collections::BTreeMap;

use super::work::Work;
use crate::settings::Config;
use crate::workflow::Configured;
use crate::workflow::sandbox::Sandbox;

/// The sandboxes of agents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sandboxes {
    /// The agent of all work in this process, if there is only one.
    own: Option<String>,
    /// Agent of agent steps that name none.
    default_agent: String,
    agents: BTreeMap<String, Sandbox>,
    /// Paths that each provider writes to despite its sandbox.
    writes: BTreeMap<String, Vec<String>>,
}

impl Sandboxes {
    /// Reads the sandboxes from the settings; `own` is the agent of this worker.
    pub(crate) fn of(config: &Config, own: Option<&str>) -> Sandboxes {
        let agents = config.agents().iter();
        let limited = agents.filter_map(|(name, agent)| {
            let sandbox = agent.sandbox.clone().filter(Sandbox::limits)?;
            Some((name.clone(), sandbox))
        });
        let agents: BTreeMap<String, Sandbox> = limited.collect();
        // Read the providers only if an agent has a sandbox: most have none.
        let writes = match agents.is_empty() {
            true => BTreeMap::new(),
            false => {
                let providers = config.providers().iter();
                providers.map(|(name, provider)| (name.clone(), provider.writes.clone())).collect()
            }
        };
        let own = own.map(str::to_owned);
        Sandboxes { own, default_agent: config.default_agent.clone(), agents, writes }
    }

    /// Returns the sandboxes of one execution, each with the paths that stay writable if they
    /// exist.
    pub(crate) fn for_work<'a>(&'a self, work: &'a Work) -> Vec<(&'a Sandbox, &'a [String])> {
        let default = work.asks.then_some(&self.default_agent);
        let agent = self.own.as_ref().or(work.agent.as_ref()).or(default);
        let known = work.provider.as_ref().and_then(|name| self.writes.get(name));
        let of_agent = agent.and_then(|agent| self.agents.get(agent));
        let of_agent = of_agent.map(|own| (own, known.map(Vec::as_slice).unwrap_or_default()));
        let of_provider = work.sandbox.as_ref().filter(|sandbox| sandbox.limits());
        let of_provider = of_provider.map(|sandbox| (sandbox, work.writes.as_slice()));
        of_agent.into_iter().chain(of_provider).collect()
    }
}
