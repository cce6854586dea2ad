//! What happened: a run's journal and its snapshot, kept so that a crash loses nothing that was
//! acknowledged.
//!
//! An event is appended to `journal.jsonl` before it is acted on; `state.json` is replaced when
//! somebody may be looking, and names the last event it contains. To load a run is to read the
//! snapshot and apply the rest of the journal. Cost stays linear in the run's length: the journal
//! is only ever appended to, and a large snapshot waits until the journal has grown as much again.
//!
//! A run that passes from one coordinator to another gets a journal for each *term*. The new owner
//! reads what was there when it took over and goes on in a file of its own, so whatever a paused
//! owner still writes when it wakes up counts for nothing, on any file system.

pub mod journal;
pub mod lock;
pub mod snapshot;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{self, Disk};
use crate::engine::{self, Event, Run};
use crate::ids::counted;
use crate::time::Time;
use crate::workflow::Plan;
use journal::Entry;

pub const STATE: &str = "state.json";
pub const JOURNAL: &str = "journal.jsonl";
/// What was left of a journal that ended before the snapshot did, and of one that was damaged.
const SHORT: &str = "journal.jsonl.short";
const DAMAGED: &str = "journal.jsonl.damaged";
pub use crate::engine::run::DEFINITION;
/// The settings files in force when the run began, where there were any.
pub const SETTINGS: &str = "settings.json";
const BACKUPS_KEPT: usize = 3;

/// A snapshot is replaced at most this often, and the journal synced at least this often.
pub const QUIET_MS: u64 = 100;
/// Above this size a snapshot waits until the journal has grown by the snapshot's own size, or
/// for as long as it would take at [`BYTES_PER_MS`].
const SMALL_SNAPSHOT: u64 = 64 * 1024;
const BYTES_PER_MS: u64 = 256;

/// A failure of the disk under a run.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} `{}`: {source}", path.display())]
pub struct StoreError {
    pub doing: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl StoreError {
    /// Whether this user may not do it.
    pub fn is_forbidden(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

/// Why a run cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("`{}` is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error(transparent)]
    Disk(#[from] StoreError),
}

/// The files of one run.
pub struct Store {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    /// Which owner's journal is appended to.
    term: u32,
    seq: u64,
    /// Journal bytes since the last snapshot, and that snapshot's size.
    grown: u64,
    snapshot_len: u64,
    snapshot_at: Time,
    synced_at: Time,
    unsynced: bool,
    stale: bool,
    /// An event may have been appended in part.
    torn: bool,
    /// Another may take the run over while this process is paused.
    claimed: bool,
    /// Files that a new run froze and the medium may not have yet.
    frozen: Vec<PathBuf>,
    /// The medium may not have the run's own name, nor the names in its directory.
    is_new: bool,
    names_unsynced: bool,
    /// Somebody else may drive the run: nothing is mended.
    looks_only: bool,
}

impl Store {
    /// Makes a run's directory and first files, with those it freezes. They survive the end of
    /// this process at once, and a power cut from the first sync on, at the latest [`QUIET_MS`]
    /// later.
    pub fn create(
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

    /// Writes the first snapshot, for those who look. It is synced with what the run froze: before
    /// the journal is, which has all that it says.
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

    /// Puts what a new run froze, and its own name, on the medium: at the first chance, when the
    /// first step runs and nobody waits for this. The names inside follow with the first sync.
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

    /// A run as it stands, without touching its files: somebody may be writing them.
    pub fn look(disk: Arc<dyn Disk>, root: &Path, plan: &Plan) -> Result<Run, LoadError> {
        let store = Store { looks_only: true, ..Store::at(disk, root) };
        store.load_all(plan).map(|(_, run)| run)
    }

    /// The same by its journal alone, where its snapshot cannot be read.
    pub fn look_by_journal(
        disk: Arc<dyn Disk>,
        root: &Path,
        plan: &Plan,
    ) -> Result<Run, LoadError> {
        let store = Store { looks_only: true, ..Store::at(disk, root) };
        store.load_without_snapshot(plan).map(|(_, run)| run)
    }

    /// Loads a run: its snapshot, then what the journal has beyond it.
    pub fn load(disk: Arc<dyn Disk>, root: &Path, plan: &Plan) -> Result<(Store, Run), LoadError> {
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

    /// Loads a run by its journal alone, whatever its snapshot says.
    pub fn load_by_journal_alone(
        disk: Arc<dyn Disk>,
        root: &Path,
        plan: &Plan,
    ) -> Result<(Store, Run), LoadError> {
        Store::at(disk, root).load_without_snapshot(plan)
    }

    /// Loads a run that ended before its first snapshot, or lost it: its journal has everything.
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

    /// Reads the journals of all terms, each as far as the next one's beginning, and goes on in
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

    /// The same as far as each can be believed: where one is damaged, its good beginning.
    fn read_what_can_be(&mut self) -> Result<History, LoadError> {
        let mut history = History::default();
        for term in self.terms()? {
            self.term = term;
            history.add(term, self.read_earlier_journal()?);
        }
        Ok(history)
    }

    /// The terms that there is a journal of, in order.
    fn terms(&self) -> Result<Vec<u32>, StoreError> {
        let names = self.disk.list(&self.root).map_err(failed("list", &self.root))?;
        let mut terms: Vec<u32> = names.iter().filter_map(|name| term_of(name)).collect();
        terms.sort_unstable();
        Ok(terms)
    }

    /// What an owner of an earlier term wrote, as far as it can be believed. It may still be
    /// writing, so nothing is cut.
    fn read_earlier_journal(&self) -> Result<Vec<Entry>, LoadError> {
        let bytes = read_file(&*self.disk, &self.journal())?;
        Ok(journal::read(&bytes).entries)
    }

    /// Reads the journal of the last term and cuts off what a crash left half-written.
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

    /// A journal that ends before the snapshot does is begun anew: the next event would leave a
    /// gap in it, and a gap is damage. What was left of it is kept beside, also where that is
    /// nothing: it tells that this was done.
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

    /// Rebuilds a run whose files cannot all be read, from those that can: the journal from its
    /// beginning, or a snapshot or backup with the journal after it, whichever knows most. Says
    /// what it went by.
    pub fn repair(
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

    /// Whether [`Store::repair`] would find nothing to go by. Changes nothing.
    pub fn is_beyond_repair(disk: Arc<dyn Disk>, root: &Path, plan: &Plan) -> bool {
        let mut store = Store { looks_only: true, ..Store::at(disk, root) };
        let entries = match store.read_what_can_be() {
            Ok(history) => history.entries,
            Err(error) => return matches!(error, LoadError::Damaged { .. }),
        };
        matches!(store.what_knows_most(plan, &entries), Ok(None))
    }

    /// The run as the journal, the snapshot or a backup tells it, whichever knows most: up to which
    /// event, and what that is called.
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
        // Events before an edit belong to an earlier plan, and only the state has their results.
        if entries.iter().any(|entry| matches!(entry.event, Event::Edited { .. })) {
            return None;
        }
        let id = crate::ids::RunId::parse(&origin.run_id)?;
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

    /// Keeps the good beginning of a damaged journal, and the whole of it beside. False if it is
    /// not damaged.
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

    /// Whether a power cut can no longer take the whole run away.
    pub fn is_settled(&self) -> bool {
        !self.is_new && !self.names_unsynced
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Which owner's journal is appended to.
    pub fn term(&self) -> u32 {
        self.term
    }

    /// The run's directory was given another name.
    pub fn moved_to(&mut self, root: &Path) {
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

    /// Whether somebody owns the run in a later term.
    fn is_lost(&self) -> Result<bool, StoreError> {
        Ok(self.terms()?.last().is_some_and(|last| *last > self.term))
    }

    /// Goes on in a journal of one's own, as the run's owner of this term. Whoever has lost the
    /// run may go on writing: nobody reads it.
    pub fn begin_term(&mut self, term: u32) {
        self.claimed = true;
        if term > self.term {
            self.term = term;
            self.names_unsynced = true;
        }
    }

    /// Appends an event. It survives the end of this process from now on, and a power cut once
    /// the journal is synced (at the latest [`QUIET_MS`] later, or with the next snapshot).
    pub fn record(&mut self, at: Time, event: &Event) -> Result<(), StoreError> {
        let path = self.journal();
        if self.torn {
            // Nothing can follow what may be half a line; whoever loads the run cuts it off.
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

    /// Does what keeping up needs: a sync of the journal, a new snapshot. Cheap when called often.
    pub fn keep_up(&mut self, plan: &Plan, run: &Run, now: Time) -> Result<(), StoreError> {
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

    /// When the next snapshot may be made. A small one soon; a large one when the journal has
    /// grown as much again, or after so long that people looking at it are served and the disk
    /// is still at rest most of the time.
    fn snapshot_due(&self) -> Time {
        let cheap = self.snapshot_len < SMALL_SNAPSHOT || self.grown >= self.snapshot_len;
        let rest_ms = if cheap { QUIET_MS } else { self.snapshot_len / BYTES_PER_MS };
        self.snapshot_at.plus_ms(rest_ms.max(QUIET_MS))
    }

    /// When [`Store::keep_up`] should be called again, if nothing else happens.
    pub fn next_due(&self) -> Option<Time> {
        let by_snapshot = self.stale.then(|| self.snapshot_due());
        let by_sync = self.unsynced.then(|| self.synced_at.plus_ms(QUIET_MS));
        by_snapshot.into_iter().chain(by_sync).min()
    }

    /// Puts every event so far on the medium: before something is done in the world that could
    /// not be understood without them.
    pub fn commit(&mut self, now: Time) -> Result<(), StoreError> {
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

    /// Replaces the snapshot now. The journal need not be synced first: one that ends before the
    /// snapshot does, after a power cut, is begun anew when the run is loaded.
    pub fn save(&mut self, plan: &Plan, run: &Run, now: Time) -> Result<(), StoreError> {
        let bytes = snapshot::encode(plan, run, self.seq, self.term);
        let path = self.root.join(STATE);
        // Owners of two terms may write at once, but never to one file.
        let temporary = self.root.join(match self.term {
            0 | 1 => format!(".{STATE}.tmp"),
            term => format!(".{STATE}.{term}.tmp"),
        });
        let written = self.disk.write(&temporary, &bytes);
        written.and_then(|()| self.disk.sync(&temporary)).map_err(failed("write", &path))?;
        if self.claimed && self.is_lost()? {
            // Whoever has the run now keeps its state. This is looked for as late as can be: the
            // sync above is where a process spends its time, and where it is most often paused.
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

    /// Replaces the snapshot if it is not the newest, for one who is about to read it.
    pub fn refresh(&mut self, plan: &Plan, run: &Run, now: Time) -> Result<(), StoreError> {
        if self.stale { self.save(plan, run, now) } else { Ok(()) }
    }

    /// Replaces the snapshot and puts the journal on the medium too, for another process to go on
    /// in it, maybe on another machine: what that one appends must not follow half a line.
    pub fn hand_over(&mut self, plan: &Plan, run: &Run, now: Time) -> Result<(), StoreError> {
        self.commit(now)?;
        self.save(plan, run, now)
    }

    /// Copies the snapshot aside before a step, keeping the last three copies.
    pub fn back_up(
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

    /// The backups by age, oldest first, as the event number in each tells.
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

/// Every event of a run that counts, from the journals of all terms, read without cutting off or
/// changing anything.
#[derive(Debug, Default)]
pub struct History {
    pub entries: Vec<Entry>,
    /// The terms after the first, each with the number of its first event.
    later_terms: Vec<(u32, u64)>,
}

impl History {
    pub fn read(disk: &dyn Disk, root: &Path) -> Result<History, LoadError> {
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
            // What an owner wrote who had lost the run is nobody's damage.
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

    /// How often in a row the newest attempts at a step were begun and cut off.
    pub fn cut_off(&self, step: &str) -> u32 {
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

    /// Whether a snapshot was written by an owner of an earlier term after it had lost the run.
    pub fn is_late(&self, term: u32, seq: u64) -> bool {
        self.later_terms.iter().any(|(later, began)| *later > term && *began <= seq)
    }
}

/// Whether the journal of a run was begun anew, so that only the snapshot tells what was before.
pub fn is_begun_anew(disk: &dyn Disk, root: &Path) -> Result<bool, StoreError> {
    let names = disk.list(root).map_err(failed("list", root))?;
    Ok(names.iter().any(|name| name == SHORT || name == DAMAGED))
}

/// The term that a file is the journal of.
fn term_of(name: &str) -> Option<u32> {
    if name == JOURNAL {
        return Some(1);
    }
    let digits = name.strip_prefix("journal.")?.strip_suffix(".jsonl")?;
    digits.parse().ok().filter(|term: &u32| *term > 1 && term.to_string() == digits)
}

/// Whether a time has come. A clock that was set back to before `since` must not stop us.
fn has_come(due: Time, now: Time, since: Time) -> bool {
    now >= due || now < since
}

/// Reads a file of a run. What is no file at all is damage: no second try cures it.
fn read_file(disk: &dyn Disk, path: &Path) -> Result<Vec<u8>, LoadError> {
    use io::ErrorKind::{InvalidData, IsADirectory};
    disk.read(path).map_err(|error| match error.kind() {
        InvalidData | IsADirectory => {
            LoadError::Damaged { path: path.to_owned(), reason: error.to_string() }
        }
        _ => failed("read", path)(error).into(),
    })
}

/// Names what was being done when the disk failed.
fn failed<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |source| StoreError { doing, path: path.to_owned(), source }
}
