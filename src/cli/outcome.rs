//! Drives a run and prints its outcome.
use std::path::Path;

use super::invocation::Invocation;
use super::run_options::{RunOptions, telling};
use super::signals::Signals;
use super::{failure, output, pending};
use crate::attempt::exec_env;
use crate::base::program_name::ORCHESTRATE;
use crate::base::text::single_line;
use crate::base::time::{Clock, SystemClock};
use crate::engine::run::Address;
use crate::engine::{self, Event, Fault, Run, RunStatus};
use crate::run::failure::Failure;
use crate::run::local::{Driven, Finish, drive_to_end};
use crate::run::locked::LockedRun;
use crate::store::snapshot;
use crate::view::progress::{TextReport, seconds};
use crate::view::stderr::talk;
use crate::workflow::Plan;

/// Drives a run to its end and prints the outcome. Returns the exit code and the run.
pub(crate) fn drive(
    invocation: &Invocation,
    owned: LockedRun,
    options: &RunOptions,
    signals: &Signals,
    event: Option<Event>,
) -> Result<(u8, Run), Failure> {
    let mask = exec_env::mask(&owned.plan, &invocation.environment);
    let report = TextReport::new(telling(invocation, options), invocation.colour(), mask);
    let began = SystemClock.now();
    let driven =
        drive_to_end(invocation, owned, &options.drive_options(), &signals.stop, event, report)?;
    let Driven { plan, run, finish, notifier, held } = driven;
    let took = seconds(SystemClock.now().ms_since(began));
    let code = tell_end(invocation, &plan, &run, finish, signals.code(), &took);
    drop(held);
    notifier.finish();
    Ok((code, run))
}

pub(crate) fn tell_end(
    invocation: &Invocation,
    plan: &Plan,
    run: &Run,
    finish: Finish,
    stopped: u8,
    took: &str,
) -> u8 {
    let (code, word) = match finish {
        Finish::Ended(RunStatus::Completed) => (0, "completed"),
        Finish::Ended(RunStatus::Cancelled) => (4, "cancelled"),
        Finish::Ended(RunStatus::Blocked) => (1, "blocked"),
        Finish::Ended(_) => (1, "failed"),
        Finish::Stopped => (stopped, "stopped"),
        Finish::Paused => (3, "paused"),
    };
    tracing::info!("run {} {word}", run.id);
    let exit = tell_outcome(invocation, plan, run, code);
    let failed: Vec<_> =
        run.failed_steps.iter().map(|step| format!("`{}`", step.shown())).collect();
    if !failed.is_empty() {
        invocation.note(format!("failed {}s: {}", plan.unit(), failed.join(", ")));
    }
    let reason = run.error.as_ref().filter(|_| run.status == RunStatus::Cancelled);
    if let Some(error) = run.error.as_ref().filter(|_| reason.is_none()) {
        talk(format_args!("error: {}", single_line(error)));
    }
    if code == 0 {
        invocation.note(format!("run {} {word} in {took}", run.id));
        return exit;
    }
    if finish == Finish::Paused {
        invocation.note(format!("run {} waits for a person, after {took}", run.id));
        pending::tell_gates(invocation, plan, run);
        return exit;
    }
    // Errors are printed with `--quiet` too.
    match reason {
        Some(reason) => {
            talk(format_args!("run {} was cancelled after {took}: {}", run.id, single_line(reason)))
        }
        None => talk(format_args!("run {} {word} in {took}", run.id)),
    }
    let root = invocation.openable(Path::new(&run.origin.run_root));
    talk(format_args!("  state: {root}/state.json"));
    let failed = run.failed_steps.last().and_then(|path| Address::find(plan, path));
    let record = failed.and_then(|at| run.slot(&at)?.record.as_deref());
    let fault = record.and_then(|record| record.error.as_ref());
    if code == 1 && fault.is_some_and(Fault::is_of_spell) {
        talk("  the run keeps the spells that it began with; mend it, then continue with it:");
        talk(format_args!("  {ORCHESTRATE} resume {} --accept-changes", run.id));
        return exit;
    }
    if !engine::has_more(plan, run) {
        let file = &run.origin.workflow_file;
        talk(format_args!("  no node was executed, and none would be: {ORCHESTRATE} run {file}"));
        return exit;
    }
    // After the last step there is nothing to resume.
    if !run.is_through(plan) {
        // A user who cancels a run rarely wants to continue it, but the hint names the command
        // anyway.
        let (why, verb) =
            if code == 4 { ("take it up again", "retry") } else { ("go on", "resume") };
        talk(format_args!("  {why}: {ORCHESTRATE} {verb} {}", run.id));
    }
    exit
}

/// Writes the summary of the run to stdout, with `--json` only. Returns the exit code of the run,
/// or that of a write failure if the run succeeded.
pub(crate) fn tell_outcome(invocation: &Invocation, plan: &Plan, run: &Run, code: u8) -> u8 {
    if !invocation.common.json {
        return code;
    }
    let mut summary = snapshot::summary(plan, run);
    summary["exit_code"] = code.into();
    match output::put_line(summary) {
        Ok(()) => code,
        Err(failure) => {
            failure::print(&failure, false);
            if code == 0 { failure.exit_code() } else { code }
        }
    }
}
