//! Seeds, played.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::plant::{self, Fault};
use super::world::{Outcome, play, play_wide};

/// How many seeds are played where nobody says.
const SEEDS: u64 = 200;

#[expect(clippy::disallowed_methods, reason = "tests have no command line")]
pub(super) fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The cores that this process may use.
fn cores() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let cores: Vec<_> = (0..CpuSet::count()).filter(|core| set.is_set(*core) == Ok(true)).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

/// Keeps this thread, and those that it starts, on one core: one of them goes on at a time, and
/// waking it up elsewhere takes longer than what it does.
fn stay_on(core: usize) {
    let mut set = CpuSet::new();
    let _ = set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
}

/// Does something for each of many, on all cores, each in a directory of its own.
pub(super) fn on_all_cores<T: Send, R: Send>(
    each: impl Iterator<Item = T> + Send,
    act: impl Fn(&Path, T) -> R + Sync,
) -> Vec<R> {
    let (each, done) = (Mutex::new(each), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for core in cores() {
            let (each, done, act) = (&each, &done, &act);
            scope.spawn(move || {
                stay_on(core);
                let dir = tempfile::tempdir().unwrap();
                loop {
                    let Some(next) = each.lock().unwrap().next() else { return };
                    let came_of_it = act(dir.path(), next);
                    done.lock().unwrap().push(came_of_it);
                }
            });
        }
    });
    done.into_inner().unwrap()
}

/// Plays seeds on all cores until one of them shows what must not be.
fn play_all(
    seeds: impl Iterator<Item = u64> + Send,
    planted: Fault,
    stop_at: bool,
) -> Vec<(u64, Outcome)> {
    let found = AtomicBool::new(false);
    let seeds = seeds.take_while(|_| !(stop_at && found.load(Ordering::SeqCst)));
    let mut done = on_all_cores(seeds, |dir, seed| {
        let outcome = play(seed, dir, planted, false);
        found.fetch_or(!outcome.violations.is_empty(), Ordering::SeqCst);
        (seed, outcome)
    });
    done.sort_by_key(|(seed, _)| *seed);
    done
}

/// One seed, told from its beginning to its end.
fn tell(seed: u64, dir: &Path) {
    eprintln!("seed {seed}");
    let outcome = play(seed, dir, Fault::Nothing, true);
    outcome.told.iter().for_each(|line| eprintln!("{line}"));
    outcome.violations.iter().for_each(|line| eprintln!("violation: {line}"));
    eprintln!("seed {seed}: sum {:016x}", outcome.sum);
    assert!(outcome.violations.is_empty(), "seed {seed}");
}

#[test]
fn nothing_wrong_happens_and_everything_ends() {
    if let Some(seed) = variable("ORCHESTRATE_SIM_SEED") {
        return tell(seed, tempfile::tempdir().unwrap().path());
    }
    let first = variable("ORCHESTRATE_SIM_FIRST").unwrap_or(1);
    let count = variable("ORCHESTRATE_SIM_RUNS").unwrap_or(SEEDS);
    eprintln!("seeds {first} to {}", first + count - 1);
    let until_wrong = variable("ORCHESTRATE_SIM_ALL").is_none();
    let done = play_all(first..first + count, Fault::Nothing, until_wrong);
    let sum = |count: &dyn Fn(&Outcome) -> u64| done.iter().map(|(_, o)| count(o)).sum::<u64>();
    eprintln!(
        "seeds {first} to {}: {} simulated fleets, {} runs, {} executions, {} disk operations, \
         {} failed calls, {} kills, {} pauses, {} power cuts",
        first + count - 1,
        done.len(),
        sum(&|o| o.runs as u64),
        sum(&|o| o.executions as u64),
        sum(&|o| o.operations),
        sum(&|o| o.failed_calls),
        sum(&|o| o.kills as u64),
        sum(&|o| o.pauses as u64),
        sum(&|o| o.cuts as u64),
    );
    let mut wrong = done.iter().filter(|(_, outcome)| !outcome.violations.is_empty());
    if let Some((seed, outcome)) = wrong.next() {
        wrong.for_each(|(seed, outcome)| eprintln!("seed {seed}: {:?}", outcome.violations));
        panic!(
            "seed {seed} (ORCHESTRATE_SIM_SEED={seed} tells all of it): {:#?}",
            outcome.violations
        );
    }
}

#[test]
fn a_seed_is_the_same_each_time() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for seed in 1..6 {
        let [one, two] = dirs.each_ref().map(|dir| play(seed, dir.path(), Fault::Nothing, false));
        assert_eq!((one.sum, one.operations), (two.sum, two.operations), "seed {seed}");
    }
}

#[test]
fn tasks_that_take_longer_than_a_lease_to_publish_are_executed_once_each() {
    let outcome = play_wide(tempfile::tempdir().unwrap().path(), 300);
    assert_eq!(outcome.violations, [""; 0]);
    assert_eq!(outcome.executions, 300);
}

#[test]
fn planted_faults_are_caught() {
    for fault in plant::ALL {
        let done = play_all(1..=1500, fault, true);
        let caught = done.iter().find(|(_, outcome)| !outcome.violations.is_empty());
        let (seed, outcome) =
            caught.unwrap_or_else(|| panic!("{fault:?} went unnoticed in {} seeds", done.len()));
        eprintln!("{fault:?}: seed {seed}, after {}: {}", done.len(), outcome.violations[0]);
    }
}
