//! The integration suite: one program, one trial per case file, and the coded tests beside them.
//!
//! `cargo test --test it` runs everything, `cargo test --test it steps/at-20` what the name picks.
//! `ORCHESTRATE_TEST_FLEET=1` runs each case a second time in a fleet.
//! `ORCHESTRATE_BIN_DIR=DIR` runs the same cases against the programs of another build in `DIR`.
#![allow(
    clippy::disallowed_methods,
    reason = "a test stands outside the program and touches the world itself"
)]

mod bundle;
mod case;
mod clones;
mod coverage;
mod disk;
mod doctor;
mod documents;
mod examples;
mod examples_nodes;
mod fleet;
mod fleet_faults;
mod follow;
mod fsck;
mod hang;
mod hostile;
mod kill;
mod lints;
mod nodes;
mod nodes_fleet;
mod pattern;
mod repair;
mod reports;
mod runtimes;
mod sandbox;
mod schema;
mod serve;
#[path = "../chaos/shim.rs"]
mod shim;
mod signals;
mod takeover;
mod terminal;
mod tidy;
mod top;
#[path = "../chaos/torture/mod.rs"]
mod torture;
mod traces;
mod turns;
mod twice;
mod units;
mod update;
mod watch;
mod web;
mod worktree;
mod world;

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut trials = coded();
    trials.extend(case::trials(&cases, &world::programs()));
    trials.extend(case::fleet_trials(&cases.join("steps"), &world::programs()));
    trials.extend(case::fleet_trials(&cases.join("nodes"), &world::programs()));
    trials.extend(case::fleet_trials(&cases.join("grimoires"), &world::programs()));
    trials.extend(coverage::trials(&cases));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The tests that are code rather than case files. A module offers `trials()` and is listed here.
fn coded() -> Vec<Trial> {
    let modules = [
        clones::trials(),
        bundle::trials(),
        examples::trials(),
        examples_nodes::trials(),
        fleet::trials(),
        fleet_faults::trials(),
        follow::trials(),
        fsck::trials(),
        case::checks(),
        pattern::checks(),
        reports::trials(),
        serve::trials(),
        disk::trials(),
        doctor::trials(),
        documents::trials(),
        hang::trials(),
        hostile::trials(),
        kill::trials(),
        lints::trials(),
        nodes::trials(),
        nodes_fleet::trials(),
        repair::trials(),
        runtimes::trials(),
        schema::trials(),
        sandbox::trials(),
        shim::trials(),
        signals::trials(),
        takeover::trials(),
        terminal::trials(),
        top::trials(),
        tidy::trials(),
        torture::trials(),
        traces::trials(),
        turns::trials(),
        twice::trials(),
        units::trials(),
        update::checks(),
        watch::trials(),
        worktree::trials(),
    ];
    modules.into_iter().flatten().collect()
}
