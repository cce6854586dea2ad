//! Tasks: where each one is, and who has it.

use std::io;
use std::os::unix::fs::MetadataExt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::why::article;
use super::{Board, LOOKS, Life, one_line};
use crate::fleet::intake::{Aside, aside_by_id};
use crate::fleet::parking::{self, ParkedView, Target};
use crate::fleet::post::COORDINATOR;
use crate::fleet::worker::target_of;
use crate::ids::shown;
use crate::queue::{ClaimName, End, FsQueue, Place, Queue, TaskId, TaskName};
use crate::time::Time;

const ENDS: [End; 3] = [End::Processed, End::Failed, End::Cancelled];
/// The batch of what cannot be read, also where none is known yet.
const NO_BATCH: &str = "unreadable";

/// A task, as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskView {
    pub task: String,
    /// `step`, `run` or `free`; empty if it cannot be read.
    pub kind: String,
    pub agent: String,
    /// The step of a run, the title of a free task, or what its name says.
    pub label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    pub priority: u8,
    pub attempt: u32,
    pub crashes: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// The worktree that whoever claimed it waits for, and who has that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for_worktree: Option<String>,
    #[serde(flatten)]
    pub place: PlaceView,
}

/// Where a task is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum PlaceView {
    Waiting {
        /// How many will be claimed before it.
        ahead: usize,
        /// Living workers that may claim it.
        workers: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        paused: Option<String>,
        /// How it stands with its provider, where that is left alone.
        #[serde(skip_serializing_if = "Option::is_none")]
        parked: Option<String>,
        /// Who served the agent last, if nobody does: who, and when it was last heard of.
        #[serde(skip_serializing_if = "Option::is_none")]
        last: Option<String>,
    },
    Claimed {
        worker: String,
        life: Life,
        #[serde(skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// By the clock of the volume, for people.
        #[serde(skip_serializing_if = "Option::is_none")]
        since: Option<Time>,
    },
    Processed(Ended),
    Failed(Ended),
    Cancelled(Ended),
}

/// How a task ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ended {
    pub worker: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    pub message: String,
    /// What was printed last before it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

impl PlaceView {
    pub fn word(&self) -> &'static str {
        match self {
            PlaceView::Waiting { .. } => "waiting",
            PlaceView::Claimed { .. } => "claimed",
            PlaceView::Processed(_) => "processed",
            PlaceView::Failed(_) => "failed",
            PlaceView::Cancelled(_) => "cancelled",
        }
    }
}

impl PlaceView {
    /// Who has it, or had it last.
    pub fn worker(&self) -> Option<&str> {
        match self {
            PlaceView::Waiting { .. } => None,
            PlaceView::Claimed { worker, .. } => Some(worker),
            PlaceView::Processed(ended)
            | PlaceView::Failed(ended)
            | PlaceView::Cancelled(ended) => Some(&ended.worker),
        }
    }
}

/// A task that was looked for: where it is, and in which batch if it has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub place: Place,
    pub batch: String,
}

impl Found {
    pub fn id(&self) -> &TaskId {
        match &self.place {
            Place::Waiting { name, .. } => &name.id,
            Place::Claimed { name, .. } | Place::Ended { name, .. } => &name.task.id,
        }
    }
}

/// What came of looking for a task by the beginning of its id.
#[derive(Debug)]
pub enum Lookup {
    One(Found),
    None,
    /// Some of those that it could be.
    Several(Vec<String>),
}

impl Board {
    /// Looks for a task, wherever it is, by its id or the beginning of it.
    pub fn find_task(&self, prefix: &str) -> io::Result<Lookup> {
        let Some(queue) = self.queue.as_deref() else { return Ok(Lookup::None) };
        for _ in 0..LOOKS {
            let mut found = find(queue, prefix)?;
            // One that moved while we looked was seen twice; it is where it was seen last.
            let mut ids: Vec<TaskId> = found.iter().map(|found| found.id().clone()).collect();
            ids.sort();
            ids.dedup();
            match (ids.as_slice(), found.pop()) {
                ([_], Some(one)) => return Ok(Lookup::One(one)),
                ([], _) => {}
                _ => return Ok(Lookup::Several(ids.iter().map(TaskId::to_string).collect())),
            }
        }
        Ok(Lookup::None)
    }

    /// Dropped files that somebody is taking in, by the ids that their tasks will have.
    pub fn find_aside(&self, prefix: &str) -> io::Result<Vec<Aside>> {
        match &self.queue {
            Some(queue) if !prefix.is_empty() => aside_by_id(&queue.layout, prefix),
            _ => Ok(Vec::new()),
        }
    }

    /// Why a dropped file is no task yet.
    pub fn why_aside(&self, aside: &Aside) -> String {
        let Aside { id, agent, source, worker } = aside;
        let head = format!("task {id}, dropped into inbox/{agent} as `{}`,", one_line(source));
        let gone = self.members.get(worker).is_none() || self.members.life(worker) == Life::Dead;
        match gone {
            true => format!(
                "{head} was taken in by {worker}, which is gone; a coordinator or {} `{agent}` \
                 worker makes a task of it",
                article(agent)
            ),
            false => format!("{head} is being taken in by {worker}; it is no task yet"),
        }
    }

    /// Shows a task that was found.
    pub fn task(&self, found: &Found) -> io::Result<TaskView> {
        match &self.queue {
            Some(queue) => self.task_in(queue, found),
            None => Err(io::Error::other("there is no queue")),
        }
    }

    fn task_in(&self, queue: &FsQueue, found: &Found) -> io::Result<TaskView> {
        let task = queue.read(&found.place, &found.batch)?;
        let document = task.map(|task| task.document).unwrap_or_default();
        let (name, agent) = match &found.place {
            Place::Waiting { agent, name } => (name, agent.as_str()),
            Place::Claimed { agent, name } => (&name.task, agent.as_str()),
            Place::Ended { name, .. } => (&name.task, ""),
        };
        let mut agent = agent.to_owned();
        let place = match &found.place {
            Place::Waiting { agent, name } => self.waiting(queue, agent, name, &document)?,
            Place::Claimed { agent, name } => self.claimed(queue, agent, name),
            Place::Ended { end, name, .. } => {
                let status = queue.status(*end, &found.batch, name)?.unwrap_or_default();
                // What never became a task says nothing of whom it was for.
                let of = status.get("agent").and_then(Value::as_str);
                agent = of.unwrap_or_default().to_owned();
                ended(*end, name, &status)
            }
        };
        let mut view = view(name, &agent, &document, place);
        if let PlaceView::Claimed { .. } = view.place {
            view.waits_for_worktree = self.task_waits(&document, &view.task, name.attempt);
        }
        Ok(view)
    }

    /// How it stands with the provider of a waiting task, where that is left alone.
    fn parked(&self, document: &Map<String, Value>, agent: &str) -> Option<String> {
        if self.parked.is_empty() {
            return None;
        }
        let target = target_of(document, agent, &self.config);
        self.parked_target(&target, Some(agent))
    }

    /// The same for what is asked. What counts on one machine holds nothing up where a worker of
    /// the agent is on a machine without it, nor a local run, which tries.
    pub(super) fn parked_target(&self, target: &Target, agent: Option<&str>) -> Option<String> {
        let held = || self.parked.iter().filter(|parked| parked.holds(target));
        let is_held = |host: &str| held().any(|parked| parked.host.as_deref() == Some(host));
        let elsewhere =
            agent.is_none_or(|agent| self.members.serving(agent).any(|w| !is_held(&w.host)));
        let holds = |parked: &&ParkedView| parked.host.is_none() || !elsewhere;
        let held: Vec<String> = held().filter(holds).map(parking::told).collect();
        (!held.is_empty()).then(|| held.join("; "))
    }

    fn waiting(
        &self,
        queue: &FsQueue,
        agent: &str,
        name: &TaskName,
        document: &Map<String, Value>,
    ) -> io::Result<PlaceView> {
        let waiting = self.memory.waiting(queue, agent)?;
        let ahead = waiting.names.iter().position(|other| other == name).unwrap_or(0);
        let workers = self.members.serving(agent).count();
        let last = self.members.last_dead(agent).filter(|_| workers == 0).map(|dead| {
            let seen = dead.last_beat.map(|at| format!(", last heard of at {at}"));
            format!("{} on {}{}", dead.worker, dead.host, seen.unwrap_or_default())
        });
        let paused = queue.paused(agent)?.map(|reason| one_line(&reason));
        let parked = self.parked(document, agent);
        Ok(PlaceView::Waiting { ahead, workers, paused, parked, last })
    }

    fn claimed(&self, queue: &FsQueue, agent: &str, name: &ClaimName) -> PlaceView {
        let member = self.members.get(&name.worker).map(|member| &member.process);
        PlaceView::Claimed {
            worker: name.worker.clone(),
            life: self.members.life(&name.worker),
            host: member.map(|process| process.host.clone()),
            pid: member.map(|process| process.pid),
            since: claimed_at(queue, agent, name),
        }
    }

    /// Where one task of a run is; nothing, if it is nowhere.
    pub fn task_of_run(&self, run: &str, agent: &str, id: &str) -> io::Result<Option<TaskView>> {
        let (Some(queue), Some(id)) = (self.queue.as_deref(), TaskId::parse(id)) else {
            return Ok(None);
        };
        let Some(place) = queue.find(agent, run, &id)? else { return Ok(None) };
        self.task_in(queue, &Found { place, batch: run.to_owned() }).map(Some)
    }

    /// What a task of a run says; nothing, if it is nowhere.
    pub fn document_of_run(
        &self,
        run: &str,
        agent: &str,
        id: &str,
    ) -> io::Result<Option<Map<String, Value>>> {
        let (Some(queue), Some(id)) = (self.queue.as_deref(), TaskId::parse(id)) else {
            return Ok(None);
        };
        let Some(place) = queue.find(agent, run, &id)? else { return Ok(None) };
        Ok(queue.read(&place, run)?.map(|task| task.document))
    }

    /// The tasks of an agent that wait or are held, in the order of claims: first those that are
    /// held. At most `most` of each, and how many there are.
    pub fn tasks(&self, agent: &str, most: usize) -> io::Result<(Vec<TaskView>, usize)> {
        let Some(queue) = self.queue.as_deref() else { return Ok((Vec::new(), 0)) };
        let batch = NO_BATCH.to_owned();
        let mut claims = queue.claims(agent)?;
        claims.sort_by(|a, b| a.task.id.cmp(&b.task.id));
        let waiting = self.memory.waiting(queue, agent)?;
        let total = claims.len() + waiting.names.len();
        let mut views = Vec::new();
        for name in claims.into_iter().take(most) {
            let place = Place::Claimed { agent: agent.to_owned(), name };
            views.push(self.task_in(queue, &Found { place, batch: batch.clone() })?);
        }
        let (workers, paused) =
            (self.members.serving(agent).count(), queue.paused(agent)?.map(|r| one_line(&r)));
        for (ahead, name) in waiting.names.iter().take(most).enumerate() {
            let place = Place::Waiting { agent: agent.to_owned(), name: name.clone() };
            let document = queue.read(&place, &batch)?.map(|task| task.document);
            let document = document.unwrap_or_default();
            let (paused, parked) = (paused.clone(), self.parked(&document, agent));
            let place = PlaceView::Waiting { ahead, workers, paused, parked, last: None };
            views.push(view(name, agent, &document, place));
        }
        Ok((views, total))
    }

    /// The tasks in `failed/` that belong to no run, the newest first: of one agent or of all, at
    /// most `most`, and how many there are.
    pub fn failed_tasks(
        &self,
        agent: Option<&str>,
        most: usize,
    ) -> io::Result<(Vec<TaskView>, usize)> {
        let Some(queue) = self.queue.as_deref() else { return Ok((Vec::new(), 0)) };
        let (mut views, mut total) = (Vec::new(), 0);
        for batch in super::failed_batches(queue)? {
            let mut names = queue.ended(End::Failed, &batch)?;
            names.sort_by(|(a, _), (b, _)| b.task.id.cmp(&a.task.id));
            for (name, by) in names {
                // Only what a task says tells whose it was.
                if agent.is_none() && views.len() >= most {
                    total += 1;
                    continue;
                }
                let place = Place::Ended { end: End::Failed, name, by };
                let view = self.task_in(queue, &Found { place, batch: batch.clone() })?;
                if agent.is_none_or(|agent| view.agent == agent) {
                    total += 1;
                    views.extend(Some(view).filter(|_| total <= most));
                }
            }
        }
        Ok((views, total))
    }

    /// Every task that a worker holds. Runs are not among them: a coordinator drives those.
    pub fn executing(&self) -> io::Result<Vec<TaskView>> {
        let Some(queue) = self.queue.as_deref() else { return Ok(Vec::new()) };
        let mut views = Vec::new();
        for agent in queue.agents()?.into_iter().filter(|agent| agent != COORDINATOR) {
            for name in queue.claims(&agent)? {
                let place = Place::Claimed { agent: agent.clone(), name };
                let view = self.task_in(queue, &Found { place, batch: NO_BATCH.to_owned() })?;
                // One that has ended meanwhile has no document there any more.
                views.extend(Some(view).filter(|view| !view.kind.is_empty()));
            }
        }
        Ok(views)
    }
}

/// Every place that a task of such an id is at.
fn find(queue: &FsQueue, prefix: &str) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    let is_it = |id: &TaskId| !prefix.is_empty() && id.as_str().starts_with(prefix);
    let batch = NO_BATCH.to_owned();
    for agent in queue.agents()? {
        let waiting = queue.waiting(&agent)?.into_iter().filter(|name| is_it(&name.id));
        found.extend(waiting.map(|name| Found {
            place: Place::Waiting { agent: agent.clone(), name },
            batch: batch.clone(),
        }));
        let claims = queue.claims(&agent)?.into_iter().filter(|name| is_it(&name.task.id));
        found.extend(claims.map(|name| Found {
            place: Place::Claimed { agent: agent.clone(), name },
            batch: batch.clone(),
        }));
    }
    for end in ENDS {
        for batch in queue.batches(end)? {
            let names = queue.ended(end, &batch)?.into_iter();
            let names = names.filter(|(name, _)| is_it(&name.task.id));
            found.extend(names.map(|(name, by)| Found {
                place: Place::Ended { end, name, by },
                batch: batch.clone(),
            }));
        }
    }
    Ok(found)
}

fn view(name: &TaskName, agent: &str, document: &Map<String, Value>, place: PlaceView) -> TaskView {
    let text = |key: &str| document.get(key).and_then(Value::as_str).map(str::to_owned);
    let step = text("step").map(|step| shown(&step).into_owned());
    let label = step.or(text("title")).map(|label| one_line(&label));
    TaskView {
        task: name.id.to_string(),
        kind: text("kind").unwrap_or_default(),
        agent: text("agent").unwrap_or_else(|| agent.to_owned()),
        label: label.filter(|label| !label.is_empty()).unwrap_or_else(|| name.label.clone()),
        run_id: text("run_id"),
        step: text("step"),
        priority: name.priority,
        attempt: name.attempt,
        crashes: name.crashes,
        created_at: text("created_at"),
        waits_for_worktree: None,
        place,
    }
}

fn ended(end: End, name: &ClaimName, status: &Map<String, Value>) -> PlaceView {
    let text = |key: &str| status.get(key).and_then(Value::as_str).map(one_line);
    let ended = Ended {
        worker: name.worker.clone(),
        at: text("timestamp"),
        message: text("message").unwrap_or_default(),
        said: status.get("record").and_then(|record| record.get("error")).and_then(said_last),
    };
    match end {
        End::Processed => PlaceView::Processed(ended),
        End::Failed => PlaceView::Failed(ended),
        End::Cancelled => PlaceView::Cancelled(ended),
    }
}

/// What was printed last before an error.
fn said_last(error: &Value) -> Option<String> {
    let tail = |key: &str| error.get(key)?.as_array().filter(|lines| !lines.is_empty());
    let tail = tail("stderr_tail").or_else(|| tail("stdout_tail"))?;
    let mut lines = tail.iter().rev().filter_map(Value::as_str).map(one_line);
    lines.find(|line| !line.is_empty())
}

/// When a task was claimed, by the clock of the volume. Nothing is decided by it.
fn claimed_at(queue: &FsQueue, agent: &str, name: &ClaimName) -> Option<Time> {
    let file = std::fs::metadata(queue.layout.claimed(agent).join(name.file())).ok()?;
    Some(Time(file.ctime() * 1000 + file.ctime_nsec() / 1_000_000))
}
