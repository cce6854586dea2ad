//! Checks whether a process uses a file: a lock file that was left over looks like one that is
//! held.

use std::fs;
use std::path::Path;

use super::process::{Pid, pids};

/// Returns true if a process on this machine has `file` open, or if a process whose name starts
/// with `family` works in `dir`. A process of that family counts if its directory is unreadable.
pub(crate) fn at_work(file: &Path, family: &str, dir: &Path) -> bool {
    pids().any(|pid| has_open(pid, file) || is_of(pid, family) && works_in(pid, dir))
}

/// The open files of other users' processes may be unreadable; they count as not open.
fn has_open(pid: Pid, file: &Path) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.into_iter().any(|open| fs::read_link(open.path()).is_ok_and(|path| path == file))
}

fn is_of(pid: Pid, family: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with(family))
}

fn works_in(pid: Pid, dir: &Path) -> bool {
    match fs::read_link(format!("/proc/{pid}/cwd")) {
        Ok(cwd) => cwd.starts_with(dir),
        // A process that has ended meanwhile works in no directory.
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_file_open_or_works_in_a_directory_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (path, nowhere) = (dir.path().join("lock"), dir.path().join("none"));
        let file = fs::File::create(&path).unwrap();
        assert!(at_work(&path, "no-such-program", &nowhere));
        drop(file);
        assert!(!at_work(&path, "no-such-program", &nowhere));
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        let cwd = fs::read_link("/proc/self/cwd").unwrap();
        assert!(at_work(&path, own.trim_end(), &cwd));
        assert!(!at_work(&path, own.trim_end(), &nowhere));
    }
}
