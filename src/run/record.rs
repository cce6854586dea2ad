//! The one function that records an event.

use super::drive::Report;
use crate::attempt::artifacts;
use crate::attempt::exec_env::Site;
use crate::base::ids::StepPath;
use crate::base::time::Time;
use crate::engine::{self, Choice, Event, Run};
use crate::exec::Stop;
use crate::store::{Store, StoreError};
use crate::workflow::Plan;

/// Journals an event, applies it to the run, stores the artifacts that it produced, and reports
/// it. If the journal cannot be written, the run is unchanged. Only a process that executes steps
/// has a `site` for artifacts.
pub(crate) fn record(
    plan: &Plan,
    run: &mut Run,
    store: &mut Store,
    site: Option<&Site>,
    report: &mut dyn Report,
    at: Time,
    event: &Event,
) -> Result<(), StoreError> {
    store.record(at, event)?;
    engine::apply(plan, run, at, event);
    if let Some(site) = site {
        artifacts::keep_after(site, plan, run, event);
    }
    report.happened(plan, run, event);
    Ok(())
}

/// Ignores events, for operations that only record.
pub(crate) struct NoReport;

impl Report for NoReport {
    fn happened(&mut self, _: &Plan, _: &Run, _: &Event) {}

    fn ask(&mut self, _: &Run, _: &StepPath, _: &Stop) -> Option<Choice> {
        None
    }
}
