//! View models of runs: their actual state, their owner, and the state of their steps.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::progress::{excerpt, log_line};
use super::spent::{self, RunSpent};
use super::tasks::{Found, PlaceView, TaskView};
use super::{Board, Life, Memory, gates, last_said, one_line};
use crate::attempt::parking::Target;
use crate::base::ids::{Attempt, RunId, StepPath, TaskAttempt, counted};
use crate::base::time::Time;
use crate::engine::record::{Fault, Spent};
use crate::engine::run::{Address, Body, EachRun, ItemResult, Slot, StepState};
use crate::engine::{Origin, Record, Run, RunScope, RunStatus, SkipCause, StepStatus};
use crate::queue::{Place, TurnHolder};
use crate::run::home::Birth;
use crate::run::{checkout, open, run_task};
use crate::store::{self, History, lock};
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Block, Isolation, Step};
use crate::worktree::HoldingStep;
use crate::{disk, exec};

/// Number of latest events to show.
const EVENTS: usize = 5;

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Standing {
    /// A process drives it.
    Running,
    /// It waits for a coordinator, or for its turn to change the checkout.
    Queued,
    /// Its coordinator may be dead (no recent heartbeat), or waits for a process that holds the
    /// run's lock.
    Doubtful,
    /// It has not ended, and no process drives it.
    Stopped,
    /// It waits for a user.
    Paused,
    Completed,
    Failed,
    Cancelled,
    /// One of its steps failed, and it waits to be resumed there.
    Blocked,
    /// Its files cannot be read.
    Damaged,
    /// This user may not read its files.
    Unreadable,
}

impl Standing {
    pub(crate) const ALL: [Standing; 11] = [
        Standing::Running,
        Standing::Queued,
        Standing::Doubtful,
        Standing::Stopped,
        Standing::Paused,
        Standing::Completed,
        Standing::Failed,
        Standing::Cancelled,
        Standing::Blocked,
        Standing::Damaged,
        Standing::Unreadable,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Standing::Running => "running",
            Standing::Queued => "queued",
            Standing::Doubtful => "doubtful",
            Standing::Stopped => "stopped",
            Standing::Paused => "paused",
            Standing::Completed => "completed",
            Standing::Failed => "failed",
            Standing::Cancelled => "cancelled",
            Standing::Blocked => "blocked",
            Standing::Damaged => "damaged",
            Standing::Unreadable => "unreadable",
        }
    }

    /// Returns true if the run changes only on request.
    pub(crate) fn is_over(self) -> bool {
        use Standing::{Blocked, Cancelled, Completed, Failed};
        matches!(self, Completed | Failed | Cancelled | Blocked)
    }

    /// Returns true if its duration does not grow: it has ended, was stopped, or is unreadable.
    pub(crate) fn rests(self) -> bool {
        self.is_over() || self == Standing::Stopped || !self.is_known()
    }

    /// Returns true if its files show its state.
    pub(crate) fn is_known(self) -> bool {
        !matches!(self, Standing::Damaged | Standing::Unreadable)
    }

    /// Returns the state of a run that cannot be read.
    pub(crate) fn of_unread(error: &open::OpenError) -> Standing {
        if error.is_forbidden() { Standing::Unreadable } else { Standing::Damaged }
    }
}

/// The process that drives a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Owner {
    /// A process that was started for this run.
    Process { pid: Option<u32> },
    /// The coordinator that holds the run's task.
    Coordinator { worker: String, host: Option<String>, pid: Option<u32>, life: Life },
    /// A coordinator holds its task, and waits for a process that still has the run's lock: one
    /// that lost the run and was paused before it could notice.
    Locked { worker: String, host: Option<String>, pid: u32 },
    /// It waits in `inbox/coordinator`.
    Queue { ahead: usize, coordinators: usize, paused: Option<String> },
    /// No process; and the reason why the last owner released it, if known.
    Nobody {
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

const NOBODY: Owner = Owner::Nobody { reason: None };

/// View model of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RunView {
    pub run_id: String,
    pub run_root: String,
    pub state: Standing,
    /// Status in its files, which may predate the death of their writer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<RunStatus>,
    pub owner: Owner,
    /// The run that it waits for until it may change the checkout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_after: Option<String>,
    /// True if it waits only for users, and has an answer that no process that drives it has seen
    /// yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub answered: bool,
    pub fleet: bool,
    pub workflow_file: String,
    /// ID of its work item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bead: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Time>,
    /// The current steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    pub failed_steps: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// True if every step has been visited: there is nothing to resume.
    #[serde(skip)]
    pub through: bool,
    /// The workspace that it belongs to, if it is another one; commands on the run work only there.
    #[serde(rename = "workspace", skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<PathBuf>,
    /// The remedy if it is damaged.
    #[serde(skip)]
    pub cure: open::Cure,
    /// True if its workflow has changed since it started.
    #[serde(skip)]
    pub changed: bool,
    /// Number of its processes that still run although no process drives it.
    #[serde(skip_serializing_if = "is_none")]
    pub left_behind: usize,
    /// The author's term for a step.
    #[serde(skip)]
    pub unit: &'static str,
}

impl RunView {
    /// Describes the run: the workflow by this name, and its work item.
    pub(crate) fn what(&self, file: &str) -> String {
        match &self.bead {
            Some(bead) => format!("{file} for {bead}"),
            None => file.to_owned(),
        }
    }

    /// Returns true if `retry` continues the run: it is neither complete nor driven, and does not
    /// wait for a user. That includes a run whose gate was answered while no process drove it.
    pub(crate) fn can_continue(&self) -> bool {
        match self.state {
            Standing::Stopped | Standing::Failed | Standing::Cancelled | Standing::Blocked => {
                !self.through
            }
            Standing::Paused => self.answered && !self.is_driven(),
            _ => false,
        }
    }

    /// Returns true if a process drives it or is about to. A run that waits for a user may have an
    /// owner too.
    pub(crate) fn is_driven(&self) -> bool {
        match self.state {
            Standing::Running | Standing::Queued | Standing::Doubtful => true,
            Standing::Paused => match &self.owner {
                Owner::Process { .. } | Owner::Locked { .. } | Owner::Queue { .. } => true,
                Owner::Coordinator { life, .. } => *life != Life::Dead,
                Owner::Nobody { .. } => false,
            },
            _ => false,
        }
    }
}

/// A run with its steps and its latest events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RunDetail {
    #[serde(flatten)]
    pub run: RunView,
    /// Total usage of providers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<RunSpent>,
    pub steps: Vec<StepView>,
    /// The last failed step, which may belong to an ended item.
    #[serde(skip)]
    pub failed: Option<StepView>,
    pub events: Vec<EventView>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EventView {
    pub at: Time,
    pub text: String,
}

/// State of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StepShown {
    Pending,
    /// It is next.
    Ready,
    /// It is recorded as a task that its coordinator has not published yet.
    Unpublished,
    Running,
    /// Its task waits for a worker.
    Waiting,
    /// Its task has ended, and the run has not recorded the result yet.
    Ended,
    /// Its task is missing; the next process that drives the run enqueues it again.
    Lost,
    /// It was running when the process that drove the run ended.
    Interrupted,
    /// It failed, and waits for its next attempt.
    Resting,
    /// It failed, and a user is asked how to continue; or it waits at a gate.
    Asking,
    Completed,
    Failed,
    Skipped,
    /// The run has completed without it.
    Unreached,
}

impl StepShown {
    pub(crate) fn word(self) -> &'static str {
        match self {
            StepShown::Pending => "pending",
            StepShown::Ready => "ready",
            StepShown::Unpublished => "unpublished",
            StepShown::Running => "running",
            StepShown::Waiting => "waiting",
            StepShown::Ended => "ended",
            StepShown::Lost => "lost",
            StepShown::Interrupted => "interrupted",
            StepShown::Resting => "resting",
            StepShown::Asking => "asking",
            StepShown::Completed => "completed",
            StepShown::Failed => "failed",
            StepShown::Skipped => "skipped",
            StepShown::Unreached => "unreached",
        }
    }

    /// Returns the state of a step whose visit has ended.
    pub(crate) fn settled(status: StepStatus) -> StepShown {
        match status {
            StepStatus::Completed => StepShown::Completed,
            StepStatus::Failed => StepShown::Failed,
            StepStatus::Skipped => StepShown::Skipped,
            _ => StepShown::Pending,
        }
    }

    /// Returns true if this visit of the step has ended.
    pub(crate) fn is_over(self) -> bool {
        use StepShown::{Completed, Failed, Skipped, Unreached};
        matches!(self, Completed | Failed | Skipped | Unreached)
    }
}

/// View model of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct StepView {
    pub step: String,
    /// Number of loops and rounds around it.
    pub depth: usize,
    /// Its name in the innermost block.
    #[serde(skip)]
    pub name: String,
    pub state: StepShown,
    /// True if the run is currently at this step.
    pub current: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(skip_serializing_if = "Attempt::is_none")]
    pub attempt: Attempt,
    /// Number of times that workers executed the attempt, if more than once.
    #[serde(skip_serializing_if = "TaskAttempt::is_none")]
    pub executions: TaskAttempt,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Time of the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The files it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// The worktree it waits for, and its holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for_worktree: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// True if the error is in a spell; the run keeps its own copy of that spell.
    #[serde(skip)]
    pub of_spell: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Items>,
    /// Usage of a provider over all attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Spent>,
    /// Its item, in a loop over items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// Number of rounds that were started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<usize>,
    /// The question to a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asks: Option<String>,
    /// True if the question has an answer that the process that drives the run has not seen yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub answered: bool,
    /// True if the question has expired; the next process that drives the run fails the step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
    /// True if it completed before the run was last resumed, and was not executed again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub completed_before: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_cause: Option<SkipCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// State of its provider, if the step waits because of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<String>,
    /// The unsettled nodes before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Its last output, while it is running or before it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_line: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskView>,
}

impl StepView {
    /// Returns true if it was executed, and skipped at a later visit.
    pub(crate) fn is_passed_over(&self) -> bool {
        self.state == StepShown::Skipped && !self.attempt.is_none()
    }
}

fn is_none(number: &usize) -> bool {
    *number == 0
}

/// Describes the number of remaining processes.
pub(crate) fn still_run(left: usize) -> String {
    match left {
        1 => "1 process of it still runs".to_owned(),
        left => format!("{left} processes of it still run"),
    }
}

/// Returns the number of a run's processes that still run although no process drives it. Processes
/// of a fleet's run belong to its workers and are not counted.
pub(crate) fn left_behind(run: &RunView) -> usize {
    match run.state {
        // A damaged run may still be driven.
        Standing::Damaged if !matches!(run.owner, Owner::Nobody { .. }) => 0,
        Standing::Stopped | Standing::Damaged if !run.fleet => {
            exec::left_behind(&format!("{}/", run.run_id))
        }
        _ => 0,
    }
}

/// Progress of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Items {
    pub total: usize,
    /// The current item; equals the number of items when all are done.
    pub current: usize,
    pub failed: usize,
}

impl Items {
    /// Describes the progress in a few words.
    pub(crate) fn words(self) -> String {
        let Items { total, current, failed } = self;
        match failed {
            0 => format!("{current} of {}", counted(total, "item")),
            failed => format!("{current} of {}, {failed} failed", counted(total, "item")),
        }
    }
}

/// Common fields of every `state.json`.
#[derive(Deserialize)]
struct Head {
    status: RunStatus,
    workflow_file: String,
    started_at: Time,
    updated_at: Time,
    #[serde(default)]
    failed_steps: Vec<String>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    fleet: bool,
    #[serde(default)]
    request: Option<HeadRequest>,
    run_root: String,
    #[serde(default)]
    workspace: Option<String>,
}

/// The part of a `state.json` that describes the request.
#[derive(Default, Deserialize)]
struct HeadRequest {
    #[serde(default)]
    bead: Option<serde_json::Value>,
}

/// Returns the ID of a work item.
fn bead_id(bead: Option<&serde_json::Value>) -> Option<String> {
    bead?.get("id")?.as_str().map(str::to_owned)
}

impl Board {
    pub(crate) fn run_root(&self, id: &RunId) -> PathBuf {
        self.state_dir.join(id.as_str())
    }

    /// Returns a run without its steps. The state of an ended run comes from `state.json`, which is
    /// always written at the end, if its workflow exists; for any other run, the journal is read
    /// too.
    pub(crate) fn run(&self, id: &RunId) -> RunView {
        let root = self.run_root(id);
        let state = root.join(store::STATE);
        let is_whole = disk::exists(&root.join(store::DEFINITION)).unwrap_or(false);
        if let Some(over) = self.memory.over(id, &state).filter(|_| is_whole) {
            return over;
        }
        let stamp = Memory::stamp(&state);
        let bytes = disk::machine().read(&state).unwrap_or_default();
        if let Ok(head) = serde_json::from_slice::<Head>(&bytes)
            && !matches!(head.status, RunStatus::Running | RunStatus::Paused)
            && is_whole
        {
            let view = RunView {
                state: standing(head.status, &NOBODY),
                recorded: Some(head.status),
                fleet: head.fleet,
                workflow_file: head.workflow_file,
                bead: bead_id(head.request.unwrap_or_default().bead.as_ref()),
                started_at: Some(head.started_at),
                updated_at: Some(head.updated_at),
                failed_steps: head.failed_steps,
                error: head.error.as_deref().map(one_line),
                elsewhere: Birth { run_root: head.run_root, workspace: head.workspace }
                    .elsewhere(self.workspace.root(), &root),
                ..self.unread(id, &root)
            };
            self.memory.keep_over(id, stamp, &view);
            return view;
        }
        match self.opened(id) {
            Ok(open) => self.view(&open.0, &open.1, &root),
            Err(error) => self.unopened(id, &error),
        }
    }

    /// Returns the readable part of a damaged run.
    pub(crate) fn damaged(&self, id: &RunId, error: &open::OpenError) -> RunView {
        RunView { state: Standing::of_unread(error), ..self.run(id) }
    }

    /// Returns the readable part of a run whose state does not show that it has ended.
    fn unopened(&self, id: &RunId, error: &open::OpenError) -> RunView {
        let root = self.run_root(id);
        let origin = crate::store::origin(&root);
        let fleet = origin.as_ref().is_some_and(|origin| origin.fleet);
        RunView {
            state: Standing::of_unread(error),
            owner: self.owner(id, &root, fleet),
            cure: error.cure(),
            error: Some(one_line(&error.to_string())),
            fleet,
            elsewhere: origin.and_then(|origin| self.elsewhere(&origin, &root)),
            ..self.unread(id, &root)
        }
    }

    /// Returns the workspace of a run, if it is not this one.
    pub(super) fn elsewhere(&self, origin: &Origin, root: &Path) -> Option<PathBuf> {
        Birth::of(origin).elsewhere(self.workspace.root(), root)
    }

    /// Returns a view of a run with all fields unknown.
    fn unread(&self, id: &RunId, root: &Path) -> RunView {
        let run_root = root.strip_prefix(self.workspace.root()).unwrap_or(root);
        RunView {
            run_id: id.to_string(),
            run_root: run_root.display().to_string(),
            state: Standing::Damaged,
            recorded: None,
            owner: NOBODY,
            turn_after: None,
            answered: false,
            fleet: false,
            workflow_file: String::new(),
            bead: None,
            started_at: None,
            updated_at: None,
            step: None,
            failed_steps: Vec::new(),
            error: None,
            through: false,
            elsewhere: None,
            cure: open::Cure::default(),
            changed: false,
            left_behind: 0,
            unit: "step",
        }
    }

    fn view(&self, plan: &Plan, run: &Run, root: &Path) -> RunView {
        let owner = match run.status {
            RunStatus::Running => self.owner(&run.id, root, run.origin.fleet),
            _ => NOBODY,
        };
        let here = run.positions();
        let going = here.iter().filter(|_| run.status == RunStatus::Running);
        let going = going.filter(|here| run.slot(here).is_some()).map(|here| here.path(plan));
        let going: Vec<String> = going.take(4).map(|path| shown_path(plan, &path)).collect();
        let state = standing(run.shown_status(), &owner);
        let answered = state == Standing::Paused
            && here.iter().any(|at| gates::is_answered(self.workspace.root(), plan, run, at));
        let driven = state == Standing::Running && run.origin.fleet;
        let goes_on = plan.is_exclusive() && (driven || answered);
        let turn_after = if goes_on { self.turn_after(run.id.as_str()) } else { None };
        RunView {
            state: if turn_after.is_some() && driven { Standing::Queued } else { state },
            recorded: Some(run.status),
            owner,
            turn_after,
            answered,
            fleet: run.origin.fleet,
            workflow_file: run.origin.workflow_file.clone(),
            bead: bead_id(run.origin.request.as_ref().and_then(|request| request.bead.as_ref())),
            started_at: Some(run.started_at),
            updated_at: Some(run.updated_at),
            step: (!going.is_empty()).then(|| match here.len() {
                0..=3 => going.join(", "),
                more => format!("{} and {} more", going[..3].join(", "), more - 3),
            }),
            failed_steps: run.failed_steps.iter().map(StepPath::to_string).collect(),
            error: run.error.as_deref().map(one_line),
            through: run.is_through(plan),
            elsewhere: self.elsewhere(&run.origin, root),
            unit: plan.unit(),
            ..self.unread(&run.id, root)
        }
    }

    /// Returns the owner of a run that has not ended.
    fn owner(&self, id: &RunId, root: &Path, fleet: bool) -> Owner {
        if let Some(place) = self.runs.get(id.as_str()).filter(|_| fleet) {
            return locked(self.holder(place, id), root);
        }
        if let Some(holder) = lock::held_by(root) {
            return Owner::Process { pid: holder.pid };
        }
        // It may have been enqueued since the scan.
        let again = self.queue.as_ref().filter(|_| fleet);
        let place = again.and_then(|queue| run_task::find(queue, id).ok().flatten());
        place.map_or(NOBODY, |place| self.holder(&place, id))
    }

    /// Returns the run that a fleet's run waits for before it may change the checkout; `None` if it
    /// has its turn or the checkout is free.
    fn turn_after(&self, id: &str) -> Option<String> {
        match &self.turn {
            Some(holder) if holder.batch == id => return None,
            Some(holder) if self.has_turn(holder) => return Some(format!("run {}", holder.batch)),
            _ => {}
        }
        let local = lock::checkout_held_by(self.workspace.root())?;
        Some(format!("a run of {local}"))
    }

    /// Returns true if a run that holds the turn has not ended, or workers still execute its steps.
    fn has_turn(&self, holder: &TurnHolder) -> bool {
        self.runs.contains_key(&holder.batch) || self.is_at_work(holder)
    }

    fn is_at_work(&self, holder: &TurnHolder) -> bool {
        let Some(queue) = &self.queue else { return false };
        checkout::is_at_work(queue, &self.workspace, holder).unwrap_or(true)
    }

    /// Returns the fleet's run that holds the turn and is active: a coordinator drives it or will,
    /// or workers execute its steps.
    pub(crate) fn run_with_turn(&self) -> Option<String> {
        let holder = self.turn.as_ref()?;
        let place = self.runs.get(&holder.batch);
        let id = RunId::parse(&holder.batch)?;
        let goes_on = place.is_some_and(|place| match self.holder(place, &id) {
            Owner::Coordinator { life, .. } => life != Life::Dead,
            Owner::Queue { coordinators, .. } => coordinators > 0,
            _ => false,
        });
        (goes_on || self.is_at_work(holder)).then(|| holder.batch.clone())
    }

    fn holder(&self, place: &Place, id: &RunId) -> Owner {
        let found = Found { place: place.clone(), batch: id.to_string() };
        match self.task(&found).map(|task| task.place) {
            Ok(PlaceView::Claimed { worker, life, host, pid, .. }) => {
                Owner::Coordinator { worker, host, pid, life }
            }
            Ok(PlaceView::Waiting { ahead, workers, paused, .. }) => {
                Owner::Queue { ahead, coordinators: workers, paused }
            }
            // A run that a user stopped needs no reason.
            Ok(PlaceView::Failed(ended)) if ended.message != "stopped" => {
                Owner::Nobody { reason: Some(ended.message) }
            }
            _ => NOBODY,
        }
    }

    /// Returns a run with its steps. The error states why it cannot be read.
    pub(crate) fn detail(&self, id: &RunId) -> Result<RunDetail, open::OpenError> {
        let root = self.run_root(id);
        let open = self.opened(id)?;
        let (plan, run) = (&open.0, &open.1);
        let mut view = self.view(plan, run, &root);
        view.changed = view.state.rests() && self.is_changed(run);
        view.left_behind = left_behind(&view);
        let walk = self.walk(plan, run, view.state);
        let mut steps = Vec::new();
        walk.block(plan.root(), &run.body, &[], &mut steps);
        let history = History::read(&*disk::machine(), &root).unwrap_or_default();
        let events = history.entries.iter().rev().take(EVENTS).filter_map(|entry| {
            let text = one_line(&log_line(plan, run, &entry.event)?);
            Some(EventView { at: entry.at, text })
        });
        let mut events: Vec<EventView> = events.collect();
        events.reverse();
        let failed = run.failed_steps.last().and_then(|path| Address::find(plan, path));
        let failed = failed.and_then(|at| Some(walk.step(&at, run.slot(&at)?)));
        Ok(RunDetail { run: view, usage: spent::of_run(&run.body), steps, failed, events })
    }

    /// Returns true if the workflow of a run has changed. A missing or built-in workflow has not.
    fn is_changed(&self, run: &Run) -> bool {
        let file = self.workspace.root().join(&run.origin.workflow_file);
        let bytes = disk::machine().read(&file).ok();
        bytes.is_some_and(|bytes| {
            format!("sha256:{}", crate::base::digest::sha256(&bytes))
                != run.origin.workflow_checksum
        })
    }

    /// Finds a step by the name that a user typed, even in an ended item.
    pub(crate) fn step(&self, id: &RunId, name: &str) -> Option<StepView> {
        let open = self.opened(id).ok()?;
        let (plan, run) = (&open.0, &open.1);
        let at = Address::named(plan, name)?;
        let state = self.view(plan, run, &self.run_root(id)).state;
        Some(self.walk(plan, run, state).step(&at, run.slot(&at)?))
    }

    /// Returns a walk over the steps of a run in this state.
    pub(crate) fn walk<'a>(&'a self, plan: &'a Plan, run: &'a Run, state: Standing) -> Walk<'a> {
        let driven = matches!(state, Standing::Running | Standing::Doubtful);
        Walk { board: self, plan, run, driven, here: run.positions() }
    }

    /// Reads the run and its plan, for callers that need more than the view.
    pub(crate) fn open(&self, id: &RunId) -> Result<(Plan, Run), open::OpenError> {
        open::look(&self.workspace, &self.run_root(id))
    }

    /// Like [`Board::open`], from the journal alone, for callers that show events.
    pub(crate) fn open_by_journal(&self, id: &RunId) -> Result<(Plan, Run), open::OpenError> {
        open::look_by_journal(&self.workspace, &self.run_root(id))
    }

    /// Like [`Board::open`], but cached until a file of the run is written.
    pub(super) fn opened(&self, id: &RunId) -> Result<Arc<(Plan, Run)>, open::OpenError> {
        let root = self.run_root(id);
        self.memory.open(id, &root, || open::look(&self.workspace, &root))
    }

    /// Finds the task of a run; `None` also for an I/O error.
    fn where_is(&self, run: &RunId, record: &Record) -> Option<TaskView> {
        let task = record.task.as_ref()?;
        let found: io::Result<_> = self.task_of_run(run.as_str(), &task.agent, &task.id);
        found.ok().flatten()
    }
}

/// Replaces a coordinator by `Owner::Locked` if another process of this machine has the run's lock.
fn locked(owner: Owner, root: &Path) -> Owner {
    match owner {
        Owner::Coordinator { worker, host, pid: Some(own), life: life @ Life::Alive { .. } } => {
            match lock::held_by(root).and_then(|holder| holder.pid) {
                Some(pid) if pid != own => Owner::Locked { worker, host, pid },
                _ => Owner::Coordinator { worker, host, pid: Some(own), life },
            }
        }
        owner => owner,
    }
}

/// Returns the state of a run, from the status in its files and its owner.
pub(super) fn standing(status: RunStatus, owner: &Owner) -> Standing {
    match (status, owner) {
        (RunStatus::Completed, _) => Standing::Completed,
        (RunStatus::Failed, _) => Standing::Failed,
        (RunStatus::Cancelled, _) => Standing::Cancelled,
        (RunStatus::Blocked, _) => Standing::Blocked,
        (RunStatus::Paused, _) => Standing::Paused,
        (RunStatus::Running, Owner::Process { .. }) => Standing::Running,
        (RunStatus::Running, Owner::Locked { .. }) => Standing::Doubtful,
        (RunStatus::Running, Owner::Queue { .. }) => Standing::Queued,
        (RunStatus::Running, Owner::Nobody { .. }) => Standing::Stopped,
        (RunStatus::Running, Owner::Coordinator { life, .. }) => match life {
            Life::Alive { .. } => Standing::Running,
            Life::Dead => Standing::Stopped,
            Life::Silent { .. } | Life::Expired { .. } | Life::Unknown => Standing::Doubtful,
        },
    }
}

/// A walk over the steps of a run. For a loop, it shows the current item.
pub(crate) struct Walk<'a> {
    board: &'a Board,
    plan: &'a Plan,
    run: &'a Run,
    /// True if a process drives the run, or may.
    driven: bool,
    here: Vec<Address>,
}

impl Walk<'_> {
    fn block(
        &self,
        block: &Block,
        body: &Body,
        loops: &[(usize, usize)],
        into: &mut Vec<StepView>,
    ) {
        for (index, (step, slot)) in block.steps.iter().zip(&body.slots).enumerate() {
            // The question of a gate is shown with its node.
            if matches!(step.action, Action::Gate(_)) {
                continue;
            }
            let at = Address { loops: loops.to_vec(), step: index };
            into.push(self.step(&at, slot));
            let (Some(inner), Some(run)) = (step.inner(), &slot.each) else { continue };
            let open = slot.state == StepState::Running;
            if let Some(item) = run.iterations.get(run.index).filter(|_| open) {
                let mut loops = loops.to_vec();
                loops.push((index, run.index));
                self.block(inner, &item.body, &loops, into);
            }
        }
    }

    /// Returns the view of one step, even in an ended item.
    pub(crate) fn step(&self, at: &Address, slot: &Slot) -> StepView {
        let step = at.step_of(self.plan);
        let record = slot.record.as_deref().cloned().unwrap_or_default();
        let out = slot.state == StepState::Running && slot.each.is_none();
        let task = if out { self.board.where_is(&self.run.id, &record) } else { None };
        let sent = record.task.as_ref();
        let over = slot.state == StepState::Settled || slot.state == StepState::Asking;
        let rounds = matches!(step.action, Action::Rounds(_));
        let gate = self.gate(at, slot);
        let asks = gate.as_ref().and_then(|gate| self.asks(gate));
        let (needs, parked) = (self.needs(at, slot), self.parked(at, slot));
        let path = at.path(self.plan).to_string();
        let state = match asks {
            Some(_) => StepShown::Asking,
            None if parked.is_some() => StepShown::Ready,
            None => self.shown(at, slot, sent.is_some(), task.as_ref()),
        };
        StepView {
            depth: at.loops.len(),
            name: step.name.clone(),
            last_line: match state {
                StepShown::Running if out => self.said(&path, step),
                StepShown::Failed | StepShown::Resting => record.error.as_ref().and_then(last_of),
                _ => None,
            },
            step: path,
            state,
            current: (asks.is_some() || parked.is_some() || self.here.contains(at))
                && self.run.status == RunStatus::Running,
            agent: sent.map(|task| task.agent.clone()).or(step.agent.clone()),
            attempt: slot.attempts,
            executions: record.executions,
            exit_code: record.exit_code.filter(|_| over),
            started_at: record.started_at,
            duration_ms: record.duration_ms.filter(|_| over),
            until: match slot.state {
                StepState::Resting { until } => Some(until),
                _ => None,
            },
            waits_for: self.waits_for(at).filter(|_| out),
            waits_for_worktree: if out { self.waits_for_tree(at, slot) } else { None },
            usage: spent::of_step(&record),
            of_spell: record.error.as_ref().is_some_and(Fault::is_of_spell),
            error: record.error.map(|error| one_line(&error.message)),
            items: slot.each.as_deref().filter(|_| !rounds).map(items),
            item: self.item(at),
            rounds: slot.each.as_deref().filter(|_| rounds).map(|each| each.iterations.len()),
            answered: gate.as_ref().is_some_and(|gate| {
                gates::is_answered(self.board.workspace.root(), self.plan, self.run, gate)
            }),
            expired: gate.as_ref().is_some_and(|gate| {
                gates::is_expired(self.board.workspace.root(), self.plan, self.run, gate)
            }),
            asks,
            completed_before: slot.before,
            skip_cause: record.skip_cause.filter(|_| slot.status() == StepStatus::Skipped),
            warning: record.warning.as_deref().map(one_line),
            parked,
            needs,
            task,
        }
    }

    /// Returns the item of the innermost loop around a step.
    fn item(&self, at: &Address) -> Option<String> {
        let ((step, index), outer) = at.loops.split_last()?;
        let around = Address { loops: outer.to_vec(), step: *step };
        if !matches!(around.step_of(self.plan).action, Action::Each(_)) {
            return None;
        }
        let item = self.run.slot(&around)?.each.as_ref()?.items.get(*index)?;
        Some(one_line(&item.as_str().map_or_else(|| item.to_string(), str::to_owned)))
    }

    /// Returns the last output of a running step.
    fn said(&self, path: &str, step: &Step) -> Option<String> {
        let logs = self.board.run_root(&self.run.id).join("logs");
        let log = |kind: &str| logs.join(format!("{path}.{kind}"));
        last_said(&[log("stdout"), log("stderr")], self.plan.adapter(step))
    }

    /// Returns the position of the gate at which a node waits for a user.
    fn gate(&self, at: &Address, slot: &Slot) -> Option<Address> {
        // A merge is its own gate; other nodes have a gate as an inner step.
        if slot.state == StepState::Waiting {
            return Some(at.clone());
        }
        let open = slot.state == StepState::Running && slot.each.is_some();
        if !open || !at.loops.is_empty() || self.run.body.front.is_none() {
            return None;
        }
        let inner = self.run.inner_position(at.step);
        let waits = self.run.slot(&inner)?.state == StepState::Waiting;
        waits.then_some(inner)
    }

    /// Returns the question of a gate.
    fn asks(&self, gate: &Address) -> Option<String> {
        let record = self.run.slot(gate)?.record.as_ref()?;
        record.gate.as_ref().map(|gate| one_line(&gate.message))
    }

    /// Returns the state of the provider of a step that is next, if the provider is parked.
    fn parked(&self, at: &Address, slot: &Slot) -> Option<String> {
        let due = match slot.state {
            StepState::Ready => true,
            StepState::Pending => {
                let in_graph = self.plan.root().edges().is_some() && at.loops.is_empty();
                in_graph && self.needs(at, slot).is_empty()
            }
            _ => false,
        };
        let provider = match &at.step_of(self.plan).action {
            Action::Ask { provider, .. } => provider,
            Action::Prompt(prompt) => &prompt.provider,
            _ => return None,
        };
        let described = self.plan.providers().get(provider);
        let account = described.and_then(|provider| provider.account.as_ref());
        let target = Target {
            account: account.unwrap_or(provider).clone(),
            provider: provider.clone(),
            ..Target::default()
        };
        let goes_on = self.driven && self.run.status == RunStatus::Running && due;
        goes_on.then(|| self.board.parked_target(&target, None)).flatten()
    }

    /// Returns the nodes that a node still waits for.
    fn needs(&self, at: &Address, slot: &Slot) -> Vec<String> {
        let edges = self.plan.root().edges().filter(|_| at.loops.is_empty());
        let Some(edges) = edges.filter(|_| slot.state == StepState::Pending) else {
            return Vec::new();
        };
        let before = edges.before[at.step].iter();
        let open = before.filter(|node| self.run.body.slots[**node].state != StepState::Settled);
        open.map(|node| self.plan.root().steps[*node].name.clone()).collect()
    }

    fn shown(&self, at: &Address, slot: &Slot, sent: bool, task: Option<&TaskView>) -> StepShown {
        match slot.state {
            StepState::Pending | StepState::Ready if self.run.status == RunStatus::Completed => {
                StepShown::Unreached
            }
            StepState::Pending => StepShown::Pending,
            StepState::Ready if self.run.status != RunStatus::Running => StepShown::Pending,
            StepState::Ready => StepShown::Ready,
            StepState::Resting { .. } => StepShown::Resting,
            StepState::Asking | StepState::Waiting => StepShown::Asking,
            StepState::Settled => StepShown::settled(slot.status()),
            StepState::Running if self.run.status != RunStatus::Running => {
                match slot.each.is_some() && self.failed_within(at) {
                    true => StepShown::Failed,
                    false => StepShown::Interrupted,
                }
            }
            StepState::Running if sent => match task.map(|task| &task.place) {
                Some(PlaceView::Waiting { .. }) => StepShown::Waiting,
                Some(PlaceView::Claimed { life: Life::Dead, .. }) => StepShown::Interrupted,
                Some(PlaceView::Claimed { .. }) => StepShown::Running,
                Some(_) => StepShown::Ended,
                // It is recorded before it is enqueued.
                None if self.driven => StepShown::Unpublished,
                None => StepShown::Lost,
            },
            StepState::Running if self.driven => StepShown::Running,
            StepState::Running => StepShown::Interrupted,
        }
    }

    /// Returns true if the run ended by a failure within a loop.
    fn failed_within(&self, at: &Address) -> bool {
        let depth = at.loops.len();
        let within = |failed: &Address| {
            let inside = failed.loops.get(depth).is_some_and(|(step, _)| *step == at.step);
            inside && failed.loops.starts_with(&at.loops)
        };
        let mut failed = self.run.failed_steps.iter();
        failed.any(|path| Address::find(self.plan, path).is_some_and(|at| within(&at)))
    }

    fn waits_for_tree(&self, at: &Address, slot: &Slot) -> Option<String> {
        let (bead, isolation) = self.run.bead_of(at.step_of(self.plan))?;
        let tree = bead.get("id")?.as_str().filter(|_| isolation == Isolation::Worktree)?;
        let (run, step) = (Some(self.run.id.to_string()), at.path(self.plan).to_string());
        self.board.waits_for_tree(tree, &HoldingStep { run, step, attempt: slot.attempts })
    }

    fn waits_for(&self, at: &Address) -> Option<String> {
        let Action::Wait(wait) = &at.step_of(self.plan).action else { return None };
        let scope = RunScope { plan: self.plan, run: self.run, loops: &at.loops };
        let glob = wait.glob.render(&scope);
        Some(one_line(&glob.unwrap_or_else(|_| wait.glob.with_holes_as("…"))))
    }
}

/// Returns the last output before an error, if the error's message does not contain it.
fn last_of(error: &Fault) -> Option<String> {
    let tail = if error.stderr_tail.is_empty() { &error.stdout_tail } else { &error.stderr_tail };
    let line = tail.iter().rev().map(|line| excerpt(line)).find(|line| !line.trim().is_empty())?;
    let line = line.trim().to_owned();
    (!error.message.contains(&line)).then_some(line)
}

/// Formats a position in a run for users: a gate by its node.
fn shown_path(plan: &Plan, path: &StepPath) -> String {
    let gate = Address::find(plan, path)
        .is_some_and(|at| matches!(at.step_of(plan).action, Action::Gate(_)));
    let node = path.loops.first().filter(|_| gate).map(|(node, _)| node.clone());
    node.unwrap_or_else(|| path.shown())
}

fn items(each: &EachRun) -> Items {
    let failed = each.iterations.iter().filter(|item| item.result == Some(ItemResult::Failure));
    Items { total: each.items.len(), current: each.index, failed: failed.count() }
}
