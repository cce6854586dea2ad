//! Queues in arrival order: the merge queue of a repository, with one merge at a time, and the
//! queue for one worktree.
//!
//! A process draws a number, a file whose name starts with it, under the repository's lock. So
//! numbers increase, and a later number is never smaller. The smallest number whose owner is alive
//! has its turn. Any process may remove the numbers of dead ones.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{TreeError, Trees};
use crate::disk::fs;
use crate::exec::Stop;
use crate::git::heartbeat::{self, Presence, Watch};
use crate::git::lock::{LockError, owners};

const POLL: Duration = Duration::from_millis(50);

/// A place in the queue, released when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    pub me: Presence,
    number: u64,
    path: PathBuf,
}

/// A number that a process has drawn.
pub(super) struct Drawn {
    number: u64,
    pub word: String,
    pub path: PathBuf,
}

impl Trees {
    fn lane(&self) -> PathBuf {
        self.repo.home().join("lane")
    }

    fn numbers(&self) -> Result<Vec<Drawn>, TreeError> {
        self.numbers_in(&self.lane())
    }

    /// Returns the numbers in a queue, the smallest first.
    pub(super) fn numbers_in(&self, lane: &Path) -> Result<Vec<Drawn>, TreeError> {
        let failed = |error| TreeError::io("list", lane, error);
        let mut found = Vec::new();
        let entries = match fs::read_dir(lane) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((number, word)) = name.split_once('-') else { continue };
            let Ok(number) = number.parse() else { continue };
            found.push(Drawn { number, word: word.to_owned(), path: entry.path() });
        }
        found.sort_by_key(|drawn| drawn.number);
        Ok(found)
    }

    /// Removes the heartbeat files of dead processes that have no number in the merge queue.
    pub(super) fn sweep_owners(&self) -> Result<(), TreeError> {
        let drawn = self.numbers()?;
        let in_use = |word: &str| drawn.iter().any(|drawn| drawn.word == word);
        heartbeat::sweep(&owners(&self.repo.home()), &in_use);
        Ok(())
    }

    pub(super) fn draw(&self, doing: &str) -> Result<Turn, TreeError> {
        self.draw_in(&self.lane(), doing, b"")
    }

    /// Draws a number. `what` is the content of the number's file, for other processes to read.
    pub(super) fn draw_in(&self, lane: &Path, doing: &str, what: &[u8]) -> Result<Turn, TreeError> {
        let home = self.repo.home();
        let failed = |error| TreeError::io("write", &home, error);
        let me = Presence::enter(&owners(&home), doing).map_err(failed)?;
        let _lock = self.repo.lock(doing)?;
        let number = self.numbers_in(lane)?.last().map_or(1, |last| last.number + 1);
        let path = lane.join(format!("{number:010}-{}", me.word));
        fs::create_dir_all(lane)
            .and_then(|()| fs::write(&path, what))
            .map_err(|error| TreeError::io("write", &path, error))?;
        Ok(Turn { me, number, path })
    }

    /// Returns an error if another process removed the number because it considered this one dead.
    pub(super) fn has_turn(&self, turn: &Turn) -> Result<(), TreeError> {
        let mine = |drawn: &Drawn| drawn.word == turn.me.word;
        if self.numbers()?.iter().any(mine) { Ok(()) } else { Err(LockError::Lost.into()) }
    }

    /// Waits until no live process has a smaller number.
    pub(super) fn wait_turn(
        &self,
        turn: &Turn,
        wait: Duration,
        stop: &Stop,
    ) -> Result<(), TreeError> {
        let mut watch = Watch::new();
        let began = Instant::now();
        loop {
            let Some(owner) = self.first_before(&self.lane(), Some(turn), &mut watch)? else {
                return Ok(());
            };
            if began.elapsed() >= wait {
                return Err(LockError::Busy { owner, waited: wait }.into());
            }
            if !stop.sleep(POLL) {
                return Err(TreeError::Stopped);
            }
        }
    }

    /// Returns the first live owner of a number before `turn`, or of all numbers if there is no
    /// turn. Removes the numbers of dead processes.
    pub(super) fn first_before(
        &self,
        lane: &Path,
        turn: Option<&Turn>,
        watch: &mut Watch,
    ) -> Result<Option<String>, TreeError> {
        let owners = owners(&self.repo.home());
        let number = turn.map_or(u64::MAX, |turn| turn.number);
        let mut first = None;
        for other in self.numbers_in(lane)?.into_iter().take_while(|drawn| drawn.number < number) {
            let sight = watch.look(&owners, &other.word);
            if sight.dead {
                let _ = fs::remove_file(&other.path);
                heartbeat::forget(&owners, &other.word);
            } else if first.is_none() {
                let owner = sight.owner.map(|owner| owner.to_string());
                first = Some(owner.unwrap_or_else(|| "somebody".into()));
            }
        }
        Ok(first)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
