//! Parked provider accounts. If one process reaches a limit, all processes of the workspace respect
//! it.
//!
//! A note in `.orchestrate/parked/` states the cause and the duration ([`note`]). When the rest is
//! over, one process tries the account while the others wait: the process that creates the trial
//! file. If the account answers, the waiting tasks start one after the other; if not, the next rest
//! is longer.
//!
//! A provider that cannot be used on one machine is suspended there in the same way. Workers on
//! other machines continue. A local run, whose environment may differ, neither respects nor creates
//! a suspension.
//!
//! **Invariant:** every request to a provider has a [`Pass`]. All processes share the result of a
//! pass. A trial that ends without a result is left to other processes.

mod note;
mod streak;
mod view;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub(crate) use self::note::{Cause, Note, Target};
pub(crate) use self::view::{ParkedView, faults, is_over, lift, look, told, told_in_short};

use self::note::{Striker, file_on, read_trial, trial_file};
use self::streak::{Streaks, is_same};
use crate::agent::{MachineFault, Outcome, Verdict, lacking};
use crate::base::host;
use crate::base::process::Process;
use crate::base::random::{chance, word};
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk;
use crate::queue::seal;

/// Directory of the notes in a workspace.
pub(crate) const PARKED: &str = ".orchestrate/parked";

/// Minimum interval between two reads of the notes.
const PACE: Duration = Duration::from_millis(250);
/// Maximum duration of a trial before another process may try too.
const TRIAL: Duration = Duration::from_secs(120);
/// Maximum size of a note that is read.
const NOTE_BYTES: u64 = 64 << 10;
/// Number of back-offs after which a task counts as their cause, and fails.
const TRIES: u32 = 6;

/// One process's knowledge of parked accounts.
pub(crate) struct Parking {
    dir: PathBuf,
    here: Process,
    first: Duration,
    most: Duration,
    /// True if a user started this process: the user may already have done what an older note asks
    /// for.
    by_hand: bool,
    state: Mutex<State>,
    streaks: Mutex<Streaks>,
}

#[derive(Default)]
struct State {
    looked: Option<Instant>,
    began: bool,
    notes: HashMap<String, Seen>,
    trials: HashMap<String, Instant>,
    /// Time of the next allowed request to an account that works again, by account.
    next: HashMap<String, Instant>,
}

struct Seen {
    note: Note,
    first: Instant,
    /// True if the note existed before this process.
    older: bool,
}

/// The answer to a request to use an account.
pub(crate) enum Entry {
    Open(Arc<Pass>),
    Parked(Box<Note>),
}

impl Parking {
    pub(crate) fn new(workspace: &Path, first: Duration, most: Duration, by_hand: bool) -> Parking {
        Parking {
            dir: workspace.join(PARKED),
            here: Process::this(),
            first,
            most: most.max(first),
            by_hand,
            state: Mutex::default(),
            streaks: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        host::lock(&self.state)
    }

    fn streaks(&self) -> MutexGuard<'_, Streaks> {
        self.streaks.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Returns true if any account is parked, or was at the last read of the notes.
    pub(crate) fn any(&self) -> bool {
        let mut state = self.state();
        self.refresh(&mut state);
        !state.notes.is_empty()
    }

    /// Requests permission to use a provider, or to do work that needs none.
    pub(crate) fn enter(self: &Arc<Self>, target: &Target) -> Entry {
        let mut state = self.state();
        self.refresh(&mut state);
        let now = SystemClock.now();
        let mut due = None;
        for file in self.files(target) {
            let Some(seen) = state.notes.get(&file) else { continue };
            if self.by_hand && seen.note.cause == Cause::Machine {
                continue;
            }
            let left = seen.note.left(host::since(seen.first), now);
            // A user may have fixed this machine before this process started.
            let again = seen.older
                && (seen.note.cause == Cause::Machine
                    || seen.note.cause == Cause::Person && self.by_hand);
            let easing = seen.note.cause == Cause::Easing;
            if !left.is_zero() && !again && !easing {
                return Entry::Parked(Box::new(seen.note.clone()));
            }
            due = due.or_else(|| Some((seen.note.clone(), left)));
        }
        let Some((note, left)) = due else { return Entry::Open(self.pass(target, None)) };
        match note.cause {
            Cause::Easing if left.is_zero() => {
                let _ = disk::machine().remove(&self.dir.join(note.file()));
                state.looked = None;
                Entry::Open(self.pass(target, None))
            }
            Cause::Easing => match state.next.get(&target.account) {
                Some(next) if *next > host::instant() => Entry::Parked(Box::new(note)),
                _ => {
                    // About four requests in the remaining time, at random intervals.
                    let wait = left.mul_f64((chance() % 1000) as f64 / 2000.0);
                    state.next.insert(target.account.clone(), host::instant() + wait);
                    Entry::Open(self.pass(target, None))
                }
            },
            _ => match self.try_out(&mut state, &note) {
                Some(file) => Entry::Open(self.pass(target, Some((note, file)))),
                None => Entry::Parked(Box::new(note)),
            },
        }
    }

    /// Returns the file names of all notes that can stop this target on this machine.
    fn files(&self, target: &Target) -> Vec<String> {
        let host = &self.here.host;
        let mut files = vec![Target::any().machine_file(host)];
        if *target != Target::any() {
            files.push(target.machine_file(host));
            files.push(file_on(&target.account, host));
            files.push(target.account.clone());
        }
        files.dedup();
        files
    }

    fn pass(self: &Arc<Self>, target: &Target, trial: Option<(Note, PathBuf)>) -> Arc<Pass> {
        Arc::new(Pass {
            parking: Some(self.clone()),
            target: target.clone(),
            trial: Mutex::new(trial),
            kept: Mutex::default(),
        })
    }

    /// Creates the trial file for an account. Returns `None` if another process is trying it.
    fn try_out(&self, state: &mut State, note: &Note) -> Option<PathBuf> {
        let of_note = |file: &str| {
            let (of, word, number) = read_trial(file)?;
            (of == note.file() && word == note.word).then_some(number)
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
        let path = self.dir.join(trial_file(note, number));
        let process = serde_json::to_value(&self.here).unwrap_or_default();
        let who = serde_json::Map::from_iter([("process".to_owned(), process)]);
        state.looked = None;
        let made = disk::machine().write_new(&[(path.clone(), seal::seal(&who))], false);
        match made.into_iter().next() {
            Some(Ok(())) => Some(path),
            // Another process created the file first and tries.
            Some(Err(error)) if error.kind() == io::ErrorKind::AlreadyExists => None,
            Some(Err(error)) => {
                tracing::warn!("cannot try provider account `{}`: {error}", note.account);
                None
            }
            None => None,
        }
    }

    /// Returns true if the owner of a trial was a process of this machine and is gone.
    fn is_dead(&self, file: &str) -> bool {
        let bytes = disk::machine().read_regular(&self.dir.join(file), NOTE_BYTES);
        let who = bytes.ok().and_then(|bytes| seal::unseal(&bytes));
        let process = who.and_then(|mut who| who.remove("process"));
        let process = process.and_then(|p| serde_json::from_value::<Process>(p).ok());
        process.is_some_and(|process| self.here.is_beside(&process) && !process.lives_here())
    }

    /// Reads the notes again, unless they were read within [`PACE`].
    fn refresh(&self, state: &mut State) {
        if state.looked.is_some_and(|looked| host::since(looked) < PACE) {
            return;
        }
        let disk = disk::machine();
        let files = match disk.list(&self.dir) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            // The volume is unavailable for a moment: keep the known notes.
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
            // A file that is not a note was torn or created by hand, and stops no task; `fsck`
            // reports it.
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

    /// Writes a note for all processes of the workspace.
    fn write(&self, note: &Note) -> io::Result<()> {
        let disk = disk::machine();
        // Not its parents: if the volume is unavailable, a second workspace must not appear in its
        // place.
        disk.make_dir(&self.dir)?;
        disk::swap(&*disk, &self.dir.join(note.file()), &note.sealed())
    }

    /// Records that a target cannot be used. `under` is the note that this request was a trial of.
    fn strike(
        &self,
        target: &Target,
        verdict: &Verdict,
        works_at: Option<Time>,
        under: Option<&Note>,
    ) -> io::Result<Option<Note>> {
        let mut state = self.state();
        state.looked = None;
        self.refresh(&mut state);
        let host = &self.here.host;
        let (now, word) = (SystemClock.now(), word(chance()));
        let (first, most) = (self.first, self.most);
        let striker = Striker { target, host, now, word, first, most };
        let file = match verdict {
            Verdict::Machine { .. } => target.machine_file(host),
            _ => target.account.clone(),
        };
        let of_before = |seen: &&Seen| {
            seen.note.cause == Cause::Easing || under.is_some_and(|u| u.word == seen.note.word)
        };
        let standing = state.notes.get(&file).filter(of_before);
        let strikes = standing.map_or(0, |seen| seen.note.strikes);
        let Some(note) = striker.note(verdict, works_at, strikes) else { return Ok(None) };
        if let Some(seen) = state.notes.get(&note.file())
            && under.is_none_or(|under| under.word != seen.note.word)
        {
            // The request started before that note was known.
            let left = seen.note.left(host::since(seen.first), SystemClock.now());
            if !left.is_zero() && !seen.note.yields_to(&note, left) {
                return Ok(Some(seen.note.clone()));
            }
        }
        state.looked = None;
        self.write(&note)?;
        Ok(Some(note))
    }

    /// Suspends a target on this machine, outside of any task. Returns the note, unless no note can
    /// be written.
    pub(crate) fn suspend(
        &self,
        target: &Target,
        fault: MachineFault,
        reason: &str,
    ) -> Option<Note> {
        let verdict = Verdict::Machine { fault, reason: reason.into() };
        let struck = self.strike(target, &verdict, None, None);
        let warn = |error: &io::Error| tracing::warn!("cannot note a suspension: {error}");
        struck.inspect_err(warn).ok().flatten()
    }

    /// Records that an account that was tried works again.
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
            Cause::Person | Cause::Machine => disk::machine().remove(&self.dir.join(&file)),
            _ => self.write(&tried.eased(SystemClock.now(), word(chance()))),
        };
        if let Err(error) = done {
            tracing::warn!("cannot note that account `{}` works again: {error}", tried.account);
        }
    }
}

/// The permission to use an account once.
#[derive(Default)]
pub(crate) struct Pass {
    parking: Option<Arc<Parking>>,
    target: Target,
    /// The note that this pass is a trial of, and the trial file, which excludes other processes.
    trial: Mutex<Option<(Note, PathBuf)>>,
    /// The note that resulted, which all processes see.
    kept: Mutex<Option<Note>>,
}

impl Pass {
    /// Returns a pass for a request that no other process shares.
    pub(crate) fn free() -> Arc<Pass> {
        Arc::default()
    }

    pub(crate) fn is_for(&self, target: &Target) -> bool {
        self.target == *target
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

    /// Records that the provider answered.
    pub(crate) fn works(&self) {
        let (Some(parking), Some(tried)) = (&self.parking, self.tried()) else { return };
        parking.clear(&tried);
        self.end_trial();
    }

    /// Records the outcome of a request.
    pub(crate) fn heard(&self, outcome: &Outcome) {
        match &outcome.verdict {
            Verdict::Answered => match lacking(outcome.session.as_deref(), &outcome.usage) {
                Some(lacks) if self.tried_fault() == Some(MachineFault::Test) => {
                    self.suspend(MachineFault::Test, lacks);
                }
                _ => self.works(),
            },
            // A refusal is also an answer of a working provider, but not if this is a trial after
            // repeated failures.
            Verdict::Fail { .. } | Verdict::Limit { .. } if !self.is_after_failures() => {
                self.works();
            }
            Verdict::Fail { .. } | Verdict::Limit { .. } | Verdict::Stopped { .. } => {}
            verdict => self.strike(&self.target, verdict, outcome.works_at),
        }
    }

    /// Records a limit that the provider reported before it ended; the provider itself waits. Other
    /// processes then need not reach the limit too.
    pub(crate) fn met(&self, verdict: &Verdict) {
        self.strike(&self.target, verdict, None);
    }

    /// Records that the provider cannot be used on this machine. A lack of resources that every
    /// child process needs suspends the whole machine.
    pub(crate) fn suspend(&self, fault: MachineFault, reason: &str) {
        let any = Target::any();
        let target = if fault == MachineFault::Resources { &any } else { &self.target };
        self.strike(target, &Verdict::Machine { fault, reason: reason.to_owned() }, None);
    }

    fn strike(&self, target: &Target, verdict: &Verdict, works_at: Option<Time>) {
        let Some(parking) = &self.parking else { return };
        let of_machine = matches!(verdict, Verdict::Machine { .. });
        // A pass that was issued before the task could be read has no account.
        if !of_machine && *target == Target::any() {
            return;
        }
        if of_machine && parking.by_hand {
            return;
        }
        match parking.strike(target, verdict, works_at, self.tried().as_ref()) {
            Ok(note) => *self.kept.lock().unwrap_or_else(|poison| poison.into_inner()) = note,
            Err(error) => tracing::warn!(
                "others cannot be told that provider `{}` is to be left alone: {error}",
                target.provider
            ),
        }
        self.end_trial();
    }

    /// Returns true if this is a trial after repeated failures, or after a failed test.
    fn is_after_failures(&self) -> bool {
        matches!(self.tried_fault(), Some(MachineFault::Repeated | MachineFault::Test))
    }

    fn tried_fault(&self) -> Option<MachineFault> {
        self.tried().and_then(|note| note.fault)
    }

    /// Records that a task ended with an answer.
    pub(crate) fn answered(&self) {
        self.works();
        if let Some(parking) = &self.parking {
            parking.streaks().answered(&self.target.machine_file(&parking.here.host));
        }
    }

    /// Records that a task failed without an answer. Suspends the provider if several tasks in a
    /// row failed for the same reason. Returns true if the task goes back to its inbox.
    pub(crate) fn failed(&self, task: &str, reason: &str) -> bool {
        let Some(parking) = &self.parking else { return false };
        let file = self.target.machine_file(&parking.here.host);
        let tried = self.tried().filter(|note| note.fault == Some(MachineFault::Repeated));
        let as_before = tried.is_some_and(|note| is_same(&note.reason, reason));
        if !parking.streaks().failed(&file, task, reason) && !as_before {
            // This failure is not the one that the provider was suspended for.
            if self.tried().is_some_and(|note| note.cause == Cause::Machine) {
                self.works();
            }
            return false;
        }
        self.suspend(MachineFault::Repeated, reason);
        self.parked().is_some()
    }

    /// Returns the note that resulted from this pass, if any.
    pub(crate) fn parked(&self) -> Option<Note> {
        self.kept.lock().unwrap_or_else(|poison| poison.into_inner()).clone()
    }

    /// Returns true if a task with this verdict goes back to its inbox: it is not to blame, or it
    /// has not yet met a fault of possibly its own making too often.
    pub(crate) fn returns(&self, verdict: &Verdict, task: &str) -> bool {
        // Without a note for all processes, the task would be claimed again at once.
        self.parked().is_some()
            && match verdict {
                Verdict::RetryAt { .. } | Verdict::NeedsPerson { .. } => true,
                Verdict::BackOff { crowded, .. } => *crowded || self.back_offs(task) < TRIES,
                Verdict::Machine { fault, .. } => !(fault.may_be_of_task() && self.blames(task)),
                _ => false,
            }
    }

    /// Counts a back-off of a task. The attempts of the task would not do: they include those that
    /// a machine fault or a limit ended.
    fn back_offs(&self, task: &str) -> u32 {
        self.parking.as_ref().map_or(TRIES, |parking| parking.streaks().backs_off(task))
    }

    fn blames(&self, task: &str) -> bool {
        self.parking.as_ref().is_some_and(|parking| {
            parking.streaks().blames(&self.target.machine_file(&parking.here.host), task)
        })
    }
}

impl Drop for Pass {
    /// Leaves a trial without a result to other processes.
    fn drop(&mut self) {
        self.end_trial();
    }
}

#[cfg(test)]
mod tests;
