//! Traces: when a run is over, what happened in it is told to a collector, if the program was
//! built with the feature `otlp` and its environment names one.
//!
//! A trace is made of the journal, so it tells of everything, also of what happened before whoever
//! drives the run now took it up. Its ids follow from the run's, so telling twice tells the same.
//!
//! **Invariant:** nothing that a run does waits for it or fails by it. One that cannot be sent is a
//! line in the log.

#[cfg(feature = "otlp")]
mod otlp;
#[cfg(feature = "otlp")]
mod settings;

use std::collections::BTreeMap;
use std::path::Path;

use crate::engine::Run;
use crate::fleet::site::Environment;
use crate::workflow::Plan;
use crate::workflow::plan::Action;

/// Who is told, if anybody.
#[derive(Clone, Default)]
pub struct Traces {
    #[cfg(feature = "otlp")]
    settings: Option<settings::Settings>,
}

#[cfg(feature = "otlp")]
impl Traces {
    /// As the standard variables of OpenTelemetry say.
    pub fn of(environment: &Environment) -> Traces {
        Traces { settings: settings::Settings::of(environment) }
    }

    pub fn are_wanted(&self) -> bool {
        self.settings.is_some()
    }

    /// Tells of a run that is over. To be called where nobody waits.
    pub fn tell(&self, run: &Ended, workspace: &Path) {
        let Some(settings) = &self.settings else { return };
        if let Err(error) = otlp::tell(settings, run, workspace) {
            tracing::warn!("the trace of run {} could not be sent: {error}", run.id);
        }
    }
}

#[cfg(not(feature = "otlp"))]
impl Traces {
    /// Nobody: the program was built without it.
    pub fn of(_: &Environment) -> Traces {
        Traces::default()
    }

    pub fn are_wanted(&self) -> bool {
        false
    }

    pub fn tell(&self, _: &Ended, _: &Path) {}
}

/// A run that is over, as far as its journal does not say it.
pub struct Ended {
    pub id: String,
    pub workflow: String,
    /// Where its files are, from the workspace.
    pub run_root: String,
    pub status: &'static str,
    pub error: Option<String>,
    pub fleet: bool,
    /// Who is asked by the steps that name a provider.
    pub providers: BTreeMap<String, String>,
}

impl Ended {
    pub fn of(plan: &Plan, run: &Run, status: &'static str) -> Ended {
        let mut providers = BTreeMap::new();
        plan.root.walk(&mut |step| {
            let provider = match &step.action {
                Action::Ask { provider, .. } => provider,
                Action::Prompt(prompt) => &prompt.provider,
                _ => return,
            };
            providers.insert(step.name.clone(), provider.clone());
        });
        Ended {
            providers,
            id: run.id.to_string(),
            workflow: run.origin.workflow_file.clone(),
            run_root: run.origin.run_root.clone(),
            status,
            error: run.error.clone(),
            fleet: run.origin.fleet,
        }
    }
}
