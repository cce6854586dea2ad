//! Accounts that are left alone, as people see them, and how they let them be asked again.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::note::{Cause, Note, read_trial};
use super::{NOTE_BYTES, PARKED};
use crate::disk::{self, Disk};
use crate::time::{Clock, SystemClock, Time};

/// An account that is left alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParkedView {
    pub account: String,
    pub provider: String,
    pub cause: Cause,
    pub reason: String,
    /// When it is tried again, by the clock of this machine; nothing, where a person must act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Its time is over: the next who wants to ask it tries, or does so now.
    pub due: bool,
    /// Somebody is trying.
    pub trying: bool,
    pub strikes: u32,
    /// Since when, by the clock of whoever met it.
    pub since: Time,
    /// The only machine that it is so on, where a person must act there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl ParkedView {
    /// Whether a task of the account waits because of it.
    pub fn holds(&self, account: &str) -> bool {
        self.account == account
    }

    /// How it stands, as it follows the name of the provider.
    pub fn sentence(&self) -> String {
        let reason = if self.reason.is_empty() { "" } else { ": " };
        let reason = format!("{reason}{}", self.reason);
        let until = self.until.map(Time::to_second).unwrap_or_default();
        let account = &self.account;
        match self.cause {
            Cause::Easing => "works again, and is asked by one after the other".to_owned(),
            Cause::Person => {
                let host = self.host.as_deref().unwrap_or("this machine");
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

/// Everything that is left alone in a workspace, by account.
pub fn look(workspace: &Path) -> io::Result<Vec<ParkedView>> {
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
            host: person.then(|| note.host.clone()),
            account: note.account,
            provider: note.provider,
            cause: note.cause,
            reason: note.reason,
        });
    }
    Ok(found)
}

/// What one of several accounts is told of in a line.
pub fn told(parked: &ParkedView) -> String {
    let ParkedView { account, provider, .. } = parked;
    let of = if account == provider { String::new() } else { format!(" (account `{account}`)") };
    format!("provider `{provider}`{of} {}", parked.sentence())
}

/// What a worker says of a note that it left.
pub fn told_in_short(note: &Note) -> String {
    let Note { provider, reason, .. } = note;
    match note.until {
        Some(until) => {
            format!("provider `{provider}` is parked until {}: {reason}", until.to_second())
        }
        None => format!("provider `{provider}` is parked until a person has acted: {reason}"),
    }
}

/// Lets an account be asked again, whatever is known of it. Says whether anything was.
pub fn lift(workspace: &Path, account: &str) -> io::Result<bool> {
    let (dir, disk) = (workspace.join(PARKED), disk::machine());
    let mut lifted = false;
    for file in list(&*disk, &dir)? {
        let of_person = file.split_once('@').map(|(account, _)| account);
        let of = read_trial(&file).map(|(account, ..)| account).or(of_person).unwrap_or(&file);
        if of == account {
            match disk.remove(&dir.join(&file)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                removed => removed?,
            }
            lifted = true;
        }
    }
    Ok(lifted)
}

/// What lies among the notes and is none that counts, each with what is wrong.
pub fn faults(workspace: &Path) -> io::Result<Vec<(String, &'static str)>> {
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

/// Whether what lies in a file keeps nobody from asking any more.
pub fn is_over(path: &Path) -> bool {
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
