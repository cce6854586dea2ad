//! What is known of a worktree from its beginning: the base that it was made from.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{TreeError, Trees};
use crate::disk::{self, RealDisk};
use crate::ids::BeadId;
use crate::time::{Clock, SystemClock, Time};

/// A worktree's record. It outlives the worktree's directory, and goes when its branch goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub schema: String,
    pub id: BeadId,
    pub path: PathBuf,
    /// The branch that the work begins at and is merged into.
    pub base_branch: String,
    pub base_commit: String,
    pub created_at: Time,
    /// False until it was whole once: before that, nobody was told of it.
    pub ready: bool,
    /// The ref that it was made of, where it was saved before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

const SCHEMA: &str = "worktree/v1";
/// The file that it is in.
pub const RECORD: &str = "record.json";

impl Trees {
    /// Puts down where a worktree begins, before there is one.
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

    /// The record of a worktree. One that is damaged is told, not taken for none.
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
            .and_then(|()| disk::replace(&RealDisk::default(), &path, &bytes))
            .map_err(|error| TreeError::io("write", &path, error))
    }

    /// Forgets a worktree whose branch is gone.
    pub(super) fn forget(&self, id: &BeadId) -> Result<(), TreeError> {
        let home = self.home(id);
        match fs::remove_dir_all(&home) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(TreeError::io("remove", &home, error))
            }
            _ => Ok(()),
        }
    }
}
