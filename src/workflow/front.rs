//! Front matter: settings at the start of a text, between two `---` lines.
//!
//! Markdown may also start with `---`, as a horizontal rule. The text after that line decides: if
//! the first line that is not empty or a comment reads `key:`, it is front matter and must be
//! valid; otherwise the whole text is body. An empty line before the first `---` makes everything
//! body.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::plan::{Isolation, Version};
use super::schema::task::HEAD;
use super::settings::agent_fault;
use super::spells;
use crate::workflow::fields::{Fields, Findings};
use crate::yaml::problem::{Place, Problem, located};
use crate::yaml::scalar;
use crate::yaml::{self, Node, Value};

const FENCE: &str = "---";

/// A text, split into front matter and body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts<'a> {
    /// The lines between the fences. Its first line is line 2 of the text.
    pub head: Option<&'a str>,
    pub body: &'a str,
}

/// The front matter of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TaskHead {
    pub title: Option<String>,
    pub provider: Option<String>,
    pub model: Option<String>,
    /// 0 is the most urgent, 9 the least.
    pub priority: Option<u8>,
    pub timeout: Option<Duration>,
    pub spell: Option<String>,
    /// Place of the spell in the file.
    pub spell_at: Option<Written>,
    /// An id, a file path, or the bead itself.
    pub bead: Option<Json>,
    /// Directory in which the bead is worked on.
    pub isolation: Option<Isolation>,
    /// The agents that continue the task, in order.
    pub next: Vec<String>,
}

/// Position of a value in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Written {
    pub line: usize,
    pub column: usize,
    /// True if each line of the value is one line of the file, in order, so that every place in the
    /// value maps to a place in the file.
    pub lines: bool,
}

impl Written {
    fn of(head: &str, value: &str, begin: Place) -> Written {
        let lines: Vec<&str> = head.lines().collect();
        // Position at which the value would start if all of it were written like this character.
        let origin = |at: Option<usize>| {
            let at = at?;
            let found = scalar::place(&lines, begin, value, at, 1)?;
            let before = &value[..at];
            let column = before.chars().rev().take_while(|c| *c != '\n').count();
            let line = found.line.checked_sub(before.matches('\n').count())?;
            Some((line, found.column.checked_sub(column)?))
        };
        let is_ink = |c: char| !c.is_whitespace();
        match (origin(value.find(is_ink)), origin(value.rfind(is_ink))) {
            (Some(first), Some(last)) if first == last => {
                Written { line: first.0, column: first.1, lines: true }
            }
            _ => Written { line: begin.line, column: begin.column, lines: false },
        }
    }

    /// Maps a line and column of the value to those of the file, or returns `None` if they are
    /// unknown.
    pub(crate) fn place(&self, line: usize, column: usize) -> Option<(usize, usize)> {
        self.lines.then_some((self.line + line - 1, self.column + column - 1))
    }
}

/// Splits a text from its front matter. Returns an error if front matter is opened but never
/// closed.
pub(crate) fn split(text: &str) -> Result<Parts<'_>, Problem> {
    let text = crate::yaml::without_bom(text);
    let plain = Parts { head: None, body: text };
    let Some((first, rest)) = text.split_once('\n') else { return Ok(plain) };
    if first.trim_end() != FENCE {
        return Ok(plain);
    }
    let mut at = 0;
    let mut lines = rest.split_inclusive('\n');
    let end = lines.find_map(|line| {
        let here = at;
        at += line.len();
        (line.trim_end() == FENCE).then_some((here, at))
    });
    let head = end.map_or(rest, |(end, _)| &rest[..end]);
    match end {
        Some((_, body)) if head.trim().is_empty() || begins_with_key(head) => {
            Ok(Parts { head: Some(head), body: &rest[body..] })
        }
        None if begins_with_key(head) => Err(Problem::error(
            "the front matter that begins in line 1 is never closed; \
             write `---` on a line of its own after it",
        )
        .at(Place { line: 1, column: 1, len: FENCE.len() })),
        _ => Ok(plain),
    }
}

/// Returns true if the first line that is not empty or a comment reads `key:`.
fn begins_with_key(head: &str) -> bool {
    let says = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
    let Some((key, rest)) = head.lines().find(says).and_then(|line| line.split_once(':')) else {
        return false;
    };
    let word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let spaced = rest.is_empty() || rest.starts_with(char::is_whitespace);
    spaced && !key.is_empty() && key.trim_end().chars().all(word)
}

/// Prepends an empty line to a head, in place of the fence, so that line numbers match the file.
pub(crate) fn below_fence(head: &str) -> String {
    format!("\n{head}")
}

/// Reads the front matter of a task, as strictly as a workflow. Places count from the text's first
/// line.
pub(crate) fn read_task_head(head: &str) -> Result<TaskHead, Vec<Problem>> {
    let head = &below_fence(head);
    let document = yaml::parse(head).map_err(|problem| vec![problem])?;
    if matches!(document.value, Value::Null) {
        return Ok(TaskHead::default());
    }
    let findings = Findings::reading(head);
    let read = match document.get("workflow") {
        Some(node) => {
            let cure = "a workflow is submitted by dropping it into `inbox/coordinator`";
            findings.error(node.place, format!("a task for an agent has no `workflow`; {cure}"));
            None
        }
        None => Fields::open(&findings, &document, "the front matter", &HEAD, Version::V1_1)
            .map(|fields| read_fields(&fields, head)),
    };
    let problems = located(head, findings.into_problems());
    match read {
        Some(head) if !problems.iter().any(Problem::is_error) => Ok(head),
        _ => Err(problems),
    }
}

fn read_fields(fields: &Fields, head: &str) -> TaskHead {
    let text = |key: &str| {
        let text = fields.text(key)?;
        if text.trim().is_empty() {
            let place = fields.place_of_key(key);
            fields.findings.error(place, format!("`{key}` of {} is empty", fields.what));
        }
        Some(text.to_owned())
    };
    TaskHead {
        title: text("title"),
        provider: text("provider"),
        model: text("model"),
        priority: fields.integer("priority", 0, 9).map(|number| number as u8),
        timeout: fields.duration("timeout", ""),
        spell: text("spell").filter(|spell| spells::is_one(fields, spell)),
        spell_at: fields
            .get("spell")
            .and_then(|node| Some(Written::of(head, node.text()?, node.place))),
        bead: fields.get("bead").and_then(|node| bead(fields, node)),
        isolation: fields.choice("isolation", &Isolation::ALL),
        next: next(fields),
    }
}

fn bead(fields: &Fields, node: &Node) -> Option<Json> {
    let is_map = matches!(node.value, Value::Map(_));
    let of = if is_map { node.get("id") } else { Some(node) };
    let id = of
        .and_then(|node| spells::bead_name(fields.findings, node))
        .filter(|id| !id.trim().is_empty());
    let Some(id) = id else {
        let wanted = "an id, a file, or a map that has an `id`";
        let found = if is_map { "a map without one" } else { node.kind() };
        let message = format!("`bead` of {} must be {wanted}, not {found}", fields.what);
        fields.findings.error(node.place, message);
        return None;
    };
    let mut bead = node.to_json();
    match bead.get_mut("id").filter(|_| is_map) {
        Some(there) => *there = id.into_owned().into(),
        None => bead = id.into_owned().into(),
    }
    Some(bead)
}

/// Reads a list of agents, or a single agent.
fn next(fields: &Fields) -> Vec<String> {
    let one = fields.get("next").and_then(|node| Some((node.text()?, node.place)));
    let names = match one {
        Some(one) => vec![one],
        None => fields.texts("next").unwrap_or_default(),
    };
    for (name, place) in &names {
        if let Some(fault) = agent_fault(name) {
            fields.findings.error(*place, format!("`{name}` cannot name an agent: {fault}"));
        }
    }
    names.into_iter().map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (Option<&str>, &str) {
        let parts = split(text).unwrap();
        (parts.head, parts.body)
    }

    #[test]
    fn front_matter_is_told_from_a_rule_across_the_page() {
        for (text, head, body) in [
            ("---\ntitle: A\n---\nDo it.\n", Some("title: A\n"), "Do it.\n"),
            ("\u{feff}---\r\ntitle: A\r\n---\r\nDo it.", Some("title: A\r\n"), "Do it."),
            ("---\n# why\n\ntitle : A\n--- \n", Some("# why\n\ntitle : A\n"), ""),
            ("---\n\n---\nDo it.", Some("\n"), "Do it."),
            ("---\ntitle: A\n---", Some("title: A\n"), ""),
            // Text that begins with a rule.
            ("---\nFix the login.\n---\nNow.", None, "---\nFix the login.\n---\nNow."),
            ("---\n\n# Heading\n\ntext\n", None, "---\n\n# Heading\n\ntext\n"),
            ("---\nsee http://x\n---\n", None, "---\nsee http://x\n---\n"),
            ("---\na b: c\n---\n", None, "---\na b: c\n---\n"),
            ("\n---\ntitle: A\n---\n", None, "\n---\ntitle: A\n---\n"),
            ("----\ntitle: A\n----\n", None, "----\ntitle: A\n----\n"),
            ("---", None, "---"),
            ("Do it.\n---\nx: y\n---\n", None, "Do it.\n---\nx: y\n---\n"),
        ] {
            assert_eq!(parts(text), (head, body), "{text:?}");
        }
        assert_eq!(split("---\ntitle: A\nDo it.\n").unwrap_err().place.unwrap().line, 1);
    }

    #[test]
    fn a_task_head_is_read_whole() {
        let head = read_task_head(
            "title: Fix it\nprovider: codex\nmodel: big\npriority: 2\ntimeout: 15m\n\
             spell: fix\nbead: { id: b-1, title: T }\nnext: [qa, architect]\n",
        )
        .unwrap();
        assert_eq!(head.title.as_deref(), Some("Fix it"));
        assert_eq!(head.priority, Some(2));
        assert_eq!(head.timeout, Some(Duration::from_secs(900)));
        assert_eq!(head.bead.unwrap()["id"], "b-1");
        assert_eq!(head.next, ["qa", "architect"]);
        assert_eq!(read_task_head("next: qa\n").unwrap().next, ["qa"]);
        assert_eq!(read_task_head("\n").unwrap(), TaskHead::default());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (head, line, said) in [
            ("title: A\ntittle: B\n", 3, "no field `tittle`"),
            ("priority: 10\n", 2, "from 0 to 9"),
            ("\n\ntimeout: soon\n", 4, "such as `15m`"),
            ("timeout: 0s\n", 2, "such as `15m`"),
            ("next: [a/b]\n", 2, "cannot name an agent"),
            ("bead: { title: T }\n", 2, "an `id`"),
            ("title: [A]\n", 2, "must be text"),
            ("title: \"\"\n", 2, "is empty"),
            ("title: a: b\n", 2, "not valid YAML"),
            ("title: A\ntitle: B\n", 3, "not valid YAML"),
            ("workflow: w.yaml\n", 2, "inbox/coordinator"),
        ] {
            let problems = read_task_head(head).unwrap_err();
            assert!(problems[0].message.contains(said), "{head}: {}", problems[0].message);
            assert_eq!(problems[0].place.map(|place| place.line), Some(line), "{head}");
        }
    }
}
