//! Ensures that children do not outlive this process, however it ends.
//!
//! A shell waits at the reading end of a pipe whose writing end only this process holds. However
//! this process ends, the kernel closes the pipe. The shell then becomes `orchestrate
//! end-children`, which ends every process that this one has started ([`own_mark`]), including
//! grandchildren in their own sessions. A process that ends by itself ends the shell first.
//!
//! A parent-death signal would reach only direct children, and must be requested between `fork` and
//! `exec`, which `posix_spawn` does not support. A shell is the smallest program that can wait. It
//! is started once, when a child has run for [`SOON`]: a run of short steps does not pay for it,
//! and children that end so soon need no guard.
//!
//! A child that is being started when this process is killed holds the pipe open until it executes
//! its own program, so it carries its mark by the time the shell wakes.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::process::{own_pid, stat};
use super::{children, start};

/// The subcommand that ends the children of a dead process, found by its mark.
pub(crate) const END_CHILDREN: &str = "end-children";

/// Time that a child runs before the guard is started, unless a guard is already running.
const SOON: Duration = Duration::from_millis(10);

/// Waits for the end of its input and ignores signals.
const WAIT: &str = r#"trap "" HUP INT TERM; read -r _; exec "$0" "$@""#;

/// The program that ends children.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
static GUARD: Mutex<Guard> = Mutex::new(Guard::None);
static STARTED: AtomicBool = AtomicBool::new(false);

enum Guard {
    None,
    /// The child's stdin is the pipe.
    Waits(Child),
    /// The guard could not be started, or this process is ending.
    Never,
}

/// Makes children end with this process from now on. `program` is this program's executable.
pub(crate) fn guard_children(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// Returns the mark of everything this process starts, in addition to the marks of single children.
/// No other process of this machine has the same mark, before or after.
pub(crate) fn own_mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| {
        let started = stat(own_pid()).map_or(0, |stat| stat.started);
        format!("process-{}-{started}", own_pid())
    })
}

/// Returns the time when the shell must be started for a child that began at `began`, or `None` if
/// no start is due.
pub(super) fn due(began: Instant) -> Option<Instant> {
    let is_due = PROGRAM.get().is_some() && !STARTED.load(Ordering::Relaxed);
    is_due.then(|| began + SOON)
}

/// Starts the shell if it is not running yet. If that fails, children of a killed process are found
/// by their marks when the next process cleans up.
///
/// A worker calls this before its first task, so that no child of a killed worker survives. A run
/// waits until a child has run for [`SOON`].
pub(crate) fn start_guard() {
    let Some(program) = PROGRAM.get() else { return };
    let mut guard = guard();
    if let Guard::None = *guard {
        *guard = match start(program) {
            Ok(child) => Guard::Waits(child),
            Err(_) => Guard::Never,
        };
        STARTED.store(true, Ordering::Relaxed);
    }
}

fn start(program: &PathBuf) -> io::Result<Child> {
    let mut command = start::command("/bin/sh");
    command.args(["-c", WAIT]).arg(program).args([END_CHILDREN, own_mark()]);
    // In its own process group: a signal to ours must not reach it.
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    children::spawn_guard(&mut command)
}

/// Ends the shell when this process ends by itself. Waits for its end, so that a caller that counts
/// the remaining processes does not count it.
pub(super) fn leave() {
    if let Guard::Waits(mut child) = std::mem::replace(&mut *guard(), Guard::Never) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn guard() -> MutexGuard<'static, Guard> {
    GUARD.lock().unwrap_or_else(PoisonError::into_inner)
}
