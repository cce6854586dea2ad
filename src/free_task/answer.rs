//! Evaluates an agent's answer to a free task: did it succeed, and which tasks follow from it.
//!
//! An answer may end with a JSON block, as the system prompt asks; an answer without one is valid
//! plain text. Follow-up tasks come from the block's `next_actions` and from the task's own `next`.
//!
//! **Invariant:** this module has no side effects. Every refused follow-up comes with its reason.

use std::borrow::Cow;

use serde_json::Value;

use super::parse::{FreeTask, follow_up_id};
use super::prompt::Read;
use crate::agent::contract;
use crate::queue::TaskId;
use crate::settings::Config;
use crate::workflow::path_fault;
use crate::workflow::settings::agent_fault;
use crate::worktree::After;
use crate::yaml::problem::nearest;

/// Bytes of an answer that a follow-up task includes: its end, where the result is. Half of Linux's
/// limit for one argument, so that the task that contains it still fits into one.
const HANDED_ON: usize = 64 << 10;

/// The result that an answer states about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    /// `None` if the answer does not state it.
    pub success: Option<bool>,
    pub summary: Option<String>,
    pub error: Option<String>,
    pub outputs: Option<Value>,
    next_actions: Vec<Value>,
}

/// A completed task and the agent that did it.
#[derive(Clone, Copy)]
pub(crate) struct Done<'a> {
    pub task: &'a FreeTask,
    pub id: &'a TaskId,
    pub agent: &'a str,
    /// The directory the task was done in, if that is not the workspace. Files are read from there
    /// first, and an `inbox` there is an ordinary directory.
    pub apart: Option<&'a str>,
    /// The commit at which the task left the branch of its bead.
    pub left: Option<&'a str>,
    /// The texts of the prompt that the agent got.
    pub asked: &'a [Cow<'a, str>],
}

/// A task to enqueue because of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FollowUp {
    /// The same for every execution of the preceding task. A caller that finds this ID in the queue
    /// must not enqueue the task again.
    pub id: TaskId,
    pub agent: String,
    pub task: FreeTask,
}

/// The consequences of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FollowUps {
    pub tasks: Vec<FollowUp>,
    /// The reason for each refused follow-up, one sentence each.
    pub refused: Vec<String>,
    /// Files that lie in an inbox and therefore are tasks already.
    pub left: Vec<String>,
}

/// Reads the JSON block at the end of an answer. Returns the default if there is none.
pub(crate) fn read(output: &str) -> Answer {
    let Ok(block) = contract::ending(output) else { return Answer::default() };
    let text = |key: &str| {
        let text = block.get(key).and_then(Value::as_str).map(str::trim);
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let outputs = block.get("outputs").filter(|outputs| !outputs.is_null());
    let actions = [Some(&block), outputs.and_then(Value::as_object)];
    let actions = actions.into_iter().flatten().find_map(|map| map.get("next_actions")?.as_array());
    Answer {
        success: block.get("success").and_then(Value::as_bool),
        summary: text("summary").or_else(|| text("message")),
        error: text("error"),
        outputs: outputs.cloned(),
        next_actions: actions.cloned().unwrap_or_default(),
    }
}

impl Answer {
    /// Returns the reason if the agent reports failure although its command succeeded.
    pub(crate) fn failure(&self) -> Option<String> {
        let told = || self.error.clone().or_else(|| self.summary.clone());
        (self.success == Some(false)).then(|| match told() {
            Some(reason) => format!("the agent says that it failed: {reason}"),
            None => "the agent says that it failed, and not why".into(),
        })
    }
}

/// Returns the follow-up tasks of a completed task: those that the agent requests and, unless the
/// agent reports failure, the next one of the task's own `next` chain.
pub(crate) fn follow_ups(output: &str, done: Done, config: &Config, read_file: Read) -> FollowUps {
    let answer = read(output);
    let mut making = Making { output, done, config, read_file, made: FollowUps::default() };
    let first = done.task.next.first();
    if let Some(agent) = first.filter(|_| answer.success != Some(false)) {
        let next = FreeTask { next: done.task.next[1..].to_vec(), ..making.handed_on(None) };
        making.add(0, agent, || Ok(next));
    }
    for (index, action) in answer.next_actions.iter().enumerate() {
        making.ask(index + 1, action);
    }
    making.made
}

struct Making<'a> {
    output: &'a str,
    done: Done<'a>,
    config: &'a Config,
    read_file: Read<'a>,
    made: FollowUps,
}

impl Making<'_> {
    /// Adds the task that one entry of `next_actions` requests, or refuses it.
    fn ask(&mut self, index: usize, action: &Value) {
        let text = |key: &str| {
            let text = action.get(key).and_then(Value::as_str);
            text.filter(|text| !text.trim().is_empty()).map(str::to_owned)
        };
        let Some(agent) = text("agent") else {
            self.refuse(format!("next action {index} names no `agent`"));
            return;
        };
        if let Some(fault) = self.forbids(&agent) {
            self.refuse(fault);
            return;
        }
        let title = text("title");
        match (text("file"), text("text")) {
            (Some(file), _) => {
                let apart = self.read_apart(&file);
                if inbox_of(&file).is_some() && apart == Ok(None) {
                    self.leave(&agent, file);
                    return;
                }
                let read = self.read_file;
                self.add(index, &agent, || {
                    let task = read_task(&file, apart, read)?;
                    Ok(FreeTask { title: title.or(task.title.clone()), ..task })
                });
            }
            (None, Some(text)) => {
                self.add(index, &agent, || Ok(FreeTask { text, title, ..FreeTask::default() }));
            }
            (None, None) => {
                let task = self.handed_on(title);
                self.add(index, &agent, || Ok(task));
            }
        }
    }

    /// Reads a file from the directory the task was done in. `None` if that is the workspace.
    fn read_apart(&self, file: &str) -> Result<Option<String>, String> {
        match self.done.apart {
            Some(dir) if path_fault(file).is_none() => (self.read_file)(&format!("{dir}/{file}")),
            _ => Ok(None),
        }
    }

    /// Builds a task from the text of the chain's first task and this answer.
    fn handed_on(&self, title: Option<String>) -> FreeTask {
        let Done { task, agent, .. } = self.done;
        let origin = task.origin.as_ref().unwrap_or(&task.text);
        let title = title.or_else(|| task.title.clone());
        let heading = title.as_ref().map(|title| format!("# {title}\n\n")).unwrap_or_default();
        let first = match origin.trim() {
            "" => String::new(),
            first => format!("{first}\n\n"),
        };
        let answer = tail(self.output.trim());
        let text = format!("{heading}{first}## Answer of `{agent}`\n\n{answer}\n");
        FreeTask {
            text,
            title: title.or_else(|| Some(task.heading())),
            priority: task.priority,
            origin: Some(origin.clone()),
            ..FreeTask::default()
        }
    }

    fn add(&mut self, index: usize, agent: &str, make: impl FnOnce() -> Result<FreeTask, String>) {
        let made = match self.forbids(agent) {
            Some(fault) => Err(fault),
            None => make(),
        };
        let Done { task, id, .. } = self.done;
        let (depth, after) = (task.depth + 1, Some(id.clone()));
        let made = made.map(|made| {
            // A follow-up continues on the branch where this task ended, unless it has its own
            // bead.
            let left = self.done.left.map(|commit| (commit.to_owned(), format!("task {id}")));
            let left = left.map(|(commit, step)| After { commit, step });
            let (bead, isolation, left) = match made.bead {
                None => (task.bead.clone(), made.isolation.or(task.isolation), left),
                own => (own, made.isolation, None),
            };
            FreeTask { depth, after, bead, isolation, left, ..made }
        });
        match made.and_then(|made| made.check(self.config, agent).map(|()| made)) {
            Ok(task) => {
                let (id, agent) = (follow_up_id(id, index), agent.to_owned());
                self.made.tasks.push(FollowUp { id, agent, task });
            }
            Err(fault) => self.refuse(fault),
        }
    }

    /// Records a file in an inbox as a task. Refuses it if the inbox belongs to another agent.
    fn leave(&mut self, agent: &str, file: String) {
        match inbox_of(&file) {
            Some(other) if other != agent => {
                let fault =
                    format!("`{file}` is for `{agent}`, but lies in the inbox of `{other}`");
                self.refuse(fault);
            }
            _ => self.made.left.push(file),
        }
    }

    fn refuse(&mut self, fault: String) {
        self.made.refused.push(fault);
    }

    /// Returns the reason why this agent must not get a follow-up, or `None` if it may.
    fn forbids(&self, agent: &str) -> Option<String> {
        let queue = &self.config.queue;
        if let Some(fault) = agent_fault(agent) {
            return Some(format!("`{agent}` cannot name an agent: {fault}"));
        }
        let giver = self.done.agent;
        let own = self.config.agent(giver).next;
        let known = self.config.agents();
        if !known.contains_key(agent) {
            let near = nearest(agent, known.keys().map(String::as_str));
            let near = near.map(|near| format!("; did it mean `{near}`?")).unwrap_or_default();
            return Some(format!("`{agent}` is no agent of the settings{near}"));
        }
        if own.is_some_and(|own| !own.iter().any(|name| name == agent)) {
            return Some(format!(
                "`{giver}` may not hand tasks to `{agent}`: see `next` in its settings"
            ));
        }
        if self.done.task.depth >= queue.follow_up_depth {
            let most = queue.follow_up_depth;
            return Some(format!(
                "`{agent}` gets no task: a chain of {most} follow-ups is the longest"
            ));
        }
        let full = self.made.tasks.len() >= queue.follow_up_count as usize;
        let most = queue.follow_up_count;
        full.then(|| format!("`{agent}` gets no task: one answer may ask for {most} at most"))
    }
}

/// Returns the agent whose inbox contains this file as a task.
fn inbox_of(file: &str) -> Option<&str> {
    let (agent, name) = file.trim_start_matches("./").strip_prefix("inbox/")?.split_once('/')?;
    (!name.contains('/') && name.ends_with(".task") && !name.starts_with('.')).then_some(agent)
}

/// Parses the task in a file. `apart` is its text from the preceding task's own directory; without
/// it, the file is read from the workspace.
fn read_task(
    file: &str,
    apart: Result<Option<String>, String>,
    read: Read,
) -> Result<FreeTask, String> {
    if let Some(fault) = path_fault(file) {
        return Err(format!("`{file}` is refused: {fault}"));
    }
    let text = match apart {
        Ok(None) => read(file),
        apart => apart,
    };
    let text = text.map_err(|reason| format!("`{file}` cannot be read: {reason}"))?;
    let text = text.ok_or_else(|| format!("`{file}` does not exist"))?;
    FreeTask::parse(&text).map_err(|fault| format!("`{file}` is no task: {fault}"))
}

/// Cuts a long answer to its last [`HANDED_ON`] bytes.
fn tail(answer: &str) -> String {
    if answer.len() <= HANDED_ON {
        return answer.to_owned();
    }
    let mut from = answer.len() - HANDED_ON;
    while !answer.is_char_boundary(from) {
        from += 1;
    }
    format!("(The first {from} bytes are left out.)\n{}", &answer[from..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Layer;
    use serde_json::json;

    fn config(text: &str) -> Config {
        let layer = Layer { file: "c".into(), sha256: String::new(), text: text.into() };
        Config::frozen(vec![layer]).unwrap()
    }

    fn files(path: &str) -> Result<Option<String>, String> {
        Ok(match path {
            "plan/a.md" => Some("---\ntitle: A\npriority: 1\n---\nDo a.\n".into()),
            "plan/bad.md" => Some("---\nx: 1\n---\n".into()),
            _ => None,
        })
    }

    fn answered(actions: Value) -> String {
        let block = json!({ "success": true, "next_actions": actions });
        format!("Done.\n\n```json\n{block}\n```\n")
    }

    fn follow(config: &Config, task: &FreeTask, output: &str) -> FollowUps {
        let id = TaskId::new(1, 2);
        let done = Done { task, id: &id, agent: "engineer", apart: None, left: None, asked: &[] };
        follow_ups(output, done, config, &files)
    }

    #[test]
    fn an_answer_may_say_how_it_went_and_need_not() {
        for (output, success) in [
            ("all is well", None),
            ("```json\n{\"success\": false}\n```", Some(false)),
            ("```json\n{\"success\": false}\n```\n```json\n{\"a\": 1}\n```\n", None),
            ("```json\n{\"success\": tru\n```", None),
            ("```json\n{\"success\": \"yes\"}\n```", None),
            ("Well:\n{\"success\": true}\n", Some(true)),
            // As agents leave it for people, where `outputs` is a list.
            ("{\"schema\": \"status/v1\", \"success\": false, \"outputs\": [\"a\"]}", Some(false)),
        ] {
            assert_eq!(read(output).success, success, "{output}");
        }
    }

    #[test]
    fn a_failure_is_told_in_the_agents_words() {
        let answer = read("```json\n{\"success\": false, \"error\": \"no tests\"}\n```");
        assert_eq!(answer.failure().unwrap(), "the agent says that it failed: no tests");
        let answer = read("{\"success\": false, \"message\": \"m\", \"error\": null}");
        assert_eq!(answer.failure().unwrap(), "the agent says that it failed: m");
        assert_eq!(read("fine").failure(), None);
    }

    #[test]
    fn an_agent_hands_work_on() {
        let output = answered(json!([
            { "agent": "qa", "text": "Review it.", "title": "Review" },
            { "agent": "architect", "file": "plan/a.md" },
            { "agent": "qa", "file": "inbox/qa/review.task" },
            { "agent": "qa", "title": "Look at it" },
        ]));
        let task = FreeTask { depth: 1, ..FreeTask::parse("Fix it.").unwrap() };
        let made = follow(&Config::built_in(), &task, &output);
        assert_eq!(made.refused, [""; 0]);
        assert_eq!(made.left, ["inbox/qa/review.task"]);
        let [review, plan, look] = made.tasks.as_slice() else { panic!("{made:?}") };
        assert_eq!((review.agent.as_str(), review.task.text.as_str()), ("qa", "Review it."));
        assert_eq!((review.task.depth, review.task.title.as_deref()), (2, Some("Review")));
        assert_eq!(review.task.after, Some(TaskId::new(1, 2)));
        assert_eq!((plan.task.text.as_str(), plan.task.priority), ("Do a.\n", Some(1)));
        let text = &look.task.text;
        assert!(text.starts_with("# Look at it\n\nFix it.\n\n## Answer of `engineer`\n\nDone."));
        let ids: std::collections::HashSet<_> = made.tasks.iter().map(|made| &made.id).collect();
        assert_eq!(ids.len(), 3);
        assert_eq!(follow(&Config::built_in(), &task, &output), made, "done again, made again");
    }

    #[test]
    fn a_chain_goes_from_one_to_the_next() {
        let task = FreeTask::parse("---\ntitle: T\nnext: [qa, architect]\n---\nFix it.").unwrap();
        let config = Config::built_in();
        let made = follow(&config, &task, "I fixed it.");
        let [qa] = made.tasks.as_slice() else { panic!("{made:?}") };
        assert_eq!((qa.agent.as_str(), qa.task.next.as_slice()), ("qa", &["architect".into()][..]));
        assert_eq!(qa.task.text, "# T\n\nFix it.\n\n## Answer of `engineer`\n\nI fixed it.\n");
        let id = TaskId::new(5, 6);
        let done =
            Done { task: &qa.task, id: &id, agent: "qa", apart: None, left: None, asked: &[] };
        let made = follow_ups("It works.", done, &config, &files);
        let [last] = made.tasks.as_slice() else { panic!("{made:?}") };
        assert_eq!(last.task.text, "# T\n\nFix it.\n\n## Answer of `qa`\n\nIt works.\n");
        assert_eq!((last.task.depth, last.task.next.len()), (2, 0));
        let failed = "```json\n{\"success\": false}\n```";
        assert_eq!(follow(&config, &task, failed), FollowUps::default());
    }

    #[test]
    fn what_is_not_allowed_is_refused_with_a_reason() {
        let settings = "agents: { engineer: { next: [qa] } }\n\
                        queue: { follow_up_depth: 3, follow_up_count: 2 }\n";
        let config = config(settings);
        let task = FreeTask::parse("Fix it.").unwrap();
        for (action, said) in [
            (json!({ "agent": "architect", "text": "x" }), "may not hand tasks to `architect`"),
            (json!({ "agent": "qaa", "text": "x" }), "no agent of the settings"),
            (json!({ "agent": "../x", "text": "x" }), "cannot name an agent"),
            (json!({ "text": "x" }), "names no `agent`"),
            (json!("qa"), "names no `agent`"),
            (json!({ "agent": "qa", "file": "../x" }), "`../x` is refused"),
            (json!({ "agent": "qa", "file": "/etc/passwd" }), "is refused"),
            (json!({ "agent": "qa", "file": "plan/none.md" }), "does not exist"),
            (json!({ "agent": "qa", "file": "plan/bad.md" }), "is no task: line 2"),
            (json!({ "agent": "qa", "file": "inbox/engineer/x.task" }), "inbox of `engineer`"),
        ] {
            let made = follow(&config, &task, &answered(json!([action])));
            assert_eq!((made.tasks.len(), made.refused.len()), (0, 1), "{action}: {made:?}");
            assert!(made.refused[0].contains(said), "{action}: {}", made.refused[0]);
        }
        let three = json!([{ "agent": "qa" }, { "agent": "qa" }, { "agent": "qa" }]);
        let made = follow(&config, &task, &answered(three.clone()));
        assert_eq!((made.tasks.len(), made.refused.len()), (2, 1));
        let deep = FreeTask { depth: 3, ..task };
        let made = follow(&config, &deep, &answered(three));
        assert_eq!((made.tasks.len(), made.refused.len()), (0, 3));
    }

    #[test]
    fn a_long_answer_is_handed_on_by_its_end() {
        let long = format!("é{}THE END", "x".repeat(HANDED_ON));
        let task = FreeTask::parse("---\nnext: [qa]\n---\nFix it.").unwrap();
        let made = follow(&Config::built_in(), &task, &long);
        let text = &made.tasks[0].task.text;
        assert!(text.len() < HANDED_ON + 200 && text.ends_with("THE END\n"));
        assert!(text.contains("bytes are left out"));
    }
}
