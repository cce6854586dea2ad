//! A member of the fleet: a process that other members see, and that checks which of them are
//! alive.
//!
//! Every worker and coordinator registers, writes heartbeats, and watches the holders of claims.
//! There is no leader: any member that finds a holder dead puts its tasks back, and a rename
//! decides which member did.
//!
//! **Invariant:** a holder is dead if its process is gone from this same kernel, or if its
//! heartbeat did not change for a whole lease on this process's own clock. Timestamps of files and
//! of other machines are never compared.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::base::host;
use crate::base::time::{Clock, SystemClock};
use crate::exec::{self, Stop};
use crate::lease::death_watch::{DeathWatch, Evidence};
use crate::queue::census::Marker;
use crate::queue::name::ENDING;
use crate::queue::{ClaimName, Queue, Reaped};
use crate::settings::QueueSettings;

pub(crate) use crate::base::process::{Process, uptime_ms};
pub(crate) use crate::base::random::chance;

/// Number of leases without a heartbeat after which a member is forgotten.
const FORGOTTEN: u64 = 100;

/// A member's description of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Registration {
    pub schema: String,
    pub worker: String,
    pub agent: String,
    #[serde(flatten, deserialize_with = "crate::base::json::flattened")]
    pub process: Process,
    pub version: String,
    pub started_at: String,
    pub concurrency: u32,
    /// Milliseconds between two of its heartbeats. Not stated by earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beat_ms: Option<u64>,
    /// Milliseconds without a heartbeat after which other members take its tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// The only run that it drives, if it is restricted to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// True if it takes no new tasks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// Returns all members that have registered and not left, including dead ones.
pub(crate) fn registrations(queue: &Queue) -> io::Result<Vec<Registration>> {
    let dir = queue.layout.workers();
    let mut found = Vec::new();
    for name in queue.census().markers(Marker::Registration)? {
        let Ok(bytes) = queue.disk().read(&dir.join(name)) else { continue };
        found.extend(serde_json::from_slice::<Registration>(&bytes).ok());
    }
    found.sort_by(|a, b| (&a.agent, &a.started_at).cmp(&(&b.agent, &b.started_at)));
    Ok(found)
}

/// Time of this process's last heartbeat, on a clock that also counts suspended time.
#[derive(Clone, Default)]
pub(crate) struct Pulse {
    last_ms: Arc<AtomicU64>,
}

impl Pulse {
    fn felt(&self) {
        self.last_ms.store(uptime_ms(), Ordering::SeqCst);
    }

    /// Returns true if other members may consider this process dead: half a lease has passed
    /// without a heartbeat. Does not access the volume.
    pub(crate) fn is_doubtful(&self, lease: Duration) -> bool {
        let last = self.last_ms.load(Ordering::SeqCst);
        uptime_ms().saturating_sub(last) > lease.as_millis() as u64 / 2
    }
}

/// A holder that was found dead, and the actions on its claims.
#[derive(Debug)]
pub(crate) struct Buried {
    pub worker: String,
    pub agent: Option<String>,
    /// Proof of death; `None` if its process is gone from this kernel.
    pub evidence: Option<Evidence>,
    pub reaped: Vec<Reaped>,
    /// Number of processes that it had left running on this machine.
    pub orphans: usize,
}

/// Schedules long listings: they take at most a thousandth of the time, however many claims there
/// are, but still run several times per lease.
pub(crate) struct Rounds {
    next: Instant,
    most: Duration,
}

impl Rounds {
    pub(crate) fn new(lease: Duration) -> Rounds {
        Rounds { next: host::instant(), most: lease / 6 }
    }

    pub(crate) fn are_due(&self) -> bool {
        host::instant() >= self.next
    }

    /// Reports the end of a listing that started at `since`.
    pub(crate) fn looked(&mut self, since: Instant) {
        self.next = host::instant() + (host::since(since) * 1000).min(self.most);
    }
}

/// Finds dead holders of tasks and puts their tasks back. A member does this once per heartbeat; a
/// process that waits for a task may do it too.
pub(crate) struct Undertaker {
    queue: Arc<Queue>,
    process: Process,
    watch: DeathWatch,
    lease_ms: u64,
    known: BTreeMap<String, Registration>,
    /// Holders of claims at the last listing. The registered members are known without it, and
    /// nearly always include all holders.
    holders: BTreeSet<String>,
    rounds: Rounds,
    /// Holders that were found dead before.
    mourned: BTreeSet<String>,
}

impl Undertaker {
    pub(crate) fn new(queue: Arc<Queue>, lease: Duration) -> Undertaker {
        let lease_ms = lease.as_millis() as u64;
        Undertaker {
            queue,
            process: Process::this(),
            watch: DeathWatch::new(lease_ms),
            lease_ms,
            known: BTreeMap::new(),
            holders: BTreeSet::new(),
            rounds: Rounds::new(lease),
            mourned: BTreeSet::new(),
        }
    }

    /// Puts back the tasks of dead holders. Call it once per heartbeat: a process on another
    /// machine is judged by its heartbeats over many calls.
    pub(crate) fn look_around(&mut self) -> io::Result<Vec<Buried>> {
        self.known =
            registrations(&self.queue)?.into_iter().map(|r| (r.worker.clone(), r)).collect();
        if self.rounds.are_due() {
            let since = host::instant();
            self.holders = self.list_holders()?;
            self.rounds.looked(since);
        }
        let mut holders: BTreeSet<String> = self.known.keys().cloned().collect();
        holders.extend(self.holders.iter().cloned());
        holders.remove(self.queue.me());
        self.watch.keep(|worker| holders.contains(worker));
        self.mourned.retain(|worker| holders.contains(worker));
        let mut buried = Vec::new();
        for worker in holders {
            if let Some(evidence) = self.is_dead(&worker)? {
                let news = self.mourned.insert(worker.clone());
                let dead = self.bury(&worker, evidence)?;
                if news || !dead.reaped.is_empty() {
                    buried.push(dead);
                }
            } else {
                self.mourned.remove(&worker);
            }
        }
        Ok(buried)
    }

    fn list_holders(&self) -> io::Result<BTreeSet<String>> {
        let claims = self.queue.census().all_claims()?;
        Ok(claims.into_iter().map(|(_, claim)| claim.worker).collect())
    }

    /// Returns `Some` if a holder is dead; the inner value is `None` if its process is gone from
    /// this kernel, else the evidence from its heartbeat.
    fn is_dead(&mut self, worker: &str) -> io::Result<Option<Option<Evidence>>> {
        let beside = self.known.get(worker).filter(|r| self.is_beside(r));
        if beside.is_some_and(|registration| !registration.process.lives_here()) {
            return Ok(Some(None));
        }
        let beat = self.queue.read_beat(worker)?;
        Ok(self.watch.read(worker, beat, uptime_ms()).map(Some))
    }

    fn is_beside(&self, other: &Registration) -> bool {
        self.process.is_beside(&other.process)
    }

    fn bury(&mut self, worker: &str, evidence: Option<Evidence>) -> io::Result<Buried> {
        let registration = self.known.get(worker);
        let beside = registration.is_some_and(|r| self.is_beside(r));
        let agent = registration.map(|r| r.agent.clone());
        let orphans = if beside && evidence.is_none() { end_orphans(worker) } else { 0 };
        let reaped = self.queue.reap(worker)?;
        // A stopped heartbeat may continue. Forget a process only when it is gone or has been
        // silent for very long.
        let long_ago = |evidence: Evidence| evidence.span_ms > FORGOTTEN * self.lease_ms;
        if evidence.is_none_or(long_ago) {
            forget(&self.queue, worker);
            self.queue.sweep_tmp(&|incarnation| incarnation == worker)?;
        }
        Ok(Buried { worker: worker.to_owned(), agent, evidence, reaped, orphans })
    }
}

/// Ends the processes that the tasks of a dead worker still run on this machine: tasks that it
/// holds, and tasks that were taken from it before it died. Spares the processes of other workers,
/// which may execute the same tasks again.
fn end_orphans(worker: &str) -> usize {
    exec::sweep_if(&|mark| claim_of(mark).is_some_and(|claim| claim.worker == worker))
}

/// Parses the claim that a process belongs to from its environment marker.
pub(crate) fn claim_of(mark: &str) -> Option<ClaimName> {
    let (_, stem) = mark.strip_prefix("task-")?.split_once('/')?;
    ClaimName::parse(&format!("{stem}{ENDING}"))
}

/// Returns the environment marker that identifies the processes of a claimed task.
pub(crate) fn mark(claim: &ClaimName) -> String {
    format!("task-{}/{}", claim.task.id, claim.stem())
}

/// Ends the processes that earlier attempts at a claimed task have left on this machine. Spares
/// those of later attempts: the caller may have lost its claim.
pub(crate) fn end_earlier(claim: &ClaimName) -> usize {
    let is_earlier = |other: ClaimName| {
        other.task.id == claim.task.id && other.task.attempt < claim.task.attempt
    };
    exec::sweep_if(&|mark| claim_of(mark).is_some_and(is_earlier))
}

/// Removes a member's registration, heartbeat and drain request.
fn forget(queue: &Queue, worker: &str) {
    let layout = &queue.layout;
    let _ = queue.disk().remove(&layout.workers().join(format!("{worker}.json")));
    let _ = queue.disk().remove(&layout.beats().join(worker));
    let _ = queue.disk().remove(&layout.drain().join(worker));
}

/// Asks a member to finish its tasks and exit. The member notices within one round.
pub(crate) fn ask_to_drain(queue: &Queue, worker: &str) -> io::Result<()> {
    let dir = queue.layout.drain();
    queue.disk().make_dirs(&dir)?;
    // Only the name of the file counts, and a name appears atomically.
    queue.disk().write(&dir.join(worker), b"")
}

/// This process, as a member.
pub(crate) struct Member {
    queue: Arc<Queue>,
    registration: Registration,
    undertaker: Undertaker,
    pub pulse: Pulse,
}

impl Member {
    /// Joins the fleet: registers and writes the first heartbeat.
    pub(crate) fn join(
        queue: Arc<Queue>,
        agent: &str,
        concurrency: u32,
        run: Option<String>,
        settings: &QueueSettings,
    ) -> io::Result<Member> {
        let registration = Registration {
            schema: "worker/v1".into(),
            worker: queue.me().to_owned(),
            agent: agent.to_owned(),
            process: Process::this(),
            version: env!("CARGO_PKG_VERSION").into(),
            started_at: SystemClock.now().to_milli(),
            concurrency,
            beat_ms: u64::try_from(settings.round().as_millis()).ok(),
            lease_ms: u64::try_from(settings.lease.as_millis()).ok(),
            run,
            draining: false,
        };
        let undertaker = Undertaker::new(queue.clone(), settings.lease);
        let member = Member { queue, registration, undertaker, pulse: Pulse::default() };
        member.beat()?;
        member.register()?;
        Ok(member)
    }

    fn path(&self) -> PathBuf {
        self.queue.layout.workers().join(format!("{}.json", self.registration.worker))
    }

    fn register(&self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.registration).expect("it is always JSON");
        // Users and `serde_json` read this file; `serde_json` rejects a partial one.
        self.queue.disk().write(&self.path(), &text)
    }

    /// Announces that this member takes no new tasks.
    pub(crate) fn say_draining(&mut self) -> io::Result<()> {
        if self.registration.draining {
            return Ok(());
        }
        self.registration.draining = true;
        self.register()
    }

    /// Returns true if an operator has asked this member to finish its tasks and exit.
    pub(crate) fn is_asked_to_drain(&self) -> io::Result<bool> {
        Ok(self.queue.census().markers(Marker::Drain)?.contains(&self.registration.worker))
    }

    /// Leaves the fleet, so that no other member has to detect it.
    pub(crate) fn leave(&self) {
        let _ = self.queue.sweep_own_tmp();
        forget(&self.queue, &self.registration.worker);
    }

    pub(crate) fn beat(&self) -> io::Result<()> {
        self.queue.beat()?;
        self.pulse.felt();
        // Other members may have removed the registration after a long silence.
        match self.queue.disk().mode(&self.path()) {
            Ok(_) => Ok(()),
            Err(_) => self.register(),
        }
    }

    /// Puts back the tasks of dead holders. Call it once per heartbeat.
    pub(crate) fn look_around(&mut self) -> io::Result<Vec<Buried>> {
        self.undertaker.look_around()
    }
}

/// Waits until the stop level exceeds `level`, or until the timeout. Returns the current level.
pub(crate) fn wait_above(stop: &Stop, level: u8, time: Duration) -> u8 {
    host::wait(time, &mut || stop.level() > level, || _ = stop.wait_above(level, time));
    stop.level()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::TaskAttempt;

    #[test]
    fn a_long_look_is_repeated_seldom_and_several_times_in_a_lease() {
        let mut rounds = Rounds::new(Duration::from_secs(60));
        assert!(rounds.are_due());
        // It took nothing, and may be repeated at once, or nearly.
        rounds.looked(Instant::now());
        assert!(rounds.next <= Instant::now() + Duration::from_secs(1));
        let Some(since) = Instant::now().checked_sub(Duration::from_secs(3)) else { return };
        rounds.looked(since);
        assert!(!rounds.are_due());
        assert!(rounds.next <= Instant::now() + Duration::from_secs(10), "a sixth of the lease");
    }
    use crate::queue::TaskName;

    #[test]
    fn a_pulse_is_doubtful_after_half_a_lease() {
        let pulse = Pulse::default();
        pulse.felt();
        assert!(!pulse.is_doubtful(Duration::from_secs(60)));
        pulse.last_ms.store(uptime_ms() - 31_000, Ordering::SeqCst);
        assert!(pulse.is_doubtful(Duration::from_secs(60)));
    }

    /// A claim of an attempt at one task.
    fn attempt(number: u32) -> ClaimName {
        let id = crate::queue::TaskId::new(7, u128::from(std::process::id()));
        let task = TaskName {
            priority: 5,
            id,
            label: "t".into(),
            attempt: TaskAttempt::new(number),
            crashes: 0,
        };
        ClaimName { task, worker: "w".into(), claim: "c".into() }
    }

    #[test]
    fn processes_of_earlier_attempts_are_ended_and_those_of_later_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let (begun, second) = (dir.path().join("begun"), mark(&attempt(2)));
        let stop = exec::Stop::new().unwrap();
        std::thread::scope(|scope| {
            let child = scope.spawn(|| {
                let script = format!("touch {}; exec sleep 600", begun.display());
                let order = exec::Order {
                    argv: &["sh".into(), "-c".into(), script],
                    cwd: dir.path(),
                    env: &[],
                    env_remove: &[],
                    stdin: None,
                    timeout: None,
                    idle: None,
                    grace: Duration::from_secs(1),
                    mark: &second,
                    sweep: exec::Sweep::Always,
                    confine: &[],
                };
                let mask = || exec::Mask::new(Vec::new());
                let capture = || exec::Capture::new(exec::Mode::Tail, mask());
                exec::run(&order, &mut capture(), &mut capture(), &stop).unwrap().how
            });
            while !begun.exists() {
                std::thread::yield_now();
            }
            assert_eq!(end_earlier(&attempt(1)), 0, "it is of a later attempt");
            assert_eq!(end_earlier(&attempt(2)), 0, "it is our own");
            assert_eq!(end_earlier(&attempt(3)), 1);
            assert!(matches!(child.join().unwrap(), exec::How::Killed(_)));
        });
    }

    #[test]
    fn no_two_incarnations_are_the_same() {
        assert_ne!(
            crate::base::process::new_incarnation(),
            crate::base::process::new_incarnation()
        );
    }
}
