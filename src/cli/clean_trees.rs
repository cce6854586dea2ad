//! The part of `clean` that removes the worktrees of beads: those whose work is merged into their
//! base, and those that never had any work. It prints the reason for each worktree that it removes
//! or keeps.

use std::collections::HashMap;

use serde_json::json;

use super::invocation::Invocation;
use super::output::put;
use super::worktree;
use crate::base::ids::RunId;
use crate::base::time::Time;
use crate::disk::fs::OnVolume as _;
use crate::run::failure::Failure;
use crate::worktree::{Fate, Trees, View};

/// Options for a cleanup of worktrees.
pub(super) struct Cleaning<'a> {
    /// Worktrees that were touched after this time are kept.
    pub before: Time,
    /// Bead ids that an unfinished run uses, each with one such run.
    pub in_use: HashMap<String, RunId>,
    pub dry_run: bool,
    pub invocation: &'a Invocation,
}

impl Cleaning<'_> {
    /// Removes old worktrees that hold no unmerged work, and returns their number.
    pub(super) fn clean(&self) -> Result<usize, Failure> {
        // Without a repository, or without worktrees of ours in it, there is nothing to do.
        let Ok(trees) = Trees::open(&self.invocation.workspace) else { return Ok(0) };
        if !trees.repo.home().is_present() && !trees.dir().is_present() {
            return Ok(0);
        }
        let mut views = trees.views().map_err(|error| worktree::refused(&error))?;
        let mut gone = 0;
        for view in &mut views {
            self.look_for_holder(&trees, view)?;
            let mut fate = self.judge(view);
            if matches!(fate, Fate::Goes(_)) && !self.dry_run {
                // The worktree has changed since it was checked, or git refuses. Continue with the
                // others.
                if let Err(error) = trees.remove(&view.id, None) {
                    fate = Fate::Stays(error.to_string());
                }
            }
            gone += usize::from(matches!(fate, Fate::Goes(_)));
            self.tell(view, &fate)?;
        }
        Ok(gone)
    }

    /// Checks whether a holder on another machine is alive, if that holder is the only reason to
    /// keep a worktree.
    fn look_for_holder(&self, trees: &Trees, view: &mut View) -> Result<(), Failure> {
        let Some(holder) = view.holder.take_if(|_| view.holder_lives) else { return Ok(()) };
        let waits = matches!(self.judge(view), Fate::Goes(_));
        view.holder_lives =
            !waits || trees.relieve(&view.id).map_err(|error| worktree::refused(&error))?.is_some();
        view.holder = Some(holder);
        Ok(())
    }

    fn judge(&self, view: &View) -> Fate {
        let run = self.in_use.get(view.id.as_str());
        match (view.fate(), run, view.touched_at) {
            (Fate::Stays(reason), ..) => Fate::Stays(reason),
            (_, Some(run), _) => Fate::Stays(format!("run {run} is not over")),
            (_, _, Some(at)) if at >= self.before => {
                Fate::Stays(format!("it was last touched at {}", at.to_second()))
            }
            (goes, ..) => goes,
        }
    }

    fn tell(&self, view: &View, fate: &Fate) -> Result<(), Failure> {
        let id = &view.id;
        let (goes, reason) = match fate {
            Fate::Goes(reason) => (true, reason),
            Fate::Stays(reason) => (false, reason),
        };
        if self.invocation.common.json {
            let line = json!({
                "schema": "clean/v1", "kind": "worktree", "id": id, "goes": goes,
                "reason": reason, "ignored": view.ignored, "removed": goes && !self.dry_run,
            });
            return put(&format!("{line}\n"));
        }
        if !goes {
            return put(&format!("keeps worktree {id}: {reason}\n"));
        }
        let verb = if self.dry_run { "would remove" } else { "removed" };
        let ignored = match view.ignored.as_slice() {
            [] => String::new(),
            ignored => format!("; ignored files go with it: {}", ignored.join(", ")),
        };
        put(&format!("{verb} worktree {id} and its branch: {reason}{ignored}\n"))
    }
}
