//! Creates a run: its directory, its copy of the workflow, its first state, and its lock.

use std::path::Path;

use serde_json::{Map, Value};
use tracing::Level;

use super::failure::Failure;
use super::load::Loaded;
use super::locked::LockedRun;
use super::log;
use super::part_files::PartFile;
use super::project::{Project, keep_from_git};
use super::wording::{RUN_AGAIN, cannot_lock, with_disk_hint};
use crate::attempt::gates::CONTROL;
use crate::attempt::prepare::refs::ARTIFACTS;
use crate::attempt::source_files::{self, PartSource};
use crate::attempt::{exec_env, spellbook};
use crate::base::ids::RunId;
use crate::base::random::chance;
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk::{self, fs};
use crate::engine::{Origin, Policy, Request, Run};
use crate::store::lock::{self, RunLock};
use crate::store::{DEFINITION, SETTINGS, Store, StoreError};
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Dialect, Isolation};
use crate::yaml::problem::located;

/// The parameters of a new run.
pub(crate) struct NewRun<'a> {
    pub loaded: &'a Loaded,
    pub plan: Plan,
    pub context: Map<String, Value>,
    pub policy: Policy,
    pub only_step: Option<String>,
    /// Destination of the archive of the processed directory after success. Empty means the run's
    /// directory.
    pub archive: Option<String>,
    /// True if the steps are executed as tasks by workers.
    pub fleet: bool,
    /// The request that the run is started for.
    pub request: Option<Box<Request>>,
}

impl<'a> NewRun<'a> {
    /// Returns the parameters to run a whole workflow in this process.
    pub(crate) fn whole(loaded: &'a Loaded, context: Map<String, Value>, policy: Policy) -> Self {
        let plan = loaded.plan.clone();
        let (only_step, archive, fleet, request) = (None, None, false, None);
        NewRun { loaded, plan, context, policy, only_step, archive, fleet, request }
    }

    /// Rejects a run that is already known to fail later, before any agent starts.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let request = self.request.as_deref();
        let bead = request.and_then(|request| request.bead.as_ref());
        self.check_merges(request)?;
        // If only one step runs, problems of the other steps do not matter.
        if self.only_step.is_some() {
            return Ok(());
        }
        let given = spellbook::Given { context: &self.context, bead };
        let beads = request.map(|request| request.beads.clone()).unwrap_or_default();
        let missing = spellbook::missing(&self.plan, &self.loaded.spells, &beads, &given);
        if missing.is_empty() {
            return Ok(());
        }
        let Loaded { file, text, .. } = self.loaded;
        Err(Failure::in_text(located(text, missing), file, text))
    }

    /// Rejects a plan with an unconditional merge step if the run has no branch to merge. Only a
    /// bead with a worktree has one.
    fn check_merges(&self, request: Option<&Request>) -> Result<(), Failure> {
        let mut merge = None;
        self.plan.root().walk(&mut |step| {
            let surely = step.when.is_none() && matches!(step.action, Action::Merge { .. });
            merge = merge.or(surely.then_some(step.name.as_str()));
        });
        let Some(step) = merge else { return Ok(()) };
        let bead = request.filter(|request| request.bead.is_some());
        let why = match bead.map(|request| request.isolation.unwrap_or_default()) {
            None => "the run has no bead",
            Some(Isolation::Workspace) => "its bead is worked on in the workspace",
            Some(Isolation::Worktree) => return Ok(()),
        };
        let message = format!("step `{step}` has nothing to merge: {why}");
        let hint = match bead {
            None => "give the work item: `--bead FILE|ID`",
            Some(_) => "leave out `--isolation workspace`",
        };
        Err(Failure::invalid(message).hint(hint))
    }
}

/// Creates a run: its directory, its first files, its lock, and `latest`. Removes the directory
/// again if the first files cannot be written. `checkout` is the lock on the checkout, for a run
/// that needs it.
pub(crate) fn create(
    project: &Project,
    new: NewRun,
    checkout: Option<RunLock>,
) -> Result<LockedRun, Failure> {
    new.check()?;
    let dir = &project.state_dir;
    let warnings = &new.loaded.warnings;
    let cannot = |path: &Path, error: &std::io::Error| {
        let message = format!("cannot make `{}`: {error}", path.display());
        with_disk_hint(Failure::failed(message), error, RUN_AGAIN)
    };
    let now = SystemClock.now();
    disk::machine().make_dirs(dir).map_err(|error| cannot(dir, &error))?;
    keep_from_git(&project.workspace);
    let (id, root) = loop {
        let id = RunId::new(&now.to_stamp(), chance());
        let root = dir.join(id.as_str());
        match fs::create_dir(&root) {
            Ok(()) => break (id, root),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(cannot(&root, &error)),
        }
    };
    let mut locked = fill(project, new, now, &id, &root).inspect_err(|_| {
        let _ = fs::remove_dir_all(&root);
    })?;
    locked.checkout = checkout;
    keep_log(project, &locked.plan, &root, &id)?;
    for warning in warnings {
        log::keep(Level::WARN, &warning.message);
    }
    point_latest(dir, &id);
    tracing::info!("run {id} of `{}` started", locked.run.origin.workflow_file);
    Ok(locked)
}

/// Creates a run under a given id that does not exist yet, for other processes to drive. The run
/// appears complete or not at all.
pub(crate) fn create_as(project: &Project, new: NewRun, id: &RunId) -> Result<LockedRun, Failure> {
    new.check()?;
    let dir = &project.state_dir;
    let failed = |error: std::io::Error| Failure::failed(format!("cannot make run {id}: {error}"));
    let making = dir.join(format!(".{id}.{}", std::process::id()));
    // Remove leftovers of an earlier attempt.
    let _ = fs::remove_dir_all(&making);
    disk::machine().make_dirs(&making).map_err(failed)?;
    keep_from_git(&project.workspace);
    let mut locked = fill(project, new, SystemClock.now(), id, &making).inspect_err(|_| {
        let _ = fs::remove_dir_all(&making);
    })?;
    let root = dir.join(id.as_str());
    disk::rename(&making, &root).map_err(failed)?;
    locked.store.moved_to(&root);
    Ok(locked)
}

/// Writes the first files into a new run's directory.
fn fill(
    project: &Project,
    new: NewRun,
    now: Time,
    id: &RunId,
    root: &Path,
) -> Result<LockedRun, Failure> {
    let root_then = project.state_dir.join(id.as_str());
    let inside = root_then.strip_prefix(&project.workspace);
    let workspace = inside.is_err().then(|| project.workspace.to_string_lossy().into_owned());
    let relative = inside.unwrap_or(&root_then);
    keep_parts(project, root, &new.plan, new.loaded)
        .map_err(|error| with_disk_hint(Failure::failed(&error), &error.source, RUN_AGAIN))?;
    let origin = Origin {
        run_id: id.as_str().to_owned(),
        workflow_file: new.loaded.file.clone(),
        workflow_checksum: new.loaded.checksum(),
        run_root: relative.to_string_lossy().into_owned(),
        workspace,
        context: new.context,
        policy: new.policy,
        only_step: new.only_step,
        archive: new.archive,
        fleet: new.fleet,
        request: new.request,
        definition: None,
    };
    let plan = source_files::with_commands(new.plan, root);
    let mut run = Run::new(&plan, id.clone(), origin, now);
    let settings = serde_json::to_vec_pretty(&project.config.to_be_kept()).unwrap_or_default();
    let mut frozen = vec![(DEFINITION, new.loaded.text.as_bytes())];
    if !project.config.layers.is_empty() {
        frozen.push((SETTINGS, &settings));
    }
    let store = Store::create(disk::machine(), root, &frozen, &plan, &mut run, now)
        .map_err(|error| with_disk_hint(Failure::failed(&error), &error.source, RUN_AGAIN))?;
    if new.fleet {
        // Other machines look for answers in this directory, so create it before the first answer.
        let control = root.join(CONTROL);
        disk::machine().make_dirs(&control).map_err(|source| {
            let error = StoreError { doing: "make", path: control, source };
            with_disk_hint(Failure::failed(&error), &error.source, RUN_AGAIN)
        })?;
    }
    let taken = if new.fleet { lock::take_if_any(root) } else { lock::take(root) };
    let lock = taken.map_err(|error| cannot_lock(error, root, id))?;
    Ok(LockedRun { plan, run, store, lock, checkout: None })
}

/// Copies the files that a workflow includes into the run, and creates its artifacts directory.
pub(crate) fn keep_parts(
    project: &Project,
    root: &Path,
    plan: &Plan,
    loaded: &Loaded,
) -> Result<(), StoreError> {
    let wrong = |(path, source)| StoreError { doing: "write", path, source };
    spellbook::keep(root, &loaded.spells).map_err(wrong)?;
    if plan.dialect() != Dialect::Nodes {
        return Ok(());
    }
    let artifacts = root.join(ARTIFACTS);
    let made = disk::machine().make_dirs(&artifacts);
    made.map_err(|error| wrong((artifacts, error)))?;
    let home = project.home_dir();
    let kept = loaded.parts.iter().map(|PartFile { part, from, text }| {
        let source = PartSource::of(from, text, &project.workspace, home.as_deref());
        (source_files::kept(root, part, from), text.as_slice(), source)
    });
    source_files::keep(root, &kept.collect::<Vec<_>>()).map_err(wrong)
}

/// Starts to write the log of a run.
pub(crate) fn keep_log(
    project: &Project,
    plan: &Plan,
    root: &Path,
    id: &RunId,
) -> Result<(), Failure> {
    let mask = exec_env::mask(plan, &project.environment);
    log::keep_in(root, project.trace.then(|| id.to_string()), mask).map_err(|error| {
        let message = format!("cannot write the log in `{}`: {error}", root.display());
        with_disk_hint(Failure::failed(message), &error, "try again")
    })
}

/// Points the link `latest` at a run. A failure is only logged, because the link is a convenience.
fn point_latest(dir: &Path, id: &RunId) {
    let temporary = dir.join(format!(".latest.{}", std::process::id()));
    let made = std::os::unix::fs::symlink(id.as_str(), &temporary)
        .and_then(|()| disk::rename(&temporary, &dir.join("latest")));
    if let Err(error) = made {
        let _ = fs::remove_file(&temporary);
        tracing::warn!("cannot point `latest` at the run: {error}");
    }
}
