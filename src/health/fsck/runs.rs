//! Checks runs: a consistent journal, a state that follows from it, and tasks that confirm its
//! results.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::tree::{Lying, State, Tree};
use super::{Finding, Kind};
use crate::attempt::documents;
use crate::base::ids::{Attempt, RunId, StepPath};
use crate::disk;
use crate::engine::{self, Event, Record, Run, RunStatus, StepStatus, TaskRef};
use crate::queue::End;
use crate::run::open;
use crate::store::journal::Entry;
use crate::store::{self, History, LoadError, Store, snapshot};
use crate::workflow::Plan;
use crate::workspace::Workspace;

/// Checks all runs. Returns the IDs of the tasks whose results are in a complete journal, and the
/// number of all runs.
pub(super) fn look(
    workspace: &Workspace,
    state_dir: &Path,
    tree: &Tree,
    findings: &mut Vec<Finding>,
) -> io::Result<(HashSet<String>, usize)> {
    let (mut recorded, mut kept) = (HashSet::new(), 0);
    let (mut complete, mut known) = (HashSet::new(), HashSet::new());
    for name in disk::none_if_absent(disk::machine().list_dirs(state_dir))? {
        let Some(id) = RunId::parse(&name) else { continue };
        let root = state_dir.join(&name);
        kept += 1;
        let mut looker = Looker { id: &id, root, tree, findings, tasks: HashMap::new() };
        if let Some(ended) = looker.look(workspace) {
            recorded.extend(ended);
            known.extend(looker.tasks.into_values().map(|task| task.id));
            complete.insert(name);
        }
    }
    for lying in tree.tasks.iter().filter(|lying| lying.kind.as_deref() == Some("step")) {
        let run = lying.run.as_deref().unwrap_or_default();
        if complete.contains(run) && !known.contains(lying.id().as_str()) {
            let message = format!("run {run} knows nothing of this task");
            findings.push(Finding::new(Kind::StrayTask, lying.id().as_str(), message));
        }
    }
    Ok((recorded, kept))
}

/// A check of one run.
struct Looker<'a> {
    id: &'a RunId,
    root: PathBuf,
    tree: &'a Tree,
    findings: &'a mut Vec<Finding>,
    /// The tasks of attempts.
    tasks: HashMap<(StepPath, Attempt), TaskRef>,
}

impl Looker<'_> {
    fn find(&mut self, kind: Kind, message: impl Into<String>) {
        self.findings.push(Finding::new(kind, self.id.as_str(), message));
    }

    /// Checks the run. Returns the tasks whose results it has, or `None` if its journal is not
    /// complete.
    fn look(&mut self, workspace: &Workspace) -> Option<Vec<String>> {
        let disk = disk::machine();
        // Read the state first: the journal must then contain everything in the state.
        let state = match disk.read(&self.root.join(store::STATE)) {
            Ok(bytes) => Some(bytes),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound => None,
                io::ErrorKind::PermissionDenied => return self.unreadable(store::STATE),
                _ => {
                    self.find(Kind::State, format!("`{}`: {error}", store::STATE));
                    None
                }
            },
        };
        let history = match History::read(&*disk, &self.root) {
            Ok(history) => history,
            Err(LoadError::Disk(error)) if error.is_forbidden() => {
                return self.unreadable(store::JOURNAL);
            }
            Err(error) => {
                self.find(Kind::Journal, error.to_string());
                return None;
            }
        };
        let plan = match open::frozen_config(&self.root)
            .and_then(|config| open::frozen_plan(workspace, &config, &self.root))
        {
            Ok(plan) => plan,
            Err(error) if error.is_forbidden() => return self.unreadable(store::DEFINITION),
            Err(error) => {
                self.find(Kind::Unopened, error.to_string());
                return None;
            }
        };
        let Some(first) = history.entries.first() else {
            // The journal was restarted after damage, and no event has been recorded since.
            let begun = store::is_begun_anew(&*disk, &self.root).unwrap_or(false);
            if begun && state.is_some_and(|bytes| snapshot::decode(&plan, &bytes).is_ok()) {
                return None;
            }
            let is_there = disk::exists(&self.root.join(store::JOURNAL)).unwrap_or(false);
            let message = if is_there { "its journal is empty" } else { "it has no journal" };
            self.find(Kind::Journal, message);
            return None;
        };
        let (Event::Started { origin }, 1) = (&first.event, first.seq) else {
            // The journal was restarted after a power cut: only the state has the earlier events.
            return None;
        };
        let gap = history.entries.windows(2).find(|pair| pair[1].seq != pair[0].seq + 1);
        if let Some(pair) = gap {
            self.find(Kind::Journal, format!("events after number {} are missing", pair[0].seq));
            return None;
        }
        let recorded = self.judge_events(&history);
        let is_edited = |entry: &Entry| matches!(entry.event, Event::Edited { .. });
        let run = if history.entries.iter().any(is_edited) {
            // Events before the edit belong to another plan: only the state has their results.
            Store::look(disk::machine(), &self.root, &plan).ok()?
        } else {
            let run = Run::new(&plan, self.id.clone(), (**origin).clone(), first.at);
            self.judge_state(&plan, run, &history, state.as_deref())
        };
        if run.origin.fleet {
            self.judge_end(&run);
        }
        Some(recorded)
    }

    /// Reports that this user may not read a file, so the run cannot be checked.
    fn unreadable(&mut self, file: &str) -> Option<Vec<String>> {
        self.find(Kind::Unreadable, format!("`{file}` cannot be read by this user"));
        None
    }

    /// Checks that each attempt has one end, that attempt numbers increase, and that tasks confirm
    /// the results. Returns the tasks that have a result.
    fn judge_events(&mut self, history: &History) -> Vec<String> {
        let mut recorded = Vec::new();
        let mut seen: HashSet<(&StepPath, Attempt)> = HashSet::new();
        let mut newest: HashMap<&StepPath, Attempt> = HashMap::new();
        for entry in &history.entries {
            match &entry.event {
                Event::Launched { step, attempt, task } => {
                    let before = newest.insert(step, *attempt).unwrap_or_default();
                    if *attempt <= before {
                        let message = format!(
                            "`{}` went out as attempt {attempt} after {before}",
                            step.shown()
                        );
                        self.find(Kind::AttemptBack, message);
                    }
                    if let Some(task) = task {
                        self.tasks.insert((step.clone(), *attempt), task.clone());
                    }
                }
                Event::Ended { step, attempt, record } => {
                    if !seen.insert((step, *attempt)) {
                        let message =
                            format!("attempt {attempt} of `{}` ended twice", step.shown());
                        self.find(Kind::EndedAgain, message);
                    }
                    let task = self.tasks.get(&(step.clone(), *attempt)).cloned();
                    if let Some(task) = task {
                        self.judge_result(step, &task, record);
                        recorded.push(task.id);
                    }
                    newest.insert(step, *attempt);
                }
                // After an edit, the attempts of a loop restart from 1.
                Event::Edited { .. } => {
                    seen.clear();
                    newest.clear();
                }
                _ => {}
            }
        }
        recorded
    }

    /// Checks that a result equals the one in the status of its ended task.
    fn judge_result(&mut self, step: &StepPath, task: &TaskRef, record: &Record) {
        let what = format!("the result of `{}`, task {},", step.shown(), task.id);
        let Some(lying) = self.tree.find(&task.id) else {
            // `clean` removes whole batches.
            let end = match record.status {
                StepStatus::Completed => End::Processed,
                _ => End::Failed,
            };
            if self.tree.has_batch(end, self.id.as_str()) {
                self.find(Kind::Unbacked, format!("{what} is of a task that is nowhere"));
            }
            return;
        };
        if !lying.has_ended() {
            self.find(Kind::Unbacked, format!("{what} is of a task that has not ended"));
            return;
        }
        let Some(status) = &lying.status else { return };
        match documents::record(status, task) {
            Ok(told) if told == *record => {}
            Ok(_) => self.find(Kind::Unbacked, format!("{what} is not what its status says")),
            Err(reason) => self.find(Kind::Unbacked, format!("{what} is not backed: {reason}")),
        }
    }

    /// Checks that the state matches the journal at the state's position. Returns the current run.
    fn judge_state(
        &mut self,
        plan: &Plan,
        mut run: Run,
        history: &History,
        state: Option<&[u8]>,
    ) -> Run {
        let loaded = match state.map(|bytes| snapshot::decode(plan, bytes)) {
            Some(Ok(loaded)) => Some(loaded),
            Some(Err(reason)) => {
                self.find(Kind::State, format!("`{}`: {reason}", store::STATE));
                None
            }
            // A run that has ended must have one; before the first state, the journal has
            // everything.
            None => None,
        };
        let told = state.and_then(|bytes| serde_json::from_slice(bytes).ok());
        let told = told.map(without_durations);
        let late = loaded.as_ref().is_some_and(|l| history.is_late(l.journal_term, l.journal_seq));
        for entry in &history.entries {
            engine::apply(plan, &mut run, entry.at, &entry.event);
            let here = loaded.as_ref().filter(|l| l.journal_seq == entry.seq && !late);
            if let Some(loaded) = here {
                let bytes = snapshot::encode(plan, &run, entry.seq, loaded.journal_term);
                let meant = serde_json::from_slice(&bytes).ok().map(without_durations);
                if meant != told {
                    let message = format!("`{}` is not what the journal says", store::STATE);
                    self.find(Kind::State, message);
                }
            }
        }
        let shown = loaded.as_ref().map(|loaded| loaded.run.status);
        if run.status != RunStatus::Running && shown != Some(run.status) {
            let message = match late {
                true => "somebody who had lost the run overwrote its last state",
                false => "the run is over, but its state does not say so",
            };
            self.find(Kind::StaleState, message);
        }
        // If a power cut truncated the journal, the state is newer and counts.
        let last = history.entries.last().map_or(0, |entry| entry.seq);
        match loaded {
            Some(loaded) if !late && loaded.journal_seq > last => loaded.run,
            _ => run,
        }
    }

    /// Checks that a run and its task agree.
    fn judge_end(&mut self, run: &Run) {
        let Some(lying) = self.tree.task_of_run(run.id.as_str()) else {
            if run.status == RunStatus::Running {
                self.find(Kind::Undriven, "it goes on, but there is no task to drive it by");
            }
            return;
        };
        let State::Ended { end, .. } = &lying.state else { return };
        match (end, run.status) {
            (End::Processed, RunStatus::Completed) => {}
            (End::Processed, status) => {
                let message = format!("its task says that it completed, its journal {status:?}");
                self.find(Kind::WrongEnd, message.to_lowercase());
            }
            // A user may have resumed a run that failed, was stopped or was cancelled.
            (_, RunStatus::Running) => {
                self.find(
                    Kind::Undriven,
                    format!("it goes on, but its task has ended{}", why(lying)),
                );
            }
            _ => {}
        }
    }
}

/// Removes durations from a document: a process that resumed the run from a snapshot knows the
/// start of a step only to the second.
fn without_durations(mut value: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.shift_remove("duration_ms");
                map.values_mut().for_each(strip);
            }
            Value::Array(list) => list.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut value);
    value
}

fn why(lying: &Lying) -> String {
    let status = lying.status.as_ref();
    let message = status.and_then(|status| status.get("message")?.as_str());
    message.map(|message| format!(": {message}")).unwrap_or_default()
}
