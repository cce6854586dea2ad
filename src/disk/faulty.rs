//! A disk that fails on purpose, as a remote one does: calls are slow, fail, do half of their work,
//! or do all of it and report an error.
//!
//! It exists for tests of whole programs: a process that requests it ([`fail_by`]) gets this disk
//! wherever it would get the real one. Other processes pay nothing for it.
//!
//! **Invariant:** every failure here can occur on a network volume. Synced data is never lost, and
//! a call that reports success did succeed.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::errno::Errno;

use super::{Confirming, Disk, RealDisk, Visit};
use crate::base::random;

/// Faults of a process's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Faults {
    pub seed: u64,
    /// Number of calls in a thousand that fail or are delayed.
    pub rate: u64,
    /// True if the volume supports no locks.
    pub no_locks: bool,
    /// True if a fault is a panic of the program.
    pub panics: bool,
}

impl Faults {
    /// Parses `SEED,RATE`, `SEED,RATE,nolocks` or `SEED,RATE,panics`.
    pub(crate) fn parse(text: &str) -> Option<Faults> {
        let (seed, rest) = text.split_once(',')?;
        let (rate, no_locks, panics) = match rest.split_once(',') {
            Some((rate, "nolocks")) => (rate, true, false),
            Some((rate, "panics")) => (rate, false, true),
            Some(_) => return None,
            None => (rest, false, false),
        };
        let rate = rate.trim().parse().ok().filter(|rate| *rate <= 1000)?;
        Some(Faults { seed: seed.trim().parse().ok()?, rate, no_locks, panics })
    }
}

static FAULTS: OnceLock<Faults> = OnceLock::new();

/// Gives this process a faulty disk from now on. Only the first call has an effect.
pub(crate) fn fail_by(faults: Faults) {
    let _ = FAULTS.set(faults);
}

/// Returns the disk of this machine, or the faulty one if it was requested.
pub(crate) fn machine() -> Arc<dyn Disk> {
    #[cfg(test)]
    if let Some(disk) = super::simulated() {
        return disk;
    }
    match FAULTS.get() {
        None => Arc::new(Confirming::new(Arc::new(RealDisk::default()))),
        Some(faults) => Arc::new(Confirming::new(Arc::new(FaultyDisk::new(*faults)))),
    }
}

/// Returns true if files can be locked. Not every volume supports locks.
pub(crate) fn has_locks() -> bool {
    FAULTS.get().is_none_or(|faults| !faults.no_locks)
}

/// Upper bound of the delay of a call.
const DELAY_MS: u64 = 60;
/// Errors of a volume that does not answer.
const ERRORS: [Errno; 3] = [Errno::EIO, Errno::ESTALE, Errno::ETIMEDOUT];

/// Point in its execution at which a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before,
    Halfway,
    After,
}

struct FaultyDisk {
    real: RealDisk,
    faults: Faults,
}

/// Counts the calls of all disks of the process, so that no two calls draw the same number.
static CALLS: AtomicU64 = AtomicU64::new(0);

impl FaultyDisk {
    fn new(faults: Faults) -> Self {
        FaultyDisk { real: RealDisk::default(), faults }
    }

    /// Draws the fault of the next call, or `None`. May sleep before it returns.
    fn fate(&self) -> Option<(When, io::Error)> {
        let drawn = random::nth(self.faults.seed, CALLS.fetch_add(1, Ordering::Relaxed));
        if drawn % 1000 >= self.faults.rate {
            return None;
        }
        assert!(!self.faults.panics, "a test asked for this panic");
        let rest = drawn / 1000;
        if rest.is_multiple_of(2) {
            std::thread::sleep(Duration::from_millis(rest / 2 % DELAY_MS));
            return None;
        }
        let when = match rest / 2 % 3 {
            0 => When::Before,
            1 => When::Halfway,
            _ => When::After,
        };
        Some((when, ERRORS[(rest / 6 % 3) as usize].into()))
    }

    /// Makes a call that does all or nothing. Its result may be wrong.
    fn whole<T>(&self, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.fate() {
            None => call(),
            Some((When::After, error)) => call().and(Err(error)),
            Some((_, error)) => Err(error),
        }
    }

    /// Makes a call that may also write only half of the bytes.
    fn part(&self, bytes: &[u8], call: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match self.fate() {
            None => call(bytes),
            Some((When::Before, error)) => Err(error),
            Some((When::Halfway, error)) => call(&bytes[..bytes.len() / 2]).and(Err(error)),
            Some((When::After, error)) => call(bytes).and(Err(error)),
        }
    }
}

impl Disk for FaultyDisk {
    fn is_shared(&self, path: &Path) -> bool {
        self.real.is_shared(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.whole(|| self.real.read(path))
    }

    fn read_regular(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.whole(|| self.real.read_regular(path, limit))
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.part(bytes, |bytes| self.real.append(path, bytes))
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.whole(|| self.real.truncate(path, len))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.part(bytes, |bytes| self.real.write(path, bytes))
    }

    fn write_new(&self, files: &[(PathBuf, Vec<u8>)], sync: bool) -> Vec<io::Result<()>> {
        let write = |(path, bytes): &(PathBuf, Vec<u8>)| {
            self.part(bytes, |bytes| {
                let mut done = self.real.write_new(&[(path.clone(), bytes.to_vec())], sync);
                done.pop().unwrap_or(Ok(()))
            })
        };
        files.iter().map(write).collect()
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.whole(|| self.real.overwrite(path, bytes))
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.whole(|| self.real.sync(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.whole(|| self.real.rename(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.whole(|| self.real.link(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.whole(|| self.real.sync_dir(dir))
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.whole(|| self.real.make_dir(dir))
    }

    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        self.whole(|| self.real.make_dirs(dir))
    }

    fn scan(&self, dir: &Path, visit: Visit) -> io::Result<()> {
        let (most, fate) = match self.fate() {
            None => (usize::MAX, Ok(())),
            Some((When::Before, error)) => return Err(error),
            Some((When::Halfway, error)) => (1, Err(error)),
            Some((When::After, error)) => (usize::MAX, Err(error)),
        };
        let mut seen = 0;
        self.real.scan(dir, &mut |name| {
            seen += 1;
            if seen > most { ControlFlow::Break(()) } else { visit(name) }
        })?;
        fate
    }

    fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.whole(|| self.real.list_dirs(dir))
    }

    fn mode(&self, path: &Path) -> io::Result<u32> {
        self.whole(|| self.real.mode(path))
    }

    fn changed_ms(&self, path: &Path) -> io::Result<Option<i64>> {
        self.whole(|| self.real.changed_ms(path))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.whole(|| self.real.remove(path))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.whole(|| self.real.remove_dir(dir))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_or_refused() {
        assert_eq!(
            Faults::parse("7,20"),
            Some(Faults { seed: 7, rate: 20, no_locks: false, panics: false })
        );
        assert!(Faults::parse("7,0,nolocks").is_some_and(|faults| faults.no_locks));
        assert!(Faults::parse("7,0,panics").is_some_and(|faults| faults.panics));
        for bad in ["", "7", "x,1", "1,x", "1,1001", "1,1,locks"] {
            assert_eq!(Faults::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_call_that_succeeds_did_and_all_ways_to_fail_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(Faults { seed: 3, rate: 300, no_locks: false, panics: false });
        let (mut before, mut after, mut half) = (0, 0, 0);
        for number in 0..200 {
            let path = dir.path().join(format!("{number}"));
            let told = disk.write_new(&[(path.clone(), b"whole".to_vec())], false).remove(0);
            match (told, std::fs::read(&path).ok().as_deref()) {
                (Ok(()), Some(b"whole")) => {}
                (Err(_), None) => before += 1,
                (Err(_), Some(b"whole")) => after += 1,
                (Err(_), Some(b"wh")) => half += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(before > 0 && after > 0 && half > 0, "{before} {half} {after}");
    }
}
