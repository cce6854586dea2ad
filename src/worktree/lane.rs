//! The merge lane of a repository: one merge at a time, first in, first out.
//!
//! Whoever wants to merge draws a ticket, a file whose name begins with a number, under the
//! repository's lock: so numbers follow one another, and none that comes later is smaller. The
//! smallest number whose owner lives has its turn. Tickets of the dead are taken away by anybody.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{TreeError, Trees};
use crate::exec::Stop;
use crate::git::lock::{LockError, owners};
use crate::git::presence::{Presence, Watch};

const POLL: Duration = Duration::from_millis(50);

/// A place in the lane, left when dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    pub me: Presence,
    number: u64,
    path: PathBuf,
}

/// A ticket as it lies in the lane.
struct Drawn {
    number: u64,
    word: String,
    path: PathBuf,
}

impl Trees {
    fn lane(&self) -> PathBuf {
        self.repo.home().join("lane")
    }

    fn tickets(&self) -> Result<Vec<Drawn>, TreeError> {
        let lane = self.lane();
        let failed = |error| TreeError::io("list", &lane, error);
        fs::create_dir_all(&lane).map_err(failed)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&lane).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((number, word)) = name.split_once('-') else { continue };
            let Ok(number) = number.parse() else { continue };
            found.push(Drawn { number, word: word.to_owned(), path: entry.path() });
        }
        found.sort_by_key(|ticket| ticket.number);
        Ok(found)
    }

    pub(super) fn draw(&self, doing: &str) -> Result<Ticket, TreeError> {
        let home = self.repo.home();
        let failed = |error| TreeError::io("write", &home, error);
        let me = Presence::enter(&owners(&home), doing).map_err(failed)?;
        let _lock = self.repo.lock(doing)?;
        let number = self.tickets()?.last().map_or(1, |last| last.number + 1);
        let path = self.lane().join(format!("{number:010}-{}", me.word));
        fs::write(&path, "").map_err(|error| TreeError::io("write", &path, error))?;
        Ok(Ticket { me, number, path })
    }

    /// Proves that nobody took the ticket away, thinking that this process was dead.
    pub(super) fn has_turn(&self, ticket: &Ticket) -> Result<(), TreeError> {
        let mine = |drawn: &Drawn| drawn.word == ticket.me.word;
        if self.tickets()?.iter().any(mine) { Ok(()) } else { Err(LockError::Lost.into()) }
    }

    /// Waits until it is the ticket's turn.
    pub(super) fn wait_turn(
        &self,
        ticket: &Ticket,
        wait: Duration,
        stop: &Stop,
    ) -> Result<(), TreeError> {
        let owners = owners(&self.repo.home());
        let mut watch = Watch::new();
        let began = Instant::now();
        loop {
            let mut first = None;
            for other in self.tickets()?.into_iter().take_while(|t| t.number < ticket.number) {
                let sight = watch.look(&owners, &other.word);
                if sight.dead {
                    let _ = fs::remove_file(&other.path);
                } else if first.is_none() {
                    let owner = sight.owner.map(|owner| owner.to_string());
                    first = Some(owner.unwrap_or_else(|| "somebody".into()));
                }
            }
            let Some(owner) = first else { return Ok(()) };
            if began.elapsed() >= wait {
                return Err(LockError::Busy { owner, waited: wait }.into());
            }
            if !stop.sleep(POLL) {
                return Err(TreeError::Stopped);
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
