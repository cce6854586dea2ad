//! Finding and ending the processes that a child has left behind.
//!
//! A process belongs to a child if it carries its mark, is in its group, or descends from one that
//! does. Of what others left who are dead, the group is known where it was noted. Before they are
//! killed they are frozen, parents first: a frozen process cannot fork, so what it has started is
//! seen whole, and nothing slips away while its parent dies. The search is repeated until it finds
//! nothing, because a process may fork in front of it.

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

/// Time for `git` and its like to remove their locks.
const GRACE: Duration = Duration::from_millis(500);
/// After this the machine is not going to let them die.
const LIMIT: Duration = Duration::from_secs(10);
/// Those who are ending by themselves may be others', so they hold nobody up for long.
const ENDING_LIMIT: Duration = Duration::from_millis(500);
/// How many are held at once: each takes a descriptor.
const BATCH: usize = 256;

/// Ends every process on this machine whose mark starts with `mark_prefix`, and what descends
/// from it, and returns how many there were. They need not be descendants of this process.
pub fn sweep(mark_prefix: &str) -> usize {
    if mark_prefix.is_empty() {
        return 0;
    }
    sweep_if(&|mark| mark.starts_with(mark_prefix))
}

/// The same for every mark that is wanted.
pub fn sweep_if(wanted: &dyn Fn(&str) -> bool) -> usize {
    Hunt::everywhere(wanted).end(GRACE)
}

/// How many processes on this machine [`sweep`] would end.
pub fn left_behind(mark_prefix: &str) -> usize {
    let wanted = |mark: &str| mark.starts_with(mark_prefix);
    Hunt::everywhere(&wanted).look(false).alive.len()
}

/// By which mark those are known who are looked for.
#[derive(Clone, Copy)]
enum Quarry<'a> {
    /// This one: descendants of this process.
    Mark(&'a str),
    /// Any that is wanted, on the whole machine.
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

/// Asks one process to end itself, by SIGTERM, if it still is the one that is meant. It need not
/// be of ours.
pub fn ask_to_end(pid: u32, is_it: impl FnOnce() -> bool) -> io::Result<()> {
    // Held first and recognised after: from here on it cannot be mistaken.
    let process = Process::open(pid as Pid)?;
    if !is_it() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it is another process now"));
    }
    ask(&process);
    Ok(())
}

/// Whom to look for.
pub(super) struct Hunt<'a> {
    quarry: Quarry<'a>,
    group: Option<Pid>,
    /// Groups that others have noted, who are dead by now.
    groups: Vec<Group>,
    /// The child itself, while it has not been reaped.
    child: Option<Pid>,
    /// Orphans without any mark that started after this belong to the child too, because nothing
    /// else that could have left them is running here.
    since: Option<u64>,
}

/// What one search has found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) alive: Vec<(Process, Pid)>,
    /// Those who are just ending: whose they were cannot be told any more, and what they started
    /// is not handed to us yet.
    ending: Vec<Process>,
    /// True if something moved meanwhile, so that finding nothing proves nothing.
    restless: bool,
}

impl Found {
    /// True if for certain nobody is there.
    pub(super) fn is_none(&self) -> bool {
        self.alive.is_empty() && self.ending.is_empty() && !self.restless
    }

    fn patience(&self) -> Duration {
        if self.alive.is_empty() { ENDING_LIMIT } else { LIMIT }
    }

    /// All whose end is worth waiting for.
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

    /// The child has been reaped; it started at `started`.
    pub(super) fn without_child(mut self, started: u64) -> Hunt<'a> {
        self.child = None;
        self.since = children::none_running().then_some(started);
        self
    }

    /// Asks all to end themselves; the members of the child's group have already been asked.
    pub(super) fn ask_others(&self) {
        for (process, group) in self.look(false).alive {
            if Some(group) != self.group {
                ask(&process);
            }
        }
    }

    /// Kills what is found now.
    pub(super) fn strike(&self) -> Found {
        let found = self.look(true);
        found.alive.iter().for_each(|(process, _)| process.signal(Signal::SIGKILL));
        found
    }

    /// Asks, waits and kills until nothing is left, and returns how many there were.
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

    /// Finds those who are alive; with `freeze` they are stopped as they are found.
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
    /// Also looks below those who are not owned; not if every process is visited anyway.
    deep: bool,
    /// Those who are spared or already found.
    done: BTreeSet<Pid>,
    found: Found,
}

impl Search<'_> {
    /// Looks at a process and at all that descend from it.
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

    /// True if the process belongs to the hunt.
    fn take(&mut self, pid: Pid, owner: Option<Pid>, orphan: bool) -> bool {
        let owned = |stat: &Stat| owner == Some(stat.parent) || self.hunt.owns(pid, stat, orphan);
        match stat(pid) {
            Some(stat) if stat.ending && self.deep => {
                self.found.ending.extend(Process::open(pid));
                return false;
            }
            Some(stat) if !stat.ended && owned(&stat) => {}
            _ => {
                // An orphan may have begun to end, and lost its mark, after it was listed.
                let ends = || stat(pid).is_none_or(|stat| stat.ended || stat.ending);
                self.found.restless |= orphan && ends();
                return false;
            }
        }
        if self.found.alive.len() == BATCH {
            self.found.restless = true;
            return false;
        }
        // Held first and recognised again after: from here on it cannot be mistaken.
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

/// Those who are never touched: pid 1, this process, and all above it.
fn spared() -> BTreeSet<Pid> {
    let mut spared = BTreeSet::from([0, 1]);
    let mut pid = own_pid();
    while spared.insert(pid) {
        pid = stat(pid).map_or(1, |stat| stat.parent);
    }
    spared
}

/// SIGTERM, and SIGCONT because a stopped process would not notice.
fn ask(process: &Process) {
    process.signal(Signal::SIGTERM);
    process.signal(Signal::SIGCONT);
}

fn await_end(found: &Found, time: Duration) {
    let end = Instant::now() + time;
    let mut left: Vec<&Process> = found.processes().collect();
    while !left.is_empty() && Instant::now() < end {
        // Each end wakes us, so what has ended must not be watched again.
        let fds = left.iter().map(|process| process.as_fd());
        let mut fds: Vec<PollFd> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut fds, timeout(end - Instant::now()));
        left.retain(|process| !process.is_gone());
    }
}
