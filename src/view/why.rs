//! Explains in one sentence why a run, a step or a task is in its state. Reads only the board.

use super::progress::whole_seconds;
use super::runs::still_run;
use super::tasks::{PlaceView, TaskView};
use super::{Life, Owner, RunDetail, RunView, Standing, StepShown, StepView};
use crate::base::ids::{TaskAttempt, shown};
use crate::base::program_name::ORCHESTRATE;
use crate::base::time::Time;
use crate::engine::SkipCause;
use crate::run::open::Cure;

/// Explains the state of a run.
pub(crate) fn why_run(detail: &RunDetail) -> String {
    let why = why_here(detail);
    match &detail.run.elsewhere {
        Some(home) => format!(
            "{why}; it is of the workspace `{}`, and only there anything is done with it",
            home.display()
        ),
        None => why,
    }
}

/// Explains the state of a run of this workspace.
fn why_here(detail: &RunDetail) -> String {
    let RunDetail { run, steps, failed, .. } = detail;
    let id = &run.run_id;
    let at = run.updated_at.map(|at| format!(" at {}", at.to_second())).unwrap_or_default();
    match run.state {
        Standing::Completed => format!("run {id} completed{at}"),
        Standing::Cancelled => {
            let reason = run.error.as_deref().map(because).unwrap_or_default();
            format!("run {id} was cancelled{at}{reason}")
        }
        Standing::Failed | Standing::Blocked => {
            let why = why_failed(run, failed.as_ref());
            match run.error.is_none() && !run.failed_steps.is_empty() {
                true if failed.as_ref().is_some_and(|step| step.of_spell) => format!(
                    "{why}; the run keeps the spells that it began with: mend it, and \
                     `{ORCHESTRATE} resume {id} --accept-changes` continues with it"
                ),
                true if run.changed => format!(
                    "{why}; `{}` was changed since, and `{ORCHESTRATE} resume {id} \
                     --accept-changes` continues with it",
                    run.workflow_file
                ),
                true if run.through => format!(
                    "{why}; every {} has had its turn, and `{ORCHESTRATE} retry {id} --from {}` \
                     goes on from there again",
                    run.unit,
                    first_failed(&run.failed_steps)
                ),
                true => {
                    format!("{why}; `{ORCHESTRATE} resume {id}` goes on with that {}", run.unit)
                }
                false => why,
            }
        }
        Standing::Damaged | Standing::Unreadable => why_damaged(run),
        Standing::Queued => why_queued(run),
        Standing::Stopped => why_stopped(run),
        Standing::Paused => why_paused(run, steps),
        Standing::Doubtful if matches!(run.owner, Owner::Locked { .. }) => why_doubtful(run),
        Standing::Doubtful => format!("{}; {}", why_doubtful(run), why_current(run, steps)),
        Standing::Running => why_current(run, steps),
    }
}

/// Explains the state of a step.
pub(crate) fn why_step(detail: &RunDetail, step: &StepView) -> String {
    let (name, unit) = (shown(&step.step), detail.run.unit);
    let blocked = !step.current && matches!(step.state, StepShown::Pending);
    if !blocked {
        return sentence(&detail.run, step);
    }
    // In a graph, it waits for the nodes before it; in a list, for the current step.
    let before = match step.needs.first() {
        Some(need) => detail.steps.iter().find(|other| other.depth == 0 && other.name == *need),
        None => detail.steps.iter().find(|step| step.current),
    };
    match before {
        Some(before) if detail.run.state == Standing::Running => {
            let why = match before.needs.is_empty() {
                true => sentence(&detail.run, before),
                false => why_step(detail, before),
            };
            format!("{unit} `{name}` is blocked by {unit} `{}`: {why}", shown(&before.step))
        }
        _ => format!("{unit} `{name}` has not been reached: {}", why_run(detail)),
    }
}

/// Describes in a few words why a node was skipped.
pub(crate) fn skipped(cause: SkipCause) -> &'static str {
    match cause {
        SkipCause::Condition => "its condition did not hold",
        SkipCause::UpstreamFailed => "what it needs failed",
        SkipCause::UpstreamSkipped => "what it needs was skipped",
    }
}

pub(super) fn why_damaged(run: &RunView) -> String {
    let reason = run.error.as_deref().unwrap_or("its files are not whole");
    let id = &run.run_id;
    match run.state {
        Standing::Unreadable => format!("run {id} cannot be read by this user: {reason}"),
        _ => {
            let helps = match run.cure {
                Cure::Repair => format!("`{ORCHESTRATE} resume {id} --repair` rebuilds it"),
                Cure::Restart => {
                    format!("`{ORCHESTRATE} resume {id} --force-restart` begins anew")
                }
                Cure::Remove => format!("`{ORCHESTRATE} clean --stopped` removes it by its age"),
            };
            format!("run {id} cannot be read: {reason}; {helps}")
        }
    }
}

/// Returns the top-level step that contains the first failure.
pub(crate) fn first_failed(failed: &[String]) -> String {
    let path = failed.first().map(String::as_str).unwrap_or_default();
    shown(path.split('.').next().unwrap_or(path)).into_owned()
}

fn why_failed(run: &RunView, step: Option<&StepView>) -> String {
    let id = &run.run_id;
    let word = if run.state == Standing::Blocked { "is blocked" } else { "failed" };
    if let Some(error) = &run.error {
        return format!("run {id} {word}: {error}");
    }
    let Some(failed) = run.failed_steps.last() else { return format!("run {id} {word}") };
    let because = step.and_then(fault).map(|fault| format!(", because: {fault}"));
    let item = step.and_then(|step| Some(format!(" (`{}`)", step.item.as_ref()?)));
    let (failed, item) = (shown(failed), item.unwrap_or_default());
    format!("run {id} {word} at {} `{failed}`{item}{}", run.unit, because.unwrap_or_default())
}

/// Describes the failure of a step: its error and its last output.
fn fault(step: &StepView) -> Option<String> {
    let error = step.error.as_ref()?;
    Some(match &step.last_line {
        Some(line) => format!("{error}; it said: {line}"),
        None => error.clone(),
    })
}

/// Explains an expired gate of a run that no process has driven since.
fn why_expired(run: &RunView, names: &str) -> String {
    let id = &run.run_id;
    format!(
        "nobody answered run {id} in time at {names}; `{ORCHESTRATE} pending {id}` says how to ask \
         again"
    )
}

fn why_paused(run: &RunView, steps: &[StepView]) -> String {
    let id = &run.run_id;
    let named = |is: &dyn Fn(&StepView) -> bool| {
        let gates = steps.iter().filter(|step| step.asks.is_some() && is(step));
        gates.map(|step| format!("`{}`", shown(&step.step))).collect::<Vec<_>>().join(", ")
    };
    let filled = |names: String| (!names.is_empty()).then_some(names);
    let answered = filled(named(&|step| step.answered)).map(|names| why_answered(run, &names));
    let expired = filled(named(&|step| step.expired)).map(|names| why_expired(run, &names));
    let open = filled(named(&|step| !step.answered && !step.expired)).map(|names| {
        format!("run {id} waits for a person at {names}; `orchestrate pending` says what to decide")
    });
    let said: Vec<String> = [answered, expired, open].into_iter().flatten().collect();
    match said.is_empty() {
        true => format!("run {id} waits for a person; `orchestrate pending` says what to decide"),
        false => said.join("; "),
    }
}

/// Explains why a run does not continue although a user has answered.
fn why_answered(run: &RunView, names: &str) -> String {
    let id = &run.run_id;
    let answered = format!("run {id} has its answer at {names}");
    let go_on = format!("`orchestrate resume {id}` goes on with it");
    match (&run.owner, &run.turn_after) {
        (Owner::Nobody { .. }, None) => format!("{answered}, and nobody drives it; {go_on}"),
        (Owner::Nobody { .. }, Some(before)) => format!(
            "{answered} and waits for {before}, which works on this checkout; when that has ended, \
             {go_on}"
        ),
        (Owner::Queue { .. }, _) => format!("{answered}; {}", why_queued(run)),
        _ => format!("{answered}, which counts as soon as whoever drives it has seen it"),
    }
}

pub(crate) fn why_queued(run: &RunView) -> String {
    let id = &run.run_id;
    if let Some(before) = &run.turn_after {
        return format!("run {id} waits for its turn: {before} works on this checkout");
    }
    let Owner::Queue { ahead, coordinators, paused } = &run.owner else {
        return format!("run {id} waits for a coordinator");
    };
    if let Some(reason) = paused {
        return format!(
            "run {id} waits because `coordinator` is paused{}; `orchestrate queue resume \
             coordinator` lets it go on",
            because(reason)
        );
    }
    match (coordinators, ahead) {
        (0, _) => format!(
            "run {id} waits for a coordinator, and none is alive; `orchestrate coordinator` \
             starts one"
        ),
        (_, 0) => format!("run {id} waits for a coordinator to take it up"),
        (_, ahead) => {
            format!("run {id} waits for a coordinator; {} ahead of it", count(*ahead, "run"))
        }
    }
}

fn why_stopped(run: &RunView) -> String {
    let id = &run.run_id;
    let at = |step: &String| format!(", which stands at {} {}", run.unit, each_quoted(step));
    let step = run.step.as_ref().map(at);
    let dead = match &run.owner {
        Owner::Coordinator { worker, host, .. } => {
            format!(": its coordinator {} is dead", on(worker, host.as_deref()))
        }
        Owner::Nobody { reason: Some(reason) } => because(reason),
        _ => String::new(),
    };
    let step = step.unwrap_or_default();
    let goes_on = format!("`{ORCHESTRATE} resume {id}` goes on with it");
    match run.left_behind {
        0 => format!("nobody drives run {id}{step}{dead}; {goes_on}"),
        left => format!(
            "nobody drives run {id}{step}{dead}, but {}; {goes_on}, `{ORCHESTRATE} cancel {id}` \
             ends it, and both end what is left",
            still_run(left)
        ),
    }
}

/// Returns a short note about a run, in addition to its state.
pub(crate) fn remark(run: &RunView) -> String {
    // Other commands would be refused here.
    if let Some(home) = &run.elsewhere {
        return format!("of the workspace `{}`", home.display());
    }
    let id = &run.run_id;
    match (&run.state, &run.owner) {
        (Standing::Running, _) => match &run.step {
            Some(step) => format!("at {}", each_quoted(step)),
            None => String::new(),
        },
        (Standing::Queued, _) if run.turn_after.is_some() => {
            let before = run.turn_after.as_deref().unwrap_or_default();
            format!("waits for its turn after {before}")
        }
        (Standing::Queued, Owner::Queue { paused: Some(reason), .. }) => {
            format!("`coordinator` is paused{}", because(reason))
        }
        (Standing::Queued, Owner::Queue { coordinators: 0, .. }) => {
            "no coordinator is alive; orchestrate coordinator".to_owned()
        }
        (Standing::Queued, _) => "waits for a coordinator".to_owned(),
        (Standing::Doubtful, Owner::Coordinator { life, .. }) if life.age_ms().is_some() => {
            let age = whole_seconds(life.age_ms().unwrap_or_default());
            format!("the last heartbeat of its coordinator was {age} ago")
        }
        (Standing::Doubtful, _) => "no beat of its coordinator was seen".to_owned(),
        (Standing::Stopped, Owner::Coordinator { worker, host, .. }) => {
            let on = on(worker, host.as_deref());
            format!("coordinator {on} is dead; {ORCHESTRATE} resume {id}")
        }
        (Standing::Paused, Owner::Nobody { .. }) if run.answered => {
            format!("has its answer; orchestrate resume {id}")
        }
        (Standing::Paused, _) if run.answered => "has its answer".to_owned(),
        (Standing::Paused, _) => "waits for a person; orchestrate pending".to_owned(),
        (Standing::Stopped, _) => format!("nobody drives it; {ORCHESTRATE} resume {id}"),
        (Standing::Failed | Standing::Blocked, _) => match (&run.error, run.failed_steps.last()) {
            (Some(error), _) => error.clone(),
            (None, Some(step)) => format!("at `{}`", shown(step)),
            (None, None) => String::new(),
        },
        (Standing::Damaged, _) => match run.cure {
            Cure::Repair => format!("{ORCHESTRATE} resume {id} --repair"),
            Cure::Restart => format!("{ORCHESTRATE} resume {id} --force-restart"),
            Cure::Remove => format!("{ORCHESTRATE} clean --stopped"),
        },
        (Standing::Unreadable, _) => "it cannot be read by this user".to_owned(),
        (Standing::Completed | Standing::Cancelled, _) => String::new(),
    }
}

/// Quotes each of a run's current steps in `a, b and 3 more`.
fn each_quoted(places: &str) -> String {
    let (named, more) = match places.split_once(" and ") {
        Some((named, more)) => (named, format!(" and {more}")),
        None => (places, String::new()),
    };
    let named: Vec<_> = named.split(", ").map(|name| format!("`{name}`")).collect();
    format!("{}{more}", named.join(", "))
}

fn why_doubtful(run: &RunView) -> String {
    match &run.owner {
        Owner::Coordinator { worker, host, life, .. } => {
            let (on, id) = (on(worker, host.as_deref()), &run.run_id);
            match life.age_ms() {
                Some(age) => format!(
                    "the last heartbeat of coordinator {on}, which drives run {id}, was {} ago",
                    whole_seconds(age)
                ),
                None => format!("no beat was seen of coordinator {on}, which drives run {id}"),
            }
        }
        Owner::Locked { worker, host, pid } => {
            let on = on(worker, host.as_deref());
            format!(
                "coordinator {on} has run {} and waits for process {pid}, which still has its \
                 lock and may be stopped",
                run.run_id
            )
        }
        _ => format!("nobody was seen to drive run {}", run.run_id),
    }
}

fn why_current(run: &RunView, steps: &[StepView]) -> String {
    const SHOWN: usize = 3;
    let current: Vec<_> = steps.iter().filter(|step| step.current).collect();
    if current.is_empty() {
        return format!("run {} is between two {}s", run.run_id, run.unit);
    }
    let shown: Vec<_> = current.iter().take(SHOWN).map(|step| sentence(run, step)).collect();
    match current.len().saturating_sub(SHOWN) {
        0 => shown.join("; "),
        more => format!("{}; and {more} more", shown.join("; ")),
    }
}

/// Explains the state of a step, with its item.
fn sentence(run: &RunView, step: &StepView) -> String {
    match &step.item {
        Some(item) => format!("{}; its item is `{item}`", stands(run, step)),
        None => stands(run, step),
    }
}

fn stands(run: &RunView, step: &StepView) -> String {
    let (name, unit) = (shown(&step.step), run.unit);
    let lives = matches!(step.state, StepShown::Running);
    if let Some(tree) = step.waits_for_worktree.as_ref().filter(|_| lives) {
        return format!("{unit} `{name}` waits for worktree {tree}");
    }
    if let Some(task) = &step.task {
        return format!("{unit} `{name}` {}", placed(task));
    }
    let since = since(step.started_at);
    let again = match step.executions {
        TaskAttempt::NONE | TaskAttempt::FIRST => String::new(),
        executions => {
            let why = step.warning.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            format!(" in execution {executions}{why}")
        }
    };
    match step.state {
        StepShown::Running if step.waits_for.is_some() => {
            let glob = step.waits_for.as_deref().unwrap_or_default();
            format!("{unit} `{name}` waits for files `{glob}`{since}")
        }
        StepShown::Running => format!("{unit} `{name}` is being executed by {}{since}", who(run)),
        StepShown::Resting => {
            let until = step.until.map(Time::to_second).unwrap_or_default();
            let fault = fault(step).map(|fault| because(&fault)).unwrap_or_default();
            format!("{unit} `{name}` rests until {until} after a failure{fault}")
        }
        StepShown::Asking if step.answered => {
            format!(
                "{unit} `{name}` was answered, which counts as soon as whoever drives the run has \
                 seen it"
            )
        }
        StepShown::Asking if step.expired => {
            format!("{unit} `{name}` has failed: nobody answered in time")
        }
        StepShown::Asking if step.asks.is_some() => {
            let asks = step.asks.as_deref().unwrap_or_default();
            format!("{unit} `{name}` asks a person{since}: {asks}")
        }
        StepShown::Skipped if step.is_passed_over() => {
            let cause = step.skip_cause.map(skipped);
            let why = step.warning.as_deref().or(cause).map(because).unwrap_or_default();
            format!(
                "{unit} `{name}` was skipped at its last visit{why}; before that it was executed: \
                 `{ORCHESTRATE} logs {} {name}` shows what it printed",
                run.run_id
            )
        }
        StepShown::Skipped if step.skip_cause.is_some() => {
            let cause = step.skip_cause.map_or("", skipped);
            let why = step.warning.as_deref().unwrap_or(cause);
            format!("{unit} `{name}` was skipped: {why}")
        }
        StepShown::Asking => {
            format!("{unit} `{name}` failed, and a person is asked what follows by {}", who(run))
        }
        StepShown::Failed if step.error.is_none() && step.items.is_some() => {
            let items = step.items.map(|items| items.words()).unwrap_or_default();
            let within = format!("{}.", step.step);
            let last = run.failed_steps.iter().rfind(|failed| failed.starts_with(&within));
            let last = last.map(|failed| {
                let id = &run.run_id;
                format!("; `{ORCHESTRATE} why {id} {}` tells more", shown(failed))
            });
            format!("{unit} `{name}` failed: {items}{}", last.unwrap_or_default())
        }
        StepShown::Failed => {
            let fault = fault(step).map(|fault| because(&fault)).unwrap_or_default();
            format!("{unit} `{name}` failed{again}{fault}")
        }
        StepShown::Lost => format!(
            "{unit} `{name}` is on record as put out, but its task is nowhere; another task is \
             made for it when a coordinator drives the run"
        ),
        StepShown::Ready if step.parked.is_some() => {
            format!("{unit} `{name}` waits: {}", step.parked.as_deref().unwrap_or_default())
        }
        StepShown::Ready => format!("{unit} `{name}` is about to be executed by {}", who(run)),
        StepShown::Unpublished => format!(
            "{unit} `{name}` is on record, and its task is not in an inbox yet: {} publishes it",
            who(run)
        ),
        other => format!("{unit} `{name}` is {}{again}", other.word()),
    }
}

/// Explains the place of a task.
pub(crate) fn why_task(task: &TaskView) -> String {
    let of = match (&task.run_id, &task.step) {
        (Some(run), Some(step)) => format!(", step `{}` of run {run},", shown(step)),
        _ if !task.label.is_empty() => format!(", `{}`,", task.label),
        _ => String::new(),
    };
    format!("task {}{of} {}", task.task, placed(task))
}

/// Returns the text that follows the name of a task.
fn placed(task: &TaskView) -> String {
    let died = match task.crashes {
        0 => String::new(),
        1 => format!("; a worker died over it, so it came to execution {}", task.attempt),
        died => {
            let execution = task.attempt;
            format!("; workers died over it {died} times, so it came to execution {execution}")
        }
    };
    format!("{}{died}", placed_at(task))
}

fn placed_at(task: &TaskView) -> String {
    let agent = &task.agent;
    match &task.place {
        PlaceView::Waiting { paused: Some(reason), .. } => format!(
            "waits because `{agent}` is paused{}; `orchestrate queue resume {agent}` lets it go on",
            because(reason)
        ),
        PlaceView::Waiting { parked: Some(parked), .. } => format!("waits: {parked}"),
        PlaceView::Waiting { workers: 0, last, .. } => {
            let last = last.as_ref().map(|last| format!(" (the last was {last})"));
            format!(
                "waits for {} `{agent}` worker, and none is alive{}; `orchestrate worker {agent}` \
                 starts one",
                article(agent),
                last.unwrap_or_default()
            )
        }
        PlaceView::Waiting { ahead: 0, .. } => {
            format!("waits for {} `{agent}` worker to claim it; it is the next", article(agent))
        }
        PlaceView::Waiting { ahead, workers, .. } => {
            let ahead = count(*ahead, "task");
            match workers {
                1 => format!("waits for the `{agent}` worker; {ahead} ahead of it"),
                _ => format!("waits for one of {workers} `{agent}` workers; {ahead} ahead of it"),
            }
        }
        PlaceView::Claimed { worker, life, host, since: at, .. } => {
            let on = on(worker, host.as_deref());
            let since = since(*at);
            match life {
                Life::Dead => format!(
                    "was claimed by worker {on}, which is dead; another member of the fleet deals \
                     with it as soon as it looks"
                ),
                Life::Silent { age_ms: Some(age) } => format!(
                    "is claimed by worker {on}{since}, whose last heartbeat was {} ago",
                    whole_seconds(*age)
                ),
                Life::Silent { age_ms: None } => {
                    format!("is claimed by worker {on}{since}, which sends no heartbeat")
                }
                Life::Expired { age_ms } => format!(
                    "was claimed by worker {on}, whose last heartbeat was {} ago; another member \
                     of the fleet takes it over",
                    whole_seconds(*age_ms)
                ),
                Life::Unknown => format!(
                    "is claimed by worker {on}{since}; whether that lives shows only in its next \
                     beat"
                ),
                Life::Alive { .. } => match &task.waits_for_worktree {
                    Some(tree) => {
                        format!("was claimed by worker {on}{since} and waits for worktree {tree}")
                    }
                    None => format!("is being executed by worker {on}{since}"),
                },
            }
        }
        PlaceView::Processed(ended) => format!("was processed by worker {}", ended.worker),
        PlaceView::Failed(ended) => {
            let said = ended.said.as_ref().filter(|said| !ended.message.contains(said.as_str()));
            let said = said.map(|said| format!("; it said: {said}")).unwrap_or_default();
            let cure = match task.kind.as_str() {
                "free" => format!("; `orchestrate retry {}` does it again", task.task),
                _ => String::new(),
            };
            format!("failed{}{said}{cure}", because(&ended.message))
        }
        PlaceView::Cancelled(ended) => match ended.message.as_str() {
            "" | "cancelled" => "was cancelled".to_owned(),
            message => format!("was {message}"),
        },
    }
}

fn because(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

fn since(at: Option<Time>) -> String {
    at.map(|at| format!(" since {}", at.to_second())).unwrap_or_default()
}

fn on(worker: &str, host: Option<&str>) -> String {
    match host {
        Some(host) => format!("{worker} on {host}"),
        None => worker.to_owned(),
    }
}

/// Names the owner of a run.
fn who(run: &RunView) -> String {
    match &run.owner {
        Owner::Process { pid: Some(pid) } => format!("process {pid}"),
        Owner::Process { pid: None } => "a process of another machine".to_owned(),
        Owner::Coordinator { worker, host, .. } => {
            format!("coordinator {}", on(worker, host.as_deref()))
        }
        Owner::Locked { .. } | Owner::Queue { .. } | Owner::Nobody { .. } => "nobody".to_owned(),
    }
}

fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what} is"),
        number => format!("{number} {what}s are"),
    }
}

pub(super) fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u', 'A', 'E', 'I', 'O', 'U']) { "an" } else { "a" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Attempt;
    use crate::view::RunView;
    use crate::view::runs::Items;
    use crate::view::tasks::Ended;

    const RUN: &str = "20250115T143022Z-abcdef";

    fn task(place: PlaceView) -> TaskView {
        TaskView {
            task: "01JHNG00000000000000000000".into(),
            kind: "step".into(),
            agent: "engineer".into(),
            label: "Build".into(),
            run_id: Some(RUN.into()),
            step: Some("Build".into()),
            priority: 5,
            attempt: TaskAttempt::FIRST,
            crashes: 0,
            created_at: None,
            waits_for_worktree: None,
            place,
        }
    }

    fn waiting(ahead: usize, workers: usize, paused: Option<&str>, last: Option<&str>) -> TaskView {
        let (paused, last) = (paused.map(str::to_owned), last.map(str::to_owned));
        task(PlaceView::Waiting { ahead, workers, paused, parked: None, last })
    }

    fn claimed(life: Life) -> TaskView {
        let (worker, host) = ("w1".to_owned(), Some("far".to_owned()));
        task(PlaceView::Claimed { worker, life, host, pid: Some(7), since: Some(Time(0)) })
    }

    fn step(state: StepShown, task: Option<TaskView>) -> StepView {
        StepView {
            depth: 0,
            name: "Build".into(),
            last_line: None,
            step: "Build".into(),
            state,
            current: true,
            agent: None,
            attempt: Attempt::FIRST,
            executions: TaskAttempt::NONE,
            exit_code: None,
            started_at: Some(Time(0)),
            duration_ms: None,
            until: None,
            waits_for: None,
            waits_for_worktree: None,
            usage: None,
            error: None,
            of_spell: false,
            items: None,
            item: None,
            rounds: None,
            asks: None,
            answered: false,
            expired: false,
            completed_before: false,
            skip_cause: None,
            warning: None,
            parked: None,
            needs: Vec::new(),
            task,
        }
    }

    fn run(state: Standing, owner: Owner, steps: Vec<StepView>) -> RunDetail {
        let run = RunView {
            run_id: RUN.into(),
            run_root: String::new(),
            state,
            recorded: None,
            owner,
            turn_after: None,
            answered: false,
            fleet: true,
            workflow_file: "w.yaml".into(),
            bead: None,
            started_at: None,
            updated_at: Some(Time(0)),
            step: Some("Build".into()),
            failed_steps: Vec::new(),
            error: None,
            through: false,
            changed: false,
            left_behind: 0,
            elsewhere: None,
            cure: crate::run::open::Cure::default(),
            unit: "step",
        };
        RunDetail { run, usage: None, steps, failed: None, events: Vec::new() }
    }

    #[track_caller]
    fn reads(sentence: String, wanted: &str) {
        assert_eq!(sentence, wanted);
    }

    #[test]
    fn where_a_task_is() {
        let head = "task 01JHNG00000000000000000000, step `Build` of run \
            20250115T143022Z-abcdef,";
        for (task, wanted) in [
            (
                waiting(0, 0, None, Some("w0 on far")),
                "waits for an `engineer` worker, and none is alive (the last was w0 on far); \
                 `orchestrate worker engineer` starts one",
            ),
            (
                waiting(3, 1, Some("no money"), None),
                "waits because `engineer` is paused: no money; `orchestrate queue resume \
                 engineer` lets it go on",
            ),
            (
                waiting(0, 2, None, None),
                "waits for an `engineer` worker to claim it; it is the next",
            ),
            (
                waiting(1, 2, None, None),
                "waits for one of 2 `engineer` workers; 1 task is ahead of it",
            ),
            (waiting(4, 1, None, None), "waits for the `engineer` worker; 4 tasks are ahead of it"),
            (
                claimed(Life::Alive { age_ms: None }),
                "is being executed by worker w1 on far since 1970-01-01T00:00:00Z",
            ),
            (
                claimed(Life::Silent { age_ms: Some(30_000) }),
                "is claimed by worker w1 on far since 1970-01-01T00:00:00Z, whose last heartbeat \
                 was 30s ago",
            ),
            (
                claimed(Life::Expired { age_ms: 90_000 }),
                "was claimed by worker w1 on far, whose last heartbeat was 1m30s ago; another \
                 member of the fleet takes it over",
            ),
            (
                claimed(Life::Dead),
                "was claimed by worker w1 on far, which is dead; another member of the fleet \
                 deals with it as soon as it looks",
            ),
            (
                task(PlaceView::Failed(Ended { message: "no tests".into(), ..Ended::default() })),
                "failed: no tests",
            ),
        ] {
            reads(why_task(&task), &format!("{head} {wanted}"));
        }
    }

    #[test]
    fn where_a_run_is() {
        let dead = || Owner::Coordinator {
            worker: "c1".into(),
            host: Some("far".into()),
            pid: None,
            life: Life::Dead,
        };
        let at = || vec![step(StepShown::Running, None)];
        let go_on = format!("`orchestrate resume {RUN}` goes on with it");
        reads(
            why_run(&run(Standing::Stopped, Owner::Nobody { reason: None }, at())),
            &format!("nobody drives run {RUN}, which stands at step `Build`; {go_on}"),
        );
        reads(
            why_run(&run(Standing::Stopped, dead(), at())),
            &format!(
                "nobody drives run {RUN}, which stands at step `Build`: its coordinator c1 on far \
                 is dead; {go_on}"
            ),
        );
        reads(
            why_run(&run(Standing::Running, Owner::Process { pid: Some(7) }, at())),
            "step `Build` is being executed by process 7 since 1970-01-01T00:00:00Z",
        );
        let queue = Owner::Queue { ahead: 2, coordinators: 1, paused: None };
        reads(
            why_run(&run(Standing::Queued, queue, Vec::new())),
            &format!("run {RUN} waits for a coordinator; 2 runs are ahead of it"),
        );
    }

    #[test]
    fn what_a_run_waits_for_that_has_its_answer() {
        let nobody = || Owner::Nobody { reason: None };
        let gate = |name: &str, answered: bool| {
            let mut gate = step(StepShown::Asking, None);
            (gate.step, gate.asks, gate.answered) = (name.into(), Some("may I?".into()), answered);
            gate
        };
        let answer = format!("run {RUN} has its answer at `a`");
        let mut detail = run(Standing::Paused, nobody(), vec![gate("a", true)]);
        let go_on = format!("`orchestrate resume {RUN}` goes on with it");
        reads(why_run(&detail), &format!("{answer}, and nobody drives it; {go_on}"));
        detail.steps.push(gate("b", false));
        reads(
            why_run(&detail),
            &format!(
                "{answer}, and nobody drives it; {go_on}; run {RUN} waits for a person at `b`; \
                 `orchestrate pending` says what to decide"
            ),
        );
        let queue = Owner::Queue { ahead: 0, coordinators: 1, paused: None };
        reads(
            why_run(&run(Standing::Paused, queue, vec![gate("a", true)])),
            &format!("{answer}; run {RUN} waits for a coordinator to take it up"),
        );
    }

    #[test]
    fn what_a_step_waits_for() {
        let owner = || Owner::Process { pid: Some(7) };
        let why = |step: StepView| why_run(&run(Standing::Running, owner(), vec![step]));
        let mut resting = step(StepShown::Resting, None);
        resting.until = Some(Time(1000));
        resting.error = Some("overloaded".into());
        reads(
            why(resting),
            "step `Build` rests until 1970-01-01T00:00:01Z after a failure: overloaded",
        );
        let mut files = step(StepShown::Running, None);
        files.waits_for = Some("inbox/*.task".into());
        reads(why(files), "step `Build` waits for files `inbox/*.task` since 1970-01-01T00:00:00Z");
        let mut later = step(StepShown::Pending, None);
        (later.step, later.current) = ("Test".into(), false);
        later.items = Some(Items { total: 2, current: 0, failed: 0 });
        let detail = run(Standing::Running, owner(), vec![step(StepShown::Running, None), later]);
        reads(
            why_step(&detail, &detail.steps[1]),
            "step `Test` is blocked by step `Build`: step `Build` is being executed by process 7 \
             since 1970-01-01T00:00:00Z",
        );
    }
}
