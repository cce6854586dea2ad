//! The one value that every operation needs: a workspace, its runs, environment, and settings.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::failure::Failure;
use super::home;
use crate::attempt::exec_env::Environment;
use crate::base::ids::RunId;
use crate::base::program_name::ORCHESTRATE;
use crate::base::{process, random};
use crate::disk::{self, fs};
use crate::queue::{self, Layout, Queue, VolumeFault};
use crate::settings::Config;
use crate::store;
use crate::workspace::Workspace;

/// A workspace with the directory of its runs, its settings, and the environment of this process.
#[derive(Clone)]
pub(crate) struct Project {
    pub workspace: PathBuf,
    /// Directory that holds the runs.
    pub state_dir: PathBuf,
    pub environment: Environment,
    pub config: Config,
    /// True if debug records and logs of every step are kept.
    pub debug: bool,
    /// True if every line of a run's log gets a trace ID.
    pub trace: bool,
    /// Receives messages for the user that are neither data nor errors.
    pub notes: fn(&str),
}

impl Project {
    /// Sends a message to the user that is neither data nor an error.
    pub(crate) fn note(&self, line: impl std::fmt::Display) {
        (self.notes)(&line.to_string());
    }

    pub(crate) fn open_workspace(&self) -> Result<Workspace, Failure> {
        Workspace::open(&self.workspace)
            .map_err(|error| Failure::failed(format!("cannot open the workspace: {error}")))
    }

    /// Returns the user's home directory.
    pub(crate) fn home_dir(&self) -> Option<PathBuf> {
        self.environment.get("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
    }

    /// Opens the queue of the workspace. Also keeps the queue's files out of git.
    pub(crate) fn open_queue(&self) -> Result<Arc<Queue>, Failure> {
        let (layout, me) = (Layout::new(&self.workspace), process::new_incarnation());
        let disk = disk::machine();
        let queue = Queue::open(disk, layout, &me, random::chance(), self.config.durable)
            .map_err(|error| self.cannot_open_queue(&error))?;
        keep_from_git(&self.workspace);
        Ok(Arc::new(queue))
    }

    /// Opens the queue of the workspace, or returns `None` if it has none. Never creates a queue.
    pub(crate) fn queue_if_any(&self) -> Result<Option<Arc<Queue>>, Failure> {
        let layout = Layout::new(&self.workspace);
        let there = queue::has_queue(&*disk::machine(), &layout);
        match there.map_err(|error| self.cannot_open_queue(&error))? {
            true => self.open_queue().map(Some),
            false => Ok(None),
        }
    }

    /// Opens the queue of the workspace. Fails if the workspace has none.
    pub(crate) fn need_queue(&self) -> Result<Arc<Queue>, Failure> {
        self.queue_if_any()?.ok_or_else(|| {
            Failure::invalid("this workspace has no queue: nothing was ever put out in it")
                .hint("`orchestrate worker AGENT` begins to serve an inbox")
        })
    }

    /// Returns the failure for a queue that cannot be opened. A queue whose volume cannot be
    /// identified counts as damaged.
    fn cannot_open_queue(&self, error: &std::io::Error) -> Failure {
        if let Some(fault) = VolumeFault::of(error) {
            return Failure::damaged(fault).hint(fault.hint(&process::new_incarnation()));
        }
        let place = self.workspace.display();
        Failure::failed(format!("cannot open the queue in `{place}`: {error}"))
            .hint("the workspace must be writable; `orchestrate doctor` tells more")
    }

    /// Refuses a state directory outside the workspace: other machines see only runs inside it.
    pub(crate) fn check_state_dir(&self) -> Result<(), Failure> {
        if self.state_dir.starts_with(&self.workspace) {
            return Ok(());
        }
        let dir = self.state_dir.display();
        let message = format!("a fleet cannot keep runs in `{dir}`, outside the workspace");
        Err(Failure::invalid(message)
            .hint("leave out --state-dir and ORCHESTRATE_STATE_DIR, or run without a fleet"))
    }

    /// Finds a run by its id, a unique prefix of its id, or `latest`. Returns its id and directory.
    pub(crate) fn find_run(&self, name: &str) -> Result<(RunId, PathBuf), Failure> {
        let dir = &self.state_dir;
        let ids = runs_in(dir);
        if name == "latest" {
            let target = fs::read_link(dir.join("latest")).ok();
            let linked = target.and_then(|path| RunId::parse(path.file_name()?.to_str()?));
            let newest = linked.filter(|id| ids.contains(id)).or_else(|| ids.first().cloned());
            // The state directory may also hold runs of other workspaces.
            let is_ours = |id: &&RunId| home::elsewhere(self, &dir.join(id.as_str())).is_none();
            let ours = newest.iter().chain(&ids).find(is_ours).cloned();
            let id = ours.or(newest);
            let id = id.ok_or_else(|| {
                let hint =
                    format!("`{ORCHESTRATE} run WORKFLOW` begins one in `{}`", dir.display());
                Failure::invalid("there is no run yet").hint(hint)
            })?;
            return Ok((id.clone(), dir.join(id.as_str())));
        }
        let named = |id: &&RunId| !name.is_empty() && id.as_str().starts_with(name);
        let found: Vec<_> = ids.iter().filter(named).collect();
        match found.as_slice() {
            [id] => Ok(((*id).clone(), dir.join(id.as_str()))),
            [] => {
                let hint = format!("`{ORCHESTRATE} status` shows those in `{}`", dir.display());
                Err(Failure::invalid(format!("there is no run `{name}`")).hint(hint))
            }
            several => {
                let list: Vec<_> = several.iter().take(5).map(|id| format!("`{id}`")).collect();
                let more = if several.len() > 5 { ", or another" } else { "" };
                let message = format!("`{name}` could be {}{more}", list.join(" or "));
                Err(Failure::invalid(message).hint("write more of it"))
            }
        }
    }
}

/// Returns the failure for an unreadable queue.
pub(crate) fn unreadable_queue(error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot look into the queue: {error}"))
        .hint("`orchestrate doctor` tells more")
}

/// Hides the engine's files in a workspace from git. A failure is only logged: it affects nothing
/// but the output of `git status`.
pub(crate) fn keep_from_git(workspace: &Path) {
    let own = workspace.join(".orchestrate");
    if let Err(error) = disk::keep_from_git(&*disk::machine(), &own) {
        tracing::warn!("cannot hide `{}` from git: {error}", own.display());
    }
}

/// Returns the IDs of the runs in a directory, newest first. An ID contains the second; runs of the
/// same second are ordered by the time at which their workflow was copied, which happens once, at
/// their start.
pub(crate) fn runs_in(dir: &Path) -> Vec<RunId> {
    let listed = fs::read_dir(dir);
    let entries = listed.into_iter().flatten().flatten();
    // A file is not a run, even if its name is a run's ID.
    let dirs = entries.filter(|entry| !entry.file_type().is_ok_and(|kind| kind.is_file()));
    let mut ids: Vec<RunId> =
        dirs.filter_map(|entry| RunId::parse(entry.file_name().to_str()?)).collect();
    ids.sort_by(|a, b| b.cmp(a));
    let begun = |id: &RunId| {
        let copy = dir.join(id.as_str()).join(store::DEFINITION);
        fs::metadata(copy).and_then(|copy| copy.modified()).ok()
    };
    for of_one_second in ids.chunk_by_mut(|a, b| a.stamp() == b.stamp()) {
        if of_one_second.len() > 1 {
            of_one_second.sort_by_cached_key(|id| Reverse(begun(id)));
        }
    }
    ids
}
