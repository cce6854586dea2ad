//! Records the process groups of children where other processes of this machine find them.
//!
//! A process that clears its environment (`env -i`) loses its mark. While this process lives, it
//! adopts such orphans; after it was killed, only their group identifies them. So each child's
//! group is recorded in a file of this process, in memory that a reboot clears, for as long as a
//! process of it may run.
//!
//! **Invariant:** a group number alone is not proof, because numbers are reused. A member is in the
//! session that the child was started in, is not older than the child, and has no other mark.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::signal::killpg;
use nix::unistd::{Uid, getsid};

use super::guard;
use super::process::{Pid, Stat, own_pid, pids, stat};

/// A memory-backed directory, on every Linux that mounts it.
const MEMORY: &str = "/dev/shm";
/// Length of an entry. A group that does not fit is not recorded, and found only by its mark.
const NOTE: usize = 512;
/// Maximum number of entries at once.
const NOTES: u64 = 4096;

static OWN: Mutex<Option<Notes>> = Mutex::new(None);

/// A recorded group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) pid: Pid,
    /// The session of its child.
    pub(super) session: Pid,
    /// Start time of its child, in ticks as in `stat`.
    pub(super) started: u64,
    /// Its own mark and that of the process that started it, separated by `;`.
    pub(super) mark: String,
}

impl Group {
    /// Returns true if a process with this group, session and start time belongs to the group.
    pub(super) fn has(&self, group: Pid, session: Pid, started: u64) -> bool {
        self.pid == group && self.session == session && started >= self.started
    }

    fn to_note(&self) -> Option<Vec<u8>> {
        let Group { pid, session, started, mark } = self;
        let mut note = format!("{pid} {session} {started} {mark}").into_bytes();
        (note.len() < NOTE && !note.contains(&b'\n')).then(|| {
            note.resize(NOTE - 1, b' ');
            note.push(b'\n');
            note
        })
    }

    fn parse(note: &str) -> Option<Group> {
        let mut words = note.trim_end().splitn(4, ' ');
        let mut next = || words.next();
        let (pid, session) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let (started, mark) = (next()?.parse().ok()?, next()?.to_owned());
        Some(Group { pid, session, started, mark })
    }
}

/// The file of this process.
struct Notes {
    file: File,
    path: PathBuf,
    used: BTreeSet<u64>,
}

/// Removes the file of this process at its end. The file of a killed process is removed by the next
/// process that scans the directory. A living process keeps its file: a chain of steps creates it
/// once, not for every step.
pub(super) fn forget() {
    let mut own = own();
    if own.as_ref().is_some_and(|notes| notes.used.is_empty()) {
        let _ = own.take().map(|notes| fs::remove_file(notes.path));
    }
}

/// An entry that is removed on drop.
pub(super) struct Noted {
    place: Option<u64>,
}

impl Noted {
    /// Keeps the entry: a process of the group still runs.
    pub(super) fn stays(&mut self) {
        self.place = None;
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let mut own = own();
        let Some(notes) = own.as_mut() else { return };
        notes.used.remove(&place);
        let _ = notes.file.write_all_at(&[b' '; NOTE], place * NOTE as u64);
    }
}

/// Records the group that a child leads, in this process's session or in the child's own. On
/// failure, only the search by group is lost.
pub(super) fn note(child: Pid, own_session: bool, mark: &str) -> Noted {
    Noted { place: try_note(child, own_session, mark) }
}

fn try_note(child: Pid, own_session: bool, mark: &str) -> Option<u64> {
    let session = if own_session { child } else { getsid(None).ok()?.as_raw() };
    let started = stat(child)?.started;
    let mark = format!("{mark};{}", guard::own_mark());
    let group = Group { pid: child, session, started, mark };
    let note = group.to_note()?;
    let mut own = own();
    if own.is_none() {
        *own = Notes::open().ok();
    }
    let notes = own.as_mut()?;
    let place = (0..NOTES).find(|place| !notes.used.contains(place))?;
    notes.file.write_all_at(&note, place * NOTE as u64).ok()?;
    notes.used.insert(place);
    Some(place)
}

fn own() -> MutexGuard<'static, Option<Notes>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notes {
    fn open() -> io::Result<Notes> {
        let dir = dir()?;
        let started = stat(own_pid()).map_or(0, |stat| stat.started);
        let path = dir.join(format!("{}-{started}", own_pid()));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        Ok(Notes { file: options.open(&path)?, path, used: BTreeSet::new() })
    }
}

/// Returns the directory of all processes of this user. Fails if it belongs to another user.
fn dir() -> io::Result<PathBuf> {
    let uid = Uid::effective();
    let dir = Path::new(MEMORY).join(format!("orchestrate-{uid}"));
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(&dir)?;
    let ours = found.is_dir() && found.uid() == uid.as_raw() && found.mode() & 0o077 == 0;
    ours.then_some(dir).ok_or_else(|| io::ErrorKind::PermissionDenied.into())
}

/// Returns the recorded groups, of any process, that have a wanted mark and a member that has not
/// ended. Removes the files of dead processes whose groups are empty.
///
/// The kernel reports whether a group has members, but it counts zombies too: a caller that waits
/// for an empty group would wait for their parent.
pub(super) fn noted(wanted: &dyn Fn(&str) -> bool) -> Vec<Group> {
    let Ok(dir) = dir() else { return Vec::new() };
    let mut living = None;
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(text) = fs::read_to_string(entry.path()) else { continue };
        let mut groups: Vec<Group> = text.lines().filter_map(Group::parse).collect();
        groups.retain(|group| is_inhabited(group) && is_same(group));
        if !groups.is_empty() {
            let living = living.get_or_insert_with(|| -> Vec<Stat> {
                pids().filter_map(stat).filter(|stat| !stat.ended).collect()
            });
            let has = |group: &Group, one: &Stat| group.has(one.group, one.session, one.started);
            groups.retain(|group| living.iter().any(|one| has(group, one)));
        }
        if groups.is_empty() && is_of_the_dead(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_file(entry.path());
        }
        found.extend(groups.into_iter().filter(|group| group.mark.split(';').any(wanted)));
    }
    found
}

/// Returns true if a group with this number has any member, including zombies and processes that we
/// may not signal. Checked first, because it is cheap and mostly false.
fn is_inhabited(group: &Group) -> bool {
    // 0 and 1 do not name a single group: 0 means our own group, and 1 all processes.
    group.pid > 1 && killpg(nix::unistd::Pid::from_raw(group.pid), None) != Err(Errno::ESRCH)
}

fn is_of_the_dead(name: &str) -> bool {
    let Some((pid, started)) = name.split_once('-') else { return false };
    let (Ok(pid), Ok(started)) = (pid.parse(), started.parse::<u64>()) else { return false };
    stat(pid).is_none_or(|stat| stat.started != started)
}

/// Returns false if the number now belongs to another child.
fn is_same(group: &Group) -> bool {
    stat(group.pid).is_none_or(|stat| stat.started == group.started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_empty_once_its_last_member_is_gone() {
        let group = |pid| Group { pid, session: 0, started: 0, mark: String::new() };
        let own = nix::unistd::getpgrp().as_raw();
        assert!(is_inhabited(&group(own)));
        // No process has a number as high as this.
        assert!(!is_inhabited(&group(Pid::MAX)));
        assert!(!is_inhabited(&group(0)) && !is_inhabited(&group(1)) && !is_inhabited(&group(-1)));
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let group = Group { pid: 12, session: 7, started: 99, mark: "r/Step 1#2".into() };
        let note = group.to_note().unwrap();
        assert_eq!(note.len(), NOTE);
        assert_eq!(Group::parse(std::str::from_utf8(&note).unwrap()), Some(group.clone()));
        assert_eq!(Group::parse(&" ".repeat(NOTE)), None);
        let long = Group { mark: "x".repeat(NOTE), ..group.clone() };
        assert!(long.to_note().is_none());
        assert!(group.has(12, 7, 99) && group.has(12, 7, 100));
        assert!(!group.has(12, 7, 98) && !group.has(12, 8, 99) && !group.has(13, 7, 99));
    }
}
