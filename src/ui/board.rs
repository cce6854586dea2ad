//! The board: what there is to see of runs, tasks and workers, built from files alone.
//!
//! All verbs that show something show what is here, as text or as JSON, so no two of them can
//! tell different stories.
//!
//! **Invariant:** nothing here changes a file, but for a temporary one that shows the volume's
//! clock where members of other machines are. A run is called `running` only if somebody is there
//! who drives it: what its last owner wrote down before it died is not taken for what is.

mod gates;
mod home;
mod last;
mod members;
mod memory;
mod runs;
mod spent;
mod tasks;
mod tried;
mod turns;
mod why;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use serde::Serialize;

use crate::ansi;
use crate::disk;
use crate::fleet::Config;
use crate::fleet::free::made_at;
use crate::fleet::intake::moved_aside;
use crate::fleet::parking::{self, Cause, ParkedView};
use crate::fleet::post::COORDINATOR;
use crate::fleet::run_task;
use crate::fleet::worker::own_target;
use crate::ids::RunId;
use crate::queue::{End, FsQueue, Layout, Place, Queue, TurnHolder};
use crate::store;
use crate::time::{Clock, SystemClock, Time};
use crate::ui::talk::tame;
use crate::workspace::Workspace;

pub use gates::{Gate, gates_in, gates_of, that_may_ask};
pub use home::Birth;
pub use last::last_said;
pub use members::{Life, Members, WorkerView};
pub use memory::Memory;
pub use runs::{
    EventView, Items, Owner, RunDetail, RunView, Standing, StepShown, StepView, Walk, left_behind,
    still_run,
};
pub use spent::{RunSpent, at_least, money, of_step as step_spent, words};
pub use tasks::{Found, Lookup, PlaceView, TaskView};
pub use tried::{Tried, is_passed_over, printed};
pub use why::{first_failed, remark, skipped, why_queued, why_run, why_step, why_task};

/// How often a task that moves while it is looked for is looked for again.
const LOOKS: usize = 2;

/// What can be seen of a workspace.
pub struct Board {
    workspace: Workspace,
    state_dir: PathBuf,
    /// Nothing, where no fleet ever was.
    queue: Option<Arc<FsQueue>>,
    pub members: Members,
    /// Accounts of providers that are left alone.
    pub parked: Vec<ParkedView>,
    /// Says whose limits a task is under.
    config: Config,
    /// Where the tasks of runs are that wait for a coordinator or are held by one.
    runs: HashMap<String, Place>,
    /// What was seen before.
    memory: Arc<Memory>,
    /// The run of a fleet that took its turn to change the checkout, and gave it up not yet.
    turn: Option<TurnHolder>,
    pub now: Time,
}

/// An agent and its inbox.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InboxView {
    pub agent: String,
    pub waiting: usize,
    pub claimed: usize,
    /// Files that people dropped and that are no tasks yet.
    pub dropped: usize,
    /// Living workers that take new tasks.
    pub workers: usize,
    /// Those of them that take none for the agent's own provider: it is suspended where they run.
    #[serde(skip_serializing_if = "is_zero")]
    pub suspended: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<String>,
    /// When the task was made that waits longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_at: Option<Time>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Board {
    /// Looks at a workspace.
    pub fn look(
        workspace: Workspace,
        state_dir: &Path,
        queue: Option<Arc<FsQueue>>,
        config: Config,
    ) -> io::Result<Board> {
        Board::look_again(workspace, state_dir, queue, config, &Arc::default())
    }

    /// Looks again, which costs little where nothing has changed.
    pub fn look_again(
        workspace: Workspace,
        state_dir: &Path,
        queue: Option<Arc<FsQueue>>,
        config: Config,
        memory: &Arc<Memory>,
    ) -> io::Result<Board> {
        let mut board = Board {
            parked: parking::look(workspace.root()).unwrap_or_default(),
            config,
            workspace,
            state_dir: state_dir.to_owned(),
            queue,
            members: Members::default(),
            runs: HashMap::new(),
            memory: memory.clone(),
            turn: None,
            now: SystemClock.now(),
        };
        if let Some(queue) = &board.queue {
            let mut holders = BTreeSet::new();
            for agent in queue.agents()? {
                holders.extend(queue.claims(&agent)?.into_iter().map(|claim| claim.worker));
            }
            board.members = Members::look(queue, holders, &board.memory)?;
            let mut known = board.memory.runs.lock().unwrap_or_else(PoisonError::into_inner);
            board.turn = queue.turn()?.holder;
            board.runs = run_task::out_known(queue, &mut known)?;
        }
        board.now = SystemClock.now();
        Ok(board)
    }

    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// The ids of all runs, newest first.
    pub fn run_ids(&self) -> Vec<RunId> {
        runs_in(&self.state_dir)
    }

    /// Every agent that somebody serves or that has tasks.
    pub fn inboxes(&self) -> io::Result<Vec<InboxView>> {
        let Some(queue) = &self.queue else { return Ok(self.inboxes_of_nobody()) };
        let mut agents: BTreeSet<String> = queue.agents()?.into_iter().collect();
        agents.extend(self.members.views().map(|member| member.agent));
        agents.into_iter().map(|agent| self.inbox(queue, agent)).collect()
    }

    /// Inboxes that people made and dropped something into before any worker came.
    fn inboxes_of_nobody(&self) -> Vec<InboxView> {
        let inboxes = Layout::new(self.workspace.root()).inboxes();
        let entries = std::fs::read_dir(inboxes).into_iter().flatten().flatten();
        let named = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let view = |agent: String| {
            let inbox = Layout::new(self.workspace.root()).inbox(&agent);
            let dropped = memory::dropped_in(&inbox);
            let (waiting, claimed, workers, suspended) = (0, 0, 0, 0);
            let (paused, oldest_at) = (None, None);
            InboxView { agent, waiting, claimed, dropped, workers, suspended, paused, oldest_at }
        };
        named.map(view).filter(|inbox| inbox.dropped > 0).collect()
    }

    fn inbox(&self, queue: &FsQueue, agent: String) -> io::Result<InboxView> {
        let waiting = self.memory.waiting(queue, &agent)?;
        Ok(InboxView {
            oldest_at: waiting.names.iter().map(|name| made_at(&name.id)).min(),
            waiting: waiting.names.len(),
            claimed: queue.claims(&agent)?.len(),
            dropped: waiting.dropped + moved_aside(&queue.layout, &agent)?.len(),
            workers: self.members.serving(&agent).count(),
            suspended: self.suspended(&agent),
            paused: queue.paused(&agent)?.map(|reason| one_line(&reason)),
            agent,
        })
    }

    /// How many workers of an agent are on machines where its own provider is suspended.
    fn suspended(&self, agent: &str) -> usize {
        let target = own_target(agent, &self.config);
        let mut machine = self.parked.iter().filter(|parked| parked.cause == Cause::Machine);
        if agent == COORDINATOR || !machine.any(|parked| parked.holds(&target)) {
            return 0;
        }
        let holds = |worker: &WorkerView| {
            let here = |parked: &&ParkedView| parked.host.as_deref() == Some(&worker.host);
            let mut notes = self.parked.iter().filter(here);
            notes.any(|parked| parked.cause == Cause::Machine && parked.holds(&target))
        };
        self.members.serving(agent).filter(holds).count()
    }

    /// How many tasks lie in `failed/` that belong to no run: of the others their runs tell.
    pub fn failed(&self) -> io::Result<usize> {
        let Some(queue) = &self.queue else { return Ok(0) };
        let count = |batch: &String| {
            let dir = queue.layout.end(End::Failed, batch);
            self.memory.count(&dir, || Ok(queue.ended(End::Failed, batch)?.len()))
        };
        failed_batches(queue)?.iter().map(count).sum()
    }

    /// Living coordinators that take new runs.
    pub fn coordinators(&self) -> usize {
        self.members.serving(COORDINATOR).count()
    }
}

/// The batches of failed tasks that belong to no run, the newest first.
fn failed_batches(queue: &FsQueue) -> io::Result<Vec<String>> {
    let mut batches = queue.batches(End::Failed)?;
    batches.retain(|batch| RunId::parse(batch).is_none());
    batches.sort_by(|a, b| b.cmp(a));
    Ok(batches)
}

/// The ids of the runs that are kept in a directory, newest first. An id tells the second; those
/// of one second go by when their workflow was copied, which happens once, at their beginning.
pub fn runs_in(dir: &Path) -> Vec<RunId> {
    let listed = disk::confirmed(&[dir], || std::fs::read_dir(dir));
    let entries = listed.into_iter().flatten().flatten();
    // A file is no run, whatever its name.
    let dirs = entries.filter(|entry| !entry.file_type().is_ok_and(|kind| kind.is_file()));
    let mut ids: Vec<RunId> =
        dirs.filter_map(|entry| RunId::parse(entry.file_name().to_str()?)).collect();
    ids.sort_by(|a, b| b.cmp(a));
    let begun = |id: &RunId| {
        let copy = dir.join(id.as_str()).join(store::DEFINITION);
        std::fs::metadata(copy).and_then(|copy| copy.modified()).ok()
    };
    for of_one_second in ids.chunk_by_mut(|a, b| a.stamp() == b.stamp()) {
        if of_one_second.len() > 1 {
            of_one_second.sort_by_cached_key(|id| Reverse(begun(id)));
        }
    }
    ids
}

/// The first line of a text that somebody else wrote, fit for a line of ours: nothing in it moves a
/// cursor. What is quoted is not cut: a mark stands for the end of a line in it.
pub fn one_line(text: &str) -> String {
    let text = ansi::strip(text);
    let text = text.trim();
    let mut quoted = false;
    let ends = |c: char| {
        quoted ^= c == '`';
        c == '\n' && !quoted
    };
    let whole = text.find(ends).map_or(text, |end| &text[..end]);
    let line = match whole.matches('`').count() % 2 {
        0 => whole,
        _ => whole.lines().next().unwrap_or_default(),
    };
    line.trim_end().chars().map(|c| if c == '\n' { '␤' } else { tame(c) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quotation_is_not_cut() {
        assert_eq!(one_line("waited for `x\n`, in vain\nmore"), "waited for `x␤`, in vain");
        assert_eq!(one_line(" one\r\ntwo `x`"), "one");
        assert_eq!(one_line("an `open\none"), "an `open");
    }
}
