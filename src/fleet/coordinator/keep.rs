//! The coordinator's background threads: a keeper, which sends heartbeats and scans the queue, and
//! a guard, which never touches the volume.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::{Alive, Coordinator, Heard};
use crate::attempt::documents::COORDINATOR;
use crate::base::host;
use crate::disk::hint::Change;
use crate::exec::Stop;
use crate::fleet::member::{Member, Rounds, uptime_ms, wait_above};
use crate::queue::{ClaimName, Queue};

impl Coordinator {
    /// Spawns the thread that sends heartbeats and scans the queue.
    pub(super) fn spawn_keeper(
        &self,
        mut member: Member,
        over: Arc<AtomicBool>,
        drain: Option<Stop>,
    ) -> host::Thread {
        let (queue, tell) = (self.setup.queue.clone(), self.tell.clone());
        let (round, often) = {
            let settings = &self.setup.config.queue;
            (settings.round(), settings.control_round())
        };
        let mut rounds = Rounds::new(self.setup.config.queue.lease);
        host::spawn(move || {
            let mut failing = false;
            let mut next_beat = host::instant();
            while !over.load(Ordering::SeqCst) {
                let now = host::instant();
                let looked = match now >= next_beat {
                    true => look_around(&queue, &mut member, drain.as_ref(), &mut rounds),
                    false => heed(&queue, &mut member, drain.as_ref()).map(Heard::Asked),
                };
                if now >= next_beat {
                    next_beat = now + round;
                }
                match looked {
                    Ok(looked) => {
                        failing = false;
                        let _ = tell.send(looked);
                        host::poke();
                    }
                    Err(error) if !std::mem::replace(&mut failing, true) => {
                        tracing::warn!("cannot keep the beat: {error}; will be tried again");
                    }
                    Err(_) => {}
                }
                host::park(often, &|| over.load(Ordering::SeqCst));
            }
            member.leave();
        })
    }

    /// Spawns the thread that never touches the volume: it forwards signals and calls `alive`.
    pub(super) fn spawn_guard(&self, stop: Stop, alive: Alive, over: Arc<AtomicBool>) {
        let tell = self.tell.clone();
        host::spawn(move || {
            let mut level = 0;
            while !over.load(Ordering::SeqCst) {
                let again = alive().unwrap_or(Duration::from_secs(3600));
                let now = wait_above(&stop, level, again);
                if now > level && tell.send(Heard::Signal).is_err() {
                    return;
                }
                host::poke();
                level = now;
            }
        });
    }
}

pub(super) fn look_around(
    queue: &Queue,
    member: &mut Member,
    drain: Option<&Stop>,
    rounds: &mut Rounds,
) -> io::Result<Heard> {
    let since_ms = uptime_ms();
    member.beat()?;
    let cancel = heed(queue, member, drain)?;
    let buried = member.look_around()?;
    let held = match rounds.are_due() {
        true => Some(look_at_claims(queue, rounds)?),
        false => None,
    };
    Ok(Heard::Looked { since_ms, held, cancel, buried })
}

/// Reads the requests of users: drains this member if asked to, and returns what to cancel.
fn heed(queue: &Queue, member: &mut Member, drain: Option<&Stop>) -> io::Result<HashSet<String>> {
    if let Some(stop) = drain {
        if stop.level() == 0 && member.is_asked_to_drain()? {
            stop.request(1);
        }
        if stop.level() > 0 {
            member.say_draining()?;
        }
    }
    queue.cancel_requests()
}

/// Lists the claims that this process holds, by their stems.
fn look_at_claims(queue: &Queue, rounds: &mut Rounds) -> io::Result<HashSet<String>> {
    let since = host::instant();
    // Claims that could not be released, or whose rename seemed to fail but took effect.
    for found in queue.adopt_surprises(&HashSet::new())? {
        tracing::info!("a claim that nobody knew of was dealt with: {found:?}");
    }
    let mine = queue.claims(COORDINATOR)?;
    let held = mine.iter().filter(|claim| claim.worker == queue.me()).map(ClaimName::stem);
    let held = held.collect();
    rounds.looked(since);
    Ok(held)
}

/// Returns the callback that turns directory changes into messages for the loop.
pub(super) fn hear_changes(
    tell: Sender<Heard>,
    checkout: PathBuf,
) -> impl Fn(&Path, Change) + Send + 'static {
    move |dir, change| {
        let heard = match change {
            _ if dir == checkout => Heard::Turned,
            Change::Went(name) => match ClaimName::parse(&name) {
                Some(name) => Heard::Went(name),
                None => return,
            },
            Change::Came(name) if ClaimName::parse(&name).is_some() => return,
            Change::Came(_) | Change::Other => Heard::Came,
        };
        let _ = tell.send(heard);
    }
}
