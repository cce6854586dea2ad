//! Who lives. A process of this machine is there or not; of one on another machine only the beat
//! is seen, and whether it moves.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::memory::Memory;
use crate::fleet::member::{self, Process, Registration};
use crate::queue::{FsQueue, Queue};
use crate::time::Time;

/// Nobody who asks how things are waits longer than this for a beat.
const WATCH_MAX: Duration = Duration::from_secs(2);

/// Whether a member lives, as far as can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Life {
    /// Its process is there, or its beat moved while we looked.
    Alive,
    /// Its process is gone.
    Dead,
    /// Its process is stopped; or it is of another machine, and its beat did not move for longer
    /// than a beat.
    Silent,
    /// It is of another machine, and was not watched long enough.
    Unknown,
}

impl Life {
    pub fn word(self) -> &'static str {
        match self {
            Life::Alive => "alive",
            Life::Dead => "dead",
            Life::Silent => "silent",
            Life::Unknown => "beat unknown",
        }
    }
}

/// What was seen of a beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beat {
    Moved,
    Still,
    /// Watched for less than a beat.
    Cut,
}

/// A member, as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerView {
    pub worker: String,
    pub agent: String,
    pub life: Life,
    pub draining: bool,
    pub host: String,
    pub pid: u32,
    pub started_at: String,
    pub concurrency: u32,
    /// The one run that it drives, where it takes no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Tasks that it holds.
    pub claims: usize,
    pub version: String,
    /// By the clock of the volume, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_beat: Option<String>,
}

/// Everybody who registered, and everybody who holds a task.
#[derive(Default)]
pub struct Members {
    known: BTreeMap<String, (Option<Registration>, Life)>,
    claims: BTreeMap<String, usize>,
    beats: BTreeMap<String, Time>,
}

impl Members {
    pub(super) fn look(
        queue: &FsQueue,
        holders: BTreeSet<String>,
        beat: Duration,
    ) -> io::Result<Members> {
        Members::look_by(queue, holders, |far| watch(queue, far, beat))
    }

    /// The same without a wait: beats are compared with what was seen of them before.
    pub(super) fn recall(
        queue: &FsQueue,
        holders: BTreeSet<String>,
        beat: Duration,
        memory: &Memory,
    ) -> io::Result<Members> {
        Members::look_by(queue, holders, |far| {
            let recalled = far.iter().map(|worker| {
                let moved = memory.beats(worker, queue.read_beat(worker)?, beat);
                let seen = match moved {
                    Some(true) => Beat::Moved,
                    Some(false) => Beat::Still,
                    None => Beat::Cut,
                };
                Ok((worker.clone(), seen))
            });
            recalled.collect()
        })
    }

    fn look_by(
        queue: &FsQueue,
        holders: BTreeSet<String>,
        watch: impl FnOnce(&[String]) -> io::Result<BTreeMap<String, Beat>>,
    ) -> io::Result<Members> {
        let here = Process::this();
        let mut registered: BTreeMap<String, Registration> = BTreeMap::new();
        for registration in member::registrations(queue)? {
            registered.insert(registration.worker.clone(), registration);
        }
        let mut names = holders;
        names.extend(registered.keys().cloned());
        names.remove(queue.me());
        let is_beside =
            |name: &str| registered.get(name).is_some_and(|r| here.is_beside(&r.process));
        let far: Vec<String> = names.iter().filter(|name| !is_beside(name)).cloned().collect();
        let beats = watch(&far)?;
        let mut members = Members::default();
        for name in names {
            let registration = registered.remove(&name);
            let lives = registration.as_ref().filter(|r| here.is_beside(&r.process));
            let stopped = lives.is_some_and(|r| r.process.is_stopped());
            let life = match judge(lives.map(|r| r.process.lives_here()), beats.get(&name).copied())
            {
                Life::Alive if stopped => Life::Silent,
                life => life,
            };
            members.beats.extend(last_beat(queue, &name).map(|at| (name.clone(), at)));
            members.known.insert(name, (registration, life));
        }
        for agent in queue.agents()? {
            for claim in queue.claims(&agent)? {
                *members.claims.entry(claim.worker).or_default() += 1;
            }
        }
        Ok(members)
    }

    /// Whether somebody lives; whoever is not known has left or was never there.
    pub fn life(&self, worker: &str) -> Life {
        self.known.get(worker).map_or(Life::Unknown, |(_, life)| *life)
    }

    pub fn get(&self, worker: &str) -> Option<&Registration> {
        self.known.get(worker).and_then(|(registration, _)| registration.as_ref())
    }

    /// All who registered, by agent.
    pub fn views(&self) -> impl Iterator<Item = WorkerView> {
        let mut views: Vec<WorkerView> = self
            .known
            .iter()
            .filter_map(|(name, (registration, life))| {
                Some(self.view(name, registration.as_ref()?, *life))
            })
            .collect();
        views.sort_by(|a, b| (&a.agent, &a.started_at).cmp(&(&b.agent, &b.started_at)));
        views.into_iter()
    }

    fn view(&self, name: &str, registration: &Registration, life: Life) -> WorkerView {
        WorkerView {
            worker: name.to_owned(),
            agent: registration.agent.clone(),
            life,
            draining: registration.draining,
            host: registration.process.host.clone(),
            pid: registration.process.pid,
            started_at: registration.started_at.clone(),
            concurrency: registration.concurrency,
            run: registration.run.clone(),
            claims: self.claims.get(name).copied().unwrap_or(0),
            version: registration.version.clone(),
            last_beat: self.beats.get(name).map(|at| at.to_second()),
        }
    }

    /// Those who may take a task of this agent: not dead, and not about to end.
    pub fn serving(&self, agent: &str) -> impl Iterator<Item = WorkerView> {
        self.views().filter(move |member| {
            let takes_new = !member.draining && member.run.is_none();
            let lives = !matches!(member.life, Life::Dead | Life::Silent);
            member.agent == agent && takes_new && lives
        })
    }

    /// Who served this agent last and is dead.
    pub fn last_dead(&self, agent: &str) -> Option<WorkerView> {
        self.views()
            .filter(|member| member.agent == agent && member.life == Life::Dead)
            .max_by(|a, b| a.last_beat.cmp(&b.last_beat))
    }
}

/// Judges by the process where it can be seen, by the beat elsewhere.
fn judge(process_lives: Option<bool>, beat: Option<Beat>) -> Life {
    match (process_lives, beat) {
        (Some(true), _) | (None, Some(Beat::Moved)) => Life::Alive,
        (Some(false), _) => Life::Dead,
        (None, Some(Beat::Still)) => Life::Silent,
        (None, Some(Beat::Cut) | None) => Life::Unknown,
    }
}

/// Watches beats until all have moved, or a little more than a beat is over.
fn watch(
    queue: &FsQueue,
    workers: &[String],
    beat: Duration,
) -> io::Result<BTreeMap<String, Beat>> {
    let mut seen = BTreeMap::new();
    let mut open: Vec<(String, Option<Vec<u8>>)> = Vec::new();
    for worker in workers {
        open.push((worker.clone(), queue.read_beat(worker)?));
    }
    let whole = beat.mul_f64(1.2);
    let end = Instant::now() + whole.min(WATCH_MAX);
    while !open.is_empty() && Instant::now() < end {
        std::thread::sleep((beat / 10).clamp(Duration::from_millis(5), WATCH_MAX / 10));
        let mut still = Vec::new();
        for (worker, first) in open {
            if queue.read_beat(&worker)? == first {
                still.push((worker, first));
            } else {
                seen.insert(worker, Beat::Moved);
            }
        }
        open = still;
    }
    let cut = whole > WATCH_MAX || whole.is_zero();
    let rest = if cut { Beat::Cut } else { Beat::Still };
    seen.extend(open.into_iter().map(|(worker, _)| (worker, rest)));
    Ok(seen)
}

/// When a beat was last written, by the clock of the volume. Nothing is decided by it.
fn last_beat(queue: &FsQueue, worker: &str) -> Option<Time> {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(queue.layout.beats().join(worker)).ok()?;
    Some(Time(file.mtime() * 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_more_than_a_beat() {
        assert_eq!(judge(Some(false), Some(Beat::Moved)), Life::Dead);
        assert_eq!(judge(Some(true), None), Life::Alive);
        assert_eq!(judge(None, Some(Beat::Moved)), Life::Alive);
        assert_eq!(judge(None, Some(Beat::Still)), Life::Silent);
        assert_eq!(judge(None, Some(Beat::Cut)), Life::Unknown);
    }
}
