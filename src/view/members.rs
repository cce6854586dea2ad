//! Judges which members are alive. A process of this machine runs or does not; a process of another
//! machine is judged by the age of its last heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::{Serialize, Serializer};

use super::memory::Memory;
use super::progress::whole_seconds;
use crate::base::time::Time;
use crate::fleet::member::{self, Process, Registration};
use crate::queue::Queue;

/// Interval and lease of a member that does not state its own: those of a network volume, because
/// only members of other machines are judged by them.
const BEAT_MS: u64 = 10_000;
const LEASE_MS: u64 = 60_000;
/// Tolerated delay of a heartbeat.
const LATE_MS: u64 = 1_000;
/// Tolerated offset of a heartbeat into the future of the volume's clock. Beyond it, the age counts
/// as unknown: the volume has no clock of its own.
const AHEAD_MS: i64 = 2_000;

/// Liveness of a member, as far as this process can determine it at once. Ages are those of the
/// last heartbeat, in milliseconds, if the member is judged by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Its process runs on this machine, or its last heartbeat is recent.
    Alive { age_ms: Option<u64> },
    /// Its process is stopped, or two heartbeats are overdue. It keeps its tasks until its lease
    /// expires.
    Silent { age_ms: Option<u64> },
    /// A member of another machine whose lease has expired. Other members take its tasks.
    Expired { age_ms: u64 },
    /// Its process is gone from this machine.
    Dead,
    /// A member of another machine whose heartbeat cannot be read.
    Unknown,
}

impl Life {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Life::Alive { .. } => "alive",
            Life::Silent { .. } => "silent",
            Life::Expired { .. } | Life::Dead => "dead",
            Life::Unknown => "beat unknown",
        }
    }

    /// Returns the word and, if known, the age of the last heartbeat.
    pub(crate) fn label(self) -> String {
        match self.age_ms() {
            Some(age) => format!("{}, last heartbeat {} ago", self.word(), whole_seconds(age)),
            None => self.word().to_owned(),
        }
    }

    /// Returns the age of the last heartbeat, if the member is judged by it.
    pub(crate) fn age_ms(self) -> Option<u64> {
        match self {
            Life::Alive { age_ms } | Life::Silent { age_ms } => age_ms,
            Life::Expired { age_ms } => Some(age_ms),
            Life::Dead | Life::Unknown => None,
        }
    }

    /// Returns true if it is displayed as dead.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Life::Expired { .. } | Life::Dead)
    }
}

impl Serialize for Life {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Life::Unknown => "unknown",
            known => known.word(),
        })
    }
}

/// View model of a member.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct WorkerView {
    pub worker: String,
    pub agent: String,
    pub life: Life,
    pub draining: bool,
    pub host: String,
    pub pid: u32,
    pub started_at: String,
    pub concurrency: u32,
    /// The only run that it drives, if it is restricted to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Number of tasks that it holds.
    pub claims: usize,
    pub version: String,
    /// By the clock of the volume, for display only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_beat: Option<String>,
    /// Age of the last heartbeat by the volume's clock, if the member is judged by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_age_ms: Option<u64>,
}

/// All registered members, and all holders of tasks.
#[derive(Default)]
pub(crate) struct Members {
    known: BTreeMap<String, (Option<Registration>, Life)>,
    claims: BTreeMap<String, usize>,
    beats: BTreeMap<String, Time>,
}

impl Members {
    /// Judges every member at once, using earlier observations. `claims` contains the number of
    /// claims of each holder.
    pub(super) fn look(
        queue: &Queue,
        claims: BTreeMap<String, usize>,
        memory: &Memory,
    ) -> io::Result<Members> {
        let here = Process::this();
        let mut registered: BTreeMap<String, Registration> = BTreeMap::new();
        for registration in member::registrations(queue)? {
            registered.insert(registration.worker.clone(), registration);
        }
        let mut names: BTreeSet<String> = registered.keys().chain(claims.keys()).cloned().collect();
        names.remove(queue.me());
        let mut members = Members { claims, ..Members::default() };
        for name in names {
            let registration = registered.remove(&name);
            let written_ms = queue.beat_written_ms(&name).ok();
            let beside = registration.as_ref().filter(|r| here.is_beside(&r.process));
            let life = match beside {
                Some(beside) => judge_process(&beside.process, written_ms, queue, memory),
                None => {
                    let moved_ms = memory.beat_moved_ms(&name, queue.read_beat(&name)?);
                    let age_ms = written_ms.and_then(|at| age_ms(at, memory.volume_now_ms(queue)?));
                    let known = [age_ms, moved_ms].into_iter().flatten().min();
                    judge_heartbeat(known, registration.as_ref())
                }
            };
            members.beats.extend(written_ms.map(|at| (name.clone(), Time(at))));
            members.known.insert(name, (registration, life));
        }
        Ok(members)
    }

    /// Returns the liveness of a member; `Unknown` if it has left or never existed.
    pub(crate) fn life(&self, worker: &str) -> Life {
        self.known.get(worker).map_or(Life::Unknown, |(_, life)| *life)
    }

    pub(crate) fn get(&self, worker: &str) -> Option<&Registration> {
        self.known.get(worker).and_then(|(registration, _)| registration.as_ref())
    }

    /// Returns all registered members, sorted by agent.
    pub(crate) fn views(&self) -> impl Iterator<Item = WorkerView> {
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
            heartbeat_age_ms: life.age_ms(),
        }
    }

    /// Returns the members that may take a task of this agent: alive or unknown, not draining, and
    /// not restricted to one run.
    pub(crate) fn serving(&self, agent: &str) -> impl Iterator<Item = WorkerView> {
        self.views().filter(move |member| {
            let takes_new = !member.draining && member.run.is_none();
            let may_live = matches!(member.life, Life::Alive { .. } | Life::Unknown);
            member.agent == agent && takes_new && may_live
        })
    }

    /// Returns the dead member that served this agent last.
    pub(crate) fn last_dead(&self, agent: &str) -> Option<WorkerView> {
        self.views()
            .filter(|member| member.agent == agent && member.life.is_over())
            .max_by(|a, b| a.last_beat.cmp(&b.last_beat))
    }
}

/// Judges a process of this machine.
fn judge_process(
    process: &Process,
    written_ms: Option<i64>,
    queue: &Queue,
    memory: &Memory,
) -> Life {
    match process.lives_here() {
        false => Life::Dead,
        true if process.is_stopped() => {
            let age_ms = written_ms.and_then(|at| age_ms(at, memory.volume_now_ms(queue)?));
            Life::Silent { age_ms }
        }
        true => Life::Alive { age_ms: None },
    }
}

/// Judges a member of another machine by the age of its last heartbeat, and by its own interval and
/// lease.
fn judge_heartbeat(age_ms: Option<u64>, member: Option<&Registration>) -> Life {
    let Some(age_ms) = age_ms else { return Life::Unknown };
    let beat_ms = member.and_then(|member| member.beat_ms).unwrap_or(BEAT_MS);
    let lease_ms = member.and_then(|member| member.lease_ms).unwrap_or(LEASE_MS);
    match age_ms {
        age if age <= beat_ms.saturating_mul(2).saturating_add(LATE_MS) => {
            Life::Alive { age_ms: Some(age) }
        }
        age if age <= lease_ms => Life::Silent { age_ms: Some(age) },
        age_ms => Life::Expired { age_ms },
    }
}

/// Returns the age of a heartbeat; both times are by the volume's clock. `None` if it lies too far
/// in the future.
fn age_ms(written_ms: i64, now_ms: i64) -> Option<u64> {
    match now_ms.saturating_sub(written_ms) {
        ahead if ahead < -AHEAD_MS => None,
        age => Some(age.max(0).unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(beat_ms: Option<u64>, lease_ms: Option<u64>) -> Registration {
        Registration {
            schema: "worker/v1".into(),
            worker: "w".into(),
            agent: "qa".into(),
            process: Process::this(),
            version: String::new(),
            started_at: String::new(),
            concurrency: 1,
            beat_ms,
            lease_ms,
            run: None,
            draining: false,
        }
    }

    #[test]
    fn a_member_is_judged_by_its_own_interval_and_lease() {
        let slow = member(Some(10_000), Some(60_000));
        let quick = member(Some(1_000), Some(30_000));
        let judge = |age: u64, member: &Registration| judge_heartbeat(Some(age), Some(member));
        assert_eq!(judge(8_000, &slow), Life::Alive { age_ms: Some(8_000) });
        assert_eq!(judge(8_000, &quick), Life::Silent { age_ms: Some(8_000) });
        assert_eq!(judge(45_000, &slow), Life::Silent { age_ms: Some(45_000) });
        assert_eq!(judge(45_000, &quick), Life::Expired { age_ms: 45_000 });
        // A member of an earlier version, and one that never registered.
        assert!(!judge(8_000, &member(None, None)).is_over());
        assert!(!judge_heartbeat(Some(8_000), None).is_over());
        assert_eq!(judge_heartbeat(None, Some(&slow)), Life::Unknown);
    }

    #[test]
    fn an_age_is_known_unless_the_heartbeat_is_of_a_time_to_come() {
        assert_eq!(age_ms(1_000, 9_000), Some(8_000));
        assert_eq!(age_ms(1_000, 900), Some(0));
        assert_eq!(age_ms(10_000, 1_000), None);
        assert_eq!(Life::Silent { age_ms: Some(8_000) }.label(), "silent, last heartbeat 8s ago");
        assert_eq!(Life::Alive { age_ms: None }.label(), "alive");
    }
}
