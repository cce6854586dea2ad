//! The environment in which a run is executed: its workspace, its directory, its variables, and its
//! secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::parking::Parking;
use super::sandboxes::Sandboxes;
use crate::base::ids::{RunId, StepPath};
use crate::exec::Mask;
use crate::settings::Config;
use crate::settings::{Silences, TREE_WAIT};
use crate::workflow::Plan;
use crate::workspace::Workspace;
use crate::worktree::REMOTE_TIMEOUT;

/// The environment variables at program start; read once, in `main`.
pub(crate) type Environment = BTreeMap<String, OsString>;

/// Everything that an execution needs to know about its environment.
pub(crate) struct Site {
    pub workspace: Workspace,
    /// Directory of execution logs.
    pub logs: PathBuf,
    /// Variables that describe the run to every child process: its ID and directory.
    pub about: Vec<(String, OsString)>,
    pub environment: Environment,
    /// Variables that children do not inherit.
    pub hidden: Vec<String>,
    pub debug: bool,
    /// True if logs are written as output arrives, so that other processes can follow them.
    pub live: bool,
    pub grace: Duration,
    pub silences: Silences,
    pub input_bytes: u64,
    /// Every secret that any step of the plan names, so that none appears in another step's output.
    pub mask: Mask,
    /// This program, for steps that call `orchestrate`.
    pub program: PathBuf,
    /// Parked accounts of providers; `None` if no other process asks providers.
    pub parking: Option<Arc<Parking>>,
    pub turns: Turns,
    /// Restrictions for its child processes.
    pub sandboxes: Sandboxes,
}

/// Settings for the shared use of worktrees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    /// Time that others wait for a heartbeat of this execution.
    pub lease: Duration,
    /// Maximum wait for a worktree that another step uses.
    pub wait: Duration,
    /// True if the branches of beads are pushed after each step.
    pub push: bool,
    /// Timeout of each request to the remote.
    pub remote: Duration,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { lease: Duration::ZERO, wait: TREE_WAIT, push: false, remote: REMOTE_TIMEOUT }
    }
}

impl Turns {
    pub(crate) fn of(config: &Config) -> Turns {
        Turns {
            lease: config.queue.lease,
            wait: config.tree_wait,
            push: config.tree_push,
            remote: config.tree_remote,
        }
    }
}

impl Site {
    /// Returns the path of a step's log file.
    pub(crate) fn log(&self, step: &StepPath, ending: &str) -> PathBuf {
        self.logs.join(format!("{step}.{ending}"))
    }

    /// Appends lines to a step's debug log, if debug logs are enabled.
    pub(crate) fn keep_notes(&self, step: &StepPath, lines: &[String]) {
        if !self.debug || lines.is_empty() {
            return;
        }
        let path = self.log(step, "debug");
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(self.mask.text(&text).as_bytes()));
        if let Err(error) = written {
            tracing::warn!("cannot write `{}`: {error}", path.display());
        }
    }

    /// Returns the run's directory.
    pub(crate) fn root(&self) -> PathBuf {
        self.logs.parent().unwrap_or(&self.logs).to_owned()
    }

    pub(crate) fn cwd(&self) -> &Path {
        self.workspace.root()
    }

    /// Returns the ID of the run; `None` for a free task.
    pub(crate) fn run_id(&self) -> Option<String> {
        let id = self.about.iter().find(|(name, _)| name == RUN_ID);
        id.map(|(_, id)| id.to_string_lossy().into_owned())
    }
}

/// Returns the path of the `orchestrate` program. This process runs it: the other programs
/// (`worker`, `coordinator` and so on) replace themselves with it.
pub(crate) fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("orchestrate"))
}

const RUN_ID: &str = "ORCHESTRATE_RUN_ID";

/// Returns the variables that describe a run to its child processes.
pub(crate) fn about(id: &RunId, root: &Path) -> Vec<(String, OsString)> {
    vec![(RUN_ID.into(), id.as_str().into()), ("ORCHESTRATE_RUN_ROOT".into(), root.into())]
}

/// Builds a mask for the values of all secrets that a plan names, from the environment and from the
/// `env` of its steps.
pub(crate) fn mask(plan: &Plan, environment: &Environment) -> Mask {
    mask_too(plan, environment, &Environment::new())
}

/// Like [`mask`], and also masks the values of credentials.
pub(crate) fn mask_too(plan: &Plan, environment: &Environment, credentials: &Environment) -> Mask {
    let mut values = Vec::new();
    plan.root().walk(&mut |step| {
        for name in &step.secrets {
            values.extend(environment.get(name).map(|value| value.to_string_lossy().into_owned()));
            values.extend(step.env.iter().filter(|(key, _)| key == name).map(|(_, v)| v.clone()));
        }
    });
    values.extend(credentials.values().map(|value| value.to_string_lossy().into_owned()));
    Mask::new(values)
}

/// Returns the names of all secrets that a plan's steps name.
pub(crate) fn secrets(plan: &Plan) -> Vec<String> {
    let mut found = BTreeSet::new();
    plan.root().walk(&mut |step| found.extend(step.secrets.iter().cloned()));
    found.into_iter().collect()
}
