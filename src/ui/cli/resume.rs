//! `orchestrate resume`: go on with a run that failed or was stopped.

use std::path::Path;

use super::common::{self, Loaded, NewRun, Owned, RunOptions, Surroundings};
use super::{Common, Failure, signals};
use crate::disk;
use crate::engine::{Event, Origin, Policy, Run, RunStatus};
use crate::exec;
use crate::fleet::open::{self, OpenError};
use crate::ids::RunId;
use crate::store::{self, LoadError, Store};
use crate::time::{Clock, SystemClock};

#[derive(clap::Args, Clone, Debug)]
pub struct ResumeArgs {
    /// The run: its id, the beginning of it, or `latest`
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Begin anew, as a new run with the same context
    #[arg(long, conflicts_with = "repair")]
    pub force_restart: bool,
    /// Rebuild a damaged state from the journal or a backup first
    #[arg(long)]
    pub repair: bool,
    #[command(flatten)]
    pub options: RunOptions,
}

pub fn main(args: &ResumeArgs, common: &Common) -> Result<u8, Failure> {
    let mut around = Surroundings::look(common)?;
    let (id, root) = common::find_run(&around, &args.run)?;
    let lock = common::take_lock(&root, &id)?;
    if args.force_restart {
        return restart(&around, args, &id, &root);
    }
    around.config = open::frozen_config(&root).map_err(|error| cannot_open(error, &id))?;
    let workspace = common::open_workspace(&around)?;
    let plan = open::frozen_plan(&workspace, &around.config, &root)
        .map_err(|error| cannot_open(error, &id))?;
    let disk = disk::machine();
    let (mut store, run) = match Store::load(disk.clone(), &root, &plan) {
        Ok(loaded) => loaded,
        Err(error) if args.repair => {
            around.say(format!("{error}"));
            let (store, run, by) =
                Store::repair(disk, &root, &plan).map_err(|error| damaged(error, &id))?;
            around.say(format!("state rebuilt from {by}"));
            (store, run)
        }
        Err(error) => return Err(damaged(error, &id)),
    };
    if run.status == RunStatus::Completed {
        // The snapshot may be older than the journal, or damaged no more.
        store.save(&plan, &run, SystemClock.now()).map_err(|e| common::disk_failure(&e, &id))?;
        end_orphans(&around, &id);
        common::tell_outcome(&around, &plan, &run, 0);
        around.say(format!("run {id} has completed already; there is nothing to do"));
        return Ok(0);
    }
    check_source(&around, &run)?;
    let signals = signals::listen()?;
    end_orphans(&around, &id);
    common::keep_log(&around, &plan, &root, &id)?;
    around.say(format!("run {id} of {}, resumed", run.origin.workflow_file));
    let policy = args.options.policy(run.origin.policy.clone());
    let policy = Policy { max_visits: around.config.max_visits, ..policy };
    let owned = Owned { plan, run, store, lock };
    let event = Some(Event::Resumed { policy });
    let (code, _) = common::drive(&around, owned, &args.options, &signals, event)?;
    Ok(code)
}

/// Whoever drove the run before is gone, for we hold the lock; what it started may not be.
fn end_orphans(around: &Surroundings, id: &RunId) {
    let orphans = exec::sweep(&format!("{id}/"));
    if orphans > 0 {
        around.say(format!("ended {orphans} processes that an earlier run of this had left"));
    }
}

fn damaged(error: LoadError, id: &RunId) -> Failure {
    match error {
        LoadError::Damaged { .. } => Failure::new(7, error).hint(
            "`--repair` rebuilds it from the journal or a backup; `--force-restart` begins anew",
        ),
        LoadError::Disk(error) => common::disk_failure(&error, id),
    }
}

/// What a run that cannot be taken up is told as.
fn cannot_open(error: OpenError, id: &RunId) -> Failure {
    match error {
        OpenError::Unreadable(message) => Failure::new(7, message)
            .hint("`--force-restart` begins anew with workflow and settings as they are now"),
        OpenError::Settings(error) => common::bad_config(&error),
        OpenError::Workflow { file, text, problems } => {
            Failure { code: 2, text: common::show(&problems, &file, &text) }
        }
        OpenError::State(error) => damaged(error, id),
    }
}

/// A workflow that was changed since is not the one the run is of.
fn check_source(around: &Surroundings, run: &Run) -> Result<(), Failure> {
    let file = &run.origin.workflow_file;
    match std::fs::read(common::workflow_path(around, Path::new(file))) {
        Ok(bytes) if common::checksum(&bytes) != run.origin.workflow_checksum => {
            let message = format!("`{file}` was changed since run {} began", run.id);
            Err(Failure::new(1, message)
                .hint("undo the change, or begin anew with `--force-restart`"))
        }
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!("cannot compare `{file}` with the run's own copy: {error}");
            Ok(())
        }
    }
}

/// Begins a new run of the same workflow with the same context and policy.
fn restart(
    around: &Surroundings,
    args: &ResumeArgs,
    id: &RunId,
    root: &Path,
) -> Result<u8, Failure> {
    let origin = match open::origin(root) {
        Some(origin) => origin,
        None => frozen_origin(around, root, id)?,
    };
    let loaded: Loaded = common::load(around, Path::new(&origin.workflow_file))?;
    super::run::tell_warnings(around, &loaded);
    let plan = match &origin.only_step {
        None => loaded.plan.clone(),
        Some(step) => loaded.plan.clone().only(step).ok_or_else(|| {
            Failure::new(2, format!("`{}` has no step `{step}`", origin.workflow_file))
        })?,
    };
    let mut context = loaded.plan.context.clone();
    context.extend(origin.context);
    let policy = args.options.policy(origin.policy);
    let (only_step, archive, fleet) = (origin.only_step, origin.archive, origin.fleet);
    let new = NewRun { loaded: &loaded, plan, context, policy, only_step, archive, fleet };
    let signals = signals::listen()?;
    let owned = common::create(around, new)?;
    around.say(format!("run {} of {}, in place of {id}", owned.run.id, loaded.file));
    let (code, _) = common::drive(around, owned, &args.options, &signals, None)?;
    Ok(code)
}

/// What is left of a run none of whose documents can be read: the workflow it began with.
fn frozen_origin(around: &Surroundings, root: &Path, id: &RunId) -> Result<Origin, Failure> {
    let path = root.join(store::DEFINITION);
    if !path.exists() {
        let message = format!("nothing of run {id} can be read, not even its workflow");
        return Err(Failure::new(7, message).hint("start again with `orchestrate run WORKFLOW`"));
    }
    around.say("warning: the context of the run cannot be read; the workflow's own is taken");
    Ok(Origin {
        run_id: id.as_str().to_owned(),
        workflow_file: path.to_string_lossy().into_owned(),
        workflow_checksum: String::new(),
        run_root: root.to_string_lossy().into_owned(),
        context: serde_json::Map::new(),
        policy: Policy::default(),
        only_step: None,
        archive: None,
        fleet: false,
    })
}
