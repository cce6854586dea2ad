//! One writer per run: a lock on a file of its own, held as long as the process lives.
//!
//! **Invariant:** the locked file holds nothing that a process without the lock reads. On SMB, a
//! file that one machine locks cannot be read on the others.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::DEFINITION;
use crate::disk::locks::{try_lock, try_lock_shared};
use crate::disk::{self, faulty::has_locks};
use crate::process;

/// Somebody who only looks whether a run is held keeps the lock for moments.
const LOOKED_AT: Duration = Duration::from_millis(25);
/// A child that was being started when its parent was killed keeps the parent's locks until it has
/// become its own program.
const LEFT_BEHIND: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_millis(5);

/// The file in a run's directory that the process which drives the run locks.
const LOCK: &str = ".lock";
/// Locked by whoever changes what is in the workspace.
const CHECKOUT: &str = ".orchestrate/checkout.lock";
/// Locked by whoever mends what is in the workspace.
const REPAIR: &str = ".orchestrate/repair.lock";

/// A held lock. The kernel lets go of it when the process ends, however it ends. Nothing, where
/// the volume has no locks.
#[derive(Debug)]
pub struct RunLock(Option<Held>);

/// What the kernel holds a lock by.
#[derive(Debug)]
enum Held {
    File(File),
    Signed(#[expect(dead_code, reason = "held, not read")] Signed),
    #[cfg(test)]
    Simulated(#[expect(dead_code, reason = "held, not read")] crate::host::Lock),
}

/// A file that names the process that holds its lock, for the next holder: a name that is still
/// there is that of a process that was killed.
#[derive(Debug)]
struct Signed(File);

impl Drop for Signed {
    fn drop(&mut self) {
        let _ = self.0.set_len(0);
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{owner} owns this run")]
    Held { owner: String },
    #[error("cannot lock the run: {0}")]
    Io(#[from] io::Error),
}

/// Takes the lock of a run, or says who has it.
pub fn take(root: &Path) -> Result<RunLock, LockError> {
    #[cfg(test)]
    if crate::host::is_simulated() {
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

/// Whether a run has a file to be locked. Without one, an earlier version of this program drives
/// the run, which locks the workflow itself, or no process does. Lists the directory: another
/// machine may have made the file a moment ago.
fn has_lock_file(root: &Path) -> bool {
    let listed = disk::confirmed(&[root], || std::fs::read_dir(root));
    let names = listed.into_iter().flatten().flatten();
    names.map(|entry| entry.file_name()).any(|name| name == LOCK)
}

/// Opens a file to be locked, making it if it is missing. Writable, because a network file system
/// gives an exclusive lock on nothing less.
fn open_to_lock(path: &Path) -> io::Result<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    disk::confirmed(&[path.parent().unwrap_or(path)], || how.open(path))
}

#[cfg(test)]
fn take_simulated(path: &Path) -> Result<RunLock, LockError> {
    disk::machine().read(path)?;
    match crate::host::try_lock(path) {
        Ok(lock) => Ok(RunLock(Some(Held::Simulated(lock)))),
        Err(pid) => Err(LockError::Held { owner: Holder { pid: Some(pid) }.to_string() }),
    }
}

/// Takes the lock of a workspace for a run that changes what is in it, or says who has it. The
/// kernel lets go of it when its holder is killed, whose children may still be at work: `end` is
/// called with the mark of such a holder before the lock counts as taken.
pub fn take_checkout(
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
    // A full disk is no reason to refuse the lock: the mark is for a holder that is killed.
    let _ = file.write_all_at(own_mark.as_bytes(), 0);
    Ok(RunLock(Some(Held::Signed(Signed(file)))))
}

/// Takes the lock of a workspace for one who mends it, or says who has it.
pub fn take_repair(workspace: &Path) -> Result<RunLock, LockError> {
    take_made(&workspace.join(REPAIR))
}

/// Takes the lock of a file that is made if it is missing, or says who has it.
pub fn take_made(path: &Path) -> Result<RunLock, LockError> {
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    // Those who want it ask again by themselves.
    or_none(take_file(open_to_lock(path)?, Duration::ZERO))
}

/// Takes the lock of a file. One whose taker is dead is waited for as long as that.
fn take_file(file: File, left_behind: Duration) -> Result<RunLock, LockError> {
    let began = Instant::now();
    loop {
        if !has_locks() {
            return Err(io::Error::from(nix::errno::Errno::ENOLCK).into());
        }
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

/// The same for a run of a fleet, which is owned by the claim of its task: a volume without locks
/// will do.
pub fn take_if_any(root: &Path) -> Result<RunLock, LockError> {
    or_none(take(root))
}

/// A volume without locks has none to take.
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

/// Who holds a run's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Nothing, if it is of another machine or container, which the kernel does not tell.
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

/// Who holds a run's lock, if anybody does.
pub fn held_by(root: &Path) -> Option<Holder> {
    holder_of(&root.join(if has_lock_file(root) { LOCK } else { DEFINITION }))
}

/// Who holds the lock of a workspace, if anybody does.
pub fn checkout_held_by(workspace: &Path) -> Option<Holder> {
    holder_of(&workspace.join(CHECKOUT))
}

fn holder_of(path: &Path) -> Option<Holder> {
    let file = disk::open(path, OpenOptions::new().read(true)).ok()?;
    if let Some(pid) = pid_of_holder(&file) {
        return Some(Holder { pid: Some(pid) });
    }
    // Shared, so that those who look do not see each other.
    match try_lock_shared(&file) {
        Ok(false) => Some(Holder { pid: pid_of_holder(&file) }),
        _ => None,
    }
}

/// Whether somebody holds a run's lock.
pub fn is_held(root: &Path) -> bool {
    held_by(root).is_some()
}

fn pid_of_holder(file: &File) -> Option<u32> {
    let inode = file.metadata().ok()?.ino();
    holder(&std::fs::read_to_string("/proc/locks").ok()?, inode)
}

/// The process in a list of the kernel's that holds an exclusive lock of the inode.
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
