//! Messages and hints for failures of operations on runs.

use std::path::Path;

use super::failure::Failure;
use super::open::{self, Cure, OpenError};
use crate::base::ids::RunId;
use crate::base::program_name::ORCHESTRATE;
use crate::store::lock::LockError;
use crate::store::{DEFINITION, LoadError, StoreError};

/// The hint for a disk error that occurred before the run existed.
pub(crate) const RUN_AGAIN: &str = "run it again";

/// Returns the failure for a disk error of an existing run.
pub(crate) fn disk_failure(error: &StoreError, id: &RunId) -> Failure {
    with_disk_hint(Failure::failed(error), &error.source, &format!("`{ORCHESTRATE} resume {id}`"))
}

/// Adds a hint for known kinds of disk errors. `again` is the action that follows the repair.
pub(crate) fn with_disk_hint(failure: Failure, error: &std::io::Error, again: &str) -> Failure {
    use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded => {
            failure.hint(format!("the disk is full: make room, then {again}"))
        }
        ReadOnlyFilesystem | PermissionDenied if again == RUN_AGAIN => {
            failure.hint("the workspace must be writable, or give `--state-dir`")
        }
        // An existing run cannot be moved to another directory.
        ReadOnlyFilesystem | PermissionDenied => failure.hint("its directory must be writable"),
        _ => failure,
    }
}

/// Returns the failure for an unreadable run: the reason, and a hint.
pub(crate) fn cannot_read(id: &RunId, error: &OpenError) -> Failure {
    if error.is_forbidden() {
        let message = format!("run {id} cannot be read by this user: {error}");
        return Failure::failed(message).hint("its owner can");
    }
    let failure = Failure::damaged(format!("run {id} cannot be read: {error}"));
    failure.hint(match error.cure() {
        Cure::Restart => begins_anew(id),
        Cure::Remove => only_removed(),
        Cure::Repair => format!(
            "`{ORCHESTRATE} fsck --repair` mends it; `{ORCHESTRATE} resume {id} --repair` mends it \
             and goes on with it"
        ),
    })
}

/// Returns the hint for a run that cannot be repaired but can be restarted.
pub(crate) fn begins_anew(id: &RunId) -> String {
    format!(
        "put the file back from a copy; without one, `{ORCHESTRATE} resume {id} --force-restart` \
         begins anew, and `{ORCHESTRATE} clean --stopped` removes this run by its age"
    )
}

/// Returns the hint for a run that can be neither repaired nor restarted.
pub(crate) fn only_removed() -> String {
    format!(
        "start again with `{ORCHESTRATE} run WORKFLOW`; `{ORCHESTRATE} clean --stopped` removes \
         this run by its age"
    )
}

/// Returns the failure for a run's lock that cannot be taken.
pub(crate) fn cannot_lock(error: LockError, root: &Path, id: &RunId) -> Failure {
    match error {
        LockError::Held { owner } => {
            Failure::owned(format!("run {id} is being driven already: {owner} owns it"))
                .hint(format!("`{ORCHESTRATE} status {id}` shows how far it is"))
        }
        LockError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = format!("run {id} is damaged: its `{DEFINITION}` is missing");
            let nothing = open::has_nothing(root);
            Failure::damaged(message).hint(if nothing { only_removed() } else { begins_anew(id) })
        }
        LockError::Io(error) => {
            let message = format!("cannot lock `{}`: {error}", root.display());
            with_disk_hint(Failure::failed(message), &error, "try again")
        }
    }
}

pub(crate) fn damaged(error: LoadError, id: &RunId) -> Failure {
    match error {
        LoadError::Damaged { .. } => Failure::damaged(error).hint(
            "`--repair` rebuilds it from the journal or a backup; `--force-restart` begins anew",
        ),
        LoadError::Disk(error) => disk_failure(&error, id),
    }
}

/// Returns the failure for a run that cannot be repaired.
pub(crate) fn beyond_repair(error: LoadError, id: &RunId) -> Failure {
    match error {
        LoadError::Damaged { .. } => Failure::damaged(error).hint(begins_anew(id)),
        LoadError::Disk(error) => disk_failure(&error, id),
    }
}

/// Returns the failure for a run that cannot be opened.
pub(crate) fn cannot_open(error: OpenError, id: &RunId) -> Failure {
    match error {
        OpenError::State(error) => damaged(error, id),
        error => cannot_read(id, &error),
    }
}
