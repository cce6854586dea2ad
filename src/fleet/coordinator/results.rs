//! Handles tasks in flight that ended, were cancelled with their run, or are missing.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;

use serde_json::Map;

use super::{Coordinator, Held, Out, Reports};
use crate::attempt::documents;
use crate::attempt::perform::Performed;
use crate::base::host;
use crate::base::ids::RunId;
use crate::base::time::Time;
use crate::engine::Record;
use crate::queue::{ClaimName, Place, TaskId, TaskName, UNREADABLE};

impl Coordinator {
    pub(super) fn cancel_asked(&mut self, asked: &HashSet<String>) {
        if asked.is_empty() {
            return;
        }
        let runs: Vec<RunId> =
            self.held.keys().filter(|run| asked.contains(run.as_str())).cloned().collect();
        for run in runs {
            let Some(held) = self.held.get_mut(&run) else { continue };
            held.cancelling = true;
            held.stop.request(1);
            self.touched.push_back(run);
            self.next_look = host::instant();
        }
    }

    /// Handles a task whose claim file is gone: consumes its status if its holder ended it.
    pub(super) fn consume_hinted(&mut self, name: &ClaimName, reports: &mut dyn Reports) {
        let Some(out) = self.out.get(name.task.id.as_str()).cloned() else { return };
        match self.setup.queue.ended_by_holder(out.run.as_str(), name) {
            Ok(Some((_, status))) => self.consume(out, &name.task, &status, reports),
            // It was released, or another process ended it; the next scan finds out.
            Ok(None) => self.next_look = host::instant(),
            Err(error) => tracing::warn!("task {}: {error}", out.task.id),
        }
    }

    /// Records that a task was put back into its inbox, as its name shows, if the run does not know
    /// yet.
    fn note_executions(&mut self, out: &mut Out, name: &TaskName, reports: &mut dyn Reports) {
        if name.attempt <= out.execution {
            return;
        }
        let Some(mut held) = self.held.remove(&out.run) else { return };
        let counts = (name.attempt, name.crashes);
        let noted = self
            .with(&mut held, |drive, reins| drive.put_back(reins, &out.step, out.attempt, counts));
        if let Err(error) = noted {
            return self.abandon(held, &error, reports);
        }
        out.execution = name.attempt;
        if let Some(kept) = self.out.get_mut(&out.task.id) {
            kept.execution = name.attempt;
        }
        self.touched.push_back(out.run.clone());
        self.held.insert(out.run.clone(), held);
    }

    /// Records the result of a task in its run.
    pub(super) fn consume(
        &mut self,
        mut out: Out,
        name: &TaskName,
        status: &Map<String, serde_json::Value>,
        reports: &mut dyn Reports,
    ) {
        let cancelled = match self.was_cancelled(&out, status) {
            Ok(cancelled) => cancelled,
            // It is not known yet whether the task failed or was cancelled; the next scan decides.
            Err(error) => return tracing::warn!("task {}: {error}", out.task.id),
        };
        let record = match documents::record(status, &out.task) {
            Ok(record) => record,
            Err(reason) => {
                tracing::warn!("a status of task {} is not believed: {reason}", out.task.id);
                Record::refused(1, format!("its status is not believed: {reason}"), Map::new())
            }
        };
        self.show(&out, status);
        self.note_executions(&mut out, name, reports);
        self.out.remove(&out.task.id);
        self.patience.reset();
        let Some(held) = self.held.remove(&out.run) else { return };
        // A task that ended because of its run is not a failure of its step.
        let performed = (!cancelled).then_some(Performed::of(record));
        self.ended(held, &out.step, out.attempt, performed, reports);
    }

    pub(super) fn is_asked_to_cancel(&self, run: &RunId) -> bool {
        let requests = self.setup.queue.cancel_requests();
        self.is_cancelling(run) || requests.is_ok_and(|requests| requests.contains(run.as_str()))
    }

    /// Returns true if a task was cancelled because its run is being cancelled. The task's worker
    /// may see the cancel request before this coordinator does.
    pub(super) fn was_cancelled(
        &mut self,
        out: &Out,
        status: &Map<String, serde_json::Value>,
    ) -> io::Result<bool> {
        let reason = status.get("error").and_then(|error| error.get("reason")?.as_str());
        if reason != Some("cancelled") {
            return Ok(false);
        }
        if !self.is_cancelling(&out.run) {
            let asked = self.setup.queue.cancel_requests()?;
            self.cancel_asked(&asked);
        }
        Ok(self.is_cancelling(&out.run))
    }

    /// Writes a copy of a status to the path where users look for the status of an agent.
    pub(super) fn show(&self, out: &Out, status: &Map<String, serde_json::Value>) {
        #[cfg(test)]
        if host::is_simulated() {
            // The workspace is not simulated.
            return;
        }
        let mut shown = status.clone();
        for own in ["record", "ticket"] {
            shown.shift_remove(own);
        }
        let path = format!("artifacts/{}/status_{}.json", out.task.agent, out.step);
        if self.is_of_agent(&path, status) {
            return;
        }
        let text = serde_json::to_vec_pretty(&shown).unwrap_or_default();
        let written = self
            .setup
            .workspace
            .create(&path)
            .map_err(|error| error.to_string())
            .and_then(|mut file| file.write_all(&text).map_err(|error| error.to_string()));
        if let Err(error) = written {
            tracing::debug!("cannot write `{path}`: {error}");
        }
    }

    /// Returns true if the agent wrote a status of its own to `path` during the attempt that ended.
    /// That file stays. A status that this program wrote has a `task_id`.
    fn is_of_agent(&self, path: &str, status: &Map<String, serde_json::Value>) -> bool {
        let Ok(file) = self.setup.workspace.open_file(path) else { return false };
        let began = status.get("started_at").and_then(|at| Time::parse(at.as_str()?));
        let written = file.metadata().ok().map(|file| Time(file.mtime() * 1000 + 999));
        if written.zip(began).is_none_or(|(written, began)| written < began) {
            return false;
        }
        let text = self.setup.workspace.read(path, 1 << 20).unwrap_or_default();
        let ours = serde_json::from_slice::<Map<String, serde_json::Value>>(&text);
        !ours.is_ok_and(|status| status.contains_key("task_id"))
    }

    /// Scans for changes that no hint reported: tasks that ended and tasks that are missing.
    pub(super) fn look_if_due(&mut self, reports: &mut dyn Reports) {
        if host::instant() < self.next_look {
            return;
        }
        let began = host::instant();
        if let Err(error) = self.look(reports) {
            tracing::warn!("cannot look for results: {error}; will be tried again");
        }
        self.next_look = host::instant() + self.patience.wait_after(host::since(began));
    }

    pub(super) fn look(&mut self, reports: &mut dyn Reports) -> io::Result<()> {
        let queue = self.setup.queue.clone();
        let agents: BTreeSet<String> =
            self.out.values().map(|out| out.task.agent.clone()).collect();
        let mut seen: HashMap<String, TaskName> = HashMap::new();
        for agent in &agents {
            let waiting = queue.waiting(agent)?;
            let held = queue.claims(agent)?.into_iter().map(|name| name.task);
            seen.extend(waiting.into_iter().chain(held).map(|name| (name.id.to_string(), name)));
        }
        let is_new =
            |out: &&Out| seen.get(&out.task.id).is_some_and(|name| name.attempt > out.execution);
        let again: Vec<Out> = self.out.values().filter(is_new).cloned().collect();
        for mut out in again {
            if let Some(name) = seen.get(&out.task.id) {
                self.note_executions(&mut out, name, reports);
            }
        }
        self.drop_unpublished(reports);
        let wanted = |out: &&Out| !seen.contains_key(&out.task.id) || self.is_cancelling(&out.run);
        let published = self.out.values().filter(|out| out.published);
        let gone: Vec<Out> = published.filter(wanted).cloned().collect();
        for out in gone {
            self.look_for(out, reports)?;
        }
        Ok(())
    }

    /// Looks for one task in every state it can be in, and handles the result.
    fn look_for(&mut self, out: Out, reports: &mut dyn Reports) -> io::Result<()> {
        let queue = self.setup.queue.clone();
        let Some(id) = TaskId::parse(&out.task.id) else { return Ok(()) };
        let (agent, batch) = (&out.task.agent, out.run.as_str());
        let mut found = queue.find(agent, batch, &id)?;
        let aside = found.is_none();
        if aside {
            found = queue.find(agent, UNREADABLE, &id)?;
        }
        if found.is_some()
            && let Some(out) = self.out.get_mut(&out.task.id)
        {
            out.missing = None;
        }
        match found {
            Some(Place::Ended { end, name, by }) if aside => match self.is_cancelling(&out.run) {
                false => self.was_put_aside(&out, Place::Ended { end, name, by }, reports)?,
                true => self.give_up_on(&out, reports),
            },
            Some(Place::Ended { end, name, .. }) => {
                let status = queue.status(end, batch, &name)?.unwrap_or_default();
                self.consume(out, &name.task, &status, reports);
            }
            Some(Place::Waiting { agent, name }) if self.is_cancelling(&out.run) => {
                queue.cancel_waiting(&agent, &name)?;
            }
            Some(_) => {}
            None => self.is_nowhere(&out, &id, reports)?,
        }
        Ok(())
    }

    /// Drops unpublished tasks of runs that are being cancelled.
    fn drop_unpublished(&mut self, reports: &mut dyn Reports) {
        let unpublished = self.out.values().filter(|out| !out.published);
        let dropped: Vec<Out> =
            unpublished.filter(|out| self.is_cancelling(&out.run)).cloned().collect();
        if dropped.is_empty() {
            return;
        }
        let ids: HashSet<&str> = dropped.iter().map(|out| out.task.id.as_str()).collect();
        self.outbox.retain(|task| !ids.contains(task.name.id.as_str()));
        dropped.iter().for_each(|out| self.give_up_on(out, reports));
    }

    /// Stops waiting for a task of a run that is being cancelled.
    fn give_up_on(&mut self, out: &Out, reports: &mut dyn Reports) {
        let Some(held) = self.held.remove(&out.run) else { return };
        self.out.remove(&out.task.id);
        self.ended(held, &out.step, out.attempt, None, reports);
    }

    pub(super) fn is_cancelling(&self, run: &RunId) -> bool {
        self.held.get(run).is_some_and(|held| held.cancelling)
    }

    /// Handles a task that its claimer could not read and put aside. A torn task is replaced by a
    /// new task. An intact task would be put aside again, so its step fails with the reason.
    fn was_put_aside(
        &mut self,
        out: &Out,
        place: Place,
        reports: &mut dyn Reports,
    ) -> io::Result<()> {
        let queue = self.setup.queue.clone();
        let torn = matches!(queue.read(&place, UNREADABLE), Ok(None));
        let Place::Ended { end, name, .. } = place else { return Ok(()) };
        let status = queue.status(end, UNREADABLE, &name)?.unwrap_or_default();
        let Some(held) = self.held.remove(&out.run) else { return Ok(()) };
        if torn {
            self.make_anew(held, out, reports);
            return Ok(());
        }
        let reason = status.get("message").and_then(serde_json::Value::as_str).unwrap_or_default();
        let record = Record::refused(2, format!("its task was put aside: {reason}"), Map::new());
        self.out.remove(&out.task.id);
        self.ended(held, &out.step, out.attempt, Some(Performed::of(record)), reports);
        Ok(())
    }

    /// Recalls an attempt, so that it is made again as a new task.
    fn make_anew(&mut self, mut held: Held, out: &Out, reports: &mut dyn Reports) {
        reports.note(&format!("run {}: task {} is nowhere, made anew", out.run, out.task.id));
        self.out.remove(&out.task.id);
        let recalled =
            self.with(&mut held, |drive, reins| drive.recall(reins, &out.step, out.attempt));
        if let Err(error) = recalled {
            return self.abandon(held, &error, reports);
        }
        self.touched.push_back(out.run.clone());
        self.held.insert(out.run.clone(), held);
    }

    /// Handles a task that is in the journal but nowhere in the queue: its coordinator died before
    /// it published the task, or the medium lost it. The coordinator looks for it again after a
    /// heartbeat. Then it recalls the attempt and makes it again as a new task. A name is never
    /// reused, even if the task that was not found still exists.
    fn is_nowhere(&mut self, out: &Out, id: &TaskId, reports: &mut dyn Reports) -> io::Result<()> {
        let now = host::instant();
        let since = out.missing.unwrap_or(now);
        if now < since + self.setup.config.queue.beat {
            if let Some(out) = self.out.get_mut(&out.task.id) {
                out.missing = Some(since);
            }
            return Ok(());
        }
        if self.setup.queue.find_surely(&out.task.agent, out.run.as_str(), id)?.is_some() {
            // The next scan finds it too.
            self.next_look = now;
        } else if self.is_cancelling(&out.run) {
            self.give_up_on(out, reports);
        } else if let Some(held) = self.held.remove(&out.run) {
            self.make_anew(held, out, reports);
        }
        Ok(())
    }

    /// Watches an agent's claim directory for changes.
    pub(super) fn watch(&mut self, agent: &str) {
        if self.watched.insert(agent.to_owned()) {
            let queue = &self.setup.queue;
            if queue.open_agent(agent).is_ok() {
                self.hints.add(&queue.layout.claimed(agent));
            }
        }
    }

    pub(super) fn forget_tasks(&mut self, run: &RunId) {
        self.out.retain(|_, out| out.run != *run);
        self.outbox.retain(|task| task.batch != run.as_str());
    }
}
