//! Conversations with providers that several executions are part of.
//!
//! What a provider calls a conversation, and what it has cost so far, lies in
//! `.orchestrate/sessions/<key>.json`. Whoever takes part in one holds the lock beside it.
//!
//! **Invariant:** one process at a time takes part in a conversation: some providers let two, and
//! then lose what one of them said.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::site::Site;
use super::super::work::SessionWork;
use crate::digest::{Parts, uuid};
use crate::disk::{self, locks::try_lock};
use crate::exec::Stop;
use crate::host;
use crate::provider::{Kind, Outcome, Usage};

/// Where what is known of conversations lies in a workspace.
pub const SESSIONS: &str = ".orchestrate/sessions";

/// Whoever had it last may be ending yet.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(100);

/// A conversation that is held.
pub struct Session {
    path: PathBuf,
    work: SessionWork,
    kind: Kind,
    kept: Kept,
    /// The conversation that this one goes on from, where it was not begun yet.
    parent: Option<Kept>,
    _lock: File,
}

/// What is kept of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// The run that it is part of: what is known stays as long as that does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    /// What the provider calls it, once it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// How often one was lost and begun anew.
    #[serde(default)]
    generation: u32,
    /// What the provider counted when it last spoke.
    #[serde(default)]
    usage: Usage,
    /// What was spent by executions that no record tells of, because they were begun again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unrecorded: Option<Usage>,
}

/// Why a conversation cannot be had.
pub enum Busy {
    /// Another process takes part in it.
    Held,
    Stopped,
    Error(io::Error),
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Busy::Held => f.write_str("another process is in the same conversation"),
            Busy::Stopped => f.write_str("it was stopped"),
            Busy::Error(error) => write!(f, "cannot keep what is known of a conversation: {error}"),
        }
    }
}

impl Session {
    /// Takes a conversation, waiting a little for whoever has it.
    pub fn take(site: &Site, work: &SessionWork, kind: Kind, stop: &Stop) -> Result<Session, Busy> {
        let dir = site.workspace.root().join(SESSIONS);
        fs::create_dir_all(&dir).map_err(Busy::Error)?;
        let lock = File::create(dir.join(format!("{}.lock", work.key))).map_err(Busy::Error)?;
        let began = Instant::now();
        while !try_lock(&lock).map_err(Busy::Error)? {
            if began.elapsed() >= PATIENCE {
                return Err(Busy::Held);
            }
            if !stop.sleep(LOOK) {
                return Err(Busy::Stopped);
            }
        }
        let path = dir.join(format!("{}.json", work.key));
        let mut kept = read(&path).map_err(Busy::Error)?;
        kept.run_id = site.run_id();
        let parent = match &work.fork {
            Some(fork) if kept.id.is_none() && kept.generation == 0 => {
                let parent = read(&dir.join(format!("{}.json", fork.from)));
                Some(parent.map_err(Busy::Error)?).filter(|parent| parent.id.is_some())
            }
            _ => None,
        };
        Ok(Session { path, work: work.clone(), kind, kept, parent, _lock: lock })
    }

    /// Whether there is something to go on with, or from.
    pub fn goes_on(&self) -> bool {
        self.parent.is_some() || self.kept.id.is_some() && !self.work.resume.is_empty()
    }

    /// The argv that begins the conversation or goes on with it, which is then on record.
    pub fn argv(&mut self, first: &[String]) -> io::Result<Vec<String>> {
        let fork = self.work.fork.clone().zip(self.parent.clone());
        let argv = match &fork {
            Some((fork, _)) => &fork.argv,
            None if self.goes_on() => &self.work.resume,
            None => first,
        };
        let mut argv = argv.to_vec();
        if fork.is_some() || !self.goes_on() {
            if self.kept.id.is_some() {
                self.kept.generation += 1;
            }
            self.kept.usage = fork.as_ref().map_or_else(Usage::default, |(_, p)| p.usage.clone());
            // A name of ours is known even if nobody lives to hear the provider say it.
            self.kept.id = self.kind.takes_session().then(|| self.name());
            self.write()?;
        }
        let mut names = vec![(self.work.slot(), self.kept.id.clone().unwrap_or_default())];
        if let Some((fork, parent)) = &fork {
            names.push((fork.slot(), parent.id.clone().unwrap_or_default()));
        }
        argv.iter_mut().for_each(|argument| *argument = filled(argument, &names));
        // From now on it is a conversation of its own.
        self.parent = None;
        Ok(argv)
    }

    /// The name of a new conversation. No two have the same, not even if what was known of the
    /// first is gone: providers refuse a name that was used.
    fn name(&self) -> String {
        let mut parts = Parts::default();
        parts.add(&self.work.key);
        parts.add(&self.kept.generation.to_string());
        parts.add(&format!("{:x} {:x}", host::chance(), host::chance()));
        uuid(&parts.hex())
    }

    /// Begins anew: the provider does not know the conversation.
    pub fn forget(&mut self) {
        self.parent = None;
        self.kept.id = None;
        self.kept.generation += 1;
    }

    /// Keeps what a provider calls the conversation, while it speaks.
    pub fn name_keeper(&self) -> Name {
        Name { path: self.path.clone(), kept: self.kept.clone() }
    }

    /// Keeps what a provider said of the conversation. Gives what this execution alone cost, and
    /// those before it that were begun again, as this one will be if it `returns`.
    pub fn heard(&mut self, outcome: &Outcome, returns: bool) -> io::Result<Usage> {
        let mut own = outcome.usage.since(&self.kept.usage);
        self.kept.unrecorded.iter().for_each(|before| own.add(before));
        self.kept.unrecorded = returns.then(|| own.clone());
        self.kept.usage = outcome.usage.or(&self.kept.usage);
        self.kept.id = outcome.session.clone().or(self.kept.id.take());
        self.write()?;
        Ok(own)
    }

    /// What it cost is on record from now on.
    pub fn recorded(&mut self, returns: bool) {
        if !returns
            && self.kept.unrecorded.take().is_some()
            && let Err(error) = self.write()
        {
            tracing::warn!("{}", Busy::Error(error));
        }
    }

    fn write(&self) -> io::Result<()> {
        write(&self.path, &self.kept)
    }
}

/// What the provider calls a conversation, kept as soon as it is known: whoever is killed right
/// after that has still begun it.
pub struct Name {
    path: PathBuf,
    kept: Kept,
}

impl Name {
    pub fn keep(&mut self, name: &str) {
        if self.kept.id.as_deref() == Some(name) {
            return;
        }
        self.kept.id = Some(name.to_owned());
        if let Err(error) = write(&self.path, &self.kept) {
            tracing::warn!("{}", Busy::Error(error));
        }
    }
}

fn write(path: &Path, kept: &Kept) -> io::Result<()> {
    disk::swap(&*disk::machine(), path, &serde_json::to_vec(kept)?)
}

/// A text with names in the place of what stands for them. What was put in is not read again.
fn filled(mut text: &str, names: &[(String, String)]) -> String {
    let mut out = String::new();
    loop {
        let places = names.iter().filter_map(|(slot, name)| Some((text.find(slot)?, slot, name)));
        let Some((at, slot, name)) = places.min_by_key(|(at, ..)| *at) else {
            return out + text;
        };
        out.push_str(&text[..at]);
        out.push_str(name);
        text = &text[at + slot.len()..];
    }
}

/// What is kept; what cannot be read is as good as nothing.
fn read(path: &Path) -> io::Result<Kept> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_put_in_is_not_read_again() {
        let names = [("@a@".to_owned(), "x@b@".to_owned()), ("@b@".to_owned(), "@a@".to_owned())];
        assert_eq!(filled("@b@-@a@@a", &names), "@a@-x@b@@a");
        assert_eq!(filled("é@a@", &names[..1]), "éx@b@");
        assert_eq!(filled("", &names), "");
    }
}
