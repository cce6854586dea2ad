//! The turn: one has it, whatever a call returned and however many want it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;

use super::tricks::{Call, Reply, Tricky};
use super::*;
use crate::base::host::lock;

fn claim(number: u64) -> Claim {
    let task = task(number, 5);
    let name = ClaimName { task: task.name.clone(), worker: "w".into(), claim: "c".into() };
    Claim::new(name, "qa", task)
}

#[test]
fn a_name_says_who_has_the_turn() {
    let id = TaskId::new(1_001, 1);
    for (file, has) in [("0.free", false), (&format!("7.{id}.a02.a.run"), true)] {
        let turn = Turn::parse(file).unwrap();
        assert_eq!((turn.file().as_str(), turn.holder.is_some()), (file, has));
    }
    for file in ["free", "x.free", "01.free", "1.", "1.free.x", &format!("1.{id}.a2.run")] {
        assert_eq!(Turn::parse(file), None, "{file}");
    }
}

#[test]
fn it_goes_from_hand_to_hand() {
    on_every_disk(|disk, root| {
        let (one, two) = (open(disk, root, "one"), open(disk, root, "two"));
        let never = one.turn().unwrap();
        assert_eq!(never.holder, None);
        let first = one.pass_turn(&never, Some(&claim(1))).unwrap().unwrap();
        assert_eq!(two.turn().unwrap(), first);
        // What was free for somebody else is not any more.
        assert_eq!(two.pass_turn(&never, Some(&claim(2))).unwrap(), None);
        let second = two.pass_turn(&first, Some(&claim(2))).unwrap().unwrap();
        assert_eq!(one.pass_turn(&first, None).unwrap(), None, "it was taken over");
        let free = two.pass_turn(&second, None).unwrap().unwrap();
        assert_eq!((free.file().as_str(), one.turn().unwrap()), ("3.free", free.clone()));
        assert!(disk.list(&one.layout.tmp()).unwrap().is_empty(), "nothing is left half-made");
    });
}

#[test]
fn of_many_who_want_it_one_has_it() {
    const ROUNDS: usize = 40;
    on_every_disk(|disk, root| {
        let queues: Vec<_> = (0..4).map(|n| open(disk, root, &format!("w{n}"))).collect();
        let (having, had) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for (number, queue) in queues.iter().chain(&queues).enumerate() {
                let (having, had) = (&having, &had);
                scope.spawn(move || {
                    let mut left = ROUNDS;
                    while left > 0 {
                        let turn = queue.turn().unwrap();
                        if turn.holder.is_some() {
                            std::thread::yield_now();
                            continue;
                        }
                        let claim = claim(number as u64);
                        let Some(own) = queue.pass_turn(&turn, Some(&claim)).unwrap() else {
                            continue;
                        };
                        assert_eq!(having.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                        lock(had).push(own.number);
                        having.fetch_sub(1, Ordering::SeqCst);
                        assert!(queue.pass_turn(&own, None).unwrap().is_some(), "it was ours");
                        left -= 1;
                    }
                });
            }
        });
        let mut had = lock(&had).clone();
        let count = had.len();
        had.dedup();
        assert_eq!((count, had.len()), (8 * ROUNDS, 8 * ROUNDS), "no number twice");
        assert_eq!(disk.list(&queues[0].layout.checkout()).unwrap().len(), 1);
    });
}

#[test]
fn a_turn_that_was_taken_is_ours_whatever_the_call_said() {
    for code in [Errno::ENOENT, Errno::EIO, Errno::ETIMEDOUT, Errno::ESTALE] {
        let sim: Arc<SimDisk> = Arc::default();
        let plain: Arc<dyn Disk> = sim.clone();
        open(&plain, Path::new("ws"), "zero");
        let to_turn = |call: Call| match call {
            Call::Rename(_, to) => to.to_string_lossy().contains("checkout"),
            _ => false,
        };
        let disk = Tricky::over(&sim, move |_, call| match to_turn(call) {
            true => Reply::DoneBut(code as i32),
            false => Reply::Go,
        });
        let one = open(&disk, Path::new("ws"), "one");
        let never = one.turn().unwrap();
        let own =
            one.pass_turn(&never, Some(&claim(1))).unwrap().unwrap_or_else(|| panic!("{code}"));
        assert_eq!(one.turn().unwrap(), own, "{code}");
        assert!(one.pass_turn(&own, None).unwrap().is_some(), "{code}");
    }
}

#[test]
fn a_turn_that_is_gone_is_made_again_and_only_then() {
    on_every_disk(|disk, root| {
        let one = open(disk, root, "one");
        let never = one.turn().unwrap();
        let own = one.pass_turn(&never, Some(&claim(1))).unwrap().unwrap();
        // Somebody who saw none before must not make a second one.
        assert_eq!(one.pass_turn(&never, Some(&claim(2))).unwrap(), None);
        assert_eq!(one.turn().unwrap(), own);
        disk.remove(&one.layout.checkout().join(own.file())).unwrap();
        let again = one.turn().unwrap();
        assert!(one.pass_turn(&again, Some(&claim(2))).unwrap().is_some());
    });
}
