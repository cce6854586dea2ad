//! Runs that change the checkout: each waits here for its turn, and gives it up when it is over or
//! waits for people alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Coordinator, Held, Reports, is_paused};
use crate::disk;
use crate::fleet::checkout::{Before, Suitor, Taken};
use crate::fleet::post::COORDINATOR;
use crate::host;
use crate::ids::RunId;
use crate::queue::{Claim, Queue, TaskId};
use crate::store::StoreError;

/// The runs that wait for their turn: the most urgent first, and of those the oldest.
#[derive(Default)]
pub(super) struct Line {
    waiting: BTreeMap<(u8, TaskId), Waiting>,
    suitor: Suitor,
    /// The run that has the turn, as far as was seen.
    holder: Option<String>,
    /// When to ask for the turn again.
    next: Option<Instant>,
    /// Changes of the turn are told, where the system tells any.
    watched: bool,
}

struct Waiting {
    run: RunId,
    /// Whom it was said to wait for.
    told: Option<Before>,
}

fn place(claim: &Claim) -> (u8, TaskId) {
    (claim.name.task.priority, claim.name.task.id.clone())
}

impl Line {
    /// Lines a run up. Says whether it is the first and the turn is to be asked for.
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

    /// The turn may have been given up.
    pub(super) fn look_now(&mut self) {
        self.next = None;
    }

    pub(super) fn next_look(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| self.next.unwrap_or_else(host::instant))
    }

    /// Who is asked for: the run that has the turn already, from whoever drove it before, else the
    /// first in the line. Without it the first would wait for one that is never asked for.
    fn first(&self) -> Option<(&(u8, TaskId), &Waiting)> {
        self.holder_here().or_else(|| self.waiting.first_key_value())
    }

    /// The run that has the turn, if it waits here to be asked for.
    fn holder_here(&self) -> Option<(&(u8, TaskId), &Waiting)> {
        let holder = self.holder.as_deref()?;
        self.waiting.iter().find(|(_, waiting)| waiting.run.as_str() == holder)
    }

    /// Notes who has the turn. Says whether that is a run that waits here, and so can have it.
    fn note(&mut self, before: &Before) -> bool {
        self.holder = match before {
            Before::Run(run) => Some(run.clone()),
            _ => None,
        };
        self.holder_here().is_some()
    }

    /// The run to ask for, if it is time to.
    pub(super) fn due(&self, now: Instant) -> Option<RunId> {
        let (_, first) = self.first()?;
        self.next.is_none_or(|at| at <= now).then(|| first.run.clone())
    }

    /// Whether it is news to a run that it waits for somebody.
    fn is_news(&mut self, claim: &Claim, before: &Before) -> bool {
        let Some(waiting) = self.waiting.get_mut(&place(claim)) else { return false };
        let news = waiting.told.as_ref() != Some(before);
        waiting.told = Some(before.clone());
        news
    }
}

impl Coordinator {
    /// Lets a run go on as far as it may.
    pub(super) fn drive_on(
        &mut self,
        held: &mut Held,
        reports: &mut dyn Reports,
    ) -> Result<(), StoreError> {
        if !self.may_go_on(held, reports)? {
            return Ok(());
        }
        self.with(held, |drive, reins| drive.advance(reins))?;
        // Nobody knows how long people take, and nothing is done meanwhile.
        if is_paused(held) {
            self.give_up_turn(held);
        }
        Ok(())
    }

    /// Whether a run may go on: it changes nothing, or it has its turn. One that waits for people
    /// needs none to hear their answers.
    fn may_go_on(
        &mut self,
        held: &mut Held,
        reports: &mut dyn Reports,
    ) -> Result<bool, StoreError> {
        if !held.drive.plan.exclusive || held.turn.is_some() || held.drive.is_over() {
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

    /// Asks for the turn. Says whether the run has it.
    fn ask_for_turn(&mut self, held: &mut Held, reports: &mut dyn Reports) -> bool {
        let dir = self.setup.queue.layout.checkout();
        // That it is given up is heard of on this machine; on others it is found by asking.
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

    /// Lets others have their turn.
    pub(super) fn give_up_turn(&mut self, held: &mut Held) {
        let Some(turn) = held.turn.take() else { return };
        let queue = &self.setup.queue;
        if let Err(error) = turn.give_up(queue) {
            // Whoever wants it finds that nobody goes on with it.
            tracing::warn!("run {}: cannot give up its turn: {error}", held.drive.run.id);
        }
        // Others have a chance too, also if runs are waiting here without end.
        let me = queue.me();
        let alone = queue
            .claims(COORDINATOR)
            .is_ok_and(|claims| claims.iter().all(|claim| claim.worker == me));
        let rest = (!alone).then(|| host::instant() + self.setup.config.queue.poll);
        self.line.next = rest;
    }
}
