//! Child processes: the one place where they are started, read, stopped and counted out.
//!
//! [`run`] starts one child in a process group of its own and stays with it in one `poll` loop:
//! its output goes into two [`Capture`]s, its end is seen on a pidfd, and a [`Stop`] or a timeout
//! ends it with everything it started. Nothing here needs a thread per child.
//!
//! A process group is not enough to hold an agent: its tools make sessions of their own, fork
//! twice and stay behind. So every child carries a mark in its environment, this process adopts
//! orphans ([`become_subreaper`]), and what is left is found by mark, by group or by descent; by
//! its group also after this process was killed. A guard ends it then ([`guard_children`]).
//!
//! **Invariant:** a process is signalled only through a handle that was opened before it was
//! recognised, so a pid that was used again is never hit. Children are reaped by pid only.

mod at_work;
pub mod capture;
mod children;
mod confine;
mod daemon;
mod errand;
mod groups;
mod guard;
mod hunt;
pub mod mask;
mod pipes;
mod process;
mod run;
mod start;
mod stop;
mod tail;
#[cfg(test)]
mod tests;
mod tool;
mod whole;

use std::cell::Cell;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

pub use at_work::at_work;
pub use capture::{Capture, Captured, Mode};
pub use children::{become_subreaper, end_all};
pub use confine::{Confinement, Powers, Reach, SIGNALS_LANDLOCK, powers};
pub use daemon::Daemon;
pub use errand::{Errand, Streams};
pub use guard::{END_CHILDREN, guard_children, own_mark, start_guard};
pub use hunt::{ask_to_end, left_behind, sweep, sweep_if};
pub use mask::{Mask, Masker};
pub use run::run;
pub use start::{
    FORCING_COLORS, LOCAL_TO_GIT, STRING_BYTES, StartError, lacks_descriptors, lacks_interpreter,
    lacks_resources, locate,
};
pub use stop::Stop;
pub use tool::{Said, call};
pub use whole::{WHOLE_BYTES, WholeText};

/// Tidies up after this process, which is about to end by itself.
pub fn take_leave() {
    guard::leave();
    groups::forget();
}

/// The environment variable by which every descendant of a child is found.
pub const MARK: &str = "ORCHESTRATE_MARK";

/// One child to run.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    pub argv: &'a [String],
    pub cwd: &'a Path,
    /// Laid over the inherited environment; a later entry wins over an earlier one.
    pub env: &'a [(String, OsString)],
    pub env_remove: &'a [&'a str],
    /// Nothing is `/dev/null`.
    pub stdin: Option<&'a [u8]>,
    pub timeout: Option<Duration>,
    /// How long it may print nothing, on neither of its streams. What listens to it may change
    /// that.
    pub idle: Option<&'a Cell<Option<Duration>>>,
    /// How long a child may take to end itself after SIGTERM.
    pub grace: Duration,
    /// Unique to this attempt; the value of [`MARK`].
    pub mark: &'a str,
    pub sweep: Sweep,
    /// The program and arguments that confine it, put before its own.
    pub confine: &'a [String],
}

impl<'a> Order<'a> {
    /// A child with no input, no limit and nothing of its own in its environment.
    pub fn new(argv: &'a [String], cwd: &'a Path, mark: &'a str) -> Order<'a> {
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

/// When processes that outlive the child are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Always: nothing of an agent may go on working after it has answered.
    Always,
    /// Only after a stop or a timeout of either kind: a plain command may leave a server running.
    OnStop,
}

/// How a child went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub how: How,
    /// Processes that outlived the child: ended here, or left running where that is allowed.
    pub survivors: usize,
    /// True if a survivor still held the output open, so that later output is lost.
    pub cut_off: bool,
    /// From the start to the end of the child itself.
    pub took: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Exited(i32),
    /// Ended by a signal that did not come from here.
    Killed(i32),
    TimedOut,
    /// Ended for printing nothing.
    Silent,
    Stopped,
}

impl How {
    /// The exit code by the customs of shells and of `timeout`.
    pub fn exit_code(&self) -> i32 {
        match self {
            How::Exited(code) => *code,
            How::Killed(signal) => 128 + signal,
            How::TimedOut | How::Silent => 124,
            How::Stopped => 128 + 15,
        }
    }
}
