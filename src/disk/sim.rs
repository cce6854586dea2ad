//! A disk in memory that crashes on command.
//!
//! The fault model: a crash keeps what was synced. Of what was not, it may keep any prefix of
//! appended bytes, the old or the new content of a rewritten file (or none of it), and any change
//! of names whose directory was not synced, each as the seed decides; a rename happened whole or
//! not at all. Synced bytes and names are never lost. After a crash every call fails until
//! [`SimDisk::restart`].

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::Disk;

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
    dirs: std::collections::BTreeSet<PathBuf>,
    operations: usize,
    crash_after: Option<usize>,
    crashed: bool,
}

/// See the module.
#[derive(Default)]
pub struct SimDisk {
    image: Mutex<Image>,
}

impl SimDisk {
    /// Lets `operations` more calls through and then crashes: the next one does not happen.
    pub fn crash_after(&self, operations: usize) {
        let mut image = self.image.lock().unwrap();
        image.crash_after = Some(image.operations + operations);
    }

    pub fn operations(&self) -> usize {
        self.image.lock().unwrap().operations
    }

    /// Comes back after a crash with what the medium may hold by `seed`.
    pub fn restart(&self, seed: u64) {
        let mut image = self.image.lock().unwrap();
        let mut random = Random(seed);
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

    /// Comes back after the end of a process, which takes nothing from the disk.
    pub fn restart_whole(&self) {
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

/// What may be left of a file.
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

/// A small generator: enough to choose faults, the same on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.draw() % limit.max(1) as u64) as usize
    }

    pub fn coin(&mut self) -> bool {
        self.draw().is_multiple_of(2)
    }
}

fn missing() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Image {
    /// Which names the medium may hold. A rename happened or did not: a file is never under both
    /// names nor under neither, and a name that was taken over has its old file or its new one.
    fn names_after(&self, random: &mut Random) -> BTreeMap<PathBuf, usize> {
        let mut after = BTreeMap::new();
        for (path, inode) in &self.names {
            let before = self.durable.iter().find(|(_, other)| *other == inode);
            let kept = match before {
                Some((old, _)) if old == path => Some(path),
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

    fn inode(&mut self, path: &Path) -> io::Result<&mut Inode> {
        let index = *self.names.get(path).ok_or_else(missing)?;
        Ok(&mut self.inodes[index])
    }

    fn make(&mut self, path: &Path) -> &mut Inode {
        let fresh = self.inodes.len();
        let index = *self.names.entry(path.to_owned()).or_insert(fresh);
        if index == fresh {
            self.inodes.push(Inode::default());
        }
        &mut self.inodes[index]
    }
}

impl Disk for SimDisk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.act(|image| Ok(image.inode(path)?.written.clone()))
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.act(|image| {
            image.make(path).written.extend_from_slice(bytes);
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
            image.make(path).written = bytes.to_vec();
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
            let inode = image.names.remove(from).ok_or_else(missing)?;
            image.names.insert(to.to_owned(), inode);
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.act(|image| {
            let inside = |path: &Path| path.parent() == Some(dir);
            image.durable.retain(|path, _| !inside(path));
            let names = image.names.iter().filter(|(path, _)| inside(path));
            image.durable.extend(names.map(|(path, inode)| (path.clone(), *inode)));
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
        self.make_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.act(|image| {
            let inside = |path: &PathBuf| {
                let rest = path.strip_prefix(dir).ok()?;
                Some(rest.components().next()?.as_os_str().to_str()?.to_owned())
            };
            let files = image.names.keys().filter(|path| path.parent() == Some(dir));
            let names: std::collections::BTreeSet<_> =
                files.chain(&image.dirs).filter_map(inside).collect();
            Ok(names.into_iter().collect())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.act(|image| image.names.remove(path).map(drop).ok_or_else(missing))
    }
}
