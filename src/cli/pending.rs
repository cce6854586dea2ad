//! `orchestrate pending`: lists the pending gates of all runs, and the commands that answer them.

use serde_json::json;

use super::Common;
use super::invocation::Invocation;
use super::output::{put, put_json};
use crate::base::ids::RunId;
use crate::base::program_name::ORCHESTRATE;
use crate::base::text::sanitize;
use crate::base::time::{Clock, SystemClock};
use crate::engine::Run;
use crate::run::failure::Failure;
use crate::run::home;
use crate::view::progress::seconds;
use crate::view::stderr::talk;
use crate::view::{self, Gate, gates_of};
use crate::workflow::Plan;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct PendingArgs {
    /// One run: its id, the beginning of it, or `latest`
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
}

pub(super) fn main(args: &PendingArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let workspace = invocation.open_workspace()?;
    let runs = match &args.run {
        Some(name) => vec![invocation.find_run(name)?.0],
        None => view::that_may_ask(&invocation.state_dir),
    };
    let mut open_gates = Vec::new();
    for id in runs {
        let root = invocation.state_dir.join(id.as_str());
        if let Some(home) = home::elsewhere(&invocation, &root) {
            let home = home.display();
            invocation
                .note(format!("run {id} is of the workspace `{home}`: what it asks is told there"));
            continue;
        }
        match view::gates_in(&workspace, &root) {
            Ok(gates) => open_gates.extend(gates),
            Err(error) => invocation.note(format!("warning: run {id} cannot be read: {error}")),
        }
    }
    if invocation.common.json {
        put_json("pending/v1", json!({ "gates": open_gates }))?;
    } else if open_gates.is_empty() {
        invocation.note("nobody is asked anything");
    } else {
        put(&sanitize(&open_gates.iter().map(show).collect::<Vec<_>>().join("\n")))?;
    }
    Ok(0)
}

/// Formats a gate for the user: its question and the commands that answer it.
fn show(gate: &Gate) -> String {
    let Gate { run_id, node, message, .. } = gate;
    let now = SystemClock.now();
    let since = gate.since.map(|at| format!(", for {}", seconds(now.ms_since(at))));
    let since = since.unwrap_or_default();
    let until = gate.expires_at.map(|at| format!(", until {}", at.to_second()));
    let until = until.unwrap_or_default();
    let asked: String = message.lines().map(|line| format!("    {line}\n")).collect();
    if gate.answered {
        return format!(
            "run {run_id} waits at `{node}`{since}{until}:\n{asked}  \
             it was answered, which counts once somebody drives the run:\n  \
             {ORCHESTRATE} resume {run_id}\n"
        );
    }
    if gate.expired {
        return format!(
            "run {run_id} waited at `{node}`{since}{until}, and nobody answered in time:\n{asked}  \
             ask again: {ORCHESTRATE} retry {run_id} --from {node}\n"
        );
    }
    let shown = gate.short();
    let said = gate.said.as_deref().map(|said| excerpt(said, run_id, node)).unwrap_or_default();
    let refused = gate.refused.as_ref();
    let refused =
        refused.map(|why| format!("  an answer was dropped that does not count: {why}\n"));
    let refused = refused.unwrap_or_default();
    format!(
        "run {run_id} waits at `{node}`{since}{until}:\n{said}{asked}{refused}  \
         {ORCHESTRATE} approve {run_id} --step {node} --shown {shown} [--comment TEXT]\n  \
         {ORCHESTRATE} reject {run_id} --step {node} --shown {shown} --reason TEXT\n"
    )
}

/// Returns the first lines of an agent's message.
fn excerpt(said: &str, run_id: &RunId, node: &str) -> String {
    const LINES: usize = 20;
    const WIDTH: usize = 200;
    let line = |line: &str| format!("    | {}\n", line.chars().take(WIDTH).collect::<String>());
    let mut text: String = said.lines().take(LINES).map(line).collect();
    if said.lines().count() > LINES || said.lines().any(|line| line.chars().count() > WIDTH) {
        text.push_str(&format!("    | … the whole: {ORCHESTRATE} logs {run_id} {node}\n"));
    }
    text
}

/// Prints the gates of a run that has just paused, with the commands to continue. Ignores
/// `--quiet`.
pub(super) fn tell_gates(invocation: &Invocation, plan: &Plan, run: &Run) {
    for gate in gates_of(&invocation.workspace, plan, run) {
        talk(show(&gate).trim_end());
    }
}
