//! Checks if a workspace is suitable for a fleet, by inspection and with tests by two processes.
//!
//! The queue consists of renames in a directory tree, so a volume is suitable if a rename has one
//! winner, is soon visible to others, and is durable. [`place`] inspects the workspace and
//! [`mount`] the mount of its volume; [`probe`] runs tests with a second process in a scratch
//! directory. [`Times`] derives the fleet's settings from them.
//!
//! **Invariant:** all files that this module creates lie under `.orchestrate/doctor/` and are
//! removed afterwards.

mod clock;
mod judge;
pub(crate) mod mount;
mod peer;
pub(crate) mod place;
pub(crate) mod probe;
mod programs;
mod scratch;
mod talk;
pub(crate) mod times;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::attempt::exec_env::Environment;
use crate::exec::{self, Stop};
use crate::settings::Config;
use mount::Mount;
pub(crate) use peer::serve;
use probe::Probe;
use scratch::Scratch;
pub(crate) use times::Times;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    /// It works, but not as well as it could, or not for everything.
    Warning,
    /// A fleet cannot rely on this.
    Wrong,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub name: String,
    pub verdict: Verdict,
    pub text: String,
    pub cure: Option<String>,
}

impl Finding {
    fn ok(name: &str, text: impl Into<String>) -> Finding {
        Finding { name: name.to_owned(), verdict: Verdict::Ok, text: text.into(), cure: None }
    }

    fn warning(name: &str, text: impl Into<String>, cure: impl Into<String>) -> Finding {
        let cure = Some(cure.into());
        Finding { verdict: Verdict::Warning, cure, ..Finding::ok(name, text) }
    }

    fn wrong(name: &str, text: impl Into<String>, cure: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Wrong, ..Finding::warning(name, text, cure) }
    }
}

/// All findings.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub fit: bool,
    pub version: &'static str,
    pub workspace: PathBuf,
    pub volume: Option<Mount>,
    pub findings: Vec<Finding>,
    /// Measurements of two processes, if they were requested.
    pub probe: Option<Probe>,
    pub times: Times,
}

/// The subject of an examination, and its depth.
pub(crate) struct Patient {
    pub workspace: PathBuf,
    pub environment: Environment,
    pub config: Config,
    /// This program, to be started again as the second process.
    pub program: PathBuf,
    pub depth: Depth,
}

/// Depth of an examination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Inspection only.
    Look,
    /// Also tests with a second process on this machine.
    Volume,
    /// Also tests with a second process on another machine; the user starts it there.
    Remote,
}

/// Shows the user the directory that the process on the other machine needs as its argument.
pub(crate) type Invite<'a> = &'a (dyn Fn(&Path) + Sync);

/// Examines a workspace.
pub(crate) fn examine(patient: &Patient, stop: &Stop, invite: Invite) -> Report {
    let (workspace, begun) = (&patient.workspace, clock::Begun::now());
    let volume = Mount::of(workspace).ok();
    let scratch = Scratch::make(workspace);
    let mut findings = look(patient, volume.as_ref(), scratch.as_ref().err());
    let written = scratch.as_ref().ok().map(|scratch| scratch.dir.join("written"));
    findings.push(clock::look(begun, workspace, written.as_deref()));
    findings.extend(programs::defaults(&patient.config));
    findings.extend(programs::look(&patient.config, &patient.environment, workspace, stop));
    let network = volume.as_ref().is_none_or(|mount| mount.shared);
    let mut probe = None;
    if let Ok(scratch) = scratch {
        if patient.depth != Depth::Look {
            let meeting = probe::Meeting { patient, scratch: &scratch, stop, invite, network };
            let (measured, found) = probe::measure(&meeting);
            findings.extend(found);
            probe = Some(measured);
        }
        findings.extend(scratch.leftovers());
    }
    let lag = probe.as_ref().map_or(Duration::ZERO, Probe::lag);
    let report = Report::of(workspace, findings);
    Report { volume, probe, times: Times::choose(network, lag), ..report }
}

/// Returns the findings of an inspection.
fn look(
    patient: &Patient,
    volume: Option<&Mount>,
    not_writable: Option<&io::Error>,
) -> Vec<Finding> {
    let workspace = &patient.workspace;
    let mut findings = vec![place::writable(workspace, not_writable), place::one_volume(workspace)];
    findings.extend(place::queue(workspace));
    match volume {
        Some(mount) => findings.extend(mount.judge()),
        None => findings.push(Finding::warning(
            "volume",
            "it is not known how the volume is mounted: `/proc/self/mountinfo` does not say",
            "mount `/proc`",
        )),
    }
    findings.extend(place::room(workspace));
    findings.extend(place::open_to_all(workspace, patient.config.queue.world_writable));
    findings.extend(place::permissions(workspace));
    findings.push(place::notices());
    findings.push(place::sandbox(exec::powers()));
    findings
}

impl Report {
    fn of(workspace: &Path, findings: Vec<Finding>) -> Report {
        Report {
            fit: findings.iter().all(|finding| finding.verdict != Verdict::Wrong),
            version: env!("CARGO_PKG_VERSION"),
            workspace: workspace.to_owned(),
            volume: None,
            findings,
            probe: None,
            times: Times::choose(true, Duration::ZERO),
        }
    }

    /// Adds an error that was found elsewhere, before all other findings.
    pub(crate) fn add_wrong(&mut self, name: &str, text: &str, cure: &str) {
        self.findings.insert(0, Finding::wrong(name, text, cure));
        self.fit = false;
    }

    /// Returns the report for a volume that did not respond.
    pub(crate) fn of_silence(workspace: &Path, waited: Duration) -> Report {
        let text = format!("the volume did not answer within {} s", waited.as_secs());
        let cure = "look whether its server is there, then start this again";
        Report::of(workspace, vec![Finding::wrong("volume", text, cure)])
    }
}
