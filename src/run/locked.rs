//! A run that this process has locked: it may record events and drive the run.

use std::path::Path;

use super::drive::Report;
use super::failure::Failure;
use super::project::Project;
use super::record::record;
use super::wording::{beyond_repair, cannot_lock, cannot_open, damaged, disk_failure};
use super::{home, open};
use crate::base::ids::RunId;
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk;
use crate::engine::{Event, Run};
use crate::store::lock::{self, RunLock};
use crate::store::{Store, StoreError};
use crate::workflow::Plan;

pub(crate) struct LockedRun {
    pub plan: Plan,
    pub run: Run,
    pub store: Store,
    pub lock: RunLock,
    /// Lock on the checkout, if the run changes the checkout and this process drives it.
    pub checkout: Option<RunLock>,
}

impl LockedRun {
    /// Locks a run that no process drives, and loads its plan and state. Replaces the settings of
    /// `project` with those that the run was created with. With `repair`, rebuilds a damaged state.
    pub(crate) fn open(
        project: &mut Project,
        id: &RunId,
        root: &Path,
        repair: bool,
    ) -> Result<LockedRun, Failure> {
        home::check(project, id, root)?;
        let lock = lock::take(root).map_err(|error| cannot_lock(error, root, id))?;
        let kept = open::frozen_config(root).map_err(|error| cannot_open(error, id))?;
        let today = std::mem::replace(&mut project.config, kept);
        // Notification settings come from the current driver, not from the run.
        project.config.notify = today.notify;
        let workspace = project.open_workspace()?;
        let plan = open::frozen_plan(&workspace, &project.config, root)
            .map_err(|error| cannot_open(error, id))?;
        let (store, run) = load(project, id, root, &plan, repair)?;
        Ok(LockedRun { plan, run, store, lock, checkout: None })
    }

    /// Journals an event, applies it, and reports it.
    pub(crate) fn record(
        &mut self,
        report: &mut dyn Report,
        at: Time,
        event: &Event,
    ) -> Result<(), StoreError> {
        record(&self.plan, &mut self.run, &mut self.store, None, report, at, event)
    }
}

fn load(
    project: &Project,
    id: &RunId,
    root: &Path,
    plan: &Plan,
    repair: bool,
) -> Result<(Store, Run), Failure> {
    let disk = disk::machine();
    match Store::load(disk.clone(), root, plan) {
        Ok(loaded) => {
            if repair {
                project.note(format!("run {id} is whole: there is nothing to repair"));
            }
            Ok(loaded)
        }
        Err(error) if repair => {
            project.note(format!("{error}"));
            let (mut store, run, by) =
                Store::repair(disk, root, plan).map_err(|error| beyond_repair(error, id))?;
            let saved = store.save(plan, &run, SystemClock.now());
            saved.map_err(|error| disk_failure(&error, id))?;
            project.note(format!("state rebuilt from {by}"));
            Ok((store, run))
        }
        Err(error) if Store::is_beyond_repair(disk, root, plan) => Err(beyond_repair(error, id)),
        Err(error) => Err(damaged(error, id)),
    }
}
