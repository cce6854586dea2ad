//! Resolves the name of a run or a task.

use crate::base::ids::RunId;
use crate::free_task::intake::Aside;
use crate::run::failure::Failure;
use crate::run::project::{Project, unreadable_queue};
use crate::view::{Board, Found, Lookup};

/// The object that a name on the command line refers to.
pub(crate) enum Target {
    Run(RunId),
    Task(Found),
    /// A dropped file that is not yet a task.
    Aside(Aside),
}

/// Resolves a run or a task by its id or a prefix of its id.
pub(crate) fn target(project: &Project, board: &Board, name: &str) -> Result<Target, Failure> {
    match project.find_run(name) {
        Ok((id, _)) => Ok(Target::Run(id)),
        // Run ids start with a year and task ids with a zero, so a name cannot match both.
        Err(failure) if name == "latest" || name.starts_with('2') => Err(failure),
        Err(_) => match (find_task(board, name)?, aside(board, name)) {
            (Some(found), _) => Ok(Target::Task(found)),
            (None, Some(aside)) => Ok(Target::Aside(aside)),
            (None, None) => {
                Err(Failure::invalid(format!("there is neither a run nor a task `{name}`"))
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
    Failure::failed(board.why_aside(aside)).hint("try again when it is")
}

/// Resolves a task by its id or a prefix of its id.
pub(crate) fn task(board: &Board, name: &str) -> Result<Found, Failure> {
    find_task(board, name)?.ok_or_else(|| match aside(board, name) {
        Some(aside) => no_task_yet(board, &aside),
        None => Failure::invalid(format!("there is no task `{name}`"))
            .hint("`orchestrate queue ls` shows those that wait or are being executed"),
    })
}

fn find_task(board: &Board, name: &str) -> Result<Option<Found>, Failure> {
    match board.find_task(&name.to_ascii_uppercase()).map_err(|error| unreadable_queue(&error))? {
        Lookup::One(found) => Ok(Some(found)),
        Lookup::None => Ok(None),
        Lookup::Several(ids) => {
            let list: Vec<_> = ids.iter().take(5).map(|id| format!("`{id}`")).collect();
            let more = if ids.len() > 5 { ", or another" } else { "" };
            let message = format!("`{name}` could be {}{more}", list.join(" or "));
            Err(Failure::invalid(message).hint("write more of it"))
        }
    }
}
