//! What a call returned is not what happened: renames that fail and were made, that are made
//! late, or not at all.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::errno::Errno;

use super::tricks::{Call, Reply, Tricky};
use super::*;
use crate::base::host::lock;

fn error(code: Errno) -> io::Error {
    io::Error::from_raw_os_error(code as i32)
}

fn goes_to(call: Call, dir: &str) -> bool {
    matches!(call, Call::Rename(_, to) if to.to_string_lossy().contains(dir))
}

/// A disk that replies so to the first calls that fit.
fn tricky(
    times: usize,
    fits: impl Fn(Call) -> bool + Send + Sync + 'static,
    reply: impl Fn() -> Reply + Send + Sync + 'static,
) -> Arc<dyn Disk> {
    let left = AtomicUsize::new(times);
    let take = move || {
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    };

    // The volume has its name before the first trick.
    let sim: Arc<SimDisk> = Arc::default();
    let plain: Arc<dyn Disk> = sim.clone();
    open(&plain, Path::new("ws"), "zero");
    Tricky::over(&sim, move |_, call| if fits(call) && take() { reply() } else { Reply::Go })
}

fn open_on(disk: &Arc<dyn Disk>) -> Queue {
    let mut queue = open(disk, Path::new("ws"), "one");
    queue.patience = Duration::from_millis(30);
    queue
}

#[test]
fn a_claim_that_was_made_is_ours_whatever_the_call_said() {
    for code in [Errno::ENOENT, Errno::EIO, Errno::ETIMEDOUT, Errno::ESTALE, Errno::EPERM] {
        let disk = tricky(1, |call| goes_to(call, "claimed"), move || Reply::DoneBut(code as i32));
        let one = open_on(&disk);
        one.enqueue(&[task(1, 5)]).unwrap();
        let claim = take(&one).unwrap_or_else(|| panic!("{code}"));
        assert!(one.adopt_surprises(&HashSet::new()).unwrap().is_empty(), "{code}");
        assert_eq!(finish(&one, &claim, End::Processed).unwrap(), Ending::Committed);
    }
}

#[test]
fn a_commit_that_was_made_is_made_whatever_the_call_said() {
    for code in [Errno::ENOENT, Errno::EIO, Errno::ENOTCONN] {
        let disk =
            tricky(1, |call| goes_to(call, "processed"), move || Reply::DoneBut(code as i32));
        let one = open_on(&disk);
        one.enqueue(&[task(1, 5)]).unwrap();
        let claim = take(&one).unwrap();
        assert_eq!(finish(&one, &claim, End::Processed).unwrap(), Ending::Committed, "{code}");
        assert_eq!(one.ended(End::Processed, "day").unwrap().len(), 1);
    }
}

#[test]
fn what_passes_is_waited_for() {
    let all: [fn(Call) -> bool; 6] = [
        |call| goes_to(call, "inbox"),
        |call| goes_to(call, "claimed"),
        |call| goes_to(call, "processed"),
        |call| matches!(call, Call::Scan),
        |call| matches!(call, Call::Write),
        |call| matches!(call, Call::Read(_)),
    ];
    for (number, fits) in all.into_iter().enumerate() {
        // Out of descriptors is no fault of the file that could not be opened.
        for code in [Errno::EIO, Errno::EINTR, Errno::EMFILE] {
            let disk = tricky(2, fits, move || Reply::Instead(Err(error(code))));
            let one = open_on(&disk);
            one.enqueue(&[task(1, 5), task(2, 5)]).unwrap();
            let claim = take(&one).unwrap_or_else(|| panic!("{number}: {code}"));
            assert_eq!(finish(&one, &claim, End::Processed).unwrap(), Ending::Committed);
            assert_eq!(labels(&one.waiting("qa").unwrap()), ["t2"], "{number}: {code}");
        }
    }
}

#[test]
fn a_name_that_a_stale_cache_does_not_know_is_tried_again() {
    for dir in ["claimed", "processed"] {
        let disk =
            tricky(3, move |call| goes_to(call, dir), || Reply::Instead(Err(error(Errno::ENOENT))));
        let one = open_on(&disk);
        one.enqueue(&[task(1, 5)]).unwrap();
        // A claim comes again with the next listing.
        let claim = (0..3).find_map(|_| take(&one)).unwrap();
        assert_eq!(finish(&one, &claim, End::Processed).unwrap(), Ending::Committed);
    }
}

#[test]
fn what_does_not_pass_is_an_error_and_loses_nothing() {
    let disk = tricky(
        usize::MAX,
        |call| goes_to(call, "claimed"),
        || Reply::Instead(Err(error(Errno::EIO))),
    );
    let one = open_on(&disk);
    one.enqueue(&[task(1, 5)]).unwrap();
    assert_eq!(one.claim("qa").unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
    assert_eq!(labels(&one.waiting("qa").unwrap()), ["t1"]);
    let disk =
        tricky(1, |call| matches!(call, Call::Write), || Reply::Instead(Err(error(Errno::ENOSPC))));
    let one = open_on(&disk);
    assert_eq!(one.enqueue(&[task(1, 5)]).unwrap_err().raw_os_error(), Some(Errno::ENOSPC as i32));
    assert!(one.waiting("qa").unwrap().is_empty());
}

#[test]
fn a_sync_that_failed_is_an_error_and_is_not_tried_again() {
    let inbox = |call: Call| matches!(call, Call::SyncDir(dir) if dir.ends_with("inbox/qa"));
    let disk = tricky(1, inbox, || Reply::Instead(Err(error(Errno::EIO))));
    let one = open_on(&disk);
    assert!(one.enqueue(&[task(1, 5)]).is_err());
    let day = |call: Call| matches!(call, Call::SyncDir(dir) if dir.ends_with("day"));
    let disk = tricky(1, day, || Reply::Instead(Err(error(Errno::EIO))));
    let one = open_on(&disk);
    one.enqueue(&[task(1, 5)]).unwrap();
    let claim = take(&one).unwrap();
    assert!(finish(&one, &claim, End::Processed).is_err());
    // Whoever asks again is told how it stands.
    assert_eq!(finish(&one, &claim, End::Processed).unwrap(), Ending::Committed);
    assert_eq!(one.status(End::Processed, "day", &claim.name).unwrap(), Some(done()));
}

/// From where to where.
type LastMove = Arc<Mutex<Option<(PathBuf, PathBuf)>>>;

/// A disk on which moves into a directory fail for good, and the last of them.
fn late(dir: &'static str) -> (Arc<SimDisk>, Arc<dyn Disk>, LastMove) {
    let (sim, last): (Arc<SimDisk>, Arc<Mutex<_>>) = Default::default();
    let noted = last.clone();
    let disk = Tricky::over(&sim, move |_, call| match call {
        Call::Rename(from, to) if goes_to(call, dir) => {
            *lock(&noted) = Some((from.to_owned(), to.to_owned()));
            Reply::Instead(Err(error(Errno::EIO)))
        }
        _ => Reply::Go,
    });
    (sim, disk, last)
}

#[test]
fn a_claim_that_was_made_late_is_given_back_as_no_crash() {
    let (sim, disk, last) = late("claimed");
    let one = open_on(&disk);
    one.enqueue(&[task(1, 5)]).unwrap();
    assert!(one.claim("qa").is_err());
    assert!(one.adopt_surprises(&HashSet::new()).unwrap().is_empty());
    let (from, to) = lock(&last).take().unwrap();
    sim.rename(&from, &to).unwrap();
    let known = HashSet::from([to.file_name().unwrap().to_string_lossy().into_owned()]);
    assert!(one.adopt_surprises(&known).unwrap().is_empty());
    let name = task(1, 5).name.next(false);
    assert_eq!(
        one.adopt_surprises(&HashSet::new()).unwrap(),
        [Reaped::Returned { name: name.clone() }]
    );
    assert_eq!(one.waiting("qa").unwrap(), [name]);
}

#[test]
fn an_end_that_could_not_be_made_is_finished_forward() {
    let (sim, disk, _) = late("processed");
    let one = open_on(&disk);
    one.enqueue(&[task(1, 5)]).unwrap();
    let claim = take(&one).unwrap();
    assert!(finish(&one, &claim, End::Processed).is_err());
    let healed: Arc<dyn Disk> = sim;
    let reaped = open(&healed, Path::new("ws"), "two").reap("one").unwrap();
    assert_eq!(reaped, [Reaped::Finished { name: claim.name.clone(), end: End::Processed }]);
    // Its holder asks again: somebody else made the end, with its status.
    let one = open(&healed, Path::new("ws"), "one");
    assert_eq!(finish(&one, &claim, End::Processed).unwrap(), Ending::Fenced);
    assert_eq!(one.ended(End::Processed, "day").unwrap().len(), 1);
}

#[test]
fn a_file_under_both_names_ends_once() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::default());
    let (one, two) = (open(&disk, Path::new("ws"), "one"), open(&disk, Path::new("ws"), "two"));
    one.enqueue(&[task(1, 5)]).unwrap();
    let claim = take(&one).unwrap();
    let path = one.layout.claimed("qa").join(claim.name.file());
    let bytes = disk.read(&path).unwrap();
    finish(&one, &claim, End::Processed).unwrap();
    disk.write(&path, &bytes).unwrap();
    assert!(two.reap("one").unwrap().is_empty());
    assert!(two.claims("qa").unwrap().is_empty());
    assert_eq!(two.ended(End::Processed, "day").unwrap(), [(claim.name, "one".to_owned())]);
}

#[test]
fn a_file_that_cannot_be_moved_does_not_keep_the_others() {
    let stuck = |call: Call| {
        matches!(call, Call::Rename(from, _) if from.to_string_lossy().contains("-t1."))
            && goes_to(call, "claimed")
    };
    let disk = tricky(usize::MAX, stuck, || Reply::Instead(Err(error(Errno::EBUSY))));
    let one = open_on(&disk);
    one.enqueue(&[task(1, 5), task(2, 5)]).unwrap();
    assert_eq!(take(&one).unwrap().task.name.label, "t2");
    assert!(take(&one).is_none());
    // Where it is alone, somebody hears of it, once.
    let one = open_on(&disk);
    assert_eq!(one.claim("qa").unwrap_err().raw_os_error(), Some(Errno::EBUSY as i32));
    assert_eq!(one.claim("qa").unwrap(), Claimed::Nothing);
    // A disk that is full is no fault of one file.
    let disk = tricky(
        usize::MAX,
        |call| goes_to(call, "claimed"),
        || Reply::Instead(Err(error(Errno::ENOSPC))),
    );
    let one = open_on(&disk);
    one.enqueue(&[task(1, 5), task(2, 5)]).unwrap();
    assert!(one.claim("qa").is_err());
    assert_eq!(one.waiting("qa").unwrap().len(), 2);
}

#[test]
fn a_file_that_the_medium_cannot_give_back_fails_with_a_reason() {
    let first =
        |call: Call| matches!(call, Call::Read(path) if path.to_string_lossy().contains("-t1."));
    let disk = tricky(usize::MAX, first, || Reply::Instead(Err(error(Errno::EIO))));
    let one = open_on(&disk);
    one.enqueue(&[task(1, 5), task(2, 5)]).unwrap();
    let Claimed::Quarantined { name, reason } = one.claim("qa").unwrap() else { panic!() };
    assert_eq!((name.task.label.as_str(), reason.contains("cannot be read")), ("t1", true));
    assert_eq!(take(&one).unwrap().task.name.label, "t2");
}
