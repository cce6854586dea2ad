//! Where a run is executed: its workspace, its directory, the environment, and what is secret.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::config::Config;
use super::parking::Parking;
use super::sandboxes::Sandboxes;
use super::work::TREE_WAIT;
use crate::exec::Mask;
use crate::ids::{RunId, StepPath};
use crate::workflow::Plan;
use crate::workspace::Workspace;
use crate::worktree::REMOTE_TIMEOUT;

/// The environment as it was when the program began; read once, in `main`.
pub type Environment = BTreeMap<String, OsString>;

/// Everything an execution needs to know about its surroundings.
pub struct Site {
    pub workspace: Workspace,
    /// Where logs of executions go.
    pub logs: PathBuf,
    /// What every child is told of its surroundings: the run's id and directory.
    pub about: Vec<(String, OsString)>,
    pub environment: Environment,
    /// Variables that children do not inherit.
    pub hidden: Vec<String>,
    pub debug: bool,
    /// Logs are written as output comes, so that others can follow it.
    pub live: bool,
    pub grace: Duration,
    pub silences: Silences,
    pub input_bytes: u64,
    /// Every secret that any step of the plan names, so that none shows up in another's output.
    pub mask: Mask,
    /// This program, for steps that call `orchestrate`.
    pub program: PathBuf,
    /// Which accounts of providers are left alone; nothing, where nobody else asks.
    pub parking: Option<Arc<Parking>>,
    pub turns: Turns,
    /// What its children may do.
    pub sandboxes: Sandboxes,
}

/// How long a provider may be silent that waits for its service inside of its process.
#[derive(Clone, Copy, Debug)]
pub struct Silences {
    /// As long as nothing is known of why.
    pub waiting: Duration,
    /// After it said that it met a limit.
    pub at_limit: Duration,
}

impl Default for Silences {
    fn default() -> Silences {
        Silences { waiting: Duration::from_secs(900), at_limit: Duration::from_secs(60) }
    }
}

/// How executions share worktrees.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    /// How long others wait for a sign of life of whoever executes here.
    pub lease: Duration,
    /// How long somebody else in a worktree is waited for.
    pub wait: Duration,
    /// Branches of beads are pushed after each step.
    pub push: bool,
    /// How long the remote may take to answer, each time.
    pub remote: Duration,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { lease: Duration::ZERO, wait: TREE_WAIT, push: false, remote: REMOTE_TIMEOUT }
    }
}

impl Turns {
    pub fn of(config: &Config) -> Turns {
        Turns {
            lease: config.queue.lease,
            wait: config.tree_wait,
            push: config.tree_push,
            remote: config.tree_remote,
        }
    }
}

impl Site {
    /// The stem of a step's log files.
    pub fn log(&self, step: &StepPath, ending: &str) -> PathBuf {
        self.logs.join(format!("{step}.{ending}"))
    }

    /// Adds lines to a step's debug log, where one is kept.
    pub fn keep_notes(&self, step: &StepPath, lines: &[String]) {
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

    /// The run's directory.
    pub fn root(&self) -> PathBuf {
        self.logs.parent().unwrap_or(&self.logs).to_owned()
    }

    pub fn cwd(&self) -> &Path {
        self.workspace.root()
    }

    /// The run that is executed; a free task has none.
    pub fn run_id(&self) -> Option<String> {
        let id = self.about.iter().find(|(name, _)| name == RUN_ID);
        id.map(|(_, id)| id.to_string_lossy().into_owned())
    }
}

/// The program `orchestrate`, which this process is: those beside it become it.
pub fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("orchestrate"))
}

const RUN_ID: &str = "ORCHESTRATE_RUN_ID";

/// What the children of a run are told of it.
pub fn about(id: &RunId, root: &Path) -> Vec<(String, OsString)> {
    vec![(RUN_ID.into(), id.as_str().into()), ("ORCHESTRATE_RUN_ROOT".into(), root.into())]
}

/// Hides the values of all secrets a plan names, from the environment and from `env` of its steps.
pub fn mask(plan: &Plan, environment: &Environment) -> Mask {
    mask_too(plan, environment, &Environment::new())
}

/// The same, and the values of credentials.
pub fn mask_too(plan: &Plan, environment: &Environment, credentials: &Environment) -> Mask {
    let mut values = Vec::new();
    plan.root.walk(&mut |step| {
        for name in &step.secrets {
            values.extend(environment.get(name).map(|value| value.to_string_lossy().into_owned()));
            values.extend(step.env.iter().filter(|(key, _)| key == name).map(|(_, v)| v.clone()));
        }
    });
    values.extend(credentials.values().map(|value| value.to_string_lossy().into_owned()));
    Mask::new(values)
}

/// The names of all secrets that a plan's steps name.
pub fn secrets(plan: &Plan) -> Vec<String> {
    let mut found = BTreeSet::new();
    plan.root.walk(&mut |step| found.extend(step.secrets.iter().cloned()));
    found.into_iter().collect()
}
