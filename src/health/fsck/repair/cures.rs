//! Instructions for problems that cannot be repaired automatically.

use std::path::Path;

use super::{Kind, Outcome, Report};
use crate::base::program_name::ORCHESTRATE;
use crate::queue::VolumeFault;
use crate::run::open;

/// Returns the user's instructions for a finding without a safe repair.
pub(super) fn for_people(kind: Kind) -> Option<Outcome> {
    let told = match kind {
        Kind::Unreadable => "whoever may read it can look: its owner, or root",
        Kind::EndedAgain | Kind::AttemptBack => {
            "nothing can tell which is right: read `orchestrate events` of the run, and run it \
             again if in doubt"
        }
        Kind::WrongEnd => {
            "the journal counts: `orchestrate retry` takes the run up again if it is to go on"
        }
        Kind::EndedTwice => {
            "nothing can tell which end counts: compare the statuses, and move the other file \
             away with its own"
        }
        Kind::Restless => {
            "start a worker or a coordinator, or take it out by `orchestrate queue drop`"
        }
        Kind::StrayTask => {
            "it is executed for nothing: `orchestrate queue drop` takes it out, if nobody wants it"
        }
        Kind::NoStatus | Kind::WrongStatus => {
            "its task is not whole either: put it back from a copy, or let `orchestrate clean` \
             remove its batch"
        }
        Kind::Unsealed => {
            "its result counts, only what it was to do is lost: put it back from a copy, or let \
             `orchestrate clean` remove it with its run"
        }
        _ => return None,
    };
    Some(Outcome::ForPeople(told.to_owned()))
}

/// Returns the instructions for a run in `root` that cannot be opened.
pub(super) fn unopened(root: &Path, id: &str) -> Outcome {
    Outcome::ForPeople(match open::has_nothing(root) {
        true => format!(
            "nothing tells which workflow it is of: put its files back from a copy; without one, \
             `{ORCHESTRATE} clean --stopped` removes this run by its age"
        ),
        false => format!("put the file back from a copy; without one, {}", begins_anew(id)),
    })
}

/// Returns the instructions for a run that has lost too much data.
pub(super) fn lost(id: &str) -> Outcome {
    let anew = begins_anew(id);
    Outcome::ForPeople(format!("neither the journal nor a backup tells the whole run: {anew}"))
}

/// Returns the instructions for a result that only the journal confirms.
pub(super) fn unbacked(id: &str) -> Outcome {
    Outcome::ForPeople(format!(
        "the journal counts, but nobody can prove it: compare it with the status, and \
         `{ORCHESTRATE} retry {id} --from STEP` if in doubt"
    ))
}

fn begins_anew(id: &str) -> String {
    format!(
        "`{ORCHESTRATE} resume {id} --force-restart` begins anew, and `{ORCHESTRATE} clean \
         --stopped` removes this run by its age"
    )
}

/// Returns the reason why a queue must not get a new name, if there is one.
pub(super) fn unnamed(fault: &VolumeFault, report: &Report) -> Option<String> {
    let mut living: Vec<_> = report.tree.living.iter().map(String::as_str).collect();
    living.sort_unstable();
    match fault {
        VolumeFault::Foreign { .. } => Some("another version wrote it".into()),
        _ if !living.is_empty() => Some(format!("{} may live and know it", living.join(", "))),
        VolumeFault::Gone { trace, .. } if !trace.starts_with(".orchestrate") => {
            Some("nothing else of the queue is there either: its volume may not be mounted".into())
        }
        _ => None,
    }
}
