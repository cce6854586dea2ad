//! Moves the files of loop items, so that each is moved exactly once even after a crash.
//!
//! The target is journaled before the file is moved. If a retry after a crash finds no source but a
//! target, the move has been done.

use crate::engine::RunScope;
use crate::engine::run::{Address, ItemResult, Lifecycle, Run, each_of};
use crate::template::display;
use crate::workflow::Plan;
use crate::workspace::{PathError, Workspace, tidy};

/// Source and target of an item's file.
pub(crate) struct Move {
    pub from: String,
    pub to: String,
}

/// Computes the move of an item. The error contains the move and the message to record instead.
pub(crate) fn plan_move(
    plan: &Plan,
    run: &Run,
    here: &Address,
    index: usize,
    result: ItemResult,
    workspace: &Workspace,
) -> Result<Move, (Move, String)> {
    let each = each_of(here.step_of(plan));
    let item = run.slot(here).and_then(|slot| slot.each.as_ref()?.items.get(index));
    let from = item.map(|item| display(item).into_owned()).unwrap_or_default();
    let fail = |to: &str, reason: String| (Move { from: from.clone(), to: to.into() }, reason);
    if let Some(begun) = begun(run, here, index) {
        return Ok(Move { from: begun.from.clone(), to: begun.to.clone() });
    }
    let target = match result {
        ItemResult::Success => &each.on_success,
        ItemResult::Failure => &each.on_failure,
    };
    let mut loops = here.loops.clone();
    loops.push((here.step, index));
    let scope = RunScope { plan, run, loops: &loops };
    let template = target.clone().unwrap_or_default();
    let dir = template.render(&scope).map_err(|missing| {
        let list: Vec<_> = missing.iter().map(|m| format!("${{{}}}", m.raw)).collect();
        fail("", format!("undefined variable in `move_to`: {}", list.join(", ")))
    })?;
    let name = from.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let to = tidy(&format!("{dir}/{name}"));
    workspace.check(&to).map_err(|error| fail(&to, error.to_string()))?;
    workspace.check(&from).map_err(|error| fail(&to, error.to_string()))?;
    Ok(Move { from: from.clone(), to: free_name(workspace, &to) })
}

/// Returns a move that was journaled and not completed.
fn begun<'a>(run: &'a Run, here: &Address, index: usize) -> Option<&'a Lifecycle> {
    let each = run.slot(here)?.each.as_ref()?;
    let lifecycle = each.iterations.get(index)?.lifecycle.as_ref()?;
    (!lifecycle.action_applied && lifecycle.error.is_none()).then_some(lifecycle)
}

/// Returns a free target name: a second item of the same name gets a number, so that it does not
/// overwrite the first.
fn free_name(workspace: &Workspace, to: &str) -> String {
    if !workspace.exists(to) {
        return to.to_owned();
    }
    let (stem, ending) = match to.rsplit_once('.') {
        Some((stem, ending)) if !ending.contains('/') => (stem, format!(".{ending}")),
        _ => (to, String::new()),
    };
    (1..)
        .map(|number| format!("{stem}.{number}{ending}"))
        .find(|name| !workspace.exists(name))
        .unwrap_or_else(|| to.to_owned())
}

/// Moves the file, or detects that it was moved already. Returns the error message to record, if
/// any.
pub(crate) fn carry_out(workspace: &Workspace, from: &str, to: &str) -> Option<String> {
    match workspace.move_file(from, to) {
        Ok(()) => None,
        Err(PathError::Missing { .. }) if workspace.exists(to) => None,
        Err(error) => Some(error.to_string()),
    }
}
