//! Repairs runs: rebuilds a state from the journal and a journal from its readable parts, and
//! enqueues a new task for a run that has lost its own.

use std::io;
use std::path::Path;

use super::{Cured, Finding, Kind, Outcome, Pass, State, cures};
use crate::base::ids::RunId;
use crate::base::time::{Clock, SystemClock};
use crate::disk;
use crate::engine::{Run, RunStatus};
use crate::run::{open, run_task};
use crate::store::lock::{self, LockError, RunLock};
use crate::store::{self, LoadError, Store};
use crate::workflow::Plan;

/// Name of the copy of a replaced state.
const REPLACED: &str = "state.json.replaced";

impl Pass<'_> {
    /// Rebuilds the files of a run, unless a process drives it.
    pub(super) fn mend_run(&self, finding: &Finding) -> Cured {
        let root = self.mender.state_dir.join(&finding.about);
        let _lock = match self.own(&finding.about, &root)? {
            Ok(lock) => lock,
            Err(refused) => return Ok(Some(refused)),
        };
        let plan = match self.plan(&root) {
            Ok(plan) => plan,
            Err(_) => return Ok(Some(cures::unopened(&root, &finding.about))),
        };
        let disk = disk::machine();
        let rebuilt = match finding.kind {
            Kind::Journal => Store::repair(disk, &root, &plan)
                .map(|(store, run, by)| (store, run, format!("the run was rebuilt from {by}"))),
            _ => Store::load_by_journal_alone(disk, &root, &plan).map(|(store, run)| {
                (store, run, format!("`{}` was rebuilt from the journal", store::STATE))
            }),
        };
        match rebuilt {
            Ok((mut store, run, told)) => {
                let kept = keep_state(&root)?;
                store.save(&plan, &run, SystemClock.now()).map_err(|error| error.source)?;
                Ok(Some(Outcome::Mended(format!("{told}{kept}"))))
            }
            Err(LoadError::Disk(error)) => Err(error.source),
            Err(LoadError::Damaged { .. }) => Ok(Some(cures::lost(&finding.about))),
        }
    }

    /// Enqueues a task for a run that has none.
    pub(super) fn drive_again(&self, finding: &Finding) -> Cured {
        let Some(queue) = &self.queue else { return Ok(None) };
        let Some(id) = RunId::parse(&finding.about) else { return Ok(None) };
        let root = self.mender.state_dir.join(id.as_str());
        if self.report.tree.task_of_run(id.as_str()).is_some() {
            let told = format!("`orchestrate retry {id}` lets it go on, `cancel` ends it");
            return Ok(Some(Outcome::ForPeople(told)));
        }
        let _lock = match self.own(id.as_str(), &root)? {
            Ok(lock) => lock,
            Err(refused) => return Ok(Some(refused)),
        };
        let Ok((store, run)) = self.load(&root) else {
            return Ok(Some(cures::unopened(&root, id.as_str())));
        };
        // Checked under the lock: an earlier repair may have enqueued it.
        if run.status != RunStatus::Running || run_task::find(queue, &id)?.is_some() {
            return Ok(None);
        }
        queue.enqueue(&[run_task::make(queue, &run, store.term())])?;
        Ok(Some(Outcome::Mended("its task was put out again: a coordinator will drive it".into())))
    }

    /// Takes the lock to write a run's files, or reports its holder.
    fn own(&self, id: &str, root: &Path) -> io::Result<Result<RunLock, Outcome>> {
        let driver = self.report.tree.task_of_run(id).and_then(|lying| match &lying.state {
            State::Held(claim) if self.lives(&claim.worker) => Some(claim.worker.clone()),
            _ => None,
        });
        if let Some(worker) = driver {
            let told = format!("coordinator {worker} drives the run: mend it when that is over");
            return Ok(Err(Outcome::Refused(told)));
        }
        match lock::take_if_any(root) {
            Ok(lock) => Ok(Ok(lock)),
            Err(LockError::Held { owner }) => {
                let told = format!("{owner} drives the run: mend it when that is over");
                Ok(Err(Outcome::Refused(told)))
            }
            Err(LockError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Err(cures::unopened(root, id)))
            }
            Err(LockError::Io(error)) => Err(error),
        }
    }

    fn plan(&self, root: &Path) -> Result<Plan, open::OpenError> {
        let config = open::frozen_config(root)?;
        open::frozen_plan(self.mender.workspace, &config, root)
    }

    fn load(&self, root: &Path) -> Result<(Store, Run), open::OpenError> {
        let (_, _, store, run) = open::open(self.mender.workspace, root)?;
        Ok((store, run))
    }
}

/// Keeps a copy of a state that is about to be replaced, because a user may have edited it. Returns
/// a note about the copy.
fn keep_state(root: &Path) -> io::Result<String> {
    use io::ErrorKind::{InvalidData, NotFound};
    let disk = disk::machine();
    let bytes = match disk.read(&root.join(store::STATE)) {
        // Without a regular file, there is nothing to keep.
        Err(error) if matches!(error.kind(), NotFound | InvalidData) => return Ok(String::new()),
        read => read?,
    };
    let mut name = REPLACED.to_owned();
    let mut number = 1;
    loop {
        match disk.read(&root.join(&name)) {
            Err(error) if error.kind() == NotFound => break,
            // An earlier repair that was interrupted has kept it.
            Ok(kept) if kept == bytes => return Ok(format!("; what it said is in `{name}`")),
            Ok(_) => name = format!("{REPLACED}.{number}"),
            Err(error) => return Err(error),
        }
        number += 1;
    }
    disk::replace(&*disk, &root.join(&name), &bytes)?;
    Ok(format!("; what it said is in `{name}`"))
}
