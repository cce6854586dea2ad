//! The one lock with liveness and first-in, first-out order. It needs only a volume that can
//! rename, so it works where kernel locks are local to a machine or missing.
//!
//! A lease is a directory with one token, `<n>.free` or `<n>.<word>`, and one ticket
//! `<number>-<word>` for its holder and for each process that waits; `<word>` is random. A process
//! takes the token by a rename to the next `<n>`, if no live process has an earlier ticket, and if
//! the token is free or its holder is dead. The tickets are the heartbeats ([`heartbeat`]).
//!
//! **Invariant:** there is exactly one token. Each of its names is used once, so of several renames
//! one succeeds, after an error a listing shows whether it happened, and a former holder that wakes
//! up late finds its name gone ([`Lease::check`]). Tickets decide only the order and the liveness:
//! a lost or doubled ticket delays a process, but never lets two processes hold the lease.

pub(crate) mod death_watch;
mod heartbeat;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::base::host;
use crate::base::process::Process;
use crate::base::random::{chance, word};
use crate::base::time::{Clock, SystemClock};
use crate::disk::{self, Disk};
use crate::exec::Stop;
use heartbeat::{Heartbeat, HeartbeatMonitor, Reading, parse_ticket};
pub(crate) use heartbeat::{Liveness, Owner};

const FREE: &str = "free";
/// Bounds of the poll interval, which is a tenth of the time waited so far.
const MIN_POLL: Duration = Duration::from_millis(2);
const MAX_POLL: Duration = Duration::from_millis(200);
/// Minimum time to wait for a volume that does not answer.
const OUTAGE: Duration = Duration::from_secs(5);
/// Number of attempts of a call that a concurrent rename or a volume that does not answer may
/// disturb.
const TRIES: usize = 3;

/// Reason why a lease was not acquired.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    #[error("it is held by {}", describe(.0))]
    Busy(Box<Blocker>),
    #[error("stopped while waiting")]
    Stopped,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The process that holds a lease or comes before this process.
#[derive(Clone, Debug)]
pub(crate) struct Blocker {
    /// `None` if its ticket is missing or unreadable.
    pub owner: Option<Owner>,
    pub liveness: Liveness,
    /// Time without a heartbeat, if it is long.
    pub silence: Option<Duration>,
}

/// Describes a blocker and its last heartbeat.
fn describe(blocker: &Blocker) -> String {
    let owner = blocker.owner.as_ref().map_or("an unknown process".into(), Owner::to_string);
    format!("{owner}{}", blocker.evidence())
}

impl Blocker {
    /// Returns the evidence that the process may be dead, to append to its description.
    pub(crate) fn evidence(&self) -> String {
        let silence = self.silence.map(|time| format!(", no heartbeat for {} s", time.as_secs()));
        silence.unwrap_or_default()
    }
}

impl std::fmt::Display for Blocker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&describe(self))
    }
}

/// The purpose of an acquisition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    /// Description for messages.
    pub purpose: String,
    /// Data that others read as [`Owner::details`].
    pub details: Value,
    /// Time without a heartbeat after which this process counts as dead; at least 30 s. It must
    /// have stopped its work by then.
    pub ttl: Duration,
}

impl Request {
    pub(crate) fn new(purpose: impl Into<String>) -> Request {
        Request { purpose: purpose.into(), ..Request::default() }
    }
}

/// Bound of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Time(Duration),
    /// Until the holder is known to be alive. Known at once on the holder's machine.
    Known,
}

/// The terms of a wait.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'a> {
    pub limit: Limit,
    pub stop: Option<&'a Stop>,
    /// Called whenever another process comes first.
    pub report: &'a dyn Fn(&Blocker),
}

impl<'a> Wait<'a> {
    pub(crate) fn at_most(limit: Duration) -> Wait<'a> {
        Wait { limit: Limit::Time(limit), stop: None, report: &|_| {} }
    }

    pub(crate) fn until_known(stop: Option<&'a Stop>) -> Wait<'a> {
        Wait { limit: Limit::Known, stop, report: &|_| {} }
    }
}

/// The directory of a lease.
#[derive(Clone)]
pub(crate) struct LeaseDir {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
}

/// A lease that this process holds. Dropping it releases it.
pub(crate) struct Lease {
    at: LeaseDir,
    token: Token,
    word: String,
    /// The last owners that died, and their tickets.
    dead: Vec<(Owner, PathBuf)>,
    /// Kept until the token is free.
    _ticket: Heartbeat,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    number: u64,
    holder: Option<String>,
}

impl Token {
    fn parse(name: &str) -> Option<Token> {
        let (number, holder) = name.split_once('.')?;
        let holder = Some(holder).filter(|holder| *holder != FREE).map(str::to_owned);
        Some(Token { number: number.parse().ok()?, holder })
    }

    fn name(&self) -> String {
        format!("{}.{}", self.number, self.holder.as_deref().unwrap_or(FREE))
    }

    /// Returns the token after its next change.
    fn next(&self, holder: Option<&str>) -> Token {
        Token { number: self.number + 1, holder: holder.map(str::to_owned) }
    }
}

/// The name of a ticket. Tickets sort by number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket {
    number: u64,
    word: String,
}

impl Ticket {
    fn parse(name: &str) -> Option<Ticket> {
        let (number, word) = name.split_once('-')?;
        Some(Ticket { number: number.parse().ok()?, word: word.to_owned() })
    }

    fn name(&self) -> String {
        format!("{:010}-{}", self.number, self.word)
    }
}

/// The content of a lease's directory.
#[derive(Default)]
struct Listing {
    token: Option<Token>,
    /// In order.
    tickets: Vec<Ticket>,
}

impl Listing {
    fn holder(&self) -> Option<&str> {
        self.token.as_ref()?.holder.as_deref()
    }

    fn ticket_of(&self, word: &str) -> Option<&Ticket> {
        self.tickets.iter().find(|ticket| ticket.word == word)
    }
}

impl LeaseDir {
    pub(crate) fn new(dir: PathBuf) -> LeaseDir {
        LeaseDir { dir, disk: disk::machine() }
    }

    /// Acquires the lease, in the order of arrival.
    pub(crate) fn acquire(&self, request: &Request, wait: &Wait) -> Result<Lease, LeaseError> {
        let mut waiting = Waiting::new(self, request);
        let began = host::instant();
        loop {
            let tried = waiting.try_take();
            let is_over = match (&tried, wait.limit) {
                (Ok(Tried::Taken(_)), _) => false,
                (Ok(Tried::After(blocker)), Limit::Known) => blocker.liveness == Liveness::Alive,
                (Ok(Tried::After(_)), Limit::Time(limit)) => host::since(began) >= limit,
                (Err(_), Limit::Known) => host::since(began) >= OUTAGE,
                (Err(_), Limit::Time(limit)) => host::since(began) >= limit.max(OUTAGE),
            };
            match tried {
                Ok(Tried::Taken(token)) => return waiting.finish(token),
                Ok(Tried::After(blocker)) if is_over => {
                    return Err(LeaseError::Busy(Box::new(blocker)));
                }
                Ok(Tried::After(blocker)) => (wait.report)(&blocker),
                Err(error) if is_over || !is_transient(&error) => return Err(error.into()),
                Err(error) => tracing::debug!("`{}`: {error}", self.dir.display()),
            }
            if !sleep(began, wait.stop) {
                return Err(LeaseError::Stopped);
            }
        }
    }

    /// Returns the last known holder, dead or alive, or `None` if the lease is free.
    pub(crate) fn holder(&self) -> io::Result<Option<Owner>> {
        let listing = self.list()?;
        let ticket = listing.holder().and_then(|holder| listing.ticket_of(holder));
        Ok(ticket.and_then(|ticket| self.owner_of(ticket)))
    }

    /// Returns the processes that wait, in order.
    pub(crate) fn waiters(&self) -> io::Result<Vec<Owner>> {
        let listing = self.list()?;
        let waits = |ticket: &&Ticket| Some(ticket.word.as_str()) != listing.holder();
        let waiters = listing.tickets.iter().filter(waits);
        Ok(waiters.filter_map(|ticket| self.owner_of(ticket)).collect())
    }

    fn owner_of(&self, ticket: &Ticket) -> Option<Owner> {
        parse_ticket(&self.disk.read(&self.path(&ticket.name())).ok()?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Lists the directory until it shows a token: a concurrent rename may hide the token.
    fn list(&self) -> io::Result<Listing> {
        let mut listing = self.list_once()?;
        for _ in 1..TRIES {
            if listing.token.is_none() && !listing.tickets.is_empty() {
                listing = self.list_once()?;
            }
        }
        Ok(listing)
    }

    fn list_once(&self) -> io::Result<Listing> {
        let names = match self.disk.list(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Listing::default()),
            names => names?,
        };
        let mut listing = Listing::default();
        for name in &names {
            listing.tickets.extend(Ticket::parse(name));
            // During a rename, a listing may show both names: the later one is current.
            let token = Token::parse(name);
            let newest = listing.token.as_ref().map(|token| token.number);
            listing.token = token.filter(|token| Some(token.number) > newest).or(listing.token);
        }
        listing.tickets.sort();
        Ok(listing)
    }

    /// Creates the token in a directory that is renamed into place as a whole. The rename fails if
    /// a directory with a token or a ticket exists, so there is never a second token. Returns false
    /// if it failed for that reason.
    fn create_token(&self) -> io::Result<bool> {
        let name = self.dir.file_name().unwrap_or_default().to_string_lossy();
        let scratch = self.dir.with_file_name(format!(".{name}.{}", word(chance())));
        self.disk.make_dirs(&scratch)?;
        // Some volumes cannot replace an empty directory.
        let _ = self.disk.remove_dir(&self.dir);
        let token = Token { number: 0, holder: None };
        let created = self
            .disk
            .write(&scratch.join(token.name()), b"")
            .and_then(|()| self.disk.rename(&scratch, &self.dir));
        if created.is_err() {
            self.remove_dir(&scratch);
        }
        match created {
            Err(error) if exists_already(&error) => Ok(false),
            created => created.map(|()| true),
        }
    }

    /// Renames the token. Returns false if another process did so first. The rename happened if its
    /// target is listed, even if the call returned an error.
    fn pass(&self, from: &Token, to: &Token) -> io::Result<bool> {
        match self.disk.rename(&self.path(&from.name()), &self.path(&to.name())) {
            Ok(()) => Ok(true),
            Err(_) if self.list()?.token.as_ref() == Some(to) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a directory that no other process knows.
    fn remove_dir(&self, dir: &Path) {
        for name in self.disk.list(dir).unwrap_or_default() {
            let _ = self.disk.remove(&dir.join(name));
        }
        let _ = self.disk.remove_dir(dir);
    }
}

/// An attempt to take the token.
enum Tried {
    Taken(Token),
    After(Blocker),
}

/// A process that acquires a lease.
struct Waiting<'a> {
    at: &'a LeaseDir,
    owner: Owner,
    word: String,
    ticket: Option<Heartbeat>,
    monitor: HeartbeatMonitor,
    dead: Vec<(Owner, PathBuf)>,
}

impl<'a> Waiting<'a> {
    fn new(at: &'a LeaseDir, request: &Request) -> Waiting<'a> {
        let owner = Owner {
            process: Process::this(),
            purpose: request.purpose.clone(),
            since: SystemClock.now(),
            ttl_ms: request.ttl.as_millis() as u64,
            details: request.details.clone(),
        };
        let (word, monitor) = (word(chance()), HeartbeatMonitor::new());
        Waiting { at, owner, word, ticket: None, monitor, dead: Vec::new() }
    }

    /// Takes the token, or returns the process that comes first.
    fn try_take(&mut self) -> io::Result<Tried> {
        loop {
            let listing = self.at.list()?;
            let Some(token) = listing.token.clone() else {
                match self.recreate(&listing)? {
                    None => continue,
                    Some(blocker) => return Ok(Tried::After(blocker)),
                }
            };
            if token.holder.as_ref() == Some(&self.word) {
                // A rename that reported an error happened later.
                return Ok(Tried::Taken(token));
            }
            let Some(mine) = listing.ticket_of(&self.word) else {
                self.draw_ticket(&listing)?;
                continue;
            };
            if let Some(blocker) = self.find_blocker(&listing, mine) {
                return Ok(Tried::After(blocker));
            }
            let taken = token.next(Some(&self.word));
            if self.at.pass(&token, &taken)? {
                return Ok(Tried::Taken(taken));
            }
        }
    }

    /// Creates the token of a new lease, or of one that its last holder removed. In the latter case
    /// all tickets have to disappear first; the processes that wait draw new ones.
    fn recreate(&mut self, listing: &Listing) -> io::Result<Option<Blocker>> {
        self.ticket = None;
        for ticket in &listing.tickets {
            let path = self.at.path(&ticket.name());
            let reading = self.monitor.read(&*self.at.disk, &path, &ticket.word);
            if reading.liveness == Liveness::Dead {
                let _ = self.at.disk.remove(&path);
            }
        }
        if self.at.create_token()? || self.at.list()?.token.is_some() {
            return Ok(None);
        }
        Ok(Some(Blocker { owner: None, liveness: Liveness::Unknown, silence: None }))
    }

    /// Draws the next ticket: the first one, or a new one after the lease was removed.
    fn draw_ticket(&mut self, listing: &Listing) -> io::Result<()> {
        let number = listing.tickets.last().map_or(1, |last| last.number + 1);
        let ticket = Ticket { number, word: self.word.clone() };
        self.ticket = None;
        let path = self.at.path(&ticket.name());
        self.ticket = Some(Heartbeat::start(&self.at.disk, path, &self.owner)?);
        Ok(())
    }

    /// Returns the first process that comes before this one: a live one with an earlier ticket, or
    /// the holder. Collects the dead ones.
    fn find_blocker(&mut self, listing: &Listing, mine: &Ticket) -> Option<Blocker> {
        let mut first = None;
        self.dead.clear();
        let holder = listing.holder();
        for ticket in &listing.tickets {
            let holds = Some(ticket.word.as_str()) == holder;
            if ticket >= mine && !holds {
                continue;
            }
            let path = self.at.path(&ticket.name());
            let Reading { owner, liveness, silence } =
                self.monitor.read(&*self.at.disk, &path, &ticket.word);
            match owner {
                Some(owner) if liveness == Liveness::Dead => self.dead.push((owner, path)),
                // An unreadable ticket says nothing about the order.
                None if !holds => {}
                owner if liveness != Liveness::Dead && first.is_none() => {
                    first = Some(Blocker { owner, liveness, silence });
                }
                _ => {}
            }
        }
        first.or_else(|| {
            // The holder's ticket may be missing: a process that could not release the token.
            let word = holder.filter(|holder| listing.ticket_of(holder).is_none())?;
            let path = self.at.path(word);
            let Reading { liveness, silence, .. } = self.monitor.read(&*self.at.disk, &path, word);
            let is_dead = liveness == Liveness::Dead;
            (!is_dead).then_some(Blocker { owner: None, liveness, silence })
        })
    }

    fn finish(self, token: Token) -> Result<Lease, LeaseError> {
        let Waiting { at, word, ticket, dead, .. } = self;
        let lost = || io::Error::from(ErrorKind::NotFound);
        let _ticket = ticket.ok_or_else(lost)?;
        for (owner, _) in &dead {
            tracing::debug!("`{}`: taken over, {owner} is dead", at.dir.display());
        }
        Ok(Lease { at: at.clone(), token, word, dead, _ticket })
    }
}

/// Sleeps until the next poll. Returns false if a stop was requested.
fn sleep(began: Instant, stop: Option<&Stop>) -> bool {
    let time = (host::since(began) / 10).clamp(MIN_POLL, MAX_POLL);
    match stop {
        Some(stop) => stop.sleep(time),
        None => {
            host::nap(time);
            true
        }
    }
}

impl Lease {
    /// Returns the random word of this lease, which no other lease ever has.
    pub(crate) fn word(&self) -> &str {
        &self.word
    }

    /// Returns true if this process still holds the lease. False if others thought that it was
    /// dead: it must not continue.
    pub(crate) fn check(&self) -> io::Result<bool> {
        let mut listed = self.at.list();
        for _ in 1..TRIES {
            listed = listed.or_else(|_| self.at.list());
        }
        Ok(listed?.token.as_ref() == Some(&self.token))
    }

    /// Returns the owners that died since the last orderly release. Their child processes and files
    /// may remain.
    pub(crate) fn dead_owners(&self) -> impl Iterator<Item = &Owner> {
        self.dead.iter().map(|(owner, _)| owner)
    }

    /// Forgets the dead owners, once nothing of them remains. Until then, the next holder gets
    /// them, too.
    pub(crate) fn forget_dead(&mut self) {
        for (_, ticket) in self.dead.drain(..) {
            let _ = self.at.disk.remove(&ticket);
        }
    }

    /// Releases the lease, and removes its directory if no process waits.
    pub(crate) fn remove(self) {
        let LeaseDir { dir, disk } = self.at.clone();
        let alone = self.at.list().is_ok_and(|listing| listing.tickets.len() == 1);
        if alone {
            // Fails if another process has taken the token: its name is then another one.
            let _ = disk.remove(&dir.join(self.token.name()));
        }
        drop(self);
        if alone {
            let _ = disk.remove_dir(&dir);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let free = self.token.next(None);
        for _ in 0..TRIES {
            // If this fails, others find that the ticket of this process is gone.
            if self.at.pass(&self.token, &free).is_ok() {
                break;
            }
        }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({}, {})", self.at.dir.display(), self.token.name())
    }
}

/// Returns true if a rename failed because the target directory exists.
fn exists_already(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists)
}

/// Returns true if the volume did not answer, so that a later call may succeed.
fn is_transient(error: &io::Error) -> bool {
    use nix::errno::Errno::{EINTR, EIO, ENOTCONN, ESTALE, ETIMEDOUT};
    let code = error.raw_os_error().map(nix::errno::Errno::from_raw);
    code.is_some_and(|code| [EINTR, EIO, ENOTCONN, ESTALE, ETIMEDOUT].contains(&code))
}
