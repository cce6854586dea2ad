//! Helpers that several verbs share: opening the board, resolving a name from the command line, and
//! writing data to stdout.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::Failure;
use super::common::{self, Surroundings};
use super::fleet;
use crate::attempt::parking;
use crate::base::ids::RunId;
use crate::disk;
use crate::disk::fs;
use crate::free_task::intake::{self, Aside};
use crate::queue::{self, Layout, Queue, Turn};
use crate::view::stderr::{Tamed, talk};
use crate::view::{Board, Found, Lookup, RunView, Standing, remark, why_queued};

/// Opens the queue of the workspace, or returns `None` if it has none. Never creates a queue.
pub(crate) fn queue_if_any(around: &Surroundings) -> Result<Option<Arc<Queue>>, Failure> {
    let layout = Layout::new(&around.workspace);
    let there = queue::has_queue(&*disk::machine(), &layout);
    match there.map_err(|error| fleet::cannot_open(around, &error))? {
        true => fleet::open_queue(around).map(Some),
        false => Ok(None),
    }
}

/// Returns the fleet run that may currently change the checkout, if a process drives it. Also
/// returns `None` if the queue is unreadable: that must not block a run that needs no fleet.
pub(crate) fn run_with_turn(around: &Surroundings) -> Option<String> {
    let dir = Layout::new(&around.workspace).checkout();
    let names = fs::read_dir(&dir).ok()?.flatten();
    let mut turns = names.filter_map(|entry| Turn::parse(entry.file_name().to_str()?));
    turns.find(|turn| turn.holder.is_some())?;
    let board = board(around, queue_if_any(around).ok()?).ok()?;
    board.run_with_turn()
}

/// Opens the queue of the workspace. Fails if the workspace has none.
pub(crate) fn need_queue(around: &Surroundings) -> Result<Arc<Queue>, Failure> {
    queue_if_any(around)?.ok_or_else(|| {
        Failure::new(2, "this workspace has no queue: nothing was ever put out in it")
            .hint("`orchestrate worker AGENT` begins to serve an inbox")
    })
}

pub(crate) fn board(around: &Surroundings, queue: Option<Arc<Queue>>) -> Result<Board, Failure> {
    let workspace = common::open_workspace(around)?;
    let config = around.config.clone();
    Board::look(workspace, &around.state_dir, queue, config).map_err(|error| unreadable(&error))
}

/// Returns true if `file` is `-`, which means standard output.
pub(crate) fn is_stdout(file: &Path) -> bool {
    file == Path::new("-")
}

/// Reports why a followed run makes no progress, once for each reason.
#[derive(Default)]
pub(crate) struct Waits(Option<String>);

impl Waits {
    pub(crate) fn say(&mut self, around: &Surroundings, board: &Board, id: &RunId) {
        let view = board.run(id);
        let why = match view.state {
            Standing::Queued => why_queued(&view),
            Standing::Paused if view.is_driven() => standing(&view),
            _ => return self.0 = None,
        };
        if self.0.as_ref() != Some(&why) {
            around.say(&why);
            self.0 = Some(why);
        }
    }
}

/// Reports the state of a run after the user followed it.
pub(crate) fn say_standing(around: &Surroundings, run: &RunView) {
    around.say(standing(run));
}

fn standing(run: &RunView) -> String {
    let remark = remark(run);
    let remark = if remark.is_empty() { remark } else { format!(": {remark}") };
    format!("run {} {}{remark}", run.run_id, run.state.word())
}

/// Reports the providers that are parked.
pub(crate) fn say_parked(around: &Surroundings, board: &Board) {
    board.parked.iter().for_each(|parked| around.say(parking::told(parked)));
}

/// Warns about each inbox file that workers ignore, with the reason. `None` checks all agents.
pub(crate) fn say_ignored(around: &Surroundings, agent: Option<&str>) {
    let inboxes = Layout::new(&around.workspace).inboxes();
    for file in intake::beside_inboxes(&inboxes).iter().filter(|_| agent.is_none()) {
        talk(format_args!(
            "warning: `inbox/{file}` is ignored: tasks belong in the inbox of an agent, \
             `inbox/AGENT/`"
        ));
    }
    let entries = fs::read_dir(inboxes).into_iter().flatten().flatten();
    let mut agents: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    agents.retain(|name| agent.is_none_or(|agent| agent == name));
    agents.sort();
    for agent in agents {
        for (file, reason) in intake::ignored(&Layout::new(&around.workspace).inbox(&agent)) {
            talk(format_args!("warning: `inbox/{agent}/{file}` is ignored: {reason}"));
        }
    }
}

/// Returns the failure for an unreadable queue.
pub(crate) fn unreadable(error: &std::io::Error) -> Failure {
    Failure::new(1, format!("cannot look into the queue: {error}"))
        .hint("`orchestrate doctor` tells more")
}

/// The object that a name on the command line refers to.
pub(crate) enum Target {
    Run(RunId),
    Task(Found),
    /// A dropped file that is not yet a task.
    Aside(Aside),
}

/// Resolves a run or a task by its id or a prefix of its id.
pub(crate) fn target(around: &Surroundings, board: &Board, name: &str) -> Result<Target, Failure> {
    match common::find_run(around, name) {
        Ok((id, _)) => Ok(Target::Run(id)),
        // Run ids start with a year and task ids with a zero, so a name cannot match both.
        Err(failure) if name == "latest" || name.starts_with('2') => Err(failure),
        Err(_) => match (find_task(board, name)?, aside(board, name)) {
            (Some(found), _) => Ok(Target::Task(found)),
            (None, Some(aside)) => Ok(Target::Aside(aside)),
            (None, None) => {
                Err(Failure::new(2, format!("there is neither a run nor a task `{name}`"))
                    .hint("`orchestrate status` shows runs, `orchestrate queue ls` shows tasks"))
            }
        },
    }
}

/// Finds a dropped file that is being adopted, by the id of its future task. Returns `None` if
/// `name` is ambiguous.
fn aside(board: &Board, name: &str) -> Option<Aside> {
    let mut found = board.find_aside(&name.to_ascii_uppercase()).ok()?;
    found.pop().filter(|_| found.is_empty())
}

/// Returns the failure for a command on a dropped file that is not yet a task.
pub(crate) fn no_task_yet(board: &Board, aside: &Aside) -> Failure {
    Failure::new(1, board.why_aside(aside)).hint("try again when it is")
}

/// Resolves a task by its id or a prefix of its id.
pub(crate) fn task(board: &Board, name: &str) -> Result<Found, Failure> {
    find_task(board, name)?.ok_or_else(|| match aside(board, name) {
        Some(aside) => no_task_yet(board, &aside),
        None => Failure::new(2, format!("there is no task `{name}`"))
            .hint("`orchestrate queue ls` shows those that wait or are being executed"),
    })
}

fn find_task(board: &Board, name: &str) -> Result<Option<Found>, Failure> {
    match board.find_task(&name.to_ascii_uppercase()).map_err(|error| unreadable(&error))? {
        Lookup::One(found) => Ok(Some(found)),
        Lookup::None => Ok(None),
        Lookup::Several(ids) => {
            let list: Vec<_> = ids.iter().take(5).map(|id| format!("`{id}`")).collect();
            let more = if ids.len() > 5 { ", or another" } else { "" };
            let message = format!("`{name}` could be {}{more}", list.join(" or "));
            Err(Failure::new(2, message).hint("write more of it"))
        }
    }
}

/// Writes data to stdout. A closed pipe is not an error.
pub(crate) fn put(text: &str) -> Result<(), Failure> {
    put_or_stop(text).map(|_| ())
}

/// Writes data to stdout. Returns false if the pipe is closed, so that the caller can stop.
pub(crate) fn put_or_stop(text: &str) -> Result<bool, Failure> {
    let mut out = Tamed::stdout();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Converts the result of a write. Returns false if the pipe is closed.
pub(crate) fn written(outcome: std::io::Result<()>) -> Result<bool, Failure> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(1, format!("cannot write to standard output: {error}"))),
    }
}

/// Writes one line to stdout.
pub(crate) fn put_line(line: impl std::fmt::Display) -> Result<(), Failure> {
    put(&format!("{line}\n"))
}

/// Writes one JSON document: the schema, then the fields of `body`.
pub(crate) fn put_json(schema: &str, body: impl Serialize) -> Result<(), Failure> {
    put(&format!("{}\n", document(schema, body)))
}

/// Returns one JSON document: the schema, then the fields of `body`.
pub(crate) fn document(schema: &str, body: impl Serialize) -> Value {
    let mut document = json!({ "schema": schema });
    if let (Some(document), Ok(Value::Object(body))) =
        (document.as_object_mut(), serde_json::to_value(body))
    {
        document.extend(body);
    }
    document
}

/// Formats rows as aligned columns. Two spaces precede each column.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("  {cell:<width$}"));
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows: Vec<Vec<String>> = vec![row(&["a", "äöü", "x"]), row(&["bcd", "e"])];
        assert_eq!(table(&rows), "  a    äöü  x\n  bcd  e\n");
    }
}
