//! The executor of a run in a fleet: tasks for agents, and a thread pool for local executions.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;

use super::{Heard, Out};
use crate::attempt::documents::{self, StepTask};
use crate::attempt::work::Work;
use crate::base::host;
use crate::base::ids::TaskAttempt;
use crate::base::random::unguessable;
use crate::base::time::{Clock, SystemClock};
use crate::engine::TaskRef;
use crate::exec::Stop;
use crate::queue::{ClaimName, Queue, Task};
use crate::run::drive::{Hands, Job, Launch};
use crate::run::thread_pool::Pool;
use crate::settings::Config;
use crate::store::StoreError;

/// Executes what a run is owed: as a task for an agent, or in the local thread pool.
pub(super) struct FleetHands<'a> {
    pub(super) queue: &'a Queue,
    pub(super) claim: &'a ClaimName,
    pub(super) config: &'a Config,
    pub(super) run_root: String,
    pub(super) debug: bool,
    pub(super) masked: &'a [String],
    pub(super) stop: &'a Stop,
    pub(super) tell: &'a Sender<Heard>,
    pub(super) pool: &'a mut Pool,
    pub(super) out: &'a mut BTreeMap<String, Out>,
    pub(super) outbox: &'a mut Vec<Task>,
    pub(super) here: usize,
}

impl Hands for FleetHands<'_> {
    fn agent_for(&self, work: &Work) -> Option<String> {
        let default = match work.asks {
            true => Some(&self.config.default_agent),
            false => self.config.command_agent.as_ref(),
        };
        work.agent.as_ref().or(default).cloned()
    }

    fn new_task(&mut self, agent: String) -> TaskRef {
        let id = self.queue.new_id(SystemClock.now().0 as u64).to_string();
        TaskRef { id, agent, ticket: unguessable() }
    }

    fn begin(&mut self, launch: Launch) -> Result<(), StoreError> {
        match (&launch.job, &launch.task) {
            (Job::Run(work), Some(task)) => self.put_out(&launch, work, task),
            _ => self.execute_here(launch),
        }
        Ok(())
    }
}

impl FleetHands<'_> {
    fn put_out(&mut self, launch: &Launch, work: &Work, task: &TaskRef) {
        let step = StepTask {
            run_id: launch.run.clone(),
            run_root: self.run_root.clone(),
            debug: self.debug,
            masked: self.masked.to_vec(),
            ticket: task.ticket.clone(),
            work: work.clone(),
        };
        let limit = self.config.queue.crash_limit;
        self.outbox.extend(documents::step_task(task, &step, limit, SystemClock.now()));
        let Launch { run, step, attempt, .. } = launch;
        let (run, step, attempt) = (run.clone(), step.clone(), *attempt);
        let task = task.clone();
        let out = Out {
            run,
            step,
            attempt,
            task,
            execution: TaskAttempt::FIRST,
            published: false,
            missing: None,
        };
        self.out.insert(out.task.id.clone(), out);
    }

    fn execute_here(&mut self, launch: Launch) {
        self.here += 1;
        let (tell, stop, claim) = (self.tell.clone(), self.stop.clone(), self.claim.clone());
        let waits = matches!(launch.job, Job::Wait(_) | Job::Merge(_));
        let execute = move || {
            let performed = launch.perform(&stop).map(Box::new);
            let Launch { run, step, attempt, .. } = launch;
            let _ = tell.send(Heard::Done { run, claim, step, attempt, performed });
            host::poke();
        };
        // A job that only waits must not occupy a thread of the pool.
        if waits {
            drop(host::spawn(execute));
        } else {
            self.pool.give(execute);
        }
    }
}
