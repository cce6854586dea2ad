//! A temporary directory for tests, removed when it is dropped.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Finding;

/// `.orchestrate/doctor/<random>`; `made_parent` is true if this process created `.orchestrate`.
pub(crate) struct Scratch {
    pub dir: PathBuf,
    made_parent: bool,
}

impl Scratch {
    pub(crate) fn make(workspace: &Path) -> io::Result<Scratch> {
        let own = workspace.join(".orchestrate");
        let made_parent = match fs::create_dir(&own) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        let dir = own.join("doctor").join(format!("{:016x}", crate::base::random::chance()));
        let scratch = Scratch { dir, made_parent };
        fs::create_dir_all(&scratch.dir)?;
        fs::write(scratch.dir.join("written"), "can this be written?\n")?;
        Ok(scratch)
    }

    /// Reports the leftovers of an examination that was killed.
    pub(crate) fn leftovers(&self) -> Option<Finding> {
        let own = self.dir.file_name();
        let entries = self.dir.parent()?.read_dir().ok()?.flatten();
        let others = entries.filter(|entry| Some(entry.file_name().as_os_str()) != own).count();
        (others > 0).then(|| {
            Finding::warning(
                "leftovers",
                "`.orchestrate/doctor` holds what another `doctor` made or left behind",
                "if no other one is at work: rm -r .orchestrate/doctor",
            )
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A second process may still be running for a moment; its late files are removed as well.
        for _ in 0..3 {
            if fs::remove_dir_all(&self.dir).is_ok() {
                break;
            }
        }
        // These are removed only if they are empty: other processes may use them too.
        let above = self.dir.ancestors().skip(1).take(if self.made_parent { 2 } else { 1 });
        for dir in above {
            let _ = fs::remove_dir(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_stays_that_was_not_there() {
        let workspace = tempfile::tempdir().unwrap();
        drop(Scratch::make(workspace.path()).unwrap());
        assert_eq!(workspace.path().read_dir().unwrap().count(), 0);
        fs::create_dir_all(workspace.path().join(".orchestrate/runs")).unwrap();
        drop(Scratch::make(workspace.path()).unwrap());
        let left = workspace.path().join(".orchestrate").read_dir().unwrap();
        assert_eq!(left.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>(), ["runs"]);
    }

    #[test]
    fn two_do_not_disturb_each_other() {
        let workspace = tempfile::tempdir().unwrap();
        let one = Scratch::make(workspace.path()).unwrap();
        assert_eq!(one.leftovers(), None);
        let two = Scratch::make(workspace.path()).unwrap();
        assert!(two.leftovers().is_some());
        drop(one);
        assert!(two.dir.join("written").exists());
        drop(two);
        assert!(!workspace.path().join(".orchestrate/doctor").exists());
    }
}
