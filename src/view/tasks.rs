//! View models of tasks: their place, and their holder.

use std::io;
use std::os::unix::fs::MetadataExt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::why::article;
use super::{Board, LOOKS, Life, one_line};
use crate::attempt::documents::COORDINATOR;
use crate::attempt::parking::{self, ParkedView, Target};
use crate::base::ids::{TaskAttempt, shown};
use crate::base::time::Time;
use crate::disk::fs;
use crate::fleet::worker::target_of;
use crate::free_task::intake::{Aside, aside_by_id};
use crate::queue::census::ENDS;
use crate::queue::{ClaimName, End, Place, Queue, TaskId, TaskName};

/// The batch of unreadable tasks; also used where no batch is known yet.
const NO_BATCH: &str = "unreadable";

/// View model of a task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TaskView {
    pub task: String,
    /// `step`, `run` or `free`; empty if it cannot be read.
    pub kind: String,
    pub agent: String,
    /// The step of a run, the title of a free task, or the label in its name.
    pub label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    pub priority: u8,
    pub attempt: TaskAttempt,
    pub crashes: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// The worktree that its worker waits for, and the holder of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for_worktree: Option<String>,
    #[serde(flatten)]
    pub place: PlaceView,
}

/// The place of a task.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum PlaceView {
    Waiting {
        /// Number of tasks that will be claimed before it.
        ahead: usize,
        /// Live workers that may claim it.
        workers: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        paused: Option<String>,
        /// State of its provider, if that is parked.
        #[serde(skip_serializing_if = "Option::is_none")]
        parked: Option<String>,
        /// The worker that served the agent last, if none does now, and its last heartbeat.
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
        /// By the clock of the volume, for display only.
        #[serde(skip_serializing_if = "Option::is_none")]
        since: Option<Time>,
    },
    Processed(Ended),
    Failed(Ended),
    Cancelled(Ended),
}

/// The end of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Ended {
    pub worker: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    pub message: String,
    /// The last output before it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

impl PlaceView {
    pub(crate) fn word(&self) -> &'static str {
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
    /// Returns the worker that holds it or held it last.
    pub(crate) fn worker(&self) -> Option<&str> {
        match self {
            PlaceView::Waiting { .. } => None,
            PlaceView::Claimed { worker, .. } => Some(worker),
            PlaceView::Processed(ended)
            | PlaceView::Failed(ended)
            | PlaceView::Cancelled(ended) => Some(&ended.worker),
        }
    }
}

/// A task that was found: its place, and its batch if it has ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub place: Place,
    pub batch: String,
}

impl Found {
    pub(crate) fn id(&self) -> &TaskId {
        match &self.place {
            Place::Waiting { name, .. } => &name.id,
            Place::Claimed { name, .. } | Place::Ended { name, .. } => &name.task.id,
        }
    }
}

/// Result of a search for a task by a prefix of its ID.
#[derive(Debug)]
pub(crate) enum Lookup {
    One(Found),
    None,
    /// The matching IDs.
    Several(Vec<String>),
}

impl Board {
    /// Finds a task in any place, by its ID or a prefix of it.
    pub(crate) fn find_task(&self, prefix: &str) -> io::Result<Lookup> {
        let Some(queue) = self.queue.as_deref() else { return Ok(Lookup::None) };
        for _ in 0..LOOKS {
            let mut found = find(queue, prefix)?;
            // A task that moved during the search was found twice; the last place counts.
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

    /// Finds dropped files that are being accepted, by the IDs that their tasks will have.
    pub(crate) fn find_aside(&self, prefix: &str) -> io::Result<Vec<Aside>> {
        match &self.queue {
            Some(queue) if !prefix.is_empty() => aside_by_id(queue, prefix),
            _ => Ok(Vec::new()),
        }
    }

    /// Explains why a dropped file is not a task yet.
    pub(crate) fn why_aside(&self, aside: &Aside) -> String {
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

    /// Returns the view of a task that was found.
    pub(crate) fn task(&self, found: &Found) -> io::Result<TaskView> {
        match &self.queue {
            Some(queue) => self.task_in(queue, found),
            None => Err(io::Error::other("there is no queue")),
        }
    }

    fn task_in(&self, queue: &Queue, found: &Found) -> io::Result<TaskView> {
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
                // A file that never became a task does not name its agent.
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

    /// Returns the state of a waiting task's provider, if that is parked.
    fn parked(&self, document: &Map<String, Value>, agent: &str) -> Option<String> {
        if self.parked.is_empty() {
            return None;
        }
        let target = target_of(document, agent, &self.config);
        self.parked_target(&target, Some(agent))
    }

    /// Like `parked`, for a target. A suspension on one machine does not count if a worker of the
    /// agent is on another machine, nor for a local run, which tries anyway.
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
        queue: &Queue,
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

    fn claimed(&self, queue: &Queue, agent: &str, name: &ClaimName) -> PlaceView {
        let member = self.members.get(&name.worker).map(|member| &member.process);
        PlaceView::Claimed {
            worker: name.worker.clone(),
            life: self.members.life(&name.worker),
            host: member.map(|process| process.host.clone()),
            pid: member.map(|process| process.pid),
            since: claimed_at(queue, agent, name),
        }
    }

    /// Finds one task of a run; `None` if it is missing.
    pub(crate) fn task_of_run(
        &self,
        run: &str,
        agent: &str,
        id: &str,
    ) -> io::Result<Option<TaskView>> {
        let (Some(queue), Some(id)) = (self.queue.as_deref(), TaskId::parse(id)) else {
            return Ok(None);
        };
        let Some(place) = queue.find(agent, run, &id)? else { return Ok(None) };
        self.task_in(queue, &Found { place, batch: run.to_owned() }).map(Some)
    }

    /// Returns the document of a run's task; `None` if the task is missing.
    pub(crate) fn document_of_run(
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

    /// Returns an agent's claimed and waiting tasks, claimed ones first, in claim order. At most
    /// `most` of each, and the total number.
    pub(crate) fn tasks(&self, agent: &str, most: usize) -> io::Result<(Vec<TaskView>, usize)> {
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

    /// Returns the tasks in `failed/` that belong to no run, newest first, of one agent or of all.
    /// At most `most`, and the total number.
    pub(crate) fn failed_tasks(
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
                // Only the content of a task names its agent, so without that filter it need not be
                // read.
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

    /// Returns every task that a worker holds. Excludes runs, which coordinators drive.
    pub(crate) fn executing(&self) -> io::Result<Vec<TaskView>> {
        let Some(queue) = self.queue.as_deref() else { return Ok(Vec::new()) };
        let mut views = Vec::new();
        for agent in queue.agents()?.into_iter().filter(|agent| agent != COORDINATOR) {
            for name in queue.claims(&agent)? {
                let place = Place::Claimed { agent: agent.clone(), name };
                let view = self.task_in(queue, &Found { place, batch: NO_BATCH.to_owned() })?;
                // A task that has ended in the meantime no longer has a document there.
                views.extend(Some(view).filter(|view| !view.kind.is_empty()));
            }
        }
        Ok(views)
    }
}

/// Returns every place of the tasks whose ID has this prefix.
fn find(queue: &Queue, prefix: &str) -> io::Result<Vec<Found>> {
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

/// Returns the last output before an error.
fn said_last(error: &Value) -> Option<String> {
    let tail = |key: &str| error.get(key)?.as_array().filter(|lines| !lines.is_empty());
    let tail = tail("stderr_tail").or_else(|| tail("stdout_tail"))?;
    let mut lines = tail.iter().rev().filter_map(Value::as_str).map(one_line);
    lines.find(|line| !line.is_empty())
}

/// Returns the time of a claim, by the clock of the volume. For display only.
fn claimed_at(queue: &Queue, agent: &str, name: &ClaimName) -> Option<Time> {
    let file = fs::metadata(queue.layout.claimed(agent).join(name.file())).ok()?;
    Some(Time(file.ctime() * 1000 + file.ctime_nsec() / 1_000_000))
}
