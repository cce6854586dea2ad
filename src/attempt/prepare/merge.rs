//! Converts a merge that is owed to a gate for its review, or to the merge itself.
//!
//! **Invariant:** only what the reviewer was shown is merged: an approval is bound to the digest of
//! the diff, and void when the diff changes.

use std::time::Duration;

use super::{Prepared, Preparing, Refusal};
use crate::attempt::gates;
use crate::attempt::work::MergeWork;
use crate::base::ids::BeadId;
use crate::engine::GateRecord;
use crate::workflow::plan::{Checks, Isolation};
use crate::worktree::{Review, TreeError, Trees};

/// Maximum number of changed files that a review message lists.
const FILES: usize = 20;

impl Preparing<'_> {
    pub(super) fn merge(&mut self, review: bool, checks: &Checks) -> Result<Prepared, Refusal> {
        let nothing = |why: &str| Refusal::new(format!("there is nothing to merge: {why}"));
        let Some((bead, isolation)) = self.scope.run.bead_of(self.step) else {
            return Err(nothing("the run has no bead; start it with `--bead`"));
        };
        if isolation == Isolation::Workspace {
            return Err(nothing("the bead is worked on in the workspace"));
        }
        let text = |key: &str| bead.get(key).and_then(|value| value.as_str()).map(str::to_owned);
        let id = BeadId::parse(&text("id").unwrap_or_default()).map_err(Refusal::new)?;
        let mut checks = checks.clone();
        let (limit, _) = self.time_for(Some(checks.timeout.as_millis() as u64))?;
        checks.timeout = limit.map_or(checks.timeout, Duration::from_millis);
        let title = text("title");
        let Some(tree) = self.worktree() else { return Err(nothing("it has no worktree")) };
        let mut work = MergeWork { tree, title, approval: None, checks, attempt: self.attempt };
        if !review {
            return Ok(Prepared::Merge(work));
        }
        let tree = &work.tree;
        let diff = Trees::open(self.site.cwd()).and_then(|trees| {
            let trees = trees.patient(self.site.turns.remote, None);
            for warning in trees.bring(&id, tree.base.as_deref(), &tree.expects(), None)? {
                tracing::warn!("worktree `{id}`: {warning}");
            }
            trees.review(&id)
        });
        let diff = diff.map_err(|error| cannot(&error))?;
        // An empty diff needs no review, unless a different diff was approved.
        let nothing = diff.text.is_empty() && self.approval().is_none();
        if nothing || self.is_approved(&diff.hash) {
            work.approval = Some(diff.hash);
            return Ok(Prepared::Merge(work));
        }
        let path = gates::review(&diff.hash);
        self.leave(&path, &String::from_utf8_lossy(&diff.text))?;
        let mut message = message(&id, &diff, &self.site.root().join(path));
        if let Some(by) = self.void_approval() {
            message = format!("{by} is void: what it was for has changed since.\n{message}");
        }
        if let Some(said) = self.rejection(&diff.hash) {
            message = format!("{said}\n{message}");
        }
        let message = self.site.mask.text(&message);
        let mut shown = self.asking();
        shown.add(&diff.hash);
        let (shown, subject) = (shown.hex(), Some(diff.hash));
        let gate = GateRecord { message, shown, subject, expires_at: None, answer: None };
        Ok(Prepared::Gate(Box::new(gate)))
    }

    /// Returns true if a user has approved exactly this diff.
    fn is_approved(&self, hash: &str) -> bool {
        self.approval().is_some_and(|gate| gate.subject() == hash)
    }

    /// Returns an earlier approval.
    fn approval(&self) -> Option<&GateRecord> {
        let slot = self.scope.run.slot(&self.here);
        let gate = slot.and_then(|slot| slot.record.as_deref()?.gate.as_deref());
        gate.filter(|gate| gate.answer.as_ref().is_some_and(|said| said.approve))
    }

    /// Describes an earlier rejection, if any.
    fn rejection(&self, hash: &str) -> Option<String> {
        let slot = self.scope.run.slot(&self.here)?;
        let gate = slot.record.as_deref()?.gate.as_deref()?;
        let answer = gate.answer.as_ref().filter(|answer| !answer.approve)?;
        let by = answer.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        let changed = if gate.subject() == hash { "nothing has" } else { "it has" };
        Some(format!("It was rejected{by}: {} ({changed} changed since)", answer.comment))
    }

    /// Describes an earlier approval, which no longer applies.
    fn void_approval(&self) -> Option<String> {
        let answer = self.approval()?.answer.as_ref()?;
        Some(match &answer.by {
            None => "The approval".to_owned(),
            Some(by) => format!("The approval by {by}"),
        })
    }
}

fn cannot(error: &TreeError) -> Refusal {
    match error.cure().filter(|cure| !cure.is_empty()) {
        Some(cure) => Refusal::new(format!("{error}; {cure}")),
        None => Refusal::new(error.to_string()),
    }
}

/// Returns the question for the reviewer.
fn message(id: &BeadId, diff: &Review, path: &std::path::Path) -> String {
    let text = String::from_utf8_lossy(&diff.text);
    let files = text.lines().filter_map(|line| line.strip_prefix("diff --git a/"));
    let files: Vec<&str> = files.map(|pair| pair.split(" b/").next().unwrap_or(pair)).collect();
    let mut list: String = files.iter().take(FILES).map(|file| format!("\n  {file}")).collect();
    if files.len() > FILES {
        list.push_str(&format!("\n  and {} more", files.len() - FILES));
    }
    let (count, path) = (files.len(), path.display());
    let word = if count == 1 { "file" } else { "files" };
    format!(
        "Merge `coven/{id}`? It changes {count} {word}:{list}\nThe diff: {path}\n\
         or `orchestrate worktree diff {id}`"
    )
}
