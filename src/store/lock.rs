//! One writer per run: a lock on a file in its directory, held as long as the process lives.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

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
pub fn take(root: &Path, owner: &str) -> Result<RunLock, LockError> {
    let path = root.join("lock");
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    match fs4::FileExt::try_lock(&file) {
        Ok(()) => {}
        Err(fs4::TryLockError::WouldBlock) => {
            let mut owner = String::new();
            file.read_to_string(&mut owner)?;
            // Whoever has just taken it may not have signed yet.
            let signed = Some(owner.trim()).filter(|owner| !owner.is_empty());
            let owner = signed.unwrap_or("another process").to_owned();
            return Err(LockError::Held { owner });
        }
        Err(fs4::TryLockError::Error(error)) => return Err(error.into()),
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(owner.as_bytes())?;
    Ok(RunLock(file))
}

/// Whether somebody holds a run's lock.
pub fn is_held(root: &Path) -> bool {
    let Ok(file) = OpenOptions::new().read(true).write(true).open(root.join("lock")) else {
        return false;
    };
    matches!(fs4::FileExt::try_lock(&file), Err(fs4::TryLockError::WouldBlock))
}
