//! `orchestrate status`: shows runs, workers, and inboxes.

use serde::Serialize;

use super::invocation::Invocation;
use super::output::{put, put_json, table};
use super::{Common, failure, standing};
use crate::attempt::parking::{self, ParkedView};
use crate::base::ids::RunId;
use crate::base::program_name::ORCHESTRATE;
use crate::base::text::sanitize;
use crate::base::time::Time;
use crate::run::failure::Failure;
use crate::run::open::OpenError;
use crate::run::project::unreadable_queue;
use crate::run::wording::cannot_read;
use crate::view::rows::{inbox_row, owner_line, run_row, step_rows, worker_row};
use crate::view::{self, Board, InboxView, RunDetail, RunView, WorkerView};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StatusArgs {
    /// One run and its steps: its id, the beginning of it, or `latest`
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// How many runs are shown, the newest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
}

/// The overview of a workspace, as `--json` prints it.
#[derive(Serialize)]
pub(crate) struct Overview {
    pub runs: Vec<RunView>,
    /// Total number of runs.
    pub runs_kept: usize,
    pub workers: Vec<WorkerView>,
    pub inboxes: Vec<InboxView>,
    pub failed_tasks: usize,
    /// Providers that workers currently do not call.
    pub parked: Vec<ParkedView>,
}

impl Overview {
    /// Returns true if there is nothing to show.
    fn is_empty(&self) -> bool {
        let Overview { runs_kept, workers, inboxes, parked, failed_tasks, .. } = self;
        let seen = *runs_kept == 0 && workers.is_empty() && inboxes.is_empty();
        seen && parked.is_empty() && *failed_tasks == 0
    }

    pub(crate) fn look(board: &Board, limit: usize) -> std::io::Result<Overview> {
        let ids = board.run_ids();
        Ok(Overview {
            runs: ids.iter().take(limit).map(|id| board.run(id)).collect(),
            runs_kept: ids.len(),
            workers: board.members.views().collect(),
            inboxes: board.inboxes()?,
            failed_tasks: board.failed()?,
            parked: board.parked.clone(),
        })
    }
}

pub(crate) fn main(args: &StatusArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let queue = invocation.queue_if_any()?;
    let board = Board::scan(&invocation, queue)?;
    match &args.run {
        Some(name) => {
            let (id, _) = invocation.find_run(name)?;
            one(&invocation, &board, &id)
        }
        None => all(&invocation, &board, args.limit),
    }
}

fn all(invocation: &Invocation, board: &Board, limit: usize) -> Result<u8, Failure> {
    let overview = Overview::look(board, limit).map_err(|error| unreadable_queue(&error))?;
    match invocation.common.json {
        true => put_json("fleet-status/v1", &overview)?,
        false if overview.is_empty() => {
            invocation.note("nothing was run here yet; `orchestrate run WORKFLOW` begins");
        }
        false => put(&sanitize(&text(&overview, board.now)))?,
    }
    if !invocation.common.json {
        standing::say_ignored(invocation, None);
    }
    Ok(0)
}

fn text(overview: &Overview, now: Time) -> String {
    let Overview { runs, runs_kept, workers, inboxes, failed_tasks, parked } = overview;
    let mut text = String::new();
    if !runs.is_empty() {
        text.push_str("runs\n");
        let rows: Vec<Vec<String>> = runs.iter().map(|run| run_row(run, now)).collect();
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
        text.push_str(&format!(
            "{failed_tasks} failed {tasks} in failed/: orchestrate queue ls --failed\n"
        ));
    }
    text
}

fn one(invocation: &Invocation, board: &Board, id: &RunId) -> Result<u8, Failure> {
    let detail = match board.detail(id) {
        Ok(detail) => detail,
        Err(error) => return damaged(invocation, board, id, &error),
    };
    match invocation.common.json {
        true => put_json("run-status/v1", &detail)?,
        false => put(&sanitize(&run_text(&detail, board.now)))?,
    }
    Ok(0)
}

/// Shows what is known of a run whose files cannot be read, then fails.
fn damaged(
    invocation: &Invocation,
    board: &Board,
    id: &RunId,
    error: &OpenError,
) -> Result<u8, Failure> {
    let mut run = board.damaged(id, error);
    run.left_behind = view::left_behind(&run);
    match invocation.common.json {
        true => put_json("run-status/v1", &run)?,
        false => put(&format!("run {id}: {}\n", run.state.word()))?,
    }
    Ok(failure::print_text(&cannot_show(&run, id, error)))
}

fn run_text(detail: &RunDetail, now: Time) -> String {
    let RunDetail { run, usage, steps, events, .. } = detail;
    let mut text =
        format!("run {} of {}: {}\n", run.run_id, run.what(&run.workflow_file), run.state.word());
    text.push_str(&format!("  {}\n", view::why_run(detail)));
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
    text.push_str(&table(&step_rows(steps, now)));
    if !events.is_empty() {
        text.push_str("last events\n");
        for event in events {
            text.push_str(&format!("  {} {}\n", event.at.to_second(), event.text));
        }
    }
    text
}

/// Like [`cannot_read`], and also reports child processes of the run that no process drives any
/// more.
pub(crate) fn cannot_show(run: &RunView, id: &RunId, error: &OpenError) -> Failure {
    let failure = cannot_read(id, error);
    match view::left_behind(run) {
        0 => failure,
        left => {
            let message = format!("{}, but {}", failure.message(), view::still_run(left));
            let ends = format!("`{ORCHESTRATE} cancel {id}` ends what is left");
            failure.with_message(message).and_hint(ends)
        }
    }
}
