//! Paths of the queue's files and directories in a workspace.

use std::path::{Path, PathBuf};

use super::End;

/// The directory that belongs to orchestrate.
pub(super) const OWN: &str = ".orchestrate";

/// The directories of a queue. All of them must be on one volume, because a rename cannot cross
/// volumes.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub root: PathBuf,
    pub inbox: String,
    pub processed: String,
    pub failed: String,
}

impl Layout {
    pub(crate) fn new(root: &Path) -> Self {
        Layout {
            root: root.to_owned(),
            inbox: "inbox".into(),
            processed: "processed".into(),
            failed: "failed".into(),
        }
    }

    fn own(&self, name: &str) -> PathBuf {
        self.root.join(OWN).join(name)
    }

    pub(crate) fn inbox(&self, agent: &str) -> PathBuf {
        self.root.join(&self.inbox).join(agent)
    }

    pub(crate) fn inboxes(&self) -> PathBuf {
        self.root.join(&self.inbox)
    }

    pub(crate) fn claimed(&self, agent: &str) -> PathBuf {
        self.own("claimed").join(agent)
    }

    pub(crate) fn all_claimed(&self) -> PathBuf {
        self.own("claimed")
    }

    pub(crate) fn end(&self, end: End, batch: &str) -> PathBuf {
        self.ends(end).join(batch)
    }

    /// Directory that contains the batches of tasks which ended as `end`.
    pub(crate) fn ends(&self, end: End) -> PathBuf {
        match end {
            End::Processed => self.root.join(&self.processed),
            End::Failed => self.root.join(&self.failed),
            End::Cancelled => self.own("cancelled"),
        }
    }

    /// File that identifies the volume.
    pub(crate) fn fleet_file(&self) -> PathBuf {
        self.own("fleet.json")
    }

    /// Logs of tasks that belong to no run.
    pub(crate) fn results(&self) -> PathBuf {
        self.own("results")
    }

    /// Statuses of fenced attempts: evidence that is never applied.
    pub(crate) fn evidence(&self) -> PathBuf {
        self.own("evidence")
    }

    /// Misplaced files that fit nowhere else.
    pub(crate) fn lost(&self) -> PathBuf {
        self.own("lost")
    }

    /// Runs, each in its own directory.
    pub(crate) fn runs(&self) -> PathBuf {
        self.own("runs")
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.own("tmp")
    }

    pub(crate) fn beats(&self) -> PathBuf {
        self.own("beats")
    }

    pub(crate) fn workers(&self) -> PathBuf {
        self.own("workers")
    }

    /// Markers of members that are asked to finish their work and exit.
    pub(crate) fn drain(&self) -> PathBuf {
        self.own("drain")
    }

    pub(crate) fn cancel(&self) -> PathBuf {
        self.own("cancel")
    }

    pub(crate) fn pause(&self) -> PathBuf {
        self.own("pause")
    }

    /// The checkout token of runs that change the checkout: one file, whose name states the holder.
    pub(crate) fn checkout(&self) -> PathBuf {
        self.own("checkout")
    }

    pub(crate) fn intake(&self) -> PathBuf {
        self.own("intake")
    }
}
