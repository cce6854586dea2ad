//! The machine's own disk. Only this file renames and removes orchestrate's files.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use nix::dir::{Dir, Type};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::{Disk, Visit, no_file};

const NO_REGULAR: &str = "it is no regular file";

/// Maximum number of open files while a group of files is written and synced.
const GROUP: usize = 64;
/// Number of files from which on they are synced in parallel, and number of threads for it.
const MANY: usize = 4;
const SYNCERS: usize = 8;
/// Maximum permissions of a directory; the process's umask removes more.
const DIR_MODE: u32 = 0o775;

/// Renames a file. Durable only after the directory is synced.
#[expect(clippy::disallowed_methods, reason = "this is the disk")]
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

/// A disk that keeps the files it appends to open. It trusts the kernel's answers: code that works
/// on a shared volume uses [`super::machine`].
#[derive(Default)]
pub(crate) struct RealDisk {
    appending: Mutex<HashMap<PathBuf, Arc<File>>>,
}

impl RealDisk {
    /// Locks the map. Held only for lookups: writes and syncs of different files run concurrently.
    fn open(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<File>>> {
        self.appending.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn appender(&self, path: &Path) -> io::Result<Arc<File>> {
        let mut open = self.open();
        if let Some(file) = open.get(path) {
            return Ok(file.clone());
        }
        let file = Arc::new(OpenOptions::new().append(true).create(true).open(path)?);
        open.insert(path.to_owned(), file.clone());
        Ok(file)
    }

    /// Closes the open file of a path whose name is about to refer to another file.
    fn forget(&self, path: &Path) {
        let mut open = self.open();
        if !open.is_empty() {
            open.remove(path);
        }
    }
}

pub(super) fn or_here(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

fn open_dir(dir: &Path) -> io::Result<Dir> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(Dir::open(or_here(dir), flags, Mode::empty())?)
}

/// Closes a file. A close may be the first call to report that a write failed.
fn close(file: File) -> io::Result<()> {
    Ok(nix::unistd::close(file)?)
}

fn write_group(files: &[(PathBuf, Vec<u8>)], sync: bool) -> Vec<io::Result<()>> {
    let write = |(path, bytes): &(PathBuf, Vec<u8>)| {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(bytes)?;
        Ok(file)
    };
    let finish = |file: io::Result<File>| {
        let file = file?;
        if sync {
            file.sync_data()?;
        }
        close(file)
    };
    if !sync || files.len() < MANY {
        return files.iter().map(write).map(finish).collect();
    }
    let mut written: Vec<io::Result<File>> = files.iter().map(write).collect();
    // A disk serves many concurrent syncs in little more time than one.
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        while !written.is_empty() {
            let rest = written.split_off(written.len().min(files.len().div_ceil(SYNCERS)));
            let share = std::mem::replace(&mut written, rest);
            threads.push(scope.spawn(move || share.into_iter().map(finish).collect::<Vec<_>>()));
        }
        let shares =
            threads.into_iter().map(|thread| thread.join().expect("a sync does not panic"));
        shares.flatten().collect()
    })
}

impl Disk for RealDisk {
    fn is_shared(&self, path: &Path) -> bool {
        super::is_remote(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        // With this flag, opening a pipe does not block. It has no effect on regular files.
        let flags = OFlag::O_NONBLOCK.bits();
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let known = file.metadata()?;
        // For a directory, the read itself fails.
        if !known.is_file() && !known.is_dir() {
            return Err(no_file(NO_REGULAR));
        }
        let mut bytes = Vec::with_capacity(known.len() as usize);
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn read_regular(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
        let file = opened.map_err(|error| match error.raw_os_error() {
            Some(code) if code == nix::errno::Errno::ELOOP as i32 => no_file("it is a link"),
            Some(code) if code == nix::errno::Errno::ENXIO as i32 => no_file("it is a socket"),
            _ => error,
        })?;
        let known = file.metadata()?;
        if !known.is_file() {
            return Err(no_file(NO_REGULAR));
        }
        if known.len() > limit {
            return Err(no_file("it is too large"));
        }
        let mut bytes = Vec::with_capacity(known.len() as usize);
        file.take(known.len()).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        (&*self.appender(path)?).write_all(bytes)
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.forget(path);
        OpenOptions::new().write(true).open(path)?.set_len(len)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.forget(path);
        File::create(path)?.write_all(bytes)
    }

    fn write_new(&self, files: &[(PathBuf, Vec<u8>)], sync: bool) -> Vec<io::Result<()>> {
        files.chunks(GROUP).flat_map(|group| write_group(group, sync)).collect()
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        file.write_all_at(bytes, 0)?;
        close(file)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        let open = self.open().get(path).cloned();
        match open {
            Some(file) => file.sync_data(),
            None => File::open(path)?.sync_data(),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.forget(from);
        self.forget(to);
        rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(or_here(dir))?.sync_all()
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(DIR_MODE).create(dir) {
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

    fn scan(&self, dir: &Path, visit: Visit) -> io::Result<()> {
        for entry in open_dir(dir)?.iter() {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy();
            if name != "." && name != ".." && visit(&name) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in open_dir(dir)?.iter() {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_dir = match entry.file_type() {
                Some(kind) => kind == Type::Directory,
                // Not every file system reports the type.
                None => fs::symlink_metadata(dir.join(&name)).is_ok_and(|known| known.is_dir()),
            };
            if is_dir && name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn mode(&self, path: &Path) -> io::Result<u32> {
        Ok(fs::metadata(path)?.permissions().mode() & 0o7777)
    }

    fn changed_ms(&self, path: &Path) -> io::Result<Option<i64>> {
        let found = fs::symlink_metadata(path)?;
        Ok(Some(found.ctime() * 1000 + found.ctime_nsec() / 1_000_000))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.forget(path);
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }
}
