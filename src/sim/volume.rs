//! A simulated volume: of one machine, or shared by several over a network.
//!
//! **Local.** A power cut keeps what was synced. Of the names that were not, it keeps a first part
//! of the changes, in order, or any of them that fit together; of contents, any first part of what
//! was appended, and the old, the new or nothing of what was rewritten.
//!
//! **Shared.** Names are decided by the server and last. A machine that dies loses what it wrote
//! and did not sync. A listing is true. A file that a machine has opened may be opened as it was
//! then for a bounded time, whatever other machines did since. A name that a machine did not find,
//! of a file or of a directory, is absent for this machine for 30 to 60 s, for every call and at
//! every level of a path, until the machine lists the directory that the name belongs in. The
//! volume may be away for one machine, or for all. A move of a task may happen long after its call
//! has failed.
//!
//! Any call may fail, before or after it did what was asked; half of a write may be done.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use nix::errno::Errno;

use super::judge::Judge;
use super::plant::Fault;
use super::sched::{Here, SECOND, Sched, Us, here};
use crate::base::random::Random;
use crate::disk::{Disk, Visit, no_file};
use crate::queue::{ClaimName, seal};

#[derive(Clone, Default)]
struct Inode {
    written: Vec<u8>,
    synced: Vec<u8>,
    /// Which machine wrote it last.
    writer: usize,
}

#[derive(Default)]
struct Dir {
    names: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    dirs: BTreeSet<String>,
}

type Place = (PathBuf, String);

/// When a file was opened, and what was in it.
type Seen = (Us, Vec<u8>);

/// A change of names that the medium may not have.
#[derive(Clone)]
enum Change {
    Put(Place, usize),
    Take(Place, usize),
    Move(Place, Place, usize),
}

impl Change {
    fn inode(&self) -> usize {
        match self {
            Change::Put(_, inode) | Change::Take(_, inode) | Change::Move(_, _, inode) => *inode,
        }
    }

    fn places(&self) -> Vec<&Place> {
        match self {
            Change::Put(place, _) | Change::Take(place, _) => vec![place],
            Change::Move(from, to, _) => vec![from, to],
        }
    }
}

/// What a volume may do wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    /// Failing calls in a thousand.
    pub errors: u64,
    /// How long a change may stay unseen by other machines.
    pub stale: Us,
    /// The volume is full until then.
    pub full_until: Us,
    /// It answers nobody until then.
    pub away_until: Us,
    /// It does not answer this machine until then.
    pub cut_off: (usize, Us),
    /// One call fails: its number, how, and whether it does what was asked.
    pub failing: Option<(u64, Errno, bool)>,
    /// Now and then a call takes long.
    pub slow: bool,
    /// Every call takes at least that long.
    pub latency: Us,
}

pub(super) struct Image {
    dirs: HashMap<PathBuf, Dir>,
    inodes: Vec<Inode>,
    pending: Vec<Change>,
    /// What machines saw when they opened files, and when.
    seen: HashMap<(usize, PathBuf), Seen>,
    /// Until when a machine's cache says that a name is absent. `None`, where ENOENT is true.
    absent: Option<HashMap<(usize, PathBuf), Us>>,
    /// The workspace, which every machine knows to exist.
    root: PathBuf,
    /// Moves that are still on their way, though their calls have failed.
    late: Vec<Late>,
    random: Random,
    pub weather: Weather,
    pub failed_calls: u64,
    /// Calls of the fleet's processes.
    pub calls: u64,
}

/// A rename that the server has not got to yet.
struct Late {
    at: Us,
    from: PathBuf,
    to: PathBuf,
    process: usize,
    host: usize,
}

pub(super) struct Volume {
    image: Mutex<Image>,
    sched: Arc<Sched>,
    pub judge: Arc<Judge>,
    shared: bool,
    planted: Fault,
}

/// What becomes of a call.
enum Fate {
    Well,
    Before(io::Error),
    After(io::Error),
}

fn place(path: &Path) -> Place {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    (path.parent().unwrap_or(Path::new("")).to_owned(), name)
}

fn missing() -> io::Error {
    Errno::ENOENT.into()
}

impl Image {
    /// Whether something happens that happens once in so many times.
    pub(super) fn toss(&mut self, times: usize) -> bool {
        self.random.below(times) == 0
    }

    /// One of so many.
    pub(super) fn pick(&mut self, of: usize) -> usize {
        self.random.below(of)
    }

    fn dir(&mut self, path: &Path) -> io::Result<&mut Dir> {
        self.dirs.get_mut(path).ok_or_else(missing)
    }

    fn find(&self, path: &Path) -> Option<usize> {
        let dir = self.dirs.get(path.parent()?)?;
        dir.names.get(path.file_name()?.to_str()?).copied()
    }

    /// Whether a whole status of a claimed task lies where it will end.
    fn is_answered(&self, task: &[u8], claim: &ClaimName) -> bool {
        let Some(task) = seal::unseal(task) else { return false };
        let Some(batch) = task.get("batch").and_then(|batch| batch.as_str()) else { return false };
        let file = claim.status();
        self.dirs.iter().filter(|(dir, _)| dir.ends_with(batch)).any(|(_, dir)| {
            let status = dir.names.get(&file).and_then(|i| seal::unseal(&self.inodes[*i].written));
            status.is_some_and(|status| status.get("ticket") == task.get("ticket"))
        })
    }

    fn make_dirs(&mut self, path: &Path) {
        for dir in path.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
            if self.dirs.contains_key(dir) {
                return;
            }
            self.dirs.insert(dir.to_owned(), Dir::default());
            if let Some(parent) = dir.parent() {
                let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.dirs.entry(parent.to_owned()).or_default().dirs.insert(name);
            }
        }
    }

    fn apply(&mut self, change: &Change) {
        let at = |dirs: &mut HashMap<PathBuf, Dir>, place: &Place| {
            dirs.get(&place.0).and_then(|dir| dir.durable.get(&place.1)).copied()
        };
        match change {
            Change::Put(place, inode) => {
                if let Some(dir) = self.dirs.get_mut(&place.0) {
                    dir.durable.insert(place.1.clone(), *inode);
                }
            }
            Change::Take(place, inode) => {
                if at(&mut self.dirs, place) == Some(*inode)
                    && let Some(dir) = self.dirs.get_mut(&place.0)
                {
                    dir.durable.remove(&place.1);
                }
            }
            Change::Move(from, to, inode) => {
                if at(&mut self.dirs, from) == Some(*inode) {
                    self.apply(&Change::Take(from.clone(), *inode));
                    self.apply(&Change::Put(to.clone(), *inode));
                }
            }
        }
    }

    /// Puts on the medium how a directory's names stand, and what that depends on.
    fn sync_names(&mut self, dir: &Path) {
        let mut inodes = BTreeSet::new();
        let mut names: BTreeSet<Place> = BTreeSet::new();
        let mut chosen = vec![false; self.pending.len()];
        for (number, change) in self.pending.iter().enumerate().rev() {
            let places = change.places();
            let touches = places.iter().any(|place| place.0 == dir || names.contains(*place));
            if touches || inodes.contains(&change.inode()) {
                chosen[number] = true;
                inodes.insert(change.inode());
                names.extend(places.into_iter().cloned());
            }
        }
        let pending = std::mem::take(&mut self.pending);
        for (change, chosen) in pending.into_iter().zip(chosen) {
            if chosen {
                self.apply(&change);
            } else {
                self.pending.push(change);
            }
        }
    }

    /// The power fails: what was not synced is there or not.
    fn lose_power(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let in_order = self.random.coin();
        let first = self.random.below(pending.len() + 1);
        for (number, change) in pending.iter().enumerate() {
            if if in_order { number < first } else { self.random.coin() } {
                self.apply(change);
            }
        }
        for dir in self.dirs.values_mut() {
            dir.names = dir.durable.clone();
        }
        self.lose_contents(None);
        self.seen.clear();
    }

    /// A machine that starts anew remembers nothing.
    fn forget_all(&mut self, host: usize) {
        self.seen.retain(|(known, _), _| *known != host);
        if let Some(absent) = &mut self.absent {
            absent.retain(|(known, _), _| *known != host);
        }
    }

    fn lose_contents(&mut self, host: Option<usize>) {
        for number in 0..self.inodes.len() {
            let inode = &self.inodes[number];
            if inode.written == inode.synced || host.is_some_and(|host| inode.writer != host) {
                continue;
            }
            let kept = if inode.written.starts_with(&inode.synced) {
                let extra = inode.written.len() - inode.synced.len();
                let kept = inode.synced.len() + self.random.below(extra + 1);
                self.inodes[number].written[..kept].to_vec()
            } else {
                match self.random.below(3) {
                    0 => inode.written.clone(),
                    1 => inode.synced.clone(),
                    _ => Vec::new(),
                }
            };
            let inode = &mut self.inodes[number];
            inode.synced = kept.clone();
            inode.written = kept;
        }
    }

    /// What a machine's cache says is in a file that it has opened a moment ago.
    fn cached(&mut self, path: &Path, host: usize, now: Us) -> Option<Vec<u8>> {
        let stale = self.weather.stale;
        if stale == 0 {
            return None;
        }
        let (at, seen) = self.seen.get(&(host, path.to_owned()))?;
        let seen = (now < at + stale).then(|| seen.clone())?;
        self.random.coin().then_some(seen)
    }

    /// A machine knows what it did itself.
    fn forget(&mut self, path: &Path, host: usize) {
        if let Some(absent) = &mut self.absent {
            absent.remove(&(host, path.to_owned()));
        }
        if self.weather.stale > 0 {
            self.seen.remove(&(host, path.to_owned()));
        }
    }

    /// Remembers that a machine did not find a name.
    fn remember_absent(&mut self, path: &Path, host: usize, now: Us) {
        let until = now + ABSENT + self.random.below(ABSENT as usize) as Us;
        if let Some(absent) = self.absent.as_mut().filter(|_| host != NO_HOST) {
            absent.insert((host, path.to_owned()), until);
        }
    }

    /// A machine lists a directory, which it thereby sees as it is.
    fn refresh(&mut self, dir: &Path, host: usize) {
        if let Some(absent) = &mut self.absent {
            absent.retain(|(known, path), _| *known != host || path.parent() != Some(dir));
        }
    }

    /// Looks a path up, name by name, as a machine does that remembers what it did not find.
    fn walk(&mut self, path: &Path, host: usize, now: Us) -> io::Result<()> {
        let below = |name: &&Path| name.starts_with(&self.root) && *name != self.root;
        let names: Vec<PathBuf> = path.ancestors().filter(below).map(Path::to_owned).collect();
        for name in names.into_iter().rev() {
            let key = (host, name.clone());
            let believed = self.absent.as_ref().and_then(|absent| absent.get(&key));
            if believed.is_some_and(|until| now < *until) {
                return Err(missing());
            }
            if !self.dirs.contains_key(&name) && self.find(&name).is_none() {
                self.remember_absent(&name, host, now);
                return Err(missing());
            }
        }
        Ok(())
    }

    /// Looks up the directory that a name is to be made in.
    fn walk_to_parent(&mut self, path: &Path, host: usize, now: Us) -> io::Result<()> {
        self.walk(path.parent().unwrap_or(Path::new("")), host, now)
    }

    /// What a machine sees when it opens a name.
    fn open(&mut self, path: &Path, host: usize, now: Us) -> io::Result<Vec<u8>> {
        if let Some(seen) = self.cached(path, host, now) {
            return Ok(seen);
        }
        self.walk(path, host, now)?;
        let inode = self.find(path).ok_or_else(|| io::Error::from(Errno::EISDIR))?;
        let found = self.inodes[inode].written.clone();
        if self.weather.stale > 0 {
            self.seen.insert((host, path.to_owned()), (now, found.clone()));
        }
        Ok(found)
    }
}

impl Volume {
    pub(super) fn new(
        sched: Arc<Sched>,
        judge: Arc<Judge>,
        seed: u64,
        shared: bool,
        planted: Fault,
    ) -> Arc<Volume> {
        let root = judge.root().to_owned();
        let image = Image {
            absent: shared.then(HashMap::new),
            root,
            dirs: HashMap::new(),
            inodes: Vec::new(),
            pending: Vec::new(),
            seen: HashMap::new(),
            late: Vec::new(),
            random: Random::new(seed),
            weather: Weather::default(),
            failed_calls: 0,
            calls: 0,
        };
        Arc::new(Volume { image: Mutex::new(image), sched, judge, shared, planted })
    }

    pub(super) fn image(&self) -> MutexGuard<'_, Image> {
        self.image.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// The power of a machine fails. Its processes must be dead.
    pub(super) fn lose_power(&self, host: usize) {
        match self.shared {
            true => {
                let mut image = self.image();
                image.lose_contents(Some(host));
                image.forget_all(host);
            }
            false => self.image().lose_power(),
        }
    }

    /// Every file with its content, as it is.
    pub(super) fn files(&self, under: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let image = self.image();
        let mut found: Vec<(PathBuf, Vec<u8>)> = Vec::new();
        for (dir, content) in &image.dirs {
            if dir.starts_with(under) {
                let files = content.names.iter();
                found.extend(files.map(|(n, i)| (dir.join(n), image.inodes[*i].written.clone())));
            }
        }
        found.sort();
        found
    }

    pub(super) fn is_there(&self, path: &Path) -> bool {
        self.image().find(path).is_some()
    }

    fn enter(&self, here: &Here, writes: bool) -> Fate {
        let (latency, fate) = {
            let mut image = self.image();
            let slow = image.weather.slow && image.random.below(400) == 0;
            let latency = if slow { image.random.below(400_000) } else { image.random.below(400) };
            (latency as Us + 20 + image.weather.latency, image.weather.errors)
        };
        self.sched.operate(here, latency, false);
        let now = self.sched.now();
        let mut image = self.image();
        self.catch_up(&mut image, now);
        if here.process == 0 {
            // Whoever judges reads what is there.
            return Fate::Well;
        }
        let number = image.calls;
        image.calls += 1;
        if let Some((_, error, after)) = image.weather.failing.filter(|call| call.0 == number) {
            image.failed_calls += 1;
            return if after { Fate::After(error.into()) } else { Fate::Before(error.into()) };
        }
        let (host, until) = image.weather.cut_off;
        if now < image.weather.away_until || (now < until && here.host() == host) {
            image.failed_calls += 1;
            return Fate::Before(Errno::ENOTCONN.into());
        }
        if writes && now < image.weather.full_until {
            image.failed_calls += 1;
            return Fate::Before(Errno::ENOSPC.into());
        }
        if fate > 0 && image.random.below(1000) < fate as usize {
            image.failed_calls += 1;
            let errors = [Errno::EIO, Errno::ESTALE, Errno::ETIMEDOUT];
            let error = errors[image.random.below(3)].into();
            return if image.random.coin() { Fate::Before(error) } else { Fate::After(error) };
        }
        Fate::Well
    }

    /// Lets moves happen that are due, and that nobody was faster with.
    fn catch_up(&self, image: &mut Image, now: Us) {
        let (due, late) = std::mem::take(&mut image.late).into_iter().partition(|l| l.at <= now);
        image.late = late;
        let due: Vec<Late> = due;
        for Late { from, to, process, host, .. } in due {
            image.forget(&from, host);
            let _ = self.rename_now(image, &from, &to, host, now, process);
        }
    }

    /// A call: its turn is awaited, it happens or not, and it is answered or not.
    fn call<T>(
        &self,
        writes: bool,
        act: impl FnOnce(&mut Image, usize, Us) -> io::Result<T>,
    ) -> io::Result<T> {
        if std::thread::panicking() {
            return Err(Errno::EIO.into());
        }
        let here = here();
        let fate = self.enter(&here, writes);
        if let Fate::Before(error) = fate {
            return Err(error);
        }
        // The judge sees what is there.
        let host = if here.process == 0 { NO_HOST } else { here.host() };
        let now = self.sched.now();
        let done = act(&mut self.image(), host, now);
        self.sched.operate(&here, 0, true);
        match fate {
            Fate::After(error) => done.and(Err(error)),
            _ => done,
        }
    }

    fn put(image: &mut Image, path: &Path, host: usize, now: Us) -> io::Result<usize> {
        image.walk_to_parent(path, host, now)?;
        image.forget(path, host);
        if let Some(inode) = image.find(path) {
            return Ok(inode);
        }
        let inode = image.inodes.len();
        let (dir, name) = place(path);
        image.dir(&dir)?.names.insert(name.clone(), inode);
        image.inodes.push(Inode { writer: host, ..Inode::default() });
        image.pending.push(Change::Put((dir, name), inode));
        Ok(inode)
    }

    fn change(image: &mut Image, inode: usize, host: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let inode = &mut image.inodes[inode];
        change(&mut inode.written);
        inode.writer = host;
    }

    /// On a server's disk names last at once.
    fn settle(&self, image: &mut Image) {
        if self.shared {
            for change in std::mem::take(&mut image.pending) {
                image.apply(&change);
            }
        }
    }

    fn rename_now(
        &self,
        image: &mut Image,
        from: &Path,
        to: &Path,
        host: usize,
        now: Us,
        process: usize,
    ) -> io::Result<()> {
        let (source, target) = (place(from), place(to));
        image.walk(from, host, now)?;
        image.walk_to_parent(to, host, now)?;
        if image.dirs.contains_key(from) {
            image.forget(to, host);
            return self.rename_dir(image, from, to);
        }
        let inode = image.find(from).ok_or_else(missing)?;
        image.forget(from, host);
        image.forget(to, host);
        image.dir(&target.0)?;
        image.dir(&source.0)?.names.remove(&source.1);
        image.dir(&target.0)?.names.insert(target.1.clone(), inode);
        image.pending.push(Change::Move(source, target, inode));
        self.settle(image);
        let bytes = image.inodes[inode].written.clone();
        let left = self.judge.claim_of(from).is_some_and(|claim| image.is_answered(&bytes, &claim));
        self.judge.moved(from, to, &bytes, now, process, left);
        self.judge.given_up(from);
        Ok(())
    }

    fn rename_dir(&self, image: &mut Image, from: &Path, to: &Path) -> io::Result<()> {
        let moved: Vec<PathBuf> =
            image.dirs.keys().filter(|dir| dir.starts_with(from)).cloned().collect();
        for dir in moved {
            let content = image.dirs.remove(&dir).unwrap_or_default();
            let target = to.join(dir.strip_prefix(from).unwrap_or(Path::new("")));
            image.make_dirs(&target);
            image.dirs.insert(target, content);
        }
        Ok(())
    }
}

impl Disk for Volume {
    fn is_shared(&self, _: &Path) -> bool {
        self.shared
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.call(false, |image, host, now| {
            let bytes = image.open(path, host, now)?;
            Ok(super::plant::reading(self.planted, &self.judge, path, bytes))
        })
    }

    fn read_regular(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let bytes = self.read(path)?;
        if bytes.len() as u64 > limit { Err(no_file("it is too large")) } else { Ok(bytes) }
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let half = self.image().random.below(bytes.len() + 1);
        let here_path = super::plant::journal(self.planted, path);
        let done = self.call(true, |image, host, now| {
            let inode = Self::put(image, &here_path, host, now)?;
            self.settle(image);
            Self::change(image, inode, host, |written| written.extend_from_slice(bytes));
            Ok(())
        });
        let failed = done.as_ref().err().and_then(io::Error::raw_os_error);
        if failed == Some(Errno::ENOSPC as i32) && half > 0 && half < bytes.len() {
            // The last block was still there.
            let mut image = self.image();
            if let Some(inode) = image.find(path) {
                let host = here().host();
                Self::change(&mut image, inode, host, |w| w.extend_from_slice(&bytes[..half]));
            }
        }
        done
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.call(false, |image, host, now| {
            image.walk(path, host, now)?;
            let inode = image.find(path).ok_or_else(missing)?;
            if self.planted == Fault::TornTailKept {
                return Ok(());
            }
            Self::change(image, inode, host, |written| written.truncate(len as usize));
            Ok(())
        })
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let bytes = super::plant::writing(self.planted, path, bytes);
        self.call(true, |image, host, now| {
            let inode = Self::put(image, path, host, now)?;
            self.settle(image);
            Self::change(image, inode, host, |written| *written = bytes);
            Ok(())
        })
    }

    fn write_new(&self, files: &[(PathBuf, Vec<u8>)], sync: bool) -> Vec<io::Result<()>> {
        let write = |(path, bytes): &(PathBuf, Vec<u8>)| {
            if self.planted == Fault::CompleteBeforeStatus
                && path.to_string_lossy().ends_with(".json")
            {
                self.judge.hold_back(path, bytes);
                return Ok(());
            }
            self.call(true, |image, host, now| {
                image.walk_to_parent(path, host, now)?;
                if image.find(path).is_some() {
                    image.forget(path, host);
                    return Err(Errno::EEXIST.into());
                }
                let inode = Self::put(image, path, host, now)?;
                self.settle(image);
                Self::change(image, inode, host, |written| *written = bytes.clone());
                Ok(())
            })
        };
        let written: Vec<_> = files.iter().map(write).collect();
        let finish = |(result, (path, _)): (io::Result<()>, &(PathBuf, Vec<u8>))| {
            result?;
            if sync { self.sync(path) } else { Ok(()) }
        };
        written.into_iter().zip(files).map(finish).collect()
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.call(true, |image, host, now| {
            let inode = Self::put(image, path, host, now)?;
            self.settle(image);
            Self::change(image, inode, host, |written| {
                written.resize(written.len().max(bytes.len()), 0);
                written[..bytes.len()].copy_from_slice(bytes);
            });
            self.judge.beaten(path, now);
            Ok(())
        })
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.call(false, |image, host, now| {
            let looked = image.walk(path, host, now).map(|()| image.find(path));
            let Ok(Some(inode)) = looked else {
                return if self.planted == Fault::CompleteBeforeStatus {
                    Ok(())
                } else {
                    Err(missing())
                };
            };
            if self.planted != Fault::NoSync {
                image.inodes[inode].synced = image.inodes[inode].written.clone();
            }
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let to = &super::plant::moving(self.planted, &self.judge, from, to);
        if self.planted == Fault::CopyForRename {
            let bytes = self.read(from)?;
            self.call(true, |image, host, now| {
                let inode = Self::put(image, to, host, now)?;
                self.settle(image);
                Self::change(image, inode, host, |written| *written = bytes.clone());
                image.inodes[inode].synced = bytes.clone();
                self.judge.moved(from, to, &bytes, now, here().process, false);
                Ok(())
            })?;
            let _ = self.remove(from);
            return Ok(());
        }
        let odd = self.image().random.below(8);
        let process = here().process;
        let done = self.call(false, |image, host, now| {
            let done = self.rename_now(image, from, to, host, now, process);
            let lost = done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            if self.planted == Fault::LoserBelieves && lost {
                return Ok(());
            }
            if self.planted == Fault::NoFence && lost && self.judge.is_end(to) {
                Self::put(image, to, host, now)?;
                self.judge.moved(from, to, b"", now, here().process, false);
                return Ok(());
            }
            if let Some((path, bytes)) = self.judge.held_back(to) {
                let inode = Self::put(image, &path, host, now)?;
                Self::change(image, inode, host, |written| *written = bytes);
            }
            done
        });
        match done {
            // It did not happen, and will.
            Err(error)
                if odd == 1
                    && self.shared
                    && error.raw_os_error() == Some(Errno::ETIMEDOUT as i32)
                    && self.judge.may_be_late(from, to) =>
            {
                let mut image = self.image();
                let at = self.sched.now() + image.random.below(2 * SECOND as usize) as Us;
                let (from, to, host) = (from.to_owned(), to.to_owned(), here().host());
                image.late.push(Late { at, from, to, process, host });
                Err(error)
            }
            // It happened, and the answer says that there was nothing to rename.
            Err(error) if odd == 0 && self.shared && self.is_there(to) => {
                if error.raw_os_error() == Some(Errno::EIO as i32) {
                    Err(missing())
                } else {
                    Err(error)
                }
            }
            done => done,
        }
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(true, |image, host, now| {
            image.walk(from, host, now)?;
            image.walk_to_parent(to, host, now)?;
            let inode = image.find(from).ok_or_else(missing)?;
            if image.find(to).is_some() {
                image.forget(to, host);
                return Err(Errno::EEXIST.into());
            }
            let (dir, name) = place(to);
            if self.planted == Fault::AnswerDropped && name.ends_with(".answer") {
                return Ok(());
            }
            image.dir(&dir)?.names.insert(name.clone(), inode);
            image.forget(to, host);
            image.pending.push(Change::Put((dir, name), inode));
            self.settle(image);
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call(false, |image, host, now| {
            image.walk(dir, host, now)?;
            image.dir(dir)?;
            if !super::plant::leaves_unsynced(self.planted, dir) {
                image.sync_names(dir);
            }
            Ok(())
        })
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.make_dirs(dir)
    }

    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        self.call(true, |image, host, _| {
            let known = |dir: &&Path| !image.dirs.contains_key(*dir);
            let made: Vec<&Path> = dir.ancestors().take_while(known).collect();
            image.make_dirs(dir);
            // The directory that a new one is in is synced, with all names in it.
            for parent in made.iter().filter_map(|made| made.parent()) {
                if !super::plant::leaves_unsynced(self.planted, parent) {
                    image.sync_names(parent);
                }
            }
            // One that is there already is found by trying to make it.
            dir.ancestors().for_each(|made| image.forget(made, host));
            Ok(())
        })
    }

    fn scan(&self, dir: &Path, visit: Visit) -> io::Result<()> {
        let names = self.call(false, |image, host, now| {
            if self.planted == Fault::CancelUnheard && dir.ends_with("cancel") {
                return Ok(Vec::new());
            }
            image.walk(dir, host, now)?;
            image.refresh(dir, host);
            let dir = image.dir(dir)?;
            Ok(dir.names.keys().chain(&dir.dirs).cloned().collect::<Vec<_>>())
        })?;
        if self.planted == Fault::CancelForgotten && dir.ends_with("cancel") {
            names.iter().for_each(|name| _ = self.remove(&dir.join(name)));
        }
        for name in names {
            if visit(&name) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.call(false, |image, host, now| {
            image.walk(dir, host, now)?;
            image.refresh(dir, host);
            Ok(image.dir(dir)?.dirs.iter().cloned().collect())
        })
    }

    fn mode(&self, path: &Path) -> io::Result<u32> {
        self.call(false, |image, host, now| image.walk(path, host, now).map(|()| 0o755))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(false, |image, host, now| {
            image.walk(path, host, now)?;
            let inode = image.find(path).ok_or_else(|| io::Error::from(Errno::EISDIR))?;
            let (dir, name) = place(path);
            image.dir(&dir)?.names.remove(&name);
            image.forget(path, host);
            // A machine remembers that it removed a name.
            image.remember_absent(path, host, now);
            image.pending.push(Change::Take((dir, name), inode));
            self.settle(image);
            self.judge.given_up(path);
            Ok(())
        })
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.call(false, |image, host, now| {
            image.walk(path, host, now)?;
            let dir = image.dir(path)?;
            if !dir.names.is_empty() || !dir.dirs.is_empty() {
                return Err(io::Error::from(io::ErrorKind::DirectoryNotEmpty));
            }
            image.dirs.remove(path);
            let (above, name) = place(path);
            image.dir(&above)?.dirs.remove(&name);
            Ok(())
        })
    }
}

/// The longest that a file may be read as it was: well below a lease.
pub(super) const STALE: Us = SECOND;
/// How long a name stays absent for a machine that did not find it: this to twice this.
const ABSENT: Us = 30 * SECOND;
/// The host of a process that sees what is there.
const NO_HOST: usize = usize::MAX;
