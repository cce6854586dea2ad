//! `state.json`: a run as one document, for users, for `jq`, and to resume from.
//!
//! Writing converts the run's state directly to text. Reading checks every name against the plan,
//! because a user may have edited the file while the run was stopped.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::base::ids::{Attempt, RunId, StepPath};
use crate::base::json;
use crate::base::time::Time;
use crate::engine::record::{Record, StepStatus, to_second};
use crate::engine::run::{
    Body, EachRun, Exit, ItemResult, Iteration, Lifecycle, Origin, Policy, Request, Run, RunStatus,
    Slot, StepState,
};
use crate::engine::survey;
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Block, Each, Order, Rounds, Target};

pub(crate) const SCHEMA_VERSION: &str = "1.1.1";

/// Serializes the document; `journal_seq` is the last event that it contains, and `journal_term` is
/// the term of that event's journal.
pub(crate) fn encode(plan: &Plan, run: &Run, journal_seq: u64, journal_term: u32) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(&Document { plan, run, journal_seq, journal_term })
        .expect("a run is always JSON");
    text.push(b'\n');
    text
}

struct Document<'a> {
    plan: &'a Plan,
    run: &'a Run,
    journal_seq: u64,
    journal_term: u32,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Document { plan, run, journal_seq, journal_term } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("schema_version", SCHEMA_VERSION)?;
        map.serialize_entry("run_id", run.id.as_str())?;
        map.serialize_entry("workflow_file", &run.origin.workflow_file)?;
        map.serialize_entry("workflow_checksum", &run.origin.workflow_checksum)?;
        map.serialize_entry("started_at", &run.started_at.to_second())?;
        map.serialize_entry("updated_at", &run.updated_at.to_second())?;
        map.serialize_entry("status", &run.shown_status())?;
        if let Some(error) = &run.error {
            map.serialize_entry("error", error)?;
        }
        let failed: Vec<_> = run.failed_steps.iter().map(StepPath::to_string).collect();
        map.serialize_entry("failed_steps", &failed)?;
        map.serialize_entry("context", &run.origin.context)?;
        if plan.root().order == Order::Sequence {
            map.serialize_entry("cursor", &cursor_name(plan.root(), &run.body))?;
        }
        map.serialize_entry("steps", &Steps { block: plan.root(), body: &run.body, of: None })?;
        map.serialize_entry("for_each", &Loops { plan, run })?;
        map.serialize_entry("run_root", &run.origin.run_root)?;
        if let Some(workspace) = &run.origin.workspace {
            map.serialize_entry("workspace", workspace)?;
        }
        map.serialize_entry("policy", &run.origin.policy)?;
        if let Some(step) = &run.origin.only_step {
            map.serialize_entry("only_step", step)?;
        }
        if let Some(destination) = &run.origin.archive {
            map.serialize_entry("archive", destination)?;
        }
        if run.origin.fleet {
            map.serialize_entry("fleet", &true)?;
        }
        if let Some(request) = &run.origin.request {
            map.serialize_entry("request", request)?;
        }
        if let Some(definition) = &run.origin.definition {
            map.serialize_entry("definition", definition)?;
        }
        if let Some(at) = &run.taken_up_at {
            map.serialize_entry("taken_up_at", at)?;
        }
        map.serialize_entry("journal_seq", journal_seq)?;
        if *journal_term > 1 {
            map.serialize_entry("journal_term", journal_term)?;
        }
        map.end()
    }
}

fn cursor_name<'a>(block: &'a Block, body: &Body) -> Option<&'a str> {
    block.steps.get(body.cursor).map(|step| step.name.as_str())
}

/// The steps of a block that were reached, by name.
struct Steps<'a> {
    block: &'a Block,
    body: &'a Body,
    of: Option<&'a Iteration>,
}

impl Serialize for Steps<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (step, slot) in self.block.steps.iter().zip(&self.body.slots) {
            match (&step.action, &slot.each) {
                (Action::Each(each), Some(run)) => {
                    map.serialize_entry(&step.name, &Items { each, run })?;
                }
                (Action::Rounds(rounds), Some(run)) => {
                    map.serialize_entry(&step.name, &RoundsDoc::of(rounds, slot, run))?;
                }
                // A step that never ran is absent; the cursor states the next one.
                _ if slot.record.is_some() => {
                    map.serialize_entry(&step.name, &SlotDoc::of(slot))?;
                }
                _ => {}
            }
        }
        if let Some(lifecycle) = self.of.and_then(|iteration| iteration.lifecycle.as_ref()) {
            map.serialize_entry("lifecycle", lifecycle)?;
        }
        map.end()
    }
}

struct Items<'a> {
    each: &'a Each,
    run: &'a EachRun,
}

impl Serialize for Items<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.run.iterations.len()))?;
        for iteration in &self.run.iterations {
            let steps =
                Steps { block: &self.each.block, body: &iteration.body, of: Some(iteration) };
            list.serialize_element(&steps)?;
        }
        list.end()
    }
}

/// A step of rounds: its result, and all of its rounds.
#[derive(Serialize)]
struct RoundsDoc<'a> {
    #[serde(flatten)]
    slot: SlotDoc<'a>,
    /// Current step of the last round.
    cursor: Option<&'a str>,
    #[serde(skip_serializing_if = "Attempt::is_none")]
    attempts_before: Attempt,
    rounds: Vec<Steps<'a>>,
}

impl<'a> RoundsDoc<'a> {
    fn of(rounds: &'a Rounds, slot: &'a Slot, run: &'a EachRun) -> Self {
        let steps = |round: &'a Iteration| Steps {
            block: &rounds.block,
            body: &round.body,
            of: Some(round),
        };
        let last = run.iterations.get(run.index);
        let current = last.and_then(|round| round.body.current());
        let mut slot = SlotDoc::of(slot);
        if let Some(current) = current.filter(|_| slot.record.status == StepStatus::Running) {
            if current.state == StepState::Waiting {
                slot.record.to_mut().status = StepStatus::Paused;
            } else if is_halted(current) {
                // The run ended inside this step: nothing of it runs.
                slot.record.to_mut().status = StepStatus::Failed;
            }
        }
        RoundsDoc {
            slot,
            cursor: last.and_then(|round| cursor_name(&rounds.block, &round.body)),
            attempts_before: run.attempts_before,
            rounds: run.iterations.iter().map(steps).collect(),
        }
    }
}

/// Returns true if a run can have ended at this step or inside it. While a run continues, the step
/// at a cursor has not settled.
fn is_halted(slot: &Slot) -> bool {
    let each = slot.each.as_ref().filter(|_| slot.state == StepState::Running);
    match each.and_then(|each| each.iterations.get(each.index)?.body.current()) {
        Some(current) => is_halted(current),
        None => slot.state == StepState::Settled && slot.status() == StepStatus::Failed,
    }
}

/// A record, with the additional state of its slot.
#[derive(Serialize)]
struct SlotDoc<'a> {
    #[serde(flatten)]
    record: Cow<'a, Record>,
    #[serde(flatten)]
    extra: SlotExtra,
}

#[derive(Default, Serialize, Deserialize)]
struct SlotExtra {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_at: Option<Time>,
    /// `None` for the usual value: 0 before a step ran, 1 after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tries: Option<u32>,
    #[serde(default, skip_serializing_if = "is_small")]
    visits: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    asking: bool,
    /// True if the step completed before the run was last resumed. If it is pending, that result
    /// may still be valid.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    completed_before: bool,
    /// True if the step had started before and may continue from its current state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    begun_before: bool,
}

/// Returns true for at most one visit, which is not written.
fn is_small(number: &u32) -> bool {
    *number <= 1
}

impl<'a> SlotDoc<'a> {
    fn of(slot: &'a Slot) -> Self {
        let status = slot.status();
        let record = match slot.record.as_deref() {
            Some(record) if record.status == status => Cow::Borrowed(record),
            Some(record) => Cow::Owned(Record { status, ..record.clone() }),
            None => Cow::Owned(Record { status, ..Record::default() }),
        };
        let retry_at = match slot.state {
            StepState::Resting { until } => Some(until),
            _ => None,
        };
        let asking = slot.state == StepState::Asking;
        let tries = (slot.tries != usual_tries(status)).then_some(slot.tries);
        let (visits, begun_before) = (slot.visits, slot.keep && slot.is_open());
        let completed_before = slot.before || (slot.keep && !begun_before);
        let extra = SlotExtra { retry_at, tries, visits, asking, completed_before, begun_before };
        SlotDoc { record, extra }
    }
}

fn usual_tries(status: StepStatus) -> u32 {
    u32::from(!matches!(status, StepStatus::Pending | StepStatus::Skipped))
}

/// All loops of a run, by path.
struct Loops<'a> {
    plan: &'a Plan,
    run: &'a Run,
}

impl Serialize for Loops<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        write_loops(&mut map, self.run.status, self.plan.root(), &self.run.body, "")?;
        map.end()
    }
}

fn write_loops<M: SerializeMap>(
    map: &mut M,
    run_status: RunStatus,
    block: &Block,
    body: &Body,
    prefix: &str,
) -> Result<(), M::Error> {
    for (step, slot) in block.steps.iter().zip(&body.slots) {
        let (Action::Each(each), Some(run)) = (&step.action, &slot.each) else { continue };
        let path = format!("{prefix}{}", StepPath::top(&step.name));
        let mut doc = LoopDoc::of(each, slot, run);
        if doc.status == StepStatus::Running && run_status != RunStatus::Running {
            // The run ended inside this loop: nothing of it runs.
            doc.status = StepStatus::Failed;
        }
        map.serialize_entry(&path, &doc)?;
        for (index, iteration) in run.iterations.iter().enumerate() {
            let prefix = format!("{path}.{index}.");
            write_loops(map, run_status, &each.block, &iteration.body, &prefix)?;
        }
    }
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct LoopDoc<'a> {
    items: Cow<'a, [Value]>,
    completed_indices: Vec<usize>,
    #[serde(default)]
    failed_indices: Vec<usize>,
    current_index: usize,
    status: StepStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "to_second")]
    started_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "to_second")]
    completed_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    #[serde(default)]
    attempt: Attempt,
    /// Current step of the current item.
    #[serde(default)]
    cursor: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    current_failed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leaving: Option<ExitDoc>,
    #[serde(default, skip_serializing_if = "Attempt::is_none")]
    attempts_before: Attempt,
    #[serde(default, skip_serializing_if = "is_small")]
    visits: u32,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ExitDoc {
    Next,
    End,
    Halt,
    Goto { out: usize, step: usize },
}

impl<'a> LoopDoc<'a> {
    fn of(each: &'a Each, slot: &Slot, run: &'a EachRun) -> Self {
        let with = |wanted: ItemResult| {
            let ended = run.iterations.iter().enumerate();
            ended.filter(|(_, item)| item.result == Some(wanted)).map(|(index, _)| index).collect()
        };
        let record = slot.record.as_deref().cloned().unwrap_or_default();
        let current = run.iterations.get(run.index);
        LoopDoc {
            items: Cow::Borrowed(&run.items),
            completed_indices: with(ItemResult::Success),
            failed_indices: with(ItemResult::Failure),
            current_index: run.index,
            status: slot.status(),
            exit_code: record.exit_code,
            started_at: record.started_at,
            completed_at: record.completed_at,
            duration_ms: record.duration_ms,
            attempt: slot.attempts,
            cursor: current
                .and_then(|item| cursor_name(&each.block, &item.body))
                .map(Cow::Borrowed),
            current_failed: current.is_some_and(|item| item.failed),
            leaving: run.leaving.map(|exit| match exit {
                Exit::Next => ExitDoc::Next,
                Exit::Halt => ExitDoc::Halt,
                Exit::Jump(Target::End) => ExitDoc::End,
                Exit::Jump(Target::Step { out, step }) => ExitDoc::Goto { out, step },
            }),
            attempts_before: run.attempts_before,
            visits: slot.visits,
        }
    }
}

/// A deserialized run, and the last event that it contains.
pub(crate) struct Loaded {
    pub run: Run,
    pub journal_seq: u64,
    pub journal_term: u32,
}

/// Deserializes the document. The error describes the problem with it.
pub(crate) fn decode(plan: &Plan, bytes: &[u8]) -> Result<Loaded, String> {
    #[derive(Deserialize)]
    struct Head {
        schema_version: String,
        run_id: String,
        workflow_file: String,
        workflow_checksum: String,
        started_at: Time,
        updated_at: Time,
        status: RunStatus,
        #[serde(default)]
        error: Option<String>,
        #[serde(default)]
        failed_steps: Vec<String>,
        #[serde(default)]
        context: Map<String, Value>,
        #[serde(default)]
        cursor: Option<String>,
        #[serde(default)]
        steps: Map<String, Value>,
        #[serde(default)]
        for_each: Map<String, Value>,
        run_root: String,
        #[serde(default)]
        workspace: Option<String>,
        #[serde(default)]
        policy: Policy,
        #[serde(default)]
        only_step: Option<String>,
        #[serde(default)]
        archive: Option<String>,
        #[serde(default)]
        fleet: bool,
        #[serde(default)]
        request: Option<Box<Request>>,
        #[serde(default)]
        definition: Option<String>,
        #[serde(default)]
        taken_up_at: Option<Time>,
        journal_seq: u64,
        #[serde(default = "first_term")]
        journal_term: u32,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if head.schema_version != SCHEMA_VERSION {
        return Err(format!(
            "its schema_version is `{}`, not `{SCHEMA_VERSION}`",
            head.schema_version
        ));
    }
    if head.journal_seq > super::journal::LAST_SEQ {
        return Err(format!("its journal_seq is {}, which no run gets to", head.journal_seq));
    }
    let sequential = plan.root().order == Order::Sequence;
    if sequential && head.status == RunStatus::Running && head.cursor.is_none() {
        return Err("it is `running`, but its `cursor` names no step".to_owned());
    }
    let id = RunId::parse(&head.run_id).ok_or(format!("`{}` is no run id", head.run_id))?;
    let origin = Origin {
        run_id: head.run_id,
        workflow_file: head.workflow_file,
        workflow_checksum: head.workflow_checksum,
        run_root: head.run_root,
        workspace: head.workspace,
        context: head.context,
        policy: head.policy,
        only_step: head.only_step,
        archive: head.archive,
        fleet: head.fleet,
        request: head.request,
        definition: head.definition,
    };
    let mut run = Run::new(plan, id, origin, head.started_at);
    run.updated_at = head.updated_at;
    run.taken_up_at = head.taken_up_at;
    run.status = match head.status {
        RunStatus::Paused => RunStatus::Running,
        status => status,
    };
    run.error = head.error;
    for failed in &head.failed_steps {
        let path = StepPath::parse(failed).ok_or(format!("`{failed}` is no step"))?;
        run.failed_steps.push(path);
    }
    let reader = Reader { loops: &head.for_each };
    run.body =
        reader.sequence(plan.root(), &head.steps, head.cursor.as_deref(), "", Attempt::NONE)?;
    match (run.status, &plan.root().order) {
        (_, Order::Graph(_)) => {
            for slot in &mut run.body.slots {
                make_round_ready(slot);
            }
            survey(plan.root(), &mut run.body);
        }
        (RunStatus::Failed | RunStatus::Cancelled | RunStatus::Blocked, Order::Sequence) => {
            reopen_halted(&mut run.body);
        }
        (RunStatus::Completed, Order::Sequence) => {}
        (RunStatus::Running | RunStatus::Paused, Order::Sequence) => make_ready(&mut run.body),
    }
    Ok(Loaded { run, journal_seq: head.journal_seq, journal_term: head.journal_term })
}

fn first_term() -> u32 {
    1
}

/// Reopens the loop at the cursor of a failed run: if it has items left, the run halted there.
fn reopen_halted(body: &mut Body) {
    let cursor = body.cursor;
    let Some(slot) = body.slots.get_mut(cursor) else { return };
    let Some(each) = slot.each.as_deref_mut() else { return };
    if let Some(item) = each.iterations.get_mut(each.index) {
        slot.state = StepState::Running;
        reopen_halted(&mut item.body);
    }
}

/// Makes the step at the cursor ready. While a run continues, that step is never settled between
/// two events; one that looks settled is about to be visited again.
fn make_ready(body: &mut Body) {
    let cursor = body.cursor;
    let Some(slot) = body.slots.get_mut(cursor) else { return };
    match (&mut slot.state, slot.each.as_deref_mut()) {
        (StepState::Running, Some(each)) if each.leaving.is_none() => {
            if let Some(item) = each.iterations.get_mut(each.index) {
                make_ready(&mut item.body);
            }
        }
        (state @ (StepState::Settled | StepState::Pending), _) => {
            *state = StepState::Ready;
            // A step that has not run on its first visit is absent from the document, with its
            // count.
            slot.visits = slot.visits.max(1);
        }
        _ => {}
    }
}

/// Like [`make_ready`], for the last round of an open step of rounds.
fn make_round_ready(slot: &mut Slot) {
    let open = slot.state == StepState::Running || (slot.keep && slot.is_open());
    let Some(each) = slot.each.as_deref_mut().filter(|_| open) else { return };
    if let Some(round) = each.iterations.get_mut(each.index) {
        make_ready(&mut round.body);
    }
}

struct Reader<'a> {
    loops: &'a Map<String, Value>,
}

impl Reader<'_> {
    fn sequence(
        &self,
        block: &Block,
        steps: &Map<String, Value>,
        cursor: Option<&str>,
        prefix: &str,
        attempts: Attempt,
    ) -> Result<Body, String> {
        let mut body = Body::new(block, attempts);
        body.cursor = match cursor {
            None => block.steps.len(),
            Some(name) => block.find(name).ok_or(format!("the workflow has no step `{name}`"))?.0,
        };
        for (name, value) in steps {
            if name == "lifecycle" && !prefix.is_empty() && block.find(name).is_none() {
                continue;
            }
            let (index, step) =
                block.find(name).ok_or(format!("the workflow has no step `{name}`"))?;
            let path = format!("{prefix}{}", StepPath::top(name));
            body.slots[index] = match (&step.action, value) {
                (Action::Each(each), Value::Array(items)) => self.open_loop(each, items, &path)?,
                (Action::Rounds(rounds), _) => self.rounds(rounds, value, &path)?,
                _ => read_slot(value).map_err(|error| format!("step `{path}`: {error}"))?,
            };
        }
        Ok(body)
    }

    fn rounds(&self, rounds: &Rounds, value: &Value, path: &str) -> Result<Slot, String> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Doc {
            cursor: Option<String>,
            attempts_before: Attempt,
            rounds: Option<Vec<Map<String, Value>>>,
        }
        let wrong = |error: String| format!("step `{path}`: {error}");
        let mut slot = read_slot(value).map_err(wrong)?;
        let doc: Doc = json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        let Some(list) = doc.rounds else { return Ok(slot) };
        if slot.state == StepState::Waiting {
            slot.state = StepState::Running;
        }
        // A loop of steps that is over has no current round.
        let over = doc.cursor.is_none();
        let index = if over { list.len() } else { list.len().saturating_sub(1) };
        let mut iterations = Vec::with_capacity(list.len());
        for (number, steps) in list.iter().enumerate() {
            let cursor = doc.cursor.as_deref().filter(|_| number == index);
            let prefix = format!("{path}.{number}.");
            let before = doc.attempts_before;
            let body = self.sequence(&rounds.block, steps, cursor, &prefix, before)?;
            iterations.push(Iteration { body, failed: false, result: None, lifecycle: None });
        }
        let attempts_before = doc.attempts_before;
        let each = EachRun { index, iterations, attempts_before, ..EachRun::default() };
        slot.each = Some(Box::new(each));
        Ok(slot)
    }

    fn open_loop(&self, each: &Each, items: &[Value], path: &str) -> Result<Slot, String> {
        let doc = self.loops.get(path).ok_or(format!("`for_each` has no `{path}`"))?;
        let doc: LoopDoc =
            json::from_value(doc).map_err(|error| format!("loop `{path}`: {error}"))?;
        let completed: HashSet<_> = doc.completed_indices.iter().copied().collect();
        let failed_items: HashSet<_> = doc.failed_indices.iter().copied().collect();
        let mut iterations = Vec::with_capacity(items.len());
        for (index, value) in items.iter().enumerate() {
            let steps = value.as_object().ok_or(format!("`{path}.{index}` is no object"))?;
            let current = index == doc.current_index;
            let cursor = if current { doc.cursor.as_deref() } else { None };
            let prefix = format!("{path}.{index}.");
            let body = self.sequence(&each.block, steps, cursor, &prefix, doc.attempts_before)?;
            let lifecycle = steps
                .get("lifecycle")
                .filter(|_| each.block.find("lifecycle").is_none())
                .map(Lifecycle::deserialize)
                .transpose()
                .map_err(|error| format!("lifecycle of `{path}.{index}`: {error}"))?;
            let result = if completed.contains(&index) {
                Some(ItemResult::Success)
            } else if failed_items.contains(&index) {
                Some(ItemResult::Failure)
            } else {
                None
            };
            let failed = result == Some(ItemResult::Failure) || (current && doc.current_failed);
            iterations.push(Iteration { body, failed, result, lifecycle });
        }
        Ok(loop_slot(doc, iterations))
    }
}

fn loop_slot(doc: LoopDoc, iterations: Vec<Iteration>) -> Slot {
    let record = Record {
        status: doc.status,
        exit_code: doc.exit_code,
        started_at: doc.started_at,
        completed_at: doc.completed_at,
        duration_ms: doc.duration_ms,
        attempt: doc.attempt,
        ..Record::default()
    };
    let leaving = doc.leaving.map(|exit| match exit {
        ExitDoc::Next => Exit::Next,
        ExitDoc::Halt => Exit::Halt,
        ExitDoc::End => Exit::Jump(Target::End),
        ExitDoc::Goto { out, step } => Exit::Jump(Target::Step { out, step }),
    });
    let each = EachRun {
        items: doc.items.into_owned(),
        index: doc.current_index,
        iterations,
        leaving,
        attempts_before: doc.attempts_before,
    };
    Slot {
        state: match doc.status {
            StepStatus::Running => StepState::Running,
            StepStatus::Pending => StepState::Ready,
            _ => StepState::Settled,
        },
        attempts: doc.attempt,
        visits: doc.visits.max(1),
        tries: 0,
        record: Some(Box::new(record)),
        each: Some(Box::new(each)),
        keep: false,
        before: false,
    }
}

fn read_slot(value: &Value) -> Result<Slot, String> {
    let mut record: Record = json::from_value(value).map_err(|error| error.to_string())?;
    let extra = SlotExtra::deserialize(value).map_err(|error| error.to_string())?;
    let state = match (record.status, extra.retry_at) {
        (StepStatus::Pending, Some(until)) => StepState::Resting { until },
        (StepStatus::Pending, None) => StepState::Pending,
        (StepStatus::Running, _) => StepState::Running,
        (StepStatus::Paused, _) => StepState::Waiting,
        (StepStatus::Failed, _) if extra.asking => StepState::Asking,
        _ => StepState::Settled,
    };
    let ran = state != StepState::Pending;
    let tries = extra.tries.unwrap_or(usual_tries(record.status));
    let settled = state == StepState::Settled;
    if extra.completed_before {
        record.status = StepStatus::Completed;
    } else if extra.begun_before {
        record.status = StepStatus::Running;
    }
    Ok(Slot {
        state,
        attempts: record.attempt,
        visits: extra.visits.max(u32::from(ran)),
        tries,
        keep: extra.begun_before || (extra.completed_before && !settled),
        before: extra.completed_before && settled,
        record: Some(Box::new(record)),
        each: None,
    })
}

/// Returns the status and the time of the last update without a plan: for listings and cleanup.
pub(crate) fn peek(bytes: &[u8]) -> Option<(RunStatus, Time)> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let status = RunStatus::deserialize(value.get("status")?).ok()?;
    Some((status, Time::parse(value.get("updated_at")?.as_str()?)?))
}

/// Returns the summary of a run for `run --json` and others.
pub(crate) fn summary(plan: &Plan, run: &Run) -> Value {
    json!({
        "schema": "run/v1",
        "run_id": run.id.as_str(),
        "run_root": run.origin.run_root,
        "workflow": plan.name(),
        "workflow_file": run.origin.workflow_file,
        "status": run.shown_status(),
        "started_at": run.started_at.to_second(),
        "updated_at": run.updated_at.to_second(),
        "failed_steps": run.failed_steps.iter().map(StepPath::to_string).collect::<Vec<_>>(),
        "error": run.error,
    })
}
