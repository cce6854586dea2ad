//! Is this workspace fit for a fleet? What can be read off the machine, and what two processes
//! find out by trying.
//!
//! The queue is renames in a directory tree, so a volume is fit if a rename has one winner, is
//! soon seen by others, and stays done. [`place`] looks at the workspace and [`mount`] at how its
//! volume is mounted; [`probe`] meets a second process in a scratch directory and tries it out.
//! [`Times`] is what follows for the fleet.
//!
//! **Invariant:** all that is made lies under `.orchestrate/doctor/` and is gone afterwards.

mod clock;
mod judge;
pub mod mount;
mod peer;
pub mod place;
pub mod probe;
mod programs;
mod scratch;
mod talk;
pub mod times;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::exec::{self, Stop};
use crate::fleet::Config;
use crate::fleet::site::Environment;
use mount::Mount;
pub use peer::serve;
use probe::Probe;
use scratch::Scratch;
pub use times::Times;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// It works, but not as well as it could, or not for everything.
    Warning,
    /// A fleet cannot rely on this.
    Wrong,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
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

/// All that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub fit: bool,
    pub version: &'static str,
    pub workspace: PathBuf,
    pub volume: Option<Mount>,
    pub findings: Vec<Finding>,
    /// What two processes measured, where they were asked to.
    pub probe: Option<Probe>,
    pub times: Times,
}

/// What is examined, and how far.
pub struct Patient {
    pub workspace: PathBuf,
    pub environment: Environment,
    pub config: Config,
    /// This program, to be started once more as the second process.
    pub program: PathBuf,
    pub depth: Depth,
}

/// How far an examination goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// What can be seen by looking.
    Look,
    /// What a second process on this machine finds out.
    Volume,
    /// What a second process on another machine finds out; somebody starts it there.
    Remote,
}

/// What a person should do while the examination goes on: which directory another machine's
/// process must be given.
pub type Invite<'a> = &'a (dyn Fn(&Path) + Sync);

/// Examines a workspace.
pub fn examine(patient: &Patient, stop: &Stop, invite: Invite) -> Report {
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

/// What can be seen by looking.
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

    /// Adds something that was found wrong elsewhere, before all others.
    pub fn add_wrong(&mut self, name: &str, text: &str, cure: &str) {
        self.findings.insert(0, Finding::wrong(name, text, cure));
        self.fit = false;
    }

    /// Of a volume that did not answer.
    pub fn of_silence(workspace: &Path, waited: Duration) -> Report {
        let text = format!("the volume did not answer within {} s", waited.as_secs());
        let cure = "look whether its server is there, then start this again";
        Report::of(workspace, vec![Finding::wrong("volume", text, cure)])
    }
}
