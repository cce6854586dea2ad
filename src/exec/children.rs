//! This process's children, and processes it adopted when their parents died.
//!
//! Several threads start and reap children. Each reaps its own, by pid. A child that no thread has
//! started is an orphan: it was adopted, and the first thread that finds it dead reaps it, so that
//! zombies do not accumulate. A child in our own process group was started by other code of this
//! process and is left alone.
//!
//! **Invariant:** while [`GATE`] is held for writing, every child started here is either in
//! [`OURS`] or already reaped.

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::getpgrp;

use super::process::{Pid, children_of_main_thread, stat};
use super::stop::Stop;

/// Held shared by threads that start and reap children, which may run concurrently. Held
/// exclusively by the search for orphans, which must not see a child between its start and its
/// entry in [`OURS`].
static GATE: RwLock<()> = RwLock::new(());
static OURS: Mutex<BTreeSet<Pid>> = Mutex::new(BTreeSet::new());
/// The pid of the [`super::guard`], which is neither one of our children nor an orphan; 0 for none.
static GUARD: AtomicI32 = AtomicI32::new(0);
static ADOPTS: AtomicBool = AtomicBool::new(false);
/// Interval of the check whether children have ended.
const POLL: Duration = Duration::from_millis(10);

/// Makes this process the parent of its orphaned descendants, so that none escapes to pid 1.
pub(crate) fn become_subreaper() -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true)?;
    ADOPTS.store(true, Ordering::SeqCst);
    Ok(())
}

pub(super) fn adopts() -> bool {
    ADOPTS.load(Ordering::SeqCst)
}

pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
    let _gate = GATE.read().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn()?;
    ours().insert(child.id() as Pid);
    Ok(child)
}

/// Starts the guard process. There is only one.
pub(super) fn spawn_guard(command: &mut Command) -> io::Result<Child> {
    let _gate = GATE.read().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn()?;
    GUARD.store(child.id() as Pid, Ordering::SeqCst);
    Ok(child)
}

/// Reaps a child that has exited: removes it from [`OURS`] and returns its status.
pub(super) fn reap(child: &mut Child) -> io::Result<ExitStatus> {
    let _gate = GATE.read().unwrap_or_else(PoisonError::into_inner);
    // Remove it first: once it is reaped, another thread may enter the same pid again.
    ours().remove(&(child.id() as Pid));
    child.wait()
}

/// Removes a child that cannot be ended. If it ever exits, it is reaped as an orphan.
pub(super) fn abandon(child: Child) {
    ours().remove(&(child.id() as Pid));
}

/// Returns true if no child started here is running.
pub(super) fn none_running() -> bool {
    ours().is_empty()
}

/// Ends all children of a process that is about to exit: with SIGTERM, and with SIGKILL after
/// `grace` or when a second stop is requested. From then on, no thread starts or reaps a child.
pub(crate) fn end_all(stop: &Stop, grace: Duration) {
    // Never unlocked: threads that wait for their children must not see these ends.
    std::mem::forget(GATE.write().unwrap_or_else(PoisonError::into_inner));
    let pids: Vec<Pid> = ours().iter().copied().collect();
    // No child is reaped any more, so these pids and process groups are still theirs.
    let signal = |signal| {
        for pid in &pids {
            let _ = killpg(nix::unistd::Pid::from_raw(*pid), signal);
        }
    };
    let at_work = || pids.iter().any(|pid| stat(*pid).is_some_and(|stat| !stat.ended));
    signal(Signal::SIGTERM);
    let until = Instant::now() + grace;
    while at_work() && Instant::now() < until && stop.wait_above(1, POLL) < 2 {}
    signal(Signal::SIGKILL);
}

fn ours() -> MutexGuard<'static, BTreeSet<Pid>> {
    OURS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
pub(super) struct Orphans {
    pub(super) alive: Vec<Pid>,
    /// Number of orphans that had exited and were reaped. Each may have left new orphans.
    pub(super) reaped: usize,
}

/// Finds the adopted children and reaps the dead ones.
pub(super) fn orphans() -> Orphans {
    let mut found = Orphans::default();
    // Cheap checks first: one system call if this process has no children, otherwise one small
    // file.
    if no_children() || strangers().is_empty() {
        return found;
    }
    let _gate = GATE.write().unwrap_or_else(PoisonError::into_inner);
    let own_group = getpgrp().as_raw();
    for pid in strangers() {
        match stat(pid) {
            Some(stat) if stat.group == own_group => {}
            Some(stat) if !stat.ended => found.alive.push(pid),
            _ => {
                let _ = waitpid(nix::unistd::Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
                found.reaped += 1;
            }
        }
    }
    found
}

fn strangers() -> Vec<Pid> {
    let mut pids = children_of_main_thread();
    let (ours, guard) = (ours(), GUARD.load(Ordering::SeqCst));
    pids.retain(|pid| *pid != guard && !ours.contains(pid));
    pids
}

fn no_children() -> bool {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, look) == Err(Errno::ECHILD)
}
