//! `orchestrate ps`: lists the running executions, the workers, and the inboxes.

use serde::Serialize;

use super::invocation::Invocation;
use super::output::{put, put_json, table};
use super::{Common, standing};
use crate::base::ids::shown;
use crate::base::time::Time;
use crate::run::failure::Failure;
use crate::run::project::unreadable_queue;
use crate::view::progress::whole_seconds;
use crate::view::rows::{inbox_row, worker_row};
use crate::view::{
    Board, Life, Owner, PlaceView, Standing, StepShown, TaskView, WorkerView, left_behind,
};

/// Number of newest runs to check. Older runs are assumed not to be running.
const RUNS: usize = 100;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct PsArgs {}

/// A running execution.
#[derive(Serialize)]
struct Execution {
    /// Id of the task, or `None` for a step that the run's driver executes itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    life: Life,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Time>,
    elapsed_ms: u64,
    /// Attempt of the step, or execution of the task.
    attempt: u32,
}

pub(super) fn main(_: &PsArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let queue = invocation.queue_if_any()?;
    let board = Board::scan(&invocation, queue)?;
    let tasks = board.executing().map_err(|error| unreadable_queue(&error))?;
    let mut all: Vec<Execution> =
        tasks.into_iter().filter_map(|task| by_worker(task, board.now)).collect();
    for id in board.run_ids().iter().take(RUNS) {
        all.extend(by_driver(&board, id));
    }
    all.sort_by_key(|execution| execution.since);
    let workers: Vec<WorkerView> = board.members.views().collect();
    let inboxes = board.inboxes().map_err(|error| unreadable_queue(&error))?;
    if invocation.common.json {
        let document = serde_json::json!({
            "executing": all,
            "workers": workers,
            "inboxes": inboxes,
            "parked": board.parked,
        });
        put_json("ps/v1", document)?;
        return Ok(0);
    }
    standing::say_parked(&invocation, &board);
    let mut text = String::new();
    if all.is_empty() {
        invocation.note("nothing is being executed");
    } else {
        let titles =
            ["TASK", "STEP", "RUN", "AGENT", "WORKER", "HOST", "PID", "ELAPSED", "ATTEMPT"];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        rows.extend(all.iter().map(row));
        text.push_str(&table(&rows));
    }
    let workers: Vec<_> = workers.iter().map(|worker| worker_row(worker, board.now)).collect();
    let inboxes: Vec<_> = inboxes.iter().map(inbox_row).collect();
    for (title, rows) in [("workers", workers), ("inboxes", inboxes)] {
        if !rows.is_empty() {
            text.push_str(&format!("{title}\n{}", table(&rows)));
        }
    }
    put(&text)?;
    Ok(0)
}

fn by_worker(task: TaskView, now: Time) -> Option<Execution> {
    let PlaceView::Claimed { worker, life, host, pid, since } = task.place else { return None };
    Some(Execution {
        task: Some(task.task),
        step: task.step,
        label: task.label,
        run_id: task.run_id,
        agent: Some(task.agent),
        worker: Some(worker),
        life,
        host,
        pid,
        since,
        elapsed_ms: since.map_or(0, |since| now.ms_since(since)),
        attempt: task.attempt.number(),
    })
}

/// Returns the steps of a run that its driver executes itself.
fn by_driver(board: &Board, id: &crate::base::ids::RunId) -> Vec<Execution> {
    let run = board.run(id);
    // If a run has no driver, its remaining processes are left over from the previous driver.
    let (life, wanted) = match run.state {
        Standing::Running => (Life::Alive { age_ms: None }, StepShown::Running),
        Standing::Stopped if left_behind(&run) > 0 => (Life::Dead, StepShown::Interrupted),
        // The steps of these processes cannot be determined any more.
        Standing::Damaged if left_behind(&run) > 0 => return vec![of_damaged(id)],
        _ => return Vec::new(),
    };
    let Ok(detail) = board.detail(id) else { return Vec::new() };
    let (worker, host, pid) = match run.owner {
        Owner::Process { pid } => (None, None, pid),
        Owner::Coordinator { worker, host, pid, .. } => (Some(worker), host, pid),
        Owner::Locked { .. } | Owner::Queue { .. } | Owner::Nobody { .. } => (None, None, None),
    };
    let steps = detail.steps.into_iter();
    let own =
        steps.filter(|step| step.state == wanted && step.task.is_none() && step.items.is_none());
    own.map(|step| Execution {
        task: None,
        label: shown(&step.step).into_owned(),
        step: Some(step.step),
        run_id: Some(id.to_string()),
        agent: step.agent,
        worker: worker.clone(),
        life,
        host: host.clone(),
        pid,
        since: step.started_at,
        elapsed_ms: step.started_at.map_or(0, |since| board.now.ms_since(since)),
        attempt: step.attempt.number(),
    })
    .collect()
}

/// Returns a row for the remaining processes of a run that cannot be read.
fn of_damaged(id: &crate::base::ids::RunId) -> Execution {
    Execution {
        task: None,
        step: None,
        label: "-".to_owned(),
        run_id: Some(id.to_string()),
        agent: None,
        worker: None,
        life: Life::Dead,
        host: None,
        pid: None,
        since: None,
        elapsed_ms: 0,
        attempt: 0,
    }
}

fn row(execution: &Execution) -> Vec<String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let worker = match execution.life {
        Life::Alive { .. } => text(&execution.worker),
        life => format!("{} ({})", text(&execution.worker), life.label()),
    };
    vec![
        text(&execution.task),
        execution.label.clone(),
        text(&execution.run_id),
        text(&execution.agent),
        worker,
        text(&execution.host),
        text(&execution.pid.map(|pid| pid.to_string())),
        whole_seconds(execution.elapsed_ms),
        execution.attempt.to_string(),
    ]
}
