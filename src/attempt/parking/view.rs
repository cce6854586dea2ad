//! The user's view of parked accounts, and the command that lifts a note.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::note::{Cause, Note, Target, read_trial};
use super::{NOTE_BYTES, PARKED};
use crate::agent::MachineFault;
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk::{self, Disk};

/// A parked account or a suspended provider.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ParkedView {
    pub account: String,
    pub provider: String,
    pub cause: Cause,
    pub reason: String,
    /// Time of the next try by the clock of this machine; `None` if a user must act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// True if the rest is over: the next task tries the account, or one is trying it now.
    pub due: bool,
    /// True if a task is trying the account.
    pub trying: bool,
    pub strikes: u32,
    /// Time of the failure, by the clock of the process that met it.
    pub since: Time,
    /// The only machine that is affected; `None` if all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The fault of that machine, and its fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<MachineFault>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// The program that is suspended on that machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub program: String,
}

impl ParkedView {
    /// Returns true if a task with this target waits because of this note.
    pub(crate) fn holds(&self, target: &Target) -> bool {
        match self.cause {
            Cause::Machine => {
                let program = |path: &str| path.rsplit('/').next().map(str::to_owned);
                self.is_whole_machine()
                    || self.provider == target.provider
                        && program(&self.program) == program(&target.program)
            }
            _ => self.account == target.account,
        }
    }

    /// Returns true if no task at all is executed on the machine.
    pub(crate) fn is_whole_machine(&self) -> bool {
        self.cause == Cause::Machine && self.provider.is_empty()
    }

    /// Describes where and why the provider is suspended, and when it is tried again.
    pub(crate) fn suspension(&self) -> String {
        let when = match (self.trying, self.until.filter(|_| !self.due)) {
            (true, _) => "one task tries it now".to_owned(),
            (_, Some(until)) => format!("tried again at {}", until.to_second()),
            _ => "the next task tries it".to_owned(),
        };
        let often = match self.fault {
            Some(MachineFault::Repeated) => " after several tasks in a row failed",
            _ => "",
        };
        let host = self.host.as_deref().unwrap_or("this machine");
        format!("is suspended on {host}{often}: {} ({when})", self.reason)
    }

    /// Describes the state, as a phrase that follows the name of the provider.
    pub(crate) fn sentence(&self) -> String {
        let reason = if self.reason.is_empty() { "" } else { ": " };
        let reason = format!("{reason}{}", self.reason);
        let until = self.until.map(Time::to_second).unwrap_or_default();
        let account = &self.account;
        let host = self.host.as_deref().unwrap_or("this machine");
        match self.cause {
            Cause::Machine => {
                let resume = match self.provider.as_str() {
                    "" => String::new(),
                    name => format!("; `orchestrate provider resume {name}` tries it now"),
                };
                format!("{}; fix: {}{resume}", self.suspension(), self.fix)
            }
            Cause::Easing => "works again, and is asked by one after the other".to_owned(),
            Cause::Person => {
                format!(
                    "is parked on {host} until a person has acted{reason}; then `orchestrate \
                     provider resume {account}`"
                )
            }
            _ if self.trying => format!("is parked, and one task tries it now{reason}"),
            _ if self.due => format!("is parked, and the next task tries it{reason}"),
            _ => format!(
                "is parked until {until}{reason}; `orchestrate provider resume {account}` lifts it"
            ),
        }
    }
}

/// Returns everything that is parked in a workspace, by account.
pub(crate) fn look(workspace: &Path) -> io::Result<Vec<ParkedView>> {
    let (dir, disk, now) = (workspace.join(PARKED), disk::machine(), SystemClock.now());
    let files = list(&*disk, &dir)?;
    let mut found = Vec::new();
    for file in &files {
        let Ok(bytes) = disk.read_regular(&dir.join(file), NOTE_BYTES) else { continue };
        let Some(note) = Note::read(file, &bytes) else { continue };
        let tries = |file: &String| read_trial(file).is_some_and(|(_, word, _)| word == note.word);
        let left = note.left(Duration::ZERO, now);
        if note.cause == Cause::Easing && left.is_zero() {
            continue;
        }
        let person = note.cause == Cause::Person;
        found.push(ParkedView {
            until: (!person).then(|| now.plus_ms(left.as_millis() as u64)),
            due: left.is_zero(),
            trying: files.iter().any(tries),
            strikes: note.strikes,
            since: note.at,
            host: note.only_on().map(str::to_owned),
            fault: note.fault,
            fix: note.fix,
            program: note.program,
            account: note.account,
            provider: note.provider,
            cause: note.cause,
            reason: note.reason,
        });
    }
    Ok(found)
}

/// Describes one of several parked accounts in a line.
pub(crate) fn told(parked: &ParkedView) -> String {
    let ParkedView { account, provider, .. } = parked;
    if parked.is_whole_machine() {
        return format!("every task {}", parked.sentence());
    }
    let of = if account == provider { String::new() } else { format!(" (account `{account}`)") };
    format!("provider `{provider}`{of} {}", parked.sentence())
}

/// Describes a note that a worker wrote.
pub(crate) fn told_in_short(note: &Note) -> String {
    let Note { provider, reason, host, fix, .. } = note;
    let what = match provider.as_str() {
        "" => "every task".to_owned(),
        name => format!("provider `{name}`"),
    };
    match note.until {
        Some(until) if note.cause == Cause::Machine => {
            let until = until.to_second();
            format!("{what} is suspended on {host} until {until}: {reason}; fix: {fix}")
        }
        Some(until) => {
            format!("provider `{provider}` is parked until {}: {reason}", until.to_second())
        }
        None => format!("provider `{provider}` is parked until a person has acted: {reason}"),
    }
}

/// Removes the notes of these accounts and providers, and every note that suspends a whole machine,
/// so that they are tried again. Returns true if there were any.
pub(crate) fn lift(workspace: &Path, names: &[&str]) -> io::Result<bool> {
    let (dir, disk) = (workspace.join(PARKED), disk::machine());
    let mut lifted = false;
    for file in list(&*disk, &dir)? {
        let note = file.split('~').next().unwrap_or_default();
        let name = match note.split_once('!') {
            Some((suspended, _)) => before(suspended, '='),
            None => before(note, '@'),
        };
        if name.is_empty() || names.contains(&name) {
            match disk.remove(&dir.join(&file)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                removed => removed?,
            }
            lifted = true;
        }
    }
    Ok(lifted)
}

fn before(text: &str, mark: char) -> &str {
    text.split(mark).next().unwrap_or(text)
}

/// Returns the invalid files among the notes, each with the problem.
pub(crate) fn faults(workspace: &Path) -> io::Result<Vec<(String, &'static str)>> {
    let (dir, disk) = (workspace.join(PARKED), disk::machine());
    let (mut found, mut words) = (Vec::new(), HashSet::new());
    let files = list(&*disk, &dir)?;
    for file in files.iter().filter(|file| read_trial(file).is_none()) {
        match disk.read_regular(&dir.join(file), NOTE_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => match read.ok().and_then(|bytes| Note::read(file, &bytes)) {
                Some(note) => _ = words.insert(note.word),
                None => found.push((file.clone(), "it is no whole note, so nobody heeds it")),
            },
        }
    }
    for file in &files {
        if read_trial(file).is_some_and(|(_, word, _)| !words.contains(word)) {
            found.push((file.clone(), "it is the trial of an account after no note that is there"));
        }
    }
    Ok(found)
}

/// Returns true if the file no longer stops any task: its rest is over, or it is not a valid note.
pub(crate) fn is_over(path: &Path) -> bool {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let bytes = disk::machine().read_regular(path, NOTE_BYTES).unwrap_or_default();
    let note = Note::read(&file, &bytes);
    note.is_none_or(|note| note.left(Duration::ZERO, SystemClock.now()).is_zero())
}

fn list(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<String>> {
    match disk.list(dir) {
        Ok(files) => Ok(files.into_iter().filter(|file| !file.starts_with('.')).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
