//! `orchestrate fsck`: checks tasks, runs and journals. Changes nothing without `--repair`, which
//! repairs what it can.

use std::io;

use serde_json::{Value, json};

use super::invocation::Invocation;
use super::{Common, fleet, output};
use crate::base::program_name::ORCHESTRATE;
use crate::disk;
use crate::fleet::member;
use crate::health::fsck::repair::{Mender, Outcome, Repair};
use crate::health::fsck::{self, Calm, Finding, Report};
use crate::queue::{self, Layout, Queue};
use crate::run::failure::Failure;
use crate::store::lock::{self, LockError};
use crate::workspace::Workspace;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct FsckArgs {
    /// Also find fault with what waits or is held: nothing should be at work any more
    #[arg(long)]
    pub quiet_fleet: bool,
    /// Put right what can be without harm, and say what was done; nothing is thrown away
    #[arg(long)]
    pub repair: bool,
}

pub(super) fn main(args: &FsckArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let workspace = invocation.open_workspace()?;
    let calm = if args.quiet_fleet { Calm::Quiet } else { Calm::Working };
    let cannot = |error: io::Error| {
        Failure::failed(format!("cannot look at `{}`: {error}", invocation.workspace.display()))
    };
    let mut report = fsck::check(&workspace, &invocation.state_dir, calm).map_err(cannot)?;
    let mut repairs = Vec::new();
    if args.repair && !report.findings.is_empty() {
        (repairs, report) = mend(&invocation, &workspace, calm)?;
    }
    let damage = report.damage(calm).count();
    match common.json {
        true => {
            output::put(&format!("{}\n", document(&report, args.repair.then_some(&repairs), calm)))?
        }
        false if args.repair => output::put(&repairs.iter().map(told).collect::<String>())?,
        false => {
            output::put(&report.findings.iter().map(|f| line(f, calm) + "\n").collect::<String>())?
        }
    }
    say_end(&invocation, &report, damage, args.repair.then_some(&repairs));
    Ok(if damage > 0 { 7 } else { 0 })
}

/// Repairs what it can, under a lock that only one process per workspace holds.
fn mend(
    invocation: &Invocation,
    workspace: &Workspace,
    calm: Calm,
) -> Result<(Vec<Repair>, Report), Failure> {
    let _lock = lock::take_repair(&invocation.workspace).map_err(|error| match error {
        LockError::Held { owner } => {
            Failure::owned(format!("{owner} mends this workspace already"))
                .hint("wait until it is done")
        }
        LockError::Io(error) => {
            Failure::failed(format!("cannot mend `{}`: {error}", invocation.workspace.display()))
                .hint("the workspace must be writable; `orchestrate doctor` tells more")
        }
    })?;
    let mender = Mender {
        workspace,
        state_dir: &invocation.state_dir,
        calm,
        lease: fleet::settings(invocation).queue.lease,
        open: &|| open_queue(invocation),
        say: &|text| invocation.note(text),
    };
    mender.mend().map_err(|error| {
        Failure::failed(format!("cannot mend `{}`: {error}", invocation.workspace.display()))
            .hint("what was done so far stands; try again")
    })
}

fn open_queue(invocation: &Invocation) -> io::Result<Option<std::sync::Arc<Queue>>> {
    let (disk, layout) = (disk::machine(), Layout::new(&invocation.workspace));
    if !queue::has_queue(&*disk, &layout)? {
        return Ok(None);
    }
    // A repair is durable before it is reported, even if the settings turn durability off.
    let me = crate::base::process::new_incarnation();
    let queue = Queue::open(disk, layout, &me, member::chance(), true)?;
    Ok(Some(std::sync::Arc::new(queue)))
}

fn document(report: &Report, repairs: Option<&Vec<Repair>>, calm: Calm) -> Value {
    let findings: Vec<_> = report.findings.iter().map(|f| shown(f, calm)).collect();
    let mut document = json!({
        "schema": "fsck/v1",
        "damage": report.damage(calm).count(),
        "tasks": report.tasks,
        "runs": report.runs_kept,
        "findings": findings,
    });
    if let Some(repairs) = repairs {
        let repair = |repair: &Repair| {
            let mut shown = shown(&repair.finding, calm);
            shown["outcome"] = repair.outcome.name().into();
            shown["told"] = repair.outcome.told().into();
            shown
        };
        document["repairs"] = repairs.iter().map(repair).collect();
    }
    document
}

/// Formats a repair as two lines of text: the finding and the outcome.
fn told(repair: &Repair) -> String {
    let Finding { kind, about, message } = &repair.finding;
    let word = match &repair.outcome {
        Outcome::Mended(_) => "mended",
        Outcome::Refused(_) => "left",
        Outcome::ForPeople(_) => "for you",
    };
    format!("{word}: {} `{about}`: {message}\n  {}\n", kind.name(), repair.outcome.told())
}

fn say_end(invocation: &Invocation, report: &Report, damage: usize, repairs: Option<&Vec<Repair>>) {
    let (tasks, runs) = (counted(report.tasks, "task"), counted(report.runs_kept, "run"));
    let mended = |repairs: &Vec<Repair>| {
        let is_mended = |repair: &&Repair| matches!(repair.outcome, Outcome::Mended(_));
        match repairs.iter().filter(is_mended).count() {
            0 => ", nothing to mend".to_owned(),
            count => format!(", {count} mended"),
        }
    };
    let mended = repairs.map(mended).unwrap_or_default();
    invocation.note(match damage {
        0 => format!("{tasks} and {runs}: no damage{mended}"),
        count => format!("{tasks} and {runs}: {count} damaged{mended}"),
    });
    if damage > 0 && repairs.is_none() {
        invocation.note(format!("to put right what can be: {ORCHESTRATE} fsck --repair"));
    }
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats a finding as one line of text.
pub(super) fn line(finding: &Finding, calm: Calm) -> String {
    let word = if finding.kind.is_damage(calm) { "damage" } else { "note" };
    let Finding { kind, about, message } = finding;
    format!("{word}: {} `{about}`: {message}", kind.name())
}

/// Returns a finding as JSON.
pub(super) fn shown(finding: &Finding, calm: Calm) -> Value {
    json!({
        "kind": finding.kind.name(),
        "damage": finding.kind.is_damage(calm),
        "about": finding.about,
        "message": finding.message,
    })
}
