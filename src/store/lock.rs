//! One writer per run: a lock on its frozen workflow, which is there from the beginning and never
//! replaced, held as long as the process lives.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::DEFINITION;
use crate::disk::faulty::has_locks;
use crate::process;

/// Somebody who only looks whether a run is held keeps the lock for moments.
const LOOKED_AT: Duration = Duration::from_millis(25);
/// A child that was being started when its parent was killed keeps the parent's locks until it has
/// become its own program.
const LEFT_BEHIND: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_millis(5);

/// Locked by whoever changes what is in the workspace.
const CHECKOUT: &str = ".orchestrate/checkout.lock";
/// Locked by whoever mends what is in the workspace.
const REPAIR: &str = ".orchestrate/repair.lock";

/// A held lock. The kernel lets go of it when the process ends, however it ends. Nothing, where
/// the volume has no locks.
#[derive(Debug)]
pub struct RunLock(#[expect(dead_code, reason = "held, not read")] Option<Held>);

/// What the kernel holds a lock by.
#[derive(Debug)]
enum Held {
    File(#[expect(dead_code, reason = "held, not read")] File),
    #[cfg(test)]
    Simulated(#[expect(dead_code, reason = "held, not read")] crate::host::Lock),
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
    // Writable, because a network file system gives an exclusive lock on nothing less.
    let file = OpenOptions::new().read(true).write(true).open(root.join(DEFINITION))?;
    take_file(file, LEFT_BEHIND)
}

#[cfg(test)]
fn take_simulated(path: &Path) -> Result<RunLock, LockError> {
    crate::disk::machine().read(path)?;
    match crate::host::try_lock(path) {
        Ok(lock) => Ok(RunLock(Some(Held::Simulated(lock)))),
        Err(pid) => Err(LockError::Held { owner: Holder { pid: Some(pid) }.to_string() }),
    }
}

/// Takes the lock of a workspace for a run that changes what is in it, or says who has it.
pub fn take_checkout(workspace: &Path) -> Result<RunLock, LockError> {
    take_made(&workspace.join(CHECKOUT))
}

/// Takes the lock of a workspace for one who mends it, or says who has it.
pub fn take_repair(workspace: &Path) -> Result<RunLock, LockError> {
    take_made(&workspace.join(REPAIR))
}

/// Takes the lock of a file that is made if it is missing, or says who has it.
pub fn take_made(path: &Path) -> Result<RunLock, LockError> {
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    // Those who want it ask again by themselves.
    or_none(take_file(open?, Duration::ZERO))
}

/// Takes the lock of a file. One whose taker is dead is waited for as long as that.
fn take_file(file: File, left_behind: Duration) -> Result<RunLock, LockError> {
    let began = Instant::now();
    loop {
        if !has_locks() {
            return Err(io::Error::from(nix::errno::Errno::ENOLCK).into());
        }
        match fs4::FileExt::try_lock(&file) {
            Ok(()) => return Ok(RunLock(Some(Held::File(file)))),
            Err(fs4::TryLockError::WouldBlock) => {}
            Err(fs4::TryLockError::Error(error)) => return Err(error.into()),
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
    holder_of(&root.join(DEFINITION))
}

/// Who holds the lock of a workspace, if anybody does.
pub fn checkout_held_by(workspace: &Path) -> Option<Holder> {
    holder_of(&workspace.join(CHECKOUT))
}

fn holder_of(path: &Path) -> Option<Holder> {
    let file = File::open(path).ok()?;
    if let Some(pid) = pid_of_holder(&file) {
        return Some(Holder { pid: Some(pid) });
    }
    // Shared, so that those who look do not see each other.
    match fs4::FileExt::try_lock_shared(&file) {
        Err(fs4::TryLockError::WouldBlock) => Some(Holder { pid: pid_of_holder(&file) }),
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
    #[expect(clippy::disallowed_methods, reason = "a child that is no step")]
    fn a_lock_whose_taker_is_dead_is_waited_for() {
        use std::io::Read as _;
        use std::process::{Command, Stdio};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DEFINITION);
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
