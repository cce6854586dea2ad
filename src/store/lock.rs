//! One writer per run: a lock on a separate file, held for the lifetime of the process.
//!
//! **Invariant:** the locked file contains nothing that a process without the lock reads. On SMB, a
//! file that one machine locks cannot be read on the others.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::DEFINITION;
use crate::base::process;
use crate::disk;
use crate::disk::fs;
use crate::disk::locks::{try_lock, try_lock_shared};

/// Time to wait for a process that only checks whether a run is locked: it keeps the lock for
/// moments.
const LOOKED_AT: Duration = Duration::from_millis(25);
/// Time to wait for a dead holder's child: a child that was being started when its parent was
/// killed keeps the parent's locks until it executes its own program.
const LEFT_BEHIND: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_millis(5);

/// File in a run's directory that the process which drives the run locks.
const LOCK: &str = ".lock";
/// Locked by a process that changes the workspace's content.
const CHECKOUT: &str = ".orchestrate/checkout.lock";
/// Locked by a process that repairs the workspace.
const REPAIR: &str = ".orchestrate/repair.lock";

/// A held lock, or `None` if the volume supports no locks. The kernel releases it when the process
/// ends for any reason.
#[derive(Debug)]
pub(crate) struct RunLock(Option<Held>);

/// Resource that keeps a lock.
#[derive(Debug)]
enum Held {
    File(File),
    Signed(#[expect(dead_code, reason = "held, not read")] Signed),
    #[cfg(test)]
    Simulated(#[expect(dead_code, reason = "held, not read")] crate::base::host::Lock),
}

/// A locked file that contains the marker of its holder, for the next holder: a marker that is
/// still there belongs to a process that was killed.
#[derive(Debug)]
struct Signed(File);

impl Drop for Signed {
    fn drop(&mut self) {
        let _ = self.0.set_len(0);
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error("{owner} owns this run")]
    Held { owner: String },
    #[error("cannot lock the run: {0}")]
    Io(#[from] io::Error),
}

/// Takes the lock of a run. Fails with the owner if another process has it.
pub(crate) fn take(root: &Path) -> Result<RunLock, LockError> {
    #[cfg(test)]
    if crate::base::host::is_simulated() {
        return take_simulated(&root.join(DEFINITION));
    }
    // A run without its workflow cannot be driven, so it has no lock to take.
    let workflow = disk::open(&root.join(DEFINITION), OpenOptions::new().read(true))?;
    if !has_lock_file(root) && matches!(try_lock_shared(&workflow), Ok(false)) {
        let owner = Holder { pid: pid_of_holder(&workflow) }.to_string();
        return Err(LockError::Held { owner });
    }
    take_file(open_to_lock(&root.join(LOCK))?, LEFT_BEHIND)
}

/// Returns true if a run has a lock file. Without one, an earlier version of this program, which
/// locks the workflow itself, drives the run, or no process does. Lists the directory, because
/// another machine may have created the file a moment ago.
fn has_lock_file(root: &Path) -> bool {
    let listed = fs::read_dir(root);
    let names = listed.into_iter().flatten().flatten();
    names.map(|entry| entry.file_name()).any(|name| name == LOCK)
}

/// Opens a file to lock it, and creates it if it is missing. Opens it writable, because a network
/// file system grants an exclusive lock only then.
fn open_to_lock(path: &Path) -> io::Result<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    disk::confirmed(&[path.parent().unwrap_or(path)], || how.open(path))
}

#[cfg(test)]
fn take_simulated(path: &Path) -> Result<RunLock, LockError> {
    disk::machine().read(path)?;
    match crate::base::host::try_lock(path) {
        Ok(lock) => Ok(RunLock(Some(Held::Simulated(lock)))),
        Err(pid) => Err(LockError::Held { owner: Holder { pid: Some(pid) }.to_string() }),
    }
}

/// Takes the lock of a workspace for a run that changes its content. Fails with the owner if
/// another process has it. The kernel releases the lock when its holder is killed, but the holder's
/// children may still run: `end` is called with the marker of such a holder before the lock counts
/// as taken.
pub(crate) fn take_checkout(
    workspace: &Path,
    own_mark: &str,
    end: &dyn Fn(&str),
) -> Result<RunLock, LockError> {
    let RunLock(Some(Held::File(mut file))) = take_made(&workspace.join(CHECKOUT))? else {
        return Ok(RunLock(None));
    };
    let mut mark = Vec::new();
    file.read_to_end(&mut mark)?;
    if !mark.is_empty() {
        end(&String::from_utf8_lossy(&mark));
        file.set_len(0)?;
    }
    // A full disk is no reason to refuse the lock: the marker only matters if the holder is killed.
    let _ = file.write_all_at(own_mark.as_bytes(), 0);
    Ok(RunLock(Some(Held::Signed(Signed(file)))))
}

/// Takes the lock of a workspace for a repair. Fails with the owner if another process has it.
pub(crate) fn take_repair(workspace: &Path) -> Result<RunLock, LockError> {
    take_made(&workspace.join(REPAIR))
}

/// Takes the lock of a file, which is created if it is missing. Fails with the owner if another
/// process has it.
pub(crate) fn take_made(path: &Path) -> Result<RunLock, LockError> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    // Callers retry by themselves.
    or_none(take_file(open_to_lock(path)?, Duration::ZERO))
}

/// Takes the lock of a file. If its holder is dead, waits up to `left_behind` for it.
fn take_file(file: File, left_behind: Duration) -> Result<RunLock, LockError> {
    let began = Instant::now();
    loop {
        if try_lock(&file)? {
            return Ok(RunLock(Some(Held::File(file))));
        }
        let pid = pid_of_holder(&file);
        let patience = match pid {
            None => LOOKED_AT,
            Some(pid) if !process::lives(pid) => left_behind,
            Some(_) => Duration::ZERO,
        };
        if began.elapsed() >= patience {
            return Err(LockError::Held { owner: Holder { pid }.to_string() });
        }
        std::thread::sleep(BETWEEN);
    }
}

/// Like [`take`], for a run of a fleet, which the claim of its task owns: a volume without locks is
/// not an error.
pub(crate) fn take_if_any(root: &Path) -> Result<RunLock, LockError> {
    or_none(take(root))
}

/// Converts the error of a volume without locks to an empty lock.
fn or_none(taken: Result<RunLock, LockError>) -> Result<RunLock, LockError> {
    use nix::errno::Errno::{ENOLCK, ENOSYS, EOPNOTSUPP};
    match taken {
        Err(LockError::Io(error)) => {
            let code = error.raw_os_error().map(nix::errno::Errno::from_raw);
            let none = code.is_some_and(|code| [ENOLCK, ENOSYS, EOPNOTSUPP].contains(&code));
            if none { Ok(RunLock(None)) } else { Err(LockError::Io(error)) }
        }
        taken => taken,
    }
}

/// The process that holds a run's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// `None` for a process of another machine or container, which the kernel does not report.
    pub pid: Option<u32>,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

/// Returns the process that holds a run's lock, if any.
pub(crate) fn held_by(root: &Path) -> Option<Holder> {
    holder_of(&root.join(if has_lock_file(root) { LOCK } else { DEFINITION }))
}

/// Returns the process that holds the lock of a workspace, if any.
pub(crate) fn checkout_held_by(workspace: &Path) -> Option<Holder> {
    holder_of(&workspace.join(CHECKOUT))
}

fn holder_of(path: &Path) -> Option<Holder> {
    let file = disk::open(path, OpenOptions::new().read(true)).ok()?;
    if let Some(pid) = pid_of_holder(&file) {
        return Some(Holder { pid: Some(pid) });
    }
    // Shared, so that concurrent checks do not see each other.
    match try_lock_shared(&file) {
        Ok(false) => Some(Holder { pid: pid_of_holder(&file) }),
        _ => None,
    }
}

/// Returns true if a process holds a run's lock.
pub(crate) fn is_held(root: &Path) -> bool {
    held_by(root).is_some()
}

fn pid_of_holder(file: &File) -> Option<u32> {
    let inode = file.metadata().ok()?.ino();
    holder(&std::fs::read_to_string("/proc/locks").ok()?, inode)
}

/// Returns the process that holds an exclusive lock of the inode, from the content of
/// `/proc/locks`.
fn holder(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, "WRITE", pid, place, ..] = fields[..] else { return None };
        let same = place.rsplit(':').next()?.parse() == Ok(inode);
        pid.parse().ok().filter(|pid| same && *pid > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_seen_without_being_taken() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(DEFINITION), "").unwrap();
        assert_eq!(held_by(dir.path()), None);
        let held = take(dir.path()).unwrap();
        assert_eq!(held_by(dir.path()), Some(Holder { pid: Some(std::process::id()) }));
        assert!(matches!(take(dir.path()), Err(LockError::Held { .. })));
        drop(held);
        assert!(!is_held(dir.path()) && take(dir.path()).is_ok());
    }

    #[test]
    fn the_workflow_is_not_locked_and_one_that_is_belongs_to_an_earlier_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DEFINITION);
        assert!(matches!(take(dir.path()), Err(LockError::Io(_))), "nothing can be driven");
        std::fs::write(&path, "").unwrap();
        let workflow = File::open(&path).unwrap();
        assert!(try_lock(&workflow).unwrap());
        assert!(matches!(take(dir.path()), Err(LockError::Held { .. })));
        assert_eq!(held_by(dir.path()), Some(Holder { pid: Some(std::process::id()) }));
        drop(workflow);
        let _held = take(dir.path()).unwrap();
        // Where locks are mandatory, one on the workflow would keep it from being read elsewhere.
        assert!(try_lock(&File::open(&path).unwrap()).unwrap());
        assert!(is_held(dir.path()));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a child that is no step")]
    fn a_lock_whose_taker_is_dead_is_waited_for() {
        use std::io::Read as _;
        use std::process::{Command, Stdio};
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(DEFINITION), "").unwrap();
        let path = dir.path().join(LOCK);
        std::fs::write(&path, "").unwrap();
        // `flock` takes it and is gone; the shell has the file open still.
        let script = "exec 9<>\"$1\"; flock 9; echo; read -r _";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(&path);
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        shell.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let holder = held_by(dir.path()).and_then(|holder| holder.pid).unwrap();
        assert!(holder != shell.id() && !process::lives(holder));
        drop(shell.stdin.take());
        assert!(take(dir.path()).is_ok());
        shell.wait().unwrap();
    }

    #[test]
    fn the_kernels_list_tells_who_holds_a_lock() {
        let locks = "\
1: FLOCK  ADVISORY  WRITE 1708 fd:01:5775 0 EOF
2: POSIX  ADVISORY  READ  99 fd:01:42 0 EOF
3: -> FLOCK  ADVISORY  WRITE 77 fd:01:42 0 EOF
4: FLOCK  ADVISORY  WRITE 0 fd:01:43 0 EOF
";
        assert_eq!(holder(locks, 5775), Some(1708));
        assert_eq!(holder(locks, 42), None);
        assert_eq!(holder(locks, 43), None);
    }
}
