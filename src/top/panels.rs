//! The lists of the dashboard as selectable rows of text.

use super::Seen;
use super::state::Panel;
use crate::agent::Number;
use crate::base::ids::{Attempt, TaskAttempt};
use crate::view::progress::seconds;
use crate::view::rows::{branches, inbox_row, run_row, stands, step_time, worker_row};
use crate::view::{self, PlaceView, RunView, StepView};

/// A row. Its key identifies it across scans.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub key: String,
    pub cells: Vec<String>,
    /// True for the step that the run is executing.
    pub current: bool,
}

impl Row {
    fn new(key: String, cells: Vec<String>) -> Row {
        Row { key, cells, current: false }
    }
}

/// The appearance of a list: its title, and the index of the column that holds a state.
pub(crate) struct Shape {
    pub title: &'static str,
    pub state: usize,
}

impl Panel {
    pub(crate) fn shape(self) -> Shape {
        let (title, state) = match self {
            Panel::Asks => ("ASKS", usize::MAX),
            Panel::Runs => ("RUNS", 1),
            Panel::Workers => ("WORKERS", 1),
            Panel::Queues => ("QUEUES", usize::MAX),
        };
        Shape { title, state }
    }
}

/// Returns the rows of a list that contain `filter`.
pub(super) fn rows(seen: &Seen, panel: Panel, filter: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = match panel {
        Panel::Asks => asks(seen),
        Panel::Runs => seen.runs.iter().map(|run| of_run(seen, run)).collect(),
        Panel::Workers => workers(seen),
        Panel::Queues => queues(seen),
    };
    let wanted = filter.to_lowercase();
    let has = |row: &Row| row.cells.iter().any(|cell| cell.to_lowercase().contains(&wanted));
    if !wanted.is_empty() {
        rows.retain(has);
    }
    rows
}

fn asks(seen: &Seen) -> Vec<Row> {
    let row = |gate: &view::Gate| {
        let asked = match gate.answered {
            true => "answered; it counts once somebody drives the run".to_owned(),
            false => view::one_line(&gate.message),
        };
        let since = seen.since(gate.since).map(seconds).unwrap_or_default();
        let cells = vec![gate.run_id.to_string(), gate.node.clone(), since, asked];
        // The digest is part of the key: a changed question is a new row.
        Row::new(format!("{} {} {}", gate.run_id, gate.node, gate.shown), cells)
    };
    seen.gates.iter().map(row).collect()
}

/// Splits the key of a question into its run and its node.
pub(super) fn asked(key: &str) -> Option<(&str, &str)> {
    let (run, rest) = key.split_once(' ')?;
    Some((run, rest.rsplit_once(' ')?.0))
}

/// Returns the row of `status` for a run, with only the file name of the workflow.
fn of_run(seen: &Seen, run: &RunView) -> Row {
    let file = run.what(run.workflow_file.rsplit('/').next().unwrap_or_default());
    let mut cells = seen.now.map(|now| run_row(run, now)).unwrap_or_default();
    if let Some(cell) = cells.get_mut(2) {
        *cell = file;
    }
    Row::new(run.run_id.clone(), cells)
}

/// Returns the rows of `status` for members, with the name moved to the end.
fn workers(seen: &Seen) -> Vec<Row> {
    let Some(now) = seen.now else { return Vec::new() };
    let row = |worker: &view::WorkerView| {
        let mut cells = worker_row(worker, now);
        let name = cells.remove(1);
        cells.push(name.clone());
        Row::new(name, cells)
    };
    seen.workers.iter().map(row).collect()
}

fn queues(seen: &Seen) -> Vec<Row> {
    let row = |inbox: &view::InboxView| Row::new(inbox.agent.clone(), inbox_row(inbox));
    seen.inboxes.iter().map(row).collect()
}

/// Returns the steps of the open run as a tree.
pub(super) fn steps(seen: &Seen) -> Vec<Row> {
    let Some(Ok(detail)) = &seen.detail else { return Vec::new() };
    let branches = branches(&detail.steps);
    let rows = detail.steps.iter().zip(branches);
    rows.map(|(step, branch)| step_row(seen, step, &branch)).collect()
}

fn step_row(seen: &Seen, step: &StepView, branch: &str) -> Row {
    let usage = step.usage.as_ref().map(|spent| &spent.usage);
    let cost = usage.and_then(|usage| {
        // The column is narrow, so use a sign instead of words.
        let sign = if usage.knows(Number::CostUsd) { "" } else { "≥" };
        usage.cost_usd.map(|cost| format!("{sign}${cost:.4}"))
    });
    let attempts =
        if step.attempt > Attempt::FIRST { format!("#{}", step.attempt) } else { String::new() };
    let mut notes = Vec::new();
    if step.executions > TaskAttempt::FIRST {
        notes.push(format!("execution {}", step.executions));
    }
    notes.extend(stands(step));
    notes.extend(step.error.clone());
    notes.extend(step.last_line.clone());
    if let Some(PlaceView::Waiting { ahead, workers, .. }) = step.task.as_ref().map(|t| &t.place) {
        notes.push(match workers {
            0 => "nobody serves it".to_owned(),
            _ => format!("{ahead} ahead"),
        });
    }
    let cells = vec![
        format!("{branch}{}", step.name),
        step.state.word().to_owned(),
        step.agent.clone().unwrap_or_default(),
        seen.now.map(|now| step_time(step, now)).unwrap_or_default(),
        attempts,
        cost.unwrap_or_default(),
        notes.join(", "),
    ];
    Row { key: step.step.clone(), cells, current: step.current && step.items.is_none() }
}

/// Returns the tasks of the open queue.
pub(super) fn tasks(seen: &Seen) -> Vec<Row> {
    let tasks = seen.tasks.iter().flat_map(|(tasks, _)| tasks);
    let row = |task: &view::TaskView| {
        let whose = match &task.place {
            PlaceView::Claimed { worker, .. } => format!("by {worker}"),
            _ => task.run_id.clone().map(|run| format!("of {run}")).unwrap_or_default(),
        };
        let state = task.place.word().to_owned();
        let cells = vec![task.task.clone(), state, task.label.clone(), whose];
        Row::new(task.task.clone(), cells)
    };
    tasks.map(row).collect()
}
