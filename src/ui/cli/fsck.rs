//! `orchestrate fsck`: is everything where it must be? Looks and changes nothing.

use serde_json::json;

use super::common::{self, Surroundings};
use super::{Common, Failure};
use crate::fleet::check::{self, Calm, Finding};

#[derive(clap::Args, Clone, Debug)]
pub struct FsckArgs {
    /// Also find fault with what waits or is held: nothing should be at work any more
    #[arg(long)]
    pub quiet_fleet: bool,
}

pub fn main(args: &FsckArgs, common: &Common) -> Result<u8, Failure> {
    let around = Surroundings::look(common)?;
    let workspace = common::open_workspace(&around)?;
    let calm = if args.quiet_fleet { Calm::Quiet } else { Calm::Working };
    let report = check::check(&workspace, &around.state_dir, calm).map_err(|error| {
        Failure::new(1, format!("cannot look at `{}`: {error}", around.workspace.display()))
    })?;
    let damage = report.damage(calm).count();
    if common.json {
        let findings: Vec<_> = report.findings.iter().map(|f| shown(f, calm)).collect();
        let document = json!({
            "schema": "fsck/v1",
            "damage": damage,
            "tasks": report.tasks,
            "runs": report.runs.len(),
            "findings": findings,
        });
        println!("{document}");
    } else {
        for finding in &report.findings {
            println!("{}", line(finding, calm));
        }
    }
    let (tasks, runs) = (counted(report.tasks, "task"), counted(report.runs.len(), "run"));
    around.say(match damage {
        0 => format!("{tasks} and {runs}: no damage"),
        count => format!("{tasks} and {runs}: {count} damaged"),
    });
    Ok(if damage > 0 { 7 } else { 0 })
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A finding as one line for people.
pub fn line(finding: &Finding, calm: Calm) -> String {
    let word = if finding.kind.is_damage(calm) { "damage" } else { "note" };
    let Finding { kind, about, message } = finding;
    format!("{word}: {} `{about}`: {message}", kind.name())
}

/// A finding for programs.
pub fn shown(finding: &Finding, calm: Calm) -> serde_json::Value {
    json!({
        "kind": finding.kind.name(),
        "damage": finding.kind.is_damage(calm),
        "about": finding.about,
        "message": finding.message,
    })
}
