//! Is everything where the protocol says it must be? Looks at a workspace and names what is not.
//!
//! What is checked, as far as files can tell: every task lies in one place, under a canonical
//! name, whole; what has ended has one whole status of the claim that ended; a run's journal has
//! one end for each attempt, its results are those of the tasks, and its state is what the journal
//! says. What is merely left over, as a crash leaves it, is noted and is no damage.
//!
//! **Invariant:** nothing is changed. A workspace at work moves under the eyes of whoever looks,
//! so only what is found again and again is reported.

pub mod repair;
mod runs;
mod tree;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

pub use runs::{EndSeen, RunSeen};
pub use tree::{Lying, State, Tree};

use crate::workspace::Workspace;

/// How often a workspace is looked at before something counts as found, and the rest between.
const LOOKS: usize = 3;
const REST: Duration = Duration::from_millis(100);

/// What can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Nothing says which volume this is, though there is a queue.
    Volume,
    /// A file among tasks whose name is none of a task.
    BadName,
    /// A task lies in more than one place.
    TwoPlaces,
    /// A task has ended more than once.
    EndedTwice,
    /// A task's file is not whole.
    Unsealed,
    /// A task's file says that it is another one, or lies where it does not belong.
    Misplaced,
    /// A task has ended without a whole status.
    NoStatus,
    /// The status of an ended task is of another claim.
    WrongStatus,
    /// A journal cannot be read, or events are missing in it.
    Journal,
    /// A run's workflow or settings cannot be read, so nothing can be said about it.
    Unopened,
    /// This user may not read a file of a run, so nothing can be said about it either.
    Unreadable,
    /// `state.json` cannot be read, or says something else than the journal.
    State,
    /// A run is over, and `state.json` does not know.
    StaleState,
    /// An attempt has ended twice.
    EndedAgain,
    /// The attempts of a step do not count up.
    AttemptBack,
    /// A result in a journal that its task does not back.
    Unbacked,
    /// A run and the task that it is disagree about how it ended.
    WrongEnd,
    /// A run goes on, and there is no task by which anybody would drive it.
    Undriven,
    /// A task is held by a process that is gone.
    HeldByDead,
    /// Something waits or is held although all should be quiet.
    Restless,
    /// The turn to change the checkout is there more than once.
    TwoTurns,
    /// A private file of a process that is gone.
    LeftTmp,
    /// A status whose task was taken away from its writer.
    StrayStatus,
    /// A task that its run knows nothing of.
    StrayTask,
    /// A request to cancel what is over, a beat or a registration of a process that is gone.
    LeftMark,
}

impl Kind {
    /// How people and programs call it.
    pub fn name(self) -> &'static str {
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

    /// Whether it is damage, and not merely something that a crash leaves and nobody minds.
    pub fn is_damage(self, calm: Calm) -> bool {
        match self {
            Kind::StrayStatus | Kind::StrayTask | Kind::LeftMark | Kind::Unreadable => false,
            Kind::HeldByDead | Kind::LeftTmp | Kind::Undriven => calm == Calm::Quiet,
            _ => true,
        }
    }
}

/// What a workspace is expected to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calm {
    /// It may be at work.
    Working,
    /// All that was asked for is over, and those who died were found dead.
    Quiet,
}

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub kind: Kind,
    /// The task, the run or the file that it is about.
    pub about: String,
    pub message: String,
}

impl Finding {
    fn new(kind: Kind, about: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { kind, about: about.into(), message: message.into() }
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    pub tasks: usize,
    /// The runs whose journal tells all of them.
    pub runs: Vec<RunSeen>,
    /// How many runs there are.
    pub runs_kept: usize,
    pub tree: Tree,
}

impl Report {
    pub fn damage(&self, calm: Calm) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.kind.is_damage(calm))
    }
}

/// Looks at a workspace, and again where something seems wrong: what is still so then, is.
pub fn check(workspace: &Workspace, state_dir: &Path, calm: Calm) -> io::Result<Report> {
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
    let (runs, runs_kept) = runs::look(workspace, state_dir, &tree, &mut findings)?;
    findings.sort();
    let tasks = tree.tasks.iter().map(|lying| &lying.task.id).collect::<BTreeSet<_>>().len();
    Ok(Report { findings, tasks, runs, runs_kept, tree })
}
