//! Completes an executed free task: reads its answer, judges its result, enqueues its follow-ups
//! and builds its status.

use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::answer::{self, Answer, Done, FollowUp, FollowUps};
use crate::agent::{contract, echo};
use crate::attempt::perform::{ANSWER, reply};
use crate::base::ids::TaskAttempt;
use crate::base::random::unguessable;
use crate::disk::fs::OnVolume as _;
use crate::engine::{Fault, Record, StepStatus};
use crate::queue::{Queue, Task};
use crate::settings::Config;
use crate::workspace::Workspace;

/// A free task whose result has been judged.
#[derive(Debug)]
pub(crate) struct Concluded {
    pub record: Record,
    pub answer: Answer,
    pub follow_ups: FollowUps,
}

/// Judges an execution. `log` contains its output if the record does not hold all of it.
pub(crate) fn conclude(
    done: Done,
    mut record: Record,
    log: &Path,
    config: &Config,
    workspace: &Workspace,
) -> Concluded {
    if record.status != StepStatus::Completed {
        let (answer, follow_ups) = Default::default();
        return Concluded { record, answer, follow_ups };
    }
    let output = output(&record, log);
    let output = echo::own_part(&output, done.asked);
    let answer = answer::read(&output);
    if done.task.keeps_contract(config, done.agent)
        && let Err((word, message)) = contract::parse(&output).kept()
    {
        record.status = StepStatus::Failed;
        record.exit_code = Some(2);
        let mut error = Fault { message, exit_code: 2, ..Fault::default() };
        error.context.insert("agent_output".into(), word.into());
        record.error = Some(error);
        let (answer, follow_ups) = Default::default();
        return Concluded { record, answer, follow_ups };
    }
    if let Some(message) = answer.failure() {
        record.status = StepStatus::Failed;
        record.exit_code = Some(1);
        record.error = Some(Fault { message, exit_code: 1, ..Fault::default() });
    }
    let limit = config.queue.task_bytes;
    let read = |path: &str| workspace.read_text(path, limit);
    let follow_ups = answer::follow_ups(&output, done, config, &read);
    Concluded { record, answer, follow_ups }
}

/// Returns the agent's answer. If its log cannot be read, returns the part that the record holds.
fn output(record: &Record, log: &Path) -> String {
    let kept = record.output.clone().unwrap_or_default();
    if record.truncated != Some(true) {
        return kept;
    }
    // If the output is a stream of events, only a part of it is the agent's answer.
    let answer = log.with_extension(ANSWER);
    let log = if record.usage.is_some() && answer.is_present() { &answer } else { log };
    match reply::end_of(log) {
        Ok(text) => text,
        Err(error) => {
            tracing::warn!("the end of an answer cannot be read from its log: {error}");
            kept
        }
    }
}

/// Enqueues follow-ups. Call it before the preceding task is completed: another execution of that
/// task makes the same follow-ups. Skips those that an earlier attempt has enqueued already.
pub(crate) fn put_out(
    queue: &Queue,
    follow_ups: &[FollowUp],
    crash_limit: u32,
    attempt: TaskAttempt,
) -> io::Result<()> {
    let mut tasks = Vec::new();
    for FollowUp { id, agent, task } in follow_ups {
        let task: Task = task.task(agent, id, &unguessable(), crash_limit);
        if attempt == TaskAttempt::FIRST || queue.find(agent, &task.batch, id)?.is_none() {
            tasks.push(task);
        }
    }
    if tasks.is_empty() { Ok(()) } else { queue.enqueue(&tasks) }
}

impl Concluded {
    /// Returns the members of the task's status that its record does not contain.
    pub(crate) fn members(&self) -> Map<String, Value> {
        let Concluded { answer, follow_ups, .. } = self;
        let mut members = Map::new();
        if let Some(summary) = &answer.summary {
            members.insert("message".into(), summary.as_str().into());
        }
        if let Some(outputs) = &answer.outputs {
            members.insert("outputs".into(), outputs.clone());
        }
        let made = follow_ups.tasks.iter().map(|made| {
            let (id, title) = (made.id.as_str(), made.task.heading());
            json!({ "agent": made.agent, "task_id": id, "title": title })
        });
        let left = follow_ups.left.iter().map(|file| json!({ "file": file }));
        let next: Vec<Value> = made.chain(left).collect();
        members.insert("next_actions".into(), next.into());
        if !follow_ups.refused.is_empty() {
            members.insert("refused_actions".into(), json!(follow_ups.refused));
        }
        if let Some(error) = self.record.error.as_ref().filter(|_| answer.success == Some(false)) {
            members.insert("message".into(), error.message.as_str().into());
        }
        members
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::disk::RealDisk;
    use crate::free_task::parse::FreeTask;
    use crate::queue::{Layout, Queue, TaskId};

    fn concluded(dir: &Path, task: &FreeTask, record: Record) -> Concluded {
        let id = TaskId::new(1_736_951_422_123, 2);
        let done = Done { task, id: &id, agent: "engineer", apart: None, left: None, asked: &[] };
        let workspace = Workspace::open(dir).unwrap();
        conclude(done, record, &dir.join("log"), &Config::built_in(), &workspace)
    }

    fn said(output: &str) -> Record {
        let status = StepStatus::Completed;
        Record { status, exit_code: Some(0), output: Some(output.into()), ..Record::default() }
    }

    #[test]
    fn the_answer_decides_where_the_command_did_well() {
        let dir = tempfile::tempdir().unwrap();
        let task = FreeTask::parse("---\nnext: [qa]\n---\nFix it.").unwrap();
        let plain = concluded(dir.path(), &task, said("I did."));
        assert_eq!(plain.record.status, StepStatus::Completed);
        assert_eq!(plain.members()["next_actions"][0]["agent"], "qa");
        let failed = concluded(dir.path(), &task, said("{\"success\": false, \"error\": \"no\"}"));
        assert_eq!(failed.record.status, StepStatus::Failed);
        assert_eq!(failed.members()["message"], "the agent says that it failed: no");
        assert!(failed.follow_ups.tasks.is_empty());
        let broken = Record { status: StepStatus::Failed, ..said("{\"success\": true}") };
        let broken = concluded(dir.path(), &task, broken);
        assert_eq!(broken.record.status, StepStatus::Failed);
        assert!(broken.follow_ups.tasks.is_empty(), "nothing follows from a command that failed");
    }

    #[test]
    fn the_end_of_a_long_answer_is_in_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("{}\n{{\"success\": false}}\n", "x".repeat(3 << 20));
        std::fs::write(dir.path().join("log"), text).unwrap();
        let task = FreeTask::parse("Fix it.").unwrap();
        let record = Record { truncated: Some(true), ..said("xxx") };
        assert_eq!(concluded(dir.path(), &task, record).record.status, StepStatus::Failed);
    }

    #[test]
    fn files_are_read_inside_the_workspace_only() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("plan.md"), "Do this.").unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("out")).unwrap();
        let actions = json!({ "next_actions": [
            { "agent": "qa", "file": "plan.md" }, { "agent": "qa", "file": "out/etc/hostname" },
        ] });
        let task = FreeTask::parse("Fix it.").unwrap();
        let concluded = concluded(dir.path(), &task, said(&actions.to_string()));
        let [made] = concluded.follow_ups.tasks.as_slice() else { panic!("{concluded:?}") };
        assert_eq!(made.task.text, "Do this.");
        let refused = &concluded.members()["refused_actions"][0];
        assert!(refused.as_str().unwrap().contains("out of the workspace"), "{refused}");
    }

    #[test]
    fn a_follow_up_is_put_out_once() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let queue = Queue::open(Arc::new(RealDisk::default()), layout, "a", 1, false).unwrap();
        let task = FreeTask::parse("---\nnext: [qa]\n---\nFix it.").unwrap();
        for attempt in (1..4).map(TaskAttempt::new) {
            let made = concluded(dir.path(), &task, said("Another answer each time.")).follow_ups;
            put_out(&queue, &made.tasks, 3, attempt).unwrap();
            assert_eq!(queue.waiting("qa").unwrap().len(), 1);
        }
    }
}
