//! The schedule of a torture: actions and their times, which follow from a seed.

use super::scripts::{FINITE, SCRIPTS};
use crate::world::Dice;

/// Size of a torture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub seed: u64,
    pub seconds: u64,
    pub workers: usize,
    pub coordinators: usize,
    /// Number of submitted runs, of enqueued tasks, and of dropped files.
    pub runs: usize,
    /// True if each member runs as on a machine of its own.
    pub machines: bool,
}

impl Size {
    /// Parses a list such as `seed=7,seconds=15,runs=30,machines`.
    pub(crate) fn parse(text: &str) -> Size {
        let mut size =
            Size { seed: 1, seconds: 3, workers: 3, coordinators: 2, runs: 14, machines: false };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, "1"));
            let value: u64 = value.parse().unwrap_or_else(|_| panic!("`{part}` has no number"));
            match key {
                "seed" => size.seed = value,
                "seconds" => size.seconds = value,
                "workers" => size.workers = value as usize,
                "coordinators" => size.coordinators = value as usize,
                "runs" => size.runs = value as usize,
                "machines" => size.machines = value > 0,
                _ => panic!("a torture has no `{key}`"),
            }
        }
        size
    }
}

/// An action.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Submit a run of this script.
    Submit { script: usize, cancel_after_ms: u64 },
    /// Enqueue a free task, which succeeds or fails.
    Free { agent: usize, well: bool },
    /// Write a file into an inbox, one half after the other: a task, or a run.
    Drop { into: Drop, half_after_ms: u64 },
    /// End a member as a power cut would, and start another in its place.
    Kill { member: usize, back_after_ms: u64 },
    /// Stop a member for a time, shorter or longer than its lease.
    Freeze { member: usize, for_ms: u64 },
    /// Ask a member to end, and start another in its place.
    Drain { member: usize, twice: bool, back_after_ms: u64 },
    /// Pause an agent's inbox.
    Pause { agent: usize, for_ms: u64 },
}

/// A dropped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drop {
    /// A task for one of [`AGENTS`].
    Task(usize),
    /// A run of this script.
    Run(usize),
}

/// Defects of the clock and the disk of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Defects {
    /// Error of the clock.
    pub clock_ms: i64,
    /// Faults of the disk: a seed, and the number of calls in a thousand that fail.
    pub disk: Option<(u64, u64)>,
}

impl Defects {
    pub(crate) fn draw(dice: &mut Dice) -> Defects {
        let clock_ms = match dice.below(4) {
            0 => 0,
            1 => 3_600_000,
            2 => -3_600_000,
            _ => dice.below(20_000) as i64 - 10_000,
        };
        let disk = match dice.below(3) {
            0 => Some((dice.below(1 << 48), 1 + dice.below(30))),
            _ => None,
        };
        Defects { clock_ms, disk }
    }
}

/// The agents whose workers are tortured.
pub(crate) const AGENTS: [&str; 2] = ["engineer", "qa"];

fn agent(dice: &mut Dice) -> usize {
    dice.below(AGENTS.len() as u64) as usize
}

/// Returns the actions with their times in milliseconds, in order.
pub(crate) fn schedule(size: Size, lease_ms: u64) -> Vec<(u64, Action)> {
    let mut dice = Dice::new(size.seed);
    let mut schedule = Vec::new();
    let end = size.seconds * 1000;
    for number in 0..size.runs {
        // Every script has its turn.
        let at = dice.below(1 + end * 4 / 5);
        let drawn = dice.below(SCRIPTS.len() as u64) as usize;
        let script = if number < SCRIPTS.len() { number } else { drawn };
        let cancel_after_ms = dice.below(1 + lease_ms * 2);
        schedule.push((at, Action::Submit { script, cancel_after_ms }));
    }
    for number in 0..size.runs {
        let well = dice.below(4) > 0;
        schedule.push((dice.below(1 + end), Action::Free { agent: agent(&mut dice), well }));
        let into = match number % 3 {
            // The ID of a dropped run is not known, so it cannot be cancelled.
            0 => Drop::Run(dice.below(FINITE as u64) as usize),
            _ => Drop::Task(agent(&mut dice)),
        };
        let half_after_ms = dice.below(300);
        schedule.push((dice.below(1 + end), Action::Drop { into, half_after_ms }));
    }
    let members = (size.workers + size.coordinators) as u64;
    let mut at = 0;
    loop {
        // Each member has its turn every few seconds, however many there are.
        at += (200 + dice.below(2000)) / members.max(1);
        if at >= end {
            break;
        }
        schedule.push((at, harm(&mut dice, members, lease_ms)));
    }
    schedule.sort_by_key(|(at, _)| *at);
    schedule
}

fn harm(dice: &mut Dice, members: u64, lease_ms: u64) -> Action {
    let member = dice.below(members) as usize;
    let back_after_ms = dice.below(600);
    match dice.below(20) {
        0..8 => Action::Kill { member, back_after_ms },
        8..11 => Action::Freeze { member, for_ms: dice.below(lease_ms) },
        11..16 => Action::Freeze { member, for_ms: lease_ms * 3 / 2 + dice.below(lease_ms * 2) },
        16..19 => Action::Drain { member, twice: dice.below(2) == 0, back_after_ms },
        _ => Action::Pause { agent: agent(dice), for_ms: 200 + dice.below(1500) },
    }
}
