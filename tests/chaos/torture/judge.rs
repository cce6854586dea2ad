//! Judges a tortured fleet by its files and its output: was each acknowledged run and task done,
//! once, and in order? `orchestrate fsck` judges the rest.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::members::log;
use super::schedule::Drop;
use super::scripts::{SCRIPTS, Script};
use crate::world::World;

/// The runs and tasks that the fleet has acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// Submitted runs by ID, each with its script.
    pub runs: BTreeMap<String, usize>,
    /// Enqueued tasks by ID: true if the task succeeds.
    pub free: BTreeMap<String, bool>,
    /// Dropped files by name.
    pub drops: BTreeMap<String, Drop>,
}

/// Directories of tasks that have ended.
const ENDS: [&str; 3] = ["processed", "failed", ".orchestrate/cancelled"];
/// Number of times that a heartbeat must be read before its owner counts as dead.
const READS: u32 = 4;
/// Length of a task's ID.
const ID: usize = 26;

/// A task that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub id: String,
    /// One of [`ENDS`].
    pub end: &'static str,
    /// The mark of the processes of the claim that ended the task.
    pub mark: String,
    /// `step`, `run` or `free`.
    pub kind: String,
    /// The run that the task drives or belongs to.
    pub run: String,
}

/// A run: its status, and the attempts that ended, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub status: String,
    pub ended: Vec<Ended>,
}

/// The end of an attempt, from a journal.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub step: String,
    pub attempt: u64,
    pub completed: bool,
    /// False if the step was refused before it was launched.
    pub launched: bool,
}

/// The facts about a fleet at the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub tasks: Vec<Task>,
    pub runs: BTreeMap<String, Run>,
    /// Lines of `trace`: run, step, attempt and mark of each execution.
    pub trace: String,
    /// Marks of executions that read half a file.
    pub torn: String,
    /// Files that were taken in: `<id>-<name>`.
    pub adopted: Vec<String>,
    /// The output of all members.
    pub logs: String,
}

impl Facts {
    pub(crate) fn read(world: &World) -> Facts {
        // A killed process leaves half a run under a name that starts with a dot.
        let is_run = |name: &String| name != "latest" && !name.starts_with('.');
        let runs = world.list(".orchestrate/runs").into_iter().filter(is_run);
        let done = files_below(&world.path(".orchestrate/intake/done"));
        let logs =
            (0..).map(|member| world.outside(&log(member))).map_while(|log| fs::read(log).ok());
        Facts {
            tasks: ENDS.into_iter().flat_map(|end| tasks(&world.path(end), end)).collect(),
            runs: runs.map(|id| (id.clone(), run(world, &id))).collect(),
            trace: world.read("trace"),
            torn: world.read("torn"),
            adopted: done.iter().map(|path| name(path)).collect(),
            logs: logs.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect(),
        }
    }

    fn task(&self, id: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.id == id)
    }

    fn task_of_run(&self, run: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.kind == "run" && task.run == run)
    }
}

/// Returns all files below a directory.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in dir.read_dir().into_iter().flatten().flatten() {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => found.extend(files_below(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads the tasks in a directory of ended ones: `<priority>-<id>-…<claim>.<ended by>.task`.
fn tasks(dir: &Path, end: &'static str) -> Vec<Task> {
    let read = |path: PathBuf| {
        let name = name(&path);
        let (claim, _) = name.strip_suffix(".task")?.rsplit_once('.')?;
        let id = name.get(2..2 + ID)?.to_owned();
        let document: Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        let text = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
        let mark = format!("task-{id}/{claim}");
        Some(Task { id, end, mark, kind: text("kind"), run: text("run_id") })
    };
    files_below(dir).into_iter().filter_map(read).collect()
}

fn run(world: &World, id: &str) -> Run {
    let state = world.read(&format!(".orchestrate/runs/{id}/state.json"));
    let state: Value = serde_json::from_str(&state).unwrap_or_default();
    let events = world.run(&["events", id, "--json"]).exits(0).stdout;
    let events: Value = serde_json::from_str(&events).expect("JSON");
    let mut launched = HashSet::new();
    let mut ended = Vec::new();
    for event in events["events"].as_array().expect("events") {
        let step = event["step"].as_str().unwrap_or_default().to_owned();
        let attempt = event["attempt"].as_u64().unwrap_or_default();
        match event["event"].as_str() {
            Some("launched") => _ = launched.insert((step, attempt)),
            Some("ended") => ended.push(Ended {
                launched: launched.contains(&(step.clone(), attempt)),
                completed: event["record"]["status"] == "completed",
                step,
                attempt,
            }),
            _ => {}
        }
    }
    Run { status: state["status"].as_str().unwrap_or_default().into(), ended }
}

/// Returns the promises that were not kept.
pub(crate) fn judge(promises: &Promises, facts: &Facts) -> Vec<String> {
    let mut wrong = Vec::new();
    for (id, script) in &promises.runs {
        judge_run(id, &SCRIPTS[*script], facts, &mut wrong);
    }
    for (id, well) in &promises.free {
        let wanted = if *well { "processed" } else { "failed" };
        let end = facts.task(id).map(|task| task.end);
        if end != Some(wanted) {
            wrong.push(format!("free task {id} is {end:?}, not {wanted}"));
        }
    }
    for (file, drop) in &promises.drops {
        judge_drop(file, *drop, facts, &mut wrong);
    }
    judge_executions(facts, &mut wrong);
    judge_logs(&facts.logs, &mut wrong);
    wrong
}

fn judge_run(id: &str, script: &Script, facts: &Facts, wrong: &mut Vec<String>) {
    let what = format!("run {id} of {}", script.name);
    let Some(run) = facts.runs.get(id) else {
        return wrong.push(format!("{what} is lost"));
    };
    if run.status != script.outcome {
        wrong.push(format!("{what} is {}, not {}", run.status, script.outcome));
    }
    let end = facts.task_of_run(id).map(|task| task.end);
    let wanted = match script.outcome {
        "completed" => "processed",
        "cancelled" => ".orchestrate/cancelled",
        _ => "failed",
    };
    if end != Some(wanted) {
        wrong.push(format!("{what} is {}, but its task is {end:?}", run.status));
    }
    let again = |pair: &&[Ended]| pair[0].step == pair[1].step && pair[0].completed;
    if let Some(pair) = run.ended.windows(2).find(again) {
        wrong.push(format!("{what}: `{}` had completed, and was done again", pair[0].step));
    }
    let mut path: Vec<&str> = run.ended.iter().map(|end| end.step.as_str()).collect();
    path.dedup();
    let right = match script.outcome {
        "cancelled" => script.path.starts_with(&path),
        _ => script.path == path,
    };
    if !right {
        wrong.push(format!("{what} went {path:?}, not {:?}", script.path));
    }
}

/// Checks that a dropped file was taken in once, and did what it says.
fn judge_drop(file: &str, drop: Drop, facts: &Facts, wrong: &mut Vec<String>) {
    let is_it = |name: &&String| name.get(ID + 1..) == Some(file);
    let taken: Vec<&String> = facts.adopted.iter().filter(is_it).collect();
    let [name] = taken.as_slice() else {
        return wrong.push(format!("`{file}` was taken in {} times", taken.len()));
    };
    let task = facts.task(&name[..ID]);
    match (drop, task) {
        (Drop::Task(_), Some(task)) if task.end == "processed" => {}
        (Drop::Run(script), Some(task)) => judge_run(&task.run, &SCRIPTS[script], facts, wrong),
        _ => wrong.push(format!("`{file}` became {:?}", task.map(|task| task.end))),
    }
}

/// Checks that each result was executed, by the claim that ended its task, that no claim was
/// executed twice, and that none was given half a file.
fn judge_executions(facts: &Facts, wrong: &mut Vec<String>) {
    let mut by_mark: HashMap<&str, usize> = HashMap::new();
    let mut attempts: HashSet<(&str, &str, &str)> = HashSet::new();
    for line in facts.trace.lines() {
        if let [run, step, attempt, mark] = line.split(' ').collect::<Vec<_>>()[..] {
            *by_mark.entry(mark).or_default() += 1;
            attempts.insert((run, step, attempt));
        }
    }
    let claims = by_mark.iter().filter(|(mark, _)| mark.starts_with("task-"));
    for (mark, times) in claims.filter(|(_, times)| **times > 1) {
        wrong.push(format!("claim {mark} was executed {times} times"));
    }
    for (id, run) in &facts.runs {
        for Ended { step, attempt, .. } in
            run.ended.iter().filter(|end| end.completed && end.launched)
        {
            if !attempts.contains(&(id.as_str(), step, &attempt.to_string())) {
                wrong.push(format!("run {id}: attempt {attempt} of {step} was never executed"));
            }
        }
    }
    for Task { id, end, mark, kind, .. } in &facts.tasks {
        if *end == "processed" && kind != "run" && !by_mark.contains_key(mark.as_str()) {
            wrong.push(format!("task {id} is done, but {mark} was never executed"));
        }
        // A worker that dies while it asks a provider gives it half a text, but ends no task.
        if facts.torn.lines().any(|torn| torn == mark) {
            wrong.push(format!("{mark} was done before its file was whole"));
        }
    }
}

/// Checks that members report the end of each task once, and count no member as dead before they
/// have read its heartbeat often enough.
fn judge_logs(logs: &str, wrong: &mut Vec<String>) {
    let mut reported: BTreeMap<&str, usize> = BTreeMap::new();
    for line in logs.lines() {
        if let Some(id) = ended_task(line) {
            *reported.entry(id).or_default() += 1;
        }
        let reads = line.split_once(", read ").and_then(|(_, rest)| rest.split(' ').next());
        if reads.is_some_and(|reads| reads.parse().is_ok_and(|reads: u32| reads < READS)) {
            wrong.push(format!("a member counted as dead too soon: {line}"));
        }
    }
    if reported.is_empty() {
        wrong.push("no log reports the end of a task".into());
    }
    for (id, times) in reported.into_iter().filter(|(_, times)| *times > 1) {
        wrong.push(format!("the end of task {id} was reported {times} times"));
    }
}

/// Returns the task whose end a worker reports in a line: `… (task ID): done (0.1s)`.
fn ended_task(line: &str) -> Option<&str> {
    let (id, rest) = line.split_once("(task ")?.1.split_once(')')?;
    let how = rest.strip_prefix(": ")?;
    let ended = ["done", "failed", "cancelled"].iter().any(|end| how.starts_with(end));
    ended.then(|| id.split(',').next().unwrap_or(id))
}

/// Returns the number of executions, and of those that repeat an attempt.
pub(crate) fn count_executions(trace: &str) -> (usize, usize) {
    let attempts: Vec<&str> =
        trace.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    let different: HashSet<&str> = attempts.iter().copied().collect();
    (attempts.len(), attempts.len() - different.len())
}
