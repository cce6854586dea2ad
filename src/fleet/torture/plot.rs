//! What will be done to a fleet, and when: all of it follows from a seed.

use crate::base::random::Random;

/// How large a torture is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub seconds: u64,
    pub workers: usize,
    pub coordinators: usize,
    pub runs: usize,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Deed {
    /// Submit a run of this script.
    Submit { script: usize, cancel_after_ms: u64 },
    /// Put a task out that belongs to no run.
    Free { agent: usize, well: bool },
    /// Drop a file into an inbox by hand, one half after the other: a task, or a run.
    Drop { into: Drop, half_after_ms: u64 },
    /// End a member as a power cut would, and start another in its place.
    Kill { member: usize, back_after_ms: u64 },
    /// Hold a member up, longer than its lease or not, and let it go on.
    Freeze { member: usize, for_ms: u64 },
    /// Ask a member to end itself.
    Drain { member: usize, twice: bool, back_after_ms: u64 },
    /// Let nobody claim an agent's tasks for a while.
    Pause { agent: usize, for_ms: u64 },
}

/// What is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drop {
    /// A task for one of [`AGENTS`].
    Task(usize),
    /// A run of this script.
    Run(usize),
}

/// How a member is to be unlike others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Temper {
    /// How far off its clock is.
    pub clock_ms: i64,
    /// How its disk fails: a seed, and how many calls of a thousand.
    pub faults: Option<(u64, u64)>,
}

impl Temper {
    pub(crate) fn draw(random: &mut Random) -> Temper {
        let clock_ms = match random.below(4) {
            0 => 0,
            1 => 3_600_000,
            2 => -3_600_000,
            _ => random.below(20_000) as i64 - 10_000,
        };
        let faults = match random.below(3) {
            0 => Some((random.draw() >> 16, 1 + random.below(10) as u64)),
            _ => None,
        };
        Temper { clock_ms, faults }
    }
}

/// Writes the plot: deeds with their times in milliseconds, in order.
pub(super) fn write(seed: u64, size: Size, scripts: usize, lease_ms: u64) -> Vec<(u64, Deed)> {
    let mut random = Random::new(seed);
    let mut plot = Vec::new();
    let end = size.seconds * 1000;
    for number in 0..size.runs {
        // Every script has its turn; most of the time something is on its way.
        let at = random.below(1 + end as usize * 4 / 5) as u64;
        let script = if number < scripts { number } else { random.below(scripts) };
        let cancel_after_ms = random.below(1 + (lease_ms as usize) * 2) as u64;
        plot.push((at, Deed::Submit { script, cancel_after_ms }));
    }
    for _ in 0..size.runs {
        let at = random.below(1 + end as usize) as u64;
        plot.push((
            at,
            Deed::Free { agent: random.below(AGENTS.len()), well: random.below(4) > 0 },
        ));
    }
    for number in 0..size.runs {
        let at = random.below(1 + end as usize) as u64;
        let into = match number % 3 {
            // Those that have to be cancelled need a name to be cancelled by.
            0 => Drop::Run(random.below(scripts.min(FINITE))),
            _ => Drop::Task(random.below(AGENTS.len())),
        };
        plot.push((at, Deed::Drop { into, half_after_ms: random.below(300) as u64 }));
    }
    let members = size.workers + size.coordinators;
    let mut at = 0;
    loop {
        // Each member has its turn every few seconds, however many there are.
        at += (200 + random.below(2000) as u64) / members.max(1) as u64;
        if at >= end {
            break;
        }
        plot.push((at, harm(&mut random, members, lease_ms)));
    }
    plot.sort_by_key(|(at, _)| *at);
    plot
}

/// How many scripts, the first ones, come to an end by themselves.
pub(super) const FINITE: usize = 7;
/// The agents whose workers are tortured.
pub(super) const AGENTS: [&str; 2] = ["engineer", "qa"];

fn harm(random: &mut Random, members: usize, lease_ms: u64) -> Deed {
    let member = random.below(members);
    let back_after_ms = random.below(600) as u64;
    match random.below(20) {
        0..8 => Deed::Kill { member, back_after_ms },
        8..11 => Deed::Freeze { member, for_ms: random.below(lease_ms as usize) as u64 },
        11..16 => {
            let for_ms = lease_ms * 3 / 2 + random.below(lease_ms as usize * 2) as u64;
            Deed::Freeze { member, for_ms }
        }
        16..19 => Deed::Drain { member, twice: random.coin(), back_after_ms },
        _ => {
            let agent = random.below(AGENTS.len());
            Deed::Pause { agent, for_ms: 200 + random.below(1500) as u64 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_follows_from_its_seed() {
        let size = Size { seconds: 20, workers: 3, coordinators: 2, runs: 30 };
        let plot = |seed| write(seed, size, 8, 900);
        assert_eq!(plot(1), plot(1));
        assert_ne!(plot(1), plot(2));
        let plot = plot(1);
        assert!(plot.is_sorted_by_key(|(at, _)| *at));
        for script in 0..8 {
            let is_it =
                |deed: &Deed| matches!(deed, Deed::Submit { script: s, .. } if *s == script);
            assert!(plot.iter().any(|(_, deed)| is_it(deed)), "script {script} has its turn");
        }
    }
}
