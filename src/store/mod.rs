//! The store of a run: its journal and its snapshot. A crash loses no acknowledged event.
//!
//! An event is appended to `journal.jsonl` before it is acted on; `state.json` is replaced from
//! time to time, for readers, and states the last event that it contains. To load a run is to read
//! the snapshot and apply the rest of the journal. The cost stays linear in the run's length: the
//! journal is only appended to, and a large snapshot waits until the journal has grown by the
//! snapshot's size.
//!
//! A run that passes from one coordinator to another gets a journal for each *term*. The new owner
//! reads the journals that exist when it takes over and continues in a file of its own. Later
//! writes of a former owner that was paused therefore do not count, on any file system.

use crate::base::ids::StepPath;
pub(crate) mod journal;
pub(crate) mod lock;
pub(crate) mod snapshot;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::ids::counted;
use crate::base::time::Time;
use crate::disk::{self, Disk};
use crate::engine::{self, Event, Origin, Run};
use crate::workflow::Plan;
use journal::Entry;

pub(crate) const STATE: &str = "state.json";
pub(crate) const JOURNAL: &str = "journal.jsonl";
/// Copies of a journal that ended before the snapshot did, and of one that was damaged.
const SHORT: &str = "journal.jsonl.short";
const DAMAGED: &str = "journal.jsonl.damaged";
pub(crate) use crate::engine::run::DEFINITION;
/// Settings files in force when the run began, if there were any.
pub(crate) const SETTINGS: &str = "settings.json";
const BACKUPS_KEPT: usize = 3;

/// Minimum interval between two snapshots, and maximum interval between two syncs of the journal.
pub(crate) const QUIET_MS: u64 = 100;
/// Above this size, a snapshot waits until the journal has grown by the snapshot's size, or for the
/// time that it would take at [`BYTES_PER_MS`].
const SMALL_SNAPSHOT: u64 = 64 * 1024;
const BYTES_PER_MS: u64 = 256;

/// A disk failure in the files of a run.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} `{}`: {source}", path.display())]
pub(crate) struct StoreError {
    pub doing: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl StoreError {
    /// Returns true if the user lacks the permission.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

/// Reason why a run cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("`{}` is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error(transparent)]
    Disk(#[from] StoreError),
}

/// The files of one run.
pub(crate) struct Store {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    /// Term whose journal is appended to.
    term: u32,
    seq: u64,
    /// Journal bytes since the last snapshot, and that snapshot's size.
    grown: u64,
    snapshot_len: u64,
    snapshot_at: Time,
    synced_at: Time,
    unsynced: bool,
    stale: bool,
    /// True if an event may have been appended in part.
    torn: bool,
    /// True if another process may take over the run while this process is paused.
    claimed: bool,
    /// Files that a new run froze and that may not be on the medium yet.
    frozen: Vec<PathBuf>,
    /// True if the run's own name, or the names in its directory, may not be on the medium yet.
    is_new: bool,
    names_unsynced: bool,
    /// True if another process may drive the run: nothing is repaired.
    looks_only: bool,
}

impl Store {
    /// Creates a run's directory and first files, including those that it freezes. They survive the
    /// end of this process immediately, and a power failure after the first sync, at most
    /// [`QUIET_MS`] later.
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        root: &Path,
        frozen: &[(&str, &[u8])],
        plan: &Plan,
        run: &mut Run,
        at: Time,
    ) -> Result<Store, StoreError> {
        for dir in [root.to_path_buf(), root.join("logs"), root.join("artifacts")] {
            disk.make_dir(&dir).map_err(failed("make", &dir))?;
        }
        let mut store = Store::at(disk, root);
        for (name, bytes) in frozen {
            let path = root.join(name);
            store.disk.write(&path, bytes).map_err(failed("write", &path))?;
            store.frozen.push(path);
        }
        let event = Event::Started { origin: Box::new(run.origin.clone()) };
        store.record(at, &event)?;
        engine::apply(plan, run, at, &event);
        (store.is_new, store.names_unsynced) = (true, true);
        (store.snapshot_at, store.synced_at) = (at, at);
        store.write_first_snapshot(plan, run)?;
        Ok(store)
    }

    /// Writes the first snapshot, for readers. It is synced with the frozen files, before the
    /// journal; the journal contains everything that it states.
    fn write_first_snapshot(&mut self, plan: &Plan, run: &Run) -> Result<(), StoreError> {
        let path = self.root.join(STATE);
        let temporary = self.root.join(format!(".{STATE}.tmp"));
        let bytes = snapshot::encode(plan, run, self.seq, self.term);
        let written = self.disk.write(&temporary, &bytes);
        let written = written.and_then(|()| self.disk.rename(&temporary, &path));
        written.map_err(failed("write", &path))?;
        self.frozen.push(path);
        (self.snapshot_len, self.grown, self.stale) = (bytes.len() as u64, 0, false);
        Ok(())
    }

    /// Syncs the frozen files and the name of a new run: at the first opportunity, while the first
    /// step runs and no caller waits for it. The names in the run's directory follow with the first
    /// sync.
    fn begin_to_settle(&mut self) -> Result<(), StoreError> {
        while let Some(path) = self.frozen.last() {
            self.disk.sync(path).map_err(failed("sync", path))?;
            self.frozen.pop();
        }
        if self.is_new {
            let above = self.root.parent().unwrap_or(Path::new(""));
            self.disk.sync_dir(above).map_err(failed("sync", above))?;
            self.is_new = false;
        }
        Ok(())
    }

    fn at(disk: Arc<dyn Disk>, root: &Path) -> Store {
        Store {
            disk,
            root: root.to_owned(),
            term: 1,
            seq: 0,
            grown: 0,
            snapshot_len: 0,
            snapshot_at: Time(0),
            synced_at: Time(0),
            unsynced: false,
            stale: false,
            torn: false,
            claimed: false,
            frozen: Vec::new(),
            is_new: false,
            names_unsynced: false,
            looks_only: false,
        }
    }

    /// Returns the current state of a run without changing its files: another process may be
    /// writing them.
    pub(crate) fn look(disk: Arc<dyn Disk>, root: &Path, plan: &Plan) -> Result<Run, LoadError> {
        let store = Store { looks_only: true, ..Store::at(disk, root) };
        store.load_all(plan).map(|(_, run)| run)
    }

    /// Like [`look`](Self::look), but reads only the journal, for a run whose snapshot cannot be
    /// read.
    pub(crate) fn look_by_journal(
        disk: Arc<dyn Disk>,
        root: &Path,
        plan: &Plan,
    ) -> Result<Run, LoadError> {
        let store = Store { looks_only: true, ..Store::at(disk, root) };
        store.load_without_snapshot(plan).map(|(_, run)| run)
    }

    /// Loads a run: its snapshot, then the newer events of the journal.
    pub(crate) fn load(
        disk: Arc<dyn Disk>,
        root: &Path,
        plan: &Plan,
    ) -> Result<(Store, Run), LoadError> {
        Store::at(disk, root).load_all(plan)
    }

    fn load_all(mut self, plan: &Plan) -> Result<(Store, Run), LoadError> {
        let bytes = match self.read(STATE) {
            Err(LoadError::Damaged { .. }) => return self.load_without_snapshot(plan),
            other => other?,
        };
        let loaded = snapshot::decode(plan, &bytes)
            .map_err(|reason| LoadError::Damaged { path: self.root.join(STATE), reason })?;
        let mut run = loaded.run;
        let history = self.read_journal()?;
        if history.is_late(loaded.journal_term, loaded.journal_seq) {
            return self.load_by_journal(plan, &history.entries);
        }
        let entries = self.begin_journal_anew(loaded.journal_seq, history.entries)?;
        self.snapshot_len = bytes.len() as u64;
        self.replay(plan, &mut run, loaded.journal_seq, &entries)?;
        Ok((self, run))
    }

    /// Loads a run from its journal alone and ignores its snapshot.
    pub(crate) fn load_by_journal_alone(
        disk: Arc<dyn Disk>,
        root: &Path,
        plan: &Plan,
    ) -> Result<(Store, Run), LoadError> {
        Store::at(disk, root).load_without_snapshot(plan)
    }

    /// Loads a run that ended before its first snapshot, or lost it: its journal contains
    /// everything.
    fn load_without_snapshot(mut self, plan: &Plan) -> Result<(Store, Run), LoadError> {
        let history = self.read_journal()?;
        self.load_by_journal(plan, &history.entries)
    }

    fn load_by_journal(
        mut self,
        plan: &Plan,
        entries: &[Entry],
    ) -> Result<(Store, Run), LoadError> {
        let Some((run, _, _)) = self.by_journal(plan, entries) else {
            let reason = "it is missing, and the journal does not begin at the beginning".into();
            return Err(LoadError::Damaged { path: self.root.join(STATE), reason });
        };
        Ok((self, run))
    }

    /// Reads the journals of all terms, each up to the beginning of the next one, and continues in
    /// the last.
    fn read_journal(&mut self) -> Result<History, LoadError> {
        let terms = self.terms()?;
        let mut history = History::default();
        for (place, term) in terms.iter().enumerate() {
            self.term = *term;
            let entries = match place + 1 == terms.len() {
                true => self.read_last_journal()?,
                false => self.read_earlier_journal()?,
            };
            history.add(*term, entries);
        }
        Ok(history)
    }

    /// Like [`read_journal`](Self::read_journal), but reads the good beginning of a damaged
    /// journal.
    fn read_what_can_be(&mut self) -> Result<History, LoadError> {
        let mut history = History::default();
        for term in self.terms()? {
            self.term = term;
            history.add(term, self.read_earlier_journal()?);
        }
        Ok(history)
    }

    /// Returns the terms that have a journal, in order.
    fn terms(&self) -> Result<Vec<u32>, StoreError> {
        let names = self.disk.list(&self.root).map_err(failed("list", &self.root))?;
        let mut terms: Vec<u32> = names.iter().filter_map(|name| term_of(name)).collect();
        terms.sort_unstable();
        Ok(terms)
    }

    /// Reads the trustworthy part of the journal of an earlier term. Cuts nothing, because its
    /// owner may still be writing.
    fn read_earlier_journal(&self) -> Result<Vec<Entry>, LoadError> {
        let bytes = read_file(&*self.disk, &self.journal())?;
        Ok(journal::read(&bytes).entries)
    }

    /// Reads the journal of the last term and cuts off an event that a crash left incomplete.
    fn read_last_journal(&self) -> Result<Vec<Entry>, LoadError> {
        let path = self.journal();
        let bytes = read_file(&*self.disk, &path)?;
        let journal = journal::read(&bytes);
        if let Some(journal::Damage { line, reason }) = journal.damage {
            return Err(LoadError::Damaged { path, reason: format!("line {line}: {reason}") });
        }
        if journal.good_len < bytes.len() as u64 && !self.looks_only {
            self.disk.truncate(&path, journal.good_len).map_err(failed("cut", &path))?;
            self.disk.sync(&path).map_err(failed("sync", &path))?;
        }
        Ok(journal.entries)
    }

    fn replay(
        &mut self,
        plan: &Plan,
        run: &mut Run,
        contained: u64,
        entries: &[Entry],
    ) -> Result<(), LoadError> {
        let newer: Vec<_> = entries.iter().filter(|entry| entry.seq > contained).collect();
        for (entry, wanted) in newer.iter().zip(contained + 1..) {
            if entry.seq != wanted {
                let reason = format!("events after number {} are missing", wanted - 1);
                return Err(LoadError::Damaged { path: self.journal(), reason });
            }
        }
        for entry in &newer {
            engine::apply(plan, run, entry.at, &entry.event);
        }
        self.seq = entries.last().map_or(contained, |last| last.seq.max(contained));
        self.stale = !newer.is_empty();
        Ok(())
    }

    /// Starts a new journal if it ends before the snapshot does: the next event would leave a gap
    /// in it, and a gap is damage. Keeps the old content in a separate file, even if it is empty:
    /// the file records that this was done.
    fn begin_journal_anew(
        &self,
        contained: u64,
        entries: Vec<Entry>,
    ) -> Result<Vec<Entry>, StoreError> {
        let last = entries.last().map_or(0, |last| last.seq);
        if last >= contained {
            return Ok(entries);
        }
        if self.looks_only || (last == 0 && is_begun_anew(&*self.disk, &self.root)?) {
            return Ok(Vec::new());
        }
        let path = self.journal();
        let aside = self.root.join(SHORT);
        let bytes = match self.disk.read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(failed("read", &path))?,
        };
        disk::replace(&*self.disk, &aside, &bytes).map_err(failed("write", &aside))?;
        disk::replace(&*self.disk, &path, b"").map_err(failed("write", &path))?;
        Ok(Vec::new())
    }

    /// Rebuilds a run whose files are partly unreadable from the readable ones: the journal from
    /// its beginning, or a snapshot or backup with the journal after it; the one with the most
    /// events wins. Also returns a description of the source.
    pub(crate) fn repair(
        disk: Arc<dyn Disk>,
        root: &Path,
        plan: &Plan,
    ) -> Result<(Store, Run, String), LoadError> {
        let mut store = Store::at(disk, root);
        store.term = store.terms()?.last().copied().unwrap_or(1);
        let kept = store.set_damaged_journal_aside()?;
        let entries = store.read_journal()?.entries;
        let Some((run, seq, by)) = store.what_knows_most(plan, &entries)? else {
            let reason = "neither the journal nor a backup can be read".to_owned();
            return Err(LoadError::Damaged { path: root.join(STATE), reason });
        };
        store.begin_journal_anew(seq, entries)?;
        store.seq = seq;
        store.stale = true;
        let kept = if kept { "; the damaged journal is kept" } else { "" };
        Ok((store, run, format!("{by}{kept}")))
    }

    /// Returns true if [`Store::repair`] would find no usable file. Changes nothing.
    pub(crate) fn is_beyond_repair(disk: Arc<dyn Disk>, root: &Path, plan: &Plan) -> bool {
        let mut store = Store { looks_only: true, ..Store::at(disk, root) };
        let entries = match store.read_what_can_be() {
            Ok(history) => history.entries,
            Err(error) => return matches!(error, LoadError::Damaged { .. }),
        };
        matches!(store.what_knows_most(plan, &entries), Ok(None))
    }

    /// Returns the run from the journal, the snapshot, or a backup, the one with the most events,
    /// together with the last event's number and a description of the source.
    fn what_knows_most(
        &mut self,
        plan: &Plan,
        entries: &[Entry],
    ) -> Result<Option<(Run, u64, String)>, LoadError> {
        let mut best = self.by_journal(plan, entries);
        let backups = self.backups()?;
        for name in std::iter::once(STATE).chain(backups.iter().map(String::as_str)) {
            let known = best.as_ref().map(|(_, seq, _)| *seq);
            let found = self.by_snapshot(plan, name, entries);
            best = found.filter(|(_, seq, _)| known.is_none_or(|known| *seq > known)).or(best);
        }
        Ok(best)
    }

    fn by_journal(&mut self, plan: &Plan, entries: &[Entry]) -> Option<(Run, u64, String)> {
        let Entry { seq: 1, at, event: Event::Started { origin } } = entries.first()? else {
            return None;
        };
        // Events before an edit belong to an earlier plan, and only the snapshot has their results.
        if entries.iter().any(|entry| matches!(entry.event, Event::Edited { .. })) {
            return None;
        }
        let id = crate::base::ids::RunId::parse(&origin.run_id)?;
        let mut run = Run::new(plan, id, (**origin).clone(), *at);
        self.replay(plan, &mut run, 0, entries).ok()?;
        Some((run, self.seq, format!("the journal's {}", counted(entries.len(), "event"))))
    }

    fn by_snapshot(
        &mut self,
        plan: &Plan,
        name: &str,
        entries: &[Entry],
    ) -> Option<(Run, u64, String)> {
        let bytes = self.read(name).ok()?;
        let loaded = snapshot::decode(plan, &bytes).ok()?;
        let mut run = loaded.run;
        self.replay(plan, &mut run, loaded.journal_seq, entries).ok()?;
        Some((run, self.seq, format!("`{name}`")))
    }

    /// Keeps the good beginning of a damaged journal, and a full copy in a separate file. Returns
    /// false if it is not damaged.
    fn set_damaged_journal_aside(&self) -> Result<bool, StoreError> {
        let path = self.journal();
        let Ok(bytes) = self.disk.read(&path) else { return Ok(false) };
        let journal = journal::read(&bytes);
        if journal.damage.is_none() {
            return Ok(false);
        }
        let aside = self.root.join(DAMAGED);
        disk::replace(&*self.disk, &aside, &bytes).map_err(failed("write", &aside))?;
        let good = &bytes[..journal.good_len as usize];
        disk::replace(&*self.disk, &path, good).map_err(failed("write", &path))?;
        Ok(true)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, LoadError> {
        let path = self.root.join(name);
        match read_file(&*self.disk, &path) {
            Err(LoadError::Disk(error)) if error.source.kind() == io::ErrorKind::NotFound => {
                Err(LoadError::Damaged { path, reason: "it is missing".into() })
            }
            read => read,
        }
    }

    /// Returns true if a power failure can no longer remove the whole run.
    #[cfg(test)]
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_new && !self.names_unsynced
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the term whose journal is appended to.
    pub(crate) fn term(&self) -> u32 {
        self.term
    }

    /// Updates the paths after the run's directory was renamed.
    pub(crate) fn moved_to(&mut self, root: &Path) {
        let named = |path: &PathBuf| Some(root.join(path.file_name()?));
        self.frozen = self.frozen.iter().filter_map(named).collect();
        self.root = root.to_owned();
    }

    fn journal(&self) -> PathBuf {
        self.root.join(match self.term {
            0 | 1 => JOURNAL.to_owned(),
            term => format!("journal.{term}.jsonl"),
        })
    }

    /// Returns true if another process owns the run in a later term.
    fn is_lost(&self) -> Result<bool, StoreError> {
        Ok(self.terms()?.last().is_some_and(|last| *last > self.term))
    }

    /// Continues in a separate journal, as the run's owner of this term. A former owner may
    /// continue to write to its own journal, which is not read past this point.
    pub(crate) fn begin_term(&mut self, term: u32) {
        self.claimed = true;
        if term > self.term {
            self.term = term;
            self.names_unsynced = true;
        }
    }

    /// Appends an event. It survives the end of this process immediately, and a power failure once
    /// the journal is synced (at most [`QUIET_MS`] later, or with the next snapshot).
    pub(crate) fn record(&mut self, at: Time, event: &Event) -> Result<(), StoreError> {
        let path = self.journal();
        if self.torn {
            // No event may follow a possibly incomplete line. The next process that loads the run
            // cuts it off.
            let source = io::Error::other("an event before could not be written");
            return Err(StoreError { doing: "write", path, source });
        }
        let line = journal::encode(&Entry { seq: self.seq + 1, at, event: event.clone() });
        let appended = self.disk.append(&path, &line);
        self.torn = appended.is_err();
        appended.map_err(failed("write", &path))?;
        self.seq += 1;
        self.grown += line.len() as u64;
        self.unsynced = true;
        self.stale = true;
        Ok(())
    }

    /// Syncs the journal or writes a new snapshot if that is due. Cheap to call often.
    pub(crate) fn keep_up(&mut self, plan: &Plan, run: &Run, now: Time) -> Result<(), StoreError> {
        self.begin_to_settle()?;
        if self.stale && self.may_snapshot(now) {
            return self.save(plan, run, now);
        }
        if self.unsynced && has_come(self.synced_at.plus_ms(QUIET_MS), now, self.synced_at) {
            self.sync(now)?;
        }
        Ok(())
    }

    fn may_snapshot(&self, now: Time) -> bool {
        has_come(self.snapshot_due(), now, self.snapshot_at)
    }

    /// Returns the earliest time of the next snapshot. A small one is due soon. A large one is due
    /// when the journal has grown by the same size, or after a delay that is short enough for users
    /// who read it and long enough to leave the disk idle most of the time.
    fn snapshot_due(&self) -> Time {
        let cheap = self.snapshot_len < SMALL_SNAPSHOT || self.grown >= self.snapshot_len;
        let rest_ms = if cheap { QUIET_MS } else { self.snapshot_len / BYTES_PER_MS };
        self.snapshot_at.plus_ms(rest_ms.max(QUIET_MS))
    }

    /// Returns the time at which [`Store::keep_up`] should be called again if nothing else happens.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let by_snapshot = self.stale.then(|| self.snapshot_due());
        let by_sync = self.unsynced.then(|| self.synced_at.plus_ms(QUIET_MS));
        by_snapshot.into_iter().chain(by_sync).min()
    }

    /// Syncs every event so far: call it before an external effect that cannot be understood
    /// without them.
    pub(crate) fn commit(&mut self, now: Time) -> Result<(), StoreError> {
        if self.unsynced { self.sync(now) } else { Ok(()) }
    }

    fn sync(&mut self, now: Time) -> Result<(), StoreError> {
        self.begin_to_settle()?;
        let path = self.journal();
        self.disk.sync(&path).map_err(failed("sync", &path))?;
        if self.names_unsynced {
            self.disk.sync_dir(&self.root).map_err(failed("sync", &self.root))?;
            self.names_unsynced = false;
        }
        self.synced_at = now;
        self.unsynced = false;
        Ok(())
    }

    /// Replaces the snapshot now. The journal need not be synced first: if it ends before the
    /// snapshot does, after a power failure, loading the run starts a new one.
    pub(crate) fn save(&mut self, plan: &Plan, run: &Run, now: Time) -> Result<(), StoreError> {
        let bytes = snapshot::encode(plan, run, self.seq, self.term);
        let path = self.root.join(STATE);
        // Owners of two terms may write concurrently, but never to the same file.
        let temporary = self.root.join(match self.term {
            0 | 1 => format!(".{STATE}.tmp"),
            term => format!(".{STATE}.{term}.tmp"),
        });
        let written = self.disk.write(&temporary, &bytes);
        written.and_then(|()| self.disk.sync(&temporary)).map_err(failed("write", &path))?;
        if self.claimed && self.is_lost()? {
            // The current owner keeps its state. The check is as late as possible: the sync above
            // takes most of the time, so the process is most often paused there.
            return self.disk.remove(&temporary).map_err(failed("remove", &temporary));
        }
        let renamed = self.disk.rename(&temporary, &path);
        renamed.and_then(|()| self.disk.sync_dir(&self.root)).map_err(failed("write", &path))?;
        self.names_unsynced = false;
        self.begin_to_settle()?;
        self.snapshot_len = bytes.len() as u64;
        self.snapshot_at = now;
        self.grown = 0;
        self.stale = false;
        Ok(())
    }

    /// Replaces the snapshot if it is outdated, for a caller that is about to read it.
    pub(crate) fn refresh(&mut self, plan: &Plan, run: &Run, now: Time) -> Result<(), StoreError> {
        if self.stale { self.save(plan, run, now) } else { Ok(()) }
    }

    /// Replaces the snapshot and syncs the journal, so that another process, possibly on another
    /// machine, can continue in it: its events must not follow an incomplete line.
    pub(crate) fn hand_over(
        &mut self,
        plan: &Plan,
        run: &Run,
        now: Time,
    ) -> Result<(), StoreError> {
        self.commit(now)?;
        self.save(plan, run, now)
    }

    /// Writes a backup of the snapshot before a step, and keeps the last three.
    pub(crate) fn back_up(
        &mut self,
        plan: &Plan,
        run: &Run,
        step: &str,
        now: Time,
    ) -> Result<(), StoreError> {
        let bytes = snapshot::encode(plan, run, self.seq, self.term);
        let path = self.root.join(format!("{STATE}.step_{step}.bak"));
        disk::replace(&*self.disk, &path, &bytes).map_err(failed("write", &path))?;
        self.save(plan, run, now)?;
        let backups = self.backups().map_err(|error| match error {
            LoadError::Disk(error) => error,
            LoadError::Damaged { path, .. } => failed("list", &path)(io::Error::other("damaged")),
        })?;
        for name in &backups[..backups.len().saturating_sub(BACKUPS_KEPT)] {
            let path = self.root.join(name);
            self.disk.remove(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }

    /// Returns the backups, oldest first, ordered by the event number in each.
    fn backups(&self) -> Result<Vec<String>, LoadError> {
        let names = self.disk.list(&self.root).map_err(failed("list", &self.root))?;
        let mut found = Vec::new();
        for name in names {
            if name.starts_with(&format!("{STATE}.step_")) && name.ends_with(".bak") {
                let bytes = self.disk.read(&self.root.join(&name)).unwrap_or_default();
                let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
                found.push((value["journal_seq"].as_u64().unwrap_or(0), name));
            }
        }
        found.sort();
        Ok(found.into_iter().map(|(_, name)| name).collect())
    }
}

/// All valid events of a run, from the journals of all terms, read without cutting off or changing
/// anything.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub entries: Vec<Entry>,
    /// The terms after the first, each with the number of its first event.
    later_terms: Vec<(u32, u64)>,
}

impl History {
    pub(crate) fn read(disk: &dyn Disk, root: &Path) -> Result<History, LoadError> {
        let names = disk.list(root).map_err(failed("list", root))?;
        let mut journals: Vec<(u32, String)> =
            names.into_iter().filter_map(|name| Some((term_of(&name)?, name))).collect();
        journals.sort();
        let mut history = History::default();
        let last = journals.last().map(|(term, _)| *term);
        for (term, name) in journals {
            let path = root.join(name);
            let bytes = read_file(disk, &path)?;
            let journal = journal::read(&bytes);
            // Damage in the journal of a former owner does not matter: a later term replaced it.
            if let Some(journal::Damage { line, reason }) = journal.damage
                && Some(term) == last
            {
                return Err(LoadError::Damaged { path, reason: format!("line {line}: {reason}") });
            }
            history.add(term, journal.entries);
        }
        Ok(history)
    }

    fn add(&mut self, term: u32, entries: Vec<Entry>) {
        if let Some(first) = entries.first().filter(|_| term > 1) {
            self.later_terms.push((term, first.seq));
            self.entries.retain(|entry| entry.seq < first.seq);
        }
        self.entries.extend(entries);
    }

    /// Returns the number of newest consecutive attempts at a step that started but did not end.
    pub(crate) fn cut_off(&self, step: &StepPath) -> u32 {
        let mut times = 0;
        for entry in self.entries.iter().rev() {
            match &entry.event {
                Event::Launched { step: begun, .. } if begun == step => times += 1,
                Event::Ended { step: ended, .. } if ended == step => break,
                _ => {}
            }
        }
        times
    }

    /// Returns true if an owner of an earlier term wrote a snapshot after it had lost the run.
    pub(crate) fn is_late(&self, term: u32, seq: u64) -> bool {
        self.later_terms.iter().any(|(later, began)| *later > term && *began <= seq)
    }
}

/// Returns true if the run's journal was restarted, so that only the snapshot has the earlier
/// history.
pub(crate) fn is_begun_anew(disk: &dyn Disk, root: &Path) -> Result<bool, StoreError> {
    let names = disk.list(root).map_err(failed("list", root))?;
    Ok(names.iter().any(|name| name == SHORT || name == DAMAGED))
}

/// Returns the term that a file is the journal of.
fn term_of(name: &str) -> Option<u32> {
    if name == JOURNAL {
        return Some(1);
    }
    let digits = name.strip_prefix("journal.")?.strip_suffix(".jsonl")?;
    digits.parse().ok().filter(|term: &u32| *term > 1 && term.to_string() == digits)
}

/// Returns true if `due` has passed, or if the clock was set back to before `since`: that must not
/// block progress.
fn has_come(due: Time, now: Time, since: Time) -> bool {
    now >= due || now < since
}

/// Reads a file of a run. Anything that is not a file is damage, because a retry does not help.
fn read_file(disk: &dyn Disk, path: &Path) -> Result<Vec<u8>, LoadError> {
    use io::ErrorKind::{InvalidData, IsADirectory};
    disk.read(path).map_err(|error| match error.kind() {
        InvalidData | IsADirectory => {
            LoadError::Damaged { path: path.to_owned(), reason: error.to_string() }
        }
        _ => failed("read", path)(error).into(),
    })
}

/// Returns a function that adds the operation and the path to a disk error.
fn failed<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |source| StoreError { doing, path: path.to_owned(), source }
}

/// Returns the parameters that a run was started with, from the first file that still has them.
pub(crate) fn origin(root: &Path) -> Option<Origin> {
    let disk = disk::machine();
    let names = disk.list(root).unwrap_or_default().into_iter();
    let backups = names.filter(|name| name.starts_with(STATE) && name.ends_with(".bak"));
    for name in std::iter::once(STATE.to_owned()).chain(backups) {
        let document = disk.read(&root.join(name)).unwrap_or_default();
        if let Ok(origin) = serde_json::from_slice::<Origin>(&document) {
            return Some(origin);
        }
    }
    let bytes = disk.read(&root.join(JOURNAL)).ok()?;
    let first = journal::read(&bytes).entries.into_iter().next()?;
    match first.event {
        Event::Started { origin } => Some(*origin),
        _ => None,
    }
}
