//! File locks, across the volumes' differences.

use std::fs::{File, TryLockError};
use std::io;

/// Tries to take the exclusive lock of a file. Returns false if another process has it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    taken(file.try_lock())
}

/// Tries to take a shared lock of a file. Returns false if another process has the exclusive one.
pub(crate) fn try_lock_shared(file: &File) -> io::Result<bool> {
    taken(file.try_lock_shared())
}

/// Converts the result of a lock call. An SMB volume reports the lock of another machine as
/// `EACCES`, which cannot mean a missing permission here: the file is already open.
fn taken(outcome: Result<(), TryLockError>) -> io::Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
            Ok(false)
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_an_smb_server_refuses_is_held_by_another() {
        let refused = || io::Error::from(nix::errno::Errno::EACCES);
        assert!(!taken(Err(TryLockError::Error(refused()))).unwrap());
        assert!(!taken(Err(TryLockError::WouldBlock)).unwrap());
        let none = io::Error::from(nix::errno::Errno::ENOLCK);
        assert!(taken(Err(TryLockError::Error(none))).is_err());
    }
}
