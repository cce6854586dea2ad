//! Conversion of a dropped file to a free task, or to what the server of the inbox makes of it.

use std::io;

use crate::base::random::unguessable;
use crate::free_task::parse::FreeTask;
use crate::queue::{Task, TaskId};
use crate::settings::Config;
use crate::workflow::settings::agent_fault;

/// A dropped file and its whole text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropped<'a> {
    pub agent: &'a str,
    /// Required ID of its task, so that adopting the file twice yields one task.
    pub id: &'a TaskId,
    /// The file's name.
    pub source: &'a str,
    pub text: &'a str,
}

/// The result of adopting a dropped file.
#[derive(Debug)]
pub(crate) enum Adopted {
    /// A task to publish.
    Task(Box<Task>),
    /// Not a task; the reason in one sentence.
    Refused(String),
}

/// Decides what a dropped file becomes. After an error, the caller retries later.
pub(crate) trait Adopt: Send {
    /// Returns true if this adopter handles files dropped for `agent`.
    fn serves(&self, agent: &str) -> bool;
    fn adopt(&mut self, dropped: &Dropped) -> io::Result<Adopted>;
}

/// Converts every dropped file to a free task.
pub(crate) struct FreeTasks {
    pub config: Config,
}

impl Adopt for FreeTasks {
    fn serves(&self, agent: &str) -> bool {
        agent_fault(agent).is_none()
    }

    fn adopt(&mut self, dropped: &Dropped) -> io::Result<Adopted> {
        let parsed = FreeTask::parse(dropped.text).and_then(|task| {
            task.check(&self.config, dropped.agent)?;
            Ok(FreeTask { source: Some(dropped.source.to_owned()), ..task })
        });
        Ok(match parsed {
            Ok(task) => {
                let limit = self.config.queue.crash_limit;
                let ticket = unguessable();
                Adopted::Task(Box::new(task.task(dropped.agent, dropped.id, &ticket, limit)))
            }
            Err(reason) => Adopted::Refused(reason),
        })
    }
}
