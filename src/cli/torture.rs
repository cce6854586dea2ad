//! `orchestrate torture`: a fleet in a scratch workspace, killed, frozen and lied to, and then
//! judged.

use std::path::PathBuf;

use serde_json::json;

use super::invocation::{CLOCK_OFFSET, FAULTS, Invocation};
use super::{Common, fsck, signals};
use crate::disk::fs;
use crate::fleet::torture::{self, Size, Verdict};
use crate::health::fsck::Calm;
use crate::run::failure::Failure;
use crate::view::stderr::talk;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct TortureArgs {
    /// What happens follows from this number [default: a new one]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How long the chaos lasts
    #[arg(long, value_name = "S", default_value_t = 20)]
    pub seconds: u64,
    /// How many workers are started
    #[arg(long, value_name = "W", default_value_t = 4, value_parser = at_least_one)]
    pub workers: usize,
    /// How many coordinators are started
    #[arg(long, value_name = "C", default_value_t = 2, value_parser = at_least_one)]
    pub coordinators: usize,
    /// How many runs are submitted, and as many tasks beside them
    #[arg(long, value_name = "R", default_value_t = 40)]
    pub runs: usize,
    /// Each member as on a machine of its own: it sees no process of others, and has no locks
    #[arg(long)]
    pub machines: bool,
    /// Where to do it; must be empty, and is kept [default: a scratch directory, kept on failure]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=256) => Ok(number),
        _ => Err("it must be a number from 1 to 256".into()),
    }
}

pub(super) fn main(args: &TortureArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let seed = args.seed.unwrap_or_else(|| crate::fleet::member::chance() % 1_000_000);
    invocation.note(format!("seed {seed}"));
    let scratch = std::env::temp_dir().join(format!("orchestrate-torture-{}", std::process::id()));
    let dir = args.dir.clone().unwrap_or(scratch);
    let failed = |error: std::io::Error| {
        Failure::failed(format!("cannot torture a fleet in `{}`: {error}", dir.display()))
    };
    let program = std::env::current_exe().map_err(failed)?;
    let environment = invocation.environment.clone();
    let stage = torture::stage_in(&dir, program, environment, CLOCK_OFFSET, FAULTS, args.machines)
        .map_err(failed)?;
    let size = Size {
        seconds: args.seconds,
        workers: args.workers,
        coordinators: args.coordinators,
        runs: args.runs,
    };
    let signals = signals::listen()?;
    let mut say = |line: &str| invocation.note(line);
    let verdict = torture::torture(stage, seed, size, &signals.stop, &mut say).map_err(failed)?;
    let keep = args.dir.is_some() || !verdict.is_clean();
    if !keep {
        let _ = fs::remove_dir_all(&dir);
    }
    match common.json {
        true => println!("{}", document(seed, &verdict)),
        false => tell(&verdict),
    }
    if keep {
        invocation.note(format!("kept in {}", dir.display()));
    }
    if verdict.is_clean() {
        invocation.note(format!("seed {seed}: every promise was kept"));
    } else {
        // Also for those who asked for quiet: it is what makes it happen again.
        talk(format_args!("error: seed {seed}: see above"));
    }
    Ok(match (verdict.is_clean(), verdict.stopped) {
        (false, _) => 7,
        (true, true) => signals.code(),
        (true, false) => 0,
    })
}

fn tell(verdict: &Verdict) {
    let Verdict { runs, free, deeds, tally, late, .. } = verdict;
    let deeds: Vec<_> = deeds.iter().map(|(what, count)| format!("{count} {what}")).collect();
    println!("{runs} runs, {free} free tasks; {}", deeds.join(", "));
    println!(
        "{} executions, {} of them again; {late} came too late",
        tally.executions, tally.again
    );
    for finding in verdict.notes.iter().chain(&verdict.damage) {
        println!("{}", fsck::line(finding, Calm::Quiet));
    }
    for wrong in &verdict.wrong {
        println!("wrong: {wrong}");
    }
}

fn document(seed: u64, verdict: &Verdict) -> serde_json::Value {
    let findings = verdict.damage.iter().chain(&verdict.notes);
    json!({
        "schema": "torture/v1",
        "seed": seed,
        "clean": verdict.is_clean(),
        "runs": verdict.runs,
        "free": verdict.free,
        "deeds": verdict.deeds,
        "executions": verdict.tally.executions,
        "again": verdict.tally.again,
        "late": verdict.late,
        "wrong": verdict.wrong,
        "findings": findings.map(|f| fsck::shown(f, Calm::Quiet)).collect::<Vec<_>>(),
    })
}
