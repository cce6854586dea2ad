//! The machine's own disk. Renames and removals of our own files happen here and nowhere else.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::Disk;

/// Gives a file another name. Durable only once the directory is synced.
#[expect(clippy::disallowed_methods, reason = "this is the disk")]
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

/// A disk that keeps the files it appends to open.
#[derive(Default)]
pub struct RealDisk {
    appending: Mutex<HashMap<PathBuf, File>>,
}

impl RealDisk {
    fn appender<T>(
        &self,
        path: &Path,
        act: impl FnOnce(&mut File) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut open = self.appending.lock().unwrap_or_else(|poison| poison.into_inner());
        if !open.contains_key(path) {
            let file = OpenOptions::new().append(true).create(true).open(path)?;
            open.insert(path.to_owned(), file);
        }
        act(open.get_mut(path).expect("it was just put there"))
    }

    /// Forgets the open file of a path whose name is about to mean another file.
    fn forget(&self, path: &Path) {
        self.appending.lock().unwrap_or_else(|poison| poison.into_inner()).remove(path);
    }
}

impl Disk for RealDisk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.appender(path, |file| file.write_all(bytes))
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.forget(path);
        OpenOptions::new().write(true).open(path)?.set_len(len)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.forget(path);
        File::create(path)?.write_all(bytes)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        let open = self.appending.lock().unwrap_or_else(|poison| poison.into_inner());
        match open.get(path) {
            Some(file) => file.sync_data(),
            None => File::open(path)?.sync_data(),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.forget(from);
        self.forget(to);
        rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        File::open(dir)?.sync_all()
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        match fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        let mut missing = Vec::new();
        let mut here = Some(dir);
        while let Some(path) = here
            && !path.as_os_str().is_empty()
            && !path.is_dir()
        {
            missing.push(path);
            here = path.parent();
        }
        for path in missing.into_iter().rev() {
            self.make_dir(path)?;
            self.sync_dir(path.parent().unwrap_or(Path::new("")))?;
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<_>>>();
        names.map(|mut names| {
            names.sort();
            names
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.forget(path);
        fs::remove_file(path)
    }
}
