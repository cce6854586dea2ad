//! The board: view models of runs, tasks and workers, built from files alone.
//!
//! All commands that display something use these models, as text or as JSON, so that no two of them
//! disagree.
//!
//! **Invariant:** nothing here changes a file, except a temporary one that reveals the volume's
//! clock if there are members on other machines. A run counts as `running` only if a live process
//! drives it: the last state that a dead owner wrote does not count.

pub(crate) mod excerpt;
mod gates;
mod last;
mod members;
mod memory;
pub(crate) mod metrics;
pub(crate) mod position;
pub(crate) mod progress;
pub(crate) mod rows;
pub(crate) mod runs;
mod spent;
pub(crate) mod stderr;
mod tasks;
mod tried;
mod turns;
mod why;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};

use crate::attempt::documents::COORDINATOR;
use crate::attempt::parking::{self, Cause, ParkedView};
use crate::base::ansi;
use crate::base::ids::RunId;
use crate::base::text::sanitize_char;
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk;
use crate::fleet::worker::own_target;
use crate::free_task::intake::count_dropped;
use crate::free_task::parse::made_at;
use crate::queue::census::Census;
use crate::queue::{End, Layout, Place, Queue, TurnHolder};
use crate::run::failure::Failure;
use crate::run::project::{Project, runs_in, unreadable_queue};
use crate::run::run_task;
use crate::settings::Config;
use crate::workspace::Workspace;

pub(crate) use gates::{Gate, gates_in, gates_of, that_may_ask};
pub(crate) use last::last_said;
pub(crate) use members::{Life, Members, WorkerView};
pub(crate) use memory::Memory;
pub(crate) use runs::{
    EventView, Owner, RunDetail, RunView, Standing, StepShown, StepView, Walk, left_behind,
    still_run,
};
pub(crate) use spent::{RunSpent, at_least, money, of_step as step_spent, words};
pub(crate) use tasks::{Found, Lookup, PlaceView, TaskView};
pub(crate) use tried::{Tried, is_passed_over, printed};
pub(crate) use why::{remark, skipped, why_queued, why_run, why_step, why_task};

/// Number of searches for a task that moves during the search.
const LOOKS: usize = 2;

/// Everything visible of a workspace.
pub(crate) struct Board {
    workspace: Workspace,
    state_dir: PathBuf,
    /// `None` if there was never a fleet.
    queue: Option<Arc<Queue>>,
    pub members: Members,
    /// Numbers of claimed tasks and of dropped files that are not tasks yet, by agent.
    claimed: BTreeMap<String, usize>,
    taken_in: BTreeMap<String, usize>,
    /// Parked accounts of providers.
    pub parked: Vec<ParkedView>,
    /// Determines the account whose limits a task is under.
    config: Config,
    /// Places of runs' tasks that wait for a coordinator or are claimed by one.
    runs: HashMap<String, Place>,
    /// Cache of earlier scans.
    memory: Arc<Memory>,
    /// The fleet's run that holds the turn to change the checkout.
    turn: Option<TurnHolder>,
    pub now: Time,
}

/// An agent and its inbox.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct InboxView {
    pub agent: String,
    pub waiting: usize,
    pub claimed: usize,
    /// Files that users dropped and that are not tasks yet.
    pub dropped: usize,
    /// Live workers that take new tasks.
    pub workers: usize,
    /// Workers among them that take no tasks of the agent's own provider: it is suspended on their
    /// machine.
    #[serde(skip_serializing_if = "is_zero")]
    pub suspended: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<String>,
    /// Creation time of the oldest waiting task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_at: Option<Time>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Board {
    /// Scans a workspace.
    pub(crate) fn scan(project: &Project, queue: Option<Arc<Queue>>) -> Result<Board, Failure> {
        Board::scan_again(project, queue, &Arc::default())
    }

    /// Scans again; cheap if nothing has changed.
    pub(crate) fn scan_again(
        project: &Project,
        queue: Option<Arc<Queue>>,
        memory: &Arc<Memory>,
    ) -> Result<Board, Failure> {
        let workspace = project.open_workspace()?;
        let mut board = Board {
            parked: parking::look(workspace.root()).unwrap_or_default(),
            config: project.config.clone(),
            workspace,
            state_dir: project.state_dir.clone(),
            queue,
            members: Members::default(),
            claimed: BTreeMap::new(),
            taken_in: BTreeMap::new(),
            runs: HashMap::new(),
            memory: memory.clone(),
            turn: None,
            now: SystemClock.now(),
        };
        board.scan_queue().map_err(|error| unreadable_queue(&error))?;
        board.now = SystemClock.now();
        Ok(board)
    }

    fn scan_queue(&mut self) -> io::Result<()> {
        let Some(queue) = &self.queue else { return Ok(()) };
        let mut held: BTreeMap<String, usize> = BTreeMap::new();
        for (agent, claim) in queue.census().all_claims()? {
            *self.claimed.entry(agent).or_default() += 1;
            *held.entry(claim.worker).or_default() += 1;
        }
        for taken in queue.census().taken_in()? {
            *self.taken_in.entry(taken.agent).or_default() += 1;
        }
        self.members = Members::look(queue, held, &self.memory)?;
        let mut known = self.memory.runs.lock().unwrap_or_else(PoisonError::into_inner);
        self.turn = queue.turn()?.holder;
        self.runs = run_task::out_known(queue, &mut known)?;
        Ok(())
    }

    pub(crate) fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Returns the IDs of all runs, newest first.
    pub(crate) fn run_ids(&self) -> Vec<RunId> {
        runs_in(&self.state_dir)
    }

    /// Returns every agent that has a worker or tasks.
    pub(crate) fn inboxes(&self) -> io::Result<Vec<InboxView>> {
        let Some(queue) = &self.queue else { return Ok(self.inboxes_of_nobody()) };
        let mut agents: BTreeSet<String> = queue.agents()?.into_iter().collect();
        agents.extend(self.members.views().map(|member| member.agent));
        agents.into_iter().map(|agent| self.inbox(queue, agent)).collect()
    }

    /// Returns inboxes with files that users dropped before any worker started.
    fn inboxes_of_nobody(&self) -> Vec<InboxView> {
        let (disk, layout) = (disk::machine(), Layout::new(self.workspace.root()));
        let census = Census::of_disk(&*disk, &layout);
        let named = census.agents().unwrap_or_default().into_iter();
        let view = |agent: String| {
            let dropped = census.waiting(&agent).map_or(0, |inbox| count_dropped(&inbox.foreign));
            let (waiting, claimed, workers, suspended) = (0, 0, 0, 0);
            let (paused, oldest_at) = (None, None);
            InboxView { agent, waiting, claimed, dropped, workers, suspended, paused, oldest_at }
        };
        named.map(view).filter(|inbox| inbox.dropped > 0).collect()
    }

    fn inbox(&self, queue: &Queue, agent: String) -> io::Result<InboxView> {
        let waiting = self.memory.waiting(queue, &agent)?;
        Ok(InboxView {
            oldest_at: waiting.names.iter().map(|name| made_at(&name.id)).min(),
            waiting: waiting.names.len(),
            claimed: self.claimed.get(&agent).copied().unwrap_or_default(),
            dropped: waiting.dropped + self.taken_in.get(&agent).copied().unwrap_or_default(),
            workers: self.members.serving(&agent).count(),
            suspended: self.suspended(&agent),
            paused: queue.paused(&agent)?.map(|reason| one_line(&reason)),
            agent,
        })
    }

    /// Returns the number of an agent's workers on machines where its own provider is suspended.
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

    /// Returns the number of tasks in `failed/` that belong to no run; runs show their own.
    pub(crate) fn failed(&self) -> io::Result<usize> {
        let Some(queue) = &self.queue else { return Ok(0) };
        let count = |batch: &String| {
            let dir = queue.layout.end(End::Failed, batch);
            self.memory.count(&dir, || Ok(queue.ended(End::Failed, batch)?.len()))
        };
        failed_batches(queue)?.iter().map(count).sum()
    }

    /// Returns the number of live coordinators that take new runs.
    pub(crate) fn coordinators(&self) -> usize {
        self.members.serving(COORDINATOR).count()
    }
}

/// Returns the batches of failed tasks that belong to no run, newest first.
fn failed_batches(queue: &Queue) -> io::Result<Vec<String>> {
    let mut batches = queue.batches(End::Failed)?;
    batches.retain(|batch| RunId::parse(batch).is_none());
    batches.sort_by(|a, b| b.cmp(a));
    Ok(batches)
}

/// Returns the first line of untrusted text, safe for display in one line: no character in it moves
/// the cursor. Quoted text is not cut: `␤` replaces a line break in it.
pub(crate) fn one_line(text: &str) -> String {
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
    line.trim_end().chars().map(|c| if c == '\n' { '␤' } else { sanitize_char(c) }).collect()
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
