//! Messages about the state of runs, providers, and inboxes.

use super::invocation::Invocation;
use crate::attempt::parking;
use crate::base::ids::RunId;
use crate::disk::fs;
use crate::free_task::intake;
use crate::queue::Layout;
use crate::view::stderr::talk;
use crate::view::{Board, RunView, Standing, remark, why_queued};

/// Reports why a followed run makes no progress, once for each reason.
#[derive(Default)]
pub(crate) struct Waits(Option<String>);

impl Waits {
    pub(crate) fn say(&mut self, invocation: &Invocation, board: &Board, id: &RunId) {
        let view = board.run(id);
        let why = match view.state {
            Standing::Queued => why_queued(&view),
            Standing::Paused if view.is_driven() => standing(&view),
            _ => return self.0 = None,
        };
        if self.0.as_ref() != Some(&why) {
            invocation.note(&why);
            self.0 = Some(why);
        }
    }
}

/// Reports the state of a run after the user followed it.
pub(crate) fn say_standing(invocation: &Invocation, run: &RunView) {
    invocation.note(standing(run));
}

fn standing(run: &RunView) -> String {
    let remark = remark(run);
    let remark = if remark.is_empty() { remark } else { format!(": {remark}") };
    format!("run {} {}{remark}", run.run_id, run.state.word())
}

/// Reports the providers that are parked.
pub(crate) fn say_parked(invocation: &Invocation, board: &Board) {
    board.parked.iter().for_each(|parked| invocation.note(parking::told(parked)));
}

/// Warns about each inbox file that workers ignore, with the reason. `None` checks all agents.
pub(crate) fn say_ignored(invocation: &Invocation, agent: Option<&str>) {
    let inboxes = Layout::new(&invocation.workspace).inboxes();
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
        for (file, reason) in intake::ignored(&Layout::new(&invocation.workspace).inbox(&agent)) {
            talk(format_args!("warning: `inbox/{agent}/{file}` is ignored: {reason}"));
        }
    }
}
