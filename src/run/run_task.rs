//! Finds the task of a fleet's run, in any of its places. The holder of that task drives the run.

use std::collections::HashMap;
use std::io;

use crate::attempt::documents::{self, Asked, COORDINATOR, RunTask};
use crate::base::ids::{RunId, TaskAttempt};
use crate::base::time::{Clock, SystemClock};
use crate::engine::run::{Body, Slot, StepState};
use crate::engine::{Run, TaskRef};
use crate::queue::{End, Ending, Place, Queue, Task, TaskId};

/// Batch argument for reads without a known batch: waiting and claimed tasks belong to none.
const NO_BATCH: &str = "none";

/// Returns the places of the waiting and claimed tasks of runs, by run ID.
pub(crate) fn out(queue: &Queue) -> io::Result<HashMap<String, Place>> {
    out_known(queue, &mut HashMap::new())
}

/// Like [`out`], for repeated calls: does not read a task whose file name is in `known`.
pub(crate) fn out_known(
    queue: &Queue,
    known: &mut HashMap<String, Option<RunId>>,
) -> io::Result<HashMap<String, Place>> {
    let agent = COORDINATOR;
    let waiting = queue.waiting(agent)?.into_iter();
    let mut places: Vec<Place> =
        waiting.map(|name| Place::Waiting { agent: agent.to_owned(), name }).collect();
    let claims = queue.claims(agent)?.into_iter();
    places.extend(claims.map(|name| Place::Claimed { agent: agent.to_owned(), name }));
    let (mut found, mut still) = (HashMap::new(), HashMap::new());
    for place in places {
        let file = match &place {
            Place::Waiting { name, .. } => name.file(),
            Place::Claimed { name, .. } => name.file(),
            Place::Ended { .. } => continue,
        };
        let run = match known.remove(&file) {
            Some(run @ Some(_)) => run,
            _ => run_at(queue, &place, NO_BATCH)?,
        };
        if let Some(run) = &run {
            found.insert(run.to_string(), place);
        }
        still.insert(file, run);
    }
    *known = still;
    Ok(found)
}

/// Finds the task of one run.
pub(crate) fn find(queue: &Queue, run: &RunId) -> io::Result<Option<Place>> {
    // The task may move between two places during the scan.
    for _ in 0..2 {
        if let Some(place) = out(queue)?.remove(run.as_str()) {
            return Ok(Some(place));
        }
        if let Some(place) = ended(queue, run)? {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

fn ended(queue: &Queue, run: &RunId) -> io::Result<Option<Place>> {
    for end in [End::Failed, End::Cancelled, End::Processed] {
        let mut names = queue.ended(end, run.as_str())?;
        // It is older than the tasks of its steps, so it is nearly always the first.
        names.sort_by(|(a, _), (b, _)| a.task.id.cmp(&b.task.id));
        for (name, by) in names {
            let place = Place::Ended { end, name, by };
            if run_at(queue, &place, run.as_str())?.as_ref() == Some(run) {
                return Ok(Some(place));
            }
        }
    }
    Ok(None)
}

/// Returns the run that a task represents, or `None` for another task.
fn run_at(queue: &Queue, place: &Place, batch: &str) -> io::Result<Option<RunId>> {
    let Some(task) = queue.read(place, batch)? else { return Ok(None) };
    match documents::read(&task.document) {
        Ok(Asked::Run(run)) => Ok(Some(run.run_id)),
        _ => Ok(None),
    }
}

/// Returns the tasks of a run's running steps.
pub(crate) fn steps_out(run: &Run) -> Vec<TaskRef> {
    steps_out_of(run, |_| true)
}

/// Returns the tasks of the running steps among these top-level steps and inside them.
pub(crate) fn steps_out_of(run: &Run, of: impl Fn(usize) -> bool) -> Vec<TaskRef> {
    fn walk(body: &Body, into: &mut Vec<TaskRef>) {
        body.slots.iter().for_each(|slot| look(slot, into));
    }
    fn look(slot: &Slot, into: &mut Vec<TaskRef>) {
        match &slot.each {
            Some(each) => each.iterations.iter().for_each(|item| walk(&item.body, into)),
            None if slot.state == StepState::Running => {
                into.extend(slot.record.as_ref().and_then(|record| record.task.clone()));
            }
            None => {}
        }
    }
    let mut found = Vec::new();
    for (index, slot) in run.body.slots.iter().enumerate() {
        if of(index) {
            look(slot, &mut found);
        }
    }
    found
}

/// The task of a run's step, and the worker that holds it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StillHeld {
    pub task: TaskRef,
    pub worker: String,
}

/// Cancels the waiting tasks of a run's steps. Returns the tasks that a worker holds.
pub(crate) fn take_out_steps(
    queue: &Queue,
    run: &Run,
    tasks: &[TaskRef],
) -> io::Result<Vec<StillHeld>> {
    let mut held = Vec::new();
    for task in tasks {
        let Some(id) = TaskId::parse(&task.id) else { continue };
        // A worker may claim the task while it is being cancelled.
        while let Some(place) = queue.find(&task.agent, run.id.as_str(), &id)? {
            match place {
                Place::Waiting { agent, name } => {
                    if queue.cancel_waiting(&agent, &name)? == Ending::Committed {
                        break;
                    }
                }
                Place::Claimed { name, .. } => {
                    held.push(StillHeld { task: task.clone(), worker: name.worker });
                    break;
                }
                Place::Ended { .. } => break,
            }
        }
    }
    Ok(held)
}

/// Creates a new task for a run that has none. Its attempt is higher than any in the run's
/// journals, so that the coordinator that claims it writes its own journal.
pub(crate) fn make(queue: &Queue, run: &Run, term: u32) -> Task {
    let now = SystemClock.now();
    let task = RunTask { run_id: run.id.clone(), run_root: run.origin.run_root.clone() };
    let id = queue.new_id(now.0 as u64);
    let mut task = documents::run_task(&id, &task, &run.origin.workflow_file, now);
    task.name.attempt = TaskAttempt::new(term).next();
    task
}
