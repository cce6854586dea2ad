//! Provider limits and machine faults. A task whose account is parked, or whose provider is
//! suspended on this machine, stays in the inbox; other tasks are executed.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::{Doing, Shop, Until};
use crate::agent::{Kind, MachineFault};
use crate::attempt::parking::{Entry, Pass, Target, told_in_short};
use crate::attempt::work::Work;
use crate::exec;
use crate::free_task::parse::FreeTask;
use crate::queue::{Claim, Claimed, Ending};
use crate::settings::Config;
use crate::workflow::Configured;

/// Maximum number of tasks whose targets are cached.
const KNOWN: usize = 100_000;

/// Returns the target of a task according to its document.
pub(crate) fn target_of(document: &Map<String, Value>, agent: &str, config: &Config) -> Target {
    match document.get("kind").and_then(Value::as_str) {
        Some("step") => of_step(document),
        Some("free") => of_free(document, agent, config),
        _ => None,
    }
    .unwrap_or_else(Target::any)
}

fn of_step(document: &Map<String, Value>) -> Option<Target> {
    let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
    let work = document.get("work")?;
    work.get("asks")?.as_bool().filter(|asks| *asks)?;
    let provider = text(work, "provider")?;
    let program = work.get("argv").and_then(|argv| argv.get(0)?.as_str());
    let kind = work.get("adapter").and_then(|kind| Kind::deserialize(kind).ok());
    Some(Target {
        account: text(work, "account").unwrap_or_else(|| provider.clone()),
        program: program.unwrap_or_default().to_owned(),
        kind: kind.unwrap_or_default(),
        provider,
    })
}

fn of_free(document: &Map<String, Value>, agent: &str, config: &Config) -> Option<Target> {
    let name = FreeTask::from_document(document).ok()?.provider(config, agent).ok()?;
    target_in(&name, config)
}

/// Returns the target of an agent's task that names no provider.
pub(crate) fn own_target(agent: &str, config: &Config) -> Target {
    let own = config.agent(agent).provider;
    let name = own.unwrap_or_else(|| config.default_provider.clone());
    target_in(&name, config).unwrap_or_else(Target::any)
}

/// Returns the target of a configured provider, or `None` if it is not configured.
pub(super) fn target_in(name: &str, config: &Config) -> Option<Target> {
    let provider = config.providers().get(name)?;
    Some(Target {
        account: provider.account.as_deref().unwrap_or(name).to_owned(),
        program: provider.program().unwrap_or_default().to_owned(),
        kind: provider.adapter,
        provider: name.to_owned(),
    })
}

impl Shop {
    /// Claims a task that may be executed now. If an account is parked, reads each waiting task
    /// once before it claims it. Claims nothing if the process has too few file descriptors to
    /// start a child process.
    pub(super) fn claim(&self, pass: &RefCell<Option<Arc<Pass>>>) -> io::Result<Claimed> {
        let (queue, agent) = (&self.setup.queue, &self.setup.agent);
        *self.parked() = None;
        if let Some(error) = exec::lacks_descriptors() {
            let reason = format!("too few file descriptors: {error}");
            let note = self.parking.suspend(&Target::any(), MachineFault::Resources, &reason);
            *self.parked() = Some(note.map_or(Duration::MAX, |note| note.wait()));
            return Ok(Claimed::Nothing);
        }
        if !self.parking.any() {
            return queue.claim(agent);
        }
        queue.claim_wanted(agent, &|name, read| {
            let known = self.targets().get(name.id.as_str()).cloned();
            let target = known.unwrap_or_else(|| {
                // A task that is gone or torn has no target; do not cache that, it may be intact
                // next time.
                let Some(task) = read() else { return Target::any() };
                let target = target_of(&task.document, agent, &self.setup.config);
                let mut targets = self.targets();
                if targets.len() >= KNOWN {
                    targets.clear();
                }
                targets.insert(name.id.to_string(), target.clone());
                target
            });
            if pass.borrow().as_ref().is_some_and(|pass| pass.is_for(&target)) {
                return true;
            }
            match self.parking.enter(&target) {
                Entry::Open(entered) => {
                    *pass.borrow_mut() = Some(entered);
                    true
                }
                Entry::Parked(note) => {
                    let left = note.wait();
                    let mut parked = self.parked();
                    *parked = Some(parked.map_or(left, |least| least.min(left)));
                    false
                }
            }
        })
    }

    fn targets(&self) -> MutexGuard<'_, Targets> {
        self.targets.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Returns the permission to do this work now, or `None` if its account is parked.
    pub(super) fn may_ask(&self, work: &Work) -> Option<Arc<Pass>> {
        match self.parking.enter(&work.target()) {
            Entry::Open(pass) => Some(pass),
            Entry::Parked(_) => None,
        }
    }

    /// Returns true if a worker that found no task ends. A worker that ends when no task waits does
    /// not wait for a limit of hours or for a user, but it does wait for a short backoff.
    pub(super) fn ends_now(&self) -> bool {
        let parked = *self.parked();
        match (self.setup.until, parked) {
            (Until::Told, _) | (Until::Once, None) => false,
            (_, Some(rest)) => rest > self.setup.config.back_off_max && !self.takes_in(),
            (Until::Empty, None) => !self.takes_in(),
        }
    }

    /// Returns true if the worker leaves tasks that wait for an account.
    pub(super) fn is_parked(&self) -> bool {
        self.parked().is_some()
    }

    fn parked(&self) -> MutexGuard<'_, Option<Duration>> {
        self.parked.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Releases a task that reached a limit, and reports it.
    pub(super) fn give_back(&self, claim: Claim, doing: &Doing, pass: &Pass) {
        let stem = claim.name.stem();
        let released = self.setup.queue.release(claim);
        self.running().remove(&stem);
        let note = pass.parked();
        *self.parked() = note.as_ref().map(|note| note.wait());
        let why = note.map(|note| told_in_short(&note)).unwrap_or_default();
        let how = match released {
            Ok(Ending::Committed) => format!("given back: {why}"),
            Ok(Ending::Fenced) => "lost to another worker".to_owned(),
            Err(_) => "left behind".to_owned(),
        };
        self.audience.ended(doing, &how, doing.since.elapsed());
    }
}

pub(super) type Targets = std::collections::HashMap<String, Target>;
