//! Traces: sends the events of an ended run to an OpenTelemetry collector, if the environment names
//! one.
//!
//! A trace is built from the journal, so it is complete: it includes the time before the current
//! process resumed the run. Its IDs derive from the run's ID, so sending it twice gives the same
//! trace.
//!
//! **Invariant:** no run waits for a trace or fails because of one. A trace that cannot be sent is
//! only logged.

mod otlp;
mod settings;

use std::collections::BTreeMap;
use std::path::Path;

use crate::attempt::exec_env::Environment;
use crate::engine::Run;
use crate::workflow::Plan;
use crate::workflow::plan::Action;

/// The collector, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Traces {
    settings: Option<settings::Settings>,
}

impl Traces {
    /// Reads the standard OpenTelemetry variables.
    pub(crate) fn of(environment: &Environment) -> Traces {
        Traces { settings: settings::Settings::of(environment) }
    }

    pub(crate) fn are_wanted(&self) -> bool {
        self.settings.is_some()
    }

    /// Sends the trace of an ended run. Blocks; call it on a thread that the run does not wait for.
    pub(crate) fn tell(&self, run: &Ended, workspace: &Path) {
        let Some(settings) = &self.settings else { return };
        if let Err(error) = otlp::tell(settings, run, workspace) {
            tracing::warn!("the trace of run {} could not be sent: {error}", run.id);
        }
    }
}

/// An ended run: the data that its journal does not contain.
pub(crate) struct Ended {
    pub id: String,
    pub workflow: String,
    /// Its directory, relative to the workspace.
    pub run_root: String,
    pub status: &'static str,
    pub error: Option<String>,
    pub fleet: bool,
    /// The provider of each step that names one.
    pub providers: BTreeMap<String, String>,
}

impl Ended {
    pub(crate) fn of(plan: &Plan, run: &Run, status: &'static str) -> Ended {
        let mut providers = BTreeMap::new();
        plan.root().walk(&mut |step| {
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
