//! Runs: where each one really stands, who drives it, and what its steps are doing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::gates;
use super::home::Birth;
use super::spent::{self, RunSpent};
use super::tasks::{Found, PlaceView, TaskView};
use super::{Board, Life, Memory, last_said, one_line};
use crate::disk;
use crate::engine::record::{Fault, Spent};
use crate::engine::run::{Address, Body, EachRun, ItemResult, Slot, StepState};
use crate::engine::{Origin, Record, Run, RunScope, RunStatus, SkipCause, StepStatus};
use crate::exec;
use crate::fleet::parking::Target;
use crate::fleet::{checkout, open, run_task};
use crate::ids::{RunId, StepPath, counted};
use crate::queue::{Place, TurnHolder};
use crate::store::{self, History, lock};
use crate::time::Time;
use crate::ui::text::{excerpt, log_line};
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Block, Isolation, Step};
use crate::worktree::Waiter;

/// How many of the latest events are shown.
const EVENTS: usize = 5;

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Somebody drives it.
    Running,
    /// It waits for a coordinator, or for its turn to change the checkout.
    Queued,
    /// A coordinator of another machine has it, of which no sign of life was seen.
    Doubtful,
    /// It is not over, and nobody drives it.
    Stopped,
    /// It waits for a person.
    Paused,
    Completed,
    Failed,
    Cancelled,
    /// A step of it failed, and it waits to be taken up there.
    Blocked,
    /// Its files cannot be read.
    Damaged,
    /// This user may not read its files.
    Unreadable,
}

impl Standing {
    pub const ALL: [Standing; 11] = [
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

    pub fn word(self) -> &'static str {
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

    /// Nothing more will happen to the run unless somebody asks for it.
    pub fn is_over(self) -> bool {
        use Standing::{Blocked, Cancelled, Completed, Failed};
        matches!(self, Completed | Failed | Cancelled | Blocked)
    }

    /// Its time does not run: it is over, or nobody drives it and it waits for nobody.
    pub fn rests(self) -> bool {
        self.is_over() || self == Standing::Stopped || !self.is_known()
    }

    /// Its files tell how it stands.
    pub fn is_known(self) -> bool {
        !matches!(self, Standing::Damaged | Standing::Unreadable)
    }

    /// How a run stands that cannot be read.
    pub fn of_unread(error: &open::OpenError) -> Standing {
        if error.is_forbidden() { Standing::Unreadable } else { Standing::Damaged }
    }
}

/// Who drives a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Owner {
    /// A process that was started for this run.
    Process { pid: Option<u32> },
    /// Whoever holds the run's task.
    Coordinator { worker: String, host: Option<String>, pid: Option<u32>, life: Life },
    /// A coordinator holds its task, and waits for a process that still has the run's lock: one
    /// that lost the run and was paused before it could hear of that.
    Locked { worker: String, host: Option<String>, pid: u32 },
    /// It waits in `inbox/coordinator`.
    Queue { ahead: usize, coordinators: usize, paused: Option<String> },
    /// Nobody, and why whoever drove it let it go, if that is known.
    Nobody {
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

const NOBODY: Owner = Owner::Nobody { reason: None };

/// A run, as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunView {
    pub run_id: String,
    pub run_root: String,
    pub state: Standing,
    /// What its files say, which may be older than the death of whoever wrote them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<RunStatus>,
    pub owner: Owner,
    /// Whom it waits for until it may change the checkout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_after: Option<String>,
    /// It waits for people alone, and one has answered, which nobody who drives it has seen yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub answered: bool,
    pub fleet: bool,
    pub workflow_file: String,
    /// The id of its work item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bead: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Time>,
    /// Where control is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    pub failed_steps: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Every step has had its turn: there is nothing to go on with.
    #[serde(skip)]
    pub through: bool,
    /// The workspace that it is of, where that is another: only there anything is done with it.
    #[serde(rename = "workspace", skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<PathBuf>,
    /// What helps if it is damaged.
    #[serde(skip)]
    pub cure: open::Cure,
    /// Its workflow was changed since it began.
    #[serde(skip)]
    pub changed: bool,
    /// How many processes of it go on although nobody drives it.
    #[serde(skip_serializing_if = "is_none")]
    pub left_behind: usize,
    /// What its author calls a step.
    #[serde(skip)]
    pub unit: &'static str,
}

impl RunView {
    /// What it is a run of: the workflow by this name, and the work item it is for.
    pub fn what(&self, file: &str) -> String {
        match &self.bead {
            Some(bead) => format!("{file} for {bead}"),
            None => file.to_owned(),
        }
    }

    /// Whether `retry` continues the run: it is neither complete nor driven, and waits for no
    /// person. That includes a run whose gate was answered while no process drove it.
    pub fn can_continue(&self) -> bool {
        match self.state {
            Standing::Stopped | Standing::Failed | Standing::Cancelled | Standing::Blocked => {
                !self.through
            }
            Standing::Paused => self.answered && !self.is_driven(),
            _ => false,
        }
    }

    /// Whether somebody drives it, or is about to. One that waits for a person may be held too.
    pub fn is_driven(&self) -> bool {
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

/// A run with its steps and what happened to it last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunDetail {
    #[serde(flatten)]
    pub run: RunView,
    /// What asking providers has cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<RunSpent>,
    pub steps: Vec<StepView>,
    /// The step that it failed at last, which may be of an item that is over.
    #[serde(skip)]
    pub failed: Option<StepView>,
    pub events: Vec<EventView>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventView {
    pub at: Time,
    pub text: String,
}

/// What a step is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepShown {
    Pending,
    /// Its turn has come.
    Ready,
    /// It is on record as a task that its coordinator has not published yet.
    Unpublished,
    Running,
    /// It waits as a task for a worker.
    Waiting,
    /// Its task is over, and nobody has taken the result in yet.
    Ended,
    /// Its task is nowhere: it is put out again when somebody drives the run.
    Lost,
    /// It ran when whoever drove the run went away.
    Interrupted,
    /// It failed, and the next attempt waits.
    Resting,
    /// It failed, and a person is asked what follows.
    Asking,
    Completed,
    Failed,
    Skipped,
    /// The run has completed without it.
    Unreached,
}

impl StepShown {
    pub fn word(self) -> &'static str {
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

    /// How a step is shown whose visit is over.
    pub fn settled(status: StepStatus) -> StepShown {
        match status {
            StepStatus::Completed => StepShown::Completed,
            StepStatus::Failed => StepShown::Failed,
            StepStatus::Skipped => StepShown::Skipped,
            _ => StepShown::Pending,
        }
    }

    /// Nothing more happens in this visit of the step.
    pub fn is_over(self) -> bool {
        use StepShown::{Completed, Failed, Skipped, Unreached};
        matches!(self, Completed | Failed | Skipped | Unreached)
    }
}

/// A step, as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepView {
    pub step: String,
    /// How many loops and rounds are around it.
    pub depth: usize,
    /// What it is called in the innermost.
    #[serde(skip)]
    pub name: String,
    pub state: StepShown,
    /// Where control is.
    pub current: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// How often the attempt was taken up by workers, where that was more than once.
    #[serde(skip_serializing_if = "is_zero")]
    pub executions: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// When the next attempt is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The files it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// The worktree it waits for, and who has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for_worktree: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The error is that of a spell, which the run keeps as it was.
    #[serde(skip)]
    pub of_spell: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Items>,
    /// What asking a provider has cost, over all attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Spent>,
    /// The item that it is about, in a loop over items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// How many rounds were begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<usize>,
    /// What a person is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asks: Option<String>,
    /// That was answered, which whoever drives the run has not seen yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub answered: bool,
    /// Nobody answered that in time; whoever drives the run next fails the step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
    /// It completed before the run was last resumed, and was not executed again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub completed_before: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_cause: Option<SkipCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// How it stands with its provider, where it waits because of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<String>,
    /// The nodes before it that have not settled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// What it printed last, while it is being executed or before it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_line: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskView>,
}

impl StepView {
    /// It was executed, and skipped when it was visited again.
    pub fn is_passed_over(&self) -> bool {
        self.state == StepShown::Skipped && self.attempt > 0
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_none(number: &usize) -> bool {
    *number == 0
}

/// What is told of processes that go on.
pub fn still_run(left: usize) -> String {
    match left {
        1 => "1 process of it still runs".to_owned(),
        left => format!("{left} processes of it still run"),
    }
}

/// How many processes of a run go on although whoever drove it is gone. What goes on of a run of a
/// fleet is its workers' own.
pub fn left_behind(run: &RunView) -> usize {
    match run.state {
        // One that is damaged may be driven all the same.
        Standing::Damaged if !matches!(run.owner, Owner::Nobody { .. }) => 0,
        Standing::Stopped | Standing::Damaged if !run.fleet => {
            exec::left_behind(&format!("{}/", run.run_id))
        }
        _ => 0,
    }
}

/// How far a loop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Items {
    pub total: usize,
    /// The item where control is; the number of items when all are done.
    pub current: usize,
    pub failed: usize,
}

impl Items {
    /// It, in a few words.
    pub fn words(self) -> String {
        let Items { total, current, failed } = self;
        match failed {
            0 => format!("{current} of {}", counted(total, "item")),
            failed => format!("{current} of {}, {failed} failed", counted(total, "item")),
        }
    }
}

/// What every `state.json` says.
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

/// What a `state.json` says of what its run was started for.
#[derive(Default, Deserialize)]
struct HeadRequest {
    #[serde(default)]
    bead: Option<serde_json::Value>,
}

/// The id of a work item.
fn bead_id(bead: Option<&serde_json::Value>) -> Option<String> {
    bead?.get("id")?.as_str().map(str::to_owned)
}

impl Board {
    pub fn run_root(&self, id: &RunId) -> PathBuf {
        self.state_dir.join(id.as_str())
    }

    /// A run, without its steps. The state of one that is over is taken from `state.json`, which
    /// is always written at the end, if its workflow is there; of any other the journal is asked
    /// too.
    pub fn run(&self, id: &RunId) -> RunView {
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

    /// A run that cannot be read, as far as it can be.
    pub fn damaged(&self, id: &RunId, error: &open::OpenError) -> RunView {
        RunView { state: Standing::of_unread(error), ..self.run(id) }
    }

    /// The same where its state does not say that it is over.
    fn unopened(&self, id: &RunId, error: &open::OpenError) -> RunView {
        let root = self.run_root(id);
        let origin = open::origin(&root);
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

    /// The workspace of a run, if it is another than this.
    pub(super) fn elsewhere(&self, origin: &Origin, root: &Path) -> Option<PathBuf> {
        Birth::of(origin).elsewhere(self.workspace.root(), root)
    }

    /// A run of which nothing is known yet.
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
        let goes_on = plan.exclusive && (driven || answered);
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

    /// Who drives a run that is not over.
    fn owner(&self, id: &RunId, root: &Path, fleet: bool) -> Owner {
        if let Some(place) = self.runs.get(id.as_str()).filter(|_| fleet) {
            return locked(self.holder(place, id), root);
        }
        if let Some(holder) = lock::held_by(root) {
            return Owner::Process { pid: holder.pid };
        }
        // It may have been put out since the others were looked at.
        let again = self.queue.as_ref().filter(|_| fleet);
        let place = again.and_then(|queue| run_task::find(queue, id).ok().flatten());
        place.map_or(NOBODY, |place| self.holder(&place, id))
    }

    /// Whom a run of a fleet that changes the checkout waits for; nobody, if it has its turn.
    fn turn_after(&self, id: &str) -> Option<String> {
        match &self.turn {
            Some(holder) if holder.batch == id => return None,
            Some(holder) if self.has_turn(holder) => return Some(format!("run {}", holder.batch)),
            _ => {}
        }
        let local = lock::checkout_held_by(self.workspace.root())?;
        Some(format!("a run of {local}"))
    }

    /// Whether a run that took its turn is not over, or workers are still at it.
    fn has_turn(&self, holder: &TurnHolder) -> bool {
        self.runs.contains_key(&holder.batch) || self.is_at_work(holder)
    }

    fn is_at_work(&self, holder: &TurnHolder) -> bool {
        let Some(queue) = &self.queue else { return false };
        checkout::is_at_work(queue, &self.workspace, holder).unwrap_or(true)
    }

    /// The run of a fleet that has its turn to change the checkout and goes on: somebody drives it
    /// or will, or workers are at it.
    pub fn run_with_turn(&self) -> Option<String> {
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
            // What a person stopped needs no reason.
            Ok(PlaceView::Failed(ended)) if ended.message != "stopped" => {
                Owner::Nobody { reason: Some(ended.message) }
            }
            _ => NOBODY,
        }
    }

    /// A run with its steps. The error says why it cannot be read.
    pub fn detail(&self, id: &RunId) -> Result<RunDetail, open::OpenError> {
        let root = self.run_root(id);
        let open = self.opened(id)?;
        let (plan, run) = (&open.0, &open.1);
        let mut view = self.view(plan, run, &root);
        view.changed = view.state.rests() && self.is_changed(run);
        view.left_behind = left_behind(&view);
        let walk = self.walk(plan, run, view.state);
        let mut steps = Vec::new();
        walk.block(&plan.root, &run.body, &[], &mut steps);
        let history = History::read(&*disk::machine(), &root).unwrap_or_default();
        let events = history.entries.iter().rev().take(EVENTS).filter_map(|entry| {
            let text = one_line(&log_line(plan, run, &entry.event)?);
            Some(EventView { at: entry.at, text })
        });
        let mut events: Vec<EventView> = events.collect();
        events.reverse();
        let failed = run.failed_steps.last().and_then(|path| Address::of(plan, path));
        let failed = failed.and_then(|at| Some(walk.step(&at, run.slot(&at)?)));
        Ok(RunDetail { run: view, usage: spent::of_run(&run.body), steps, failed, events })
    }

    /// Whether the workflow of a run is another by now. One that is gone, or built in, is not.
    fn is_changed(&self, run: &Run) -> bool {
        let file = self.workspace.root().join(&run.origin.workflow_file);
        let bytes = disk::machine().read(&file).ok();
        bytes.is_some_and(|bytes| {
            format!("sha256:{}", crate::digest::sha256(&bytes)) != run.origin.workflow_checksum
        })
    }

    /// A step as a person names it, also of an item that is over.
    pub fn step(&self, id: &RunId, name: &str) -> Option<StepView> {
        let open = self.opened(id).ok()?;
        let (plan, run) = (&open.0, &open.1);
        let at = Address::named(plan, name)?;
        let state = self.view(plan, run, &self.run_root(id)).state;
        Some(self.walk(plan, run, state).step(&at, run.slot(&at)?))
    }

    /// A walk over the steps of a run that stands so.
    pub fn walk<'a>(&'a self, plan: &'a Plan, run: &'a Run, state: Standing) -> Walk<'a> {
        let driven = matches!(state, Standing::Running | Standing::Doubtful);
        Walk { board: self, plan, run, driven, here: run.positions() }
    }

    /// The run itself and its plan, for those who show more than the board.
    pub fn open(&self, id: &RunId) -> Result<(Plan, Run), open::OpenError> {
        open::look(&self.workspace, &self.run_root(id))
    }

    /// The same where the journal alone can be read, for those who show what happened.
    pub fn open_by_journal(&self, id: &RunId) -> Result<(Plan, Run), open::OpenError> {
        open::look_by_journal(&self.workspace, &self.run_root(id))
    }

    /// The same as it was seen before, if nothing was written since.
    pub(super) fn opened(&self, id: &RunId) -> Result<Arc<(Plan, Run)>, open::OpenError> {
        let root = self.run_root(id);
        self.memory.open(id, &root, || open::look(&self.workspace, &root))
    }

    /// Where a task of a run is; an error of the volume is nowhere.
    fn where_is(&self, run: &RunId, record: &Record) -> Option<TaskView> {
        let task = record.task.as_ref()?;
        let found: io::Result<_> = self.task_of_run(run.as_str(), &task.agent, &task.id);
        found.ok().flatten()
    }
}

/// Whether the holder of a run's task drives it: another process of this machine may have its lock.
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

/// Where a run stands, from what its files say and who drives it.
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

/// A walk over the steps of a run. Of a loop, the item is shown where control is.
pub struct Walk<'a> {
    board: &'a Board,
    plan: &'a Plan,
    run: &'a Run,
    /// Somebody drives the run, or may.
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
            // What a gate asks is told with its node.
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

    /// How one step stands, also of an item that is over.
    pub fn step(&self, at: &Address, slot: &Slot) -> StepView {
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

    /// The item of the innermost loop that a step is about.
    fn item(&self, at: &Address) -> Option<String> {
        let ((step, index), outer) = at.loops.split_last()?;
        let around = Address { loops: outer.to_vec(), step: *step };
        if !matches!(around.step_of(self.plan).action, Action::Each(_)) {
            return None;
        }
        let item = self.run.slot(&around)?.each.as_ref()?.items.get(*index)?;
        Some(one_line(&item.as_str().map_or_else(|| item.to_string(), str::to_owned)))
    }

    /// What a step that is being executed said last.
    fn said(&self, path: &str, step: &Step) -> Option<String> {
        let logs = self.board.run_root(&self.run.id).join("logs");
        let log = |kind: &str| logs.join(format!("{path}.{kind}"));
        last_said(&[log("stdout"), log("stderr")], self.plan.adapter(step))
    }

    /// Where the gate is at which a node waits for a person.
    fn gate(&self, at: &Address, slot: &Slot) -> Option<Address> {
        // A merge asks by itself, a gate of a node by a step inside of it.
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

    /// What a person is asked at a gate.
    fn asks(&self, gate: &Address) -> Option<String> {
        let record = self.run.slot(gate)?.record.as_ref()?;
        record.gate.as_ref().map(|gate| one_line(&gate.message))
    }

    /// How it stands with the provider of a step whose turn has come, where that is left alone.
    fn parked(&self, at: &Address, slot: &Slot) -> Option<String> {
        let due = match slot.state {
            StepState::Ready => true,
            StepState::Pending => {
                let in_graph = self.plan.root.edges.is_some() && at.loops.is_empty();
                in_graph && self.needs(at, slot).is_empty()
            }
            _ => false,
        };
        let provider = match &at.step_of(self.plan).action {
            Action::Ask { provider, .. } => provider,
            Action::Prompt(prompt) => &prompt.provider,
            _ => return None,
        };
        let described = self.plan.providers.get(provider);
        let account = described.and_then(|provider| provider.account.as_ref());
        let target = Target {
            account: account.unwrap_or(provider).clone(),
            provider: provider.clone(),
            ..Target::default()
        };
        let goes_on = self.driven && self.run.status == RunStatus::Running && due;
        goes_on.then(|| self.board.parked_target(&target, None)).flatten()
    }

    /// The nodes that a node still waits for.
    fn needs(&self, at: &Address, slot: &Slot) -> Vec<String> {
        let edges = self.plan.root.edges.as_ref().filter(|_| at.loops.is_empty());
        let Some(edges) = edges.filter(|_| slot.state == StepState::Pending) else {
            return Vec::new();
        };
        let before = edges.before[at.step].iter();
        let open = before.filter(|node| self.run.body.slots[**node].state != StepState::Settled);
        open.map(|node| self.plan.root.steps[*node].name.clone()).collect()
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
                // It is on record before it is put out.
                None if self.driven => StepShown::Unpublished,
                None => StepShown::Lost,
            },
            StepState::Running if self.driven => StepShown::Running,
            StepState::Running => StepShown::Interrupted,
        }
    }

    /// Whether the run ended by a failure within a loop.
    fn failed_within(&self, at: &Address) -> bool {
        let depth = at.loops.len();
        let within = |failed: &Address| {
            let inside = failed.loops.get(depth).is_some_and(|(step, _)| *step == at.step);
            inside && failed.loops.starts_with(&at.loops)
        };
        let mut failed = self.run.failed_steps.iter();
        failed.any(|path| Address::of(self.plan, path).is_some_and(|at| within(&at)))
    }

    fn waits_for_tree(&self, at: &Address, slot: &Slot) -> Option<String> {
        let (bead, isolation) = self.run.bead_of(at.step_of(self.plan))?;
        let tree = bead.get("id")?.as_str().filter(|_| isolation == Isolation::Worktree)?;
        let (run, step) = (Some(self.run.id.to_string()), at.path(self.plan).to_string());
        self.board.waits_for_tree(tree, &Waiter { run, step, attempt: slot.attempts })
    }

    fn waits_for(&self, at: &Address) -> Option<String> {
        let Action::Wait(wait) = &at.step_of(self.plan).action else { return None };
        let scope = RunScope { plan: self.plan, run: self.run, loops: &at.loops };
        let glob = wait.glob.render(&scope);
        Some(one_line(&glob.unwrap_or_else(|_| wait.glob.with_holes_as("…"))))
    }
}

/// What was printed last before an error, where the error does not tell it already.
fn last_of(error: &Fault) -> Option<String> {
    let tail = if error.stderr_tail.is_empty() { &error.stdout_tail } else { &error.stderr_tail };
    let line = tail.iter().rev().map(|line| excerpt(line)).find(|line| !line.trim().is_empty())?;
    let line = line.trim().to_owned();
    (!error.message.contains(&line)).then_some(line)
}

/// A place in a run as people are told of it: a gate by its node.
fn shown_path(plan: &Plan, path: &StepPath) -> String {
    let gate = Address::of(plan, path)
        .is_some_and(|at| matches!(at.step_of(plan).action, Action::Gate(_)));
    let node = path.loops.first().filter(|_| gate).map(|(node, _)| node.clone());
    node.unwrap_or_else(|| path.shown())
}

fn items(each: &EachRun) -> Items {
    let failed = each.iterations.iter().filter(|item| item.result == Some(ItemResult::Failure));
    Items { total: each.items.len(), current: each.index, failed: failed.count() }
}
