//! Documents of the queue: an attempt as a task, and the status that a worker leaves, with which
//! the run continues.
//!
//! **Invariant:** a status counts only if it carries the ticket of its task. No document contains
//! the value of a secret.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::work::Work;
use crate::base::ids::{RunId, TaskAttempt};
use crate::base::json;
use crate::base::time::Time;
use crate::engine::{Record, StepStatus, TaskRef};
use crate::queue::name::label;
use crate::queue::{Claim, Task, TaskId, TaskName};

/// Default priority of a task.
pub(crate) const PRIORITY: u8 = 5;
/// The agent whose inbox receives submitted runs.
pub(crate) const COORDINATOR: &str = "coordinator";

/// An attempt at a step, as a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StepTask {
    pub run_id: RunId,
    /// RUN_ROOT; relative if it lies inside the workspace.
    pub run_root: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub debug: bool,
    /// Every secret that the workflow names; their values are masked in all stored output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masked: Vec<String>,
    pub ticket: String,
    pub work: Work,
}

/// A run, as a task for a coordinator that drives it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunTask {
    pub run_id: RunId,
    pub run_root: String,
}

/// The request in a task document.
#[derive(Debug)]
pub(crate) enum Asked {
    Step(Box<StepTask>),
    Run(RunTask),
    /// Text that a user dropped.
    Free,
}

/// Builds the common members of every task document.
fn head(kind: &str, id: &TaskId, agent: &str, at: Time) -> Map<String, Value> {
    let Value::Object(head) = json!({
        "schema": "task/v1",
        "kind": kind,
        "id": id.as_str(),
        "agent": agent,
        "created_at": at.to_milli(),
    }) else {
        unreachable!()
    };
    head
}

fn with(mut head: Map<String, Value>, body: impl Serialize) -> Map<String, Value> {
    if let Ok(Value::Object(body)) = serde_json::to_value(body) {
        head.extend(body);
    }
    head
}

/// Builds the task of an attempt. `None` if the reference has an invalid ID.
pub(crate) fn step_task(
    reference: &TaskRef,
    step: &StepTask,
    crash_limit: u32,
    at: Time,
) -> Option<Task> {
    let id = TaskId::parse(&reference.id)?;
    let path = step.work.step.to_string();
    let mut document = head("step", &id, &reference.agent, at);
    document.insert("step".into(), path.clone().into());
    document.insert("step_attempt".into(), step.work.attempt.into());
    let name = name(&id, &path);
    let (agent, batch) = (reference.agent.clone(), step.run_id.to_string());
    Some(Task { name, agent, batch, crash_limit, document: with(document, step) })
}

/// Builds the task of a run.
pub(crate) fn run_task(id: &TaskId, run: &RunTask, workflow: &str, at: Time) -> Task {
    let document = with(head("run", id, COORDINATOR, at), run);
    let stem = std::path::Path::new(workflow).file_stem().unwrap_or_default();
    Task {
        name: name(id, &stem.to_string_lossy()),
        agent: COORDINATOR.into(),
        batch: run.run_id.to_string(),
        // A run is rarely the cause of its coordinators' deaths, and a long run sees many.
        crash_limit: 1000,
        document,
    }
}

fn name(id: &TaskId, text: &str) -> TaskName {
    TaskName {
        priority: PRIORITY,
        id: id.clone(),
        label: label(text),
        attempt: TaskAttempt::FIRST,
        crashes: 0,
    }
}

/// Parses the request in a claimed task. The error is one sentence.
pub(crate) fn read(document: &Map<String, Value>) -> Result<Asked, String> {
    let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("schema") != "task/v1" {
        return Err(format!("its schema is `{}`, not `task/v1`", text("schema")));
    }
    let body = || Value::Object(document.clone());
    let wrong = |error: serde_json::Error| format!("it is no task of a {}: {error}", text("kind"));
    match text("kind") {
        "step" => json::from_value(&body()).map(Asked::Step).map_err(wrong),
        "run" => json::from_value(&body()).map(Asked::Run).map_err(wrong),
        "free" => Ok(Asked::Free),
        kind => Err(format!("its kind is `{kind}`, which this version does not know")),
    }
}

/// Builds the status of a task, in the format that agents leave for users, with the members that
/// the fleet needs.
pub(crate) fn status(
    claim: &Claim,
    record: &Record,
    began: Time,
    ended: Time,
) -> Map<String, Value> {
    let document = &claim.task.document;
    let member = |key: &str| document.get(key).cloned().unwrap_or(Value::Null);
    let error = record.error.as_ref();
    let message = match (error, record.status) {
        (Some(error), _) => error.message.clone(),
        (None, StepStatus::Completed) => "completed".to_owned(),
        (None, _) => "failed".to_owned(),
    };
    // A task that was not executed has written no output.
    let output_file = document.get("work").and_then(|work| work.get("output_file"));
    let output_file = output_file.filter(|_| record.metrics.is_some());
    let Value::Object(mut status) = json!({
        "schema": "status/v1",
        "correlation_id": document.get("run_id").unwrap_or(&member("id")),
        "agent": claim.agent,
        "timestamp": ended.to_milli(),
        "success": record.status == StepStatus::Completed,
        "exit_code": record.exit_code.unwrap_or(0),
        "outputs": output_file.into_iter().collect::<Vec<_>>(),
        "metrics": record.metrics,
        "next_actions": [],
        "message": message,
        "task_id": claim.name.task.id.as_str(),
        "attempt": claim.name.task.attempt,
        "ticket": member("ticket"),
        "worker": claim.name.worker,
        "started_at": began.to_milli(),
        "record": record,
    }) else {
        unreachable!()
    };
    for key in ["run_id", "step", "step_attempt", "title"] {
        if let Some(value) = document.get(key) {
            status.insert(key.into(), value.clone());
        }
    }
    if let Some(spent) = &record.usage {
        status.insert("usage".into(), json!(spent));
        status.insert("session".into(), json!(spent.session));
    }
    if let Some(tree) = &record.worktree {
        status.insert("worktree".into(), json!(tree));
    }
    if let Some(error) = error {
        let reason = if record.exit_code == Some(124) { "timeout" } else { "failed" };
        let message = &error.message;
        status.insert("error".into(), json!({ "reason": reason, "message": message }));
    }
    status
}

/// Returns the result in a status, if it belongs to this task. The error states why it does not
/// count.
pub(crate) fn record(status: &Map<String, Value>, task: &TaskRef) -> Result<Record, String> {
    let text = |key: &str| status.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("task_id") != task.id || text("ticket") != task.ticket {
        return Err("it does not carry the ticket of the task".into());
    }
    if let Some(record) = status.get("record") {
        return json::from_value(record).map_err(|error| format!("its record: {error}"));
    }
    // The task ended without a complete execution.
    let error = status.get("error").cloned().unwrap_or_default();
    let message = error["message"].as_str().unwrap_or(text("message")).to_owned();
    let code = status.get("exit_code").and_then(Value::as_i64).filter(|code| *code != 0);
    let mut context = Map::new();
    context.insert("reason".into(), error["reason"].clone());
    Ok(Record::refused(code.unwrap_or(1) as i32, message, context))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{Attempt, StepPath};
    use crate::queue::ClaimName;

    fn claim() -> (Claim, TaskRef) {
        let id = TaskId::new(1, 2);
        let task = TaskRef { id: id.to_string(), agent: "qa".into(), ticket: "t1cket".into() };
        let step = StepTask {
            run_id: RunId::new("20250115T143022Z", 7),
            run_root: ".orchestrate/runs/x".into(),
            debug: false,
            masked: vec!["TOKEN".into()],
            ticket: task.ticket.clone(),
            work: Work::new(StepPath::top("Build"), Attempt::new(2), vec!["true".into()]),
        };
        let task_file = step_task(&task, &step, 3, Time(0)).unwrap();
        let name =
            ClaimName { task: task_file.name.clone(), worker: "w".into(), claim: "c".into() };
        (Claim::of(name, "qa", task_file), task)
    }

    #[test]
    fn a_task_reads_back_as_what_it_asks_for() {
        let (claim, _) = claim();
        let Ok(Asked::Step(step)) = read(&claim.task.document) else { panic!("no step") };
        assert_eq!(
            (step.work.attempt, step.masked.as_slice()),
            (Attempt::new(2), &["TOKEN".to_owned()][..])
        );
        let mut other = claim.task.document.clone();
        other.insert("kind".into(), "dance".into());
        assert!(read(&other).unwrap_err().contains("`dance`"));
    }

    #[test]
    fn only_a_status_with_the_ticket_counts() {
        let (claim, task) = claim();
        let record_left = Record { status: StepStatus::Completed, ..Record::default() };
        let left = status(&claim, &record_left, Time(0), Time(5));
        assert_eq!(record(&left, &task), Ok(record_left));
        let forged = TaskRef { ticket: "other".into(), ..task };
        assert!(record(&left, &forged).unwrap_err().contains("ticket"));
    }
}
