//! Repairs files of the queue: each is moved to its proper place, or aside.

use std::cmp::Reverse;
use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::super::tree::{Lying, State, wrong_status};
use super::{Cured, Finding, Kind, Outcome, Pass, cures};
use crate::attempt::documents;
use crate::base::ids::RunId;
use crate::disk;
use crate::engine::{Event, TaskRef};
use crate::queue::{Claim, ClaimName, End, Ending, Judged, Queue, TaskId, Turn};
use crate::store::History;

impl Pass<'_> {
    pub(super) fn mend_in_queue(&self, queue: &Queue, finding: &Finding) -> Cured {
        match finding.kind {
            Kind::BadName => self.put_aside(queue, finding),
            Kind::TwoPlaces | Kind::EndedTwice => self.keep_one(queue, finding),
            Kind::Unsealed | Kind::Misplaced | Kind::AttemptBack => self.replace(queue, finding),
            Kind::NoStatus | Kind::WrongStatus => self.give_status(queue, finding),
            Kind::HeldByDead => self.buried(queue, finding),
            Kind::LeftTmp => self.put_aside(queue, finding),
            Kind::StrayStatus => self.keep_stray(queue, finding),
            Kind::TwoTurns => self.drop_turn(queue, finding),
            Kind::LeftMark => self.drop_mark(queue, finding),
            kind => Ok(cures::for_people(kind)),
        }
    }

    fn lying_at(&self, path: &Path) -> Option<&Lying> {
        self.report.tree.tasks.iter().find(|lying| lying.path == path)
    }

    fn put_aside(&self, queue: &Queue, finding: &Finding) -> Cured {
        let path = self.path(finding);
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if file.starts_with(".nfs") || file.starts_with(".fuse_hidden") {
            let told = "the file system keeps it for whoever has it open, and removes it then";
            return Ok(Some(Outcome::ForPeople(told.into())));
        }
        self.aside(queue, &path, finding)
    }

    fn aside(&self, queue: &Queue, path: &Path, finding: &Finding) -> Cured {
        let aside = queue.set_aside(path, finding.kind.name(), &finding.message)?;
        Ok(aside.map(|to| Outcome::Mended(format!("it was put aside: `{}`", to.display()))))
    }

    /// Keeps one of several files of the same task and sets the others aside.
    fn keep_one(&self, queue: &Queue, finding: &Finding) -> Cured {
        let mut copies: Vec<&Lying> = self.report.tree.tasks.iter().collect();
        copies.retain(|lying| lying.id().as_str() == finding.about);
        let Some(kept) = choose(&copies, self.report.recorded.contains(&finding.about)) else {
            return Ok(cures::for_people(Kind::EndedTwice));
        };
        let others: Vec<&Lying> = copies.iter().copied().filter(|l| l.path != kept.path).collect();
        for other in &others {
            if let State::Held(claim) = &other.state
                && self.lives(&claim.worker)
            {
                let told = format!("worker {} holds one of them: wait until it ends", claim.worker);
                return Ok(Some(Outcome::Refused(told)));
            }
        }
        let mut told = Vec::new();
        for other in others {
            let why = format!("the task lies in `{}`, which counts", self.shown(&kept.path));
            let Some(to) = queue.set_aside(&other.path, finding.kind.name(), &why)? else {
                continue;
            };
            told.push(format!("`{}` is now `{}`", self.shown(&other.path), to.display()));
            // If both belong to one claim, the status belongs to the one that stays.
            if let Some(status) =
                status_path(other).filter(|path| status_path(kept) != Some(path.clone()))
            {
                queue.keep_stray(&status)?;
            }
        }
        let told = format!("`{}` counts; {}", self.shown(&kept.path), told.join(", "));
        Ok(Some(Outcome::Mended(told)))
    }

    fn shown(&self, path: &Path) -> String {
        path.strip_prefix(self.mender.root()).unwrap_or(path).display().to_string()
    }

    /// Moves a file whose content contradicts its name or place to its proper place.
    fn replace(&self, queue: &Queue, finding: &Finding) -> Cured {
        let path = self.path(finding);
        let Some(lying) = self.lying_at(&path) else {
            return Ok(cures::for_people(finding.kind));
        };
        match &lying.state {
            State::Waiting => {
                let agent = path.parent().and_then(Path::file_name).unwrap_or_default();
                self.judge(queue, &agent.to_string_lossy(), lying)
            }
            State::Held(claim) if self.lives(&claim.worker) => {
                let told = format!("worker {} holds it: wait until it ends", claim.worker);
                Ok(Some(Outcome::Refused(told)))
            }
            // The cleanup of its dead holder puts it back first.
            State::Held(_) => Ok(None),
            State::Ended { end, batch, name, by } => {
                self.replace_ended(queue, finding, (*end, batch, name, by))
            }
        }
    }

    fn judge(&self, queue: &Queue, agent: &str, lying: &Lying) -> Cured {
        let owner = lying.agent.as_deref().unwrap_or(agent);
        if owner != agent && queue.layout.inbox(owner).is_symlink() {
            let told = format!("`inbox/{owner}` is a link: make it a directory, and it is moved");
            return Ok(Some(Outcome::ForPeople(told)));
        }
        let elsewhere = |id: &TaskId| self.report.tree.find(id.as_str()).is_some();
        Ok(match queue.judge_waiting(agent, &lying.task, &elsewhere)? {
            Judged::Gone => None,
            Judged::Put { agent, name } => {
                let told = format!("it waits now as `inbox/{agent}/{}`", name.file());
                Some(Outcome::Mended(told))
            }
            Judged::Unreadable => {
                let told = "it is in `failed/unreadable/` now, with a status that says why";
                Some(Outcome::Mended(told.into()))
            }
            Judged::Aside(to) => {
                Some(Outcome::Mended(format!("it was put aside: `{}`", to.display())))
            }
        })
    }

    fn replace_ended(
        &self,
        queue: &Queue,
        finding: &Finding,
        (end, batch, name, by): (End, &str, &ClaimName, &str),
    ) -> Cured {
        if finding.kind == Kind::AttemptBack {
            let told = "only its name is wrong, and nobody goes by it any more: leave it";
            return Ok(Some(Outcome::ForPeople(told.into())));
        }
        let claim = queue.ended_claim(end, batch, name, by)?;
        let same = |claim: &Claim| {
            claim.task.document.get("id").and_then(Value::as_str) == Some(name.task.id.as_str())
        };
        if let Some(claim) = claim.filter(same)
            && claim.task.batch != batch
        {
            let to = claim.task.batch.clone();
            let moved = queue.move_to_batch(end, (batch, &to), name, by)?;
            let told = format!("it was moved to its own batch, `{to}`");
            return Ok((moved == Ending::Committed).then_some(Outcome::Mended(told)));
        }
        if RunId::parse(batch).is_some() {
            // Its run depends on it.
            return Ok(cures::for_people(Kind::Unsealed));
        }
        let path = self.path(finding);
        let status = path.with_file_name(name.status());
        let outcome = self.aside(queue, &path, finding)?;
        queue.set_aside(&status, finding.kind.name(), "its task was put aside")?;
        Ok(outcome)
    }

    /// Writes the missing status of an ended task: from the journal, or else one that reports the
    /// loss.
    fn give_status(&self, queue: &Queue, finding: &Finding) -> Cured {
        let path = self.path(finding);
        let is_it = |lying: &&Lying| status_path(lying).as_deref() == Some(path.as_path());
        let Some(lying) = self.report.tree.tasks.iter().find(is_it) else { return Ok(None) };
        let State::Ended { end, batch, name, by } = &lying.state else { return Ok(None) };
        let Some(claim) = queue.ended_claim(*end, batch, name, by)? else {
            return Ok(cures::for_people(finding.kind));
        };
        if claim.task.batch != *batch {
            // It must first move to its own batch.
            return Ok(None);
        }
        // The existing status belongs to another claim, or is incomplete.
        queue.keep_stray(&path)?;
        if let Some(status) = self.status_by_journal(&claim)? {
            queue.give_status(*end, &claim, &status)?;
            return Ok(Some(Outcome::Mended("it was written again from the run's journal".into())));
        }
        let well = *end == End::Processed;
        if !well || lying.is_run() {
            queue.give_status(*end, &claim, &queue.lost_status(&claim, well))?;
            let told = "a status was written that says that its own is lost";
            return Ok(Some(Outcome::Mended(told.into())));
        }
        // The task must neither count as done nor run again without a request.
        queue.give_status(End::Failed, &claim, &queue.lost_status(&claim, false))?;
        let moved = queue.end_as_failed(*end, &claim, by)?;
        let told = format!(
            "nobody knows how it went, so it is in `failed/{batch}` now; `orchestrate retry {}` \
             does it again",
            lying.run.as_deref().unwrap_or(lying.id().as_str())
        );
        Ok((moved == Ending::Committed).then_some(Outcome::Mended(told)))
    }

    /// Rebuilds the status of a task from the result in its run's journal, if there is one.
    fn status_by_journal(&self, claim: &Claim) -> io::Result<Option<Map<String, Value>>> {
        let text = |key: &str| claim.task.document.get(key).and_then(Value::as_str);
        let (Some(run), Some(ticket)) = (text("run_id"), text("ticket")) else { return Ok(None) };
        let Some(run) = RunId::parse(run) else { return Ok(None) };
        let root = self.mender.state_dir.join(run.as_str());
        let Ok(history) = History::read(&*disk::machine(), &root) else { return Ok(None) };
        let mut out = None;
        for entry in &history.entries {
            match &entry.event {
                Event::Launched { step, attempt, task: Some(task) }
                    if is_of(task, claim, ticket) =>
                {
                    out = Some((step, *attempt, entry.at));
                }
                Event::Ended { step, attempt, record } => {
                    if let Some((of, number, began)) = out
                        && (of, number) == (step, *attempt)
                    {
                        return Ok(Some(documents::status(claim, record, began, entry.at)));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Checks that the claim of a dead holder is gone.
    fn buried(&self, queue: &Queue, finding: &Finding) -> Cured {
        let Some(Lying { state: State::Held(claim), .. }) = self.lying_at(&self.path(finding))
        else {
            return Ok(None);
        };
        if queue.is_held(claim)? {
            let told = format!("{} beat meanwhile, so it lives: it keeps its claim", claim.worker);
            return Ok(Some(Outcome::Refused(told)));
        }
        let told = "its holder is gone: it was ended or put back, as the protocol says";
        Ok(Some(Outcome::Mended(told.into())))
    }

    fn keep_stray(&self, queue: &Queue, finding: &Finding) -> Cured {
        let path = self.path(finding);
        let stem = finding.about.rsplit('/').next().and_then(|f| f.strip_suffix(".status.json"));
        let claim = stem.and_then(|stem| ClaimName::parse(&format!("{stem}.task")));
        // The holder of the claim is about to complete it.
        if let Some(claim) = &claim
            && queue.is_held(claim)?
        {
            return Ok(None);
        }
        let moved = queue.keep_stray(&path)?;
        let told = "it was put with the statuses that do not count: `.orchestrate/evidence/`";
        Ok((moved == Ending::Committed).then_some(Outcome::Mended(told.into())))
    }

    fn drop_turn(&self, queue: &Queue, finding: &Finding) -> Cured {
        let path = self.path(finding);
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let holder = Turn::parse(&file).and_then(|turn| turn.holder);
        let held = holder.and_then(|holder| self.report.tree.find(holder.task.as_str()));
        if let Some(Lying { state: State::Held(claim), .. }) = held
            && self.lives(&claim.worker)
        {
            let told = format!("coordinator {} may work by it: wait until it ends", claim.worker);
            return Ok(Some(Outcome::Refused(told)));
        }
        self.aside(queue, &path, finding)
    }

    /// Removes leftovers of dead processes, and requests for ended tasks.
    fn drop_mark(&self, queue: &Queue, finding: &Finding) -> Cured {
        let path = self.path(finding);
        let layout = &queue.layout;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let removed = Outcome::Mended("it was removed".into());
        match path.parent() {
            Some(dir) if dir == layout.cancel() => {
                let known = self.report.tree.find(&file).is_some()
                    || self.report.tree.task_of_run(&file).is_some();
                if !known {
                    let told = "what it asks for may turn up yet: `orchestrate clean` removes it \
                                by its age";
                    return Ok(Some(Outcome::ForPeople(told.into())));
                }
                queue.forget_cancel(&file)?;
                Ok(Some(removed))
            }
            Some(dir) if dir == layout.checkout() => self.free_turn(queue, &file),
            // The cleanup of the dead process may have removed it already.
            Some(dir) if dir == layout.beats() || dir == layout.workers() => {
                match queue.disk().remove(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    done => done?,
                }
                Ok(Some(removed))
            }
            _ => self.aside(queue, &path, finding),
        }
    }

    /// Releases the turn of an ended run, once none of its tasks waits or executes.
    fn free_turn(&self, queue: &Queue, file: &str) -> Cured {
        let Some(turn) = Turn::parse(file) else { return Ok(None) };
        let batch = turn.holder.as_ref().map(|holder| holder.batch.as_str());
        let goes_on = |lying: &&Lying| !lying.has_ended() && lying.run.as_deref() == batch;
        if let Some(lying) = self.report.tree.tasks.iter().find(goes_on) {
            let told = format!("task {} of its run is not over: wait until it is", lying.id());
            return Ok(Some(Outcome::Refused(told)));
        }
        let freed = queue.pass_turn(&turn, None)?;
        Ok(freed.map(|turn| Outcome::Mended(format!("the turn is free: `{}`", turn.file()))))
    }
}

fn is_of(task: &TaskRef, claim: &Claim, ticket: &str) -> bool {
    task.id == claim.name.task.id.as_str() && task.ticket == ticket
}

fn status_path(lying: &Lying) -> Option<std::path::PathBuf> {
    match &lying.state {
        State::Ended { name, .. } => Some(lying.path.with_file_name(name.status())),
        _ => None,
    }
}

/// Chooses the valid one of several files of a task, by these criteria in order: it is complete; a
/// journal has its result; it is the latest attempt, which fences earlier ones; it has progressed
/// furthest. Returns `None` if two ended files rank equally.
fn choose<'a>(copies: &[&'a Lying], recorded: bool) -> Option<&'a Lying> {
    let rank = |lying: &Lying| {
        let way = match &lying.state {
            State::Waiting => 0,
            State::Held(_) => 1,
            State::Ended { .. } => 2,
        };
        let counts = recorded && lying.has_ended();
        (
            lying.kind.is_some(),
            counts,
            lying.task.attempt,
            way,
            has_right_status(lying),
            lying.is_at_home(),
        )
    };
    let mut ranked: Vec<&Lying> = copies.to_vec();
    ranked.sort_by_key(|lying| (Reverse(rank(lying)), lying.path.clone()));
    let (first, second) = (ranked.first()?, ranked.get(1)?);
    let (State::Ended { name, .. }, State::Ended { name: other, .. }) =
        (&first.state, &second.state)
    else {
        return Some(first);
    };
    let one_claim = name == other && first.path.parent() == second.path.parent();
    (rank(first) > rank(second) || one_claim).then_some(first)
}

fn has_right_status(lying: &Lying) -> bool {
    let (State::Ended { name, .. }, Some(status)) = (&lying.state, &lying.status) else {
        return false;
    };
    wrong_status(status, name, lying.ticket.as_deref()).is_none()
}
