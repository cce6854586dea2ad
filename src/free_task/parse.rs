//! Free tasks: work that belongs to no run. A user or another agent describes it in plain text; the
//! agent's settings determine how it is executed.
//!
//! **Invariant:** this module has no side effects.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::base::digest::sha256;
use crate::base::ids::{BeadId, TaskAttempt};
use crate::base::time::Time;
use crate::queue::name::label;
use crate::queue::{Task, TaskId, TaskName};
use crate::settings::Config;
use crate::workflow::bead::is_file;
use crate::workflow::front::{self, TaskHead, Written};
use crate::workflow::plan::Isolation;
use crate::workflow::settings::agent_fault;
use crate::workflow::{Configured, Problem, path_fault};
use crate::worktree::After;
use crate::yaml::problem::nearest;

/// The schema of every task.
pub(crate) const SCHEMA: &str = "task/v1";
const KIND: &str = "free";
/// Default priority of a task.
const PRIORITY: u8 = 5;

/// A free task, in its author's words.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FreeTask {
    pub text: String,
    pub title: Option<String>,
    pub provider: Option<String>,
    pub model: Option<String>,
    pub priority: Option<u8>,
    pub timeout: Option<Duration>,
    pub spell: Option<String>,
    /// Position of `spell` in the file that was dropped into the inbox.
    pub spell_at: Option<Written>,
    /// An ID, a file, or the work item itself.
    pub bead: Option<Value>,
    /// Isolation of the bead's work; `None`: in its worktree.
    pub isolation: Option<Isolation>,
    /// Agents that continue the work, one after the other.
    pub next: Vec<String>,
    /// Number of tasks that precede it in its chain.
    pub depth: u32,
    /// The file that was dropped into the inbox.
    pub source: Option<String>,
    /// The task that it follows from.
    pub after: Option<TaskId>,
    /// Text of the first task of its chain, if its own text is built from that.
    pub origin: Option<String>,
    /// Position at which the preceding task left the branch of its bead.
    pub left: Option<After>,
}

impl FreeTask {
    /// Parses the text of a task file. The error is one sentence, with the line number if there is
    /// one.
    pub(crate) fn parse(text: &str) -> Result<FreeTask, String> {
        refuse_zero_bytes(text)?;
        let parts = front::split(text).map_err(|problem| sentence(&problem))?;
        if parts.head.is_none() {
            refuse_document(parts.body)?;
        }
        let head = match parts.head.map(front::read_task_head) {
            None => TaskHead::default(),
            Some(Ok(head)) => head,
            Some(Err(problems)) => {
                return Err(problems.first().map(sentence).unwrap_or_default());
            }
        };
        let TaskHead { title, provider, model, priority, timeout, spell, .. } = head;
        let TaskHead { spell_at, bead, isolation, next, .. } = head;
        // If a spell or a work item describes the work, the text is optional.
        let task = match spell.is_some() || bead.is_some() {
            true => FreeTask { text: parts.body.to_owned(), ..FreeTask::default() },
            false => FreeTask::plain(parts.body)?,
        };
        let task = FreeTask { spell_at, bead, isolation, next, ..task };
        Ok(FreeTask { title, provider, model, priority, timeout, spell, ..task })
    }

    /// Creates a task from text alone, without parsing a header.
    pub(crate) fn plain(text: &str) -> Result<FreeTask, String> {
        refuse_zero_bytes(text)?;
        if text.trim().is_empty() {
            return Err("it says nothing to do; write what is wanted as plain text".into());
        }
        Ok(FreeTask { text: text.to_owned(), ..FreeTask::default() })
    }

    /// Checks that `agent` can do the task under these settings, before the task is enqueued. The
    /// error states why not.
    pub(crate) fn check(&self, config: &Config, agent: &str) -> Result<(), String> {
        if let Some(fault) = agent_fault(agent) {
            return Err(format!("`{agent}` cannot name an agent: {fault}"));
        }
        self.provider(config, agent)?;
        if let Some(fault) = self.bead.as_ref().and_then(bead_fault) {
            return Err(fault);
        }
        let known = |name: &&String| config.agents().contains_key(*name) || *name == agent;
        match self.next.iter().find(|name| !known(name)) {
            None => Ok(()),
            Some(name) => {
                let near = nearest(name, config.agents().keys().map(String::as_str));
                let cure = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "name it under `agents` in the settings".into(),
                };
                Err(format!("`next` names `{name}`, which is no agent of the settings; {cure}"))
            }
        }
    }

    /// Returns the provider that answers the task: its own, its agent's, or the default one.
    pub(crate) fn provider<'a>(
        &'a self,
        config: &'a Config,
        agent: &str,
    ) -> Result<String, String> {
        let configured = || config.agent(agent).provider;
        let name = self.provider.clone().or_else(configured);
        let name = name.unwrap_or_else(|| config.default_provider.clone());
        let all = config.providers();
        if all.contains_key(&name) {
            return Ok(name);
        }
        let known: Vec<_> = all.keys().map(|known| format!("`{known}`")).collect();
        Err(format!("provider `{name}` is not known; known are {}", known.join(", ")))
    }

    /// Returns a short label for lists: the title or first line, or else the names of the spell and
    /// the work item.
    pub(crate) fn heading(&self) -> String {
        let words = self.words();
        if !words.is_empty() {
            return words;
        }
        let spell = self.spell.as_deref().filter(|spell| !spell.contains('\n'));
        let bead = self.bead.as_ref().and_then(|bead| bead.as_str().or(bead["id"].as_str()));
        let words: Vec<_> = spell.into_iter().chain(bead).collect();
        words.join(" ")
    }

    /// Returns the title, or else the first line of the text, cut to 80 characters.
    pub(crate) fn words(&self) -> String {
        const SHOWN: usize = 80;
        let first = || self.text.lines().map(str::trim).find(|line| !line.is_empty());
        let words = self.title.as_deref().or_else(first).unwrap_or_default();
        let words = words.trim_start_matches(['#', ' ']);
        match words.char_indices().nth(SHOWN) {
            Some((cut, _)) => format!("{}…", &words[..cut]),
            None => words.to_owned(),
        }
    }

    /// Builds the task as it is put into an inbox. The same ID always gives the same name.
    pub(crate) fn task(&self, agent: &str, id: &TaskId, ticket: &str, crash_limit: u32) -> Task {
        let stem = |source: &String| Some(Path::new(source).file_stem()?.to_str()?.to_owned());
        let words = self.source.as_ref().and_then(stem).unwrap_or_else(|| self.heading());
        let priority = self.priority.unwrap_or(PRIORITY);
        Task {
            name: TaskName {
                priority,
                id: id.clone(),
                label: label(&words),
                attempt: TaskAttempt::FIRST,
                crashes: 0,
            },
            agent: agent.to_owned(),
            batch: day(made_at(id)),
            crash_limit,
            document: self.document(agent, id, ticket),
        }
    }

    /// Builds the JSON document of the task.
    pub(crate) fn document(&self, agent: &str, id: &TaskId, ticket: &str) -> Map<String, Value> {
        let mut document = Map::new();
        let mut put = |key: &str, value: Value| {
            if !value.is_null() {
                document.insert(key.to_owned(), value);
            }
        };
        put("schema", SCHEMA.into());
        put("kind", KIND.into());
        put("id", id.as_str().into());
        put("agent", agent.into());
        put("title", json!(self.title));
        put("text", json!(self.text));
        put("provider", json!(self.provider));
        put("model", json!(self.model));
        put("priority", json!(self.priority));
        put("timeout_ms", json!(self.timeout.map(|timeout| timeout.as_millis() as u64)));
        put("spell", json!(self.spell));
        put("spell_at", json!(self.spell_at));
        put("bead", json!(self.bead));
        put("isolation", json!(self.isolation));
        put("left", json!(self.left));
        put("next", json!(self.next));
        put("depth", json!(self.depth));
        put("source", json!(self.source));
        put("after", json!(self.after.as_ref().map(TaskId::as_str)));
        put("origin", json!(self.origin));
        put("created_at", json!(made_at(id)));
        put("ticket", ticket.into());
        document
    }

    /// Parses a task's JSON document. The error names the invalid member.
    pub(crate) fn from_document(document: &Map<String, Value>) -> Result<FreeTask, String> {
        let is = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
        if is("schema") != SCHEMA || is("kind") != KIND {
            return Err(format!(
                "it is no free task: schema `{}`, kind `{}`",
                is("schema"),
                is("kind")
            ));
        }
        let wrong = |key: &str| format!("the task's `{key}` is not what it should be");
        let text = |key: &str| match document.get(key) {
            None => Ok(None),
            Some(value) => value.as_str().map(|text| Some(text.to_owned())).ok_or(wrong(key)),
        };
        let number = |key: &str| match document.get(key) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or(wrong(key)),
        };
        let next = document.get("next").cloned().unwrap_or(json!([]));
        let id = |id: String| TaskId::parse(&id).ok_or(wrong("after"));
        Ok(FreeTask {
            text: text("text")?.ok_or(wrong("text"))?,
            title: text("title")?,
            provider: text("provider")?,
            model: text("model")?,
            priority: number("priority")?.map(|number| number.min(9) as u8),
            timeout: number("timeout_ms")?.map(Duration::from_millis),
            spell: text("spell")?,
            spell_at: match document.get("spell_at") {
                None => None,
                Some(at) => serde_json::from_value(at.clone()).map_err(|_| wrong("spell_at"))?,
            },
            bead: document.get("bead").cloned(),
            isolation: match document.get("isolation") {
                None => None,
                Some(word) => {
                    serde_json::from_value(word.clone()).map_err(|_| wrong("isolation"))?
                }
            },
            left: match document.get("left") {
                None => None,
                Some(left) => serde_json::from_value(left.clone()).map_err(|_| wrong("left"))?,
            },
            next: serde_json::from_value(next).map_err(|_| wrong("next"))?,
            depth: u32::try_from(number("depth")?.unwrap_or(0)).map_err(|_| wrong("depth"))?,
            source: text("source")?,
            after: text("after")?.map(id).transpose()?,
            origin: text("origin")?,
        })
    }
}

/// Returns the reason why a value cannot be a work item: it is neither a valid path nor has it a
/// valid ID. The worker that executes the task checks if the file exists.
fn bead_fault(bead: &Value) -> Option<String> {
    let (id, is_file) = match bead {
        Value::String(name) => (name.as_str(), is_file(name)),
        item => (item["id"].as_str().unwrap_or_default(), false),
    };
    let fault = if is_file { path_fault(id) } else { BeadId::fault(id) };
    fault.map(|fault| format!("`bead` is `{id}`, which cannot be one: {fault}"))
}

/// Formats a problem as one sentence.
fn sentence(problem: &Problem) -> String {
    let line = problem.place.map(|place| format!("line {}: ", place.line)).unwrap_or_default();
    let hint = problem.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{line}{}{hint}", problem.message)
}

fn refuse_zero_bytes(text: &str) -> Result<(), String> {
    match text.lines().position(|line| line.contains('\0')) {
        Some(line) => Err(format!("line {} holds a zero byte, which no text has", line + 1)),
        None => Ok(()),
    }
}

/// Rejects a JSON document with a `schema`: it is not a task text, and only the queue itself may
/// put such documents into an inbox.
fn refuse_document(text: &str) -> Result<(), String> {
    if !text.trim_start().starts_with('{') {
        return Ok(());
    }
    let Ok(Value::Object(map)) = serde_json::from_str::<Value>(text) else { return Ok(()) };
    match map.get("schema").map(Value::as_str) {
        None => Ok(()),
        Some(Some(SCHEMA)) => Err(format!(
            "it is a `{SCHEMA}` document, which only the queue itself puts into an inbox; \
             drop the text that is to be done"
        )),
        Some(schema) => {
            let schema = schema.unwrap_or("not text");
            Err(format!(
                "it is a JSON document whose `schema` is `{schema}`, which is no task; \
                 drop the text that is to be done"
            ))
        }
    }
}

/// Returns the time at which an ID was created, from its first ten characters.
pub(crate) fn made_at(id: &TaskId) -> Time {
    const ALPHABET: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let digit = |c: char| ALPHABET.find(c).unwrap_or(0) as i64;
    Time(id.as_str().chars().take(10).fold(0, |sum, c| (sum << 5) | digit(c)))
}

/// Returns the batch of tasks that belong to no run: a day in UTC, `YYYYMMDD`.
pub(crate) fn day(at: Time) -> String {
    at.to_stamp()[..8].to_owned()
}

/// Returns the ID of a task's follow-up. It is the same for every execution of the task, so that a
/// follow-up is not enqueued twice.
pub(crate) fn follow_up_id(after: &TaskId, index: usize) -> TaskId {
    let digest = sha256(format!("{after}/{index}").as_bytes());
    // The first sixteen bits keep follow-ups in the order in which they were requested.
    let random = u128::from_str_radix(&digest[..16], 16).unwrap_or_default();
    let random = ((index as u128 & 0xffff) << 64) | random;
    TaskId::new(made_at(after).0.unsigned_abs(), random)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> TaskId {
        TaskId::new(1_736_951_422_123, 0x1234_5678_9abc_def0_1234)
    }

    #[test]
    fn plain_text_is_the_whole_task() {
        let task = FreeTask::parse("Fix the login.\n").unwrap();
        assert_eq!(task, FreeTask { text: "Fix the login.\n".into(), ..FreeTask::default() });
        let rule = "---\nFix the login.\n---\n";
        assert_eq!(FreeTask::parse(rule).unwrap().text, rule);
        assert_eq!(FreeTask::parse("{\"a\": 1}").unwrap().text, "{\"a\": 1}");
        assert_eq!(FreeTask::parse("{not json").unwrap().text, "{not json");
    }

    #[test]
    fn front_matter_is_taken_off() {
        let task = FreeTask::parse(
            "---\ntitle: Login\nprovider: offline\nmodel: m\npriority: 1\ntimeout: 2m\n\
             spell: fix\nbead: b-1\nnext: [qa]\n---\n\nFix it.\n",
        )
        .unwrap();
        assert_eq!(task.text, "\nFix it.\n");
        assert_eq!(task.timeout, Some(Duration::from_secs(120)));
        assert_eq!((task.priority, task.next.len()), (Some(1), 1));
        assert_eq!(task.bead, Some("b-1".into()));
    }

    #[test]
    fn a_refusal_is_one_sentence() {
        for (text, said) in [
            ("", "it says nothing to do"),
            (" \n\t\n", "it says nothing to do"),
            ("---\ntitle: A\n---\n\n", "it says nothing to do"),
            ("---\ntitle: A\nDo it.\n", "line 1: the front matter that begins in line 1"),
            ("---\ntitle: A\npriorty: 1\n---\nx", "line 3: the front matter has no field"),
            ("---\npriority: 12\n---\nx", "line 2: `priority` of the front matter must be"),
            ("a\nb\0c", "line 2 holds a zero byte"),
            ("{\"schema\": \"task/v1\", \"text\": \"x\"}", "it is a `task/v1` document"),
            ("{\"schema\": \"status/v1\"}", "whose `schema` is `status/v1`"),
            (" {\"schema\": 3}\n", "whose `schema` is `not text`"),
        ] {
            let refusal = FreeTask::parse(text).unwrap_err();
            assert!(refusal.starts_with(said) || refusal.contains(said), "{text:?}: {refusal}");
            assert!(!refusal.contains('\n'), "{refusal}");
        }
        let near = FreeTask::parse("---\npriorty: 1\n---\nx").unwrap_err();
        assert!(near.ends_with("did you mean `priority`?"), "{near}");
    }

    #[test]
    fn a_document_reads_back_as_written() {
        let task = FreeTask {
            text: "é\n".into(),
            title: Some("T".into()),
            provider: Some("offline".into()),
            model: Some("m".into()),
            priority: Some(0),
            timeout: Some(Duration::from_millis(1500)),
            spell: Some("s".into()),
            spell_at: Some(Written { line: 2, column: 8, lines: true }),
            bead: Some(json!({ "id": "b" })),
            isolation: Some(Isolation::Workspace),
            left: Some(After { commit: "c".into(), step: "s".into() }),
            next: vec!["qa".into()],
            depth: 2,
            source: Some("fix login.task".into()),
            after: Some(id()),
            origin: Some("o".into()),
        };
        let document = task.document("engineer", &id(), "t1");
        assert_eq!(FreeTask::from_document(&document).unwrap(), task);
        assert_eq!(document["created_at"], "2025-01-15T14:30:22.123Z");
        let plain = FreeTask { text: "x".into(), ..FreeTask::default() };
        let document = plain.document("engineer", &id(), "t1");
        assert_eq!(FreeTask::from_document(&document).unwrap(), plain);
        let mut wrong = document.clone();
        wrong.insert("next".into(), json!([1]));
        assert!(FreeTask::from_document(&wrong).unwrap_err().contains("`next`"));
        wrong.insert("kind".into(), "step".into());
        assert!(FreeTask::from_document(&wrong).is_err());
    }

    #[test]
    fn a_task_is_named_by_its_file_its_title_or_its_beginning() {
        let named = |source: Option<&str>, title: Option<&str>, text: &str| {
            let task = FreeTask {
                text: text.into(),
                source: source.map(Into::into),
                title: title.map(Into::into),
                ..FreeTask::default()
            };
            task.task("engineer", &id(), "t", 3).name.label
        };
        assert_eq!(named(Some("fix-login.task"), Some("T"), "x"), "fix-login");
        assert_eq!(named(None, Some("The login"), "x"), "The-login");
        assert_eq!(named(None, None, "\n\n## Fix it\nnow"), "Fix-it");
        assert_eq!(named(Some("é.task"), None, "x"), "");
        let task = FreeTask::default().task("engineer", &id(), "t", 3);
        assert_eq!((task.batch.as_str(), task.name.priority), ("20250115", 5));
    }

    #[test]
    fn what_nobody_can_do_is_refused_before_it_is_put_out() {
        let config = Config::built_in();
        let task = |text: &str| FreeTask::parse(text).unwrap();
        task("x").check(&config, "anybody").unwrap();
        task("---\nnext: [qa]\n---\nx").check(&config, "anybody").unwrap();
        let refused = task("---\nprovider: clade\n---\nx").check(&config, "qa").unwrap_err();
        assert!(
            refused.contains("`claude`, `codex`, `gemini`, `offline`, `opencode`"),
            "{refused}"
        );
        let refused = task("---\nnext: [enginer]\n---\nx").check(&config, "qa").unwrap_err();
        assert!(refused.ends_with("did you mean `engineer`?"), "{refused}");
        assert!(task("x").check(&config, "coordinator").is_err());
    }

    #[test]
    fn a_follow_up_has_one_id() {
        assert_eq!(follow_up_id(&id(), 1), follow_up_id(&id(), 1));
        assert_ne!(follow_up_id(&id(), 1), follow_up_id(&id(), 2));
        assert_eq!(made_at(&follow_up_id(&id(), 1)), made_at(&id()));
    }
}
