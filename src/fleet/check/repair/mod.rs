//! Putting right what was found: by the moves of the queue's own protocol, and by what journals
//! say.
//!
//! Everything is looked at, what has a safe cure is mended, and everything is looked at again:
//! what was mended may show what it hid. What would disturb somebody who lives is left, and so is
//! what only a person can decide; both are told, with what to do.
//!
//! **Invariant:** nothing is removed but marks of the dead. What fits nowhere goes to
//! `.orchestrate/lost/`, and a state that is replaced is kept beside the new one.
//!
//! **Invariant:** every cure may be cut off at any point and be done again, by anybody.

mod cures;
mod runs;
mod tasks;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Calm, Finding, Kind, Report, State, check};
use crate::disk;
use crate::fleet::member::{Undertaker, new_incarnation};
use crate::host;
use crate::queue::{FsQueue, Layout, fault_of, name_anew};
use crate::workspace::Workspace;

/// How often everything is looked at again before whoever disturbs us is left alone.
const PASSES: usize = 6;

/// What became of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was done.
    Mended(String),
    /// Somebody lives who would be disturbed: who, and what to do.
    Refused(String),
    /// There is no safe cure: what a person must do.
    ForPeople(String),
}

impl Outcome {
    /// How people and programs call it.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Mended(_) => "mended",
            Outcome::Refused(_) => "refused",
            Outcome::ForPeople(_) => "for-people",
        }
    }

    pub fn told(&self) -> &str {
        let (Outcome::Mended(told) | Outcome::Refused(told) | Outcome::ForPeople(told)) = self;
        told
    }
}

/// A finding, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    pub finding: Finding,
    pub outcome: Outcome,
}

/// What is needed to mend a workspace.
pub struct Mender<'a> {
    pub workspace: &'a Workspace,
    pub state_dir: &'a Path,
    pub calm: Calm,
    /// How long a member may be silent before it is dead.
    pub lease: Duration,
    /// Opens the queue, where there is one.
    pub open: &'a dyn Fn() -> io::Result<Option<Arc<FsQueue>>>,
    /// Told to whoever waits.
    pub say: &'a dyn Fn(String),
}

/// One look at everything, and what is needed to mend what it found.
struct Pass<'a> {
    mender: &'a Mender<'a>,
    report: &'a Report,
    queue: Option<Arc<FsQueue>>,
}

/// A cure that has been tried: nothing, where the finding is gone by itself.
type Cured = io::Result<Option<Outcome>>;

impl Mender<'_> {
    /// Mends what can be. Gives all that was done or could not be, and what is left.
    pub fn mend(&self) -> io::Result<(Vec<Repair>, Report)> {
        let look = || check(self.workspace, self.state_dir, self.calm);
        let (mut done, mut report) = (Vec::new(), look()?);
        for _ in 0..PASSES {
            let repairs = self.pass(&report, &done)?;
            let (mended, left): (Vec<_>, Vec<_>) = repairs
                .into_iter()
                .partition(|repair| matches!(repair.outcome, Outcome::Mended(_)));
            let is_over = mended.is_empty();
            done.extend(mended);
            if is_over {
                done.extend(left);
                break;
            }
            report = look()?;
        }
        Ok((done, report))
    }

    /// Mends what was found. What was mended `before` and is found again has no cure here.
    fn pass(&self, report: &Report, before: &[Repair]) -> io::Result<Vec<Repair>> {
        // Without a name no queue can be opened, and nothing else of it be put right.
        let nameless = report.findings.iter().find(|finding| finding.kind == Kind::Volume);
        if let Some(finding) = nameless {
            let outcome = self.name_queue(report)?;
            let repair = Repair { finding: finding.clone(), outcome };
            return Ok(vec![repair]);
        }
        let queue = if report.findings.is_empty() { None } else { (self.open)()? };
        let pass = Pass { mender: self, report, queue };
        pass.bury()?;
        let mut repairs: Vec<Repair> = Vec::new();
        for finding in &report.findings {
            // A run's files are rebuilt once, however much was wrong with them.
            let again = |repair: &Repair| {
                finding.kind == Kind::StaleState && repair.finding.about == finding.about
            };
            if repairs.iter().any(again) {
                continue;
            }
            if before.iter().any(|repair| repair.finding == *finding) {
                let told = "it was mended, and is so again: look at what lies there".to_owned();
                let outcome = Outcome::ForPeople(told);
                repairs.push(Repair { finding: finding.clone(), outcome });
                continue;
            }
            let outcome = match pass.cure(finding) {
                Ok(Some(outcome)) => outcome,
                Ok(None) => continue,
                // One that cannot be mended must not keep the others from it.
                Err(error) => Outcome::ForPeople(format!("it could not be mended: {error}")),
            };
            repairs.push(Repair { finding: finding.clone(), outcome });
        }
        // What failed halfway must not be found as something that the dead left.
        if let Some(queue) = &pass.queue {
            queue.sweep_own_tmp()?;
        }
        Ok(repairs)
    }

    fn root(&self) -> &Path {
        self.workspace.root()
    }

    /// Gives a queue a name that has lost its own.
    fn name_queue(&self, report: &Report) -> io::Result<Outcome> {
        let (disk, layout) = (disk::machine(), Layout::new(self.root()));
        let Some(fault) = fault_of(&*disk, &layout)? else {
            return Ok(Outcome::Mended("somebody has put its name back".into()));
        };
        let word = new_incarnation();
        if let Some(reason) = cures::unnamed(&fault, report) {
            return Ok(Outcome::ForPeople(format!("{reason}; {}", fault.cure(&word))));
        }
        name_anew(&*disk, &layout, &fault, &word)?;
        Ok(Outcome::Mended(format!("nobody works here, so the queue was named anew: `{word}`")))
    }
}

impl Pass<'_> {
    /// Buries the dead, whose claims go where the protocol says. Who has registered here is known
    /// to be gone at once; of others only silence can tell, which takes a lease.
    fn bury(&self) -> io::Result<()> {
        let of_dead = |finding: &&Finding| {
            matches!(finding.kind, Kind::HeldByDead | Kind::LeftMark | Kind::LeftTmp)
        };
        let (Some(queue), true) = (&self.queue, self.report.findings.iter().any(|f| of_dead(&f)))
        else {
            return Ok(());
        };
        let mut undertaker = Undertaker::new(queue.clone(), self.mender.lease);
        undertaker.look_around()?;
        let mut silent = self.held_by_dead(queue)?;
        if silent.is_empty() {
            return Ok(());
        }
        let lease = self.mender.lease;
        (self.mender.say)(format!(
            "waiting for {} s: only silence can tell that {} is gone",
            lease.as_secs_f64().ceil(),
            silent.join(", ")
        ));
        let began = host::instant();
        while !silent.is_empty() && host::since(began) < lease * 2 {
            host::nap(lease / 12);
            undertaker.look_around()?;
            silent = self.held_by_dead(queue)?;
        }
        Ok(())
    }

    /// Those who were found gone and still hold something.
    fn held_by_dead(&self, queue: &FsQueue) -> io::Result<Vec<String>> {
        let mut holders = Vec::new();
        for lying in &self.report.tree.tasks {
            if let State::Held(claim) = &lying.state
                && !self.report.tree.living.contains(&claim.worker)
                && !holders.contains(&claim.worker)
                && queue.is_held(claim)?
            {
                holders.push(claim.worker.clone());
            }
        }
        Ok(holders)
    }

    fn cure(&self, finding: &Finding) -> Cured {
        match finding.kind {
            Kind::State | Kind::StaleState | Kind::Journal => self.mend_run(finding),
            Kind::Undriven => self.drive_again(finding),
            Kind::Unopened => {
                let root = self.mender.state_dir.join(&finding.about);
                Ok(Some(cures::unopened(&root, &finding.about)))
            }
            Kind::Unbacked => Ok(Some(cures::unbacked(&finding.about))),
            kind => match &self.queue {
                None => Ok(cures::for_people(kind)),
                Some(queue) => self.mend_in_queue(queue, finding),
            },
        }
    }

    /// The file that a finding is about.
    fn path(&self, finding: &Finding) -> PathBuf {
        self.mender.root().join(&finding.about)
    }

    fn lives(&self, worker: &str) -> bool {
        self.report.tree.living.contains(worker)
    }
}
