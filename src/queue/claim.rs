//! Claims a task: one rename and one read.
//!
//! **Invariant:** this process records a target name before it renames to it. A file of its own
//! with a name it has not recorded therefore arrived late, from a rename that had reported an
//! error.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;

use super::listing::{First, Stock};
use super::moves::{Patience, is_transient};
use super::name::{ClaimName, TaskName};
use super::status::{CANCELLED, UNREADABLE};
use super::{Claim, Claimed, End, Ending, Queue, Task, Wanted, seal};
use crate::base::host::{self, lock};

/// Maximum size of a task file, in bytes.
pub(super) const SIZE_MAX: u64 = 64 << 20;
/// Maximum number of inbox listings per call. A caller that loses the races for all of them may
/// call again.
const LISTINGS: u32 = 3;
/// Maximum number of cancelled tasks that one call ends. It bounds the duration of the call.
const ENDED_MAX: u32 = 64;
/// Maximum number of unmovable names that one call skips.
const STUCK_MAX: u32 = 16;
/// Number of unconfirmed claims that forces a check of the directory.
const DOUBTS_MAX: usize = 8_192;

/// Result of an attempt to claim one name.
enum Taken {
    Mine(ClaimName),
    Lost(ClaimName),
    /// The file cannot be moved, but others perhaps can.
    Stuck(io::Error),
}

/// State of one call's search through an inbox.
struct Search<'a> {
    agent: &'a str,
    inbox: PathBuf,
    stock: Arc<Mutex<Stock>>,

    listings: u32,
    /// Number of claims that this call ended, and number of unmovable names that it skipped.
    ended: u32,
    stuck: u32,
    /// Error of the last name that could not be moved.
    error: Option<io::Error>,
}

/// Next candidate of a search.
enum Next {
    /// A waiting file.
    File(Box<str>),
    /// A claim that succeeded although its rename reported an error.
    Found(ClaimName),
}

impl Queue {
    /// Claims the next task of an agent: the most urgent, and among those the oldest. Returns
    /// `Claimed::Nothing` while the agent is paused.
    pub(crate) fn claim(&self, agent: &str) -> io::Result<Claimed> {
        self.claim_next(agent, None)
    }

    /// Like [`claim`](Self::claim), but considers only the tasks that `wanted` accepts.
    pub(crate) fn claim_wanted(&self, agent: &str, wanted: Wanted) -> io::Result<Claimed> {
        self.claim_next(agent, Some(wanted))
    }

    fn claim_next(&self, agent: &str, wanted: Option<Wanted>) -> io::Result<Claimed> {
        let inbox = self.inbox(agent)?;
        if self.current_marks()?.is_paused(agent) {
            return Ok(Claimed::Nothing);
        }
        let stock = self.stock(agent);
        let mut search =
            Search { agent, inbox, stock, listings: 0, ended: 0, stuck: 0, error: None };
        while let Some(next) = self.next(&mut search)? {
            let name = match next {
                Next::Found(name) => Some(name),
                Next::File(file)
                    if wanted.is_none_or(|wanted| self.is_wanted(&search, &file, wanted)) =>
                {
                    self.try_file(&mut search, &file)?
                }
                Next::File(_) => {
                    // The next listing contains it again, so this call must not list again.
                    search.listings = LISTINGS;
                    None
                }
            };

            let Some(name) = name else { continue };
            if let Some(claimed) = self.open_claim(agent, name)? {
                return Ok(claimed);
            }
            search.ended += 1;
            if search.ended >= ENDED_MAX {
                return Ok(Claimed::Nothing);
            }
        }
        search.error.map_or(Ok(Claimed::Nothing), Err)
    }

    /// Returns true if the caller wants a waiting file. Gives the caller a function to read it.
    fn is_wanted(&self, search: &Search, file: &str, wanted: Wanted) -> bool {
        let Some(name) = TaskName::parse(file) else { return true };
        let read = || {
            let bytes = self.disk.read_regular(&search.inbox.join(file), SIZE_MAX).ok()?;
            Task::read(name.clone(), search.agent, seal::unseal(&bytes)?)
        };
        wanted(&name, &read)
    }

    fn next(&self, search: &mut Search) -> io::Result<Option<Next>> {
        let mut stock = lock(&search.stock);
        if stock.is_due() && (search.listings < LISTINGS || !stock.is_empty()) {
            search.listings += 1;
            self.look_into(search.agent, &mut stock)?;
            self.relist(&search.inbox, &mut stock)?;
        }
        if let Some(name) = stock.found.pop() {
            return Ok(Some(Next::Found(name)));
        }
        Ok(stock.take(self.random()).map(Next::File))
    }

    fn relist(&self, inbox: &Path, stock: &mut Stock) -> io::Result<()> {
        let since = host::instant();
        let stuck = self.stuck.of(inbox);
        let mut first = First::default();
        self.scan(inbox, &mut |file| {
            if stuck.is_empty() || !stuck.contains(file) {
                first.see(file);
            }
            ControlFlow::Continue(())
        })?;
        // Names in the directory of another volume are not this queue's tasks.
        self.need_volume()?;
        stock.refill(first, since);
        Ok(())
    }

    /// Tries to claim a listed file.
    fn try_file(&self, search: &mut Search, file: &str) -> io::Result<Option<ClaimName>> {
        let Some(task) = TaskName::parse(file) else { return Ok(None) };
        let path = search.inbox.join(file);
        match self.take(search.agent, &path, task)? {
            Taken::Mine(name) => return Ok(Some(name)),
            Taken::Lost(name) => {
                let mut stock = lock(&search.stock);
                stock.lose(name);
                let many = stock.doubts.len() >= DOUBTS_MAX;
                if many || stock.looked.is_due(Duration::ZERO) {
                    self.look_into(search.agent, &mut stock)?;
                }
            }
            Taken::Stuck(error) => {
                tracing::warn!("`{}` cannot be claimed: {error}", path.display());
                self.stuck.add(path);
                search.stuck += 1;
                if search.stuck >= STUCK_MAX {
                    return Err(error);
                }
                search.error = Some(error);
            }
        }
        Ok(None)
    }

    /// Searches for claims whose rename reported that its source did not exist. One listing serves
    /// all of them, so a race that was really lost costs one rename and no more.
    fn look_into(&self, agent: &str, stock: &mut Stock) -> io::Result<()> {
        if stock.doubts.is_empty() {
            return Ok(());
        }
        let since = host::instant();
        let dir = self.layout.claimed(agent);
        let mut doubts: HashMap<String, ClaimName> =
            stock.doubts.drain(..).map(|name| (name.file(), name)).collect();
        let mut found = Vec::new();
        let there = self.scan(&dir, &mut |file| {
            found.extend(doubts.remove(file));
            ControlFlow::Continue(())
        })?;
        stock.looked.looked(since);
        // A claim that is already held was found by another check.
        stock.found.extend(found.into_iter().filter(|name| self.hold(name)));
        if !there {
            // No rename can succeed into a directory that was removed: recreate it.
            self.make_dir(&dir)?;
            stock.listed.forget();
        }
        Ok(())
    }

    fn take(&self, agent: &str, from: &Path, task: TaskName) -> io::Result<Taken> {
        let name = ClaimName { task, worker: self.me.clone(), claim: self.word() };
        let to = self.layout.claimed(agent).join(name.file());
        self.hold(&name);
        let moved = match self.disk.try_rename(from, &to) {
            Ok(()) => Ok(Ending::Committed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ending::Fenced),
            Err(_) => self.move_unique(from, &to),
        };
        if matches!(moved, Ok(Ending::Committed)) {
            return Ok(Taken::Mine(name));
        }
        self.let_go(&name);
        match moved {
            Ok(_) => Ok(Taken::Lost(name)),
            Err(error) if is_about_one(&error) => Ok(Taken::Stuck(error)),
            Err(error) => Err(error),
        }
    }

    /// Claims the given waiting task. Returns `Claimed::Nothing` if another process has it or the
    /// agent is paused.
    pub(crate) fn claim_this(&self, agent: &str, task: &TaskName) -> io::Result<Claimed> {
        if self.current_marks()?.is_paused(agent) {
            return Ok(Claimed::Nothing);
        }
        match self.take_one(agent, task)? {
            Some(name) => Ok(self.open_claim(agent, name)?.unwrap_or(Claimed::Nothing)),
            None => Ok(Claimed::Nothing),
        }
    }

    /// Claims one waiting file without reading its content.
    pub(super) fn take_one(&self, agent: &str, task: &TaskName) -> io::Result<Option<ClaimName>> {
        let from = self.inbox(agent)?.join(task.file());
        self.open_agent(agent)?;
        let name = ClaimName { task: task.clone(), worker: self.me.clone(), claim: self.word() };
        self.hold(&name);
        let moved = self.move_unique(&from, &self.layout.claimed(agent).join(name.file()));
        if !matches!(moved, Ok(Ending::Committed)) {
            self.let_go(&name);
        }
        Ok((moved? == Ending::Committed).then_some(name))
    }

    /// Reads a claimed file. Ends it if it cannot be executed. Returns `None` if the caller does
    /// not need to know about it.
    fn open_claim(&self, agent: &str, name: ClaimName) -> io::Result<Option<Claimed>> {
        let opened = self.open_held(agent, &name);
        if !matches!(opened, Ok(Some(Claimed::Task(_)))) {
            self.let_go(&name);
        }
        opened
    }

    fn open_held(&self, agent: &str, name: &ClaimName) -> io::Result<Option<Claimed>> {
        match self.read_claim(agent, name)? {
            Found::Task(claim) => {
                if !self.current_marks()?.is_cancelled(&claim.task) {
                    return Ok(Some(Claimed::Task(claim)));
                }
                self.end_claim(*claim, End::Cancelled, CANCELLED, "cancelled before it was begun")?;
                Ok(None)
            }
            Found::Unreadable(reason) => {
                self.end_unreadable(agent, name, &reason)?;
                Ok(Some(Claimed::Quarantined { name: name.clone(), reason }))
            }
            Found::Gone => Ok(None),
        }
    }

    pub(super) fn read_claim(&self, agent: &str, name: &ClaimName) -> io::Result<Found> {
        let path = self.layout.claimed(agent).join(name.file());
        let bytes = match self.read_moved(&path) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(Found::Gone),
            Err(error) if self.is_of_the_file(&error)? => {
                return Ok(Found::Unreadable(format!("the file cannot be read: {error}")));
            }
            Err(error) => return Err(error),
        };
        let Some(document) = seal::unseal(&bytes) else {
            let reason = "the file is not a whole task: its seal is missing or wrong";
            return Ok(Found::Unreadable(reason.to_owned()));
        };
        match Task::read(name.task.clone(), agent, document) {
            Some(task) => Ok(Found::Task(Box::new(Claim::new(name.clone(), agent, task)))),
            None => Ok(Found::Unreadable("the task names no batch that could be one".to_owned())),
        }
    }

    /// Reads a file that was just moved. Retries, because a cache may not contain the file yet.
    fn read_moved(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let mut patience = Patience::new(self.patience);
        loop {
            match self.disk.read_regular(path, SIZE_MAX) {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if !self.is_there(path)? {
                        return Ok(None);
                    }
                    patience.wait_anyway(error)?;
                }
                Err(error) => patience.wait(error)?,
            }
        }
    }

    /// Returns true if a read error concerns this file, not the volume or this machine.
    fn is_of_the_file(&self, error: &io::Error) -> io::Result<bool> {
        match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::PermissionDenied => Ok(true),
            // The medium cannot return this one file, but can return others.
            _ if error.raw_os_error() == Some(Errno::EIO as i32) => self.is_mounted(),
            _ => Ok(false),
        }
    }

    /// Ends a claim of a file that is not a task.
    pub(super) fn end_unreadable(
        &self,
        agent: &str,
        name: &ClaimName,
        reason: &str,
    ) -> io::Result<Ending> {
        let task = Task {
            name: name.task.clone(),
            agent: agent.to_owned(),
            batch: UNREADABLE.to_owned(),
            crash_limit: 0,
            document: Default::default(),
        };
        let claim = Claim::new(name.clone(), agent, task);
        self.end_claim(claim, End::Failed, UNREADABLE, reason)
    }
}

/// Content of a claimed file.
pub(super) enum Found {
    Task(Box<Claim>),
    Unreadable(String),
    Gone,
}

/// Returns true if an error may concern one file only, not all of them.
fn is_about_one(error: &io::Error) -> bool {
    const OF_ALL: [Errno; 4] = [Errno::EROFS, Errno::ENOSPC, Errno::EDQUOT, Errno::EXDEV];
    let code = error.raw_os_error().map(Errno::from_raw);
    code.is_some_and(|code| !OF_ALL.contains(&code)) && !is_transient(error)
}
