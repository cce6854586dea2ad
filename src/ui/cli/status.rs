//! `orchestrate status`: how things stand, by what is there and who lives.

use serde::Serialize;

use super::common::{self, Surroundings};
use super::show::{self, put, put_json, table};
use super::{Common, Failure};
use crate::fleet::open::OpenError;
use crate::fleet::parking::{self, ParkedView};
use crate::fleet::post::COORDINATOR;
use crate::ids::RunId;
use crate::time::Time;
use crate::ui::board::{
    self, Board, InboxView, Life, Owner, PlaceView, RunDetail, RunView, Standing, StepShown,
    StepView, WorkerView,
};
use crate::ui::text::seconds;

#[derive(clap::Args, Clone, Debug)]
pub struct StatusArgs {
    /// One run and its steps: its id, the beginning of it, or `latest`
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// How many runs are shown, the newest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
}

/// Everything, as it is shown to programs.
#[derive(Serialize)]
struct Overview {
    runs: Vec<RunView>,
    /// How many runs there are in all.
    runs_kept: usize,
    workers: Vec<WorkerView>,
    inboxes: Vec<InboxView>,
    failed_tasks: usize,
    /// Providers that are left alone.
    parked: Vec<ParkedView>,
}

pub fn main(args: &StatusArgs, common: &Common) -> Result<u8, Failure> {
    let around = Surroundings::look(common)?;
    let queue = show::queue_if_any(&around)?;
    let board = show::board(&around, queue)?;
    match &args.run {
        Some(name) => {
            let (id, _) = common::find_run(&around, name)?;
            one(&around, &board, &id)
        }
        None => all(&around, &board, args.limit),
    }
}

fn all(around: &Surroundings, board: &Board, limit: usize) -> Result<u8, Failure> {
    let ids = board.run_ids();
    let overview = Overview {
        runs: ids.iter().take(limit).map(|id| board.run(id)).collect(),
        runs_kept: ids.len(),
        workers: board.members.views().collect(),
        inboxes: board.inboxes().map_err(|error| show::unreadable(&error))?,
        failed_tasks: board.failed().map_err(|error| show::unreadable(&error))?,
        parked: board.parked.clone(),
    };
    match around.common.json {
        true => put_json("fleet-status/v1", &overview)?,
        false => put(&text(&overview, board.now))?,
    }
    Ok(0)
}

fn text(overview: &Overview, now: Time) -> String {
    let Overview { runs, runs_kept, workers, inboxes, failed_tasks, parked } = overview;
    let mut text = String::new();
    if runs.is_empty() && workers.is_empty() && inboxes.is_empty() && parked.is_empty() {
        return "nothing was run here yet\n".to_owned();
    }
    if !runs.is_empty() {
        text.push_str("runs\n");
        let rows: Vec<Vec<String>> = runs.iter().map(run_row).collect();
        text.push_str(&table(&rows));
    }
    if *runs_kept > runs.len() {
        text.push_str(&format!("  and {} older ones\n", runs_kept - runs.len()));
    }
    if !workers.is_empty() {
        text.push_str("workers\n");
        text.push_str(&table(
            &workers.iter().map(|worker| worker_row(worker, now)).collect::<Vec<_>>(),
        ));
    }
    if !inboxes.is_empty() {
        text.push_str("inboxes\n");
        text.push_str(&table(&inboxes.iter().map(inbox_row).collect::<Vec<_>>()));
    }
    if !parked.is_empty() {
        text.push_str("providers\n");
        for parked in parked {
            text.push_str(&format!("  {}\n", parking::told(parked)));
        }
    }
    if *failed_tasks > 0 {
        let tasks = if *failed_tasks == 1 { "task" } else { "tasks" };
        text.push_str(&format!("{failed_tasks} failed {tasks} in failed/\n"));
    }
    text
}

fn run_row(run: &RunView) -> Vec<String> {
    let file = run.workflow_file.clone();
    vec![run.run_id.clone(), run.state.word().to_owned(), file, board::remark(run)]
}

/// How a member is told of in a line.
pub fn worker_row(worker: &WorkerView, now: Time) -> Vec<String> {
    let WorkerView { agent, worker: name, life, host, pid, .. } = worker;
    let mut state = life.word().to_owned();
    if worker.draining && *life != Life::Dead {
        state.push_str(", draining");
    }
    let busy = match (&worker.run, worker.claims) {
        (Some(run), _) => format!("drives run {run}"),
        (None, 0) => "idle".to_owned(),
        (None, 1) if agent == COORDINATOR => "drives 1 run".to_owned(),
        (None, claims) if agent == COORDINATOR => format!("drives {claims} runs"),
        (None, claims) => format!("{claims} of {} busy", worker.concurrency),
    };
    let up = Time::parse(&worker.started_at).map(|at| seconds(now.ms_since(at)));
    let up = format!("up {}", up.unwrap_or_default());
    vec![agent.clone(), name.clone(), state, format!("{host} pid {pid}"), busy, up]
}

fn inbox_row(inbox: &InboxView) -> Vec<String> {
    let InboxView { agent, waiting, claimed, dropped, workers, paused, .. } = inbox;
    let served = match workers {
        0 if waiting + dropped > 0 => "nobody serves it".to_owned(),
        0 => "no worker".to_owned(),
        1 => "1 worker".to_owned(),
        workers => format!("{workers} workers"),
    };
    let paused = paused.as_ref().map(|reason| match reason.as_str() {
        "" => "paused".to_owned(),
        reason => format!("paused: {reason}"),
    });
    let waiting = match dropped {
        0 => format!("{waiting} waiting"),
        dropped => format!("{waiting} waiting, {dropped} dropped"),
    };
    vec![agent.clone(), waiting, format!("{claimed} claimed"), served, paused.unwrap_or_default()]
}

fn one(around: &Surroundings, board: &Board, id: &RunId) -> Result<u8, Failure> {
    let detail = match board.detail(id) {
        Ok(detail) => detail,
        Err(error) => return damaged(around, board, id, &error),
    };
    match around.common.json {
        true => put_json("run-status/v1", &detail)?,
        false => put(&run_text(&detail, board.now))?,
    }
    Ok(0)
}

/// A run whose files cannot be read is shown too, as far as it can be.
fn damaged(
    around: &Surroundings,
    board: &Board,
    id: &RunId,
    error: &OpenError,
) -> Result<u8, Failure> {
    let run = RunView { state: Standing::Damaged, ..board.run(id) };
    match around.common.json {
        true => put_json("run-status/v1", &run)?,
        false => put(&format!("run {id}: {}\n", run.state.word()))?,
    }
    let hint = format!("`orchestrate resume {id} --repair` rebuilds it");
    Err(Failure::new(7, error).hint(hint).written())
}

fn run_text(detail: &RunDetail, now: Time) -> String {
    let RunDetail { run, usage, steps, events } = detail;
    let mut text = format!("run {} of {}: {}\n", run.run_id, run.workflow_file, run.state.word());
    text.push_str(&format!("  {}\n", board::why_run(detail)));
    if let Some(owner) = owner_line(&run.owner) {
        text.push_str(&format!("  {owner}\n"));
    }
    if let (Some(started), Some(updated)) = (run.started_at, run.updated_at) {
        let (started, updated) = (started.to_second(), updated.to_second());
        text.push_str(&format!("  began {started}, last event {updated}\n"));
    }
    if let Some(usage) = usage {
        text.push_str(&format!("  {}\n", usage.words()));
    }
    text.push_str(&format!("{}s\n", run.unit));
    text.push_str(&table(&steps.iter().map(|step| step_row(step, now)).collect::<Vec<_>>()));
    if !events.is_empty() {
        text.push_str("last events\n");
        for event in events {
            text.push_str(&format!("  {} {}\n", event.at.to_second(), event.text));
        }
    }
    text
}

fn owner_line(owner: &Owner) -> Option<String> {
    match owner {
        Owner::Process { pid: Some(pid) } => Some(format!("driven by process {pid}")),
        Owner::Process { pid: None } => Some("driven by a process of another machine".to_owned()),
        Owner::Coordinator { worker, host, pid, life } => {
            let host = host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
            let pid = pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
            Some(format!("held by coordinator {worker}{host}{pid}: {}", life.word()))
        }
        Owner::Locked { worker, pid, .. } => Some(format!(
            "held by coordinator {worker}, which waits for process {pid} to let go of its lock"
        )),
        Owner::Queue { .. } | Owner::Nobody { .. } => None,
    }
}

fn step_row(step: &StepView, now: Time) -> Vec<String> {
    let mark = if step.current { "> " } else { "  " };
    let depth = step.step.matches('.').count() / 2;
    let name = format!("{mark}{}{}", "  ".repeat(depth), step.step);
    let agent = step.agent.clone().unwrap_or_default();
    let time = match (step.duration_ms, step.started_at) {
        (Some(ms), _) => seconds(ms),
        (None, Some(at)) if !step.state.is_over() => seconds(now.ms_since(at)),
        _ => String::new(),
    };
    let mut notes = Vec::new();
    if step.attempt > 1 {
        notes.push(format!("attempt {}", step.attempt));
    }
    if let Some(items) = &step.items {
        let failed = match items.failed {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        notes.push(format!("{} of {} items{failed}", items.current, items.total));
    }
    notes.extend(step.rounds.filter(|rounds| *rounds > 1).map(|rounds| format!("round {rounds}")));
    notes.extend(
        step.warning.clone().or(step.skip_cause.map(|cause| board::skipped(cause).to_owned())),
    );
    notes.extend(step.asks.as_ref().map(|asks| format!("asks: {asks}")));
    if !step.needs.is_empty() && step.state == StepShown::Pending {
        notes.push(format!("waits for {}", listed(&step.needs)));
    }
    notes.extend(step.until.map(|until| format!("until {}", until.to_second())));
    notes.extend(step.parked.as_ref().map(|_| "its provider is parked".to_owned()));
    notes.extend(step.waits_for.as_ref().map(|glob| format!("for files `{glob}`")));
    notes.extend(step.task.as_ref().map(|task| place(&task.task, &task.agent, &task.place)));
    notes.extend(step.usage.as_ref().map(|spent| board::words(&spent.usage)));
    notes.extend(step.error.clone());
    vec![name, step.state.word().to_owned(), agent, time, notes.join(", ")]
}

/// A few names, and how many more there are.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Where a task is, in a few words.
fn place(task: &str, agent: &str, place: &PlaceView) -> String {
    match place {
        PlaceView::Waiting { parked: Some(_), .. } => {
            format!("task {task} waits in inbox/{agent}, its provider is parked")
        }
        PlaceView::Waiting { .. } => format!("task {task} waits in inbox/{agent}"),
        PlaceView::Claimed { worker, host, life, .. } => {
            let host = host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
            let life = match life {
                Life::Alive => String::new(),
                life => format!(", {}", life.word()),
            };
            format!("task {task} claimed by {worker}{host}{life}")
        }
        other => format!("task {task} is in {}/", other.word()),
    }
}
