//! What a tortured fleet came to: was everything done that was promised, once, and in order?

use std::collections::{BTreeMap, HashMap, HashSet};

use super::plot::Drop;
use super::scripts::{SCRIPTS, Script};
use crate::engine::{RunStatus, StepStatus};
use crate::fleet::member;
use crate::health::fsck::{EndSeen, Lying, Report, RunSeen, State};
use crate::queue::End;

/// What was promised to somebody.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// The runs that were submitted, each with its script.
    pub runs: BTreeMap<String, usize>,
    /// The free tasks, each with whether it goes well.
    pub free: BTreeMap<String, bool>,
    /// What was dropped, by the file's name.
    pub drops: BTreeMap<String, Drop>,
}

/// One line of `trace`: an execution that began.
#[derive(Clone, Debug)]
pub(super) struct Execution {
    pub run: String,
    pub step: String,
    pub attempt: String,
    /// Which claim, or which attempt of a run's own, it belongs to.
    pub mark: String,
}

/// Reads `trace`.
pub(super) fn executions(text: &str) -> Vec<Execution> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split(' ').map(str::to_owned);
            let mut word = || words.next();
            Some(Execution { run: word()?, step: word()?, attempt: word()?, mark: word()? })
        })
        .collect()
}

/// How often things happened that are allowed, and tell how hard the torture was.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub executions: usize,
    /// Executions of an attempt beyond its first.
    pub again: usize,
}

/// Finds what was not kept of the promises. `adopted` are the files that were taken in, as the
/// intake calls them: `<id>-<name>`.
pub(super) fn judge(
    promises: &Promises,
    report: &Report,
    executions: &[Execution],
    adopted: &[String],
) -> (Vec<String>, Tally) {
    let mut wrong = Vec::new();
    let runs: HashMap<&str, &RunSeen> =
        report.runs.iter().map(|run| (run.id.as_str(), run)).collect();
    for (id, script) in &promises.runs {
        let script = &SCRIPTS[*script];
        match runs.get(id.as_str()) {
            None => wrong.push(format!("run {id} of {} is lost", script.name)),
            Some(run) => judge_run(run, script, report, &mut wrong),
        }
    }
    for (id, well) in &promises.free {
        judge_free(id, *well, report, &mut wrong);
    }
    for (file, drop) in &promises.drops {
        judge_drop(file, *drop, adopted, report, &runs, &mut wrong);
    }
    let tally = judge_executions(promises, report, executions, &mut wrong);
    (wrong, tally)
}

fn end_of(lying: Option<&Lying>) -> Option<End> {
    match lying?.state {
        State::Ended { end, .. } => Some(end),
        _ => None,
    }
}

fn judge_run(run: &RunSeen, script: &Script, report: &Report, wrong: &mut Vec<String>) {
    let what = format!("run {} of {}", run.id, script.name);
    if run.status != script.outcome {
        wrong.push(format!("{what} is {:?}, not {:?}", run.status, script.outcome));
    }
    let end = end_of(report.tree.task_of_run(run.id.as_str()));
    let wanted = match run.status {
        RunStatus::Completed => Some(End::Processed),
        RunStatus::Cancelled => Some(End::Cancelled),
        RunStatus::Failed | RunStatus::Blocked => Some(End::Failed),
        RunStatus::Running | RunStatus::Paused => None,
    };
    if end != wanted {
        wrong.push(format!("{what} is {:?}, but its task is {end:?}", run.status));
    }
    let again =
        |pair: &&[EndSeen]| pair[0].step == pair[1].step && pair[0].status == StepStatus::Completed;
    if let Some(pair) = run.ended.windows(2).find(again) {
        wrong.push(format!("{what}: `{}` had completed, and was done again", pair[0].step));
    }
    let steps: Vec<String> = run.ended.iter().map(|end| end.step.to_string()).collect();
    let mut path: Vec<&str> = steps.iter().map(String::as_str).collect();
    path.dedup();
    let right = match script.outcome {
        RunStatus::Cancelled => script.path.starts_with(&path),
        _ => script.path == path,
    };
    if !right {
        wrong.push(format!("{what} went {path:?}, not {:?}", script.path));
    }
}

fn judge_free(id: &str, well: bool, report: &Report, wrong: &mut Vec<String>) {
    let wanted = if well { End::Processed } else { End::Failed };
    match end_of(report.tree.find(id)) {
        Some(end) if end == wanted => {}
        end => wrong.push(format!("free task {id} is {end:?}, not {wanted:?}")),
    }
}

/// A dropped file was taken in once, and became what it said.
fn judge_drop(
    file: &str,
    drop: Drop,
    adopted: &[String],
    report: &Report,
    runs: &HashMap<&str, &RunSeen>,
    wrong: &mut Vec<String>,
) {
    let is_it = |name: &&String| name.get(27..) == Some(file);
    let taken: Vec<&String> = adopted.iter().filter(is_it).collect();
    let [name] = taken.as_slice() else {
        return wrong.push(format!("`{file}` was taken in {} times", taken.len()));
    };
    let lying = report.tree.find(&name[..26]);
    let run = lying.and_then(|lying| runs.get(lying.run.as_deref()?));
    match (drop, run) {
        (Drop::Task(_), _) if end_of(lying) == Some(End::Processed) => {}
        (Drop::Run(script), Some(run)) => judge_run(run, &SCRIPTS[script], report, wrong),
        _ => wrong.push(format!("`{file}` became {:?}", end_of(lying))),
    }
}

/// Finds what members said that they may not: that a task ended which somebody else told of
/// already, or that somebody is dead without having looked often enough.
pub(super) fn said(logs: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut told: BTreeMap<&str, usize> = BTreeMap::new();
    for line in logs.lines() {
        if let Some(id) = told_of(line) {
            *told.entry(id).or_default() += 1;
        }
        let reads = line.split_once(", read ").and_then(|(_, rest)| rest.split(' ').next());
        if reads.is_some_and(|reads| reads.parse().is_ok_and(|reads: u32| reads < READS)) {
            wrong.push(format!("somebody was taken for dead too soon: {line}"));
        }
    }
    let twice = told.into_iter().filter(|(_, times)| *times > 1);
    wrong.extend(twice.map(|(id, times)| format!("the end of task {id} was told {times} times")));
    wrong
}

/// How often a beat must be seen to stand still.
const READS: u32 = 4;

/// The task whose end a worker tells in a line: `… (task ID): done (0.1s)`.
fn told_of(line: &str) -> Option<&str> {
    let (id, rest) = line.split_once("(task ")?.1.split_once(')')?;
    let how = rest.strip_prefix(": ")?;
    let ended = ["done", "failed", "cancelled"].iter().any(|end| how.starts_with(end));
    ended.then(|| id.split(',').next().unwrap_or(id))
}

/// Finds tasks that were done with half of what was dropped. Whoever dies while it asks a
/// provider says only half to it, but then it does not end the task.
pub(super) fn torn(marks: &str, report: &Report) -> Vec<String> {
    let ended: HashSet<String> = report.tree.tasks.iter().filter_map(mark_of_end).collect();
    let torn = marks.lines().filter(|mark| ended.contains(*mark));
    torn.map(|mark| format!("{mark} was done before its file was whole")).collect()
}

/// The mark of the claim that ended a task.
fn mark_of_end(lying: &Lying) -> Option<String> {
    match &lying.state {
        State::Ended { name, .. } => Some(member::mark(name)),
        _ => None,
    }
}

/// What ended was executed: by the claim that ended it, where it was a task; and no claim was
/// executed twice.
fn judge_executions(
    promises: &Promises,
    report: &Report,
    executions: &[Execution],
    wrong: &mut Vec<String>,
) -> Tally {
    let mut by_mark: HashMap<&str, usize> = HashMap::new();
    let mut by_attempt: HashMap<(&str, &str, &str), usize> = HashMap::new();
    for Execution { run, step, attempt, mark } in executions {
        *by_mark.entry(mark).or_default() += 1;
        *by_attempt.entry((run, step, attempt)).or_default() += 1;
    }
    for (mark, times) in by_mark.iter().filter(|(mark, times)| **times > 1 && is_claim(mark)) {
        wrong.push(format!("claim {mark} was executed {times} times"));
    }
    for run in &report.runs {
        for end in run.ended.iter().filter(|end| !end.refused) {
            let (step, attempt) = (end.step.to_string(), end.attempt.to_string());
            let executed = by_attempt.contains_key(&(run.id.as_str(), &step, &attempt));
            if end.status == StepStatus::Completed && !executed {
                wrong.push(format!(
                    "run {}: attempt {attempt} of {} completed, but was never executed",
                    run.id, end.step
                ));
            }
        }
    }
    let marks: HashSet<&str> = by_mark.keys().copied().collect();
    let promised = |lying: &&Lying| {
        let id = lying.id().as_str();
        promises.free.contains_key(id) || !lying.is_run()
    };
    for lying in report.tree.tasks.iter().filter(promised) {
        let State::Ended { end: End::Processed, name, .. } = &lying.state else { continue };
        let mark = member::mark(name);
        if !marks.contains(mark.as_str()) {
            wrong.push(format!("task {} is done, but {mark} was never executed", lying.id()));
        }
    }
    let again = by_attempt.values().map(|times| times - 1).sum();
    Tally { executions: executions.len(), again }
}

/// Whether a mark is that of a claimed task, and not of a run's own attempt.
fn is_claim(mark: &str) -> bool {
    mark.starts_with("task-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_members_say_is_read() {
        let once = "07:09:24 qa `A` of R (task T1): started\n\
             07:09:24 qa `A` of R (task T1): too late: another worker has it (2.6s)\n\
             07:09:25 qa `A` of R (task T1, attempt 2): done (0.1s)\n\
             07:09:25 qa w is dead (its beat stood still for 1 s, read 4 times): took over 0\n";
        assert_eq!(said(once), [""; 0]);
        let twice = format!("{once}07:09:26 qa `A` of R (task T1): failed: no (0.1s)\n");
        assert_eq!(said(&twice), ["the end of task T1 was told 2 times"]);
        assert_eq!(said("w is dead (… for 0 s, read 2 times): took over 1").len(), 1);
    }
}
