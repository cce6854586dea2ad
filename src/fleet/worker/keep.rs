//! Work outside the slots: heartbeats, claim audits, the guard thread, and dropped files.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Doing, Running, Shop, Why};
use crate::base::host;
use crate::disk::hint::{Change, Hints, Patience};
use crate::exec::Stop;
use crate::fleet::member::{self, Buried, Member, Process, Pulse};
use crate::free_task::intake::{self, Intake};
use crate::queue::Queue;
use crate::queue::name::ENDING;

impl Shop {
    /// Returns true if a dropped file is about to become a task.
    pub(super) fn takes_in(&self) -> bool {
        self.taking_in.load(Ordering::SeqCst)
    }

    /// Adopts dropped files. Returns the time of the next scan, or `None` if only a change requires
    /// one.
    pub(super) fn take_in(&self, intake: &mut Intake) -> Option<Instant> {
        if self.is_closing() && intake.is_idle() {
            return None;
        }
        let dead = std::mem::take(&mut *self.dead());
        let lease = self.setup.config.queue.lease;
        if let Err(error) = recover(intake, &self.setup.queue, &dead, lease) {
            tracing::warn!("cannot go on with what others took in: {error}");
            self.dead().extend(dead);
        }
        match intake.scan(&self.setup.queue, &self.setup.agent) {
            Ok(scanned) => {
                for (name, reason) in &scanned.refused {
                    self.audience.note(&format!("`{name}` is no task: {reason}"));
                }
                self.taking_in.store(scanned.next_look.is_some(), Ordering::SeqCst);
                if !scanned.adopted.is_empty() || scanned.next_look.is_none() {
                    self.bell.ring();
                }
                scanned.next_look
            }
            Err(error) => {
                tracing::warn!("cannot take in what was dropped: {error}; will be tried again");
                Some(host::instant() + self.setup.config.queue.beat)
            }
        }
    }

    /// Waits until all slots have ended. Meanwhile adopts dropped files, handles hints, and reports
    /// the running tasks.
    pub(super) fn attend(&self, mut intake: Intake) {
        let mut look = host::instant();
        let mut patience = {
            let settings = &self.setup.config.queue;
            Patience::new(settings.poll, settings.idle_poll, 0)
        };
        let inbox = self.setup.queue.layout.inbox(&self.setup.agent);
        let bell = self.bell.clone();
        let dropped = Arc::new(AtomicBool::new(true));
        let seen = dropped.clone();
        let mut hints = Hints::new(move |_, change| {
            let by_hand = match &change {
                Change::Came(name) => intake::is_dropped(OsStr::new(name)),
                Change::Went(_) => return,
                Change::Other => true,
            };
            seen.fetch_or(by_hand, Ordering::SeqCst);
            bell.ring();
        });
        hints.add(&inbox);
        loop {
            let heard = self.bell.rings();
            if self.slots_left.load(Ordering::SeqCst) == 0 {
                return;
            }
            let now = host::instant();
            if dropped.swap(false, Ordering::SeqCst) || look <= now {
                // A file dropped on another machine causes no wakeup here, so the inbox is also
                // polled.
                let soon = self.take_in(&mut intake);
                look = soon.unwrap_or_else(|| now + patience.wait_after(host::since(now)));
            }
            let doing: Vec<Doing> = self.running().values().map(|r| r.doing.clone()).collect();
            let nap = self.audience.tick(&doing).unwrap_or(Duration::from_secs(3600));
            self.bell.wait(heard, nap.min(look.saturating_duration_since(host::instant())));
        }
    }

    /// Stops the tasks that users ask to cancel.
    pub(super) fn heed_cancels(&self) -> io::Result<()> {
        let requests = self.setup.queue.cancel_requests()?;
        let asked = |running: &Running| {
            let run = running.doing.run.as_ref();
            requests.contains(&running.doing.id) || run.is_some_and(|run| requests.contains(run))
        };
        self.stop(Why::Cancelled, 1, |_, running| asked(running));
        Ok(())
    }

    /// Audits the claims once: stops tasks whose claim was lost, and handles claims that this
    /// process holds without knowing.
    pub(super) fn audit(&self) -> io::Result<()> {
        let known: HashSet<String> = self.running().keys().cloned().collect();
        let me = self.setup.queue.me();
        let claims = self.setup.queue.claims(&self.setup.agent)?;
        let held: HashSet<String> =
            claims.iter().filter(|claim| claim.worker == me).map(|claim| claim.stem()).collect();
        // A task that was claimed or ended during the listing is neither lost nor a surprise.
        self.stop(Why::Lost, 1, |stem, _| known.contains(stem) && !held.contains(stem));
        let files = self.running().keys().map(|stem| format!("{stem}{ENDING}")).collect();
        for found in self.setup.queue.adopt_surprises(&files)? {
            self.audience.note(&format!("a claim that came late was dealt with: {found:?}"));
        }
        Ok(())
    }
}

/// Continues the adoption of files that dead processes had moved aside: members found dead, and
/// from time to time processes that are not registered.
pub(crate) fn recover(
    intake: &mut Intake,
    queue: &Queue,
    dead: &BTreeSet<String>,
    lease: Duration,
) -> io::Result<usize> {
    intake.recover_if_due(!dead.is_empty(), lease, &|worker| {
        if dead.contains(worker) {
            return Ok(false);
        }
        let here = Process::this();
        let known = member::registrations(queue)?.into_iter().find(|r| r.worker == worker);
        Ok(known.is_some_and(|r| !here.is_beside(&r.process) || r.process.lives_here()))
    })
}

/// Sends heartbeats, audits the claims, and watches the other members until `over`. Runs as a
/// thread.
pub(super) fn keep_beat(shop: &Shop, mut member: Member, over: &AtomicBool, stop: &Stop) {
    let settings = &shop.setup.config.queue;
    let mut next_beat = host::instant();
    let mut failing = false;
    while !over.load(Ordering::SeqCst) {
        let now = host::instant();
        let is_due = now >= next_beat;
        if is_due {
            next_beat = now + settings.round();
        }
        match look_around(shop, &mut member, stop, is_due) {
            Ok(buried) => {
                failing = false;
                if !buried.is_empty() {
                    shop.dead().extend(buried.iter().map(|dead| dead.worker.clone()));
                    shop.bell.ring();
                }
                buried.iter().for_each(|dead| shop.audience.note(&obituary(dead)));
            }
            Err(error) if !std::mem::replace(&mut failing, true) => {
                tracing::warn!("cannot keep the beat: {error}; will be tried again");
            }
            Err(_) => {}
        }
        host::park(settings.control_round(), &|| over.load(Ordering::SeqCst));
    }
    member.leave();
}

/// Reads the requests of users. With a heartbeat, also audits the claims and checks other members.
fn look_around(
    shop: &Shop,
    member: &mut Member,
    stop: &Stop,
    beats: bool,
) -> io::Result<Vec<Buried>> {
    if beats {
        member.beat()?;
    }
    shop.heed_cancels()?;
    heed_drain(shop, member, stop)?;
    if !beats {
        return Ok(Vec::new());
    }
    shop.audit()?;
    member.look_around()
}

/// Treats a drain request as a first stop signal: the worker finishes its running tasks and ends.
pub(super) fn heed_drain(shop: &Shop, member: &mut Member, stop: &Stop) -> io::Result<()> {
    if stop.level() == 0 && member.is_asked_to_drain()? {
        shop.audience.note("asked to end: finishing what is at hand");
        stop.request(1);
        host::poke();
    }
    if stop.level() > 0 || shop.is_closing() { member.say_draining() } else { Ok(()) }
}

/// Describes how a dead holder was detected and what was taken over.
pub(crate) fn obituary(dead: &Buried) -> String {
    let how = match dead.evidence {
        None => "its process is gone".to_owned(),
        Some(evidence) => format!(
            "its beat stood still for {} s, read {} times",
            evidence.span_ms / 1000,
            evidence.readings
        ),
    };
    let agent = dead.agent.as_deref().unwrap_or("a worker");
    let orphans = match dead.orphans {
        0 => String::new(),
        count => format!("; ended {count} processes it had left"),
    };
    let count = dead.reaped.len();
    format!("{agent} {} is dead ({how}): took over {count} of its tasks{orphans}", dead.worker)
}

/// Handles signals, and stops all tasks if other members may believe that this process is dead.
/// Runs as a thread that never touches the volume, until all slots have ended.
pub(super) fn stand_guard(shop: &Shop, pulse: &Pulse, stop: &Stop) {
    let settings = &shop.setup.config.queue;
    let mut closed: Option<Instant> = None;
    let mut level = 0;
    while shop.slots_left.load(Ordering::SeqCst) > 0 {
        shop.audience.alive(shop.running().len());
        let now = member::wait_above(stop, level, settings.beat);
        if now > 0 && closed.is_none() {
            closed = Some(host::instant());
            shop.audience.closing();
            shop.close();
        }
        let late = closed.is_some_and(|since| host::since(since) > settings.drain);
        if now > 1 || late {
            shop.leaving.store(true, Ordering::SeqCst);
            shop.stop(Why::Leaving, now.max(1), |_, _| true);
        }
        if pulse.is_doubtful(settings.lease) {
            shop.stop(Why::Lost, 1, |_, _| true);
        }
        level = now;
    }
}
