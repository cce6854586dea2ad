//! What a dropped file becomes: a free task, or whatever whoever serves the inbox makes of it.

use std::io;

use crate::fleet::config::Config;
use crate::fleet::free::FreeTask;
use crate::fleet::member::unguessable;
use crate::queue::{Task, TaskId};
use crate::workflow::settings::agent_fault;

/// A file that somebody dropped, read whole.
#[derive(Clone, Copy, Debug)]
pub struct Dropped<'a> {
    pub agent: &'a str,
    /// What its task must be called, so that taking it in twice gives one task.
    pub id: &'a TaskId,
    /// The file's name.
    pub source: &'a str,
    pub text: &'a str,
}

/// What a dropped file becomes.
#[derive(Debug)]
pub enum Adopted {
    /// A task, to be put out.
    Task(Box<Task>),
    /// Nothing, for this reason: one sentence.
    Refused(String),
    /// Whoever was asked has taken it in; doing so again for the same id changes nothing.
    Done,
}

/// Decides what a dropped file becomes. An error means: ask again later.
pub trait Adopt: Send {
    /// Whether files dropped for this agent are its to decide.
    fn serves(&self, agent: &str) -> bool;
    fn adopt(&mut self, dropped: &Dropped) -> io::Result<Adopted>;
}

/// Every dropped file is a free task.
pub struct FreeTasks {
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
