//! Accounts of providers that are left alone: what one process learnt of a limit, all others of
//! the workspace heed.
//!
//! A note in `.orchestrate/parked/` says why and for how long ([`note`]). When its time is over,
//! one process tries the account while the others wait: whoever makes the file of the trial. If
//! it is answered, those who waited begin one after the other; if not, the rest is longer.
//!
//! **Invariant:** whoever asks has a [`Pass`]. What a pass learns counts for everybody; a trial
//! that ends without having learnt anything is left to others.

mod note;
mod view;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub use self::note::{Cause, Note};
pub use self::view::{ParkedView, faults, is_over, lift, look, told, told_in_short};

use self::note::{Striker, person_file, read_trial, trial_file};
use crate::disk;
use crate::host;
use crate::process::Process;
use crate::provider::{Outcome, Verdict};
use crate::queue::seal;
use crate::random::{chance, word};
use crate::time::{Clock, SystemClock};

/// Where notes lie in a workspace.
pub const PARKED: &str = ".orchestrate/parked";

/// How seldom the notes are looked at.
const PACE: Duration = Duration::from_millis(250);
/// How long a trial may take before another process tries too.
const TRIAL: Duration = Duration::from_secs(120);
/// The largest note that is read.
const NOTE_BYTES: u64 = 64 << 10;
/// At which attempt a task counts as failed that is met by faults which may be its own.
const TRIES: u32 = 6;

/// What one process knows of accounts that are left alone.
pub struct Parking {
    dir: PathBuf,
    here: Process,
    first: Duration,
    most: Duration,
    /// A person started this process: what a person had to do before that may have been done.
    by_hand: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    looked: Option<Instant>,
    began: bool,
    notes: HashMap<String, Seen>,
    trials: HashMap<String, Instant>,
    /// When the next question may be asked of an account that works again.
    next: HashMap<String, Instant>,
}

struct Seen {
    note: Note,
    first: Instant,
    /// It was there before this process was.
    older: bool,
}

/// Whether an account may be asked.
pub enum Entry {
    Open(Arc<Pass>),
    Parked(Note),
}

impl Parking {
    pub fn new(workspace: &Path, first: Duration, most: Duration, by_hand: bool) -> Parking {
        Parking {
            dir: workspace.join(PARKED),
            here: Process::this(),
            first,
            most: most.max(first),
            by_hand,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        host::lock(&self.state)
    }

    /// Whether any account is left alone, or was a moment ago.
    pub fn any(&self) -> bool {
        let mut state = self.state();
        self.refresh(&mut state);
        !state.notes.is_empty()
    }

    /// Asks to ask an account.
    pub fn enter(self: &Arc<Self>, account: &str, provider: &str) -> Entry {
        let mut state = self.state();
        self.refresh(&mut state);
        let now = SystemClock.now();
        let person = person_file(account, &self.here.host);
        let Some(seen) = state.notes.get(&person).or_else(|| state.notes.get(account)) else {
            return Entry::Open(self.pass(account, provider, None));
        };
        let (note, left) = (seen.note.clone(), seen.note.left(host::since(seen.first), now));
        let again = note.cause == Cause::Person && self.by_hand && seen.older;
        match note.cause {
            Cause::Easing if left.is_zero() => {
                let _ = disk::machine().remove(&self.dir.join(note.file()));
                state.looked = None;
                Entry::Open(self.pass(account, provider, None))
            }
            Cause::Easing => match state.next.get(account) {
                Some(next) if *next > host::instant() => Entry::Parked(note),
                _ => {
                    // About four in the time that is left, at no regular distance.
                    let wait = left.mul_f64((chance() % 1000) as f64 / 2000.0);
                    state.next.insert(account.to_owned(), host::instant() + wait);
                    Entry::Open(self.pass(account, provider, None))
                }
            },
            _ if !left.is_zero() && !again => Entry::Parked(note),
            _ => match self.try_out(&mut state, &note) {
                Some(file) => Entry::Open(self.pass(account, provider, Some((note, file)))),
                None => Entry::Parked(note),
            },
        }
    }

    fn pass(
        self: &Arc<Self>,
        account: &str,
        provider: &str,
        trial: Option<(Note, PathBuf)>,
    ) -> Arc<Pass> {
        Arc::new(Pass {
            parking: Some(self.clone()),
            account: account.to_owned(),
            provider: provider.to_owned(),
            trial: Mutex::new(trial),
            kept: Mutex::default(),
        })
    }

    /// Becomes the one that tries an account, unless somebody else does.
    fn try_out(&self, state: &mut State, note: &Note) -> Option<PathBuf> {
        let of_note = |file: &str| {
            let (account, word, number) = read_trial(file)?;
            (account == note.account && word == note.word).then_some(number)
        };
        let trials = state.trials.iter();
        let last = trials.filter_map(|(file, since)| Some((of_note(file)?, file, *since))).max();
        let number = match last {
            None => 1,
            Some((number, file, since)) if host::since(since) >= TRIAL || self.is_dead(file) => {
                number + 1
            }
            Some(_) => return None,
        };
        let path = self.dir.join(trial_file(&note.account, &note.word, number));
        let process = serde_json::to_value(&self.here).unwrap_or_default();
        let who = serde_json::Map::from_iter([("process".to_owned(), process)]);
        state.looked = None;
        let made = disk::machine().write_new(&[(path.clone(), seal::seal(&who))], false);
        match made.into_iter().next() {
            Some(Ok(())) => Some(path),
            // Whoever comes first tries.
            Some(Err(error)) if error.kind() == io::ErrorKind::AlreadyExists => None,
            Some(Err(error)) => {
                tracing::warn!("cannot try provider account `{}`: {error}", note.account);
                None
            }
            None => None,
        }
    }

    /// Whether whoever made a trial was a process of this machine, and is gone.
    fn is_dead(&self, file: &str) -> bool {
        let bytes = disk::machine().read_regular(&self.dir.join(file), NOTE_BYTES);
        let who = bytes.ok().and_then(|bytes| seal::unseal(&bytes));
        let process = who.and_then(|mut who| who.remove("process"));
        let process = process.and_then(|p| serde_json::from_value::<Process>(p).ok());
        process.is_some_and(|process| self.here.is_beside(&process) && !process.lives_here())
    }

    /// Reads the notes again, if that was not done a moment ago.
    fn refresh(&self, state: &mut State) {
        if state.looked.is_some_and(|looked| host::since(looked) < PACE) {
            return;
        }
        let disk = disk::machine();
        let files = match disk.list(&self.dir) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            // A volume that is away for a moment says nothing.
            Err(_) => return,
        };
        let (mut notes, mut trials) = (HashMap::new(), HashMap::new());
        for file in files.into_iter().filter(|file| !file.starts_with('.')) {
            if read_trial(&file).is_some() {
                let since = state.trials.get(&file).copied().unwrap_or_else(host::instant);
                trials.insert(file, since);
                continue;
            }
            let bytes = disk.read_regular(&self.dir.join(&file), NOTE_BYTES);
            // What is no note was torn or made by hand, and stops nobody; `fsck` tells of it.
            let Some(note) = bytes.ok().and_then(|bytes| Note::read(&file, &bytes)) else {
                continue;
            };
            let known = state.notes.get(&file).filter(|known| known.note.word == note.word);
            let (first, older) =
                known.map_or((host::instant(), !state.began), |known| (known.first, known.older));
            notes.insert(file, Seen { note, first, older });
        }
        (state.notes, state.trials) = (notes, trials);
        (state.looked, state.began) = (Some(host::instant()), true);
    }

    /// Leaves a note for everybody.
    fn write(&self, note: &Note) -> io::Result<()> {
        let disk = disk::machine();
        // Not its parents: a workspace whose volume is away must not get a second one.
        disk.make_dir(&self.dir)?;
        disk::swap(&*disk, &self.dir.join(note.file()), &note.sealed())
    }

    /// Takes in that an account cannot be asked. `under`: the note that it was tried after.
    fn strike(
        &self,
        pass: &Pass,
        outcome: &Outcome,
        under: Option<&Note>,
    ) -> io::Result<Option<Note>> {
        let mut state = self.state();
        state.looked = None;
        self.refresh(&mut state);
        let striker = Striker {
            account: &pass.account,
            provider: &pass.provider,
            host: &self.here.host,
            now: SystemClock.now(),
            word: word(chance()),
            first: self.first,
            most: self.most,
        };
        let standing = state.notes.get(&pass.account);
        let of_before = |seen: &&Seen| {
            seen.note.cause == Cause::Easing || under.is_some_and(|u| u.word == seen.note.word)
        };
        let strikes = standing.filter(of_before).map_or(0, |seen| seen.note.strikes);
        let Some(note) = striker.note(outcome, strikes) else { return Ok(None) };
        if let Some(seen) = state.notes.get(&note.file())
            && under.is_none_or(|under| under.word != seen.note.word)
        {
            // It was asked before that was known.
            let left = seen.note.left(host::since(seen.first), SystemClock.now());
            if !left.is_zero() && !seen.note.yields_to(&note, left) {
                return Ok(Some(seen.note.clone()));
            }
        }
        state.looked = None;
        self.write(&note)?;
        Ok(Some(note))
    }

    /// Takes in that an account that was tried works again.
    fn clear(&self, tried: &Note) {
        let mut state = self.state();
        state.looked = None;
        self.refresh(&mut state);
        let file = tried.file();
        if state.notes.get(&file).is_none_or(|seen| seen.note.word != tried.word) {
            return;
        }
        state.looked = None;
        let done = match tried.cause {
            Cause::Person => disk::machine().remove(&self.dir.join(&file)),
            _ => self.write(&tried.eased(SystemClock.now(), word(chance()))),
        };
        if let Err(error) = done {
            tracing::warn!("cannot note that account `{}` works again: {error}", tried.account);
        }
    }
}

/// The right to ask an account once.
#[derive(Default)]
pub struct Pass {
    parking: Option<Arc<Parking>>,
    account: String,
    provider: String,
    /// The note that it is tried after, and the file by which nobody else does.
    trial: Mutex<Option<(Note, PathBuf)>>,
    /// What was learnt, and kept for all.
    kept: Mutex<Option<Note>>,
}

impl Pass {
    /// For asking where nobody else does.
    pub fn free() -> Arc<Pass> {
        Arc::default()
    }

    pub fn is_for(&self, account: &str) -> bool {
        self.account == account
    }

    fn end_trial(&self) -> Option<Note> {
        let trial = self.trial.lock().unwrap_or_else(|poison| poison.into_inner()).take();
        trial.map(|(note, file)| {
            let _ = disk::machine().remove(&file);
            note
        })
    }

    fn tried(&self) -> Option<Note> {
        let trial = self.trial.lock().unwrap_or_else(|poison| poison.into_inner());
        trial.as_ref().map(|(note, _)| note.clone())
    }

    /// It is answered.
    pub fn works(&self) {
        let (Some(parking), Some(tried)) = (&self.parking, self.tried()) else { return };
        parking.clear(&tried);
        self.end_trial();
    }

    /// Takes in what came of asking.
    pub fn heard(&self, outcome: &Outcome) {
        let Some(parking) = &self.parking else { return };
        match outcome.verdict {
            // Also a refusal is an answer of somebody who is there.
            Verdict::Answered | Verdict::Fail { .. } | Verdict::Limit { .. } => self.works(),
            Verdict::Stopped { .. } => {}
            Verdict::RetryAt { .. } | Verdict::BackOff { .. } | Verdict::NeedsPerson { .. } => {
                match parking.strike(self, outcome, self.tried().as_ref()) {
                    Ok(note) => {
                        *self.kept.lock().unwrap_or_else(|poison| poison.into_inner()) = note;
                    }
                    Err(error) => tracing::warn!(
                        "others cannot be told that provider `{}` is to be left alone: {error}",
                        self.provider
                    ),
                }
                self.end_trial();
            }
        }
    }

    /// What everybody knows since this was heard.
    pub fn parked(&self) -> Option<Note> {
        self.kept.lock().unwrap_or_else(|poison| poison.into_inner()).clone()
    }

    /// Whether a task that met this goes back to its inbox: it is not to blame, or has not often
    /// been met by what it may be to blame for.
    pub fn returns(&self, outcome: &Outcome, task_attempt: u32) -> bool {
        // If nobody could be told, it would be claimed again at once.
        self.parked().is_some()
            && match outcome.verdict {
                Verdict::RetryAt { .. } | Verdict::NeedsPerson { .. } => true,
                Verdict::BackOff { crowded, .. } => crowded || task_attempt < TRIES,
                _ => false,
            }
    }
}

impl Drop for Pass {
    /// A trial that learnt nothing is left to others.
    fn drop(&mut self) {
        self.end_trial();
    }
}

#[cfg(test)]
mod tests;
