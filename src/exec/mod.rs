//! Child processes: the one place where they are started, read, stopped and accounted for.
//!
//! [`run`] starts one child in its own process group and serves it in one `poll` loop: its output
//! goes into two [`Capture`]s, a pidfd reports its end, and a [`Stop`] or a timeout ends it with
//! everything it started. No thread per child is needed.
//!
//! A process group does not contain an agent: its tools create their own sessions, fork twice and
//! stay running. So every child carries a mark in its environment, this process adopts orphans
//! ([`become_subreaper`]), and remaining processes are found by mark, by group or by descent; by
//! group even after this process was killed. In that case a guard ends them ([`guard_children`]).
//!
//! **Invariant:** a process is signalled only through a handle that was opened before it was
//! identified, so a reused pid is never hit. Children are reaped by pid only.

mod at_work;
pub(crate) mod capture;
mod children;
mod confine;
mod daemon;
mod errand;
mod groups;
mod guard;
mod hunt;
pub(crate) mod mask;
mod pipes;
mod process;
mod run;
mod start;
mod stop;
mod tail;
#[cfg(test)]
mod tests;
mod tool;
pub(crate) mod whole;

use std::cell::Cell;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

pub(crate) use at_work::at_work;
pub(crate) use capture::{Capture, Captured, Mode};
pub(crate) use children::{become_subreaper, end_all};
pub(crate) use confine::{Confinement, Powers, Reach, SIGNALS_LANDLOCK, powers};
pub(crate) use daemon::Daemon;
pub(crate) use errand::{Errand, Streams};
pub(crate) use guard::{END_CHILDREN, guard_children, own_mark, start_guard};
pub(crate) use hunt::{ask_to_end, left_behind, sweep, sweep_if};
pub(crate) use mask::Mask;
pub(crate) use run::run;
pub(crate) use start::{
    FORCING_COLORS, LOCAL_TO_GIT, STRING_BYTES, StartError, lacks_descriptors, lacks_interpreter,
    lacks_resources, locate,
};
pub(crate) use stop::Stop;
pub(crate) use tool::{Said, call};
pub(crate) use whole::WholeText;

/// Cleans up before this process exits by itself.
pub(crate) fn take_leave() {
    guard::leave();
    groups::forget();
}

/// The environment variable that identifies every descendant of a child.
pub(crate) const MARK: &str = "ORCHESTRATE_MARK";

/// One child to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order<'a> {
    pub argv: &'a [String],
    pub cwd: &'a Path,
    /// Overrides the inherited environment; a later entry overrides an earlier one.
    pub env: &'a [(String, OsString)],
    pub env_remove: &'a [&'a str],
    /// `None` is `/dev/null`.
    pub stdin: Option<&'a [u8]>,
    pub timeout: Option<Duration>,
    /// Maximum time without output on either stream. A listener of the output may change it.
    pub idle: Option<&'a Cell<Option<Duration>>>,
    /// Time for a child to end itself after SIGTERM.
    pub grace: Duration,
    /// The value of [`MARK`], unique to this attempt.
    pub mark: &'a str,
    pub sweep: Sweep,
    /// The program and arguments that confine the child, prepended to its own.
    pub confine: &'a [String],
}

impl<'a> Order<'a> {
    /// Creates an order without input, limits or environment changes.
    pub(crate) fn new(argv: &'a [String], cwd: &'a Path, mark: &'a str) -> Order<'a> {
        Order {
            argv,
            cwd,
            env: &[],
            env_remove: &[],
            stdin: None,
            timeout: None,
            idle: None,
            grace: Duration::from_secs(5),
            mark,
            sweep: Sweep::OnStop,
            confine: &[],
        }
    }
}

/// Determines when processes that outlive the child are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// Always: no process of an agent may continue after the agent has answered.
    Always,
    /// Only after a stop or a timeout of either kind: a plain command may leave a server running.
    OnStop,
}

/// The result of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub how: How,
    /// Number of processes that outlived the child: ended here, or left running if allowed.
    pub survivors: usize,
    /// True if a survivor still held the output open, so that later output is lost.
    pub cut_off: bool,
    /// Time from the start to the end of the child itself.
    pub took: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Exited(i32),
    /// Ended by a signal that this process did not send.
    Killed(i32),
    TimedOut,
    /// Ended because it printed nothing.
    Silent,
    Stopped,
}

impl How {
    /// Returns the exit code by the conventions of shells and of `timeout`.
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            How::Exited(code) => *code,
            How::Killed(signal) => 128 + signal,
            How::TimedOut | How::Silent => 124,
            How::Stopped => 128 + 15,
        }
    }
}
