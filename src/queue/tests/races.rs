//! Many claim at once: each task goes to one of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use super::tricks::{Call, Reply, Tricky};
use super::*;
use crate::base::host::lock;

/// Several processes of two threads each.
fn processes(disk: &Arc<dyn Disk>, root: &Path, count: u64) -> Vec<Queue> {
    let open = |n: u64| {
        let layout = Layout::new(root);
        Queue::open(disk.clone(), layout, &format!("w{n}"), n, false).unwrap()
    };
    (0..count).map(open).collect()
}

/// Which tasks were claimed other than once.
fn not_once(claims: &[(TaskId, TaskAttempt)], wanted: usize) -> Result<(), String> {
    let mut counts: BTreeMap<_, u32> = BTreeMap::new();
    claims.iter().for_each(|claim| *counts.entry(claim).or_default() += 1);
    let wrong: Vec<_> = counts.iter().filter(|(_, count)| **count != 1).collect();
    let well = wrong.is_empty() && counts.len() == wanted;
    if well { Ok(()) } else { Err(format!("{} of {wanted}, {wrong:?}", counts.len())) }
}

#[test]
fn one_candidate_at_a_time_is_claimed_by_one() {
    const ROUNDS: u64 = 50;
    on_every_disk(|disk, root| {
        let queues = processes(disk, root, 4);
        let barrier = Barrier::new(2 * queues.len() + 1);
        let won = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for queue in queues.iter().chain(&queues) {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        barrier.wait();
                        let claim = take(queue);
                        lock(&won).extend(claim.map(|c| (c.name.task.id, c.name.task.attempt)));
                        barrier.wait();
                    }
                });
            }
            for number in 0..ROUNDS {
                queues[0].enqueue(&[task(number, 5)]).unwrap();
                barrier.wait();
                barrier.wait();
            }
        });
        not_once(&lock(&won), ROUNDS as usize).unwrap();
        assert_eq!(queues[0].claims("qa").unwrap().len() as u64, ROUNDS);
    });
}

#[test]
fn a_deep_inbox_is_drained_by_many_without_loss() {
    const TASKS: u64 = 300;
    on_every_disk(|disk, root| {
        let queues = processes(disk, root, 3);
        let tasks: Vec<Task> = (0..TASKS).map(|n| task(n, (n % 3) as u8)).collect();
        queues[0].enqueue(&tasks).unwrap();
        let won = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for queue in queues.iter().chain(&queues) {
                scope.spawn(|| {
                    while let Some(claim) = take(queue) {
                        let done = finish(queue, &claim, End::Processed).unwrap();
                        assert_eq!(done, Ending::Committed);
                        lock(&won).push((claim.name.task.id, claim.name.task.attempt));
                    }
                });
            }
        });
        // Whoever loses all of several listings is told that there is nothing.
        while let Some(claim) = take(&queues[0]) {
            lock(&won).push((claim.name.task.id, claim.name.task.attempt));
        }
        not_once(&lock(&won), TASKS as usize).unwrap();
        assert!(queues[0].waiting("qa").unwrap().is_empty());
    });
}

/// A disk on which whoever loses a race believes to have won it: it gets a copy.
fn generous(sim: &Arc<SimDisk>) -> Arc<dyn Disk> {
    let gone: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::default();
    Tricky::over(sim, move |sim, call| match call {
        Call::Rename(from, to) => match sim.rename(from, to) {
            Err(_) if lock(&gone).contains_key(from) => {
                let bytes = sim.read(&lock(&gone)[from]);
                Reply::Instead(bytes.and_then(|bytes| sim.write(to, &bytes)))
            }
            moved => {
                lock(&gone).insert(from.to_owned(), to.to_owned());
                Reply::Instead(moved)
            }
        },
        _ => Reply::Go,
    })
}

/// Two who have listed the same drain it in turns.
fn in_turns(disk: &Arc<dyn Disk>) -> Result<(), String> {
    let queues = processes(disk, Path::new("ws"), 2);
    let tasks: Vec<Task> = (0..20).map(|number| task(number, 5)).collect();
    queues[0].enqueue(&tasks).unwrap();
    let mut won = Vec::new();
    let mut idle = 0;
    for queue in queues.iter().cycle().take(100) {
        match take(queue) {
            Some(claim) => won.push((claim.name.task.id, claim.name.task.attempt)),
            None => idle += 1,
        }
    }
    assert!(idle > 0, "they came to the end");
    not_once(&won, tasks.len())
}

#[test]
fn a_loser_that_believes_it_won_is_caught() {
    let sim: Arc<SimDisk> = Arc::default();
    in_turns(&generous(&sim)).unwrap_err();
    let sim: Arc<dyn Disk> = Arc::new(SimDisk::default());
    in_turns(&sim).unwrap();
}

/// What somebody does who takes a holder for dead.
const INTRUSIONS: [fn(&Queue); 3] = [
    |two| drop(two.reap("one").unwrap()),
    |two| {
        two.reap("one").unwrap();
        work(two);
    },
    |two| {
        two.request_cancel(task(1, 5).name.id.as_str()).unwrap();
        two.reap("one").unwrap();
    },
];

fn work(queue: &Queue) {
    while let Some(claim) = take(queue) {
        finish(queue, &claim, End::Processed).unwrap();
    }
}

/// A holder ends its task; before its operation number `at`, it is taken for dead. False if it
/// has not so many.
fn interrupted(at: usize, end: End, crash_limit: u32, intrusion: fn(&Queue)) -> bool {
    let sim: Arc<SimDisk> = Arc::default();
    let plain: Arc<dyn Disk> = sim.clone();
    let two = open(&plain, Path::new("ws"), "two");
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let countdown = left.clone();
    let disk = Tricky::over(&sim, move |_, _| {
        if countdown.fetch_sub(1, Ordering::Relaxed) == 0 {
            intrusion(&two);
        }
        Reply::Go
    });
    let one = open(&disk, Path::new("ws"), "one");
    one.enqueue(&[Task { crash_limit, ..task(1, 5) }]).unwrap();
    let claim = take(&one).unwrap();
    left.store(at, Ordering::Relaxed);
    let ending = finish(&one, &claim, end).unwrap();
    let came = left.swap(usize::MAX, Ordering::Relaxed) > at;
    let judge = open(&plain, Path::new("ws"), "judge");
    judge.reap("one").unwrap();
    work(&judge);
    let place = judge.find("qa", "day", &claim.name.task.id).unwrap();
    let Some(Place::Ended { end: ended, name, by }) = place else { panic!("{at}: {place:?}") };
    let all = [End::Processed, End::Failed, End::Cancelled];
    let count: usize = all.iter().map(|end| judge.ended(*end, "day").unwrap().len()).sum();
    assert_eq!(count, 1, "{at}: it ended twice");
    assert!(judge.status(ended, "day", &name).unwrap().is_some(), "{at}: {name:?} has no status");
    // Whoever is told that it ended the task did, and nobody else.
    let ours = (name == claim.name && by == "one", ended);
    assert_eq!(ours.0, ending == Ending::Committed, "{at}: {name:?} by {by}");
    assert!(!ours.0 || ours.1 == end, "{at}: {ended:?}");
    assert!(judge.claims("qa").unwrap().is_empty() && judge.waiting("qa").unwrap().is_empty());
    came
}

#[test]
fn a_holder_that_is_taken_for_dead_at_any_point_ends_its_task_or_nothing() {
    let mut moments = 0;
    for crash_limit in [1, 3] {
        for end in [End::Processed, End::Failed, End::Cancelled] {
            for intrusion in INTRUSIONS {
                moments +=
                    (0..).take_while(|at| interrupted(*at, end, crash_limit, intrusion)).count();
            }
        }
    }
    assert!(moments > 100, "{moments}");
}
