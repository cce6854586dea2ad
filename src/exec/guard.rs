//! Children do not outlive this process, however it ends.
//!
//! A shell waits at the reading end of a pipe whose writing end only this process holds. However
//! this process ends, the kernel closes the pipe. The shell then becomes `orchestrate
//! end-children`, which ends every process that this one has started ([`own_mark`]), grandchildren
//! in sessions of their own among them. A process that ends by itself ends the shell first.
//!
//! A signal on the parent's death would reach children alone, and must be asked for between `fork`
//! and `exec`, where `posix_spawn` has no place for it. A shell is the smallest program that can
//! wait. It is started once, when a child has run for [`SOON`]: a run of short steps does not pay
//! for it, and what is over so soon needs no guard.
//!
//! A child that is being started when this process is killed holds the pipe open until it has
//! become its own program, so it carries its mark by the time the shell wakes.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::process::{own_pid, stat};
use super::{children, start};

/// The verb that ends the children of a dead process, by its mark.
pub const END_CHILDREN: &str = "end-children";

/// How long a child runs before it is guarded, where no other was before it.
const SOON: Duration = Duration::from_millis(10);

/// Waits for the end of its input, and of nothing else.
const WAIT: &str = r#"trap "" HUP INT TERM; read -r _; exec "$0" "$@""#;

/// The program that ends children.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
static GUARD: Mutex<Guard> = Mutex::new(Guard::None);
static STARTED: AtomicBool = AtomicBool::new(false);

enum Guard {
    None,
    /// Its standard input is the pipe.
    Waits(Child),
    /// It could not be started, or this process is ending.
    Never,
}

/// Makes children die with this process from now on, by this program of ours.
pub fn guard_children(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// The mark of all that this process starts, beside those of single children. No other process of
/// this machine has the same, before or after.
pub fn own_mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| {
        let started = stat(own_pid()).map_or(0, |stat| stat.started);
        format!("process-{}-{started}", own_pid())
    })
}

/// When the shell must be started, if it was not, for a child that began then.
pub(super) fn due(began: Instant) -> Option<Instant> {
    let is_due = PROGRAM.get().is_some() && !STARTED.load(Ordering::Relaxed);
    is_due.then(|| began + SOON)
}

/// Starts the shell if it is not running yet. If that fails, children of a killed process are found
/// by their marks when the next process cleans up.
///
/// A worker calls this before its first task, so that no child of a killed worker survives. A run
/// waits until a child has run for [`SOON`].
pub fn start_guard() {
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
    // In a group of its own: a signal to ours must not reach it.
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    children::spawn_guard(&mut command)
}

/// Ends the shell, for a process that ends by itself. It is waited for: one who counts what this
/// process leaves behind must not count it.
pub(super) fn leave() {
    if let Guard::Waits(mut child) = std::mem::replace(&mut *guard(), Guard::Never) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn guard() -> MutexGuard<'static, Guard> {
    GUARD.lock().unwrap_or_else(PoisonError::into_inner)
}
