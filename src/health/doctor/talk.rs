//! Communication of two processes through a directory. They learn of each other only by listing it,
//! so they may be on different machines.
//!
//! **Invariant:** every wait ends: at the side's deadline, on a stop request, or when the other
//! process is known to be gone.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::disk::locks::try_lock;
use crate::disk::{Disk, RealDisk, rename};
use crate::exec::Stop;

/// Directories of a session.
pub(super) const DRAFTS: &str = "drafts";
pub(super) const POST: &str = "post";
pub(super) const PING: &str = "ping";
pub(super) const PONG: &str = "pong";
pub(super) const RACE: &str = "race";
pub(super) const WON: &str = "won";
pub(super) const LATE: &str = "late";
/// Message of a process that cannot continue: the reason.
pub(super) const FAILED: &str = "failed";

/// The last ping.
pub(super) const END: &str = "end";
/// The file that is replaced while it is read, and the file for the lock test.
pub(super) const REPLACED: &str = "replaced";
pub(super) const LOCKED: &str = "locked";
pub(super) const BLOCK: usize = 4096;

/// Time without news after which the directory is touched.
const STIR: Duration = Duration::from_millis(100);
/// Maximum pause of the winner of a file.
const MOMENT: Duration = Duration::from_millis(20);

/// Message that starts a race.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Go {
    pub files: usize,
    pub limit_ms: u64,
}

/// Observations of a reader of a file that is being replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reads {
    pub reads: u64,
    /// Neither the old content nor the new.
    pub torn: u64,
    /// No file at all.
    pub missing: u64,
}

/// One of the two processes.
pub(super) struct Side<'a> {
    pub dir: &'a Path,
    pub stop: &'a Stop,
    pub gone: &'a AtomicBool,
    pub until: Instant,
}

impl Side<'_> {
    pub(super) fn path(&self, place: &str, name: &str) -> PathBuf {
        self.dir.join(place).join(name)
    }

    pub(super) fn list(&self, place: &str) -> io::Result<Vec<String>> {
        RealDisk::default().list(&self.dir.join(place))
    }

    /// Lists a directory after a change by this process, which makes an NFS client drop its cached
    /// listing: an NFS 3 client cannot distinguish changes within one clock tick.
    pub(super) fn list_anew(&self, place: &str) -> io::Result<Vec<String>> {
        self.stir(place);
        self.list(place)
    }

    /// Changes a directory and reverts the change.
    fn stir(&self, place: &str) {
        let path = self.path(place, &format!(".stir-{}", std::process::id()));
        let _ = fs::write(&path, "").and_then(|()| fs::remove_file(&path));
    }

    /// Publishes a message atomically.
    pub(super) fn post(&self, name: &str, word: &impl Serialize) -> io::Result<()> {
        let draft = self.path(DRAFTS, name);
        fs::write(&draft, serde_json::to_vec(word)?)?;
        rename(&draft, &self.path(POST, name))
    }

    /// Waits for a message of the other side.
    pub(super) fn hear<T: DeserializeOwned>(&self, name: &str) -> io::Result<T> {
        self.wait(name, POST, self.until, |side| {
            let posted = side.list(POST)?;
            if posted.iter().any(|posted| posted == FAILED) {
                return Err(side.failure());
            }
            if !posted.iter().any(|posted| posted == name) {
                return Ok(None);
            }
            match fs::read(side.path(POST, name)) {
                Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
                // Listed, but it cannot be opened yet: a cache does not know it.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    /// Returns the other process's own error.
    fn failure(&self) -> io::Error {
        let reason = fs::read(self.path(POST, FAILED)).ok();
        let reason: Option<String> = reason.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let reason = reason.unwrap_or_else(|| "its reason cannot be read".to_owned());
        io::Error::other(format!("the other process failed: {reason}"))
    }

    /// Calls `look` repeatedly until it returns an answer.
    pub(super) fn wait<T>(
        &self,
        what: &str,
        place: &str,
        until: Instant,
        mut look: impl FnMut(&Self) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        let mut stirred = Instant::now();
        loop {
            if stirred.elapsed() >= STIR {
                self.stir(place);
                stirred = Instant::now();
            }
            if let Some(answer) = look(self)? {
                return Ok(answer);
            }
            if self.gone.load(Ordering::SeqCst) {
                return Err(io::Error::new(ErrorKind::BrokenPipe, "the other process has ended"));
            }
            if Instant::now() >= until {
                if self.list(POST)?.iter().any(|posted| posted == FAILED) {
                    return Err(self.failure());
                }
                let message = format!("`{what}` of the other process was not seen in time");
                return Err(io::Error::new(ErrorKind::TimedOut, message));
            }
            if !self.stop.sleep(Duration::from_millis(1)) {
                return Err(io::Error::new(ErrorKind::Interrupted, "it was stopped"));
            }
        }
    }

    /// Renames one file after the other while the other side does the same. Returns a letter for
    /// each: `w`on, `l`ost as expected, `f`alse error although it won, other `e`rror.
    pub(super) fn race(&self, go: Go, who: &str) -> io::Result<String> {
        let until = Instant::now() + Duration::from_millis(go.limit_ms);
        let mut letters = Vec::new();
        for file in 0..go.files {
            if Instant::now() >= until || self.stop.level() > 0 {
                break;
            }
            let target = self.path(WON, &target(file, who));
            let began = Instant::now();
            letters.push(match rename(&self.path(RACE, &file.to_string()), &target) {
                Ok(()) => b'w',
                Err(error) if error.kind() == ErrorKind::NotFound => b'l',
                Err(_) => b'e',
            });
            // The winner pauses for a moment, so that the other side catches up and there is a
            // race.
            if letters.last() == Some(&b'w') {
                let moment = 2.0 * chance() * began.elapsed().as_secs_f64();
                std::thread::sleep(Duration::from_secs_f64(moment).min(MOMENT));
            }
        }
        // A volume may report failure of a successful rename; the queue checks its target too.
        let won = self.list_anew(WON)?;
        for (file, letter) in letters.iter_mut().enumerate() {
            if *letter != b'w' && won.binary_search(&target(file, who)).is_ok() {
                *letter = b'f';
            }
        }
        Ok(letters.into_iter().map(char::from).collect())
    }
}

/// Tries to lock a file. Returns the locked file, or `None` if the other side has the lock.
pub(super) fn lock(path: &Path) -> io::Result<Option<fs::File>> {
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    Ok(try_lock(&file)?.then_some(file))
}

/// Returns a random number between 0 and 1.
fn chance() -> f64 {
    crate::base::random::chance() as f64 / u64::MAX as f64
}

/// Returns the name under which the winner stores a file of the race.
pub(super) fn target(file: usize, who: &str) -> String {
    format!("{file}.{who}")
}
