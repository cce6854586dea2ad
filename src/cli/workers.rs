//! `orchestrate workers`: lists workers and coordinators, and asks them to exit.

use std::collections::HashSet;

use serde_json::json;

use super::invocation::Invocation;
use super::output::{put, put_json, table};
use super::{Common, standing};
use crate::attempt::documents::COORDINATOR;
use crate::fleet::member;
use crate::queue::Queue;
use crate::run::failure::Failure;
use crate::run::project::unreadable_queue;
use crate::view::rows::worker_row;
use crate::view::{Board, Life, WorkerView};

#[derive(clap::Subcommand, Clone, Debug)]
pub(super) enum WorkersVerb {
    /// Show workers and coordinators, dead ones included
    Ls,
    /// Ask workers to finish what they have begun, take nothing new, and end
    #[command(override_usage = "orchestrate workers drain [OPTIONS] WORKER|AGENT...\n       \
        orchestrate workers drain [OPTIONS] --all")]
    #[command(after_help = "Examples:\n  \
        orchestrate workers drain engineer     every worker of the agent `engineer`\n  \
        orchestrate workers drain 1f8a         the one worker whose id begins so\n  \
        orchestrate workers drain coordinator  every coordinator\n  \
        orchestrate workers drain --all        all of them\n\n\
        It is one Ctrl-C for each of them, from any machine. What waits in their inboxes stays \
        there.")]
    Drain(DrainArgs),
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct DrainArgs {
    /// A worker by its id, as `workers ls` shows it, or the beginning of that; or an agent, for
    /// all of its workers
    #[arg(value_name = "WORKER|AGENT", conflicts_with = "all")]
    pub names: Vec<String>,
    /// Every worker and every coordinator of the workspace
    #[arg(long)]
    pub all: bool,
}

pub(super) fn main(verb: &WorkersVerb, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    match verb {
        WorkersVerb::Ls => list(&invocation),
        WorkersVerb::Drain(args) => drain(args, &invocation),
    }
}

fn list(invocation: &Invocation) -> Result<u8, Failure> {
    let board = Board::scan(invocation, invocation.queue_if_any()?)?;
    let workers: Vec<WorkerView> = board.members.views().collect();
    if invocation.common.json {
        put_json("workers/v1", json!({ "workers": workers, "parked": board.parked }))?;
        return Ok(0);
    }
    standing::say_parked(invocation, &board);
    if workers.is_empty() {
        invocation.note("no worker is there; `orchestrate worker AGENT` starts one");
    }
    put(&table(&workers.iter().map(|worker| worker_row(worker, board.now)).collect::<Vec<_>>()))?;
    Ok(0)
}

fn drain(args: &DrainArgs, invocation: &Invocation) -> Result<u8, Failure> {
    if args.names.is_empty() && !args.all {
        let message = "nobody was named: who is to end?";
        return Err(Failure::invalid(message).hint(
            "name a worker or an agent, as `orchestrate workers ls` shows them, or `--all`",
        ));
    }
    let queue = invocation.need_queue()?;
    let board = Board::scan(invocation, Some(queue.clone()))?;
    let living: Vec<WorkerView> =
        board.members.views().filter(|member| member.life != Life::Dead).collect();
    let mut asked = Vec::new();
    // Resolve all names before asking any worker to exit.
    for name in &args.names {
        asked.extend(picked(living.clone(), name)?);
    }
    if args.all {
        asked = living;
    }
    if asked.is_empty() {
        invocation.note("nobody was asked: no worker is alive");
    }
    let (mut views, mut seen) = (Vec::new(), HashSet::new());
    for member in asked {
        if !seen.insert(member.worker.clone()) {
            continue;
        }
        let done = ask(invocation, &queue, &member)?;
        views.push(json!({ "worker": member.worker, "agent": member.agent, "asked": done }));
    }
    if invocation.common.json {
        put_json("drain/v1", json!({ "workers": views }))?;
    }
    Ok(0)
}

fn picked(living: Vec<WorkerView>, name: &str) -> Result<Vec<WorkerView>, Failure> {
    let of_agent: Vec<WorkerView> =
        living.iter().filter(|member| member.agent == name).cloned().collect();
    if !of_agent.is_empty() {
        return Ok(of_agent);
    }
    let named: Vec<WorkerView> =
        living.into_iter().filter(|member| member.worker.starts_with(name)).collect();
    match named.len() {
        1 => Ok(named),
        0 => Err(Failure::invalid(format!("no living worker is called `{name}` or serves it"))
            .hint("`orchestrate workers ls` shows who is there")),
        _ => {
            let list: Vec<_> = named.iter().map(|member| format!("`{}`", member.worker)).collect();
            Err(Failure::invalid(format!("`{name}` could be {}", list.join(" or "))))
        }
    }
}

/// Asks one member to exit. Skips the coordinator of a single run, which exits with its run.
fn ask(invocation: &Invocation, queue: &Queue, member: &WorkerView) -> Result<bool, Failure> {
    let WorkerView { agent, worker, .. } = member;
    if let Some(run) = &member.run {
        invocation.note(format!("coordinator {worker} drives run {run} and ends with it"));
        return Ok(false);
    }
    member::ask_to_drain(queue, worker).map_err(|error| unreadable_queue(&error))?;
    if !invocation.common.json {
        let busy = match member.claims {
            0 => "",
            _ if agent == COORDINATOR => ", and gives its runs back first",
            1 => ", when it has finished its task",
            _ => ", when it has finished its tasks",
        };
        put(&format!("{agent} {worker} is asked to end{busy}\n"))?;
    }
    Ok(true)
}
