//! Handles a queue whose volume name is missing or unreadable: distinguishes it from a workspace
//! that never had a queue, and suggests a fix.
//!
//! **Invariant:** a workspace counts as new only if it contains nothing that requires a volume name
//! to create. A second name for one queue would let two fleets work on it.

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::layout::{Layout, OWN};
use super::name::{ClaimName, TaskName};
use super::{End, moves};
use crate::disk::Disk;

/// Reason why the volume cannot be identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeFault {
    /// A queue exists, but the file that names it is missing.
    Gone { file: PathBuf, trace: PathBuf },
    /// The file that should name the volume does not contain a name.
    Damaged { file: PathBuf, reason: String },
    /// The name is written in the format of another version.
    Foreign { file: PathBuf, schema: String },
}

impl fmt::Display for VolumeFault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            VolumeFault::Gone { file, trace } => {
                let (file, trace) = (file.display(), trace.display());
                write!(
                    f,
                    "there is a queue here (`{trace}`), but `{file}`, which names it, is gone"
                )
            }
            VolumeFault::Damaged { file, reason } => {
                write!(f, "`{}` does not say which volume this is: {reason}", file.display())
            }
            VolumeFault::Foreign { file, schema } => {
                let file = file.display();
                write!(f, "`{file}` is written as `{schema}`, which this version cannot read")
            }
        }
    }
}

impl std::error::Error for VolumeFault {}

impl VolumeFault {
    /// Returns the volume fault that an error carries, if any.
    pub fn of(error: &io::Error) -> Option<&VolumeFault> {
        error.get_ref()?.downcast_ref()
    }

    /// Returns a hint on how to fix the fault. Names `fsck --repair` where it can rename the queue.
    pub fn hint(&self, word: &str) -> String {
        match self {
            VolumeFault::Gone { trace, .. } if !trace.starts_with(OWN) => self.cure(word),
            VolumeFault::Foreign { .. } => self.cure(word),
            VolumeFault::Gone { .. } | VolumeFault::Damaged { .. } => {
                "put it back from a copy, and whoever lives goes on; if there is none, end every \
                 worker and coordinator, then `orchestrate fsck --repair` names the queue anew"
                    .into()
            }
        }
    }

    /// Returns the manual fix, for faults that no command repairs; `word` is a new name for the
    /// volume.
    pub fn cure(&self, word: &str) -> String {
        let (file, make) = match self {
            VolumeFault::Foreign { .. } => {
                return "use the version of orchestrate that the rest of the fleet uses".into();
            }
            // The directory of the file may be missing, too.
            VolumeFault::Gone { file, trace } if !trace.starts_with(OWN) => {
                (file, format!("mkdir -p '{}' && ", moves::parent(file).display()))
            }
            VolumeFault::Gone { file, .. } | VolumeFault::Damaged { file, .. } => {
                (file, String::new())
            }
        };
        let (document, file) = (super::volume::document(word), file.display());
        format!(
            "put it back from a copy, and whoever lives goes on; if there is none, end every \
             worker and coordinator, then name the queue anew: {make}echo '{document}' > '{file}'"
        )
    }
}

impl From<VolumeFault> for io::Error {
    fn from(fault: VolumeFault) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, fault)
    }
}

/// Returns a path, relative to the workspace, that only a queue with a name can have created, or
/// `None`.
pub(super) fn trace(disk: &dyn Disk, layout: &Layout) -> io::Result<Option<PathBuf>> {
    let own = [
        layout.all_claimed(),
        layout.workers(),
        layout.beats(),
        layout.results(),
        layout.evidence(),
        layout.intake(),
        layout.cancel(),
        layout.pause(),
        layout.drain(),
        layout.ends(End::Cancelled),
    ];
    for dir in own {
        if let Some(name) = first(disk, &dir, |_| true)? {
            return Ok(Some(relative(layout, &dir.join(name))));
        }
    }
    // Users also write to these directories: count only names that the queue creates.
    let is_task =
        |name: &str| TaskName::parse(name).is_some() || ClaimName::parse_ended(name).is_some();
    for dir in [layout.inboxes(), layout.ends(End::Processed), layout.ends(End::Failed)] {
        for inner in none_if_absent(disk.list_dirs(&dir))? {
            let inner = dir.join(inner);
            if let Some(name) = first(disk, &inner, is_task)? {
                return Ok(Some(relative(layout, &inner.join(name))));
            }
        }
    }
    Ok(None)
}

/// Returns true if a directory listing contains the file: a cache may hold that an existing file
/// does not exist.
pub(super) fn is_listed(disk: &dyn Disk, file: &Path) -> io::Result<bool> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    Ok(first(disk, moves::parent(file), |listed| listed == name)?.is_some())
}

fn relative(layout: &Layout, path: &Path) -> PathBuf {
    path.strip_prefix(&layout.root).unwrap_or(path).to_owned()
}

/// Returns the first name in a directory that `will_do` accepts, or `None` if there is none or no
/// such directory.
fn first(
    disk: &dyn Disk,
    dir: &Path,
    will_do: impl Fn(&str) -> bool,
) -> io::Result<Option<String>> {
    let mut found = None;
    none_if_absent(disk.scan(dir, &mut |name| {
        if !will_do(name) {
            return ControlFlow::Continue(());
        }
        found = Some(name.to_owned());
        ControlFlow::Break(())
    }))?;
    Ok(found)
}

fn none_if_absent<T: Default>(listed: io::Result<T>) -> io::Result<T> {
    match listed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        // A user's file in place of a directory contains nothing of the queue.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(T::default()),
        listed => listed,
    }
}
