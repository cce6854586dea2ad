//! The worktree of a bead during one execution: created or reused and verified before it, locked
//! during it, and committed after it; and the merge of its result.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::exec_env::Site;
use super::perform::Performed;
use super::work::{MergeWork, TreeWork, Work};
use crate::base::ids::{self, Attempt, BeadId, RunId, StepPath, TaskAttempt};
use crate::engine::record::TreeRecord;
use crate::engine::{Record, StepStatus};
use crate::exec::Stop;
use crate::worktree::{
    Block, Checkpoint, Checks, Hold, HoldRequest, HoldWait, Merge, Merged, TreeError, Trees, Why,
    Worktree,
};

/// A worktree that an execution uses.
pub(crate) struct Entered {
    trees: Trees,
    pub tree: Worktree,
    run: Option<String>,
    hold: Hold,
    /// True if the branch is pushed, because others continue in their own clones.
    push: bool,
    /// Warnings about the way it was entered.
    warnings: Vec<String>,
}

/// Enters the worktree of an execution, once no other execution uses it. The error is the record of
/// the step: an unexpected state of the worktree is left unchanged, and nothing is started. Returns
/// `None` if it was stopped.
pub(crate) fn enter(
    site: &Site,
    work: &Work,
    tree: &TreeWork,
    mark: &str,
    stop: &Stop,
) -> Option<Result<Entered, Box<Record>>> {
    let entered = || -> Result<Entered, TreeError> {
        let id = BeadId::parse(&tree.id).map_err(|error| TreeError::found(error, ""))?;
        let trees = Trees::open(site.cwd())?.patient(site.turns.remote, Some(stop));
        let run = run_of(site);
        let (step, attempt) = (work.step.to_string(), work.attempt);
        let (run_id, mark) = (run.as_deref(), Some(mark));
        let request =
            HoldRequest { run: run_id, step: &step, attempt, mark, ttl: site.turns.lease };
        // Check only under the hold: while another execution works there, the state means nothing.
        let hold = wait_for(&trees, &id, &request, tree.wait(), stop)?;
        if let Some(base) = trees.refresh(&id)? {
            tracing::info!("worktree `{id}` moved forward to `{base}`");
        }
        let expects = tree.expects();
        let followed = trees.follow(&id, &expects)?;
        let created = trees.create_after(&id, tree.base.as_deref(), &expects)?;
        let warnings = followed.into_iter().chain(created.warnings);
        let warnings = warnings.map(|warning| format!("worktree `{id}`: {warning}")).collect();
        Ok(Entered { trees, tree: created.tree, run, hold, push: tree.push, warnings })
    };
    match entered() {
        Err(TreeError::Stopped) => None,
        Err(error) => Some(Err(Box::new(refusal(site, &error)))),
        Ok(entered) => Some(Ok(entered)),
    }
}

/// Waits for a worktree, and logs its holder.
fn wait_for(
    trees: &Trees,
    id: &BeadId,
    request: &HoldRequest,
    wait: Duration,
    stop: &Stop,
) -> Result<Hold, TreeError> {
    let report = |holder: &str| {
        tracing::info!(
            "step `{}` waits for worktree `{id}`: {holder} has it",
            ids::shown(request.step)
        );
    };
    let hold = trees.wait_for(id, request, &HoldWait { limit: wait, stop, report: &report })?;
    hold.clear_lock()?;
    Ok(hold)
}

impl Entered {
    /// Returns the working directory.
    pub(crate) fn cwd(&self) -> &Path {
        &self.tree.workspace
    }

    /// Returns the Git directory that all worktrees of the repository share.
    pub(crate) fn common(&self) -> &Path {
        self.trees.common()
    }

    /// Commits an agent's changes. All its processes must have ended.
    fn keep(&self, work: &Work, times: TaskAttempt) -> Result<Checkpoint, TreeError> {
        if !work.asks {
            return Ok(Checkpoint::default());
        }
        let Entered { trees, tree, run, hold, .. } = self;
        let step = work.step.to_string();
        let attempt = Attempt::new(work.attempt.number().max(times.number()));
        let why = Why { run: run.as_deref(), step: &step, attempt };
        hold.check()?;
        hold.clear_lock()?;
        trees.checkpoint(&tree.id, &why)
    }

    /// Commits the changes of an agent that was stopped. Does not push, so that stopping does not
    /// wait for the remote.
    pub(crate) fn give_up(self, work: &Work, times: TaskAttempt) {
        if let Err(error) = self.keep(work, times) {
            tracing::warn!("what is in the worktree could not be kept in a commit: {error}");
        }
    }

    /// Commits an agent's changes and records the state of the worktree. `times` counts the
    /// executions of its task.
    pub(crate) fn leave(self, site: &Site, work: &Work, times: TaskAttempt, record: &mut Record) {
        let mut checkpoint = None;
        let kept = self.keep(work, times);
        let Entered { trees, tree, hold, push, mut warnings, .. } = self;
        match kept {
            Ok(made) => {
                checkpoint = made.commit;
                if !made.left_out.is_empty() {
                    let names = made.left_out.join(", ");
                    warnings.push(format!(
                        "what is in repositories in the worktree is in no commit: {names}"
                    ));
                }
            }
            Err(error) => fail(site, record, &error),
        }
        if let Err(error) = trees.linked(&tree.id) {
            fail(site, record, &error);
            warn(site, record, warnings);
            return;
        }
        // A failed push loses nothing: the commit stays here, and the warning reaches users
        // elsewhere.
        if push && let Err(error) = hold.check().and_then(|()| trees.push(&tree.id)) {
            warnings.push(format!("`{}` is not pushed: {error}", tree.branch));
        }
        warn(site, record, warnings);
        let git = tree.git();
        let dirty = trees.dirty(&git);
        let path = shown(site.cwd(), &tree.path);
        let cwd = shown(site.cwd(), &tree.workspace);
        record.worktree = Some(Box::new(TreeRecord {
            cwd: (cwd != path).then_some(cwd),
            path,
            branch: tree.branch,
            base_branch: tree.base_branch,
            base_commit: tree.base_commit,
            head: git.text(&["rev-parse", "HEAD"]).ok(),
            dirty: dirty.is_ok_and(|names| !names.is_empty()),
            checkpoint,
        }));
    }
}

/// Adds warnings to a record; the process that drives the run reports them.
fn warn(site: &Site, record: &mut Record, warnings: Vec<String>) {
    let all: Vec<String> = record.warning.take().into_iter().chain(warnings).collect();
    record.warning = (!all.is_empty()).then(|| site.mask.text(&all.join("; ")));
}

/// Returns a path relative to the workspace, if it lies inside.
fn shown(workspace: &Path, path: &Path) -> String {
    path.strip_prefix(workspace).unwrap_or(path).display().to_string()
}

fn run_of(site: &Site) -> Option<String> {
    let about = site.about.iter().find(|(name, _)| name == "ORCHESTRATE_RUN_ID");
    about.map(|(_, id)| id.to_string_lossy().into_owned())
}

/// Builds the record of a step from a worktree error and its remedy.
fn refusal(site: &Site, error: &TreeError) -> Record {
    let cure = match error {
        TreeError::NoRepo { .. } => Some(
            "make it one (`git init`, then a first commit), or let the bead be worked on in the \
             workspace: `isolation: workspace`"
                .to_owned(),
        ),
        error => error.cure(),
    };
    let message = match cure.filter(|cure| !cure.is_empty()) {
        Some(cure) => format!("{error}; {cure}"),
        None => error.to_string(),
    };
    let context: Map<String, Value> =
        [("worktree".to_owned(), json!(error.to_string()))].into_iter().collect();
    Record::refused(i32::from(error.exit_code()), site.mask.text(&message), context)
}

/// Marks a step as failed because its changes could not be committed.
fn fail(site: &Site, record: &mut Record, error: &TreeError) {
    if record.status == StepStatus::Completed {
        let refused = refusal(site, error);
        record.status = StepStatus::Failed;
        record.exit_code = refused.exit_code;
        record.error = refused.error;
    } else {
        tracing::warn!("what is in the worktree could not be kept in a commit: {error}");
    }
}

/// Merges the changes for a bead. Returns `None` if it was stopped.
pub(crate) fn merge(
    site: &Site,
    run: &RunId,
    step: &StepPath,
    work: &MergeWork,
    stop: &Stop,
) -> Option<Performed> {
    let mut warnings = Vec::new();
    let mut merged = || -> Result<(BeadId, Merged), TreeError> {
        let tree = &work.tree;
        let id = BeadId::parse(&tree.id).map_err(|error| TreeError::found(error, ""))?;
        let trees = Trees::open(site.cwd())?.patient(site.turns.remote, Some(stop));
        let name = step.to_string();
        let (run_id, attempt, ttl) = (Some(run.as_str()), work.attempt, site.turns.lease);
        let request = HoldRequest { run: run_id, step: &name, attempt, mark: None, ttl };
        let hold = wait_for(&trees, &id, &request, tree.wait(), stop)?;
        for warning in trees.bring(&id, tree.base.as_deref(), &tree.expects(), Some(&hold))? {
            warnings.push(format!("worktree `{id}`: {warning}"));
        }
        let mut env = site.about.clone();
        env.push(("ORCHESTRATE_STEP".into(), (&name).into()));
        let order = Merge {
            id: &id,
            title: work.title.as_deref(),
            checks: Checks {
                commands: &work.checks.commands,
                limit: Some(work.checks.timeout),
                env: &env,
                hidden: &site.hidden,
                mask: Some(&site.mask),
                logs: Some(&["stdout", "stderr"].map(|ending| site.log(step, ending))),
            },
            approval: work.approval.as_deref(),
            wait: tree.wait(),
        };
        let merged = trees.merge(&order, Some(&hold), stop)?;
        if !matches!(merged, Merged::Blocked(_)) {
            match trees.remove_merged(&id, &hold) {
                Ok(removed) if removed.ignored.is_empty() => {}
                Ok(removed) => {
                    let list = removed.ignored.join(", ");
                    tracing::info!("ignored files went with worktree `{id}`: {list}");
                }
                Err(error) => {
                    warnings.push(format!("worktree `{id}` stays, although it is merged: {error}"))
                }
            }
        }
        Ok((id, merged))
    };
    let done = |output: String, extra: Value| Record {
        status: StepStatus::Completed,
        exit_code: Some(0),
        output: Some(output),
        json: Some(extra),
        ..Record::default()
    };
    let mut record = match merged() {
        Err(TreeError::Stopped) => return None,
        Err(error) => refusal(site, &error),
        Ok((id, Merged::Done { commit, base, .. })) => {
            let step = step.shown();
            tracing::info!("run {run}: `{step}` merged `{id}` into `{base}`");
            let extra = json!({ "merged": true, "commit": commit, "base": base });
            done(format!("merged `{id}` into `{base}`: {commit}"), extra)
        }
        Ok((id, Merged::Already { base })) => {
            let extra = json!({ "merged": false, "base": base });
            done(format!("all of `{id}` is in `{base}` already"), extra)
        }
        Ok((id, Merged::Blocked(block))) => blocked(site, &id, &block),
    };
    warn(site, &mut record, warnings);
    Some(Performed::of(record))
}

/// Builds the record of a blocked merge; nothing was changed.
fn blocked(site: &Site, id: &BeadId, block: &Block) -> Record {
    let context = match block {
        Block::Conflicts { base, files } => json!({ "base": base, "conflicts": files }),
        Block::Copy { base, path, .. } | Block::Held { base, path, .. } => {
            json!({ "base": base, "copy": path })
        }
        Block::Check { command, code, .. } => json!({ "check": command, "check_exit_code": code }),
        Block::Moving { base, .. } => json!({ "base": base }),
    };
    let context = context.as_object().cloned().unwrap_or_default();
    let message = format!("`{id}` cannot be merged: {block}; {}", block.cure(id));
    let code = i32::from(block.exit_code());
    let mut record = Record::refused(code, site.mask.text(&message), context);
    if let (Block::Check { stdout, stderr, .. }, Some(error)) = (block, &mut record.error) {
        (error.stdout_tail, error.stderr_tail) = (stdout.clone(), stderr.clone());
    }
    record
}
