//! Repairs findings with the moves of the queue's own protocol and with the content of journals.
//!
//! Each pass checks everything, repairs the findings that have a safe repair, and checks again: a
//! repair may reveal another finding. Findings whose repair would disturb a live process, and
//! findings that only a user can decide, are left and reported with instructions.
//!
//! **Invariant:** only leftovers of dead processes are removed. A file that fits nowhere goes to
//! `.orchestrate/lost/`, and a replaced state is kept next to the new one.
//!
//! **Invariant:** every repair may be interrupted at any point and repeated by any process.

mod cures;
mod runs;
mod tasks;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Calm, Finding, Kind, Report, State, check};
use crate::base::host;
use crate::base::process::new_incarnation;
use crate::disk;
use crate::fleet::member::Undertaker;
use crate::queue::{Layout, Queue, fault_of, name_anew};
use crate::workspace::Workspace;

/// Maximum number of passes, in case another process keeps changing the workspace.
const PASSES: usize = 6;

/// Result of the repair of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was repaired: the action.
    Mended(String),
    /// The repair would disturb a live process: the process, and the instructions.
    Refused(String),
    /// There is no safe repair: the user's instructions.
    ForPeople(String),
}

impl Outcome {
    /// Returns its name, for users and programs.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Outcome::Mended(_) => "mended",
            Outcome::Refused(_) => "refused",
            Outcome::ForPeople(_) => "for-people",
        }
    }

    pub(crate) fn told(&self) -> &str {
        let (Outcome::Mended(told) | Outcome::Refused(told) | Outcome::ForPeople(told)) = self;
        told
    }
}

/// A finding and the result of its repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    pub finding: Finding,
    pub outcome: Outcome,
}

/// Inputs of a repair.
pub(crate) struct Mender<'a> {
    pub workspace: &'a Workspace,
    pub state_dir: &'a Path,
    pub calm: Calm,
    /// Time without a heartbeat after which a member is dead.
    pub lease: Duration,
    /// Opens the queue, if there is one.
    pub open: &'a dyn Fn() -> io::Result<Option<Arc<Queue>>>,
    /// Reports progress to the waiting user.
    pub say: &'a dyn Fn(String),
}

/// One pass: the result of a check, and the means to repair it.
struct Pass<'a> {
    mender: &'a Mender<'a>,
    report: &'a Report,
    queue: Option<Arc<Queue>>,
}

/// Result of an attempted repair: `None` if the finding no longer exists.
type Cured = io::Result<Option<Outcome>>;

impl Mender<'_> {
    /// Repairs everything that has a safe repair. Returns all repairs, including failed ones, and
    /// the final report.
    pub(crate) fn mend(&self) -> io::Result<(Vec<Repair>, Report)> {
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

    /// Repairs the findings of one check. A finding that was repaired `before` and recurs is left
    /// to the user.
    fn pass(&self, report: &Report, before: &[Repair]) -> io::Result<Vec<Repair>> {
        // A queue without a name cannot be opened, so nothing else in it can be repaired.
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
            // Rebuild a run's files once, however many findings they have.
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
                // A failed repair must not prevent the others.
                Err(error) => Outcome::ForPeople(format!("it could not be mended: {error}")),
            };
            repairs.push(Repair { finding: finding.clone(), outcome });
        }
        // A partial repair must not be found as a leftover of a dead process.
        if let Some(queue) = &pass.queue {
            queue.sweep_own_tmp()?;
        }
        Ok(repairs)
    }

    fn root(&self) -> &Path {
        self.workspace.root()
    }

    /// Gives a new name to a queue that has lost its own.
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
    /// Ends or puts back the claims of dead processes, as the protocol requires. A process that
    /// registered on this machine is known to be dead at once; for others, it takes a lease without
    /// heartbeats.
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

    /// Returns the processes that were found dead and still hold a claim.
    fn held_by_dead(&self, queue: &Queue) -> io::Result<Vec<String>> {
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

    /// Returns the path of the file that a finding is about.
    fn path(&self, finding: &Finding) -> PathBuf {
        self.mender.root().join(&finding.about)
    }

    fn lives(&self, worker: &str) -> bool {
        self.report.tree.living.contains(worker)
    }
}
