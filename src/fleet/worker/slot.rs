//! A slot: claims a task, executes it, ends it with its status, and claims the next.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use serde_json::{Map, Value};

use super::prepare::Ready;
use super::{Doing, Running, Setup, Shop, Until, Why, spent};
use crate::agent::{Kind, MachineFault};
use crate::attempt::documents;
use crate::attempt::parking::Pass;
use crate::attempt::perform::{self, Performed, TaskTerms, Terms};
use crate::base::host;
use crate::base::ids::TaskAttempt;
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk;
use crate::disk::hint::Patience;
use crate::engine::{Record, StepStatus};
use crate::exec::Stop;
use crate::fleet::member::{self};
use crate::free_task::answer::Done;
use crate::free_task::parse::FreeTask;
use crate::free_task::result;
use crate::queue::{Claim, Claimed, End, Ending, Finish, Unfinished};

impl Shop {
    /// Claims and executes tasks until the worker closes or has no reason to continue.
    pub(super) fn serve(&self, seed: u64) {
        let settings = &self.setup.config.queue;
        let mut patience = Patience::new(settings.poll, settings.idle_poll, seed);
        let mut failing = false;
        while !self.is_closing() {
            let heard = self.bell.rings();
            let pass = RefCell::new(None);
            match self.claim(&pass) {
                Ok(Claimed::Task(claim)) => {
                    patience.reset();
                    failing = false;
                    self.execute(*claim, pass.take());
                    if self.setup.until == Until::Once {
                        self.close();
                    }
                }
                Ok(Claimed::Quarantined { name, reason }) => {
                    self.audience.note(&format!("{}: {reason}", name.task.file()));
                }
                Ok(Claimed::Nothing) if self.ends_now() => break,
                Ok(Claimed::Nothing) => self.bell.wait(heard, patience.next_wait()),
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!("cannot claim: {error}; will be tried again");
                    }
                    self.bell.wait(heard, patience.next_wait());
                }
            }
        }
        self.slots_left.fetch_sub(1, Ordering::SeqCst);
        self.bell.ring();
    }

    pub(super) fn execute(&self, claim: Claim, pass: Option<Arc<Pass>>) {
        let began = SystemClock.now();
        let ready = self.prepare(&claim);
        let mut doing = doing(&claim, ready.as_ref().map(Ready::logs).unwrap_or_default());
        doing.adapter = ready.as_ref().map(|ready| ready.work.adapter).unwrap_or_default();
        let Ready { site, work, free } = match ready {
            Ok(ready) => ready,
            Err(reason) => {
                self.audience.note(&format!("{}: {reason}", claim.name.task.file()));
                let record = Record::refused(2, reason, Map::new());
                let status = documents::status(&claim, &record, began, SystemClock.now());
                return self.end(Finish { claim, end: End::Failed, status }, doing);
            }
        };
        let Some(pass) = pass.or_else(|| self.may_ask(&work)) else {
            // A limit was reached after the task was checked.
            let _ = self.setup.queue.release(claim);
            return;
        };
        let stop = match Stop::new() {
            Ok(stop) => stop,
            Err(error) => {
                pass.suspend(MachineFault::Resources, &format!("cannot start a process: {error}"));
                return self.give_back(claim, &doing, &pass);
            }
        };
        let why = Arc::new(AtomicU8::new(0));
        let running = Running { doing: doing.clone(), stop: stop.clone(), why: why.clone() };
        self.running().insert(claim.name.stem(), running);
        if claim.name.task.attempt > TaskAttempt::FIRST {
            // The previous holder may have died on this machine and left a child process.
            member::end_earlier(&claim.name);
        }
        perform::keep_begun_logs(&site, &work, claim.name.task.attempt);
        self.audience.started(&doing);
        let mark = member::mark(&claim.name);
        // A retry is a new task for the same step, so the step identifies the work.
        let what = match &doing.run {
            Some(run) => format!("{run}/{}", work.step),
            None => doing.id.clone(),
        };
        let attempt = claim.name.task.attempt;
        let tells = work.asks && work.adapter.is_stream();
        let is_recorded = tells || work.is_spell();
        let interrupted = is_recorded && spent::was_interrupted(&doing.logs[0], &claim);
        let terms = Terms { pass, task: Some(TaskTerms { what, attempt, interrupted }) };
        if is_recorded {
            spent::begin(&doing.logs[0], &claim);
        }
        let performed = perform::run_on(&terms, &site, &work, &mark, &stop);
        match performed {
            Some(performed) if performed.returns => {
                if is_recorded {
                    let in_conversation = work.session.is_some();
                    spent::keep(&doing.logs[0], &claim, &performed.record, in_conversation);
                }
                self.give_back(claim, &doing, &terms.pass);
            }
            Some(mut performed) => {
                if tells {
                    spent::add(&doing.logs[0], &claim, &mut performed.record);
                }
                let asked = work.asked();
                self.finish(claim, doing, performed, free.as_ref().zip(Some(&*asked)), began);
            }
            None => self.give_up(claim, &doing, why.load(Ordering::SeqCst), began),
        }
    }

    pub(super) fn finish(
        &self,
        claim: Claim,
        doing: Doing,
        performed: Performed,
        free: Option<(&FreeTask, &[Cow<str>])>,
        began: Time,
    ) {
        let (record, members) = match free {
            None => (performed.record, Map::new()),
            Some((task, asked)) => {
                match self.conclude(&claim, task, asked, &doing, performed.record) {
                    Ok(concluded) => concluded,
                    Err(error) => {
                        // The follow-up tasks are not published, so this task is not over.
                        self.audience.note(&format!("follow-ups cannot be put out: {error}"));
                        return self.give_up(claim, &doing, Why::Leaving as u8, began);
                    }
                }
            }
        };
        let mut status = documents::status(&claim, &record, began, SystemClock.now());
        status.extend(members);
        self.keep_written(&mut status, &record);
        status.insert("logs".into(), self.logs_left(&doing).into());
        let end = match record.status {
            StepStatus::Completed => End::Processed,
            _ => End::Failed,
        };
        self.end(Finish { claim, end, status }, doing);
    }

    /// Evaluates the result of a free task and publishes its follow-up tasks.
    pub(super) fn conclude(
        &self,
        claim: &Claim,
        task: &FreeTask,
        asked: &[Cow<str>],
        doing: &Doing,
        record: Record,
    ) -> io::Result<(Record, Map<String, Value>)> {
        let Setup { config, workspace, queue, agent, .. } = &self.setup;
        let tree = record.worktree.clone();
        let apart = tree.as_ref().map(|tree| tree.cwd.as_ref().unwrap_or(&tree.path).as_str());
        let left = tree.as_ref().and_then(|tree| tree.head.as_deref());
        let done = Done { task, id: &claim.name.task.id, agent, apart, left, asked };
        let concluded = result::conclude(done, record, &doing.logs[0], config, workspace);
        let (limit, attempt) = (config.queue.crash_limit, claim.name.task.attempt);
        result::put_out(queue, &concluded.follow_ups.tasks, limit, attempt)?;
        let members = concluded.members();
        if let Some(warning) = &concluded.record.warning {
            tracing::warn!("task {}: {warning}", claim.name.task.id);
        }
        Ok((concluded.record, members))
    }

    /// Removes files from `outputs` that exist neither in the workspace nor in the task's worktree:
    /// an agent may name a file that it did not write, and a failed agent may leave none.
    fn keep_written(&self, status: &mut Map<String, Value>, record: &Record) {
        let root = self.setup.workspace.root();
        let tree = record.worktree.as_deref();
        let tree = tree.map(|tree| root.join(tree.cwd.as_ref().unwrap_or(&tree.path)));
        let is_there = |path: &str| {
            let places = [Some(root), tree.as_deref()];
            // A file whose existence cannot be checked stays in the list.
            let exists = |place: &Path| disk::exists(&place.join(path)).unwrap_or(true);
            places.into_iter().flatten().any(exists)
        };
        if let Some(Value::Array(outputs)) = status.get_mut("outputs") {
            outputs.retain(|output| output.as_str().is_none_or(is_there));
        }
    }

    /// Returns the logs that an execution left, as paths relative to the workspace.
    pub(super) fn logs_left(&self, doing: &Doing) -> Vec<String> {
        let root = self.setup.workspace.root();
        let left = doing.logs.iter().filter(|log| disk::exists(log).unwrap_or(false));
        let name = |log: &PathBuf| Some(log.strip_prefix(root).ok()?.to_string_lossy().into());
        left.filter_map(name).collect()
    }

    /// Ends or releases a task whose execution was stopped, depending on the reason `why`.
    pub(super) fn give_up(&self, claim: Claim, doing: &Doing, why: u8, began: Time) {
        if why == Why::Cancelled as u8 {
            let record = Record::refused(128 + 15, "cancelled", Map::new());
            let mut status = documents::status(&claim, &record, began, SystemClock.now());
            let error = serde_json::json!({ "reason": "cancelled", "message": "cancelled" });
            status.insert("error".into(), error);
            return self.end(Finish { claim, end: End::Cancelled, status }, doing.clone());
        }
        let stem = claim.name.stem();
        let released = self.setup.queue.release(claim);
        self.running().remove(&stem);
        let how = match released {
            Ok(Ending::Committed) => "given back",
            Ok(Ending::Fenced) => "lost to another worker",
            Err(_) => "left behind",
        };
        self.audience.ended(doing, how, host::since(doing.since));
    }

    /// Ends a task, at once or in the next group.
    pub(super) fn end(&self, finish: Finish, doing: Doing) {
        match &self.commits {
            Some(commits) => {
                commits.send(Some((finish, doing))).expect("groups are ended after the slots");
                host::poke();
            }
            None => self.commit(vec![(finish, doing)]),
        }
    }

    /// Ends tasks. Retries while the volume is unavailable, so that finished work is not lost,
    /// until the worker leaves.
    pub(super) fn commit(&self, mut group: Vec<(Finish, Doing)>) {
        let mut failing = false;
        loop {
            let (finishes, doings): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            let results: Vec<EndReport> = finishes.iter().map(EndReport::new).collect();
            let endings = self.setup.queue.complete(finishes);
            group = Vec::new();
            for ((result, doing), ending) in results.into_iter().zip(doings).zip(endings) {
                match ending {
                    Ok(ending) => self.ended(result, &doing, ending),
                    Err(Unfinished { finish, error }) => {
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!("cannot end task {}: {error}; tried again", doing.id);
                        }
                        group.push((*finish, doing));
                    }
                }
            }
            if group.is_empty() || self.is_leaving() {
                return;
            }
            self.bell.wait(self.bell.rings(), self.setup.config.queue.beat);
        }
    }

    fn ended(&self, report: EndReport, doing: &Doing, ending: Ending) {
        self.running().remove(&report.stem);
        let how = match (ending, report.end) {
            (Ending::Committed, End::Processed) => "done".to_owned(),
            (Ending::Committed, End::Failed) => format!("failed: {}", report.reason),
            (Ending::Committed, End::Cancelled) => "cancelled".to_owned(),
            (Ending::Fenced, _) => "too late: another worker has it".to_owned(),
        };
        if ending == Ending::Committed {
            self.done.fetch_add(1, Ordering::SeqCst);
            self.failed.fetch_add(usize::from(report.end != End::Processed), Ordering::SeqCst);
        }
        self.audience.ended(doing, &how, host::since(doing.since));
    }
}

/// The parts of a [`Finish`] that the worker reports after the task has ended.
struct EndReport {
    /// Key of the task in the worker's list of running tasks.
    stem: String,
    end: End,
    /// First line of the status message.
    reason: String,
}

impl EndReport {
    fn new(finish: &Finish) -> EndReport {
        let message = finish.status.get("message").and_then(Value::as_str).unwrap_or_default();
        let reason = message.lines().next().unwrap_or_default().to_owned();
        EndReport { stem: finish.claim.name.stem(), end: finish.end, reason }
    }
}

pub(super) fn doing(claim: &Claim, logs: [PathBuf; 2]) -> Doing {
    let text = |key: &str| claim.task.document.get(key).and_then(Value::as_str);
    let label = text("step").or(text("title")).unwrap_or(&claim.name.task.label);
    Doing {
        id: claim.name.task.id.to_string(),
        label: label.to_owned(),
        run: text("run_id").map(str::to_owned),
        attempt: claim.name.task.attempt,
        since: host::instant(),
        logs,
        adapter: Kind::Plain,
    }
}

/// Waits for the next task to end. Returns `None` when there will be no more.
fn hear(waiting: &Receiver<Option<(Finish, Doing)>>) -> Option<(Finish, Doing)> {
    let look = || match waiting.try_recv() {
        Ok(next) => Some(next),
        Err(TryRecvError::Disconnected) => Some(None),
        Err(TryRecvError::Empty) => None,
    };
    let mut next = look();
    while next.is_none() {
        let mut found = None;
        let mut look = || {
            found = look();
            found.is_some()
        };
        let real = || next = Some(waiting.recv().unwrap_or(None));
        host::wait(Duration::from_secs(3600), &mut look, real);
        next = next.or(found);
    }
    next.flatten()
}

/// Ends tasks in groups: while one group is written to the medium, the next one gathers.
pub(super) fn commit_groups(shop: &Shop, waiting: &Receiver<Option<(Finish, Doing)>>) {
    while let Some(first) = hear(waiting) {
        let mut group = vec![first];
        let mut over = false;
        for next in waiting.try_iter().take(255) {
            match next {
                Some(next) => group.push(next),
                None => over = true,
            }
        }
        shop.commit(group);
        if over {
            return;
        }
    }
}
