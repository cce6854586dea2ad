//! One writer per run: a lock on its frozen workflow, which is there from the beginning and never
//! replaced, held as long as the process lives.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::DEFINITION;

/// A held lock. The kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct RunLock(#[expect(dead_code, reason = "held, not read")] File);

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{owner} owns this run")]
    Held { owner: String },
    #[error("cannot lock the run: {0}")]
    Io(#[from] io::Error),
}

/// Takes the lock of a run, or says who has it.
pub fn take(root: &Path) -> Result<RunLock, LockError> {
    // Writable, because a network file system gives an exclusive lock on nothing less.
    let file = OpenOptions::new().read(true).write(true).open(root.join(DEFINITION))?;
    match fs4::FileExt::try_lock(&file) {
        Ok(()) => Ok(RunLock(file)),
        Err(fs4::TryLockError::WouldBlock) => Err(LockError::Held { owner: owner(&file) }),
        Err(fs4::TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Whether somebody holds a run's lock.
pub fn is_held(root: &Path) -> bool {
    matches!(take(root), Err(LockError::Held { .. }))
}

/// Who holds the lock of a file, as the kernel tells it. One of another machine or container it
/// does not know.
fn owner(file: &File) -> String {
    let holder = || {
        let inode = file.metadata().ok()?.ino();
        holder(&std::fs::read_to_string("/proc/locks").ok()?, inode)
    };
    holder().map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
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
