//! Formats runs, members, inboxes and steps as table rows, for all views.

use super::progress::{seconds, whole_seconds};
use super::{InboxView, Life, Owner, PlaceView, RunView, StepShown, StepView, WorkerView};
use crate::attempt::documents::COORDINATOR;
use crate::base::ids::{Attempt, TaskAttempt, counted, shown};
use crate::base::time::Time;
use crate::view;

/// Returns the row of a run.
pub(crate) fn run_row(run: &RunView, now: Time) -> Vec<String> {
    let (id, state, file) = (&run.run_id, run.state.word(), run.what(&run.workflow_file));
    vec![id.clone(), state.to_owned(), file, run_time(run, now), view::remark(run)]
}

/// Returns the duration of a run, up to now if it is active.
pub(crate) fn run_time(run: &RunView, now: Time) -> String {
    let until = if run.state.rests() { run.updated_at } else { Some(now) };
    // A run's timestamps have a resolution of a second, so there are no tenths.
    until.zip(run.started_at).map(|(end, at)| whole_seconds(end.ms_since(at))).unwrap_or_default()
}

/// Returns the row of a member.
pub(crate) fn worker_row(worker: &WorkerView, now: Time) -> Vec<String> {
    let WorkerView { agent, worker: name, life, host, pid, .. } = worker;
    let mut state = life.label();
    if worker.draining && !life.is_over() {
        state.push_str(", draining");
    }
    let up = Time::parse(&worker.started_at).filter(|_| !life.is_over());
    let up = up.map(|at| format!("up {}", whole_seconds(now.ms_since(at)))).unwrap_or_default();
    vec![agent.clone(), name.clone(), state, format!("{host} pid {pid}"), busy(worker), up]
}

/// Describes a member's work; for a dead member, the claims that it left.
pub(crate) fn busy(worker: &WorkerView) -> String {
    let coordinates = worker.agent == COORDINATOR;
    let what = if coordinates { "run" } else { "task" };
    match (&worker.run, worker.claims) {
        (_, claims) if worker.life.is_over() => match claims {
            0 => String::new(),
            claims => format!("left {}", counted(claims, what)),
        },
        (Some(run), _) => format!("drives run {run}"),
        (None, 0) => "idle".to_owned(),
        (None, claims) if coordinates => format!("drives {}", counted(claims, what)),
        (None, claims) => format!("{claims} of {} busy", worker.concurrency),
    }
}

/// Returns the row of an inbox.
pub(crate) fn inbox_row(inbox: &InboxView) -> Vec<String> {
    let InboxView { agent, waiting, claimed, dropped, workers, suspended, paused, .. } = inbox;
    let mut served = match workers {
        0 if waiting + dropped > 0 => "nobody serves it".to_owned(),
        0 => "no worker".to_owned(),
        1 => "1 worker".to_owned(),
        workers => format!("{workers} workers"),
    };
    served += &match suspended {
        0 => String::new(),
        all if all == workers => ", suspended".to_owned(),
        some => format!(", {some} suspended"),
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

/// Names the owner of a run, if there is one.
pub(crate) fn owner_line(owner: &Owner) -> Option<String> {
    match owner {
        Owner::Process { pid: Some(pid) } => Some(format!("driven by process {pid}")),
        Owner::Process { pid: None } => Some("driven by a process of another machine".to_owned()),
        Owner::Coordinator { worker, host, pid, life } => {
            let host = host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
            let pid = pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
            Some(format!("held by coordinator {worker}{host}{pid}: {}", life.label()))
        }
        Owner::Locked { worker, pid, .. } => Some(format!(
            "held by coordinator {worker}, which waits for process {pid} to let go of its lock"
        )),
        Owner::Queue { .. } | Owner::Nobody { .. } => None,
    }
}

/// Returns the steps of a run as a tree, one row each: position marker and name, state, agent,
/// duration, and notes.
pub(crate) fn step_rows(steps: &[StepView], now: Time) -> Vec<Vec<String>> {
    let branches = branches(steps);
    let rows = steps.iter().zip(branches).map(|(step, branch)| {
        let mark = if step.current { ">" } else { " " };
        let name = format!("{mark} {branch}{}", shown(&step.step));
        let agent = step.agent.clone().unwrap_or_default();
        vec![
            name,
            step.state.word().to_owned(),
            agent,
            step_time(step, now),
            notes(step).join(", "),
        ]
    });
    rows.collect()
}

/// Returns the tree prefix of each step's name.
pub(crate) fn branches(steps: &[StepView]) -> Vec<String> {
    let is_last = |index: usize, depth: usize| {
        let after = steps[index + 1..].iter().find(|step| step.depth <= depth);
        after.is_none_or(|step| step.depth < depth)
    };
    let branch = |(index, step): (usize, &StepView)| {
        let above = (1..step.depth).map(|depth| if is_last(index, depth) { "   " } else { "│  " });
        let own = match step.depth {
            0 => "",
            depth if is_last(index, depth) => "└─ ",
            _ => "├─ ",
        };
        above.collect::<String>() + own
    };
    steps.iter().enumerate().map(branch).collect()
}

/// Returns the duration of a step, up to now if it is active.
pub(crate) fn step_time(step: &StepView, now: Time) -> String {
    match (step.duration_ms, step.started_at) {
        (Some(ms), _) => seconds(ms),
        // Its end is unknown, and it is not running.
        _ if matches!(step.state, StepShown::Interrupted | StepShown::Lost) => String::new(),
        (None, Some(at)) if !step.state.is_over() => seconds(now.ms_since(at)),
        _ => String::new(),
    }
}

/// Returns notes about a step, the most important last: its error or its last output.
fn notes(step: &StepView) -> Vec<String> {
    let mut notes = Vec::new();
    if step.attempt > Attempt::FIRST {
        notes.push(format!("attempt {}", step.attempt));
    }
    if step.executions > TaskAttempt::FIRST {
        notes.push(format!("execution {}", step.executions));
    }
    notes.extend(stands(step));
    let tree = step.waits_for_worktree.as_ref();
    notes.extend(tree.map(|tree| format!("waits for worktree {tree}")));
    notes.extend(step.task.as_ref().map(|task| place(&task.task, &task.agent, &task.place)));
    notes.extend(step.usage.as_ref().map(|spent| view::words(&spent.usage)));
    notes.extend(step.error.clone());
    let said = if step.error.is_some() { "said" } else { "says" };
    notes.extend(step.last_line.as_ref().map(|line| format!("{said}: {line}")));
    notes
}

/// Describes the progress of a step, and the things it waits for.
pub(crate) fn stands(step: &StepView) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(step.item.as_ref().map(|item| format!("item `{item}`")));
    notes.extend(step.items.map(|items| items.words()));
    notes.extend(step.rounds.filter(|rounds| *rounds > 1).map(|rounds| format!("round {rounds}")));
    if step.is_passed_over() {
        notes.push("executed at an earlier visit".to_owned());
    }
    if step.completed_before {
        notes.push("completed before".to_owned());
    }
    notes.extend(
        step.warning.clone().or(step.skip_cause.map(|cause| view::skipped(cause).to_owned())),
    );
    let asks = match (step.answered, step.expired) {
        (true, _) => "was answered",
        (_, true) => "nobody answered in time",
        _ => "asks",
    };
    notes.extend(step.asks.as_ref().map(|asked| format!("{asks}: {asked}")));
    if !step.needs.is_empty() && step.state == StepShown::Pending {
        notes.push(format!("waits for {}", listed(&step.needs)));
    }
    notes.extend(step.until.map(|until| format!("until {}", until.to_second())));
    notes.extend(step.parked.as_ref().map(|_| "its provider is parked".to_owned()));
    notes.extend(step.waits_for.as_ref().map(|glob| format!("for files `{glob}`")));
    notes
}

/// Lists a few names, and the number of the others.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Describes the place of a task in a few words.
fn place(task: &str, agent: &str, place: &PlaceView) -> String {
    match place {
        PlaceView::Waiting { parked: Some(_), .. } => {
            format!("task {task} waits in inbox/{agent}, its provider is parked")
        }
        PlaceView::Waiting { .. } => format!("task {task} waits in inbox/{agent}"),
        PlaceView::Claimed { worker, host, life, .. } => {
            let host = host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
            let life = match life {
                Life::Alive { .. } => String::new(),
                life => format!(", {}", life.label()),
            };
            format!("task {task} claimed by {worker}{host}{life}")
        }
        other => format!("task {task} is in {}/", other.word()),
    }
}
