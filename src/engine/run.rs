//! The complete state of one run, as the engine sees it.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::record::{Record, StepStatus};
use crate::base::ids::{Attempt, RunId, StepPath, shown};
use crate::base::time::Time;
use crate::workflow::Plan;
use crate::workflow::plan::{AGENT_VISITS, Action, Block, Each, Isolation, Order, Step, Target};

/// Name of the copy of the workflow that a run makes when it starts.
pub(crate) const DEFINITION: &str = "workflow.yaml";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunStatus {
    Running,
    Completed,
    Failed,
    Cancelled,
    /// A step with `on_fail: block` failed: the user fixes the cause and resumes the run at that
    /// step.
    Blocked,
    /// Waits only for users. Only documents use this value; for the engine such a run is running.
    Paused,
}

/// The user's options for failures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Policy {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    #[serde(default)]
    pub max_retries: u32,
    #[serde(default)]
    pub retry_delay_ms: u64,
    /// Maximum visits of one step; after that, a `goto` cycle counts as endless.
    #[serde(default = "default_max_visits")]
    pub max_visits: u32,
    /// The same for a step in a cycle that asks an agent. `None`: no lower limit applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_agent_visits: Option<NonZeroU32>,
}

impl Policy {
    /// Limits visits to the value from the settings, or to the defaults if it is `None`.
    pub(crate) fn limit_visits(self, max_visits: Option<u32>) -> Policy {
        let usual = Policy::default();
        match max_visits {
            Some(max_visits) => Policy { max_visits, max_agent_visits: None, ..self },
            None => Policy {
                max_visits: usual.max_visits,
                max_agent_visits: usual.max_agent_visits,
                ..self
            },
        }
    }

    /// Returns the maximum number of visits of a step.
    pub(crate) fn most_visits(&self, step: &Step) -> u32 {
        let lower = self.max_agent_visits.filter(|_| step.in_agent_cycle);
        lower.map_or(self.max_visits, NonZeroU32::get)
    }
}

fn default_max_visits() -> u32 {
    10_000
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            on_error: None,
            max_retries: 0,
            retry_delay_ms: 0,
            max_visits: default_max_visits(),
            max_agent_visits: NonZeroU32::new(AGENT_VISITS),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnError {
    Stop,
    Continue,
    Interactive,
}

/// The inputs of a run, before its first event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub run_id: String,
    pub workflow_file: String,
    pub workflow_checksum: String,
    /// RUN_ROOT as `${run.root}` renders it: relative to the workspace if it is inside.
    pub run_root: String,
    /// The workspace of the run, if RUN_ROOT is outside and so does not imply it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    pub context: Map<String, Value>,
    pub policy: Policy,
    /// The only step to execute; `None` for the whole workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_step: Option<String>,
    /// Destination of the archive of the processed directory after success; empty for the run's
    /// directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// True if the steps are enqueued as tasks for the workers of a fleet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fleet: bool,
    /// The user's request, if the workflow's dialect supports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Box<Request>>,
    /// The copy of the workflow that the run follows, in its directory, if the author edited the
    /// workflow after the run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
}

impl Origin {
    /// Returns the file name of the run's copy of its workflow.
    pub(crate) fn definition(&self) -> &str {
        self.definition.as_deref().unwrap_or(DEFINITION)
    }
}

/// The purpose of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The issue or pull request that the run is about.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub issue_context: String,
    /// Present only if the workflow refers to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_branch: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub docs_dir: String,
    /// The bead of the run, as it was when the run began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bead: Option<Value>,
    /// The isolation of the work on the bead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// The beads of single steps, by their names in the workflow.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub beads: Map<String, Value>,
}

impl Run {
    /// Returns the bead of a step, and its isolation.
    pub(crate) fn bead_of(&self, step: &Step) -> Option<(&Value, Isolation)> {
        let request = self.origin.request.as_deref()?;
        match &step.bead {
            Some(own) => Some((request.beads.get(&own.name)?, own.isolation)),
            None => Some((request.bead.as_ref()?, request.isolation.unwrap_or_default())),
        }
    }
}

/// One execution of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub id: RunId,
    pub origin: Origin,
    pub started_at: Time,
    pub updated_at: Time,
    pub status: RunStatus,
    /// Failures that nothing handled.
    pub failed_steps: Vec<StepPath>,
    /// The reason why the run failed, if no step's record contains it.
    pub error: Option<String>,
    /// Time of the last resume, if the plan has limits that are measured from it.
    pub taken_up_at: Option<Time>,
    pub body: Body,
}

/// The state of a block: its cursor or its front, and a slot for each step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Body {
    pub cursor: usize,
    pub slots: Vec<Slot>,
    /// The active part of a graph, so that callers need not scan all slots.
    pub front: Option<Box<Front>>,
}

/// The part of a graph where something can happen. Derived from the slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Front {
    /// Steps that are ready to begin.
    pub ready: BTreeSet<usize>,
    /// The ready steps that need no room: their effects start no process.
    pub free: BTreeSet<usize>,
    /// Steps that are being executed. They are owed nothing until they end.
    pub out: BTreeSet<usize>,
    /// Other steps that have begun and not settled.
    pub open: BTreeSet<usize>,
    /// For each step, the number of its upstream steps that have not settled.
    pub waits: Vec<u32>,
    /// Number of steps that have not settled.
    pub left: usize,
}

/// The state of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slot {
    pub state: StepState,
    pub attempts: Attempt,
    pub visits: u32,
    /// Executions in this visit. Limits the retries.
    pub tries: u32,
    pub record: Option<Box<Record>>,
    pub each: Option<Box<EachRun>>,
    /// True if the step completed or began before, and its result stands if its inputs do not
    /// change.
    pub keep: bool,
    /// True if the step completed before the run was last resumed.
    pub before: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StepState {
    /// Not ready to begin.
    #[default]
    Pending,
    /// Ready to begin; an execution is owed.
    Ready,
    /// An attempt is out (the slot's newest, the only one whose end counts), or a loop is open.
    Running,
    /// An attempt failed; the next one waits.
    Resting { until: Time },
    /// The step failed, and a user decides what follows.
    Asking,
    /// A gate waits for a user.
    Waiting,
    /// This visit has an outcome.
    Settled,
}

/// An open or finished loop.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EachRun {
    pub items: Vec<Value>,
    pub index: usize,
    /// One for each item begun so far.
    pub iterations: Vec<Iteration>,
    /// The way control leaves the current item, once its lifecycle is applied.
    pub leaving: Option<Exit>,
    /// Highest attempt of nested steps in earlier visits of the loop; later attempts continue from
    /// it.
    pub attempts_before: Attempt,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Iteration {
    pub body: Body,
    /// True if an unhandled failure happened in the item.
    pub failed: bool,
    pub result: Option<ItemResult>,
    pub lifecycle: Option<Lifecycle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ItemResult {
    Success,
    Failure,
}

/// The move of an item's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lifecycle {
    pub result: ItemResult,
    pub action: String,
    pub from: String,
    pub to: String,
    pub action_applied: bool,
    pub error: Option<String>,
    /// True if a resumed item needs its file moved back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undo: bool,
}

/// The way control leaves an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Next,
    Jump(Target),
    Halt,
}

impl Body {
    pub(crate) fn new(block: &Block, attempts: Attempt) -> Self {
        let slot = Slot { attempts, ..Slot::default() };
        Body { cursor: 0, slots: vec![slot; block.steps.len()], front: None }
    }

    pub(crate) fn current(&self) -> Option<&Slot> {
        self.slots.get(self.cursor)
    }
}

impl Front {
    /// Returns the steps that have begun and not settled, in order.
    pub(crate) fn begun(&self) -> impl Iterator<Item = &usize> {
        self.out.union(&self.open)
    }
}

impl Run {
    /// Creates a run before its first step.
    pub(crate) fn new(plan: &Plan, id: RunId, origin: Origin, at: Time) -> Self {
        Run {
            id,
            origin,
            started_at: at,
            updated_at: at,
            status: RunStatus::Running,
            failed_steps: Vec::new(),
            error: None,
            taken_up_at: None,
            body: Body::new(plan.root(), Attempt::NONE),
        }
    }

    pub(crate) fn sequence(&self, loops: &[(usize, usize)]) -> Option<&Body> {
        loops.iter().try_fold(&self.body, |sequence, (step, item)| {
            Some(&sequence.slots.get(*step)?.each.as_ref()?.iterations.get(*item)?.body)
        })
    }

    pub(crate) fn sequence_mut(&mut self, loops: &[(usize, usize)]) -> Option<&mut Body> {
        loops.iter().try_fold(&mut self.body, |sequence, (step, item)| {
            Some(&mut sequence.slots.get_mut(*step)?.each.as_mut()?.iterations.get_mut(*item)?.body)
        })
    }

    pub(crate) fn slot(&self, at: &Address) -> Option<&Slot> {
        self.sequence(&at.loops)?.slots.get(at.step)
    }

    pub(crate) fn slot_mut(&mut self, at: &Address) -> Option<&mut Slot> {
        self.sequence_mut(&at.loops)?.slots.get_mut(at.step)
    }

    /// Returns the loop at an address.
    pub(crate) fn each_mut(&mut self, at: &Address) -> Option<&mut EachRun> {
        self.slot_mut(at)?.each.as_deref_mut()
    }

    /// Returns the position of control in a sequence: the innermost step at a cursor.
    pub(crate) fn position(&self) -> Address {
        self.inner_position(self.body.cursor)
    }

    /// Returns every position where a step is in progress or ready.
    pub(crate) fn positions(&self) -> Vec<Address> {
        match &self.body.front {
            None => vec![self.position()],
            Some(front) => {
                let steps = front.begun().chain(&front.ready);
                steps.map(|step| self.inner_position(*step)).collect()
            }
        }
    }

    /// Returns true if a sequence is past its last step, so that nothing is left to do.
    pub(crate) fn is_through(&self, plan: &Plan) -> bool {
        plan.root().order == Order::Sequence && self.slot(&self.position()).is_none()
    }

    /// Returns every slot with its address, loops before their contents.
    pub(crate) fn slots(&self) -> Vec<(Address, &Slot)> {
        fn walk<'a>(body: &'a Body, loops: &[(usize, usize)], into: &mut Vec<(Address, &'a Slot)>) {
            for (step, slot) in body.slots.iter().enumerate() {
                into.push((Address { loops: loops.to_vec(), step }, slot));
                let items = slot.each.iter().flat_map(|each| each.iterations.iter().enumerate());
                for (item, iteration) in items {
                    let inner = [loops, &[(step, item)]].concat();
                    walk(&iteration.body, &inner, into);
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.body, &[], &mut found);
        found
    }

    /// Returns the innermost step at a cursor, starting from a top-level step.
    pub(crate) fn inner_position(&self, step: usize) -> Address {
        let mut at = Address { loops: Vec::new(), step };
        let mut body = &self.body;
        while let Some(slot) = body.slots.get(at.step)
            && slot.state == StepState::Running
            && let Some(each) = &slot.each
            && let Some(iteration) = each.iterations.get(each.index)
        {
            at.loops.push((at.step, each.index));
            body = &iteration.body;
            at.step = body.cursor;
        }
        at
    }

    /// Returns the status to display.
    pub(crate) fn shown_status(&self) -> RunStatus {
        if self.status == RunStatus::Running && self.is_paused() {
            RunStatus::Paused
        } else {
            self.status
        }
    }

    /// Returns true if the step at `at` waits for a user.
    fn asks_at(&self, at: &Address) -> bool {
        self.slot(at).is_some_and(|slot| slot.state == StepState::Waiting)
    }

    /// Returns true if any step waits for a user.
    pub(crate) fn has_gate(&self) -> bool {
        match &self.body.front {
            Some(front) => front.open.iter().any(|step| self.asks_at(&self.inner_position(*step))),
            None => self.asks_at(&self.position()),
        }
    }

    /// Returns true if the run waits only for users.
    pub(crate) fn is_paused(&self) -> bool {
        let Some(front) = &self.body.front else { return self.asks_at(&self.position()) };
        let waits = |step: &usize| self.asks_at(&self.inner_position(*step));
        let nothing_else = front.ready.is_empty() && front.out.is_empty();
        nothing_else && !front.open.is_empty() && front.open.iter().all(waits)
    }
}

/// A step's position as indices: step and item of each enclosing loop, then the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub loops: Vec<(usize, usize)>,
    pub step: usize,
}

impl Address {
    /// Returns the address of a path in a plan.
    pub(crate) fn find(plan: &Plan, path: &StepPath) -> Option<Address> {
        let mut block = plan.root();
        let mut loops = Vec::new();
        for (name, item) in &path.loops {
            let (index, step) = block.find(name)?;
            loops.push((index, *item));
            block = step.inner()?;
        }
        Some(Address { loops, step: block.find(&path.step)?.0 })
    }

    /// Returns the index of the top-level step that this is or is in.
    pub(crate) fn top(&self) -> usize {
        self.loops.first().map_or(self.step, |(step, _)| *step)
    }

    /// Returns the address of a path in its text form.
    pub(crate) fn parse(plan: &Plan, path: &str) -> Option<Address> {
        Address::find(plan, &StepPath::parse(path)?)
    }

    /// Returns the step that a user names: by its path's text form, or as displayed. If a dot could
    /// belong to a name or precede an item, the text form wins.
    pub(crate) fn named(plan: &Plan, step: &str) -> Option<Address> {
        Address::parse(plan, step).or_else(|| Address::shown_as(plan.root(), &shown(step)))
    }

    fn shown_as(block: &Block, text: &str) -> Option<Address> {
        block.steps.iter().enumerate().find_map(|(index, step)| {
            let rest = text.strip_prefix(step.name.as_str())?;
            if rest.is_empty() {
                return Some(Address { loops: Vec::new(), step: index });
            }
            let (item, rest) = rest.strip_prefix('.')?.split_once('.')?;
            let mut inner = Address::shown_as(step.inner()?, rest)?;
            inner.loops.insert(0, (index, item.parse().ok()?));
            Some(inner)
        })
    }

    /// Returns the loops that contain this step, outermost first, each with the index of its item.
    pub(crate) fn around(&self) -> impl Iterator<Item = (Address, usize)> {
        self.loops.iter().enumerate().map(|(depth, (step, item))| {
            (Address { loops: self.loops[..depth].to_vec(), step: *step }, *item)
        })
    }

    pub(crate) fn block<'a>(&self, plan: &'a Plan) -> &'a Block {
        block_of(plan, &self.loops)
    }

    pub(crate) fn step_of<'a>(&self, plan: &'a Plan) -> &'a Step {
        &self.block(plan).steps[self.step]
    }

    pub(crate) fn path(&self, plan: &Plan) -> StepPath {
        let mut block = plan.root();
        let mut loops = Vec::new();
        for (step, item) in &self.loops {
            loops.push((block.steps[*step].name.clone(), *item));
            block = inner_of(&block.steps[*step]);
        }
        StepPath { loops, step: block.steps[self.step].name.clone() }
    }

    /// Returns the innermost loop that contains this step.
    pub(crate) fn parent(&self) -> Option<Address> {
        let (last, outer) = self.loops.split_last()?;
        Some(Address { loops: outer.to_vec(), step: last.0 })
    }
}

/// Returns the block that contains the steps inside `loops`.
pub(crate) fn block_of<'a>(plan: &'a Plan, loops: &[(usize, usize)]) -> &'a Block {
    loops.iter().fold(plan.root(), |block, (step, _)| inner_of(&block.steps[*step]))
}

/// Returns the block of a loop. Addresses only ever lead through loops.
fn inner_of(step: &Step) -> &Block {
    step.inner().expect("an address leads through loops only")
}

/// Returns the loop over items of a step. Panics if the step is not one.
pub(crate) fn each_of(step: &Step) -> &Each {
    match &step.action {
        Action::Each(each) => each,
        _ => unreachable!("only loops over items have items"),
    }
}

impl Slot {
    /// Returns true if the step is a loop or has rounds that have not ended.
    pub(crate) fn is_open(&self) -> bool {
        let ended = self.record.as_ref().is_some_and(|record| record.completed_at.is_some());
        self.each.is_some() && !ended
    }

    /// Returns the status to display.
    pub(crate) fn status(&self) -> StepStatus {
        match self.state {
            StepState::Pending | StepState::Ready | StepState::Resting { .. } => {
                StepStatus::Pending
            }
            StepState::Running => StepStatus::Running,
            StepState::Waiting => StepStatus::Paused,
            StepState::Asking | StepState::Settled => {
                self.record.as_ref().map_or(StepStatus::Pending, |record| record.status)
            }
        }
    }
}
