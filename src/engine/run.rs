//! The state of one run: everything the engine knows, and nothing it does not.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::record::{Record, StepStatus};
use crate::ids::{Attempt, RunId, StepPath, shown};
use crate::time::Time;
use crate::workflow::Plan;
use crate::workflow::plan::{AGENT_VISITS, Action, Block, Each, Isolation, Step, Target};

/// The copy of its workflow that a run makes when it begins.
pub const DEFINITION: &str = "workflow.yaml";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    Running,
    Completed,
    Failed,
    Cancelled,
    /// A step failed that says what is to be done about it: look, mend, and take the run up there.
    Blocked,
    /// It waits for people alone. Documents say so; to the engine such a run is running.
    Paused,
}

/// What the person who started the run decided about failures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    #[serde(default)]
    pub max_retries: u32,
    #[serde(default)]
    pub retry_delay_ms: u64,
    /// How often one step may be visited before a `goto` cycle is taken to be endless.
    #[serde(default = "default_max_visits")]
    pub max_visits: u32,
    /// The same for a step of a cycle that asks an agent. `None`: no lower limit applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_agent_visits: Option<NonZeroU32>,
}

impl Policy {
    /// Limits visits to what the settings say, or to the defaults if they say nothing.
    pub fn limit_visits(self, max_visits: Option<u32>) -> Policy {
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

    /// Returns how often a step may be visited.
    pub fn most_visits(&self, step: &Step) -> u32 {
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
pub enum OnError {
    Stop,
    Continue,
    Interactive,
}

/// What a run is made of before its first event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    pub run_id: String,
    pub workflow_file: String,
    pub workflow_checksum: String,
    /// RUN_ROOT as `${run.root}` gives it: relative to the workspace where it lies inside.
    pub run_root: String,
    /// The workspace it was begun in, where RUN_ROOT does not lie in it and so does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    pub context: Map<String, Value>,
    pub policy: Policy,
    /// The one step to execute, where not the whole workflow is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_step: Option<String>,
    /// Where the processed directory is archived after success; empty for the run's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// Its steps go out as tasks to the workers of a fleet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fleet: bool,
    /// What whoever started the run asked for, where its dialect has a place for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Box<Request>>,
    /// The copy of the workflow that the run follows, in its directory, where its author edited
    /// the workflow after the run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
}

impl Origin {
    /// The name of the run's copy of its workflow.
    pub fn definition(&self) -> &str {
        self.definition.as_deref().unwrap_or(DEFINITION)
    }
}

/// What a run was started for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The issue or pull request it is about.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub issue_context: String,
    /// Known where the workflow refers to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_branch: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub docs_dir: String,
    /// The work item, as it was when the run began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bead: Option<Value>,
    /// Where it is worked on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// The work items of single steps, by how the workflow names them.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub beads: Map<String, Value>,
}

impl Run {
    /// The work item of a step, and where it is worked on.
    pub fn bead_of(&self, step: &Step) -> Option<(&Value, Isolation)> {
        let request = self.origin.request.as_deref()?;
        match &step.bead {
            Some(own) => Some((request.beads.get(&own.name)?, own.isolation)),
            None => Some((request.bead.as_ref()?, request.isolation.unwrap_or_default())),
        }
    }
}

/// One execution of a plan.
#[derive(Clone, Debug)]
pub struct Run {
    pub id: RunId,
    pub origin: Origin,
    pub started_at: Time,
    pub updated_at: Time,
    pub status: RunStatus,
    /// Failures that nothing handled.
    pub failed_steps: Vec<StepPath>,
    /// Why the run failed, where no step's record says it.
    pub error: Option<String>,
    /// When it was last taken up, where its steps have limits that count from there.
    pub taken_up_at: Option<Time>,
    pub body: Body,
}

/// The state of a block: its cursor or its front, and a slot for each of its steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    pub cursor: usize,
    pub slots: Vec<Slot>,
    /// Where a graph is, for those who would otherwise look at all of its slots.
    pub front: Option<Box<Front>>,
}

/// The part of a graph where something can happen. It follows from the slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Front {
    /// Steps whose turn has come.
    pub ready: BTreeSet<usize>,
    /// Those of them that need no room: what they are owed takes no process.
    pub free: BTreeSet<usize>,
    /// Steps that are being executed: until one of them ends, they are owed nothing.
    pub out: BTreeSet<usize>,
    /// Other steps that have begun and not settled.
    pub open: BTreeSet<usize>,
    /// How many of those before each step have not settled.
    pub waits: Vec<u32>,
    /// How many steps have not settled.
    pub left: usize,
}

/// Where one step stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slot {
    pub state: StepState,
    pub attempts: Attempt,
    pub visits: u32,
    /// Executions in this visit: what retries are counted by.
    pub tries: u32,
    pub record: Option<Box<Record>>,
    pub each: Option<Box<EachRun>>,
    /// It completed before, or had begun, and that still stands if it would be given the same
    /// again.
    pub keep: bool,
    /// It completed before the run was last resumed.
    pub before: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepState {
    /// Its turn has not come.
    #[default]
    Pending,
    /// Its turn has come; an execution is owed.
    Ready,
    /// An attempt is out (the slot's newest, the only one whose end counts), or a loop is open.
    Running,
    /// An attempt failed; the next one waits.
    Resting { until: Time },
    /// It failed, and a person is to say what follows.
    Asking,
    /// A person is asked.
    Waiting,
    /// This visit has an outcome.
    Settled,
}

/// An open or finished loop.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EachRun {
    pub items: Vec<Value>,
    pub index: usize,
    /// One for each item begun so far.
    pub iterations: Vec<Iteration>,
    /// How control leaves the current item, once its lifecycle is applied.
    pub leaving: Option<Exit>,
    /// Attempts of nested steps in earlier visits of the loop; later ones count on from here.
    pub attempts_before: Attempt,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Iteration {
    pub body: Body,
    /// A failure that nothing handled happened in it.
    pub failed: bool,
    pub result: Option<ItemResult>,
    pub lifecycle: Option<Lifecycle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemResult {
    Success,
    Failure,
}

/// What became of an item's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lifecycle {
    pub result: ItemResult,
    pub action: String,
    pub from: String,
    pub to: String,
    pub action_applied: bool,
    pub error: Option<String>,
    /// A resumed item wants its file back where it was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undo: bool,
}

/// How control leaves an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Next,
    Jump(Target),
    Halt,
}

impl Body {
    pub fn new(block: &Block, attempts: Attempt) -> Self {
        let slot = Slot { attempts, ..Slot::default() };
        Body { cursor: 0, slots: vec![slot; block.steps.len()], front: None }
    }

    pub fn current(&self) -> Option<&Slot> {
        self.slots.get(self.cursor)
    }
}

impl Front {
    /// Steps that have begun and not settled, in their order.
    pub fn begun(&self) -> impl Iterator<Item = &usize> {
        self.out.union(&self.open)
    }
}

impl Run {
    /// A run before its first step.
    pub fn new(plan: &Plan, id: RunId, origin: Origin, at: Time) -> Self {
        Run {
            id,
            origin,
            started_at: at,
            updated_at: at,
            status: RunStatus::Running,
            failed_steps: Vec::new(),
            error: None,
            taken_up_at: None,
            body: Body::new(&plan.root, 0),
        }
    }

    pub fn sequence(&self, loops: &[(usize, usize)]) -> Option<&Body> {
        loops.iter().try_fold(&self.body, |sequence, (step, item)| {
            Some(&sequence.slots.get(*step)?.each.as_ref()?.iterations.get(*item)?.body)
        })
    }

    pub fn sequence_mut(&mut self, loops: &[(usize, usize)]) -> Option<&mut Body> {
        loops.iter().try_fold(&mut self.body, |sequence, (step, item)| {
            Some(&mut sequence.slots.get_mut(*step)?.each.as_mut()?.iterations.get_mut(*item)?.body)
        })
    }

    pub fn slot(&self, at: &Address) -> Option<&Slot> {
        self.sequence(&at.loops)?.slots.get(at.step)
    }

    pub fn slot_mut(&mut self, at: &Address) -> Option<&mut Slot> {
        self.sequence_mut(&at.loops)?.slots.get_mut(at.step)
    }

    /// The open loop at an address.
    pub fn each_mut(&mut self, at: &Address) -> Option<&mut EachRun> {
        self.slot_mut(at)?.each.as_deref_mut()
    }

    /// Where control is in a sequence: the innermost step at a cursor.
    pub fn position(&self) -> Address {
        self.inner_position(self.body.cursor)
    }

    /// Every place where something goes on or is to begin.
    pub fn positions(&self) -> Vec<Address> {
        match &self.body.front {
            None => vec![self.position()],
            Some(front) => {
                let steps = front.begun().chain(&front.ready);
                steps.map(|step| self.inner_position(*step)).collect()
            }
        }
    }

    /// Whether every step has had its turn, so that there is nothing to go on with.
    pub fn is_through(&self, plan: &Plan) -> bool {
        plan.root.edges.is_none() && self.slot(&self.position()).is_none()
    }

    /// Every slot with its address, loops before what is in them.
    pub fn slots(&self) -> Vec<(Address, &Slot)> {
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

    /// The innermost step at a cursor, from a step of the workflow on.
    pub fn inner_position(&self, step: usize) -> Address {
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

    /// What the world is told of the run.
    pub fn shown_status(&self) -> RunStatus {
        if self.status == RunStatus::Running && self.is_paused() {
            RunStatus::Paused
        } else {
            self.status
        }
    }

    /// Whether a person is asked at this place.
    fn asks_at(&self, at: &Address) -> bool {
        self.slot(at).is_some_and(|slot| slot.state == StepState::Waiting)
    }

    /// Whether a person is asked something.
    pub fn has_gate(&self) -> bool {
        match &self.body.front {
            Some(front) => front.open.iter().any(|step| self.asks_at(&self.inner_position(*step))),
            None => self.asks_at(&self.position()),
        }
    }

    /// Whether it waits for people alone.
    pub fn is_paused(&self) -> bool {
        let Some(front) = &self.body.front else { return self.asks_at(&self.position()) };
        let waits = |step: &usize| self.asks_at(&self.inner_position(*step));
        let nothing_else = front.ready.is_empty() && front.out.is_empty();
        nothing_else && !front.open.is_empty() && front.open.iter().all(waits)
    }
}

/// A step's place as numbers: for each loop the step and the item, then the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub loops: Vec<(usize, usize)>,
    pub step: usize,
}

impl Address {
    /// The address that a path's names have in a plan.
    pub fn of(plan: &Plan, path: &StepPath) -> Option<Address> {
        let mut block = &plan.root;
        let mut loops = Vec::new();
        for (name, item) in &path.loops {
            let (index, step) = block.find(name)?;
            loops.push((index, *item));
            block = step.inner()?;
        }
        Some(Address { loops, step: block.find(&path.step)?.0 })
    }

    /// The step of the workflow that it is, or is in.
    pub fn top(&self) -> usize {
        self.loops.first().map_or(self.step, |(step, _)| *step)
    }

    /// The same, from a path's text form.
    pub fn parse(plan: &Plan, path: &str) -> Option<Address> {
        Address::of(plan, &StepPath::parse(path)?)
    }

    /// The step that a person means: by its path's text form, or as it was shown to them. Where a
    /// dot could be one of a name or stand before an item, the text form decides.
    pub fn named(plan: &Plan, step: &str) -> Option<Address> {
        Address::parse(plan, step).or_else(|| Address::shown_as(&plan.root, &shown(step)))
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

    /// The loops this step is in, from the outside in, each with the item that is meant.
    pub fn around(&self) -> impl Iterator<Item = (Address, usize)> {
        self.loops.iter().enumerate().map(|(depth, (step, item))| {
            (Address { loops: self.loops[..depth].to_vec(), step: *step }, *item)
        })
    }

    pub fn block<'a>(&self, plan: &'a Plan) -> &'a Block {
        block_of(plan, &self.loops)
    }

    pub fn step_of<'a>(&self, plan: &'a Plan) -> &'a Step {
        &self.block(plan).steps[self.step]
    }

    pub fn path(&self, plan: &Plan) -> StepPath {
        let mut block = &plan.root;
        let mut loops = Vec::new();
        for (step, item) in &self.loops {
            loops.push((block.steps[*step].name.clone(), *item));
            block = inner_of(&block.steps[*step]);
        }
        StepPath { loops, step: block.steps[self.step].name.clone() }
    }

    /// The loop this step is in.
    pub fn parent(&self) -> Option<Address> {
        let (last, outer) = self.loops.split_last()?;
        Some(Address { loops: outer.to_vec(), step: last.0 })
    }
}

/// The block that the steps inside `loops` belong to.
pub fn block_of<'a>(plan: &'a Plan, loops: &[(usize, usize)]) -> &'a Block {
    loops.iter().fold(&plan.root, |block, (step, _)| inner_of(&block.steps[*step]))
}

/// The block of a step that is a loop; addresses only ever lead through loops.
fn inner_of(step: &Step) -> &Block {
    step.inner().expect("an address leads through loops only")
}

/// The loop over items of a step that is one.
pub fn each_of(step: &Step) -> &Each {
    match &step.action {
        Action::Each(each) => each,
        _ => unreachable!("only loops over items have items"),
    }
}

impl Slot {
    /// Whether it is a loop or has rounds, and they are not over.
    pub fn is_open(&self) -> bool {
        let ended = self.record.as_ref().is_some_and(|record| record.completed_at.is_some());
        self.each.is_some() && !ended
    }

    /// What the world is told of this slot.
    pub fn status(&self) -> StepStatus {
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
