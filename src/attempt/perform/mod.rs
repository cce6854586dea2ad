//! Executes work: runs a child process and reads its output, or waits for files.
//!
//! This module resolves on the executing machine what preparation left open: the path of the run's
//! directory ([`place`]), and the needs of a script ([`script`], [`install`]).

use crate::base::ids::TaskAttempt;
pub(crate) mod agent_stream;
mod confine;
pub(crate) mod env_policy;
mod install;
mod json;
mod place;
mod repair;
pub(crate) mod reply;
mod script;
mod session;
#[cfg(test)]
mod tests;
mod vendor;
mod wait;

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use self::confine::Confined;
use self::json::check_json;
use self::repair::Wanting;
use self::script::{Ready, Unready};
pub(crate) use self::session::SESSIONS;
use self::session::{Busy, Name, Session};
pub(crate) use self::wait::wait;
use super::bead_tree;
use super::exec_env::Site;
use super::parking::Pass;
pub(crate) use super::perform::agent_stream::ANSWER;
use super::perform::agent_stream::Heard;
use super::prepare::{Unusable, mask_json, mask_map, mask_written, missing_secrets};
use super::provider_check::{self, Known};
use super::work::{Input, PROMPT, Work};
use crate::agent::faults::{self, FaultClass};
use crate::agent::{self, Kind, MachineFault, Verdict};
use crate::base::ansi;
use crate::base::digest::sha256;
use crate::base::ids::{Attempt, StepPath};
use crate::base::time::{Clock, SystemClock};
use crate::disk::{self, fs};
use crate::engine::record::{Metrics, Whole};
use crate::engine::{Fault, Record, StepStatus};
use crate::exec::{self, Capture, Captured, Ended, How, Mode, Order, StartError, Stop, WholeText};
use crate::workflow::plan::CaptureMode;
use crate::workspace::PathError;

/// The result of an execution.
pub(crate) struct Performed {
    pub record: Record,
    /// Number of processes left running, which plain commands may do.
    pub left_running: usize,
    /// True if the execution met a limit and is not final: its task goes back to its inbox.
    pub returns: bool,
}

impl Performed {
    pub(crate) fn of(record: Record) -> Performed {
        Performed { record, left_running: 0, returns: false }
    }
}

/// Timeout of a version query to a program that does not know an option.
const VERSION: Duration = Duration::from_secs(10);

/// Exit code of a step whose sandbox is not available, the same as for a missing program.
const NOT_TO_BE_HAD: i32 = 127;

/// The common parameters of all child processes of one execution.
struct Child<'a> {
    site: &'a Site,
    /// Working directory.
    cwd: &'a Path,
    step: &'a StepPath,
    env: &'a [(String, OsString)],
    hidden: &'a [&'a str],
    mark: &'a str,
    stop: &'a Stop,
    confined: Option<&'a Confined>,
    pass: &'a Arc<Pass>,
    /// The task that the execution belongs to.
    task: Option<&'a TaskTerms>,
}

/// The conditions under which an execution uses a provider.
pub(crate) struct Terms {
    pub pass: Arc<Pass>,
    /// The task of the execution, which goes back if a limit or a machine fault is met.
    pub task: Option<TaskTerms>,
}

/// The task that work belongs to.
pub(crate) struct TaskTerms {
    /// The step or free task, identical in every retry.
    pub what: String,
    pub attempt: TaskAttempt,
    /// True if an earlier execution of this task started an agent and never ended: its worker died
    /// or stopped it. Tasks that were returned because of a limit or a machine fault do not count.
    pub interrupted: bool,
}

impl Terms {
    /// Returns the terms of an execution that shares no provider account, or uses no provider.
    pub(crate) fn free() -> Terms {
        Terms { pass: Pass::free(), task: None }
    }
}

/// Replaces [`run`] in tests.
#[cfg(test)]
pub(crate) type Script =
    std::sync::Arc<dyn Fn(&Site, &Work, &str, &Stop) -> Option<Performed> + Send + Sync>;

#[cfg(test)]
thread_local! {
    static SCRIPT: std::cell::RefCell<Option<Script>> = const { std::cell::RefCell::new(None) };
}

/// Lets a script do this thread's work.
#[cfg(test)]
pub(crate) fn simulate(script: Option<Script>) {
    SCRIPT.with(|here| *here.borrow_mut() = script);
}

/// Runs a child process, whose processes are identified by `mark`. Returns `None` if it was
/// stopped: the attempt then stays open.
pub(crate) fn run(site: &Site, work: &Work, mark: &str, stop: &Stop) -> Option<Performed> {
    run_on(&Terms::free(), site, work, mark, stop)
}

/// Runs a child process like [`run`], under the caller's terms.
pub(crate) fn run_on(
    terms: &Terms,
    site: &Site,
    work: &Work,
    mark: &str,
    stop: &Stop,
) -> Option<Performed> {
    #[cfg(test)]
    if let Some(script) = SCRIPT.with(|script| script.borrow().clone()) {
        return script(site, work, mark, stop);
    }
    if let Err(missing) = missing_secrets(&work.secrets, &site.environment) {
        let context = mask_map(site, missing.context);
        let mut record = Record::refused(2, site.mask.text(&missing.message), context);
        classify(work, None, &[], &mut record);
        return Some(Performed::of(record));
    }
    let mut work = match place::place(site, work) {
        Ok(placed) => placed,
        Err(error) => {
            let message = format!("cannot prepare the run's directory: {error}");
            return Some(refused(site, work, 1, message));
        }
    };
    let times = terms.task.as_ref().map_or(TaskAttempt::FIRST, |task| task.attempt);
    if terms.task.as_ref().is_some_and(|task| task.interrupted) {
        note_interruption(&mut work);
    }
    let mut env = environment(site, &work);
    let mut hidden: Vec<&str> =
        OF_OUTER_RUN.into_iter().chain(site.hidden.iter().map(String::as_str)).collect();
    hidden.extend(env_policy::kept_back(site, &work));
    if site.debug {
        note_environment(site, &work, &env, &hidden);
    }
    let began = Instant::now();
    let entered = match &work.worktree {
        None => None,
        Some(tree) => match bead_tree::enter(site, &work, tree, mark, stop)? {
            Ok(entered) => Some(entered),
            Err(record) => return Some(unready(site, *record, began)),
        },
    };
    if let (Some(_), Some(limit)) = (&work.limit, work.timeout_ms) {
        // The enclosing limit also counts the time spent waiting.
        let waited = began.elapsed().as_millis() as u64;
        work.to_mut().timeout_ms = Some(limit.saturating_sub(waited).max(1));
    }
    let cwd = entered.as_ref().map_or(site.cwd(), |entered| entered.cwd());
    // Another machine may have created the directory. The child process enters it by name, and
    // trusts the kernel's cache, which this refreshes.
    let _ = fs::metadata(cwd);
    let step = work.step.clone();
    let confined = match confine::confine(site, &work, entered.as_ref()) {
        Ok(confined) => confined,
        Err(message) => return Some(refused(site, &work, NOT_TO_BE_HAD, message)),
    };
    let confined = confined.as_ref();
    env.extend(confined.and_then(Confined::env));
    let Terms { pass, task } = terms;
    let task = task.as_ref();
    let child = Child {
        site,
        cwd,
        step: &step,
        env: &env,
        hidden: &hidden,
        mark,
        stop,
        pass,
        task,
        confined,
    };
    let mut ready = Ready::default();
    if let Some(script) = &work.script {
        ready = match script::ready(&child, script) {
            Ok(ready) => ready,
            Err(Unready::Stopped) => return None,
            Err(Unready::Failed(record)) => return Some(unready(site, *record, began)),
        };
        work.to_mut().argv = std::mem::take(&mut ready.argv);
    }
    let guard = match vendor::guard(site, &work, cwd) {
        Ok(guard) => guard,
        Err(reason) => return Some(needs_person(&child, &work, reason)),
    };
    let all: Vec<_> = env.iter().cloned().chain(ready.env).chain(guard).collect();
    let child = Child { env: &all, ..child };
    let said = match work.adapter.is_stream() {
        true => converse(&child, &mut work).map(|said| said.map(Said::heard)),
        false => have_said(&child, &work),
    };
    let Said { ran, heard, asked_again } = match said {
        Ok(Some(said)) => said,
        Ok(None) => {
            if let Some(entered) = entered {
                entered.give_up(&work, times);
            }
            return None;
        }
        Err(refused) => return Some(*refused),
    };
    let (work, ended) = (&*work, &ran.ended);
    let mut returns = heard.as_ref().is_some_and(|heard| heard.returns);
    let verdict = heard.as_ref().map(|heard| heard.outcome.verdict.clone());
    let printed = heard.as_ref().map(Heard::in_place_of_an_end).unwrap_or_default();
    if ended.cut_off {
        tracing::warn!(
            "a process that step `{}` left running held its output open",
            work.step.shown()
        );
    }
    let mut result = Outcome { site, work, ended, heard, asked_again, record: Record::default() };
    match (ran.out, ran.err) {
        (Ok(out), Ok(err)) => result.read(&out, &err),
        (Err(error), _) | (_, Err(error)) => result.fail(1, error.to_string(), Map::new()),
    }
    let mut record = result.record;
    record.warning = record.warning.or(ready.warning);
    classify(work, Some(ended.how), &printed, &mut record);
    if let Some(entered) = entered {
        entered.leave(site, work, times, &mut record);
    }
    record.duration_ms = Some(began.elapsed().as_millis() as u64);
    returns |= learn(pass, task, work, &record, (ended.how, verdict));
    let left = if work.asks { 0 } else { ended.survivors };
    Some(Performed { left_running: left, returns, ..Performed::of(record) })
}

/// Records how a provider's child process ended. Returns true if its task goes back because several
/// tasks in a row failed in the same way.
fn learn(
    pass: &Pass,
    task: Option<&TaskTerms>,
    work: &Work,
    record: &Record,
    (how, verdict): (How, Option<Verdict>),
) -> bool {
    if !work.asks {
        // For a plain command, a successful start is enough.
        pass.works();
        return false;
    }
    let Some(error) = record.error.as_ref() else {
        pass.answered();
        return false;
    };
    if verdict == Some(Verdict::Answered) || verdict.is_none() && how == How::Exited(0) {
        pass.answered();
        return false;
    }
    let reason = match &verdict {
        Some(Verdict::Fail { reason } | Verdict::Stopped { reason }) => reason.clone(),
        // An exit code alone is not a reason; the last line of output may be.
        None if matches!(how, How::Exited(_) | How::Killed(_)) => {
            let said = error.stdout_tail.iter().chain(&error.stderr_tail);
            let Some(words) = said.rev().find(|line| !line.trim().is_empty()) else {
                return false;
            };
            format!("{}: {words}", error.message)
        }
        _ => return false,
    };
    task.is_some_and(|task| pass.failed(&task.what, &reason))
}

/// The output of work.
struct Said {
    ran: Ran,
    heard: Option<Heard>,
    /// True if the agent was asked a second time for missing output.
    asked_again: bool,
}

impl Said {
    fn heard((ran, heard): (Ran, Option<Heard>)) -> Said {
        let asked_again = heard.as_ref().is_some_and(|heard| heard.asked_again);
        Said { ran, heard, asked_again }
    }
}

/// A child process that ended, and its captured output.
struct Ran {
    ended: Ended,
    out: io::Result<Captured>,
    err: io::Result<Captured>,
    /// Meaning of its output, if it is a stream.
    outcome: Option<agent::Outcome>,
}

/// The result of starting a child process: `None` if it was stopped.
type Executed<T> = Result<Option<T>, Box<Performed>>;

impl Ran {
    /// Combines this execution with a later one for the same work.
    fn and_then(self, later: Ran) -> Ran {
        let mut ran = later;
        ran.ended.took += self.ended.took;
        for (now, before) in [(&mut ran.out, &self.out), (&mut ran.err, &self.err)] {
            if let (Ok(now), Ok(before)) = (now, before) {
                now.total_bytes += before.total_bytes;
            }
        }
        ran
    }
}

/// Runs one child process until it exits. `again` appends to the logs of the same work; `name`
/// stores the conversation's ID.
fn execute(child: &Child, work: &Work, name: Option<Name>, again: bool) -> Executed<Ran> {
    let Child { site, cwd, env, hidden, mark, stop, .. } = *child;
    let stop_here = |code, message| Err(Box::new(refused(site, work, code, message)));
    let heard = work
        .adapter
        .is_stream()
        .then(|| agent_stream::listen(site, work, child.pass.clone(), name, again));
    let (ear, captures) = match heard {
        Some((ear, out)) => (Some(ear), Ok((out, log_of_errors(site, work, again)))),
        None => (None, open_captures(site, work, again)),
    };
    let idle = match &ear {
        Some(ear) => ear.idle.clone(),
        None => Rc::new(Cell::new(work.idle_timeout())),
    };
    let (mut out, mut err) = match captures {
        Ok(captures) => captures,
        Err(error) => return stop_here(code_of(&error), error.to_string()),
    };
    let mut argv = Cow::Borrowed(&work.argv);
    // A step that calls `orchestrate` means this program, not the one on the `PATH`.
    if argv.first().is_some_and(|program| program == "orchestrate") {
        argv.to_mut()[0] = site.program.to_string_lossy().into_owned();
    }
    let stdin = work.stdin.as_ref().map(Input::bytes);
    let confine = child.confined.map(|confined| confined.prefix(None)).unwrap_or_default();
    let order = Order {
        argv: &argv,
        cwd,
        env,
        env_remove: hidden,
        stdin: stdin.as_deref(),
        timeout: work.timeout(),
        idle: Some(&idle),
        grace: site.grace.max(work.adapter.grace()),
        mark,
        sweep: work.sweep(),
        confine: &confine,
    };
    let unusable = |fault, code, reason: String, cure: &str| {
        Err(Box::new(unusable(child, work, fault, code, (&reason, cure))))
    };
    let ended = match exec::run(&order, &mut out, &mut err, stop) {
        Ok(ended) => ended,
        Err(error) => {
            let missing = matches!(error, StartError::NotFound { .. });
            let install = if missing { work.adapter.and_install() } else { String::new() };
            return match fault_of(child, work, &error) {
                Some(fault) => unusable(fault, error.exit_code(), error.to_string(), &install),
                None => stop_here(error.exit_code(), format!("{error}{install}")),
            };
        }
    };
    let (out, err) = (out.finish(), err.finish());
    if let (Ok(out), How::Stopped) = (&out, ended.how) {
        // No record will refer to it.
        out.keep_draft();
    }
    if ended.how == How::Exited(NOT_TO_BE_HAD)
        && let Some(error) = exec::lacks_interpreter(&order)
    {
        return match fault_of(child, work, &error) {
            Some(fault) => unusable(fault, NOT_TO_BE_HAD, error.to_string(), ""),
            None => stop_here(NOT_TO_BE_HAD, error.to_string()),
        };
    }
    let stderr_head = err.as_ref().map(Captured::first_lines).unwrap_or_default();
    let stderr_tail = err.as_ref().map(|err| err.tail.as_slice()).unwrap_or_default();
    if matches!(ended.how, How::Exited(code) if code != 0)
        && let Some(what) = work.adapter.unknown_option(&[&stderr_head, stderr_tail].concat())
    {
        let (reason, cure) = unfit(child, work, &what);
        return unusable(MachineFault::Option, NOT_TO_BE_HAD, reason, &cure);
    }
    let stdout_tail = out.as_ref().map(|out| out.tail.as_slice()).unwrap_or_default();
    let printed = agent_stream::Printed { stdout_tail, stderr_head: &stderr_head, stderr_tail };
    let outcome =
        ear.and_then(|ear| agent_stream::outcome(site, ear, ended.how, printed, &work.asked()));
    Ok((ended.how != How::Stopped).then_some(Ran { ended, out, err, outcome }))
}

/// Explains why a program does not know a part of its command (`what`): it is older or newer than
/// the version that the command is for, or the settings are wrong. Returns the problem and its fix.
fn unfit(child: &Child, work: &Work, what: &str) -> (String, String) {
    let (program, kind) = (work.argv.first().map_or("", String::as_str), work.adapter);
    let path = child.site.environment.get("PATH").map_or(OsStr::new(""), |path| path);
    let file = exec::locate(program, path, child.cwd).ok();
    let version = file.and_then(|file| {
        provider_check::version_within(&file, child.cwd, child.stop, VERSION).ok()
    });
    let known = version.as_ref().and_then(|version| Known::of(kind, version));
    let version = version.map(|version| format!(" ({version})")).unwrap_or_default();
    let settings = format!(
        "change `command` of provider `{}` in the settings",
        work.provider.as_deref().unwrap_or(kind.name())
    );
    let (why, cure) = match known {
        Some(Known::Older { tried }) => {
            (format!("it is older than {tried}, which was tried"), kind.and_install())
        }
        Some(Known::Newer { tried }) => {
            let install = kind.install_tried().unwrap_or_default();
            let why = format!("it is newer than {tried}, which was tried");
            (why, format!("; {settings}, or {install}"))
        }
        _ => {
            let why = "the settings ask for what this version does not have";
            (why.to_owned(), format!("; {settings}"))
        }
    };
    (format!("`{program}`{version} does not know {what}: {why}"), cure)
}

/// Returns the machine fault that stopped a child process from starting, or `None` if the step is
/// to blame. A relative program path in a worktree is never a fault of the machine.
fn fault_of(child: &Child, work: &Work, error: &StartError) -> Option<MachineFault> {
    match error {
        StartError::Other(error) => exec::lacks_resources(error).then_some(MachineFault::Resources),
        StartError::NotFound { program }
        | StartError::NoInterpreter { program, .. }
        | StartError::NotExecutable { program, .. } => {
            let of_worktree = program.contains('/')
                && Path::new(program).is_relative()
                && child.cwd != child.site.cwd();
            (work.asks && !of_worktree).then_some(MachineFault::Program)
        }
        _ => None,
    }
}

/// Returns the result of a step whose child process cannot run on this machine. Suspends its
/// provider here; its task goes back to its inbox.
fn unusable(
    child: &Child,
    work: &Work,
    fault: MachineFault,
    code: i32,
    (reason, cure): (&str, &str),
) -> Performed {
    let mut performed = refused(child.site, work, code, format!("{reason}{cure}"));
    if let Some(error) = &mut performed.record.error {
        error.class = Some(if fault.passes() { FaultClass::Transient } else { FaultClass::Fatal });
    }
    let reason = child.site.mask.text(reason);
    child.pass.suspend(fault, &reason);
    let verdict = Verdict::Machine { fault, reason };
    performed.returns = child.task.is_some_and(|task| child.pass.returns(&verdict, &task.what));
    performed
}

/// Runs a child process whose stdout is its answer. Asks an agent that does not report its result a
/// second time.
fn have_said(child: &Child, work: &Work) -> Executed<Said> {
    let began = Instant::now();
    let Some(mut ran) = execute(child, work, None, false)? else { return Ok(None) };
    let wanting = Wanting::in_printed(work, &ran, &child.site.log(&work.step, "stdout"));
    if let Some(turn) = wanting.as_ref().and_then(|wanting| wanting.turn(work, false, began)) {
        // The record will have the second answer. With live logs, the first one is already logged.
        if let Some(out) = ran.out.as_ref().ok().filter(|_| !child.site.live) {
            log_output(child.site, work, out);
        }
        let Some(again) = execute(child, &turn, None, true)? else { return Ok(None) };
        ran = ran.and_then(again);
    }
    // For a command of the `steps:` language, only the exit code decides.
    let judged = work.asks && (work.answer.is_some() || child.site.run_id().is_none());
    let text = ran.out.as_ref().ok().filter(|_| judged && ran.ended.how == How::Exited(0));
    let text = text.and_then(|out| printed_text(work, out));
    let outcome = text.and_then(|text| agent_stream::of_printed(child.site, &text));
    let heard = outcome.map(|outcome| hear(child, None, outcome, false));
    Ok(Some(Said { ran, heard, asked_again: wanting.is_some() }))
}

/// Returns all output of a child process, or `None` if it was truncated.
fn printed_text(work: &Work, out: &Captured) -> Option<String> {
    match work.capture {
        _ if out.truncated => None,
        CaptureMode::Whole => Some(out.whole.head.clone()),
        CaptureMode::Lines => Some(out.lines.join("\n")),
        CaptureMode::Text | CaptureMode::Json => Some(out.text()),
    }
}

/// Runs an agent, in the conversation that the work belongs to.
fn converse(child: &Child, work: &mut Cow<Work>) -> Executed<(Ran, Option<Heard>)> {
    let (site, first) = (child.site, work.argv.clone());
    let stop_here = |work: &Work, code, message| Err(Box::new(refused(site, work, code, message)));
    let prompt = work.stdin.as_ref().map(Input::bytes);
    if let Some(refusal) = prompt.and_then(|prompt| work.adapter.refuses(&prompt)) {
        return stop_here(work, 2, refusal);
    }
    if work.adapter.takes_commands() && work.stdin.as_ref().is_some_and(is_command) {
        let work = work.to_mut();
        work.stdin = work.stdin.take().map(|prompt| below(HEADING, &prompt));
    }
    // Check now: a file that cannot be written should not cost an agent's execution.
    if let Some(path) = &work.output_file
        && let Err(error) = site.workspace.try_write(path)
    {
        return stop_here(work, code_of(&error), error.to_string());
    }
    let session = work.session.as_ref();
    let session =
        session.map(|session| Session::take(site, session, work.adapter, child.stop)).transpose();
    let mut session = match session {
        Ok(session) => session,
        Err(Busy::Stopped) => return Ok(None),
        Err(busy) => return stop_here(work, 1, busy.to_string()),
    };
    let began = Instant::now();
    let Some((mut ran, outcome)) = speak(child, work, &first, session.as_mut())? else {
        return Ok(None);
    };
    let Some(outcome) = outcome else { return Ok(Some((ran, None))) };
    let wanting = Wanting::in_heard(work, &outcome);
    let mut heard = hear(child, session.as_mut(), outcome, wanting.is_some());
    if let Some(wanting) = wanting {
        heard.asked_again = true;
        let remembers = session.as_ref().is_some_and(Session::goes_on);
        if let Some(turn) = wanting.turn(work, remembers, began) {
            match ask_again(child, turn, session.as_mut(), &first)? {
                None => return Ok(None),
                Some(Some((again, mut mended))) => {
                    if session.is_none() {
                        // With a conversation, its own count includes both turns.
                        mended.usage.add(&heard.usage);
                    }
                    (heard, ran) = (mended, ran.and_then(again));
                }
                // The conversation is lost: the whole step must be retried.
                Some(None) => heard.asked_again = false,
            }
        }
        session.iter_mut().for_each(|session| session.recorded(heard.returns));
    }
    ran.out = ran.out.and_then(|stream| heard.answer(site, work, &stream));
    Ok(Some((ran, Some(heard))))
}

/// Runs one turn of a conversation. Starts a new conversation if the provider does not know the old
/// one any more.
fn speak(
    child: &Child,
    work: &mut Cow<Work>,
    first: &[String],
    mut session: Option<&mut Session>,
) -> Executed<(Ran, Option<agent::Outcome>)> {
    loop {
        let goes_on = session.as_ref().is_some_and(|session| session.goes_on());
        if let Some(session) = &mut session {
            match session.argv(first) {
                Ok(argv) => work.to_mut().argv = argv,
                Err(error) => {
                    let message = Busy::Error(error).to_string();
                    return Err(Box::new(refused(child.site, work, 1, message)));
                }
            }
        }
        let name = session.as_ref().map(|session| session.name_keeper());
        let Some(mut ran) = execute(child, work, name, false)? else { return Ok(None) };
        let outcome = ran.outcome.take();
        if goes_on && outcome.as_ref().is_some_and(|outcome| outcome.session_lost) {
            tracing::info!(
                "step `{}` begins a new conversation: the old one is lost",
                work.step.shown()
            );
            session.iter_mut().for_each(|session| session.forget());
            continue;
        }
        return Ok(Some((ran, outcome)));
    }
}

/// Asks an agent a second time, in the existing conversation if there is one. Returns no result if
/// that conversation is lost.
fn ask_again(
    child: &Child,
    mut turn: Work,
    mut session: Option<&mut Session>,
    first: &[String],
) -> Executed<Option<(Ran, Heard)>> {
    let argv = session.as_mut().map(|session| session.argv(first)).transpose();
    match argv {
        Ok(argv) => turn.argv = argv.unwrap_or_else(|| first.to_vec()),
        Err(error) => {
            let message = Busy::Error(error).to_string();
            return Err(Box::new(refused(child.site, &turn, 1, message)));
        }
    }
    let name = session.as_ref().map(|session| session.name_keeper());
    let Some(mut ran) = execute(child, &turn, name, true)? else { return Ok(None) };
    let outcome = ran.outcome.take().filter(|outcome| !outcome.session_lost);
    Ok(Some(outcome.map(|outcome| {
        let mut heard = hear(child, session, outcome, false);
        heard.asked_again = true;
        (ran, heard)
    })))
}

/// Records the outcome in the pass and the conversation. `more` is true if the agent is asked again
/// before there is a record; the conversation keeps the cost until then.
fn hear(
    child: &Child,
    session: Option<&mut Session>,
    outcome: agent::Outcome,
    more: bool,
) -> Heard {
    child.pass.heard(&outcome);
    let returns = child.task.is_some_and(|task| child.pass.returns(&outcome.verdict, &task.what));
    let alone = outcome.usage.since(&agent::Usage::default());
    let usage = session
        .map_or(Ok(alone.clone()), |session| session.heard(&outcome, returns || more))
        .unwrap_or_else(|error| {
            tracing::warn!("{}", Busy::Error(error));
            alone
        });
    Heard { outcome, usage, returns, asked_again: false }
}

/// Adds a note to the prompt that an earlier execution was interrupted. Prompts that authors wrote
/// without a spell stay unchanged.
fn note_interruption(work: &mut Cow<Work>) {
    let Some(prompt) = work.stdin.as_ref().filter(|_| work.is_spell()) else { return };
    let prompt = below(INTERRUPTED, prompt);
    let digest = sha256(&prompt.bytes());
    let work = work.to_mut();
    work.inputs.insert(PROMPT.into(), digest);
    work.stdin = Some(prompt);
}

/// Note for the agent that continues after an interrupted execution.
const INTERRUPTED: &str = "An earlier execution of this task was interrupted and may have left \
    partial work. Check the current state before you start.\n\n";

/// Heading for a prompt that the provider would take for one of its own commands.
const HEADING: &str = "Your task:\n\n";

fn is_command(prompt: &Input) -> bool {
    prompt.bytes().trim_ascii_start().starts_with(b"/")
}

fn below(heading: &str, prompt: &Input) -> Input {
    let mut bytes = heading.as_bytes().to_vec();
    bytes.extend(prompt.bytes());
    Input::of(bytes)
}

/// Returns exit code 2 for a path that can never be written, and 1 for a failure worth a retry,
/// such as a full disk.
fn code_of(error: &PathError) -> i32 {
    if error.is_final() { 2 } else { 1 }
}

/// Returns the variables to set over the inherited environment: the context of the execution, then
/// the step's own `env`. Secrets are inherited already.
fn environment(site: &Site, work: &Work) -> Vec<(String, OsString)> {
    let mut env: Vec<(String, OsString)> = site.about.clone();
    env.push(("ORCHESTRATE_STEP".into(), work.step.to_string().into()));
    env.push(("ORCHESTRATE_ATTEMPT".into(), work.attempt.to_string().into()));
    env.extend(work.item.iter().map(|item| ("ORCHESTRATE_ITEM".into(), item.into())));
    env.extend(work.agent.iter().map(|agent| ("ORCHESTRATE_AGENT".into(), agent.into())));
    let denied = site.environment.get(IS_SANDBOX).and_then(|value| value.to_str());
    let denied = denied.is_some_and(|value| matches!(value, "" | "0" | "no" | "false"));
    if skips_permissions(work) && !denied && nix::unistd::Uid::effective().is_root() {
        env.push((IS_SANDBOX.into(), "1".into()));
    }
    env.extend(work.env.iter().map(|(key, value)| (key.clone(), value.into())));
    env
}

/// With the value 1, claude allows root to skip permissions, which it refuses otherwise. A caller
/// who does not want that sets the variable to 0.
const IS_SANDBOX: &str = "IS_SANDBOX";

/// Returns true if work runs claude without permission checks for its tools.
fn skips_permissions(work: &Work) -> bool {
    let skips = |argument: &String| {
        argument.ends_with("bypassPermissions")
            || argument.ends_with("dangerously-skip-permissions")
    };
    work.adapter == Kind::Claude && work.argv.iter().any(skips)
}

/// Variables that an outer run may have set for its own step and that this step may not override.
const OF_OUTER_RUN: [&str; 2] = ["ORCHESTRATE_ITEM", "ORCHESTRATE_AGENT"];

/// Returns the capture mode for the output of work.
fn mode(work: &Work) -> Mode {
    match work.capture {
        CaptureMode::Text => Mode::Text,
        CaptureMode::Lines => Mode::Lines,
        CaptureMode::Json => Mode::Json,
        CaptureMode::Whole => Mode::Whole,
    }
}

fn open_captures(site: &Site, work: &Work, again: bool) -> Result<(Capture, Capture), PathError> {
    let (mode, path) = (mode(work), site.log(&work.step, "stdout"));
    let mut out = Capture::new(mode, site.mask.clone());
    if work.asks {
        let mut stripper = ansi::Stripper::default();
        out = out.filter(move |bytes, text| stripper.feed(bytes, text));
    }
    let out = if again { out.log_on(path) } else { out.log(path) };
    let mut out = if site.live || again { out.live() } else { out.soon() };
    if mode == Mode::Whole {
        out = out.whole(site.root().join(output_path(work)));
    }
    if let Some(path) = &work.output_file {
        out = out.tee(site.workspace.create(path)?, path);
    }
    Ok((out, log_of_errors(site, work, again)))
}

fn log_of_errors(site: &Site, work: &Work, again: bool) -> Capture {
    let (capture, log) =
        (Capture::new(Mode::Tail, site.mask.clone()), site.log(&work.step, "stderr"));
    if again { capture.log_on(log) } else { capture.log(log) }
}

/// Returns the path of a long output, relative to the run's directory.
fn output_path(work: &Work) -> PathBuf {
    PathBuf::from(format!("outputs/{}.{}.txt", work.step, work.attempt))
}

/// Classifies a node's failure as transient or not, by a table of known messages. For other
/// commands, the exit code decides.
fn classify(work: &Work, how: Option<How>, printed: &[String], record: &mut Record) {
    let told = work.capture == CaptureMode::Whole || work.adapter.is_stream();
    let Some(error) = record.error.as_mut().filter(|_| told) else { return };
    let mut said = vec![error.message.as_str()];
    said.extend(error.stderr_tail.iter().map(String::as_str));
    // Text in an agent's conversation is not an error message; text that its program prints in
    // place of the conversation may be.
    said.extend(printed.iter().map(String::as_str));
    if work.asks && !work.adapter.is_stream() {
        said.extend(error.stdout_tail.iter().map(String::as_str));
    }
    error.class.get_or_insert_with(|| match (how, error.exit_code) {
        (Some(How::TimedOut | How::Silent), _) => FaultClass::Transient,
        (_, 126 | 127) | (None, 2) => FaultClass::Fatal,
        _ => match faults::classify(&said.join("\n")) {
            // An agent that was killed reported no reason; the next one may survive.
            FaultClass::Unknown if work.asks && matches!(how, Some(How::Killed(_))) => {
                FaultClass::Transient
            }
            class => class,
        },
    });
}

/// Renames the log files of an earlier attempt, which are named by step, to include its number.
pub(crate) fn keep_earlier_logs(site: &Site, step: &StepPath, attempt: Attempt) {
    if let Some(previous) = attempt.previous() {
        keep_logs(site, step, &previous.to_string());
    }
}

/// Renames the logs of an earlier execution of the same task, which did not end it, to include its
/// number.
pub(crate) fn keep_begun_logs(site: &Site, work: &Work, task_attempt: TaskAttempt) {
    if let Some(previous) = task_attempt.previous() {
        keep_logs(site, &work.step, &format!("{}-{previous}", work.attempt));
    }
}

fn keep_logs(site: &Site, step: &StepPath, number: &str) {
    for ending in ["stdout", "stderr", ANSWER, install::LOG] {
        let path = site.log(step, ending);
        let kept = site.log(step, &format!("{number}.{ending}"));
        // Logs are often missing, and a log that cannot be kept must not fail a step.
        let _ = disk::rename(&path, &kept);
    }
}

/// Logs the environment of a child process: only names, but values for the variables set here.
fn note_environment(site: &Site, work: &Work, env: &[(String, OsString)], hidden: &[&str]) {
    let lacks = |name: &str| {
        let removed = exec::LOCAL_TO_GIT.iter().chain(&exec::FORCING_COLORS);
        hidden.contains(&name) || removed.into_iter().any(|removed| *removed == name)
    };
    let inherited = site.environment.keys().filter(|name| !lacks(name));
    let inherited = inherited.map(|name| format!("environment: {name}"));
    let own =
        env.iter().map(|(name, value)| format!("environment: {name}={}", value.to_string_lossy()));
    site.keep_notes(&work.step, &inherited.chain(own).collect::<Vec<_>>());
}

/// Returns the result of a step that could not start.
fn refused(site: &Site, work: &Work, code: i32, message: String) -> Performed {
    let mut context = Map::new();
    context.insert("substituted_command".into(), command(site, work));
    let mut record = Record::refused(code, site.mask.text(&message), context);
    record.debug = work.debug.clone();
    classify(work, None, &[], &mut record);
    Performed::of(record)
}

/// Returns the result for a provider that must not be used before a user has acted.
fn needs_person(child: &Child, work: &Work, reason: String) -> Performed {
    let verdict = Verdict::NeedsPerson { reason };
    let outcome = agent::Outcome::of_text("", verdict, SystemClock.now());
    let heard = hear(child, None, outcome, false);
    let message = heard.message(work.provider.as_deref().unwrap_or_default());
    let mut performed = refused(child.site, work, 1, message);
    if let Some(error) = &mut performed.record.error {
        error.class = Some(FaultClass::Fatal);
        error.context.insert("verdict".into(), heard.outcome.verdict.to_json());
    }
    Performed { returns: heard.returns, ..performed }
}

/// Returns the result of a script or worktree that could not be prepared.
fn unready(site: &Site, mut record: Record, began: Instant) -> Performed {
    if let Some(error) = &mut record.error {
        error.message = site.mask.text(&error.message);
    }
    record.duration_ms = Some(began.elapsed().as_millis() as u64);
    Performed::of(record)
}

/// Returns the argv for display: masked, and with long arguments truncated.
fn command(site: &Site, work: &Work) -> Value {
    const SHOWN: usize = 2048;
    let show = |arg: &String| {
        let text = site.mask.text(arg);
        match text.char_indices().nth(SHOWN) {
            Some((cut, _)) => format!("{}… ({} bytes)", &text[..cut], text.len()),
            None => text,
        }
    };
    work.argv.iter().map(show).collect::<Vec<_>>().into()
}

/// A result under construction.
struct Outcome<'a> {
    site: &'a Site,
    work: &'a Work,
    ended: &'a Ended,
    heard: Option<Heard>,
    /// True if the agent was asked a second time for missing output.
    asked_again: bool,
    record: Record,
}

impl Outcome<'_> {
    fn read(&mut self, out: &Captured, err: &Captured) {
        let how = self.ended.how;
        let heard = self.heard.take();
        let code = heard.as_ref().map_or(how.exit_code(), |heard| heard.exit_code(how));
        self.record.exit_code = Some(code);
        self.record.debug = self.work.debug.clone();
        self.record.truncated = Some(out.truncated);
        self.record.metrics = Some(Metrics {
            exec_ms: self.ended.took.as_millis() as u64,
            stdout_bytes: out.total_bytes,
            stderr_bytes: err.total_bytes,
        });
        let parsed = self.keep_output(out);
        self.record.status = StepStatus::Completed;
        if code != 0 {
            let message = self.failure_message(heard.as_ref());
            self.fail(code, message, self.failure_context(heard.as_ref()));
            if self.ended.how == How::Silent {
                self.log_output(out);
            }
        } else if let Err(fault) = parsed {
            self.fail(2, fault.message, fault.context);
        } else if let Err(error) = self.settle(out) {
            self.fail(1, format!("cannot keep the output: {error}"), Map::new());
        }
        if let Some(error) = &mut self.record.error {
            error.stdout_tail = out.tail.clone();
            error.stderr_tail = err.tail.clone();
        }
        match heard {
            Some(heard) => self.keep_heard(&heard, code != 0),
            None if self.asked_again && self.record.warning.is_none() => {
                self.record.warning = Some(agent_stream::ASKED_AGAIN.into());
            }
            None => {}
        }
    }

    /// Adds to the record what an agent's output reports in addition to its answer.
    fn keep_heard(&mut self, heard: &Heard, failed: bool) {
        let (site, is_stream) = (self.site, self.work.adapter.is_stream());
        if is_stream {
            self.record.usage = Some(Box::new(heard.spent(site, self.work)));
        }
        if self.record.warning.is_none() {
            self.record.warning = heard.warning();
        }
        let Some(error) = &mut self.record.error else { return };
        if is_stream {
            error.stdout_tail = heard.tail();
            error.stderr_tail.retain(|line| !agent::is_noise(line));
        }
        if is_stream && heard.explains() && !error.stdout_tail.is_empty() {
            // The verdict states the cause. Text that a program prints in addition to its events
            // explains nothing, and is in the log.
            error.stderr_tail.clear();
        }
        if failed {
            error.class = heard.class(self.ended.how);
            error.retry_at = heard.outcome.verdict.at();
            error.context.extend(heard.context(self.ended.how));
        }
    }

    fn failure_message(&self, heard: Option<&Heard>) -> String {
        let provider = self.work.provider.as_deref().unwrap_or_default();
        match self.ended.how {
            How::TimedOut => {
                let limit = self.work.timeout().unwrap_or_default().as_secs_f64();
                let whose = self.work.limit.as_ref();
                let whose = whose.map(|whose| format!(", all that {whose} had left"));
                format!("Command timed out after {limit} s{}", whose.unwrap_or_default())
            }
            How::Silent if heard.is_none_or(|heard| !heard.explains()) => {
                let limit = self.work.idle_timeout().unwrap_or_default().as_secs_f64();
                format!("Command printed nothing for {limit} s")
            }
            How::Exited(_) | How::Killed(_) | How::Silent if heard.is_some() => {
                heard.map(|heard| heard.message(provider)).unwrap_or_default()
            }
            How::Killed(signal) => format!("Command was killed by signal {signal}"),
            How::Exited(code) => format!("Command failed with exit code {code}"),
            How::Silent | How::Stopped => "Command was stopped".into(),
        }
    }

    fn failure_context(&self, heard: Option<&Heard>) -> Map<String, Value> {
        let mut context = Map::new();
        let (name, limit) = match self.ended.how {
            How::TimedOut => ("timeout_sec", self.work.timeout()),
            How::Silent if heard.is_none_or(|heard| !heard.explains()) => {
                ("idle_timeout_sec", self.work.idle_timeout())
            }
            _ => return context,
        };
        context.insert(name.into(), json!(limit.unwrap_or_default().as_secs_f64()));
        context
    }

    fn fail(&mut self, code: i32, message: String, mut context: Map<String, Value>) {
        self.record.status = StepStatus::Failed;
        self.record.exit_code = Some(code);
        context.insert("substituted_command".into(), command(self.site, self.work));
        let message = self.site.mask.text(&message);
        let context = mask_map(self.site, context);
        self.record.error = Some(Fault { message, exit_code: code, context, ..Fault::default() });
    }

    /// Adds the output to the record by its mode. The error states why it cannot be used.
    fn keep_output(&mut self, out: &Captured) -> Result<(), Unusable> {
        match self.work.capture {
            CaptureMode::Text => {
                self.record.output = Some(out.text());
                Ok(())
            }
            CaptureMode::Whole => {
                self.keep_whole(&out.whole);
                Ok(())
            }
            CaptureMode::Lines => {
                self.record.output_capture = Some(CaptureMode::Lines);
                self.record.lines = Some(out.lines.clone());
                Ok(())
            }
            CaptureMode::Json => self.keep_json(out),
        }
    }

    fn keep_whole(&mut self, whole: &WholeText) {
        let root = self.site.root();
        if whole.replaced {
            self.record.warning.get_or_insert_with(|| {
                "its output has bytes that are no UTF-8; the character U+FFFD stands for them"
                    .into()
            });
        }
        self.record.output = Some(whole.head.clone());
        self.record.truncated = Some(whole.file.is_some());
        self.record.whole = whole.file.as_ref().map(|file| Whole {
            path: file.path.strip_prefix(root).unwrap_or(&file.path).to_string_lossy().into(),
            bytes: file.bytes,
            sha256: file.sha256.clone(),
        });
    }

    /// Reads an answer by its rules, and syncs a long output.
    fn settle(&mut self, out: &Captured) -> io::Result<()> {
        if let Some(rules) = &self.work.answer {
            match reply::read(rules, &self.work.asked(), &out.whole)? {
                Ok(read) => self.keep_answer(read, out)?,
                Err(wrong) => {
                    self.fail(wrong.code, wrong.message, wrong.context);
                    self.record.json = wrong.said.map(|said| mask_json(self.site, said));
                    let ask_again = wrong.ask_again && !self.asked_again;
                    if let Some(error) = &mut self.record.error {
                        (error.class, error.ask_again) = (wrong.class, ask_again);
                    }
                }
            }
        }
        // The journal refers to the file, so the file must not reach the medium later.
        if let Some(whole) = &self.record.whole {
            let path = self.site.root().join(&whole.path);
            disk::machine().sync(&path)?;
            disk::machine().sync_dir(path.parent().unwrap_or(&path))?;
        }
        Ok(())
    }

    fn keep_answer(&mut self, read: reply::Reply, out: &Captured) -> io::Result<()> {
        self.record.until_met = read.until_met;
        self.record.warning = read.warning.or(self.record.warning.take());
        self.record.json = read.json.map(|value| mask_json(self.site, value));
        let text = match &self.record.json {
            Some(_) => read.text.map(|json| mask_written(self.site, &json)),
            None => read.text,
        };
        if let Some(said) = read.said {
            self.record.json = Some(mask_json(self.site, said));
        }
        let Some(text) = text else { return Ok(()) };
        self.log_output(out);
        if let Some(file) = &out.whole.file {
            disk::machine().remove(&file.path)?;
        }
        let path = self.site.root().join(output_path(self.work));
        self.keep_whole(&WholeText::keep(&text, &path)?);
        Ok(())
    }

    fn keep_json(&mut self, out: &Captured) -> Result<(), Unusable> {
        self.record.output_capture = Some(CaptureMode::Json);
        let parsed = if out.truncated {
            Err(("overflow", "output is larger than 1 MiB".to_owned()))
        } else {
            out.json().map_err(|error| ("invalid", error.to_string()))
        };
        match parsed {
            Ok(value) => {
                self.record.truncated = Some(false);
                let checked = check_json(self.site, self.work, &value);
                self.record.json = Some(mask_json(self.site, value));
                checked
            }
            Err((reason, message)) => {
                self.keep_unparsed(out, reason);
                if self.work.allow_parse_error {
                    return Ok(());
                }
                let context = [("json_parse_error".to_owned(), json!({ "reason": reason }))];
                Err(Unusable {
                    message: format!("JSON parse failed: {message}"),
                    context: context.into_iter().collect(),
                })
            }
        }
    }

    /// Keeps output that could not be parsed: its head in the record, all of it in the log.
    fn keep_unparsed(&mut self, out: &Captured, reason: &str) {
        let diagnosis = json!({ "reason": reason });
        self.record.debug.insert("json_parse_error".into(), diagnosis);
        if self.work.allow_parse_error {
            let mut head = out.head.clone();
            self.record.truncated = Some(exec::capture::cut(&mut head, exec::capture::TEXT_BYTES));
            self.record.output = Some(String::from_utf8_lossy(&head).into_owned());
        }
        self.log_output(out);
    }

    /// Logs output that the record does not have in its raw form. After a second turn it is already
    /// logged, unless the output is a stream.
    fn log_output(&self, out: &Captured) {
        if !self.asked_again || self.work.adapter.is_stream() {
            log_output(self.site, self.work, out);
        }
    }
}

fn log_output(site: &Site, work: &Work, out: &Captured) {
    let ending = if work.adapter.is_stream() { ANSWER } else { "stdout" };
    let path = site.log(&work.step, ending);
    if let Err(error) = out.write_log(&path) {
        tracing::warn!("cannot write `{}`: {error}", path.display());
    }
}
