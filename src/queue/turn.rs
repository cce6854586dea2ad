//! Whose turn it is: of all tasks that must not be worked at beside one another, one has the turn.
//!
//! The turn is one file in a directory of its own, and its name says who has it: `<n>.free`, or
//! `<n>.<task>.a<NN>.<batch>`. It is taken, taken over and given up by a rename to the next
//! number, so of any who want it one gets it, and whoever had it before and wakes up late finds
//! its own name gone. Who may take it from whom is for the caller to say; that somebody else did
//! meanwhile cannot be overlooked.
//!
//! **Invariant:** there is one such file. It comes with its directory, by a rename that fails
//! where there is one that is not empty, and is never removed.

use std::io;

use super::moves::{Patience, parent};
use super::{Claim, Ending, FsQueue, TaskId};

/// How often a listing without the file is made again: it may have been renamed under our eyes.
const LOOKS: usize = 3;
const FREE: &str = "free";

/// The turn as somebody found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// How often it changed hands; nothing, where nobody ever had it.
    pub number: Option<u64>,
    pub holder: Option<TurnHolder>,
}

/// The task that has the turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnHolder {
    pub task: TaskId,
    /// The attempt whose holder took it.
    pub attempt: u32,
    pub batch: String,
}

impl Turn {
    const NEVER: Turn = Turn { number: None, holder: None };

    pub fn file(&self) -> String {
        let number = self.number.unwrap_or_default();
        match &self.holder {
            None => format!("{number}.{FREE}"),
            Some(TurnHolder { task, attempt, batch }) => {
                format!("{number}.{task}.a{attempt:02}.{batch}")
            }
        }
    }

    pub fn parse(file: &str) -> Option<Turn> {
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
        // One turn has one spelling.
        (turn.file() == file).then_some(turn)
    }

    /// The turn after this one.
    fn next(&self, claim: Option<&Claim>) -> Turn {
        let holder = claim.map(|claim| TurnHolder {
            task: claim.name.task.id.clone(),
            attempt: claim.name.task.attempt,
            batch: claim.task.batch.clone(),
        });
        Turn { number: Some(self.number.unwrap_or_default() + 1), holder }
    }
}

impl FsQueue {
    /// Whose turn it is.
    pub fn turn(&self) -> io::Result<Turn> {
        for _ in 0..LOOKS {
            let turns = self.list(&self.layout.checkout(), Turn::parse)?;
            // Seen under two names while it is renamed, the later one is its name.
            if let Some(turn) = turns.into_iter().max_by_key(|turn| turn.number) {
                return Ok(turn);
            }
        }
        Ok(Turn::NEVER)
    }

    /// Passes the turn on as it was found: to the holder of a claim, or to nobody. Gives the turn
    /// as it is then; nothing, if somebody else was faster.
    pub fn pass_turn(&self, found: &Turn, to: Option<&Claim>) -> io::Result<Option<Turn>> {
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

    /// Makes the turn where there is none.
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
                // It happened after all, and somebody may have taken it on since.
                Err(_) if !self.is_there(&made)? => return Ok(()),
                Err(error) => patience.wait(error)?,
            }
        }
    }
}

/// Whether a directory could not be renamed because there is one already.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists)
}
