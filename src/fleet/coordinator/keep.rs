//! The threads beside the loop: one keeps the beat and looks around, one never touches the volume.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::{Coordinator, Heard};
use crate::exec::Stop;
use crate::fleet::hint::Change;
use crate::fleet::member::{Member, uptime_ms};
use crate::fleet::post::COORDINATOR;
use crate::queue::{ClaimName, FsQueue, Queue};

impl Coordinator {
    /// The thread that beats and looks around.
    pub(super) fn spawn_keeper(
        &self,
        mut member: Member,
        over: Arc<AtomicBool>,
        drain: Option<Stop>,
    ) -> std::thread::JoinHandle<()> {
        let (queue, tell) = (self.setup.queue.clone(), self.tell.clone());
        let round = self.setup.config.queue.round();
        std::thread::spawn(move || {
            let mut failing = false;
            while !over.load(Ordering::SeqCst) {
                match look_around(&queue, &mut member, drain.as_ref()) {
                    Ok(looked) => {
                        failing = false;
                        let _ = tell.send(looked);
                    }
                    Err(error) if !std::mem::replace(&mut failing, true) => {
                        tracing::warn!("cannot keep the beat: {error}; will be tried again");
                    }
                    Err(_) => {}
                }
                std::thread::park_timeout(round);
            }
            member.leave();
        })
    }

    /// The thread that never touches the volume: it hears signals and gives signs of life.
    pub(super) fn spawn_guard(
        &self,
        stop: Stop,
        alive: Box<dyn Fn() + Send + Sync>,
        beat: Duration,
        over: Arc<AtomicBool>,
    ) {
        let tell = self.tell.clone();
        std::thread::spawn(move || {
            let mut level = 0;
            while !over.load(Ordering::SeqCst) {
                alive();
                let now = stop.wait_above(level, beat);
                if now > level && tell.send(Heard::Signal).is_err() {
                    return;
                }
                level = now;
            }
        });
    }
}

pub(super) fn look_around(
    queue: &FsQueue,
    member: &mut Member,
    drain: Option<&Stop>,
) -> io::Result<Heard> {
    let since_ms = uptime_ms();
    member.beat()?;
    if let Some(stop) = drain {
        if stop.level() == 0 && member.is_asked_to_drain()? {
            stop.request(1);
        }
        if stop.level() > 0 {
            member.say_draining()?;
        }
    }
    let buried = member.look_around()?;
    // What could not be given back, or was claimed by a rename that seemed to have failed.
    for found in queue.adopt_surprises(&HashSet::new())? {
        tracing::info!("a claim that nobody knew of was dealt with: {found:?}");
    }
    let cancel = queue.cancel_requests()?;
    let mine = queue.claims(COORDINATOR)?;
    let held = mine.iter().filter(|claim| claim.worker == queue.me()).map(ClaimName::stem);
    Ok(Heard::Looked { since_ms, held: held.collect(), cancel, buried })
}

/// What changes of directories mean to the loop.
pub(super) fn hear_changes(tell: Sender<Heard>) -> impl Fn(&Path, Change) + Send + 'static {
    move |_, change| {
        let heard = match change {
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
