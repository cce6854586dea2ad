//! Finds and ends the processes that outlive a child.
//!
//! A process belongs to a child if it has its mark, is in its group, or descends from such a
//! process. For processes left by other, dead processes, the group is known if it was recorded.
//! Before processes are killed they are frozen, parents first: a frozen process cannot fork, so all
//! its children are visible, and none escapes while its parent dies. The search is repeated until
//! it finds nothing, because a process may fork during it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;

use super::children::{self, orphans};
use super::groups::{self, Group};
use super::process::{Pid, Process, Stat, children as children_of, mark, own_pid, pids, stat};
use super::stop::timeout;

/// Time for `git` and similar programs to remove their locks.
const GRACE: Duration = Duration::from_millis(500);
/// After this time, the processes cannot be killed.
const LIMIT: Duration = Duration::from_secs(10);
/// Limit for waiting on processes that are already exiting. They may be unrelated.
const ENDING_LIMIT: Duration = Duration::from_millis(500);
/// Maximum number of handles at once: each needs a file descriptor.
const BATCH: usize = 256;

/// Ends every process on this machine whose mark starts with `mark_prefix`, and its descendants.
/// Returns their number. They need not be descendants of this process.
pub(crate) fn sweep(mark_prefix: &str) -> usize {
    if mark_prefix.is_empty() {
        return 0;
    }
    sweep_if(&|mark| mark.starts_with(mark_prefix))
}

/// Does the same for every mark that satisfies `wanted`.
pub(crate) fn sweep_if(wanted: &dyn Fn(&str) -> bool) -> usize {
    #[cfg(test)]
    if crate::base::host::is_simulated() {
        // Simulated children end with their process.
        return 0;
    }
    Hunt::everywhere(wanted).end(GRACE)
}

/// Returns the number of processes on this machine that [`sweep`] would end.
pub(crate) fn left_behind(mark_prefix: &str) -> usize {
    let wanted = |mark: &str| mark.starts_with(mark_prefix);
    Hunt::everywhere(&wanted).look(false).alive.len()
}

/// The marks of the processes to find.
#[derive(Clone, Copy)]
enum Quarry<'a> {
    /// This mark, among the descendants of this process.
    Mark(&'a str),
    /// Any mark that satisfies the predicate, on the whole machine.
    Marks(&'a dyn Fn(&str) -> bool),
}

impl Quarry<'_> {
    fn is(self, mark: &[u8]) -> bool {
        match self {
            Quarry::Mark(own) => mark == own.as_bytes(),
            Quarry::Marks(wanted) => std::str::from_utf8(mark).is_ok_and(wanted),
        }
    }
}

/// Sends SIGTERM to one process if `is_it` confirms its identity. The process need not be a
/// descendant.
pub(crate) fn ask_to_end(pid: u32, is_it: impl FnOnce() -> bool) -> io::Result<()> {
    // Open the handle first and identify the process afterwards: the handle cannot refer to
    // another.
    let process = Process::open(pid as Pid)?;
    if !is_it() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it is another process now"));
    }
    ask(&process);
    Ok(())
}

/// The criteria of a search.
pub(super) struct Hunt<'a> {
    quarry: Quarry<'a>,
    group: Option<Pid>,
    /// Groups recorded by other processes, which are dead by now.
    groups: Vec<Group>,
    /// The child itself, until it is reaped.
    child: Option<Pid>,
    /// Unmarked orphans that started after this time also belong to the child, because no other
    /// child runs that could have left them.
    since: Option<u64>,
}

/// The result of one search.
#[derive(Default)]
pub(super) struct Found {
    pub(super) alive: Vec<(Process, Pid)>,
    /// Processes that are exiting: their owner can no longer be determined, and this process has
    /// not adopted their children yet.
    ending: Vec<Process>,
    /// True if something changed during the search, so that an empty result proves nothing.
    restless: bool,
}

impl Found {
    /// Returns true if certainly no process is left.
    pub(super) fn is_none(&self) -> bool {
        self.alive.is_empty() && self.ending.is_empty() && !self.restless
    }

    fn patience(&self) -> Duration {
        if self.alive.is_empty() { ENDING_LIMIT } else { LIMIT }
    }

    /// Returns all processes to wait for.
    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.alive.iter().map(|(process, _)| process).chain(&self.ending)
    }
}

impl<'a> Hunt<'a> {
    fn everywhere(wanted: &'a dyn Fn(&str) -> bool) -> Hunt<'a> {
        let (quarry, groups) = (Quarry::Marks(wanted), groups::noted(wanted));
        Hunt { quarry, group: None, groups, child: None, since: None }
    }

    pub(super) fn of_child(mark: &'a str, child: Pid) -> Hunt<'a> {
        let quarry = Quarry::Mark(mark);
        Hunt { quarry, group: Some(child), groups: Vec::new(), child: Some(child), since: None }
    }

    /// Notes that the child has been reaped; it started at `started`.
    pub(super) fn without_child(mut self, started: u64) -> Hunt<'a> {
        self.child = None;
        self.since = children::none_running().then_some(started);
        self
    }

    /// Sends SIGTERM to all processes outside the child's group, which already got it.
    pub(super) fn ask_others(&self) {
        for (process, group) in self.look(false).alive {
            if Some(group) != self.group {
                ask(&process);
            }
        }
    }

    /// Kills the processes found now.
    pub(super) fn strike(&self) -> Found {
        let found = self.look(true);
        found.alive.iter().for_each(|(process, _)| process.signal(Signal::SIGKILL));
        found
    }

    /// Sends SIGTERM, waits and kills until nothing is left. Returns the number of processes.
    pub(super) fn end(&self, grace: Duration) -> usize {
        let mut found = self.look(false);
        found.alive.iter().for_each(|(process, _)| ask(process));
        await_end(&found, grace);
        let mut seen: BTreeSet<Pid> = BTreeSet::new();
        let began = Instant::now();
        loop {
            seen.extend(found.alive.iter().map(|(process, _)| process.pid));
            if found.is_none() || began.elapsed() > found.patience() {
                return seen.len();
            }
            found = self.strike();
            await_end(&found, found.patience());
        }
    }

    /// Finds the living processes; with `freeze`, stops each one when it is found.
    pub(super) fn look(&self, freeze: bool) -> Found {
        let adopted = orphans();
        let everywhere = matches!(self.quarry, Quarry::Marks(_)) || !children::adopts();
        let restless = adopted.reaped > 0;
        let found = Found { restless, ..Found::default() };
        if adopted.alive.is_empty() && self.child.is_none() && !everywhere {
            return found;
        }
        let (hunt, deep, done) = (self, !everywhere, spared());
        let mut search = Search { hunt, freeze, deep, done, found };
        if everywhere {
            pids().for_each(|pid| search.visit(pid, false));
        } else {
            self.child.iter().for_each(|pid| search.visit(*pid, false));
            adopted.alive.iter().for_each(|pid| search.visit(*pid, true));
        }
        search.found
    }

    fn owns(&self, pid: Pid, stat: &Stat, orphan: bool) -> bool {
        if self.group == Some(stat.group) {
            return true;
        }
        match mark(pid) {
            // The marks of outer orchestrators follow ours.
            Some(marks) => marks.split(|byte| *byte == b';').any(|mark| self.quarry.is(mark)),
            None => {
                let Stat { group, session, started, .. } = stat;
                orphan && self.since.is_some_and(|since| *started >= since)
                    || self.groups.iter().any(|noted| noted.has(*group, *session, *started))
            }
        }
    }
}

struct Search<'a> {
    hunt: &'a Hunt<'a>,
    freeze: bool,
    /// True to descend below processes that do not belong to the child; not needed if every process
    /// is visited anyway.
    deep: bool,
    /// Processes that are protected or already found.
    done: BTreeSet<Pid>,
    found: Found,
}

impl Search<'_> {
    /// Checks a process and all its descendants.
    fn visit(&mut self, root: Pid, orphan: bool) {
        let mut open = vec![(root, None)];
        while let Some((pid, owner)) = open.pop() {
            if self.done.contains(&pid) {
                continue;
            }
            let owned = self.take(pid, owner, orphan && pid == root);
            if owned {
                self.done.insert(pid);
            }
            if owned || self.deep {
                let owner = owned.then_some(pid);
                open.extend(children_of(pid).into_iter().map(|child| (child, owner)));
            }
        }
    }

    /// Returns true if the process belongs to the search.
    fn take(&mut self, pid: Pid, owner: Option<Pid>, orphan: bool) -> bool {
        let owned = |stat: &Stat| owner == Some(stat.parent) || self.hunt.owns(pid, stat, orphan);
        match stat(pid) {
            Some(stat) if stat.ending && self.deep => {
                self.found.ending.extend(Process::open(pid));
                return false;
            }
            Some(stat) if !stat.ended && owned(&stat) => {}
            _ => {
                // An orphan may have started to exit, and lost its mark, after it was listed.
                let ends = || stat(pid).is_none_or(|stat| stat.ended || stat.ending);
                self.found.restless |= orphan && ends();
                return false;
            }
        }
        if self.found.alive.len() == BATCH {
            self.found.restless = true;
            return false;
        }
        // Open the handle first and identify the process again: the handle cannot refer to another.
        let held = Process::open(pid).ok();
        let again = stat(pid).filter(|stat| !stat.ended && owned(stat));
        let (Some(process), Some(stat)) = (held, again) else {
            self.found.restless = true;
            return false;
        };
        if self.freeze {
            process.signal(Signal::SIGSTOP);
        }
        self.found.alive.push((process, stat.group));
        true
    }
}

/// Returns the processes that are never touched: pid 1, this process, and its ancestors.
fn spared() -> BTreeSet<Pid> {
    let mut spared = BTreeSet::from([0, 1]);
    let mut pid = own_pid();
    while spared.insert(pid) {
        pid = stat(pid).map_or(1, |stat| stat.parent);
    }
    spared
}

/// Sends SIGTERM, and SIGCONT because a stopped process would not notice.
fn ask(process: &Process) {
    process.signal(Signal::SIGTERM);
    process.signal(Signal::SIGCONT);
}

fn await_end(found: &Found, time: Duration) {
    let end = Instant::now() + time;
    let mut left: Vec<&Process> = found.processes().collect();
    while !left.is_empty() && Instant::now() < end {
        // Each end wakes `poll`, so do not watch ended processes again.
        let fds = left.iter().map(|process| process.as_fd());
        let mut fds: Vec<PollFd> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut fds, timeout(end - Instant::now()));
        left.retain(|process| !process.is_gone());
    }
}
