//! A crash after every operation of the disk, by the end of the process and by a power cut, and
//! for some of them another one while the first is being recovered from.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::tricks::{Call, Reply, Tricky};
use super::*;
use crate::base::random::Random;
use crate::queue::census::ENDS;

const WORKERS: [&str; 5] = ["boss", "first", "ghost", "saviour0", "saviour1"];

/// What the actors were told, which must be true for ever.
#[derive(Default)]
struct Log {
    /// Tasks that are out.
    enqueued: BTreeSet<u64>,
    /// Tasks that must not be executed any more.
    cancelled: BTreeSet<u64>,
    /// Claims that ended, and how.
    committed: BTreeMap<u64, (ClaimName, End)>,
    /// Tasks that were put back, and the attempt they had ended with.
    requeued: BTreeMap<u64, TaskAttempt>,
    /// Who claimed what: process ends so far, task, attempt.
    claimed: Vec<(u32, u64, TaskAttempt)>,
    crashes: u32,
}

fn number(task: &Task) -> u64 {
    task.document["number"].as_u64().unwrap()
}

fn open_short(disk: &Arc<dyn Disk>, me: &str, seed: u64) -> io::Result<Queue> {
    let layout = Layout::new(Path::new("ws"));
    let mut queue = Queue::open(disk.clone(), layout, me, seed, true)?;
    // What a planted fault leaves does not heal.
    queue.patience = Duration::from_millis(1);
    Ok(queue)
}

fn task_of(number: u64, agent: &str) -> Task {
    Task { agent: agent.into(), ..task(number, 5) }
}

impl Log {
    fn claim(&mut self, queue: &Queue, agent: &str) -> io::Result<Option<Claim>> {
        match queue.claim(agent)? {
            Claimed::Task(claim) => {
                self.claimed.push((self.crashes, number(&claim.task), claim.name.task.attempt));
                Ok(Some(*claim))
            }
            Claimed::Nothing => Ok(None),
            Claimed::Quarantined { name, reason } => {
                Err(io::Error::other(format!("{name:?} was put aside: {reason}")))
            }
        }
    }

    fn complete(&mut self, queue: &Queue, ends: Vec<(Claim, End)>) -> io::Result<()> {
        let finish = |(claim, end): &(Claim, End)| Finish {
            claim: claim.clone(),
            end: *end,
            status: done(),
        };
        let group: Vec<Finish> = ends.iter().map(finish).collect();
        for (result, (claim, end)) in queue.complete(group).into_iter().zip(ends) {
            if result? == Ending::Committed {
                self.committed.insert(number(&claim.task), (claim.name, end));
            }
        }
        Ok(())
    }

    /// Executes all it can claim, two at a time.
    fn work(&mut self, queue: &Queue, agent: &str) -> io::Result<()> {
        loop {
            let mut group = Vec::new();
            while group.len() < 2
                && let Some(claim) = self.claim(queue, agent)?
            {
                group.push((claim, End::Processed));
            }
            if group.is_empty() {
                return Ok(());
            }
            self.complete(queue, group)?;
        }
    }
}

/// Everything that can happen to tasks, until the disk fails.
fn story(disk: &Arc<dyn Disk>, log: &mut Log, seed: u64) -> io::Result<()> {
    let boss = open_short(disk, "boss", seed)?;
    let mut tasks: Vec<Task> = (1..=4).map(|number| task_of(number, "qa")).collect();
    tasks.push(task_of(5, "dev"));
    boss.enqueue(&tasks)?;
    log.enqueued.extend(1..=5);
    let run = boss.enqueue_claimed(&task_of(6, "runs"))?;
    log.enqueued.insert(6);
    boss.request_cancel(tasks[3].name.id.as_str())?;
    log.cancelled.insert(4);
    if boss.cancel_waiting("dev", &tasks[4].name)? == Ending::Committed {
        log.cancelled.insert(5);
    }
    let first = open_short(disk, "first", seed + 1)?;
    let mut held = Vec::new();
    while held.len() < 3
        && let Some(claim) = log.claim(&first, "qa")?
    {
        held.push(claim);
    }
    let (one, two, three) = (held[0].clone(), held[1].clone(), held[2].clone());
    log.complete(&first, vec![(one, End::Processed), (two.clone(), End::Failed)])?;
    first.release(three)?;
    // From here on it may be executed again.
    log.committed.remove(&2);

    if boss.requeue(End::Failed, "day", &two.name, "first")? == Ending::Committed {
        log.requeued.insert(2, two.name.task.attempt);
    }
    boss.enqueue(&[task_of(7, "dev")])?;
    log.enqueued.insert(7);
    let ghost = open_short(disk, "ghost", seed + 2)?;
    log.claim(&ghost, "dev")?;
    first.reap("ghost")?;
    log.work(&first, "qa")?;
    log.work(&first, "dev")?;
    log.complete(&boss, vec![(run, End::Processed)])
}

/// Puts back what the dead held, and executes all there is.
fn recover(disk: &Arc<dyn Disk>, log: &mut Log, me: &str, seed: u64) -> io::Result<()> {
    let queue = open_short(disk, me, seed)?;
    for worker in WORKERS.into_iter().filter(|worker| *worker != me) {
        queue.reap(worker)?;
    }
    ["qa", "dev", "runs"].into_iter().try_for_each(|agent| log.work(&queue, agent))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Crash {
    Never,
    /// The process ends after so many operations.
    Killed(usize),
    /// The machine does.
    PowerCut(usize),
}

/// Plays the story with a crash and the recovery from it. Gives how many operations it took.
fn play(
    crash: Crash,
    seed: u64,
    wrap: &dyn Fn(&Arc<SimDisk>) -> Arc<dyn Disk>,
) -> Result<usize, String> {
    let sim: Arc<SimDisk> = Arc::default();
    let disk = wrap(&sim);
    let mut log = Log::default();
    let restart = |log: &mut Log, seed| {
        log.crashes += 1;
        match crash {
            Crash::PowerCut(_) => sim.restart(seed),
            _ => sim.restart_whole(),
        }
    };
    if let Crash::Killed(after) | Crash::PowerCut(after) = crash {
        sim.crash_after(after);
    }
    let told = story(&disk, &mut log, seed);
    if crash == Crash::Never {
        told.map_err(|error| error.to_string())?;
    } else {
        restart(&mut log, seed);
    }
    let operations = sim.operations();
    let mut random = Random::new(seed);
    if crash != Crash::Never && random.coin() {
        sim.crash_after(random.below(100));
        let _ = recover(&disk, &mut log, "saviour0", seed + 3);
        restart(&mut log, seed + 1);
    }
    recover(&disk, &mut log, "saviour1", seed + 4).map_err(|error| error.to_string())?;
    let judged: Arc<dyn Disk> = sim;
    check(&open(&judged, Path::new("ws"), "checker"), &log)
        .map_err(|fault| format!("{crash:?}, seed {seed}: {fault}"))?;
    Ok(operations)
}

/// Whether what was told is true, and every task in one place.
fn check(queue: &Queue, log: &Log) -> Result<(), String> {
    let mut ended: BTreeMap<u64, Vec<(ClaimName, End)>> = BTreeMap::new();
    for end in ENDS {
        for (name, by) in queue.ended(end, "day").unwrap() {
            let place = Place::Ended { end, name: name.clone(), by };
            let Some(task) = queue.read(&place, "day").unwrap() else {
                return Err(format!("{place:?} is not whole"));
            };
            if queue.status(end, "day", &name).unwrap().is_none() {
                return Err(format!("{place:?} has no status"));
            }
            ended.entry(number(&task)).or_default().push((name, end));
        }
    }
    if let Some(twice) = ended.values().find(|ends| ends.len() > 1) {
        return Err(format!("ended twice: {twice:?}"));
    }
    for agent in queue.agents().unwrap() {
        let left = (queue.waiting(&agent).unwrap(), queue.claims(&agent).unwrap());
        if left != (Vec::new(), Vec::new()) {
            return Err(format!("left over: {left:?}"));
        }
    }
    let is = |number: &u64| ended.get(number).map(|ends| &ends[0]);
    if let Some(lost) = log.enqueued.iter().find(|number| is(number).is_none()) {
        return Err(format!("task {lost} was lost"));
    }
    for (number, end) in &log.committed {
        if is(number) != Some(end) {
            return Err(format!("task {number} ended as {end:?}, now {:?}", is(number)));
        }
    }

    for (number, attempt) in &log.requeued {
        if is(number).is_none_or(|(name, _)| name.task.attempt <= *attempt) {
            return Err(format!("task {number} was put back, now {:?}", is(number)));
        }
    }
    for number in &log.cancelled {
        if is(number).is_none_or(|(_, end)| *end != End::Cancelled) {
            return Err(format!("task {number} was cancelled, now {:?}", is(number)));
        }
    }
    let claims: BTreeSet<_> = log.claimed.iter().collect();
    if claims.len() != log.claimed.len() {
        return Err(format!("an attempt was claimed twice: {:?}", log.claimed));
    }
    Ok(())
}

fn plain(sim: &Arc<SimDisk>) -> Arc<dyn Disk> {
    sim.clone()
}

#[test]
fn a_process_may_end_after_any_operation() {
    let operations = play(Crash::Never, 1, &plain).unwrap();
    assert!(operations > 150, "{operations}");
    for after in 0..operations {
        play(Crash::Killed(after), after as u64, &plain).unwrap();
    }
}

#[test]
fn the_power_may_fail_after_any_operation() {
    let operations = play(Crash::Never, 1, &plain).unwrap();
    for after in 0..operations {
        for seed in 0..4 {
            play(Crash::PowerCut(after), seed * 1_000 + after as u64, &plain).unwrap();
        }
    }
}

/// Plays until something is found.
fn is_caught(wrap: &dyn Fn(&Arc<SimDisk>) -> Arc<dyn Disk>) -> bool {
    let Ok(operations) = play(Crash::Never, 1, wrap) else { return true };
    let crashes = |after| [Crash::Killed(after), Crash::PowerCut(after)];
    let mut all = (0..operations).flat_map(crashes).enumerate();
    all.any(|(seed, crash)| play(crash, seed as u64, wrap).is_err())
}

#[test]
fn faults_that_are_planted_are_caught() {
    let no_sync = |sim: &Arc<SimDisk>| {
        Tricky::over(sim, |_, call| match call {
            Call::Sync => Reply::Instead(Ok(())),
            _ => Reply::Go,
        })
    };
    let no_sync_of = |end: &'static str| {
        move |sim: &Arc<SimDisk>| {
            Tricky::over(sim, move |_, call| match call {
                Call::SyncDir(dir) if dir.ends_with(end) => Reply::Instead(Ok(())),
                _ => Reply::Go,
            })
        }
    };
    let copy = |sim: &Arc<SimDisk>| {
        Tricky::over(sim, |sim, call| match call {
            Call::Rename(from, to) => Reply::Instead(
                sim.read(from)
                    .and_then(|bytes| sim.write(to, &bytes))
                    .and_then(|()| sim.sync(to))
                    .and_then(|()| sim.remove(from)),
            ),
            _ => Reply::Go,
        })
    };
    assert!(is_caught(&no_sync), "files that are not synced");
    for dir in ["inbox/qa", "processed/day", "cancel", "cancelled/day", "claimed/runs"] {
        assert!(is_caught(&no_sync_of(dir)), "`{dir}` is not synced");
    }
    assert!(is_caught(&copy), "copies in place of renames");
}
