//! The checkout token: of all tasks that must not run concurrently, only its holder runs.
//!
//! The token is one file in its own directory, and its name states the holder: `<n>.free`, or
//! `<n>.<task>.a<NN>.<batch>`. A process takes, takes over, or releases the token by a rename to
//! the next number. Of several requests, one succeeds, and a former holder that wakes up late finds
//! its own name gone. The caller decides which task may take the token from which; this file
//! guarantees that a concurrent change is detected.
//!
//! **Invariant:** there is exactly one such file. It is created together with its directory, by a
//! rename that fails if a non-empty directory exists, and is never removed.

use std::io;

use super::moves::{Patience, parent};
use super::{Claim, Ending, Queue, TaskId};
use crate::base::ids::TaskAttempt;

/// Number of listings before the file counts as missing: a concurrent rename can hide it.
const LOOKS: usize = 3;
const FREE: &str = "free";

/// The token as found by a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Number of times the token changed hands, or `None` if no task ever had it.
    pub number: Option<u64>,
    pub holder: Option<TurnHolder>,
}

/// The task that holds the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TurnHolder {
    pub task: TaskId,
    /// The attempt whose holder took the token.
    pub attempt: TaskAttempt,
    pub batch: String,
}

impl Turn {
    const NEVER: Turn = Turn { number: None, holder: None };

    pub(crate) fn file(&self) -> String {
        let number = self.number.unwrap_or_default();
        match &self.holder {
            None => format!("{number}.{FREE}"),
            Some(TurnHolder { task, attempt, batch }) => {
                format!("{number}.{task}.a{attempt:02}.{batch}")
            }
        }
    }

    pub(crate) fn parse(file: &str) -> Option<Turn> {
        let (number, rest) = file.split_once('.')?;
        let number = Some(number.parse().ok()?);
        let turn = match rest {
            FREE => Turn { number, holder: None },
            _ => {
                let mut parts = rest.splitn(3, '.');
                let task = TaskId::parse(parts.next()?)?;
                let attempt = parts.next()?.strip_prefix('a')?.parse().ok()?;
                let batch = parts.next()?.to_owned();
                Turn { number, holder: Some(TurnHolder { task, attempt, batch }) }
            }
        };
        // A token has exactly one spelling.
        (turn.file() == file).then_some(turn)
    }

    /// Returns the token after its next change of hands.
    fn next(&self, claim: Option<&Claim>) -> Turn {
        let holder = claim.map(|claim| TurnHolder {
            task: claim.name.task.id.clone(),
            attempt: claim.name.task.attempt,
            batch: claim.task.batch.clone(),
        });
        Turn { number: Some(self.number.unwrap_or_default() + 1), holder }
    }
}

impl Queue {
    /// Returns the current token.
    pub(crate) fn turn(&self) -> io::Result<Turn> {
        for _ in 0..LOOKS {
            let turns = self.census().turns()?.entries;
            // During a rename, a listing may show both names: the later one is current.
            if let Some(turn) = turns.into_iter().max_by_key(|turn| turn.number) {
                return Ok(turn);
            }
        }
        Ok(Turn::NEVER)
    }

    /// Passes the token from its state `found` to the holder of a claim, or releases it. Returns
    /// the new token, or `None` if another process was faster.
    pub(crate) fn pass_turn(&self, found: &Turn, to: Option<&Claim>) -> io::Result<Option<Turn>> {
        if found.number.is_none() {
            self.make_turn()?;
        }
        let (dir, next) = (self.layout.checkout(), found.next(to));
        let moved = self.move_unique(&dir.join(found.file()), &dir.join(next.file()))?;
        if moved == Ending::Fenced {
            return Ok(None);
        }
        self.sync_dirs([dir.as_path()]).check_all()?;
        Ok(Some(next))
    }

    /// Creates the token if there is none.
    fn make_turn(&self) -> io::Result<()> {
        self.need_volume()?;
        let (made, dir) = (self.temporary(), self.layout.checkout());
        self.disk.make_dirs(&made)?;
        self.write_one(&made.join(Turn::NEVER.file()), Vec::new(), self.durable)?;
        let _ = self.sync_dirs([made.as_path()]);
        let mut patience = Patience::new(self.patience);
        loop {
            match self.disk.rename(&made, &dir) {
                Ok(()) => return self.sync_dirs([parent(&dir)]).check_all(),
                Err(error) if is_full(&error) => return self.remove_left(&made),
                // The rename happened after all, and another process may have taken the token
                // since.
                Err(_) if !self.is_there(&made)? => return Ok(()),
                Err(error) => patience.wait(error)?,
            }
        }
    }
}

/// Returns true if the rename failed because a directory already exists.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists)
}
