//! The task that a run of a fleet is: whoever holds it drives the run. Here it is found, wherever
//! it lies.

use std::collections::HashMap;
use std::io;

use super::post::{self, Asked, COORDINATOR, RunTask};
use crate::engine::run::{Body, Slot, StepState};
use crate::engine::{Run, TaskRef};
use crate::ids::RunId;
use crate::queue::{End, Ending, FsQueue, Place, Queue, Task, TaskId};
use crate::time::{Clock, SystemClock};

/// A batch to read by where none is known: those who wait and those who are held lie in none.
const NO_BATCH: &str = "none";

/// Where the tasks of runs are that wait for a coordinator or are held by one, by the run's id.
pub fn out(queue: &FsQueue) -> io::Result<HashMap<String, Place>> {
    out_known(queue, &mut HashMap::new())
}

/// The same for one who looks again and again: tasks that are known by their files are not read.
pub fn out_known(
    queue: &FsQueue,
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

/// Where the task of one run is.
pub fn find(queue: &FsQueue, run: &RunId) -> io::Result<Option<Place>> {
    // It may move from one place to the other while we look.
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

fn ended(queue: &FsQueue, run: &RunId) -> io::Result<Option<Place>> {
    for end in [End::Failed, End::Cancelled, End::Processed] {
        let mut names = queue.ended(end, run.as_str())?;
        // It was made before the tasks of its steps, so it is nearly always the first.
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

/// The run that a task is, if it is one.
fn run_at(queue: &FsQueue, place: &Place, batch: &str) -> io::Result<Option<RunId>> {
    let Some(task) = queue.read(place, batch)? else { return Ok(None) };
    match post::read(&task.document) {
        Ok(Asked::Run(run)) => Ok(Some(run.run_id)),
        _ => Ok(None),
    }
}

/// The tasks that steps of a run are out as.
pub fn steps_out(run: &Run) -> Vec<TaskRef> {
    steps_out_of(run, |_| true)
}

/// The tasks that these steps of the workflow are out as, and what is in them.
pub fn steps_out_of(run: &Run, of: impl Fn(usize) -> bool) -> Vec<TaskRef> {
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

/// A task that a step of a run is out as, and who holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct StillHeld {
    pub task: TaskRef,
    pub worker: String,
}

/// Takes out those tasks of a run's steps that wait. Gives those that somebody holds.
pub fn take_out_steps(queue: &FsQueue, run: &Run, tasks: &[TaskRef]) -> io::Result<Vec<StillHeld>> {
    let mut held = Vec::new();
    for task in tasks {
        let Some(id) = TaskId::parse(&task.id) else { continue };
        // It may be claimed while it is being taken out.
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

/// The task of a run that has none any more. It is the next attempt after all that the run's
/// journals know of, so that whoever takes it up goes on in a journal of its own.
pub fn make(queue: &FsQueue, run: &Run, term: u32) -> Task {
    let now = SystemClock.now();
    let task = RunTask { run_id: run.id.clone(), run_root: run.origin.run_root.clone() };
    let id = queue.new_id(now.0 as u64);
    let mut task = post::run_task(&id, &task, &run.origin.workflow_file, now);
    task.name.attempt = term + 1;
    task
}
