//! Seeds, played.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::plant::{self, Fault};
use super::world::{Outcome, play};

/// How many seeds are played where nobody says.
const SEEDS: u64 = 200;

#[expect(clippy::disallowed_methods, reason = "tests have no command line")]
fn variable(name: &str) -> Option<u64> {
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

/// Plays seeds on all cores until one of them shows what must not be.
fn play_all(
    seeds: impl Iterator<Item = u64> + Send,
    planted: Fault,
    stop_at: bool,
) -> Vec<(u64, Outcome)> {
    let seeds = Mutex::new(seeds);
    let done = Mutex::new(Vec::new());
    let found = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for core in cores() {
            let (seeds, done, found) = (&seeds, &done, &found);
            scope.spawn(move || {
                stay_on(core);
                let dir = tempfile::tempdir().unwrap();
                loop {
                    if stop_at && found.load(Ordering::SeqCst) > 0 {
                        return;
                    }
                    let Some(seed) = seeds.lock().unwrap().next() else { return };
                    let outcome = play(seed, dir.path(), planted, false);
                    found.fetch_add(u64::from(!outcome.violations.is_empty()), Ordering::SeqCst);
                    done.lock().unwrap().push((seed, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
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
        "seeds {first} to {}: {} simulated fleets, {} runs, {} executions, {} disk operations, {} failed calls, \
         {} kills, {} pauses, {} power cuts",
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
fn planted_faults_are_caught() {
    for fault in plant::ALL {
        let done = play_all(1..=1500, fault, true);
        let caught = done.iter().find(|(_, outcome)| !outcome.violations.is_empty());
        let (seed, outcome) =
            caught.unwrap_or_else(|| panic!("{fault:?} went unnoticed in {} seeds", done.len()));
        eprintln!("{fault:?}: seed {seed}, after {}: {}", done.len(), outcome.violations[0]);
    }
}
