//! Checks the directories of the queue: every task lies in one place, complete, with its status.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{Calm, Finding, Kind};
use crate::attempt::parking;
use crate::disk;
use crate::fleet::member::{Process, Registration};
use crate::queue::census::{Batch, Census, ENDS, Listed, Marker};
use crate::queue::{ClaimName, End, Layout, TaskId, TaskName, Turn, UNREADABLE, fault_of, seal};

/// Worker in the name of a file that was refused at intake.
const INTAKE: &str = "intake";
const STATUS: &str = ".status.json";

/// The state of a task, from its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    Waiting,
    Held(ClaimName),
    Ended { end: End, batch: String, name: ClaimName, by: String },
}

/// A task's file.
#[derive(Clone, Debug)]
pub(crate) struct Lying {
    pub path: PathBuf,
    pub task: TaskName,
    pub state: State,
    /// Kind of the task: a step, a run or a free task; `None` if the file is incomplete.
    pub kind: Option<String>,
    /// The run that it is or belongs to.
    pub run: Option<String>,
    pub(super) ticket: Option<String>,
    /// The agent that its content names.
    pub agent: Option<String>,
    /// The complete status of an ended task.
    pub status: Option<Map<String, Value>>,
}

impl Lying {
    pub(crate) fn id(&self) -> &TaskId {
        &self.task.id
    }

    pub(crate) fn is_run(&self) -> bool {
        self.kind.as_deref() == Some("run")
    }

    /// Returns true if it lies in the directory of its own agent, or has ended.
    pub(super) fn is_at_home(&self) -> bool {
        let dir = self.path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        self.has_ended() || self.agent.as_deref() == dir
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended { .. })
    }
}

/// All files in the directories of a queue.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub tasks: Vec<Lying>,
    /// Indexes into `tasks`, by task ID and by the run that a task represents.
    by_id: HashMap<String, usize>,
    by_run: HashMap<String, usize>,
    /// Batches that have a directory.
    batches: HashSet<(End, String)>,
    /// Members whose process runs, as far as this machine can determine.
    pub living: HashSet<String>,
}

/// A check of the queue's directories.
struct Looker<'a> {
    layout: &'a Layout,
    census: Census<'a>,
    calm: Calm,
    tree: Tree,
    findings: &'a mut Vec<Finding>,
}

impl Tree {
    pub(super) fn look(root: &Path, calm: Calm, into: &mut Vec<Finding>) -> io::Result<Tree> {
        let (disk, layout) = (disk::machine(), Layout::new(root));
        let census = Census::of_disk(&*disk, &layout);
        let (layout, tree) = (&layout, Tree::default());
        let mut looker = Looker { layout, census, calm, tree, findings: into };
        looker.look_at_volume()?;
        looker.look_at_members()?;
        looker.look_at_waiting()?;
        looker.look_at_held()?;
        looker.look_at_intake()?;
        for end in ENDS {
            looker.look_at_ended(end)?;
        }
        looker.count_places();
        looker.look_at_leftovers()?;
        looker.look_at_turn()?;
        Ok(looker.tree)
    }

    fn add(&mut self, lying: Lying) {
        let index = self.tasks.len();
        self.by_id.insert(lying.id().to_string(), index);
        if let Some(run) = lying.run.clone().filter(|_| lying.is_run()) {
            self.by_run.insert(run, index);
        }
        self.tasks.push(lying);
    }

    /// Returns true if this batch has a directory for this end.
    pub(crate) fn has_batch(&self, end: End, batch: &str) -> bool {
        self.batches.contains(&(end, batch.to_owned()))
    }

    /// Returns the task that represents a run.
    pub(crate) fn task_of_run(&self, run: &str) -> Option<&Lying> {
        self.by_run.get(run).map(|index| &self.tasks[*index])
    }

    pub(crate) fn find(&self, id: &str) -> Option<&Lying> {
        self.by_id.get(id).map(|index| &self.tasks[*index])
    }
}

impl Looker<'_> {
    fn find(&mut self, kind: Kind, about: impl Into<String>, message: impl Into<String>) {
        self.findings.push(Finding::new(kind, about, message));
    }

    /// Returns a path for messages, relative to the root.
    fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.layout.root).unwrap_or(path).display().to_string()
    }

    fn look_at_volume(&mut self) -> io::Result<()> {
        if let Some(fault) = fault_of(&*disk::machine(), self.layout)? {
            let shown = self.shown(&self.layout.fleet_file());
            self.find(Kind::Volume, shown, fault.to_string());
        }
        Ok(())
    }

    fn look_at_members(&mut self) -> io::Result<()> {
        let here = Process::this();
        for path in self.markers(Marker::Registration)? {
            let Some(bytes) = self.census.read(&path)? else { continue };
            let Ok(member) = serde_json::from_slice::<Registration>(&bytes) else { continue };
            if here.is_beside(&member.process) && !member.process.lives_here() {
                let shown = self.shown(&path);
                self.find(Kind::LeftMark, shown, "it registers a process that is gone");
            } else {
                self.tree.living.insert(member.worker);
            }
        }
        Ok(())
    }

    fn look_at_waiting(&mut self) -> io::Result<()> {
        for agent in self.census.agents_with_inbox()? {
            let mut waiting = self.census.waiting(&agent)?.entries;
            waiting.sort_by_cached_key(TaskName::file);
            // Files that users drop have arbitrary names; intake renames them to a canonical one.
            for task in waiting {
                let path = self.layout.inbox(&agent).join(task.file());
                self.take_in(path, task, State::Waiting, &agent)?;
            }
        }
        Ok(())
    }

    fn look_at_held(&mut self) -> io::Result<()> {
        for agent in self.census.agents_with_claims()? {
            let dir = self.layout.claimed(&agent);
            let Listed { mut entries, foreign } = self.census.claims(&agent)?;
            entries.sort_by_cached_key(ClaimName::file);
            for claim in entries {
                let (path, task) = (dir.join(claim.file()), claim.task.clone());
                self.take_in(path, task, State::Held(claim), &agent)?;
            }
            self.bad_names(&dir, &foreign);
        }
        Ok(())
    }

    /// Finds files that were dropped and accepted, but are not tasks yet.
    fn look_at_intake(&mut self) -> io::Result<()> {
        if self.calm != Calm::Quiet {
            return Ok(());
        }
        for taken in self.census.taken_in()? {
            let shown = self.shown(&taken.path);
            self.find(Kind::Restless, shown, "it was dropped and taken in, and is no task yet");
        }
        Ok(())
    }

    fn look_at_ended(&mut self, end: End) -> io::Result<()> {
        for batch in self.census.batches(end)? {
            let dir = self.layout.end(end, &batch);
            self.tree.batches.insert((end, batch.clone()));
            let Batch { mut tasks, statuses, mut foreign } = self.census.batch(end, &batch)?;
            tasks.sort_by_cached_key(|(claim, by)| claim.ended(by));
            let first = self.tree.tasks.len();
            for (claim, by) in tasks {
                let (path, task) = (dir.join(claim.ended(&by)), claim.task.clone());
                let state = State::Ended { end, batch: batch.clone(), name: claim, by };
                self.take_in(path, task, state, "")?;
            }
            // Users keep other files here.
            foreign.retain(|file| end == End::Cancelled || looks_like_a_task(file));
            self.bad_names(&dir, &foreign);
            self.look_at_statuses(first, &dir, statuses.into_iter().collect())?;
        }
        Ok(())
    }

    /// Reports files whose names the queue gives to no task. A user may have dropped a directory.
    fn bad_names(&mut self, dir: &Path, foreign: &[String]) {
        for path in foreign.iter().map(|file| dir.join(file)) {
            if !self.census.is_dir(&path) {
                let shown = self.shown(&path);
                self.find(Kind::BadName, shown, "its name is none that a task has here");
            }
        }
    }

    /// Returns the paths of the files in a directory of markers.
    fn markers(&self, of: Marker) -> io::Result<Vec<PathBuf>> {
        let dir = of.dir(self.layout);
        Ok(self.census.markers(of)?.into_iter().map(|name| dir.join(name)).collect())
    }

    /// Adds a task's file and checks its content. `agent` is the agent of its directory, or empty.
    fn take_in(
        &mut self,
        path: PathBuf,
        task: TaskName,
        state: State,
        agent: &str,
    ) -> io::Result<()> {
        // The task has moved to another place in the meantime.
        let Some(bytes) = self.census.read(&path)? else { return Ok(()) };
        if bytes.is_empty() && !matches!(state, State::Ended { .. }) && self.census.is_dir(&path) {
            return Ok(());
        }
        let shown = self.shown(&path);
        let document = seal::unseal(&bytes);
        let unreadable = matches!(&state, State::Ended { batch, .. } if batch == UNREADABLE);
        // Files that could not become tasks lie there as their users wrote them.
        let refused = matches!(&state, State::Ended { name, .. } if name.worker == INTAKE);
        match &document {
            None if unreadable || refused => {}
            None => self.find(Kind::Unsealed, &shown, "it is not whole: its seal is wrong"),
            Some(document) => {
                let text = |key: &str| document.get(key).and_then(Value::as_str);
                let other_agent = !agent.is_empty() && text("agent") != Some(agent);
                let other_batch = match &state {
                    State::Ended { batch, .. } => text("batch") != Some(batch),
                    _ => false,
                };
                if text("id").is_some_and(|id| id != task.id.as_str()) {
                    self.find(Kind::Misplaced, &shown, "it says that it is another task");
                } else if other_agent {
                    self.find(Kind::Misplaced, &shown, "it is a task of another agent");
                } else if other_batch && !unreadable {
                    self.find(Kind::Misplaced, &shown, "it is a task of another batch");
                }
            }
        }
        if task.crashes >= task.attempt.number() {
            let message = "more holders died over it than there were attempts before";
            self.find(Kind::AttemptBack, &shown, message);
        }
        if let State::Held(claim) = &state
            && !self.tree.living.contains(&claim.worker)
        {
            let message = format!("it is held by {}, which is gone", claim.worker);
            self.find(Kind::HeldByDead, &shown, message);
        }
        if self.calm == Calm::Quiet && !matches!(state, State::Ended { .. }) {
            self.find(Kind::Restless, &shown, "it has not ended");
        }
        let text = |key: &str| Some(document.as_ref()?.get(key)?.as_str()?.to_owned());
        let (kind, run, ticket) = (text("kind"), text("run_id"), text("ticket"));
        let agent = text("agent");
        self.tree.add(Lying { path, task, state, kind, run, ticket, agent, status: None });
        Ok(())
    }

    /// Checks the statuses of a batch, whose tasks start at the index `first`: each task has one,
    /// of its own claim.
    fn look_at_statuses(
        &mut self,
        first: usize,
        dir: &Path,
        mut stems: BTreeSet<String>,
    ) -> io::Result<()> {
        for index in first..self.tree.tasks.len() {
            let lying = &self.tree.tasks[index];
            let State::Ended { name: claim, .. } = &lying.state else { continue };
            let (claim, ticket) = (claim.clone(), lying.ticket.clone());
            let path = dir.join(claim.status());
            stems.remove(&claim.stem());
            let status = self.census.read(&path)?.and_then(|bytes| seal::unseal(&bytes));
            let shown = self.shown(&path);
            match &status {
                None => self.find(Kind::NoStatus, shown, "the task has ended without it"),
                Some(status) => {
                    if let Some(reason) = wrong_status(status, &claim, ticket.as_deref()) {
                        self.find(Kind::WrongStatus, shown, reason);
                    }
                }
            }
            self.tree.tasks[index].status = status;
        }
        for stem in stems {
            let shown = self.shown(&dir.join(format!("{stem}{STATUS}")));
            self.find(Kind::StrayStatus, shown, "its task was taken from whoever wrote it");
        }
        Ok(())
    }

    /// Finds tasks that lie in several places.
    fn count_places(&mut self) {
        let mut places: BTreeMap<&TaskId, Vec<&Lying>> = BTreeMap::new();
        for lying in &self.tree.tasks {
            places.entry(lying.id()).or_default().push(lying);
        }
        let mut found = Vec::new();
        for (id, lying) in places.iter().filter(|(_, lying)| lying.len() > 1) {
            let kind = match lying.iter().filter(|lying| lying.has_ended()).count() {
                0 | 1 => Kind::TwoPlaces,
                _ => Kind::EndedTwice,
            };
            let paths: Vec<_> =
                lying.iter().map(|l| format!("`{}`", self.shown(&l.path))).collect();
            found.push((kind, id.to_string(), format!("the task lies in {}", paths.join(" and "))));
        }
        for (kind, about, message) in found {
            self.find(kind, about, message);
        }
    }

    fn look_at_leftovers(&mut self) -> io::Result<()> {
        for path in self.markers(Marker::Temporary)? {
            let owner = name(&path).split('.').next().unwrap_or_default().to_owned();
            if !self.tree.living.contains(&owner) && self.is_file(&path) {
                let shown = self.shown(&path);
                self.find(Kind::LeftTmp, shown, "whoever made it is no member of the fleet");
            }
        }
        for path in self.markers(Marker::Heartbeat)? {
            if !self.tree.living.contains(&name(&path)) && self.is_file(&path) {
                let shown = self.shown(&path);
                self.find(Kind::LeftMark, shown, "it is the beat of no living member");
            }
        }
        for path in self.markers(Marker::Cancel)? {
            let asked = name(&path);
            let task = self.tree.find(&asked).or_else(|| self.tree.task_of_run(&asked));
            if task.is_none_or(Lying::has_ended) && self.is_file(&path) {
                let shown = self.shown(&path);
                self.find(Kind::LeftMark, shown, "it asks for what is over to be cancelled");
            }
        }
        self.look_at_parked()
    }

    /// Returns true if a marker still exists. A directory is not a marker.
    fn is_file(&self, path: &Path) -> bool {
        self.census.exists(path) && !self.census.is_dir(path)
    }

    /// Checks the notes about parked providers.
    fn look_at_parked(&mut self) -> io::Result<()> {
        for (file, fault) in parking::faults(&self.layout.root)? {
            let shown = self.shown(&self.layout.root.join(parking::PARKED).join(file));
            self.find(Kind::LeftMark, shown, fault);
        }
        Ok(())
    }
}

impl Looker<'_> {
    /// Checks the turn of the checkout: one file, whose name contains the holder.
    fn look_at_turn(&mut self) -> io::Result<()> {
        let (dir, Listed { entries, foreign }) = (self.layout.checkout(), self.census.turns()?);
        for file in foreign {
            let shown = self.shown(&dir.join(file));
            self.find(Kind::BadName, shown, "its name is none that a turn has");
        }
        let mut turns: Vec<(Turn, PathBuf)> = entries
            .into_iter()
            .map(|turn| {
                let path = dir.join(turn.file());
                (turn, path)
            })
            .collect();
        turns.sort_by_key(|(turn, _)| turn.number);
        let Some((turn, path)) = turns.pop() else { return Ok(()) };
        for (_, older) in turns {
            let (shown, last) = (self.shown(&older), self.shown(&path));
            let message = format!("the turn is `{last}`; remove this one");
            self.find(Kind::TwoTurns, shown, message);
        }
        let held = turn.holder.as_ref().map(|holder| self.tree.find(holder.task.as_str()));
        if held.is_some_and(|task| task.is_none_or(Lying::has_ended)) {
            let shown = self.shown(&path);
            self.find(Kind::LeftMark, shown, "it is the turn of a run that is over or stopped");
        }
        Ok(())
    }
}

/// Returns the reason why a status does not belong to a claim.
pub(super) fn wrong_status(
    status: &Map<String, Value>,
    claim: &ClaimName,
    ticket: Option<&str>,
) -> Option<String> {
    let text = |key: &str| status.get(key).and_then(Value::as_str).unwrap_or_default();
    let attempt = status.get("attempt").and_then(Value::as_u64);
    if text("task_id") != claim.task.id.as_str() {
        return Some("it is of another task".into());
    }
    if attempt != Some(u64::from(claim.task.attempt.number())) {
        return Some("it is of another attempt".into());
    }
    if text("worker") != claim.worker && claim.worker != INTAKE {
        return Some("it is of another worker".into());
    }
    let forged = ticket.is_some_and(|ticket| text("ticket") != ticket);
    forged.then(|| "it does not carry the task's ticket".into())
}

/// Returns true if a name starts like a task's, `5-<id>`, so that all of it should be a task's
/// name.
fn looks_like_a_task(file: &str) -> bool {
    let digit = file.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    digit
        && file.get(1..2) == Some("-")
        && file.get(2..28).is_some_and(|id| TaskId::parse(id).is_some())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
