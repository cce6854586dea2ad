//! Which sandboxes a child is put into, by the settings of whoever starts it.
//!
//! **Invariant:** what a worker's own settings take away, no task can give back: a workflow and a
//! task file can only add sandboxes.

use std::collections::BTreeMap;

use super::config::Config;
use super::work::Work;
use crate::workflow::Configured;
use crate::workflow::sandbox::Sandbox;

/// The sandboxes of agents.
#[derive(Clone, Debug, Default)]
pub struct Sandboxes {
    /// The agent that everything is done for, where there is but one.
    own: Option<String>,
    /// Who does the work of agents that nobody is named for.
    default_agent: String,
    agents: BTreeMap<String, Sandbox>,
    /// What providers write to all the same.
    writes: BTreeMap<String, Vec<String>>,
}

impl Sandboxes {
    /// Those of the settings; `own` is the agent whose worker this is.
    pub fn of(config: &Config, own: Option<&str>) -> Sandboxes {
        let agents = config.agents().iter();
        let limited = agents.filter_map(|(name, agent)| {
            let sandbox = agent.sandbox.clone().filter(Sandbox::limits)?;
            Some((name.clone(), sandbox))
        });
        let agents: BTreeMap<String, Sandbox> = limited.collect();
        // Providers are read only when somebody asks: most have no sandbox.
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

    /// The sandboxes of one execution, each with places that may be written to if they are there.
    pub fn for_work<'a>(&'a self, work: &'a Work) -> Vec<(&'a Sandbox, &'a [String])> {
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
