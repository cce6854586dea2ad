//! Checks that a workspace follows the protocol, and reports every deviation.
//!
//! As far as files can show: every task lies in one place, under a canonical name, complete; every
//! ended task has one complete status of the claim that ended; a run's journal has one end per
//! attempt, its results are those of the tasks, and its state matches the journal. Leftovers of a
//! crash are reported, but are not damage.
//!
//! **Invariant:** the check changes nothing. An active workspace changes during the check, so only
//! findings that persist over several scans are reported.

pub(crate) mod repair;
mod runs;
mod tree;

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::Path;
use std::time::Duration;

pub(crate) use tree::{State, Tree};

use crate::workspace::Workspace;

/// Number of scans that must confirm a finding, and the pause between them.
const LOOKS: usize = 3;
const REST: Duration = Duration::from_millis(100);

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// No file identifies the volume, although there is a queue.
    Volume,
    /// A file among tasks does not have the name of a task.
    BadName,
    /// A task lies in more than one place.
    TwoPlaces,
    /// A task has ended more than once.
    EndedTwice,
    /// A task's file is incomplete.
    Unsealed,
    /// The content of a task's file names another task, or belongs in another place.
    Misplaced,
    /// A task has ended without a complete status.
    NoStatus,
    /// The status of an ended task belongs to another claim.
    WrongStatus,
    /// A journal cannot be read, or lacks events.
    Journal,
    /// A run's workflow or settings cannot be read, so the run cannot be checked.
    Unopened,
    /// This user may not read a file of a run, so the run cannot be checked.
    Unreadable,
    /// `state.json` cannot be read, or contradicts the journal.
    State,
    /// A run has ended, and `state.json` does not show it.
    StaleState,
    /// An attempt has ended twice.
    EndedAgain,
    /// The attempt numbers of a step do not increase.
    AttemptBack,
    /// The task of a result in a journal does not confirm it.
    Unbacked,
    /// A run and its task disagree about how it ended.
    WrongEnd,
    /// A run is not over, and no task exists with which a coordinator would drive it.
    Undriven,
    /// A dead process holds a task.
    HeldByDead,
    /// A task waits or is claimed although the workspace should be idle.
    Restless,
    /// There is more than one turn file of the checkout.
    TwoTurns,
    /// A private file of a dead process.
    LeftTmp,
    /// A status whose writer had lost its task.
    StrayStatus,
    /// A task that its run does not know.
    StrayTask,
    /// A cancel request for an ended task, or a heartbeat or registration of a dead process.
    LeftMark,
}

impl Kind {
    /// Returns its name, for users and programs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Volume => "volume",
            Kind::BadName => "bad-name",
            Kind::TwoPlaces => "two-places",
            Kind::EndedTwice => "ended-twice",
            Kind::Unsealed => "unsealed",
            Kind::Misplaced => "misplaced",
            Kind::NoStatus => "no-status",
            Kind::WrongStatus => "wrong-status",
            Kind::Journal => "journal",
            Kind::Unopened => "unopened",
            Kind::Unreadable => "unreadable",
            Kind::State => "state",
            Kind::StaleState => "stale-state",
            Kind::EndedAgain => "ended-again",
            Kind::AttemptBack => "attempt-back",
            Kind::Unbacked => "unbacked",
            Kind::WrongEnd => "wrong-end",
            Kind::Undriven => "undriven",
            Kind::HeldByDead => "held-by-dead",
            Kind::Restless => "restless",
            Kind::TwoTurns => "two-turns",
            Kind::LeftTmp => "left-tmp",
            Kind::StrayStatus => "stray-status",
            Kind::StrayTask => "stray-task",
            Kind::LeftMark => "left-mark",
        }
    }

    /// Returns true if it is damage. A harmless leftover of a crash is not.
    pub(crate) fn is_damage(self, calm: Calm) -> bool {
        match self {
            Kind::StrayStatus | Kind::StrayTask | Kind::LeftMark | Kind::Unreadable => false,
            Kind::HeldByDead | Kind::LeftTmp | Kind::Undriven => calm == Calm::Quiet,
            _ => true,
        }
    }
}

/// Expected activity of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calm {
    /// It may be active.
    Working,
    /// All work has ended, and all dead processes have been detected.
    Quiet,
}

/// A deviation from the protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub kind: Kind,
    /// The task, the run or the file concerned.
    pub about: String,
    pub message: String,
}

impl Finding {
    fn new(kind: Kind, about: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { kind, about: about.into(), message: message.into() }
    }
}

/// Result of a check.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub findings: Vec<Finding>,
    pub tasks: usize,
    /// IDs of the tasks whose results are in a complete journal.
    recorded: HashSet<String>,
    /// Number of all runs.
    pub runs_kept: usize,
    pub tree: Tree,
}

impl Report {
    pub(crate) fn damage(&self, calm: Calm) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.kind.is_damage(calm))
    }
}

/// Scans a workspace, repeatedly if there are findings. Keeps only findings that persist.
pub(crate) fn check(workspace: &Workspace, state_dir: &Path, calm: Calm) -> io::Result<Report> {
    let mut report = look(workspace, state_dir, calm)?;
    for _ in 1..LOOKS {
        if report.findings.is_empty() {
            break;
        }
        std::thread::sleep(REST);
        let again = look(workspace, state_dir, calm)?;
        let before: BTreeSet<(Kind, String)> = keys(&report).collect();
        let lasting = |finding: &Finding| before.contains(&(finding.kind, finding.about.clone()));
        report = again;
        report.findings.retain(lasting);
    }
    Ok(report)
}

fn keys(report: &Report) -> impl Iterator<Item = (Kind, String)> {
    report.findings.iter().map(|finding| (finding.kind, finding.about.clone()))
}

fn look(workspace: &Workspace, state_dir: &Path, calm: Calm) -> io::Result<Report> {
    let mut findings = Vec::new();
    let tree = Tree::look(workspace.root(), calm, &mut findings)?;
    let (recorded, runs_kept) = runs::look(workspace, state_dir, &tree, &mut findings)?;
    findings.sort();
    let tasks = tree.tasks.iter().map(|lying| &lying.task.id).collect::<BTreeSet<_>>().len();
    Ok(Report { findings, tasks, recorded, runs_kept, tree })
}
