//! `orchestrate queue`: lists and changes the tasks in inboxes.

use serde_json::{Map, Value, json};

use super::invocation::Invocation;
use super::output::{put, put_json, table};
use super::{Common, cancel, standing};
use crate::actions::target;
use crate::attempt::documents::COORDINATOR;
use crate::base::ids::{counted, name_fault};
use crate::base::program_name::ORCHESTRATE;
use crate::base::text::sanitize;
use crate::queue::census::Marker;
use crate::queue::{End, Ending, Place, Queue, seal};
use crate::run::failure::Failure;
use crate::run::project::unreadable_queue;
use crate::view::{self, Board, Found, PlaceView, TaskView};

#[derive(clap::Subcommand, Clone, Debug)]
pub(super) enum QueueVerb {
    /// Show the tasks that wait or are being executed
    Ls(LsArgs),
    /// Show one task: what it asks for, where it is, how it went
    Show(TaskArg),
    /// Put a free task that has ended back into its inbox
    Requeue(TaskArg),
    /// Take a task out: it is cancelled, wherever it is
    Drop(cancel::CancelTaskArgs),
    /// Let nobody claim the tasks of an agent
    Pause(PauseArgs),
    /// Let the tasks of an agent be claimed again
    Resume(AgentArg),
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct LsArgs {
    /// One agent only
    #[arg(value_name = "AGENT")]
    pub agent: Option<String>,
    /// How many tasks of each agent are shown
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: usize,
    /// Show those in `failed/` that belong to no run instead, the newest first
    #[arg(long)]
    pub failed: bool,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct TaskArg {
    /// The task: its id or the beginning of it
    #[arg(value_name = "TASK")]
    pub task: String,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct AgentArg {
    #[arg(value_name = "AGENT")]
    pub agent: String,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct PauseArgs {
    #[arg(value_name = "AGENT")]
    pub agent: String,
    /// Why, for those who wonder
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

pub(super) fn main(verb: &QueueVerb, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    match verb {
        QueueVerb::Ls(args) => list(args, &invocation),
        QueueVerb::Show(args) => show_task(args, &invocation),
        QueueVerb::Requeue(args) => {
            let queue = invocation.need_queue()?;
            let board = Board::scan(&invocation, Some(queue.clone()))?;
            requeue(&invocation, &queue, &board, &target::task(&board, &args.task)?)
        }
        QueueVerb::Drop(args) => cancel::drop_task(args, &invocation),
        QueueVerb::Pause(args) => pause(args, &invocation),
        QueueVerb::Resume(args) => resume(args, &invocation),
    }
}

fn list(args: &LsArgs, invocation: &Invocation) -> Result<u8, Failure> {
    let queue = invocation.queue_if_any()?;
    let board = Board::scan(invocation, queue)?;
    if args.failed {
        return list_failed(args, invocation, &board);
    }
    let mut inboxes = board.inboxes().map_err(|error| unreadable_queue(&error))?;
    if let Some(agent) = &args.agent {
        check_agent(agent)?;
        let known: Vec<&str> = inboxes.iter().map(|inbox| inbox.agent.as_str()).collect();
        if !known.contains(&agent.as_str()) && !is_configured(invocation, agent) {
            let failure = Failure::invalid(format!("there is no inbox of `{agent}`"));
            return Err(match known.is_empty() {
                true => failure.hint("there is none at all"),
                false => failure.hint(format!("there are `{}`", known.join("`, `"))),
            });
        }
        inboxes.retain(|inbox| inbox.agent == *agent);
    }
    let (mut shown, mut rows, mut more) = (Vec::new(), Vec::new(), 0);
    for inbox in inboxes {
        let (tasks, total) =
            board.tasks(&inbox.agent, args.limit).map_err(|error| unreadable_queue(&error))?;
        more += total - tasks.len();
        rows.extend(tasks.iter().map(row));
        let mut inbox = serde_json::to_value(&inbox).unwrap_or_default();
        inbox["tasks"] = serde_json::to_value(tasks).unwrap_or_default();
        shown.push(inbox);
    }
    if invocation.common.json {
        put_json("queue/v1", json!({ "inboxes": shown }))?;
        return Ok(0);
    }
    let dropped: u64 = shown.iter().filter_map(|inbox| inbox["dropped"].as_u64()).sum();
    if dropped > 0 {
        let files = if dropped == 1 { "file that is no task" } else { "files that are no tasks" };
        invocation.note(format!("{dropped} dropped {files} yet"));
    }
    standing::say_parked(invocation, &board);
    standing::say_ignored(invocation, args.agent.as_deref());
    if rows.is_empty() && more > 0 {
        invocation.note(format!("{} to be shown: say so with `--limit`", counted(more, "task")));
        return Ok(0);
    }
    if rows.is_empty() {
        invocation.note("no task is waiting or being executed");
        return Ok(0);
    }
    let titles = ["TASK", "AGENT", "STATE", "ATTEMPT", "WHAT", "RUN", "BY"];
    rows.insert(0, titles.map(str::to_owned).to_vec());
    put(&table(&rows))?;
    if more > 0 {
        invocation.note(format!("and {more} more; `--limit` shows them"));
    }
    Ok(0)
}

/// Lists failed tasks that belong to no run.
fn list_failed(args: &LsArgs, invocation: &Invocation, board: &Board) -> Result<u8, Failure> {
    if let Some(agent) = &args.agent {
        check_agent(agent)?;
    }
    let (tasks, total) = board
        .failed_tasks(args.agent.as_deref(), args.limit)
        .map_err(|error| unreadable_queue(&error))?;
    if invocation.common.json {
        put_json("queue/v1", json!({ "inboxes": [], "failed": tasks }))?;
        return Ok(0);
    }
    if tasks.is_empty() {
        invocation.note("no task is in failed/, but for those of runs");
        return Ok(0);
    }
    let mut rows =
        vec![["TASK", "AGENT", "ATTEMPT", "WHAT", "WHEN", "WHY"].map(str::to_owned).to_vec()];
    rows.extend(tasks.iter().map(|task| {
        let PlaceView::Failed(ended) = &task.place else { return Vec::new() };
        let (attempt, at) = (task.attempt.to_string(), ended.at.clone().unwrap_or_default());
        let (label, why) = (task.label.clone(), ended.message.clone());
        vec![task.task.clone(), task.agent.clone(), attempt, label, at, why]
    }));
    put(&sanitize(&table(&rows)))?;
    if total > tasks.len() {
        invocation.note(format!("and {} more; `--limit` shows them", total - tasks.len()));
    }
    invocation.note("`orchestrate why TASK` says more, `orchestrate retry TASK` does it again");
    Ok(0)
}

fn row(task: &TaskView) -> Vec<String> {
    let by = match &task.place {
        PlaceView::Claimed { worker, host, life, .. } => {
            let host = host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
            format!("{worker}{host}, {}", life.label())
        }
        PlaceView::Waiting { paused: Some(_), .. } => "paused".to_owned(),
        PlaceView::Waiting { parked: Some(_), .. } => "provider parked".to_owned(),
        _ => String::new(),
    };
    let run = task.run_id.clone().unwrap_or_else(|| "-".to_owned());
    vec![
        task.task.clone(),
        task.agent.clone(),
        task.place.word().to_owned(),
        task.attempt.to_string(),
        task.label.clone(),
        run,
        by,
    ]
}

fn show_task(args: &TaskArg, invocation: &Invocation) -> Result<u8, Failure> {
    let queue = invocation.need_queue()?;
    let board = Board::scan(invocation, Some(queue.clone()))?;
    let found = target::task(&board, &args.task)?;
    let failed = |error: std::io::Error| unreadable_queue(&error);
    let view = board.task(&found).map_err(failed)?;
    let task = queue.read(&found.place, &found.batch).map_err(failed)?;
    let document = task.map(|task| for_people(task.document));
    let status = match &found.place {
        Place::Ended { end, name, .. } => queue.status(*end, &found.batch, name).map_err(failed)?,
        _ => None,
    };
    let status = status.map(for_people);
    let earlier = earlier_statuses(&queue, &view.task);
    let file = file_of(&queue, &found);
    if invocation.common.json {
        let body = json!({
            "task": view, "file": file, "document": document, "status": status,
            "earlier": earlier,
        });
        put_json("task-view/v1", body)?;
        return Ok(0);
    }
    let mut text = format!("{}\n  {file}\n", view::why_task(&view));
    text.push_str(&section("document", document.map(Value::Object).as_ref()));
    text.push_str(&section("status", status.map(Value::Object).as_ref()));
    for (number, status) in earlier.iter().enumerate() {
        text.push_str(&section(&format!("earlier status {}", number + 1), Some(status)));
    }
    put(&text)?;
    Ok(0)
}

/// Removes the claim's ticket from a document: a process that knows the ticket can end the task.
fn for_people(mut document: Map<String, Value>) -> Map<String, Value> {
    document.shift_remove("ticket");
    document
}

fn section(title: &str, value: Option<&Value>) -> String {
    let Some(value) = value else { return String::new() };
    format!("{title}\n{}\n", serde_json::to_string_pretty(value).unwrap_or_default())
}

/// Returns the current file of a task, relative to the workspace.
fn file_of(queue: &Queue, found: &Found) -> String {
    let layout = &queue.layout;
    let path = match &found.place {
        Place::Waiting { agent, name } => layout.inbox(agent).join(name.file()),
        Place::Claimed { agent, name } => layout.claimed(agent).join(name.file()),
        Place::Ended { end, name, by } => layout.end(*end, &found.batch).join(name.ended(by)),
    };
    path.strip_prefix(&layout.root).unwrap_or(&path).display().to_string()
}

/// Returns the statuses of earlier attempts of a task: those that were requeued and those that came
/// too late.
fn earlier_statuses(queue: &Queue, id: &str) -> Vec<Value> {
    let (census, dir) = (queue.census(), queue.layout.evidence());
    let names = census.markers(Marker::Evidence).unwrap_or_default().into_iter();
    let mut found: Vec<(u64, Map<String, Value>)> = names
        .filter(|name| name.contains(id))
        .filter_map(|name| seal::unseal(&census.read(&dir.join(name)).ok()??))
        .map(|status| (status.get("attempt").and_then(Value::as_u64).unwrap_or(0), status))
        .collect();
    found.sort_by_key(|(attempt, _)| *attempt);
    found.into_iter().map(|(_, status)| Value::Object(for_people(status))).collect()
}

/// Puts an ended free task back into its inbox. Refuses tasks of a run: only the run repeats them.
pub(super) fn requeue(
    invocation: &Invocation,
    queue: &Queue,
    board: &Board,
    found: &Found,
) -> Result<u8, Failure> {
    let view = board.task(found).map_err(|error| unreadable_queue(&error))?;
    let (id, agent) = (&view.task, &view.agent);
    let Place::Ended { end, name, by } = &found.place else {
        return Err(Failure::failed(view::why_task(&view)).hint(format!(
            "only what has ended is put back; `{ORCHESTRATE} cancel {id}` ends it"
        )));
    };
    if let (Some(run), "step" | "run") = (&view.run_id, view.kind.as_str()) {
        let message = match view.kind.as_str() {
            "run" => format!("task {id} is run {run} itself"),
            _ => format!("task {id} is of run {run}, which has taken its result in"),
        };
        let hint = format!("`{ORCHESTRATE} retry {run}` goes on with the run");
        return Err(Failure::invalid(message).hint(hint));
    }
    // A dropped file that was rejected never became a task.
    if view.kind.is_empty() {
        let file = file_of(queue, found);
        return Err(Failure::invalid(view::why_task(&view)).hint(format!(
            "it never became a task: mend its text, which is in `{file}`, and put it into \
             inbox/{agent} anew"
        )));
    }
    let requeued = queue.requeue(*end, &found.batch, name, by);
    match requeued.map_err(|error| unreadable_queue(&error))? {
        Ending::Committed => {}
        Ending::Fenced => {
            return Err(Failure::failed(format!("task {id} was moved by somebody else meanwhile")));
        }
    }
    let was = match end {
        End::Processed => "processed",
        End::Failed => "failed",
        End::Cancelled => "cancelled",
    };
    if invocation.common.json {
        put_json("requeue/v1", json!({ "task": id, "agent": agent, "was": was }))?;
    } else {
        put(&format!("task {id} waits in inbox/{agent} again\n"))?;
    }
    if board.members.serving(agent).next().is_none() {
        tracing::warn!("no `{agent}` worker is alive: `orchestrate worker {agent}` starts one");
    }
    Ok(0)
}

fn check_agent(agent: &str) -> Result<(), Failure> {
    match name_fault(agent) {
        Some(fault) => Err(Failure::invalid(format!("`{agent}` cannot name an agent: {fault}"))),
        None => Ok(()),
    }
}

fn is_configured(invocation: &Invocation, agent: &str) -> bool {
    invocation.config.agents().contains_key(agent) || agent == COORDINATOR
}

fn pause(args: &PauseArgs, invocation: &Invocation) -> Result<u8, Failure> {
    let PauseArgs { agent, reason } = args;
    check_agent(agent)?;
    let queue = invocation.open_queue()?;
    let known = queue.agents().map_err(|error| unreadable_queue(&error))?;
    if !is_configured(invocation, agent) && !known.contains(agent) {
        tracing::warn!("nobody knows an agent `{agent}`: neither the settings nor the inboxes");
    }
    queue.pause(agent, reason).map_err(|error| unreadable_queue(&error))?;
    told(invocation, agent, true, reason)
}

fn resume(args: &AgentArg, invocation: &Invocation) -> Result<u8, Failure> {
    check_agent(&args.agent)?;
    let queue = invocation.need_queue()?;
    let failed = |error: std::io::Error| unreadable_queue(&error);
    if queue.paused(&args.agent).map_err(failed)?.is_none() {
        invocation.note(format!("`{}` was not paused", args.agent));
        return if invocation.common.json {
            told(invocation, &args.agent, false, "")
        } else {
            Ok(0)
        };
    }
    queue.resume(&args.agent).map_err(failed)?;
    told(invocation, &args.agent, false, "")
}

fn told(invocation: &Invocation, agent: &str, paused: bool, reason: &str) -> Result<u8, Failure> {
    if invocation.common.json {
        let body = json!({ "agent": agent, "paused": paused, "reason": reason });
        put_json("pause/v1", body)?;
    } else if paused {
        put(&format!("`{agent}` is paused; what is being executed goes on\n"))?;
    } else {
        put(&format!("`{agent}` is served again\n"))?;
    }
    Ok(0)
}
