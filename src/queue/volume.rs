//! Is it there at all: a volume that was unmounted looks like an empty directory.
//!
//! **Invariant:** nothing is taken to be empty or absent unless the volume is the one that was
//! opened. Its name is a random word in `fleet.json`, made once, by whoever came first.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::FsQueue;
use super::moves::{Patience, parent};
use crate::disk::Visit;

const SCHEMA: &str = "fleet/v1";
/// How long whoever names the volume may take to write a line.
const HALF_MADE: Duration = Duration::from_millis(500);

impl FsQueue {
    /// The volume's name, which is made if it has none.
    pub(super) fn find_volume(&self) -> io::Result<String> {
        let mut patience = Patience::new(HALF_MADE);
        loop {
            if let Some(volume) = self.read_volume()? {
                return Ok(volume);
            }
            match self.name_volume() {
                Ok(()) => {}
                // Somebody was faster, and on a disk without links may still be writing.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if self.read_volume()?.is_none() {
                        patience.wait_anyway(self.damaged())?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn name_volume(&self) -> io::Result<()> {
        let document = json!({ "schema": SCHEMA, "volume": self.word() });
        let bytes = format!("{document}\n").into_bytes();
        let (file, temporary) = (self.layout.fleet_file(), self.temporary());
        self.write_one(&temporary, bytes.clone(), true)?;
        let linked = match self.disk.link(&temporary, &file) {
            // Some file systems have no links; then it is not whole for a moment.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                self.write_one(&file, bytes, true)
            }
            linked => linked,
        };
        self.disk.remove(&temporary)?;
        linked?;
        self.disk.sync_dir(parent(&file))
    }

    fn read_volume(&self) -> io::Result<Option<String>> {
        let bytes = match self.disk.read(&self.layout.fleet_file()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let document: Option<Value> = serde_json::from_slice(&bytes).ok();
        Ok(document.and_then(|document| Some(document.get("volume")?.as_str()?.to_owned())))
    }

    fn damaged(&self) -> io::Error {
        let file = self.layout.fleet_file();
        io::Error::other(format!(
            "`{}` does not say which volume this is: remove it if nobody uses the queue",
            file.display()
        ))
    }

    /// Whether the volume that was opened is still the one that is there.
    pub fn is_mounted(&self) -> io::Result<bool> {
        // While it is being opened it has no name yet.
        Ok(self.volume.is_empty() || self.read_volume()?.as_ref() == Some(&self.volume))
    }

    /// An error unless the volume is there.
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

    /// Visits a directory's names; one that is not there has none. False if it is not there.
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

    /// All names in a directory that `pick` makes something of, in no order. None at all is
    /// believed of the right volume only.
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

    /// The directories in a directory.
    pub(super) fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        match self.disk.list_dirs(dir) {
            Ok(names) if !names.is_empty() => Ok(names),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.need_volume().map(|()| Vec::new()),
        }
    }

    /// A small file's content; nothing, if it is not there.
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
