//! Measures the behavior of a volume that two processes use at once.
//!
//! The second process is this program again, or one that the user started on another machine. Each
//! part has its own time limit, so that a slow volume is reported as slow and does not block.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;

use super::scratch::Scratch;
use super::talk::{
    self, BLOCK, DRAFTS, END, Go, LATE, PING, PONG, POST, RACE, Reads, Side, WON, target,
};
use super::{Depth, Finding, Invite, Patient, judge};
use crate::base::time::{Clock, SystemClock};
use crate::disk::hint::{Change, Hints};
use crate::disk::rename;
use crate::exec::{self, Capture, Mask, Mode, Order, Stop, Sweep};

/// Time limit for the second process to appear, on this and on another machine.
const APPEAR: Duration = Duration::from_secs(3);
const APPEAR_REMOTE: Duration = Duration::from_secs(180);
/// Time limit for everything after that.
const TALK: Duration = Duration::from_secs(5);
const TALK_REMOTE: Duration = Duration::from_secs(8);
/// Maximum time for which a name that the other process has created may stay absent.
const ABSENT: Duration = Duration::from_millis(1_500);
const PINGS: usize = 200;
const PINGING: Duration = Duration::from_millis(1_500);
const RACE_FILES: usize = 300;
const LAYING_OUT: Duration = Duration::from_millis(600);
const RACING: Duration = Duration::from_millis(1_000);
const REPLACING: Duration = Duration::from_millis(300);
const SYNCS: usize = 20;
const SYNCING: Duration = Duration::from_millis(500);
/// Time limit for a lock to be granted.
const LOCKING: Duration = Duration::from_secs(2);
/// Time limit for a change notification; after that, it counts as lost.
const NOTICE: Duration = Duration::from_millis(200);

/// Distribution of measured times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub count: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Spread {
    fn of(times: &[Duration]) -> Option<Spread> {
        let mut ms: Vec<f64> = times.iter().map(|time| time.as_micros() as f64 / 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let at = |part: usize| ms.get((ms.len() * part).div_ceil(100).max(1) - 1).copied();
        Some(Spread { count: ms.len(), p50_ms: at(50)?, p99_ms: at(99)?, max_ms: at(100)? })
    }
}

/// Result of a race for files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Race {
    pub files: usize,
    pub won_here: usize,
    pub won_there: usize,
    /// Files that both processes won, or none, or one that does not have the file.
    pub broken: usize,
    /// Files whose winner got an error.
    pub false_errors: usize,
    /// Losers that got an error other than "not found".
    pub odd_errors: usize,
}

/// The measurements. `None` if a measurement failed.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Probe {
    pub remote: bool,
    pub sync: Option<Spread>,
    pub directory_sync: bool,
    pub hard_links: bool,
    pub symbolic_links: bool,
    /// Offset of the volume's clock from this machine's; positive if it is ahead.
    pub clock_offset_ms: Option<i64>,
    /// Time from a rename to the other process's response, both ways.
    pub visibility: Option<Spread>,
    pub notices: bool,
    pub race: Option<Race>,
    pub replace: Option<Reads>,
    /// True if a lock of one process is visible to the other.
    pub locks: Option<bool>,
    /// Visibility of a name that was looked up before the other process created it.
    pub absence: Option<Absence>,
}

/// Visibility of a name that was looked up before another process created it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Absence {
    /// Time for which it stayed absent, or the length of the test.
    pub lag_ms: f64,
    /// True if it was still absent then: this machine caches absence.
    pub remembered: bool,
    /// True if a listing of its directory showed it.
    pub listed: bool,
}

impl Probe {
    /// Returns the longest observed delay of a change. It is a round trip, so one way took no
    /// longer.
    pub(crate) fn lag(&self) -> Duration {
        let longest = self.visibility.map_or(0.0, |spread| spread.max_ms);
        Duration::from_secs_f64(longest / 1e3)
    }
}

/// The place and the participants of a measurement.
pub(crate) struct Meeting<'a> {
    pub patient: &'a Patient,
    pub scratch: &'a Scratch,
    pub stop: &'a Stop,
    pub invite: Invite<'a>,
    /// True if other machines may use the volume too.
    pub network: bool,
}

/// Measures, and returns the measurements and their findings.
pub(crate) fn measure(meeting: &Meeting) -> (Probe, Vec<Finding>) {
    let remote = meeting.patient.depth == Depth::Remote;
    let mut probe = Probe { remote, ..Probe::default() };
    if let Err(error) = lay_out(meeting).and_then(|()| alone(meeting, &mut probe)) {
        let text = format!("files cannot be made, synced or renamed: {error}");
        return (probe, vec![Finding::wrong("files", text, "use another volume")]);
    }
    let met =
        if remote { with_invited(meeting, &mut probe) } else { with_child(meeting, &mut probe) };
    let mut findings = judge::findings(&probe, meeting.network);
    findings.extend(met.err().map(|error| judge::not_met(&error, remote)));
    (probe, findings)
}

fn lay_out(meeting: &Meeting) -> io::Result<()> {
    let dirs = [DRAFTS, POST, PING, PONG, RACE, WON, LATE];
    dirs.iter().try_for_each(|name| fs::create_dir(meeting.scratch.dir.join(name)))
}

/// Measures what does not need a second process.
fn alone(meeting: &Meeting, probe: &mut Probe) -> io::Result<()> {
    let dir = meeting.scratch.dir.join(DRAFTS);
    let (path, other) = (dir.join("alone"), dir.join("renamed"));
    let before = SystemClock.now();
    fs::write(&path, [b'x'; BLOCK])?;
    let after = SystemClock.now();
    let modified = fs::metadata(&path)?.modified()?;
    let modified = modified.duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    let modified = i64::try_from(modified.as_millis()).map_err(io::Error::other)?;
    probe.clock_offset_ms = Some(modified - i64::midpoint(before.0, after.0));

    let mut file = File::options().append(true).open(&path)?;
    let (mut syncs, until) = (Vec::new(), Instant::now() + SYNCING);
    while syncs.len() < SYNCS && (syncs.is_empty() || Instant::now() < until) {
        let began = Instant::now();
        file.write_all(&[b'y'; BLOCK])?;
        file.sync_all()?;
        syncs.push(began.elapsed());
    }
    probe.sync = Spread::of(&syncs);

    rename(&path, &other)?;
    probe.directory_sync = File::open(&dir).and_then(|dir| dir.sync_all()).is_ok();
    let size = (syncs.len() + 1) * BLOCK;
    if path.exists() || fs::read(&other)?.len() != size {
        return Err(io::Error::other("what was synced and renamed is not there as it was written"));
    }
    probe.hard_links = fs::hard_link(&other, dir.join("hard")).is_ok();
    probe.symbolic_links = std::os::unix::fs::symlink("renamed", dir.join("symbolic")).is_ok();
    Ok(())
}

fn with_invited(meeting: &Meeting, probe: &mut Probe) -> io::Result<()> {
    (meeting.invite)(&meeting.scratch.dir);
    talk_over(meeting, &AtomicBool::new(false), APPEAR_REMOTE, probe)
}

fn with_child(meeting: &Meeting, probe: &mut Probe) -> io::Result<()> {
    let gone = AtomicBool::new(false);
    let stop = Stop::new()?;
    std::thread::scope(|scope| {
        let child = scope.spawn(|| {
            let ended = run_child(meeting, &stop);
            gone.store(true, Ordering::SeqCst);
            ended
        });
        let talked = talk_over(meeting, &gone, APPEAR, probe);
        if talked.is_err() {
            stop.request(2);
        }
        let ended = child.join().unwrap_or_else(|_| Err(io::Error::other("it was lost")));
        // The other process's own error is more useful than a report of its silence.
        talked.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => ended.err().unwrap_or(error),
            _ => error,
        })
    })
}

fn run_child(meeting: &Meeting, stop: &Stop) -> io::Result<()> {
    let Meeting { patient, scratch, .. } = meeting;
    let dir = scratch.dir.to_string_lossy().into_owned();
    let program = patient.program.to_string_lossy().into_owned();
    let order = Order {
        argv: &[program, "doctor-peer".to_owned(), dir.clone()],
        cwd: &patient.workspace,
        env: &[],
        env_remove: &[],
        stdin: None,
        timeout: Some(APPEAR + TALK + Duration::from_secs(1)),
        idle: None,
        grace: Duration::from_millis(100),
        mark: &dir,
        sweep: Sweep::Always,
        confine: &[],
    };
    let mut out = Capture::new(Mode::Tail, Mask::default());
    let mut err = Capture::new(Mode::Tail, Mask::default());
    let ended = exec::run(&order, &mut out, &mut err, stop).map_err(io::Error::other)?;
    match ended.how.exit_code() {
        0 => Ok(()),
        code => {
            let said = err.finish()?.tail.join(" ");
            Err(io::Error::other(format!("it ended with exit code {code}: {said}")))
        }
    }
}

/// Runs the first process's side of the tests.
fn talk_over(
    meeting: &Meeting,
    gone: &AtomicBool,
    appear: Duration,
    probe: &mut Probe,
) -> io::Result<()> {
    let until = Instant::now() + appear;
    let mut side = Side { dir: &meeting.scratch.dir, stop: meeting.stop, gone, until };
    side.hear::<u32>("ready")?;
    side.until = Instant::now() + if probe.remote { TALK_REMOTE } else { TALK };
    ping(&side, probe).map_err(during("renaming files to each other"))?;
    probe.race = Some(race(&side).map_err(during("renaming the same files"))?);
    let replaced = replace(&side).map_err(during("replacing a file that is being read"));
    probe.replace = Some(replaced?);
    probe.locks = Some(locks(&side).map_err(during("locking a file"))?);
    probe.absence = Some(absence(&side).map_err(during("looking up a name"))?);
    Ok(())
}

/// Adds the part of the examination to an error.
fn during(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Returns true if the other side sees a lock of this side.
fn locks(side: &Side) -> io::Result<bool> {
    let path = side.dir.join(talk::LOCKED);
    fs::write(&path, "")?;
    let (done, locked) = mpsc::channel();
    // The kernel retries until the server grants the lock, so do not wait for this thread.
    std::thread::spawn(move || drop(done.send(talk::lock(&path))));
    let _held = locked.recv_timeout(LOCKING).map_err(|_| {
        let message = "the volume granted no lock within 2 s; a server that was started just now \
                       grants none for up to 90 s";
        io::Error::new(ErrorKind::WouldBlock, message)
    })??;
    side.post("locking", &())?;
    Ok(!side.hear::<bool>("tried")?)
}

/// Looks up a name before the other side creates it, and measures how long it stays absent.
fn absence(side: &Side) -> io::Result<Absence> {
    let late = side.path(LATE, LATE);
    if fs::symlink_metadata(&late).is_ok() {
        return Err(io::Error::other("a name was there before it was made"));
    }
    side.post("looked", &())?;
    side.hear::<()>("made")?;
    let began = Instant::now();
    let is_absent = || fs::symlink_metadata(&late).is_err();
    while is_absent() && began.elapsed() < ABSENT.min(side.until.saturating_duration_since(began)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let lag_ms = began.elapsed().as_secs_f64() * 1e3;
    let remembered = is_absent();
    let listed = side.list(LATE)?.iter().any(|name| name == LATE);
    Ok(Absence { lag_ms, remembered, listed })
}

/// Renames files into a directory, from which the other side moves them on, and measures the time.
fn ping(side: &Side, probe: &mut Probe) -> io::Result<()> {
    let (noticed, notices) = mpsc::channel();
    let mut hints = Hints::new(move |_, change| {
        if let Change::Came(_) = change {
            let _ = noticed.send(());
        }
    });
    hints.add(&side.dir.join(PONG));
    let mut trips = Vec::new();
    let until = Instant::now() + PINGING;
    let names = (0..PINGS).map(|number| number.to_string()).take_while(|_| Instant::now() < until);
    let pinged = names.chain([END.to_owned()]).try_for_each(|name| {
        fs::write(side.path(DRAFTS, &name), "")?;
        let began = Instant::now();
        rename(&side.path(DRAFTS, &name), &side.path(PING, &name))?;
        let limit = side.until.min(began + PINGING);
        side.wait("an answer", PONG, limit, |side| {
            Ok(side.list(PONG)?.contains(&name).then_some(()))
        })?;
        trips.push(began.elapsed());
        Ok(())
    });
    probe.visibility = Spread::of(&trips);
    probe.notices = hints.are_told() && notices.recv_timeout(NOTICE).is_ok();
    pinged
}

/// Lets both sides rename the same files at the same time.
fn race(side: &Side) -> io::Result<Race> {
    let until = Instant::now() + LAYING_OUT;
    let mut files = 0;
    while files < RACE_FILES && Instant::now() < until {
        File::create(side.path(RACE, &files.to_string()))?;
        files += 1;
    }
    let go = Go { files, limit_ms: RACING.as_millis() as u64 };
    side.post("go", &go)?;
    let here = side.race(go, "here")?;
    let there: String = side.hear("raced")?;
    Ok(count_race(&here, &there, &side.list_anew(WON)?, &side.list_anew(RACE)?))
}

/// Compares the reported results with the files. A file that only one side reached does not count
/// as a race.
fn count_race(here: &str, there: &str, won: &[String], left: &[String]) -> Race {
    let mut race = Race::default();
    let has = |file: usize, who: &str| won.contains(&target(file, who));
    for (file, (mine, theirs)) in here.chars().zip(there.chars()).enumerate() {
        race.files += 1;
        let (by_me, by_them) = (has(file, "here"), has(file, "there"));
        race.won_here += usize::from(by_me);
        race.won_there += usize::from(by_them);
        let told = |letter: char, has: bool| matches!(letter, 'w' | 'f') == has;
        let one = by_me != by_them && !left.contains(&file.to_string());
        race.broken += usize::from(!one || !told(mine, by_me) || !told(theirs, by_them));
        race.false_errors += [mine, theirs].iter().filter(|letter| **letter == 'f').count();
        race.odd_errors += [mine, theirs].iter().filter(|letter| **letter == 'e').count();
    }
    race
}

/// Replaces a file repeatedly while the other side reads it.
fn replace(side: &Side) -> io::Result<Reads> {
    let (draft, path) = (side.path(DRAFTS, "replacement"), side.dir.join(talk::REPLACED));
    let put = |letter: u8| {
        fs::write(&draft, [letter; BLOCK])?;
        rename(&draft, &path)
    };
    put(b'a')?;
    side.post("replacing", &())?;
    let until = Instant::now() + REPLACING;
    let mut letters = (b'a'..=b'z').cycle();
    while Instant::now() < until {
        letters.next().map_or(Ok(()), put)?;
    }
    side.post(talk::REPLACED, &())?;
    side.hear("read")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn percentiles_are_taken_from_what_was_measured() {
        let times: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        let spread = Spread::of(&times).unwrap();
        assert_eq!((spread.p50_ms, spread.p99_ms, spread.max_ms), (100.0, 198.0, 200.0));
        let one = Spread::of(&[Duration::from_millis(7)]).unwrap();
        assert_eq!((one.p50_ms, one.p99_ms, one.max_ms), (7.0, 7.0, 7.0));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn a_race_with_one_winner_each_is_a_good_one() {
        let won = names(&["0.here", "1.there", "2.there"]);
        let race = count_race("wllw", "lww", &won, &[]);
        assert_eq!((race.files, race.won_here, race.won_there, race.broken), (3, 1, 2, 0));
        let told_wrong = count_race("f", "l", &names(&["0.here"]), &[]);
        assert_eq!((told_wrong.broken, told_wrong.false_errors), (0, 1));
    }

    #[test]
    fn a_race_with_two_winners_or_none_is_found_out() {
        let broken = |here: &str, there: &str, won: &[&str], left: &[&str]| {
            count_race(here, there, &names(won), &names(left)).broken
        };
        assert_eq!(broken("w", "w", &["0.here", "0.there"], &[]), 1, "both have it");
        assert_eq!(broken("w", "w", &["0.here"], &[]), 1, "both believe it");
        assert_eq!(broken("l", "l", &[], &[]), 1, "it is lost");
        assert_eq!(broken("l", "l", &[], &["0"]), 1, "nobody could take it");
        assert_eq!(broken("w", "l", &["0.here"], &["0"]), 1, "it was copied");
        assert_eq!(broken("w", "l", &["0.here"], &[]), 0);
    }
}
