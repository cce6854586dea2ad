//! Runs that change the checkout. Each run waits here for the checkout token. It gives the token up
//! when it is over or waits only for users.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Coordinator, Held, Reports, is_paused};
use crate::attempt::documents::COORDINATOR;
use crate::base::host;
use crate::base::ids::RunId;
use crate::disk;
use crate::queue::{Claim, TaskId};
use crate::run::checkout::{self, Before, Suitor, Taken};
use crate::store::StoreError;

/// The runs that wait for the checkout token, ordered by priority and then by age.
#[derive(Default)]
pub(super) struct Line {
    waiting: BTreeMap<(u8, TaskId), Waiting>,
    suitor: Suitor,
    /// The run that was last seen to hold the token.
    holder: Option<String>,
    /// Time of the next request for the token.
    next: Option<Instant>,
    /// True if this process watches the token's directory for changes.
    watched: bool,
}

struct Waiting {
    run: RunId,
    /// The holder that was last reported for this run.
    told: Option<Before>,
}

fn place(claim: &Claim) -> (u8, TaskId) {
    (claim.name.task.priority, claim.name.task.id.clone())
}

impl Line {
    /// Adds a run to the line. Returns true if it is the first and a request for the token is due.
    fn join(&mut self, claim: &Claim, run: &RunId) -> bool {
        let own = place(claim);
        let new = || Waiting { run: run.clone(), told: None };
        self.waiting.entry(own.clone()).or_insert_with(new);
        let first = self.first().is_some_and(|(place, _)| *place == own);
        first && self.next.is_none_or(|at| at <= host::instant())
    }

    pub(super) fn leave(&mut self, claim: &Claim) {
        self.waiting.remove(&place(claim));
    }

    /// Makes a request due now: the token may be free.
    pub(super) fn look_now(&mut self) {
        self.next = None;
    }

    pub(super) fn next_look(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| self.next.unwrap_or_else(host::instant))
    }

    /// Returns the run to request the token for: the run that already holds it from a previous
    /// owner, otherwise the first in line. If the holder had no precedence, the first in line would
    /// wait for a holder that is never driven.
    fn first(&self) -> Option<(&(u8, TaskId), &Waiting)> {
        self.holder_here().or_else(|| self.waiting.first_key_value())
    }

    /// Returns the run that holds the token, if it waits in this line.
    fn holder_here(&self) -> Option<(&(u8, TaskId), &Waiting)> {
        let holder = self.holder.as_deref()?;
        self.waiting.iter().find(|(_, waiting)| waiting.run.as_str() == holder)
    }

    /// Records the token's holder. Returns true if that run waits in this line and so can proceed.
    fn note(&mut self, before: &Before) -> bool {
        self.holder = match before {
            Before::Run(run) => Some(run.clone()),
            _ => None,
        };
        self.holder_here().is_some()
    }

    /// Returns the run to request the token for, if a request is due.
    pub(super) fn due(&self, now: Instant) -> Option<RunId> {
        let (_, first) = self.first()?;
        self.next.is_none_or(|at| at <= now).then(|| first.run.clone())
    }

    /// Returns true if this holder was not yet reported to the run that waits.
    fn is_news(&mut self, claim: &Claim, before: &Before) -> bool {
        let Some(waiting) = self.waiting.get_mut(&place(claim)) else { return false };
        let news = waiting.told.as_ref() != Some(before);
        waiting.told = Some(before.clone());
        news
    }
}

impl Coordinator {
    /// Advances a run as far as possible.
    pub(super) fn drive_on(
        &mut self,
        held: &mut Held,
        reports: &mut dyn Reports,
    ) -> Result<(), StoreError> {
        if !self.may_go_on(held, reports)? {
            return Ok(());
        }
        self.with(held, |drive, reins| drive.advance(reins))?;
        // The user's answer may take any time, and nothing is executed meanwhile.
        if is_paused(held) {
            self.give_up_turn(held.turn.take(), &held.drive.run.id);
        }
        Ok(())
    }

    /// Returns true if a run may advance: it does not change the checkout, or it holds the token. A
    /// run that waits for users needs no token to receive their answers.
    fn may_go_on(
        &mut self,
        held: &mut Held,
        reports: &mut dyn Reports,
    ) -> Result<bool, StoreError> {
        if !held.drive.plan.is_exclusive() || held.turn.is_some() || held.drive.is_over() {
            return Ok(true);
        }
        if is_paused(held) {
            self.with(held, |drive, reins| drive.hear_answers(reins))?;
        }
        if is_paused(held) {
            return Ok(false);
        }
        Ok(self.line.join(&held.claim, &held.drive.run.id) && self.ask_for_turn(held, reports))
    }

    /// Requests the checkout token. Returns true if the run holds it now.
    fn ask_for_turn(&mut self, held: &mut Held, reports: &mut dyn Reports) -> bool {
        let dir = self.setup.queue.layout.checkout();
        // A directory watch reports a release on this machine; a release on another machine is
        // found by polling.
        if !self.line.watched && disk::exists(&dir).unwrap_or(false) {
            self.hints.add(&dir);
            self.line.watched = true;
        }
        let settings = &self.setup.config.queue;
        let (queue, workspace) = (&self.setup.queue, &self.setup.workspace);
        let asked = self.line.suitor.ask(queue, workspace, &held.claim, settings.lease);
        let again = match asked {
            Ok(Taken::Turn(turn)) => {
                self.line.leave(&held.claim);
                self.line.holder = None;
                held.turn = Some(turn);
                return true;
            }
            Ok(Taken::After(Before::Somebody)) => settings.poll,
            Ok(Taken::After(before)) if self.line.note(&before) => Duration::ZERO,
            Ok(Taken::After(before)) => {
                if self.line.is_news(&held.claim, &before) {
                    reports.waits(&held.drive.run, &before);
                }
                settings.idle_poll
            }
            Err(error) => {
                tracing::warn!("run {}: cannot ask for its turn: {error}", held.drive.run.id);
                settings.beat
            }
        };
        self.line.next = Some(host::instant() + again);
        false
    }

    /// Releases the checkout token that `run` holds, if any.
    pub(super) fn give_up_turn(&mut self, turn: Option<checkout::Held>, run: &RunId) {
        let Some(turn) = turn else { return };
        let queue = &self.setup.queue;
        if let Err(error) = turn.give_up(queue) {
            // The next requester finds that no process uses the token and takes it.
            tracing::warn!("run {run}: cannot give up its turn: {error}");
        }
        // Leave other coordinators a chance, even if this one always has runs in line.
        let me = queue.me();
        let alone = queue
            .claims(COORDINATOR)
            .is_ok_and(|claims| claims.iter().all(|claim| claim.worker == me));
        let rest = (!alone).then(|| host::instant() + self.setup.config.queue.poll);
        self.line.next = rest;
    }
}
