//! Collects the report of a run from its files and from the queue.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::{
    Amount, AttemptOutcome, AttemptReport, Counts, ErrorReport, GateReport, LogReport,
    ProviderSpent, Report, StepReport, said,
};
use crate::agent::{Kind, Stream};
use crate::base::ids::{Attempt, RunId, StepPath, TaskAttempt};
use crate::base::time::Time;
use crate::disk;
use crate::engine::run::{Address, Slot, StepState};
use crate::engine::{Event, Record, Run, RunStatus};
use crate::graph;
use crate::run::open::OpenError;
use crate::store::History;
use crate::view::excerpt::{Excerpt, Room};
use crate::view::progress::log_line;
use crate::view::{
    self, Board, EventView, RunSpent, Standing, StepView, Tried, Walk, gates_of, is_passed_over,
    one_line, printed,
};
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Step};

/// Builds the report of a run. The error states why the run cannot be read.
pub(crate) fn gather(board: &Board, id: &RunId, amount: Amount) -> Result<Report, OpenError> {
    let detail = board.detail(id)?;
    let (plan, run) = board.open(id)?;
    let root = board.run_root(id);
    let history = History::read(&*disk::machine(), &root).unwrap_or_default();
    let driven = matches!(detail.run.state, Standing::Running | Standing::Doubtful);
    let tried = attempts(&plan, &history, driven);
    let counts = counts(&detail.steps, &tried);
    let mut gathering = Gathering {
        board,
        plan: &plan,
        run: &run,
        root,
        walk: board.walk(&plan, &run, detail.run.state),
        tried,
        ended: Tried::of(&history),
        amount,
        left: amount.text,
    };
    let (steps, steps_left_out) = gathering.steps();
    let (events, events_left_out) = events(&plan, &run, &history, amount.events);
    let workflow =
        gathering.file(run.origin.definition(), Room { head: 256 << 10, tail: 16 << 10 });
    let pending = match run.status {
        RunStatus::Running => gates_of(board.workspace().root(), &plan, &run),
        _ => Vec::new(),
    };
    // Documents have times to the second; the journal is more precise.
    let began = history.entries.first().map_or(run.started_at, |entry| entry.at);
    let last = history.entries.last().map_or(run.updated_at, |entry| entry.at);
    let rests = detail.run.state.rests();
    let until = if rests { last } else { board.now };
    Ok(Report {
        generated_at: board.now,
        version: env!("CARGO_PKG_VERSION"),
        name: plan.name().map(str::to_owned),
        description: plan.description().map(str::to_owned),
        unit: plan.unit(),
        why: view::why_run(&detail),
        began,
        duration_ms: until.ms_since(began),
        usage: detail.usage.clone(),
        providers: providers(&run),
        request: run.origin.request.as_deref().cloned(),
        context: run.origin.context.clone(),
        graph: graph::of_run(&detail, &plan, &run),
        pending,
        gates: gates(&plan, &history),
        counts,
        steps,
        steps_left_out,
        events,
        events_left_out,
        workflow,
        run: detail.run,
    })
}

struct Gathering<'a> {
    board: &'a Board,
    plan: &'a Plan,
    run: &'a Run,
    root: PathBuf,
    walk: Walk<'a>,
    /// All executions, by step path.
    tried: HashMap<String, Vec<AttemptReport>>,
    /// The record of each attempt, by step path and attempt.
    ended: Tried<'a>,
    amount: Amount,
    /// Remaining number of bytes for texts.
    left: usize,
}

impl Gathering<'_> {
    /// Returns the included steps, and the number of omitted ones.
    fn steps(&mut self) -> (Vec<StepReport>, usize) {
        let slots = self.run.slots();
        // The question of a gate is reported with its node.
        let is_told = |at: &Address, slot: &Slot| {
            let begun = at.loops.is_empty() || slot.record.is_some() || !slot.attempts.is_none();
            begun && !matches!(at.step_of(self.plan).action, Action::Gate(_))
        };
        let told: Vec<(Address, &Slot)> =
            slots.into_iter().filter(|(at, slot)| is_told(at, slot)).collect();
        let kept = keep(&told, self.amount.steps);
        let left_out = told.len() - kept.len();
        // Failed and active steps get the available space first.
        let mut order = kept.clone();
        order.sort_by_key(|index| !is_bad(told[*index].1));
        let mut steps: BTreeMap<usize, StepReport> = BTreeMap::new();
        for index in order {
            let (at, slot) = &told[index];
            steps.insert(index, self.step(at, slot));
        }
        (steps.into_values().collect(), left_out)
    }

    fn step(&mut self, at: &Address, slot: &Slot) -> StepReport {
        let step = at.step_of(self.plan);
        let mut view = self.walk.step(at, slot);
        (view.error, view.last_line) = (None, None);
        let path = view.step.clone();
        let mut record = slot.record.as_deref().cloned().unwrap_or_default();
        if is_passed_over(slot) {
            // Report the earlier visit that executed it: at the last visit, it was skipped.
            record = self.ended.record(&path, slot.attempts).cloned().unwrap_or(record);
        }
        let room = match at.loops.is_empty() || is_bad(slot) {
            true => self.amount.room,
            false => Room::LITTLE,
        };
        let mut attempts = self.tried.remove(&path).unwrap_or_default();
        let last_of = |index: usize| {
            attempts.get(index + 1).is_none_or(|next| next.attempt != attempts[index].attempt)
        };
        // The queue knows the last worker of a task.
        let last: Vec<usize> = (0..attempts.len()).filter(|index| last_of(*index)).collect();
        for index in last {
            attempts[index].worker = self.worker(&record, &attempts[index]);
        }
        view.started_at = view.started_at.or(attempts.first().map(|one| one.started_at));
        StepReport {
            view,
            kind: graph::kind(step),
            max_rounds: match &step.action {
                Action::Rounds(rounds) => Some(rounds.most),
                _ => None,
            },
            error: record.error.as_ref().map(|error| ErrorReport {
                message: error.message.clone(),
                tail: match error.stderr_tail.is_empty() {
                    true => error.stdout_tail.clone(),
                    false => error.stderr_tail.clone(),
                },
                context: error.context.clone(),
            }),
            asked: self.asked(step, &path, &record, room),
            output: self.output(&record, room),
            logs: self.logs(step, &path, slot, room),
            files: record.files.clone().unwrap_or_default().into_iter().take(100).collect(),
            worktree: record.worktree.as_deref().cloned(),
            attempts,
        }
    }

    /// Returns the worker that executed an attempt, if the attempt was a task.
    fn worker(&self, record: &Record, attempt: &AttemptReport) -> Option<String> {
        let id = attempt.task.as_ref()?;
        let agent = record.task.as_ref().map_or("", |task| task.agent.as_str());
        let task = self.board.task_of_run(self.run.id.as_str(), agent, id).ok()??;
        task.place.worker().map(str::to_owned)
    }

    /// Returns the prompt or command: as it was sent, if that was stored, else as it was written.
    fn asked(
        &mut self,
        step: &Step,
        path: &str,
        record: &Record,
        room: Room,
    ) -> Option<super::Asked> {
        let gate = record.gate.as_ref().map(|gate| Excerpt::of(&gate.message, room));
        let written = said::as_written(step);
        let what = written.as_ref().map_or("prompt", |asked| asked.what);
        let sent = match (gate, what) {
            (Some(message), _) => Some(message),
            (None, "prompt") => {
                let kept = self.file(&format!("logs/{path}.prompt.txt"), room);
                kept.or_else(|| Some(Excerpt::of(&self.of_task(record)?, room)))
            }
            _ => None,
        };
        let asked = match sent {
            Some(text) => Some(super::Asked { what, as_sent: true, text }),
            None => written,
        };
        asked.filter(|asked| self.pay(&asked.text))
    }

    /// Returns the prompt in the task of a step.
    fn of_task(&self, record: &Record) -> Option<String> {
        let task = record.task.as_ref()?;
        let run = self.run.id.as_str();
        let document = self.board.document_of_run(run, &task.agent, &task.id).ok()??;
        let text = document.get("work")?.get("stdin")?.get("text")?;
        text.as_str().map(str::to_owned)
    }

    fn output(&mut self, record: &Record, room: Room) -> Option<Excerpt> {
        let whole = record.whole.as_ref().and_then(|whole| self.file(&whole.path, room));
        let kept = || match (&record.output, &record.lines, &record.json) {
            (Some(output), _, _) => Some(output.clone()),
            (_, Some(lines), _) => Some(lines.join("\n")),
            (_, _, Some(json)) => serde_json::to_string_pretty(json).ok(),
            _ => None,
        };
        let output = whole.or_else(|| Some(Excerpt::of(&kept()?, room)));
        output.filter(|text| !text.is_empty() && self.pay(text))
    }

    /// Returns the stored output of the latest attempts, newest first.
    fn logs(&mut self, step: &Step, path: &str, slot: &Slot, room: Room) -> Vec<LogReport> {
        const ATTEMPTS: usize = 5;
        if slot.attempts.is_none()
            || step.inner().is_some()
            || matches!(step.action, Action::Gate(_))
        {
            return Vec::new();
        }
        let adapter = self.plan.adapter(step);
        let mut logs = Vec::new();
        for attempt in (1..=slot.attempts.number()).rev().take(ATTEMPTS).map(Attempt::new) {
            for stream in ["stdout", "stderr"] {
                let latest = attempt == slot.attempts;
                let aside = || self.file(&format!("logs/{path}.{attempt}.{stream}"), room);
                let log = match latest {
                    true => self.file(&format!("logs/{path}.{stream}"), room),
                    false => aside(),
                };
                let log = log.or_else(|| aside().filter(|_| is_passed_over(slot)));
                let readable = stream == "stdout" && adapter.is_stream() && log.is_some();
                // Short output has no log; the journal contains it.
                let ended = self.ended.record(path, attempt).filter(|_| stream == "stdout");
                let short = || Some(Excerpt::of(&printed(ended.filter(|_| !latest)?)?, room));
                let Some(text) = log.or_else(short).filter(|text| !text.is_empty()) else {
                    continue;
                };
                let text = if readable { heard(text, adapter) } else { text };
                if self.pay(&text) {
                    logs.push(LogReport { stream, attempt, readable, text });
                }
            }
        }
        logs
    }

    fn file(&self, file: &str, room: Room) -> Option<Excerpt> {
        Excerpt::of_file(&self.root, file, room)
    }

    /// Reserves space for a text. Returns false once the space is used up; the text is then
    /// omitted.
    fn pay(&mut self, text: &Excerpt) -> bool {
        let enough = self.left >= text.size();
        self.left = self.left.saturating_sub(text.size());
        enough
    }
}

/// Returns an agent's messages and actions, from the events that it printed.
fn heard(events: Excerpt, adapter: Kind) -> Excerpt {
    let turns = |text: &str| {
        let turns = Stream::new(adapter).push(text.as_bytes());
        turns.iter().map(|turn| format!("{turn}\n")).collect::<String>()
    };
    let tail = events.tail.as_deref().map(turns);
    Excerpt { text: turns(&events.text), tail, ..events }
}

fn is_bad(slot: &Slot) -> bool {
    use crate::engine::StepStatus::{Completed, Skipped};
    slot.state == StepState::Settled && !matches!(slot.status(), Completed | Skipped)
        || matches!(slot.state, StepState::Running | StepState::Asking | StepState::Waiting)
}

/// Selects the steps if there are too many: failed and active steps first, then top-level steps,
/// then all others. From a group that does not fit, takes the first and the last ones.
fn keep(told: &[(Address, &Slot)], most: usize) -> Vec<usize> {
    let rank = |index: &usize| match &told[*index] {
        (_, slot) if is_bad(slot) => 0,
        (at, _) if at.loops.is_empty() => 1,
        _ => 2,
    };
    let mut kept = Vec::new();
    for wanted in 0..=2 {
        let all: Vec<usize> = (0..told.len()).filter(|index| rank(index) == wanted).collect();
        let room = (most - kept.len()).min(all.len());
        let first = room.div_ceil(2);
        kept.extend(&all[..first]);
        kept.extend(&all[all.len() - (room - first)..]);
    }
    kept.sort_unstable();
    kept
}

fn counts(steps: &[StepView], tried: &HashMap<String, Vec<AttemptReport>>) -> Counts {
    let own = || steps.iter().filter(|step| step.depth == 0);
    Counts {
        steps: own().count(),
        settled: own().filter(|step| step.state.is_over()).count(),
        executions: tried.values().map(Vec::len).sum(),
    }
}

/// Returns every execution in the journal, by step.
fn attempts(plan: &Plan, history: &History, driven: bool) -> HashMap<String, Vec<AttemptReport>> {
    let mut all: HashMap<String, Vec<AttemptReport>> = HashMap::new();
    for entry in &history.entries {
        match &entry.event {
            Event::Launched { step, attempt, task } => {
                let begun = begun(*attempt, entry.at, AttemptOutcome::Interrupted);
                let task = task.as_ref().map(|task| task.id.clone());
                all.entry(step.to_string()).or_default().push(AttemptReport { task, ..begun });
            }
            Event::PutBack { step, attempt, execution, deaths } => {
                let tried = all.entry(step.to_string()).or_default();
                let Some(last) = tried.iter_mut().rfind(|one| one.attempt == *attempt) else {
                    continue;
                };
                let next = AttemptReport {
                    execution: *execution,
                    task: last.task.clone(),
                    ..begun(*attempt, entry.at, AttemptOutcome::Interrupted)
                };
                last.ended_at = Some(entry.at);
                last.error = Some(match deaths {
                    0 => "its worker gave it back".to_owned(),
                    _ => "its worker died".to_owned(),
                });
                tried.push(next);
            }
            Event::Gated { step, attempt, .. } => {
                let asked = begun(*attempt, entry.at, AttemptOutcome::Asking);
                all.entry(asker(plan, step)).or_default().push(asked);
            }
            Event::Answered { step, attempt, .. } => {
                let tried = all.entry(asker(plan, step)).or_default();
                if let Some(one) = tried.iter_mut().rev().find(|one| one.attempt == *attempt) {
                    (one.ended_at, one.outcome) = (Some(entry.at), AttemptOutcome::Answered);
                }
            }
            Event::Ended { step, attempt, record } => {
                let tried = all.entry(step.to_string()).or_default();
                let open = tried.iter().rposition(|one| one.attempt == *attempt);
                let at = open.unwrap_or_else(|| {
                    // It was refused before it was launched.
                    tried.push(begun(*attempt, entry.at, AttemptOutcome::Failed));
                    tried.len() - 1
                });
                end(&mut tried[at], entry.at, record);
            }
            _ => {}
        }
    }
    if driven {
        for one in all.values_mut().filter_map(|tried| tried.last_mut()) {
            if one.outcome == AttemptOutcome::Interrupted {
                one.outcome = AttemptOutcome::Running;
            }
        }
    }
    all
}

fn begun(attempt: Attempt, at: Time, outcome: AttemptOutcome) -> AttemptReport {
    AttemptReport {
        attempt,
        execution: TaskAttempt::FIRST,
        outcome,
        started_at: at,
        ended_at: None,
        duration_ms: None,
        exit_code: None,
        task: None,
        worker: None,
        usage: None,
        error: None,
    }
}

fn end(one: &mut AttemptReport, at: Time, record: &Record) {
    use crate::engine::StepStatus;
    one.outcome = match record.status {
        StepStatus::Failed => AttemptOutcome::Failed,
        _ => AttemptOutcome::Completed,
    };
    one.ended_at = Some(at);
    one.duration_ms = record.duration_ms.or(Some(at.ms_since(one.started_at)));
    one.exit_code = record.exit_code;
    one.usage = record.usage.as_deref().cloned();
    one.error = record.error.as_ref().map(|error| one_line(&error.message));
}

/// Returns the step that asks, as the author named it: a gate has no name, so its node counts.
fn asker(plan: &Plan, step: &StepPath) -> String {
    let at = Address::find(plan, step);
    match at.is_some_and(|at| matches!(at.step_of(plan).action, Action::Gate(_))) {
        true => StepPath::top(step.top_name()).to_string(),
        false => step.to_string(),
    }
}

fn gates(plan: &Plan, history: &History) -> Vec<GateReport> {
    let mut gates: Vec<GateReport> = Vec::new();
    for entry in &history.entries {
        match &entry.event {
            Event::Gated { step, attempt, gate } => gates.push(GateReport {
                step: asker(plan, step),
                attempt: *attempt,
                asked_at: entry.at,
                message: gate.message.clone(),
                answered_at: None,
                answer: None,
            }),
            Event::Answered { step, attempt, answer } => {
                let step = asker(plan, step);
                let same = |gate: &&mut GateReport| gate.step == step && gate.attempt == *attempt;
                if let Some(gate) = gates.iter_mut().rev().find(same) {
                    (gate.answered_at, gate.answer) = (Some(entry.at), Some(answer.clone()));
                }
            }
            _ => {}
        }
    }
    gates
}

fn events(plan: &Plan, run: &Run, history: &History, most: usize) -> (Vec<EventView>, usize) {
    let told = history.entries.iter().filter_map(|entry| {
        let text = one_line(&log_line(plan, run, &entry.event)?);
        Some(EventView { at: entry.at, text })
    });
    let all: Vec<EventView> = told.collect();
    let left_out = all.len().saturating_sub(most);
    (all.into_iter().skip(left_out).collect(), left_out)
}

/// Returns the usage of each provider, by name.
fn providers(run: &Run) -> Vec<ProviderSpent> {
    let mut sums: BTreeMap<String, RunSpent> = BTreeMap::new();
    for (_, slot) in run.slots() {
        let Some(spent) = slot.record.as_deref().and_then(view::step_spent) else { continue };
        sums.entry(spent.provider.clone()).or_default().add(&spent.usage);
    }
    sums.into_iter().map(|(provider, spent)| ProviderSpent { provider, spent }).collect()
}
