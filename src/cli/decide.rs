//! `orchestrate approve` and `orchestrate reject`: a user answers a question of a run. The answer
//! is a file in the run's directory. If no process drives the run, this one continues it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use super::invocation::Invocation;
use super::output::put_json;
use super::run_options::{Driver, RunOptions};
use super::{Common, resume};
use crate::attempt::gates::{self, AnswerFile};
use crate::base::ids::{RunId, shown};
use crate::base::program_name::ORCHESTRATE;
use crate::base::time::{Clock, SystemClock, Time};
use crate::engine::{Run, RunStatus, StepStatus};
use crate::run::failure::{Class, Failure};
use crate::run::{home, open, wording};
use crate::view::{Board, Gate, Life, Owner, gates_of};
use crate::workflow::Plan;
use crate::workflow::plan::Dialect;
use crate::workspace::Workspace;

/// Time that the driver of a run may take to find an answer before a message is printed.
const TAKEN_IN: Duration = Duration::from_secs(5);

#[derive(clap::Args, Clone, Debug)]
pub(super) struct ApproveArgs {
    /// The run: its id, the beginning of it, or `latest`
    #[arg(value_name = "RUN", default_value = "latest")]
    pub run: String,
    /// The node that asks; may be left out when one alone does
    #[arg(long, visible_alias = "node", value_name = "NODE")]
    pub step: Option<String>,
    /// What is to be said with it: the next round of a loop reads it
    #[arg(long, short, value_name = "TEXT")]
    pub comment: Option<String>,
    /// Answer only if this is still what is asked, as `pending` tells it
    #[arg(long, value_name = "DIGEST")]
    pub shown: Option<String>,
    /// Only record the answer
    #[arg(long)]
    pub no_resume: bool,
    #[command(flatten)]
    pub options: RunOptions,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct RejectArgs {
    /// The run: its id, the beginning of it, or `latest`
    #[arg(value_name = "RUN", default_value = "latest")]
    pub run: String,
    /// The node that asks; may be left out when one alone does
    #[arg(long, visible_alias = "node", value_name = "NODE")]
    pub step: Option<String>,
    /// Why: `$REJECTION_REASON` for whoever is to do better
    #[arg(long, short, value_name = "TEXT", value_parser = filled)]
    pub reason: String,
    /// Answer only if this is still what is asked, as `pending` tells it
    #[arg(long, value_name = "DIGEST")]
    pub shown: Option<String>,
    /// Only record the answer
    #[arg(long)]
    pub no_resume: bool,
    #[command(flatten)]
    pub options: RunOptions,
}

/// Accepts a text that is not blank.
fn filled(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("it says nothing: why not?".into()),
        false => Ok(text.to_owned()),
    }
}

/// An answer with its target.
struct Decision<'a> {
    run: &'a str,
    step: Option<&'a str>,
    approve: bool,
    comment: String,
    shown: Option<&'a str>,
    no_resume: bool,
    options: &'a RunOptions,
}

pub(super) fn approve(args: &ApproveArgs, common: &Common) -> Result<u8, Failure> {
    let comment = args.comment.clone().unwrap_or_default();
    let (run, step) = (args.run.as_str(), args.step.as_deref());
    let (no_resume, options) = (args.no_resume, &args.options);
    let shown = args.shown.as_deref();
    decide(&Decision { run, step, approve: true, comment, shown, no_resume, options }, common)
}

pub(super) fn reject(args: &RejectArgs, common: &Common) -> Result<u8, Failure> {
    let comment = args.reason.clone();
    let (run, step) = (args.run.as_str(), args.step.as_deref());
    let (no_resume, options) = (args.no_resume, &args.options);
    let shown = args.shown.as_deref();
    decide(&Decision { run, step, approve: false, comment, shown, no_resume, options }, common)
}

/// A question of a run. After [`give`], the answer to it is recorded where the run's driver looks.
pub(super) struct Given {
    pub id: RunId,
    pub gate: Gate,
    root: PathBuf,
    workspace: Workspace,
    plan: Plan,
    run: Run,
}

/// Records an answer. Fails if the question already has an answer, or if `shown` is given and is
/// not the digest of the current question.
pub(super) fn give(
    invocation: &Invocation,
    run: &str,
    step: Option<&str>,
    approve: bool,
    comment: &str,
    shown: Option<&str>,
) -> Result<Given, Failure> {
    let asked = asked(invocation, run, step)?;
    let Given { id, gate, root, .. } = &asked;
    if gate.expired {
        return Err(too_late(&asked));
    }
    if shown.is_some_and(|shown| !gate.is_shown_by(shown)) {
        let message = format!("what `{}` of run {id} asks is not what was looked at", gate.node);
        return Err(Failure::owned(message).hint("`orchestrate pending` shows what is asked now"));
    }
    if !gate.answered && asked.plan.dialect() != Dialect::Nodes && !is_driven(invocation, id)? {
        // The process that applies the answer continues the run, and would refuse for this reason.
        resume::check_source(invocation, &asked.plan, &asked.run, "resume", None)?;
    }
    let by = Some(whoami());
    let answer = AnswerFile::new(approve, comment.to_owned(), by, gate.shown.clone());
    let cleared = gates::clear_void(root, &gate.step, gate.attempt, &gate.shown);
    let given = cleared.and_then(|()| gates::give(root, &gate.step, gate.attempt, &answer));
    let given = given.map_err(|error| {
        Failure::failed(format!("cannot leave the answer in `{}`: {error}", root.display()))
    })?;
    let path = gates::path(root, &gate.step, gate.attempt);
    if given && !gates::is_answered(&path, &gate.shown, gate.expires_at) {
        return Err(too_late(&asked));
    }
    if !given {
        let message =
            format!("`{}` of run {id} was answered before, and only one counts", gate.node);
        return Err(Failure::owned(message).hint(format!(
            "`{ORCHESTRATE} status {id}` shows what came of it; if nobody drives the run, \
             `{ORCHESTRATE} resume {id}` goes on with it"
        )));
    }
    Ok(asked)
}

/// Finds the question that `run` and `step` identify.
fn asked(invocation: &Invocation, run: &str, step: Option<&str>) -> Result<Given, Failure> {
    let (id, root) = invocation.find_run(run)?;
    home::check(invocation, &id, &root)?;
    let workspace = invocation.open_workspace()?;
    let (plan, run) =
        open::look(&workspace, &root).map_err(|error| wording::cannot_read(&id, &error))?;
    let gate = choose(&invocation.workspace, &plan, &run, step)?;
    Ok(Given { id, gate, root, workspace, plan, run })
}

fn too_late(asked: &Given) -> Failure {
    expired(&asked.id, &asked.gate.node, asked.gate.expires_at)
}

/// Returns the failure for a question that expired without an answer.
fn expired(id: &RunId, node: &str, at: Option<Time>) -> Failure {
    let until = at.map(|at| format!(" at {}", at.to_second())).unwrap_or_default();
    Failure::invalid(format!("`{node}` of run {id} expired{until}: nobody answered in time"))
        .hint(format!("`{ORCHESTRATE} retry {id} --from {node}` asks again"))
}

fn decide(decision: &Decision, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let Decision { run, step, approve, comment, shown, no_resume, options } = decision;
    if *no_resume {
        options.check_none("with `--no-resume` the answer is only recorded")?;
    }
    let asked = asked(&invocation, run, *step)?;
    if options.any().is_some() {
        if is_driven(&invocation, &asked.id)? {
            options.check_none("whoever drives the run goes on with it")?;
        }
        options.check(&asked.plan, Driver::here(asked.run.origin.fleet))?;
    }
    if asked.gate.expired {
        // Let the run record the expiry, as a coordinator would.
        if !no_resume && !is_taken_in(&invocation, &asked)? {
            let unheard = Common { json: false, ..common.clone() };
            resume::after_answer(&asked.id, options, &unheard)?;
        }
        return Err(too_late(&asked));
    }
    let given = give(&invocation, run, *step, *approve, comment, *shown)?;
    let (id, node) = (&given.id, &given.gate.node);
    let word = if *approve { "approved" } else { "rejected" };
    invocation.note(format!("`{node}` of run {id} {word}"));
    let mut message = None;
    if !no_resume {
        match go_on(&invocation, &given, options, common)? {
            Continued::Here(code) => return Ok(code),
            Continued::Elsewhere => {}
            Continued::NotYet(why) => message = Some(why),
        }
    }
    if invocation.common.json {
        let mut answer = json!({ "run_id": id, "node": node, "approve": approve });
        if let Some(message) = message {
            answer["message"] = message.into();
        }
        put_json("answer/v1", answer)?;
    }
    if *no_resume {
        invocation.note(format!("go on: {ORCHESTRATE} resume {id}"));
    }
    Ok(0)
}

/// The state of a run after an answer was recorded.
enum Continued {
    /// This process drove the run and returns this exit code.
    Here(u8),
    /// Another process drives it and applies the answer.
    Elsewhere,
    /// No process drives it, for this reason. A later `resume` applies the answer.
    NotYet(String),
}

/// Continues a run that no other process drives.
fn go_on(
    invocation: &Invocation,
    given: &Given,
    options: &RunOptions,
    common: &Common,
) -> Result<Continued, Failure> {
    let began = Instant::now();
    while !is_taken_in(invocation, given)? {
        match resume::after_answer(&given.id, options, common) {
            // If several users answer at once, only one process continues the run; or another run
            // may hold the checkout. The answer is recorded, so this is not a failure.
            Err(failure) if failure.class == Class::Owned => {
                if began.elapsed() > TAKEN_IN {
                    let why = format!("the answer is on record, but {}", failure.sentence());
                    invocation.note(&why);
                    invocation.note(format!("go on: {ORCHESTRATE} resume {}", given.id));
                    return Ok(Continued::NotYet(why));
                }
            }
            done => return done.map(Continued::Here),
        }
    }
    Ok(Continued::Elsewhere)
}

/// Returns true if another process applies the answer. A driver that was about to stop may have
/// missed the answer; then this process must continue the run.
pub(super) fn is_taken_in(invocation: &Invocation, given: &Given) -> Result<bool, Failure> {
    let Given { id, gate, root, workspace, .. } = given;
    let began = Instant::now();
    loop {
        if !is_driven(invocation, id)? {
            // The run may be over by now, and its driver may have ended for that reason.
            return Ok(!still_asks(workspace, root, gate));
        }
        if !still_asks(workspace, root, gate) {
            return Ok(true);
        }
        if began.elapsed() > TAKEN_IN {
            invocation.note("nobody has taken the answer in yet; it counts when somebody does");
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_driven(invocation: &Invocation, id: &RunId) -> Result<bool, Failure> {
    let queue = invocation.queue_if_any()?;
    Ok(match Board::scan(invocation, queue)?.run(id).owner {
        Owner::Process { .. } | Owner::Locked { .. } => true,
        Owner::Coordinator { life, .. } => life != Life::Dead,
        Owner::Queue { coordinators, paused, .. } => coordinators > 0 || paused.is_some(),
        Owner::Nobody { .. } => false,
    })
}

/// Returns true if the run still waits at this gate. A run that cannot be read counts as waiting.
fn still_asks(workspace: &Workspace, root: &Path, gate: &Gate) -> bool {
    let same = |open: &Gate| open.step == gate.step && open.attempt == gate.attempt;
    match open::look(workspace, root) {
        Ok((plan, run)) => {
            let open = gates_of(workspace.root(), &plan, &run);
            run.status == RunStatus::Running && open.iter().any(same)
        }
        Err(_) => true,
    }
}

/// Returns the open gate that `step` identifies, or the only one.
fn choose(workspace: &Path, plan: &Plan, run: &Run, step: Option<&str>) -> Result<Gate, Failure> {
    let id: &RunId = &run.id;
    let mut open = match run.status {
        RunStatus::Running => gates_of(workspace, plan, run),
        _ => Vec::new(),
    };
    let asks = |gate: &Gate| match step {
        Some(step) => gate.node == step || gate.step.to_string() == step,
        None => true,
    };
    if !open.iter().any(asks)
        && let Some(failure) =
            answered_before(plan, run, step).or_else(|| expired_before(plan, run, step))
    {
        return Err(failure);
    }
    if open.is_empty() {
        let state = match run.status {
            RunStatus::Running => "is not over, and has not come to a question",
            RunStatus::Completed => "has completed",
            RunStatus::Cancelled => "was cancelled",
            _ => "has failed",
        };
        return Err(Failure::invalid(format!("run {id} asks nobody anything: it {state}"))
            .hint(format!("`{ORCHESTRATE} status {id}` shows how it stands")));
    }
    let names =
        || open.iter().map(|gate| format!("`{}`", gate.node)).collect::<Vec<_>>().join(", ");
    match step {
        None if open.len() == 1 => Ok(open.remove(0)),
        None => Err(Failure::invalid(format!("run {id} asks at {}: which is meant?", names()))
            .hint("say it with `--step NODE`")),
        Some(step) => {
            let name = shown(step);
            let exact = open.iter().position(|gate| gate.step.to_string() == step);
            let meant = |gate: &Gate| gate.node == name || gate.step.shown() == name;
            match exact.or_else(|| open.iter().position(meant)) {
                Some(index) => Ok(open.remove(index)),
                None => {
                    let message = format!("`{step}` of run {id} asks nobody anything");
                    Err(Failure::invalid(message).hint(format!("these do: {}", names())))
                }
            }
        }
    }
}

/// Returns the failure for an answer that was already applied. Without a step name, only if there
/// is exactly one.
fn answered_before(plan: &Plan, run: &Run, step: Option<&str>) -> Option<Failure> {
    let mut found = Vec::new();
    for (asking, slot) in plan.root().steps.iter().zip(&run.body.slots) {
        let rounds = slot.each.iter().flat_map(|each| &each.iterations);
        let records = rounds.flat_map(|round| &round.body.slots).filter_map(|s| s.record.as_ref());
        let mut answered = records.filter_map(|record| {
            let answer = record.gate.as_ref()?.answer.as_ref()?;
            Some((answer, record.completed_at))
        });
        if step.is_none_or(|step| step == asking.name) {
            found.extend(answered.next_back().map(|(answer, at)| (&asking.name, answer, at)));
        }
    }
    let [(node, answer, at)] = found[..] else { return None };
    let word = if answer.approve { "approved" } else { "rejected" };
    let by = answer.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let at = at.map(|at| format!(" at {}", at.to_second())).unwrap_or_default();
    let id = &run.id;
    let message = format!("`{node}` of run {id} was {word}{by}{at}, and only one answer counts");
    Some(Failure::owned(message).hint(format!(
        "`orchestrate status {id}` shows what came of it; `orchestrate retry {id} --from {node}` \
         asks again"
    )))
}

/// Returns the failure for a question whose expiry the run has recorded. Without a step name, only
/// if there is exactly one.
fn expired_before(plan: &Plan, run: &Run, step: Option<&str>) -> Option<Failure> {
    let mut found = Vec::new();
    for (asking, slot) in plan.root().steps.iter().zip(&run.body.slots) {
        let last = slot.each.as_ref().and_then(|each| each.iterations.last());
        let gates = last.into_iter().flat_map(|round| &round.body.slots).filter_map(|slot| {
            slot.record.as_ref()?.gate.as_ref().filter(|gate| gate.answer.is_none())
        });
        let over = slot.status() == StepStatus::Failed
            && run.status != RunStatus::Cancelled
            && step.is_none_or(|step| shown(step) == asking.name);
        let now = SystemClock.now();
        let at = gates.filter_map(|gate| gate.expires_at).rfind(|at| *at <= now);
        found.extend(at.filter(|_| over).map(|at| (&asking.name, at)));
    }
    let [(node, at)] = found[..] else { return None };
    Some(expired(&run.id, node, Some(at)))
}

/// Returns the user of this process, from its uid and not from the environment, and the host name.
fn whoami() -> String {
    let uid = nix::unistd::getuid();
    let user = nix::unistd::User::from_uid(uid).ok().flatten();
    let user = user.map_or_else(|| format!("uid {uid}"), |user| user.name);
    let host = std::fs::read_to_string(PathBuf::from("/proc/sys/kernel/hostname"));
    format!("{user}@{}", host.unwrap_or_default().trim())
}
