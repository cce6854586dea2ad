//! The persistent record of a worktree: the base that it was created from.

use std::io::ErrorKind;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{KERNEL_LOCK, TreeError, Trees};
use crate::base::ids::BeadId;
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk;
use crate::disk::fs;

/// A worktree's record. It outlives the worktree's directory and is removed with its branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub schema: String,
    pub id: BeadId,
    pub path: PathBuf,
    /// The branch that the work starts from and is merged into.
    pub base_branch: String,
    pub base_commit: String,
    pub created_at: Time,
    /// False until the worktree was complete once: before that, no caller has received it.
    pub ready: bool,
    /// The saved ref that it was restored from, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

const SCHEMA: &str = "worktree/v1";
/// Name of the record file.
pub(super) const RECORD: &str = "record.json";

impl Trees {
    /// Writes the record of a worktree that does not exist yet, with `ready` unset.
    pub(super) fn begin_record(
        &self,
        id: &BeadId,
        base_branch: String,
        base_commit: String,
        from: Option<String>,
    ) -> Result<(), TreeError> {
        self.write_record(&Record {
            schema: SCHEMA.to_owned(),
            id: id.clone(),
            path: self.path(id),
            base_branch,
            base_commit,
            created_at: SystemClock.now(),
            ready: false,
            from,
        })
    }

    fn record_path(&self, id: &BeadId) -> PathBuf {
        self.home(id).join(RECORD)
    }

    /// Reads the record of a worktree. A damaged record is an error, not `None`.
    pub(super) fn record(&self, id: &BeadId) -> Result<Option<Record>, TreeError> {
        let path = self.record_path(id);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                let what = format!("the record `{}` is damaged: {error}", path.display());
                TreeError::found(what, "remove it; the base is then found anew")
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(TreeError::io("read", &path, error)),
        }
    }

    pub(super) fn write_record(&self, record: &Record) -> Result<(), TreeError> {
        let path = self.record_path(&record.id);
        let home = self.home(&record.id);
        let bytes = serde_json::to_vec_pretty(record).unwrap_or_default();
        fs::create_dir_all(&home)
            .and_then(|()| disk::replace(&*disk::machine(), &path, &bytes))
            .map_err(|error| TreeError::io("write", &path, error))
    }

    /// Removes the metadata of a worktree whose branch is gone. Its holder removes the lease.
    pub(super) fn forget(&self, id: &BeadId) -> Result<(), TreeError> {
        for file in [self.home(id).join(KERNEL_LOCK), self.record_path(id)] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(TreeError::io("remove", &file, error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
