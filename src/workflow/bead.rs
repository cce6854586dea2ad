//! Beads: work items, read from their own file or from the issues of a project.
//!
//! A file is YAML, or Markdown whose front matter has the fields and whose text is the body. An id
//! is looked up in [`ISSUES`]. Fields other than the known ones are kept for templates.
//!
//! **Invariant:** this module does no I/O; the caller passes a function that reads files.

use serde_json::{Map, Value as Json, json};

use crate::base::ids::BeadId;
use crate::workflow::fields::Findings;
use crate::workflow::front;
use crate::workflow::{Place, Problem};
use crate::yaml::{self, Node, Value};

/// The issues of a project, one JSON object per line.
pub(crate) const ISSUES: &str = ".beads/issues.jsonl";

/// Defaults of a bead's type and priority.
const KIND: &str = "task";
const PRIORITY: u64 = 2;

/// Reads a file of the workspace by its path. Returns `None` if it does not exist. The error is the
/// reason why it cannot be read.
pub(crate) type Read<'r> = &'r dyn Fn(&str) -> Result<Option<String>, String>;

/// A work item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bead {
    pub id: BeadId,
    pub title: String,
    pub body: String,
    /// The type: `task`, `bug`, or a project's own term.
    pub kind: String,
    /// A number or a word.
    pub priority: Json,
    pub labels: Vec<String>,
    /// All other fields, as they were written.
    pub extra: Map<String, Json>,
}

/// Reason why a bead was not found.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum BeadError {
    #[error("`{name}` is no bead: {reason}")]
    Unknown { name: String, reason: String },
    #[error("cannot read `{file}`: {reason}")]
    Unreadable { file: String, reason: String },
    /// The file exists but is invalid.
    #[error("{}", problems.first().map(|p| p.message.as_str()).unwrap_or_default())]
    Wrong { file: String, text: String, problems: Vec<Problem> },
}

impl Bead {
    /// Finds a bead by the path of its file, or by its id among the issues.
    pub(crate) fn find(name: &str, read: Read) -> Result<Bead, BeadError> {
        let load = |file: &str| {
            read(file).map_err(|reason| BeadError::Unreadable { file: file.to_owned(), reason })
        };
        let unknown = |reason: String| BeadError::Unknown { name: name.to_owned(), reason };
        if let Some(file) = looks_like_file(name) {
            let text = load(file)?.ok_or_else(|| unknown("there is no such file".into()))?;
            return Bead::parse(file, &text).map_err(|problems| BeadError::Wrong {
                file: file.to_owned(),
                text,
                problems,
            });
        }
        if let Some(fault) = BeadId::fault(name) {
            return Err(unknown(fault.into()));
        }
        let text = load(ISSUES)?.ok_or_else(|| unknown(format!("there is no `{ISSUES}`")))?;
        match Bead::among(name, &text) {
            Ok(Some(bead)) => Ok(bead),
            Ok(None) => Err(unknown(format!("`{ISSUES}` has none of that id"))),
            Err(problems) => Err(BeadError::Wrong { file: ISSUES.into(), text, problems }),
        }
    }

    /// Parses the file of one bead.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Bead, Vec<Problem>> {
        let name = file.rsplit('/').next().unwrap_or(file);
        let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
        if !matches!(ending, "md" | "markdown") {
            let document = yaml::parse(text).map_err(|problem| vec![problem])?;
            return Reading::new(stem, None).of(text).read(&document);
        }
        let parts = front::split(text).map_err(|problem| vec![problem])?;
        let reading = Reading::new(stem, Some(parts.body));
        match parts.head {
            None => reading.read(&Node { place: START, value: Value::Map(Vec::new()) }),
            Some(head) => {
                let head = front::below_fence(head);
                let document = yaml::parse(&head).map_err(|problem| vec![problem])?;
                reading.of(&head).read(&document)
            }
        }
    }

    /// Finds a bead by its id among issues. Invalid lines of other issues are ignored, unless the
    /// bead is not found: then one of them may be it.
    pub(crate) fn among(id: &str, issues: &str) -> Result<Option<Bead>, Vec<Problem>> {
        let mut found: Option<(usize, Json)> = None;
        let mut alike: Option<(usize, String)> = None;
        let mut wrong = Vec::new();
        for (index, line) in issues.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let number = index + 1;
            match serde_json::from_str::<Json>(line) {
                Err(error) => {
                    let place = Place { line: number, column: error.column().max(1), len: 1 };
                    let message = format!("this line is no JSON: {error}");
                    wrong.push(Problem::error(message).at(place));
                }
                Ok(issue) if issue.get("id").and_then(Json::as_str) == Some(id) => {
                    if let Some((first, _)) = found {
                        let message = format!("`{id}` is here and in line {first}");
                        let place = Place { line: number, ..START };
                        return Err(vec![Problem::error(message).at(place)]);
                    }
                    found = Some((number, issue));
                }
                Ok(issue) => {
                    let other = issue.get("id").and_then(Json::as_str);
                    if let Some(other) = other.filter(|other| other.eq_ignore_ascii_case(id)) {
                        alike = Some((number, other.to_owned()));
                    }
                }
            }
        }
        if let (Some((first, _)), Some((number, other))) = (&found, &alike) {
            let message =
                format!("`{other}` differs from `{id}` in line {first} by capital letters only");
            let place = Place { line: *number, ..START };
            return Err(vec![Problem::error(message).at(place).hint(RENAME)]);
        }
        match found {
            Some((line, issue)) => {
                let node = node_of(&issue, Place { line, ..START });
                Reading::new(id, None).read(&node).map(Some)
            }
            None if !wrong.is_empty() => Err(wrong),
            None => Ok(None),
        }
    }

    /// Reads a bead that is part of another document, such as the front matter of a task.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn from_json(value: &Json) -> Result<Bead, Vec<Problem>> {
        Reading::new("", None).read(&node_of(value, START))
    }

    /// Returns the bead as templates see it.
    pub(crate) fn to_json(&self) -> Json {
        let mut all = self.extra.clone();
        let known = json!({
            "id": self.id,
            "title": self.title,
            "body": self.body,
            "description": self.body,
            "type": self.kind,
            "priority": self.priority,
            "labels": self.labels,
        });
        if let Json::Object(known) = known {
            all.extend(known);
        }
        Json::Object(all)
    }
}

/// Hint for ids that differ only in case.
const RENAME: &str = "give one of them another id: both would have the same worktree where file \
                      names know no capitals";

const START: Place = Place { line: 1, column: 1, len: 1 };

/// Returns true if a bead is named by its file: a path with a directory in it, or a known file
/// extension.
pub(crate) fn is_file(name: &str) -> bool {
    looks_like_file(name).is_some()
}

fn looks_like_file(name: &str) -> Option<&str> {
    let endings = [".yaml", ".yml", ".md", ".markdown", ".json"];
    let file = name.contains('/') || endings.iter().any(|ending| name.ends_with(ending));
    file.then(|| name.strip_prefix("./").unwrap_or(name))
}

fn node_of(value: &Json, place: Place) -> Node {
    let text = |text: &String| Node { place, value: Value::Text(text.clone()) };
    let value = match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => Value::Number(number.clone()),
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(items) => Value::List(items.iter().map(|item| node_of(item, place)).collect()),
        Json::Object(map) => {
            Value::Map(map.iter().map(|(key, value)| (text(key), node_of(value, place))).collect())
        }
    };
    Node { place, value }
}

/// State of reading one bead.
struct Reading<'a> {
    /// Name of the file, the fallback for a missing id.
    stem: &'a str,
    /// The text after the front matter.
    text: Option<&'a str>,
    /// The YAML source; empty if the bead is not read from YAML.
    source: &'a str,
    problems: Vec<Problem>,
}

impl<'a> Reading<'a> {
    fn new(stem: &'a str, text: Option<&'a str>) -> Reading<'a> {
        Reading { stem, text, source: "", problems: Vec::new() }
    }

    fn of(self, source: &'a str) -> Reading<'a> {
        Reading { source, ..self }
    }

    fn wrong(&mut self, place: Place, message: String) {
        self.problems.push(Problem::error(message).at(place));
    }

    fn read(mut self, document: &Node) -> Result<Bead, Vec<Problem>> {
        let empty = Vec::new();
        let pairs = match &document.value {
            Value::Map(pairs) => pairs,
            Value::Null if self.text.is_some() => &empty,
            _ => {
                let message = format!("a bead must be a map, not {}", document.kind());
                self.wrong(document.place, message);
                &empty
            }
        };
        let id = self.id(document);
        let body = self.body(document);
        let title = self.title(document, &body);
        let kind = self.one_of(document, ["type", "issue_type"]).unwrap_or_else(|| KIND.into());
        let bead = Bead {
            title,
            kind,
            priority: self.priority(document),
            labels: self.labels(document),
            extra: extra(pairs),
            body,
            // A placeholder if there is a problem; the problem is returned instead.
            id: id.or_else(|| BeadId::parse("none").ok()).ok_or_else(Vec::new)?,
        };
        if self.problems.is_empty() { Ok(bead) } else { Err(self.problems) }
    }

    fn id(&mut self, document: &Node) -> Option<BeadId> {
        let (text, place) = match document.get("id") {
            // An author who writes `id: 007` means exactly these digits.
            Some(node) => match Findings::reading(self.source).called(node) {
                Some(name) => (name.into_owned(), node.place),
                None => {
                    let message = format!("`id` of a bead must be text, not {}", node.kind());
                    self.wrong(node.place, message);
                    return None;
                }
            },
            None if self.stem.is_empty() => {
                self.wrong(document.place, "a bead must have an `id`".into());
                return None;
            }
            None => (self.stem.to_owned(), document.place),
        };
        match BeadId::parse(&text) {
            Ok(id) => Some(id),
            Err(message) => {
                self.wrong(place, message);
                None
            }
        }
    }

    fn text(&mut self, document: &Node, key: &str) -> Option<(String, Place)> {
        let node = document.get(key)?;
        match &node.value {
            Value::Null => None,
            Value::Text(text) => Some((text.clone(), node.place)),
            _ => {
                self.wrong(
                    node.place,
                    format!("`{key}` of a bead must be text, not {}", node.kind()),
                );
                None
            }
        }
    }

    /// Returns a text field that has two names. Both may be present if they are equal.
    fn one_of(&mut self, document: &Node, keys: [&str; 2]) -> Option<String> {
        let (first, second) = (self.text(document, keys[0]), self.text(document, keys[1]));
        if let (Some((first, _)), Some((second, place))) = (&first, &second)
            && first != second
        {
            let message = format!("`{}` and `{}` are the same field", keys[0], keys[1]);
            self.wrong(*place, format!("{message}, but say different things"));
        }
        first.or(second).map(|(text, _)| text)
    }

    fn body(&mut self, document: &Node) -> String {
        let field = self.one_of(document, ["body", "description"]);
        match (field, self.text.map(str::trim).filter(|text| !text.is_empty())) {
            (Some(_), Some(_)) => {
                let place = document.get("body").or(document.get("description"));
                let place = place.map_or(START, |node| node.place);
                let message = "the body is in the front matter and after it; keep one".into();
                self.wrong(place, message);
                String::new()
            }
            (field, text) => field.or(text.map(str::to_owned)).unwrap_or_default(),
        }
    }

    /// Returns the title; for Markdown without one, the first line that is not empty.
    fn title(&mut self, document: &Node, body: &str) -> String {
        if let Some((title, place)) = self.text(document, "title") {
            if title.trim().is_empty() {
                self.wrong(place, "`title` of a bead is empty".into());
            }
            return title;
        }
        let line = body.lines().map(|line| line.trim().trim_start_matches('#').trim());
        let first = line.filter(|_| self.text.is_some()).find(|line| !line.is_empty());
        let Some(first) = first else {
            let known = document.get("title").map_or(document.place, |node| node.place);
            if self.problems.is_empty() {
                self.wrong(known, "a bead must have a `title`".into());
            }
            return String::new();
        };
        first.to_owned()
    }

    fn priority(&mut self, document: &Node) -> Json {
        let Some(node) = document.get("priority") else { return PRIORITY.into() };
        match &node.value {
            Value::Null => PRIORITY.into(),
            Value::Number(number) if number.is_u64() => Json::Number(number.clone()),
            Value::Text(text) if !text.trim().is_empty() => Json::String(text.clone()),
            _ => {
                let wanted = "`priority` of a bead must be a number from 0 on, or a word";
                self.wrong(node.place, wanted.into());
                Json::Null
            }
        }
    }

    fn labels(&mut self, document: &Node) -> Vec<String> {
        let Some(node) = document.get("labels") else { return Vec::new() };
        let (mut labels, mut wrong) = (Vec::new(), Vec::new());
        match &node.value {
            Value::Null => {}
            Value::Text(label) => labels.push(label.clone()),
            Value::List(items) => {
                for item in items {
                    match &item.value {
                        Value::Text(label) => labels.push(label.clone()),
                        _ => wrong.push((item.place, item.kind())),
                    }
                }
            }
            _ => wrong.push((node.place, node.kind())),
        }
        for (place, kind) in wrong {
            self.wrong(place, format!("`labels` of a bead must be a list of text, not {kind}"));
        }
        labels
    }
}

/// Fields that have their own member.
const KNOWN: [&str; 8] =
    ["id", "title", "body", "description", "type", "issue_type", "priority", "labels"];

fn extra(pairs: &[(Node, Node)]) -> Map<String, Json> {
    let named = pairs.iter().filter_map(|(key, value)| Some((key.text()?, value)));
    let others = named.filter(|(key, _)| !KNOWN.contains(key));
    others.map(|(key, value)| (key.to_owned(), value.to_json())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bead(file: &str, text: &str) -> Bead {
        Bead::parse(file, text).unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    #[test]
    fn a_file_is_yaml_or_markdown_with_front_matter() {
        let text = "id: bd-1\ntitle: Fix it\ndescription: |\n  The login fails.\ntype: bug\n\
                    priority: 1\nlabels: [ui, grimoire:fix]\nowner: { name: Ann }\n";
        let yaml = bead("beads/x.yaml", text);
        assert_eq!(yaml.body, "The login fails.\n");
        assert_eq!((yaml.kind.as_str(), yaml.priority.clone()), ("bug", json!(1)));
        assert_eq!(yaml.labels, ["ui", "grimoire:fix"]);
        assert_eq!(yaml.extra["owner"]["name"], "Ann");
        let markdown = bead(
            "x.md",
            "---\nid: bd-1\ntitle: Fix it\nlabels: ui\nestimate: 3\n---\n\nThe login fails.\n",
        );
        assert_eq!((markdown.body.as_str(), markdown.kind.as_str()), ("The login fails.", "task"));
        assert_eq!(markdown.extra["estimate"], 3);
    }

    #[test]
    fn markdown_may_have_nothing_but_text() {
        let found = bead("work/fix-login.md", "# Fix the login\n\nIt fails.\n");
        assert_eq!((found.id.as_str(), found.title.as_str()), ("fix-login", "Fix the login"));
        assert_eq!(found.body, "# Fix the login\n\nIt fails.");
    }

    #[test]
    fn an_id_is_what_was_written_also_where_yaml_reads_a_number() {
        for id in
            ["7", "007", "1.10", "1e3", "12e4", "0x1F", "1_000", "0o17", "12345678901234567890"]
        {
            assert_eq!(bead("a.yaml", &format!("title: T\nid: {id}\n")).id.as_str(), id);
            let text = format!("---\nid: {id} # a number\ntitle: T\n---\nx\n");
            assert_eq!(bead("a.md", &text).id.as_str(), id);
            assert_eq!(bead("a.yaml", &format!("\u{feff}{{id: {id}, title: T}}")).id.as_str(), id);
        }
        for wrong in ["+5", "-5", ".5", "1."] {
            let problems = Bead::parse("a.yaml", &format!("id: {wrong}\ntitle: T\n")).unwrap_err();
            assert!(problems[0].message.contains(&format!("`{wrong}` cannot be an id")));
        }
    }

    #[test]
    fn templates_see_every_field() {
        let seen = bead("a.yaml", "title: T\nbody: B\nextra: [1]\n").to_json();
        assert_eq!(
            seen,
            json!({
                "extra": [1], "id": "a", "title": "T", "body": "B", "description": "B",
                "type": "task", "priority": 2, "labels": [],
            })
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (file, text, line, said) in [
            ("a.yaml", "id: a/b\ntitle: T\n", 1, "cannot be an id"),
            ("a b.yaml", "\ntitle: T\n", 2, "cannot be an id"),
            ("a.yaml", "id: a\n", 1, "must have a `title`"),
            ("a.yaml", "title: T\nbody: x\ndescription: y\n", 3, "the same field"),
            ("a.yaml", "title: [T]\n", 1, "must be text"),
            ("a.yaml", "title: T\npriority: -1\n", 2, "from 0 on"),
            ("a.yaml", "title: T\nlabels:\n  - a\n  - 3\n", 4, "list of text"),
            ("a.yaml", "- a\n", 1, "must be a map"),
            ("a.yaml", "title: T\ntitle: U\n", 2, "not valid YAML"),
            ("a.md", "---\nid: ..\ntitle: T\n---\nx", 2, "cannot be an id"),
            ("a.md", "---\ntitle: T\nbody: x\n---\ny\n", 3, "keep one"),
            ("a.md", "---\ntitle: T\n", 1, "never closed"),
            ("a.md", "", 1, "must have a `title`"),
        ] {
            let problems = Bead::parse(file, text).unwrap_err();
            assert!(problems[0].message.contains(said), "{text:?}: {}", problems[0].message);
            assert_eq!(problems[0].place.map(|place| place.line), Some(line), "{text:?}");
        }
    }

    const LINES: &str = "\
{\"id\":\"bd-1\",\"title\":\"One\",\"description\":\"d\",\"issue_type\":\"bug\",\"status\":\"open\"}

{\"id\":\"bd-2\",\"title\":\"Two \\ud83d\\ude00\",\"priority\":0,\"labels\":null}
";

    #[test]
    fn an_id_is_found_among_issues() {
        let one = Bead::among("bd-1", LINES).unwrap().unwrap();
        assert_eq!((one.body.as_str(), one.kind.as_str()), ("d", "bug"));
        assert_eq!(one.extra["status"], "open");
        let two = Bead::among("bd-2", LINES).unwrap().unwrap();
        assert_eq!((two.title.as_str(), two.priority), ("Two \u{1f600}", json!(0)));
        assert_eq!(Bead::among("bd-3", LINES), Ok(None));
    }

    #[test]
    fn lines_that_are_wrong_matter_only_where_the_bead_may_be_among_them() {
        let torn = format!("{LINES}<<<<<<< HEAD\n");
        assert!(Bead::among("bd-1", &torn).unwrap().is_some());
        let problems = Bead::among("bd-3", &torn).unwrap_err();
        assert_eq!(problems[0].place.unwrap().line, 4);
        let twice = format!("{LINES}{{\"id\":\"bd-1\",\"title\":\"Again\"}}\n");
        let problems = Bead::among("bd-1", &twice).unwrap_err();
        assert!(problems[0].message.contains("in line 1"), "{}", problems[0].message);
    }

    #[test]
    fn a_name_is_a_file_or_an_id() {
        let read = |path: &str| match path {
            "w/a.yaml" => Ok(Some("title: T\n".to_owned())),
            ISSUES => Ok(Some(LINES.to_owned())),
            "bad.yaml" => Err("it is a directory".into()),
            _ => Ok(None),
        };
        assert_eq!(Bead::find("w/a.yaml", &read).unwrap().id.as_str(), "a");
        assert_eq!(Bead::find("bd-2", &read).unwrap().id.as_str(), "bd-2");
        for (name, said) in [
            ("none.yaml", "there is no such file"),
            ("bd-9", "none of that id"),
            ("-x", "must not begin"),
            ("bad.yaml", "it is a directory"),
        ] {
            let error = Bead::find(name, &read).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
