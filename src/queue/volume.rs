//! Checks that the volume is mounted: an unmounted volume looks like an empty directory.
//!
//! **Invariant:** nothing counts as empty or absent unless the volume is the one that was opened.
//! Its name is a random token in `fleet.json`, created once, by the first process.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::Queue;
use super::layout::Layout;
use super::missing_volume::{self, VolumeFault};
use super::moves::{Patience, parent};
use crate::disk::{Disk, Visit};

const SCHEMA: &str = "fleet/v1";
/// Time allowed for the process that names the volume to write the line.
const HALF_MADE: Duration = Duration::from_millis(500);

/// Returns the content of `fleet.json` for a volume name.
pub(super) fn document(word: &str) -> Value {
    json!({ "schema": SCHEMA, "volume": word })
}

/// Result of reading a volume's name.
enum Name {
    Known(String),
    /// The file does not exist.
    None,
    /// The file exists but does not contain a name, or not yet.
    Unreadable(VolumeFault),
}

/// Returns true if a workspace has a queue. Fails if it has one whose name is missing.
pub(crate) fn has_queue(disk: &dyn Disk, layout: &Layout) -> io::Result<bool> {
    match read_name(disk, layout)? {
        Name::Known(_) | Name::Unreadable(_) => Ok(true),
        Name::None => need_new(disk, layout).map(|is_new| !is_new),
    }
}

/// Returns the fault of the queue's name, or `None` if there is no fault.
pub(crate) fn fault_of(disk: &dyn Disk, layout: &Layout) -> io::Result<Option<VolumeFault>> {
    let fault = match read_name(disk, layout)? {
        Name::Known(_) => return Ok(None),
        Name::Unreadable(fault) => return Ok(Some(fault)),
        Name::None => need_new(disk, layout).err(),
    };
    fault.map_or(Ok(None), |error| match VolumeFault::of(&error) {
        Some(fault) => Ok(Some(fault.clone())),
        None => Err(error),
    })
}

/// Returns true if a workspace without a name is new, and false if it was named meanwhile. Fails if
/// it had a queue.
fn need_new(disk: &dyn Disk, layout: &Layout) -> io::Result<bool> {
    let Some(trace) = missing_volume::trace(disk, layout)? else { return Ok(true) };
    // A queue has its name before anything else. If its files exist, the name is listed now, or it
    // is lost.
    let file = layout.fleet_file();
    match missing_volume::is_listed(disk, &file)? {
        true => Ok(false),
        false => Err(VolumeFault::Gone { file, trace }.into()),
    }
}

fn read_name(disk: &dyn Disk, layout: &Layout) -> io::Result<Name> {
    let file = layout.fleet_file();
    let damaged = |reason: &str| {
        let (file, reason) = (file.clone(), reason.to_owned());
        Ok(Name::Unreadable(VolumeFault::Damaged { file, reason }))
    };
    let bytes = match disk.read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Name::None),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            return damaged("it is a directory");
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return damaged(&error.to_string());
        }
        bytes => bytes?,
    };
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return damaged("it is empty");
    }
    let Ok(document) = serde_json::from_slice::<Value>(&bytes) else {
        return damaged("it is not JSON");
    };
    let text = |key: &str| document.get(key).and_then(Value::as_str).filter(|t| !t.is_empty());
    match (text("schema"), text("volume")) {
        (Some(SCHEMA), Some(volume)) => Ok(Name::Known(volume.to_owned())),
        (Some(SCHEMA), None) => damaged("it has no `volume`"),
        (Some(other), _) => {
            let schema = other.chars().filter(|c| !c.is_control()).take(40).collect();
            Ok(Name::Unreadable(VolumeFault::Foreign { file, schema }))
        }
        (None, _) => damaged("it has no `schema`"),
    }
}

impl Queue {
    /// Returns the volume's name. Creates a name if there is none.
    pub(super) fn find_volume(&self) -> io::Result<String> {
        let (disk, layout) = (&*self.disk, &self.layout);
        let mut patience = Patience::new(HALF_MADE);
        loop {
            match read_name(disk, layout)? {
                Name::Known(volume) => return Ok(volume),
                // On a disk without hard links, another process may still be writing it.
                Name::Unreadable(fault) => patience.wait_anyway(fault.into())?,
                Name::None if need_new(disk, layout)? => match self.name_volume() {
                    // Another process may have been faster.
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error);
                    }
                    _ => {}
                },
                Name::None => patience.wait_anyway(unseen(layout))?,
            }
        }
    }

    fn name_volume(&self) -> io::Result<()> {
        let bytes = format!("{}\n", document(&self.word())).into_bytes();
        let (file, temporary) = (self.layout.fleet_file(), self.temporary());
        self.disk.make_dirs(&self.layout.tmp())?;
        let written = self.write_one(&temporary, bytes.clone(), true);
        let named = written.and_then(|()| match self.disk.link(&temporary, &file) {
            // Some file systems have no hard links; then the file is incomplete for a moment.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                self.write_one(&file, bytes, true)
            }
            linked => linked,
        });
        // Also after a failure: this process is not a member yet, so nothing else removes the file.
        let removed = self.disk.remove(&temporary);
        named?;
        removed?;
        self.disk.sync_dir(parent(&file))
    }

    fn read_volume(&self) -> io::Result<Option<String>> {
        Ok(match read_name(&*self.disk, &self.layout)? {
            Name::Known(volume) => Some(volume),
            Name::None | Name::Unreadable(_) => None,
        })
    }

    /// Returns true if the mounted volume is the one that was opened.
    pub(crate) fn is_mounted(&self) -> io::Result<bool> {
        // During `open`, the name is not known yet.
        Ok(self.volume.is_empty() || self.read_volume()?.as_ref() == Some(&self.volume))
    }

    /// Fails unless the volume is mounted.
    pub(super) fn need_volume(&self) -> io::Result<()> {
        let mut patience = Patience::new(self.patience);
        loop {
            match self.is_mounted() {
                Ok(true) => return Ok(()),
                Ok(false) => break,
                Err(error) => patience.wait(error)?,
            }
        }
        Err(io::Error::other(format!(
            "the volume of `{}` is not there: `{}` is gone or another one; mount it again",
            self.layout.root.display(),
            self.layout.fleet_file().display()
        )))
    }

    /// Visits the names in a directory. Returns false, without visiting any, if it does not exist.
    pub(super) fn scan(&self, dir: &Path, visit: Visit) -> io::Result<bool> {
        let mut patience = Patience::new(self.patience);
        loop {
            match self.disk.scan(dir, visit) {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return self.need_volume().map(|()| false);
                }
                Err(error) => patience.wait(error)?,
            }
        }
    }

    /// Returns the results of `pick` over all names in a directory, in no order. An empty result is
    /// trusted only if the volume is the right one.
    pub(super) fn list<T>(
        &self,
        dir: &Path,
        mut pick: impl FnMut(&str) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut picked = Vec::new();
        self.scan(dir, &mut |name| {
            picked.extend(pick(name));
            ControlFlow::Continue(())
        })?;
        if picked.is_empty() {
            self.need_volume()?;
        }
        Ok(picked)
    }

    /// Returns the names of the subdirectories of a directory.
    pub(super) fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        match self.disk.list_dirs(dir) {
            Ok(names) if !names.is_empty() => Ok(names),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.need_volume().map(|()| Vec::new()),
        }
    }

    /// Returns the content of a small file, or `None` if it does not exist.
    pub(super) fn read_file(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match self.disk.read(path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.need_volume().map(|()| None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the error for a name file that is listed but, because of a cache, cannot be read yet.
fn unseen(layout: &Layout) -> io::Error {
    io::Error::other(format!("`{}` is there and cannot be seen yet", layout.fleet_file().display()))
}
