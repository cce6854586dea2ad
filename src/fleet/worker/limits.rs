//! Limits of providers: tasks whose account is left alone stay in the inbox, the others are done.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use serde_json::{Map, Value};

use super::{Doing, Shop, Until};
use crate::fleet::config::Config;
use crate::fleet::free::FreeTask;
use crate::fleet::parking::{Entry, Pass, told_in_short};
use crate::fleet::work::Work;
use crate::queue::{Claim, Claimed, Ending, Queue};
use crate::time::{Clock, SystemClock};
use crate::workflow::Configured;

/// Whose limits a task is under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub provider: String,
}

/// So many tasks are remembered.
const KNOWN: usize = 100_000;

/// Whose limits a task is under, by its document; nothing, if it asks nobody.
pub fn account_of(document: &Map<String, Value>, agent: &str, config: &Config) -> Option<Account> {
    let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
    match document.get("kind").and_then(Value::as_str) {
        Some("step") => {
            let work = document.get("work")?;
            work.get("asks")?.as_bool().filter(|asks| *asks)?;
            let provider = text(work, "provider")?;
            let name = text(work, "account").unwrap_or_else(|| provider.clone());
            Some(Account { name, provider })
        }
        Some("free") => {
            let provider = FreeTask::from_document(document).ok()?.provider(config, agent).ok()?;
            let account = config.providers().get(&provider)?.account.clone();
            Some(Account { name: account.unwrap_or_else(|| provider.clone()), provider })
        }
        _ => None,
    }
}

impl Shop {
    /// Claims a task that may be executed now. Where an account is left alone, what waits is
    /// looked into before it is claimed, each task once.
    pub(super) fn claim(&self, pass: &RefCell<Option<Arc<Pass>>>) -> io::Result<Claimed> {
        let (queue, agent) = (&self.setup.queue, &self.setup.agent);
        *self.parked() = None;
        if !self.parking.any() {
            return queue.claim(agent);
        }
        queue.claim_wanted(agent, &|name, read| {
            let known = self.accounts().get(name.id.as_str()).cloned();
            let account = known.unwrap_or_else(|| {
                let task = read();
                let of = |document| account_of(document, agent, &self.setup.config);
                let account = task.as_ref().and_then(|task| of(&task.document));
                let mut accounts = self.accounts();
                if accounts.len() >= KNOWN {
                    accounts.clear();
                }
                accounts.insert(name.id.to_string(), account.clone());
                account
            });
            let Some(account) = account else { return true };
            if pass.borrow().as_ref().is_some_and(|pass| pass.is_for(&account.name)) {
                return true;
            }
            match self.parking.enter(&account.name, &account.provider) {
                Entry::Open(entered) => {
                    *pass.borrow_mut() = Some(entered);
                    true
                }
                Entry::Parked(note) => {
                    let left = note.left(Duration::ZERO, SystemClock.now());
                    let mut parked = self.parked();
                    *parked = Some(parked.map_or(left, |least| least.min(left)));
                    false
                }
            }
        })
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// The right to do this work now; nothing, if its account is left alone.
    pub(super) fn may_ask(&self, work: &Work) -> Option<Arc<Pass>> {
        let Some(account) = work.account() else { return Some(Pass::free()) };
        match self.parking.enter(account, work.provider.as_deref().unwrap_or(account)) {
            Entry::Open(pass) => Some(pass),
            Entry::Parked(_) => None,
        }
    }

    /// Whether a worker that found nothing to do ends. One that is to end when nothing waits does
    /// not sit out a limit of hours, or wait for a person; a short rest it does.
    pub(super) fn ends_now(&self) -> bool {
        let parked = *self.parked();
        match (self.setup.until, parked) {
            (Until::Told, _) | (Until::Once, None) => false,
            (_, Some(rest)) => rest > self.setup.config.back_off_max && !self.takes_in(),
            (Until::Empty, None) => !self.takes_in(),
        }
    }

    /// Whether it leaves tasks that wait for an account.
    pub(super) fn is_parked(&self) -> bool {
        self.parked().is_some()
    }

    fn parked(&self) -> MutexGuard<'_, Option<Duration>> {
        self.parked.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Gives a task back that was met by a limit, and says so.
    pub(super) fn give_back(&self, claim: Claim, doing: &Doing, pass: &Pass) {
        let released = self.setup.queue.release(&claim);
        self.running().remove(&claim.name.stem());
        let note = pass.parked();
        *self.parked() = note.as_ref().map(|note| note.left(Duration::ZERO, SystemClock.now()));
        let why = note.map(|note| told_in_short(&note)).unwrap_or_default();
        let how = match released {
            Ok(Ending::Committed) => format!("given back: {why}"),
            Ok(Ending::Fenced) => "lost to another worker".to_owned(),
            Err(_) => "left behind".to_owned(),
        };
        self.audience.ended(doing, &how, doing.since.elapsed());
    }
}

type Accounts = std::collections::HashMap<String, Option<Account>>;
