//! `orchestrate why`: explains in one sentence why a run, step, or task is in its state.

use serde_json::json;

use super::invocation::Invocation;
use super::output::{put, put_json};
use super::{Common, status};
use crate::actions::target::{self, Target};
use crate::base::ids::{RunId, shown};
use crate::base::program_name::ORCHESTRATE;
use crate::run::failure::Failure;
use crate::run::project::unreadable_queue;
use crate::view::{self, Board, Found};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct WhyArgs {
    /// A run or a task: its id or the beginning of it; `latest` is the newest run
    #[arg(value_name = "RUN|TASK", default_value = "latest")]
    pub target: String,
    /// A step of the run
    #[arg(value_name = "STEP")]
    pub step: Option<String>,
}

pub(super) fn main(args: &WhyArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let queue = invocation.queue_if_any()?;
    let board = Board::scan(&invocation, queue)?;
    let (id, state, sentence) = match target::target(&invocation, &board, &args.target)? {
        Target::Run(id) => why_run(&board, &id, args.step.as_deref())?,
        Target::Task(found) => why_task(&board, &found, args.step.as_deref())?,
        Target::Aside(aside) => (aside.id.to_string(), "dropped", board.why_aside(&aside)),
    };
    match invocation.common.json {
        true => put_json("why/v1", json!({ "id": id, "state": state, "why": sentence }))?,
        false => put(&format!("{sentence}\n"))?,
    }
    Ok(0)
}

type Why = (String, &'static str, String);

fn why_run(board: &Board, id: &RunId, step: Option<&str>) -> Result<Why, Failure> {
    let damaged = |error| status::cannot_show(&board.damaged(id, &error), id, &error);
    let detail = board.detail(id).map_err(damaged)?;
    let Some(name) = step else {
        return Ok((id.to_string(), detail.run.state.word(), view::why_run(&detail)));
    };
    let exact = detail.steps.iter().find(|step| step.step == name);
    let named = || detail.steps.iter().find(|step| shown(&step.step) == shown(name));
    let over = || board.step(id, name);
    let step = exact.or_else(named).cloned().or_else(over).ok_or_else(|| {
        let unit = detail.run.unit;
        let message = format!("run {id} has no {unit} `{name}`, or has not come to it");
        Failure::invalid(message).hint(format!("`{ORCHESTRATE} status {id}` shows its {unit}s"))
    })?;
    Ok((id.to_string(), step.state.word(), view::why_step(&detail, &step)))
}

fn why_task(board: &Board, found: &Found, step: Option<&str>) -> Result<Why, Failure> {
    let task = board.task(found).map_err(|error| unreadable_queue(&error))?;
    let run = task.run_id.as_deref().filter(|_| task.kind == "run").and_then(RunId::parse);
    if let Some(run) = run {
        return why_run(board, &run, step);
    }
    if step.is_some() {
        return Err(Failure::invalid("a task has no steps: leave STEP out"));
    }
    Ok((task.task.clone(), task.place.word(), view::why_task(&task)))
}
