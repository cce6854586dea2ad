//! Leases on a simulated disk, with simulated time where owners of other machines are concerned.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::*;
use crate::base::host::Simulated;
use crate::base::time::Time;
use crate::disk::sim::SimDisk;

const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(120);

fn lease_dir() -> LeaseDir {
    let disk = Arc::new(SimDisk::default());
    disk.make_dirs(Path::new("home")).unwrap();
    LeaseDir { dir: "home/lease".into(), disk }
}

fn take(at: &LeaseDir, purpose: &str, limit: Duration) -> Result<Lease, LeaseError> {
    at.acquire(&Request::new(purpose), &Wait::at_most(limit))
}

fn names(at: &LeaseDir) -> Vec<String> {
    at.disk.list(&at.dir).unwrap()
}

/// Writes the ticket of another process, and gives it the token if it `holds`.
fn give(at: &LeaseDir, number: u64, word: &str, process: Process, holds: bool) {
    let (purpose, details) = (format!("being {word}"), Value::Null);
    let owner = Owner { process, purpose, since: Time(0), ttl_ms: 0, details };
    let owner = serde_json::to_string(&owner).unwrap();
    let ticket = Ticket { number, word: word.into() };
    at.disk.write(&at.path(&ticket.name()), format!("{:012}\n{owner}\n", 1).as_bytes()).unwrap();
    if holds {
        let token = at.list().unwrap().token.unwrap();
        assert!(at.pass(&token, &token.next(Some(word))).unwrap());
    }
}

fn dead_process() -> Process {
    let this = Process::this();
    Process { start_time: this.start_time + 1, ..this }
}

fn far_process() -> Process {
    Process { boot_id: "far".into(), host: "elsewhere".into(), ..Process::this() }
}

/// A machine whose time passes only while a thread waits, and on which no other thread runs.
struct StillHost {
    now_ms: AtomicU64,
    began: Instant,
    /// Called with the time, whenever it passes.
    tick: Box<dyn Fn(u64) + Send + Sync>,
}

impl Simulated for StillHost {
    fn instant(&self) -> Instant {
        self.began + Duration::from_millis(self.uptime_ms())
    }
    fn wall_ms(&self) -> i64 {
        0
    }
    fn uptime_ms(&self) -> u64 {
        self.now_ms.load(Ordering::SeqCst)
    }
    fn wait(&self, time: Duration, _: &mut dyn FnMut() -> bool) {
        let ms = time.as_millis() as u64;
        (self.tick)(self.now_ms.fetch_add(ms.max(1), Ordering::SeqCst) + ms);
    }
    fn poke(&self) {}
    fn chance(&self) -> u64 {
        static DRAWN: AtomicU64 = AtomicU64::new(1);
        crate::base::random::nth(7, DRAWN.fetch_add(1, Ordering::SeqCst))
    }
    fn pid(&self) -> u32 {
        1
    }
    fn boot_id(&self) -> String {
        "near".into()
    }
    fn start_time(&self, _: u32) -> Option<u64> {
        Some(1)
    }
    fn spawn(&self, _: Box<dyn FnOnce() + Send>) -> u64 {
        0
    }
    fn is_over(&self, _: u64) -> bool {
        true
    }
    fn try_lock(&self, _: &Path) -> Result<(), u32> {
        Ok(())
    }
    fn unlock(&self, _: &Path) {}
}

/// Runs `test` on a still machine. Returns the simulated time that passed.
fn on_still_host(tick: impl Fn(u64) + Send + Sync + 'static, test: impl FnOnce()) -> Duration {
    let (now_ms, began) = (AtomicU64::new(0), Instant::now());
    let still = Arc::new(StillHost { now_ms, began, tick: Box::new(tick) });
    host::enter(Some(still.clone()));
    test();
    host::enter(None);
    Duration::from_millis(still.uptime_ms())
}

#[test]
fn a_lease_has_one_holder_and_leaves_one_file() {
    let at = lease_dir();
    let held = take(&at, "first", LONG).unwrap();
    assert!(held.check().unwrap());
    let busy = take(&at, "second", SOON).unwrap_err().to_string();
    assert!(busy.contains("(first, since"), "{busy}");
    assert_eq!(at.holder().unwrap().unwrap().purpose, "first");
    drop(held);
    assert!(at.holder().unwrap().is_none());
    assert_eq!(names(&at), ["2.free"]);
    drop(take(&at, "second", SOON).unwrap());
    assert_eq!(names(&at), ["4.free"]);
}

#[test]
fn a_dead_holder_of_this_machine_is_replaced_at_once() {
    let at = lease_dir();
    drop(take(&at, "first", LONG).unwrap());
    give(&at, 1, "ghost", dead_process(), true);
    give(&at, 2, "waiter", dead_process(), false);
    let purposes = |lease: &Lease| -> Vec<String> {
        lease.dead_owners().map(|owner| owner.purpose.clone()).collect()
    };
    let taken = take(&at, "second", SOON).unwrap();
    assert_eq!(purposes(&taken), ["being ghost", "being waiter"]);
    drop(taken);
    // The second ended before it had cleaned up.
    let mut taken = take(&at, "third", SOON).unwrap();
    assert_eq!(purposes(&taken), ["being ghost", "being waiter"]);
    taken.forget_dead();
    drop(taken);
    assert_eq!(take(&at, "fourth", SOON).unwrap().dead_owners().count(), 0);
}

#[test]
fn a_silent_holder_of_another_machine_is_replaced_after_its_time_to_live() {
    let at = lease_dir();
    let passed = on_still_host(
        |_| {},
        || {
            drop(take(&at, "first", LONG).unwrap());
            give(&at, 1, "ghost", far_process(), true);
            let busy = take(&at, "second", Duration::from_secs(20)).unwrap_err().to_string();
            assert!(busy.contains("on elsewhere (being ghost"), "{busy}");
            assert!(busy.contains("no heartbeat for 20 s"), "{busy}");
            let taken = at.acquire(&Request::new("third"), &Wait::until_known(None)).unwrap();
            assert_eq!(taken.dead_owners().count(), 1);
        },
    );
    assert!((50..52).contains(&passed.as_secs()), "{passed:?}");
}

#[test]
fn a_holder_of_another_machine_is_known_by_its_heartbeat() {
    let at = lease_dir();
    let beating = at.clone();
    let tick = move |now: u64| {
        let count = format!("{:012}", 2 + now / 2000);
        let _ = beating.disk.overwrite(&beating.path("0000000001-far"), count.as_bytes());
    };
    let passed = on_still_host(tick, || {
        drop(take(&at, "first", LONG).unwrap());
        give(&at, 1, "far", far_process(), true);
        let known = at.acquire(&Request::new("second"), &Wait::until_known(None));
        assert!(matches!(known, Err(LeaseError::Busy(blocker)) if blocker.silence.is_none()));
        assert!(matches!(take(&at, "third", LONG), Err(LeaseError::Busy(_))));
    });
    assert!(passed.as_secs() >= LONG.as_secs());
}

#[test]
fn a_holder_that_was_replaced_notices_and_releases_nothing() {
    let at = lease_dir();
    let held = take(&at, "sleeping", LONG).unwrap();
    assert!(at.pass(&held.token, &held.token.next(Some("other"))).unwrap());
    assert!(!held.check().unwrap());
    held.remove();
    assert_eq!(names(&at), ["2.other"]);
}

#[test]
fn a_token_without_a_ticket_is_free_after_the_time_to_live() {
    let at = lease_dir();
    let passed = on_still_host(
        |_| {},
        || {
            let held = take(&at, "first", LONG).unwrap();
            at.disk.remove(&at.path(&format!("0000000001-{}", held.word()))).unwrap();
            assert!(take(&at, "second", SOON).is_err());
            drop(take(&at, "third", LONG).unwrap());
            assert!(!held.check().unwrap());
        },
    );
    assert!((30..32).contains(&passed.as_secs()), "{passed:?}");
}

#[test]
fn a_removed_lease_is_created_again_by_those_who_wait() {
    let at = lease_dir();
    take(&at, "first", LONG).unwrap().remove();
    assert!(at.disk.list(&at.dir).is_err());
    let held = take(&at, "second", LONG).unwrap();
    give(&at, 2, "waiter", dead_process(), false);
    held.remove();
    assert_eq!(names(&at).len(), 2, "a lease with waiters stays");
    // As if the waiter had come while the holder removed the lease.
    at.disk.remove(&at.path("2.free")).unwrap();
    drop(take(&at, "third", SOON).unwrap());
    assert_eq!(names(&at), ["2.free"]);
}

#[test]
fn waiters_enter_one_by_one_in_the_order_of_arrival() {
    let at = lease_dir();
    let first = take(&at, "first", LONG).unwrap();
    let entered = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (at, entered) = (&at, &entered);
            scope.spawn(move || {
                let lease = take(at, &number.to_string(), LONG).unwrap();
                entered.lock().unwrap().push(number);
                drop(lease);
            });
            while at.waiters().unwrap().len() <= number {
                std::thread::yield_now();
            }
        }
        drop(first);
    });
    assert_eq!(entered.into_inner().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn many_threads_exclude_each_other() {
    let at = lease_dir();
    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for turn in 0..5 {
                    let lease = take(&at, "racing", LONG).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if turn == 3 { lease.remove() } else { drop(lease) }
                }
            });
        }
    });
    assert!(names(&at).len() <= 1, "{:?}", names(&at));
}

#[test]
fn a_requested_stop_ends_the_wait() {
    let at = lease_dir();
    let _held = take(&at, "first", LONG).unwrap();
    let stop = Stop::new().unwrap();
    stop.request(1);
    let wait = Wait { stop: Some(&stop), ..Wait::at_most(LONG) };
    let stopped = at.acquire(&Request::new("second"), &wait);
    assert!(matches!(stopped, Err(LeaseError::Stopped)));
    assert_eq!(names(&at).len(), 2, "it leaves no ticket");
}

/// At any point, a crash leaves a lease that the next process can take, alone.
#[test]
fn a_crash_at_any_point_leaves_a_lease_that_can_be_taken() {
    for crash_after in 0..40 {
        let disk = Arc::new(SimDisk::default());
        disk.make_dirs(Path::new("home")).unwrap();
        let at = LeaseDir { dir: "home/lease".into(), disk: disk.clone() };
        disk.crash_after(crash_after);
        on_still_host(
            |_| {},
            || {
                for _ in 0..2 {
                    let _ = take(&at, "crashing", SOON);
                }
            },
        );
        disk.restart_whole();
        on_still_host(
            |_| {},
            || {
                // The tickets of the crashed process name a process that runs: this one.
                for name in at.disk.list(&at.dir).unwrap_or_default() {
                    if Ticket::parse(&name).is_some() {
                        at.disk.remove(&at.path(&name)).unwrap();
                    }
                }
                let held = take(&at, "next", LONG).unwrap();
                assert!(held.check().unwrap(), "crash after {crash_after}");
                assert!(take(&at, "other", SOON).is_err());
            },
        );
    }
}
