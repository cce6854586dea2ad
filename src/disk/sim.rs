//! An in-memory disk that crashes on command.
//!
//! The fault model: a crash keeps synced data. Of unsynced data, it may keep any prefix of appended
//! bytes, the old or the new content of a rewritten file (or none of it), and any change of names
//! whose directory was not synced, each as the seed decides. A rename happened completely or not at
//! all, so a sync of either of its directories is a sync of both names. Synced bytes and names are
//! never lost. A directory is durable once it is created. After a crash every call fails until
//! [`SimDisk::restart`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::{Disk, Visit, no_file};
use crate::base::random::Random;

#[derive(Clone, Default)]
struct Inode {
    written: Vec<u8>,
    synced: Vec<u8>,
}

#[derive(Default)]
struct Image {
    inodes: Vec<Inode>,
    /// Names as processes see them, and as the medium has them.
    names: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    dirs: BTreeSet<PathBuf>,
    operations: usize,
    crash_after: Option<usize>,
    crashed: bool,
}

/// An in-memory disk; see the module.
#[derive(Default)]
pub(crate) struct SimDisk {
    image: Mutex<Image>,
}

impl SimDisk {
    /// Lets `operations` more calls through and then crashes: the next call has no effect.
    pub(crate) fn crash_after(&self, operations: usize) {
        let mut image = self.image.lock().unwrap();
        image.crash_after = Some(image.operations + operations);
    }

    pub(crate) fn operations(&self) -> usize {
        self.image.lock().unwrap().operations
    }

    /// Restarts after a crash, with one of the states that the medium may hold; `seed` selects it.
    pub(crate) fn restart(&self, seed: u64) {
        let mut image = self.image.lock().unwrap();
        let mut random = Random::new(seed);
        let names = image.names_after(&mut random);
        for inode in &mut image.inodes {
            inode.written = torn(inode, &mut random);
            inode.synced = inode.written.clone();
        }
        image.durable = names.clone();
        image.names = names;
        image.crash_after = None;
        image.crashed = false;
    }

    /// Removes a directory with its content, as an unmount does.
    pub(crate) fn take_away(&self, dir: &Path) {
        let mut image = self.image.lock().unwrap();
        image.names.retain(|path, _| !path.starts_with(dir));
        image.dirs.retain(|path| !path.starts_with(dir));
    }

    /// Restarts after the end of a process, which loses nothing on the disk.
    pub(crate) fn restart_whole(&self) {
        let mut image = self.image.lock().unwrap();
        image.crash_after = None;
        image.crashed = false;
    }

    fn act<T>(&self, act: impl FnOnce(&mut Image) -> io::Result<T>) -> io::Result<T> {
        let mut image = self.image.lock().unwrap();
        if image.crash_after.is_some_and(|limit| image.operations >= limit) {
            image.crashed = true;
        }
        if image.crashed {
            return Err(io::Error::other("the machine has crashed"));
        }
        image.operations += 1;
        act(&mut image)
    }
}

/// Returns one of the possible contents of a file after a crash.
fn torn(inode: &Inode, random: &mut Random) -> Vec<u8> {
    if inode.written == inode.synced {
        return inode.synced.clone();
    }
    if inode.written.starts_with(&inode.synced) {
        let extra = inode.written.len() - inode.synced.len();
        let kept = inode.synced.len() + random.below(extra + 1);
        return inode.written[..kept].to_vec();
    }
    match random.below(3) {
        0 => inode.written.clone(),
        1 => inode.synced.clone(),
        _ => Vec::new(),
    }
}

fn missing() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Image {
    /// Returns one of the possible sets of names after a crash. A rename happened or did not: a
    /// file never has both names or neither, and a name that was replaced refers to its old file or
    /// its new one.
    fn names_after(&self, random: &mut Random) -> BTreeMap<PathBuf, usize> {
        let mut after = BTreeMap::new();
        for (path, inode) in &self.names {
            let before = self.durable.iter().find(|(_, other)| *other == inode);
            let kept = match before {
                _ if self.durable.get(path) == Some(inode) => Some(path),
                Some((old, _)) => Some(if random.coin() { path } else { old }),
                None => random.coin().then_some(path),
            };
            after.extend(kept.map(|path| (path.clone(), *inode)));
        }
        for (path, inode) in &self.durable {
            let gone = !self.names.values().any(|other| other == inode);
            let taken_over = self.names.contains_key(path);
            if gone && !after.contains_key(path) && (taken_over || random.coin()) {
                after.insert(path.clone(), *inode);
            }
        }
        after
    }

    /// Makes the names of a directory durable. A file that was moved out of it is durable under its
    /// new name, too.
    fn sync_names(&mut self, dir: &Path) {
        let inside = |path: &Path| path.parent() == Some(dir);
        let mut moved = Vec::new();
        self.durable.retain(|path, inode| {
            let gone = inside(path) && !self.names.contains_key(path);
            moved.extend(gone.then_some(*inode));
            !inside(path)
        });
        moved.retain(|inode| !self.durable.values().any(|other| other == inode));
        let names = self.names.iter().filter(|(path, inode)| inside(path) || moved.contains(inode));
        self.durable.extend(names.map(|(path, inode)| (path.clone(), *inode)));
    }

    fn inode(&mut self, path: &Path) -> io::Result<&mut Inode> {
        let index = *self.names.get(path).ok_or_else(missing)?;
        Ok(&mut self.inodes[index])
    }

    /// Returns the file of a path. Creates it if it does not exist; its directory must exist.
    fn make(&mut self, path: &Path) -> io::Result<&mut Inode> {
        self.has_dir(path.parent().unwrap_or(Path::new("")))?;
        let fresh = self.inodes.len();
        let index = *self.names.entry(path.to_owned()).or_insert(fresh);
        if index == fresh {
            self.inodes.push(Inode::default());
        }
        Ok(&mut self.inodes[index])
    }

    fn has_dir(&self, dir: &Path) -> io::Result<()> {
        let there = dir.as_os_str().is_empty() || self.dirs.contains(dir);
        if there { Ok(()) } else { Err(missing()) }
    }

    /// Renames a directory with the files in it. Fails if the target is a non-empty directory.
    fn rename_dir(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        if self.dirs.contains(to) && !self.names_in(to)?.is_empty() {
            return Err(io::Error::from(io::ErrorKind::DirectoryNotEmpty));
        }
        for name in self.names_in(from)? {
            if let Some(inode) = self.names.remove(&from.join(&name)) {
                self.names.insert(to.join(name), inode);
            }
        }
        self.dirs.remove(from);
        self.dirs.insert(to.to_owned());
        Ok(())
    }

    fn names_in(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.has_dir(dir)?;
        // Paths below a directory sort right after it.
        let below = (Bound::Excluded(dir), Bound::Unbounded);
        let files = self.names.range::<Path, _>(below).map(|(path, _)| path);
        let files = files.take_while(|path| path.starts_with(dir));
        let dirs = self.dirs.range::<Path, _>(below).take_while(|path| path.starts_with(dir));
        let names = files.chain(dirs).filter(|path| path.parent() == Some(dir));
        Ok(names.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }
}

impl Disk for SimDisk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.act(|image| Ok(image.inode(path)?.written.clone()))
    }

    fn read_regular(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.act(|image| {
            if image.dirs.contains(path) {
                return Err(no_file("it is no regular file"));
            }
            let bytes = &image.inode(path)?.written;
            let fits = bytes.len() as u64 <= limit;
            if fits { Ok(bytes.clone()) } else { Err(no_file("it is too large")) }
        })
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.act(|image| {
            image.make(path)?.written.extend_from_slice(bytes);
            Ok(())
        })
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.act(|image| {
            image.inode(path)?.written.truncate(len as usize);
            Ok(())
        })
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.act(|image| {
            image.make(path)?.written = bytes.to_vec();
            Ok(())
        })
    }

    fn write_new(&self, files: &[(PathBuf, Vec<u8>)], sync: bool) -> Vec<io::Result<()>> {
        let write = |(path, bytes): &(PathBuf, Vec<u8>)| {
            self.act(|image| {
                if image.names.contains_key(path) {
                    return Err(io::Error::from(io::ErrorKind::AlreadyExists));
                }
                image.make(path)?.written = bytes.clone();
                Ok(())
            })
        };
        // In two rounds, as on a real disk: a crash may happen between any two calls.
        let written: Vec<_> = files.iter().map(write).collect();
        let finish = |(result, (path, _)): (io::Result<()>, &(PathBuf, Vec<u8>))| {
            result?;
            if sync { self.sync(path) } else { Ok(()) }
        };
        written.into_iter().zip(files).map(finish).collect()
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.act(|image| {
            let written = &mut image.make(path)?.written;
            written.resize(written.len().max(bytes.len()), 0);
            written[..bytes.len()].copy_from_slice(bytes);
            Ok(())
        })
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.act(|image| {
            let inode = image.inode(path)?;
            inode.synced = inode.written.clone();
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.act(|image| {
            image.has_dir(to.parent().unwrap_or(Path::new("")))?;
            if image.dirs.contains(from) {
                return image.rename_dir(from, to);
            }
            let inode = image.names.remove(from).ok_or_else(missing)?;
            image.names.insert(to.to_owned(), inode);
            Ok(())
        })
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.act(|image| {
            image.has_dir(to.parent().unwrap_or(Path::new("")))?;
            let inode = *image.names.get(from).ok_or_else(missing)?;
            if image.names.contains_key(to) {
                return Err(io::Error::from(io::ErrorKind::AlreadyExists));
            }
            image.names.insert(to.to_owned(), inode);
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.act(|image| {
            image.has_dir(dir)?;
            image.sync_names(dir);
            Ok(())
        })
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.act(|image| {
            image.dirs.insert(dir.to_owned());
            Ok(())
        })
    }

    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        self.act(|image| {
            let all = dir.ancestors().filter(|dir| !dir.as_os_str().is_empty());
            image.dirs.extend(all.map(Path::to_owned));
            Ok(())
        })
    }

    fn scan(&self, dir: &Path, visit: Visit) -> io::Result<()> {
        let names = self.act(|image| image.names_in(dir))?;
        let _ = names.iter().try_for_each(|name| visit(name));
        Ok(())
    }

    fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.act(|image| {
            let mut names = image.names_in(dir)?;
            names.retain(|name| image.dirs.contains(&dir.join(name)));
            Ok(names)
        })
    }

    fn mode(&self, path: &Path) -> io::Result<u32> {
        self.act(|image| image.has_dir(path).map(|()| 0o755))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.act(|image| {
            if image.dirs.contains(path) {
                return Err(io::Error::from(io::ErrorKind::IsADirectory));
            }
            image.names.remove(path).map(drop).ok_or_else(missing)
        })
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.act(|image| match image.names_in(dir)?.is_empty() {
            true => {
                image.dirs.remove(dir);
                Ok(())
            }
            false => Err(io::Error::from(io::ErrorKind::DirectoryNotEmpty)),
        })
    }
}
