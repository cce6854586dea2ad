//! Provider conversations that span several executions.
//!
//! `.orchestrate/sessions/<key>.json` stores the provider's ID of a conversation and its cost so
//! far. A process that takes part in a conversation holds the lock file next to it.
//!
//! **Invariant:** only one process at a time takes part in a conversation. Some providers allow
//! two, and then lose the messages of one.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::work::SessionWork;
use crate::agent::{Kind, Outcome, Usage};
use crate::attempt::exec_env::Site;
use crate::base::digest::{Parts, uuid};
use crate::base::host;
use crate::disk::fs;
use crate::disk::{self, locks::try_lock};
use crate::exec::Stop;

/// Directory of the conversation files in a workspace.
pub(crate) const SESSIONS: &str = ".orchestrate/sessions";

/// Maximum wait for a lock: the previous holder may still be ending.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(100);

/// A conversation whose lock this process holds.
pub(super) struct Session {
    path: PathBuf,
    work: SessionWork,
    kind: Kind,
    kept: Kept,
    /// The conversation to fork from, if this one has not started yet.
    parent: Option<Kept>,
    _lock: File,
}

/// The stored state of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// The run that the conversation belongs to: the file is kept as long as the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    /// The provider's ID of the conversation, once it has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// Number of times that the conversation was lost and started again.
    #[serde(default)]
    generation: u32,
    /// The provider's usage count at its last output.
    #[serde(default)]
    usage: Usage,
    /// Usage of executions that no record contains because they were restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unrecorded: Option<Usage>,
}

/// The reason why a conversation is not available.
pub(super) enum Busy {
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
    /// Locks a conversation. Waits up to `PATIENCE` for its holder.
    pub(super) fn take(
        site: &Site,
        work: &SessionWork,
        kind: Kind,
        stop: &Stop,
    ) -> Result<Session, Busy> {
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

    /// Returns true if there is a conversation to continue or to fork from.
    pub(super) fn goes_on(&self) -> bool {
        self.parent.is_some() || self.kept.id.is_some() && !self.work.resume.is_empty()
    }

    /// Returns the command line that starts, forks, or continues the conversation. Stores a new
    /// conversation's state first.
    pub(super) fn argv(&mut self, first: &[String]) -> io::Result<Vec<String>> {
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
            // An ID that this process chose is known even if no process lives to read the
            // provider's report.
            self.kept.id = self.kind.takes_session().then(|| self.name());
            self.write()?;
        }
        let mut names = vec![(self.work.slot(), self.kept.id.clone().unwrap_or_default())];
        if let Some((fork, parent)) = &fork {
            names.push((fork.slot(), parent.id.clone().unwrap_or_default()));
        }
        argv.iter_mut().for_each(|argument| *argument = filled(argument, &names));
        // From now on it is an independent conversation.
        self.parent = None;
        Ok(argv)
    }

    /// Returns the ID of a new conversation. IDs never repeat, even if the stored state is lost:
    /// providers refuse an ID that was used before.
    fn name(&self) -> String {
        let mut parts = Parts::default();
        parts.add(&self.work.key);
        parts.add(&self.kept.generation.to_string());
        parts.add(&format!("{:x} {:x}", host::chance(), host::chance()));
        uuid(&parts.hex())
    }

    /// Drops the conversation's ID, because the provider does not know it any more.
    pub(super) fn forget(&mut self) {
        self.parent = None;
        self.kept.id = None;
        self.kept.generation += 1;
    }

    /// Returns a value that stores the provider's ID of the conversation during the execution.
    pub(super) fn name_keeper(&self) -> Name {
        Name { path: self.path.clone(), kept: self.kept.clone() }
    }

    /// Stores what the provider reported about the conversation. Returns the cost of this execution
    /// plus that of earlier executions that were restarted. If `returns`, this execution will be
    /// restarted too.
    pub(super) fn heard(&mut self, outcome: &Outcome, returns: bool) -> io::Result<Usage> {
        let mut own = outcome.usage.since(&self.kept.usage);
        self.kept.unrecorded.iter().for_each(|before| own.add(before));
        self.kept.unrecorded = returns.then(|| own.clone());
        self.kept.usage = outcome.usage.or(&self.kept.usage);
        self.kept.id = outcome.session.clone().or(self.kept.id.take());
        self.write()?;
        Ok(own)
    }

    /// Marks the cost as recorded, unless the execution `returns`.
    pub(super) fn recorded(&mut self, returns: bool) {
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

/// Stores the provider's ID of a conversation as soon as it is known: even if the process is killed
/// right after, the conversation has started.
pub(crate) struct Name {
    path: PathBuf,
    kept: Kept,
}

impl Name {
    pub(crate) fn keep(&mut self, name: &str) {
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

/// Replaces the slots in a text with names. Does not scan the inserted names again.
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

/// Reads the stored state. An unreadable file counts as empty.
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
