//! Readers for the maps that authors write: every key is known, every type is checked, and every
//! problem has a place.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use super::dialects::{self, Format};
use crate::base::time::parse_duration;
use crate::template::{Template, TemplateError};
use crate::workflow::Configured;
use crate::workflow::lint;
use crate::workflow::named::Named;
use crate::workflow::plan::Version;
use crate::workflow::schema::Table;
use crate::workflow::schema::steps::{STEP, TOP};
use crate::yaml::problem::{At, Place, Problem, nearest};
use crate::yaml::{Node, Value};

/// Collects the problems of a workflow, so that all of them can be reported at once.
#[derive(Default)]
pub(crate) struct Findings {
    problems: RefCell<Vec<Problem>>,
    /// Agents named so far, by their lowercase names.
    agents: RefCell<BTreeMap<String, String>>,
    /// Names to check on disk.
    named: RefCell<Named>,
    /// The text being read.
    source: String,
    /// Byte offset at which each line starts.
    lines: OnceCell<Vec<usize>>,
}

impl Findings {
    /// Creates findings for a text, without agents from the settings. The text is kept to read
    /// numeric names as they are written.
    pub(crate) fn reading(source: &str) -> Findings {
        Findings { source: crate::yaml::without_bom(source).to_owned(), ..Findings::default() }
    }

    /// Creates findings for a text, with the agents that the settings name.
    pub(crate) fn of(source: &str, configured: &dyn Configured) -> Findings {
        let agents = configured.agent_names().into_iter().chain(["coordinator".to_owned()]);
        let agents = agents.map(|name| (name.to_ascii_lowercase(), name)).collect();
        Findings { agents: RefCell::new(agents), ..Findings::reading(source) }
    }

    /// Returns a text, or a number as it is written: `007` and `1.10` are names to users, and
    /// differ from the printed values of these numbers.
    pub(crate) fn called<'n>(&self, node: &'n Node) -> Option<Cow<'n, str>> {
        match &node.value {
            Value::Text(text) => Some(text.into()),
            Value::Number(number) => {
                let written = self.written(node.place);
                Some(written.unwrap_or_else(|| number.to_string()).into())
            }
            _ => None,
        }
    }

    /// Returns the source text at a place, or `None` if it is empty.
    fn written(&self, place: Place) -> Option<String> {
        let written: String = self.line_at(place).chars().take(place.len).collect();
        Some(written).filter(|written| !written.is_empty())
    }

    /// Returns the source text from a place to the end of its line.
    fn line_at(&self, place: Place) -> &str {
        let begins = self.lines.get_or_init(|| {
            let ends = self.source.match_indices('\n').map(|(at, _)| at + 1);
            [0].into_iter().chain(ends).collect()
        });
        let begin = place.line.checked_sub(1).and_then(|line| begins.get(line));
        let rest = begin.and_then(|begin| self.source.get(*begin..)).unwrap_or_default();
        let line = rest.lines().next().unwrap_or_default();
        line.char_indices().nth(place.column - 1).map_or("", |(at, _)| &line[at..])
    }

    /// Returns an earlier agent name that differs from this one only in case. Both would share one
    /// inbox on a file system that ignores case.
    pub(crate) fn alike(&self, agent: &str) -> Option<String> {
        let mut agents = self.agents.borrow_mut();
        let first = agents.entry(agent.to_ascii_lowercase()).or_insert_with(|| agent.to_owned());
        (first != agent).then(|| first.clone())
    }

    pub(crate) fn add(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    pub(crate) fn error(&self, place: Place, message: impl Into<String>) {
        self.add(Problem::error(message).at(place));
    }

    pub(crate) fn warn(&self, at: impl Into<At>, message: impl Into<String>) {
        self.add(Problem::warning(message).at(at));
    }

    /// Records names that the workflow refers to.
    pub(crate) fn name(&self, note: impl FnOnce(&mut Named)) {
        note(&mut self.named.borrow_mut());
    }

    /// Returns all problems in text order.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.into_parts().0
    }

    /// Returns all problems in text order, and the names that the workflow refers to.
    pub(crate) fn into_parts(self) -> (Vec<Problem>, Named) {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| problem.place);
        (problems, self.named.into_inner())
    }
}

/// One map with known keys.
pub(crate) struct Fields<'a> {
    pub findings: &'a Findings,
    pub node: &'a Node,
    /// Description of the map for messages: "step `Build`", "`retries`".
    pub what: String,
}

/// Returns the text to suggest in quotes where a value must be text.
pub(crate) fn in_quotes(findings: &Findings, node: &Node) -> String {
    findings.called(node).map_or_else(|| node.to_json().to_string(), Cow::into_owned)
}

/// Returns the problem of a value that should be a list of steps or nodes.
pub(crate) fn no_list(what: &str, unit: &str, node: &Node) -> Problem {
    let message = format!("{what} must be a list of {unit}s, not {}", node.kind());
    let problem = Problem::error(message).at(node.place);
    match &node.value {
        Value::Map(_) => problem.hint(format!("begin each {unit} with a dash: `- `")),
        _ => problem,
    }
}

impl<'a> Fields<'a> {
    /// Opens a map and reports each key that does not belong in it.
    pub(crate) fn open(
        findings: &'a Findings,
        node: &'a Node,
        what: impl Into<String>,
        table: &Table,
        version: Version,
    ) -> Option<Self> {
        let what = what.into();
        let Value::Map(pairs) = &node.value else {
            findings.error(node.place, format!("{what} must be a map, not {}", node.kind()));
            return None;
        };
        for (key, _) in pairs {
            check_key(findings, key, &what, table, version);
        }
        Some(Fields { findings, node, what })
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Node> {
        self.node.get(key)
    }

    pub(crate) fn place_of_key(&self, key: &str) -> Place {
        let Value::Map(pairs) = &self.node.value else { return self.node.place };
        pairs.iter().find(|(k, _)| k.text() == Some(key)).map_or(self.node.place, |(k, _)| k.place)
    }

    fn wrong_type(&self, node: &Node, key: &str, wanted: &str) {
        let problem = Problem::error(format!(
            "`{key}` of {} must be {wanted}, not {}",
            self.what,
            node.kind()
        ))
        .at(node.place);
        self.findings.add(match &node.value {
            _ if !wanted.contains("text") => problem,
            Value::Number(_) | Value::Bool(_) => {
                problem.hint(format!("put it in quotes: \"{}\"", in_quotes(self.findings, node)))
            }
            Value::Map(_) if self.findings.line_at(node.place).starts_with("{{") => {
                problem.hint("put a value that begins with `{{` in quotes")
            }
            Value::Map(_) => problem.hint("put text that has `: ` in quotes"),
            _ => problem,
        });
    }

    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        let node = self.get(key)?;
        let text = node.text();
        if text.is_none() {
            self.wrong_type(node, key, "text");
        }
        text
    }

    /// Reads a text that must be present and not blank.
    pub(crate) fn required(&self, key: &str) -> Option<&'a str> {
        let Some(node) = self.get(key) else {
            self.findings.error(self.node.place, format!("{} has no `{key}`", self.what));
            return None;
        };
        let text = self.text(key)?;
        if text.trim().is_empty() {
            self.findings.error(node.place, format!("`{key}` of {} is empty", self.what));
            return None;
        }
        Some(text)
    }

    /// Reads a text that may be absent, but not blank.
    pub(crate) fn optional(&self, key: &str) -> Option<&'a str> {
        self.get(key)?;
        self.required(key)
    }

    pub(crate) fn boolean(&self, key: &str) -> Option<bool> {
        let node = self.get(key)?;
        match node.value {
            Value::Bool(value) => Some(value),
            _ => {
                self.wrong_type(node, key, "true or false");
                None
            }
        }
    }

    /// Reads a whole number within bounds.
    pub(crate) fn integer(&self, key: &str, least: u64, most: u64) -> Option<u64> {
        let node = self.get(key)?;
        let number = match &node.value {
            Value::Number(number) => number.as_u64(),
            _ => None,
        };
        match number {
            Some(n) if (least..=most).contains(&n) => Some(n),
            _ => {
                let wanted = format!("a whole number from {least} to {most}");
                self.out_of_range(node, key, &wanted);
                None
            }
        }
    }

    /// Reads seconds, with an optional fraction.
    pub(crate) fn seconds(&self, key: &str, zero_allowed: bool) -> Option<std::time::Duration> {
        let node = self.get(key)?;
        let seconds = match &node.value {
            Value::Number(number) => number.as_f64(),
            _ => None,
        };
        match seconds {
            Some(s) if (s > 0.0 || (zero_allowed && s == 0.0)) && s <= 3.2e9 => {
                Some(std::time::Duration::from_secs_f64(s))
            }
            _ => {
                let bound = if zero_allowed { "of 0 or more" } else { "greater than 0" };
                self.out_of_range(node, key, &format!("a number of seconds {bound}"));
                None
            }
        }
    }

    /// Reads milliseconds, which must be positive. More than a day is more likely a wrong unit than
    /// an intended value.
    pub(crate) fn milliseconds(&self, key: &str) -> Option<std::time::Duration> {
        const DAY_MS: f64 = 86_400_000.0;
        const MOST_MS: f64 = 3.2e12;
        let node = self.get(key)?;
        let millis = match &node.value {
            Value::Number(number) => number.as_f64(),
            _ => None,
        };
        let Some(millis) = millis.filter(|millis| *millis > 0.0 && *millis <= MOST_MS) else {
            let wanted = match millis {
                Some(millis) if millis > MOST_MS => {
                    "a number of milliseconds of at most 3200000000000, which is a hundred years"
                }
                _ => "a number of milliseconds greater than 0",
            };
            match node.text().and_then(parse_duration) {
                Some(millis) => {
                    let message = format!("`{key}` of {} must be {wanted}, not text", self.what);
                    let problem = Problem::error(message).at(node.place);
                    self.findings.add(problem.hint(format!("write `{key}: {millis}`")));
                }
                None => self.out_of_range(node, key, wanted),
            }
            return None;
        };
        if millis > DAY_MS {
            let days = millis / DAY_MS;
            let message = format!("`{key}` of {} is {days:.1} days long", self.what);
            let problem = Problem::warning(message).at(node.place);
            self.findings.add(problem.hint("it counts milliseconds").lint(lint::LONG_TIMEOUT));
        }
        Some(std::time::Duration::from_secs_f64(millis / 1000.0))
    }

    /// Reads a duration such as `15m`. `or` is the message's text for the permitted alternatives.
    pub(crate) fn duration(&self, key: &str, or: &str) -> Option<std::time::Duration> {
        let node = self.get(key)?;
        // A number lacks its unit; quotes would not add one.
        if let Value::Number(number) = &node.value {
            let message =
                format!("`{key}` of {} must be a length of time{or}, not a number", self.what);
            let problem = Problem::error(message).at(node.place);
            self.findings.add(problem.hint(format!("say of what: `{number}s` or `{number}m`")));
            return None;
        }
        let text = self.text(key)?;
        let read = parse_duration(text).filter(|ms| *ms > 0);
        if read.is_none() {
            let place = self.get(key).map_or(self.node.place, |node| node.place);
            let wanted = format!("a length of time such as `15m` or `1h30m`{or}");
            let what = &self.what;
            let message = format!("`{key}` of {what} is `{text}`, but must be {wanted}");
            self.findings.error(place, message);
        }
        read.map(std::time::Duration::from_millis)
    }

    fn out_of_range(&self, node: &Node, key: &str, wanted: &str) {
        match &node.value {
            Value::Number(number) => self.findings.error(
                node.place,
                format!("`{key}` of {} must be {wanted}, not {number}", self.what),
            ),
            _ => self.wrong_type(node, key, wanted),
        }
    }

    /// Reads one of a fixed set of keywords.
    pub(crate) fn choice<T: Copy>(&self, key: &str, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.text(key)?;
        if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text) {
            return Some(*value);
        }
        let names: Vec<_> = choices.iter().map(|(name, _)| format!("`{name}`")).collect();
        let problem = Problem::error(format!(
            "`{key}` of {} is `{text}`, but must be {}",
            self.what,
            names.join(" or ")
        ))
        .at(self.get(key).map_or(self.node.place, |node| node.place));
        self.findings.add(suggest(problem, text, choices.iter().map(|(name, _)| *name)));
        None
    }

    pub(crate) fn list(&self, key: &str) -> Option<&'a [Node]> {
        let node = self.get(key)?;
        match &node.value {
            Value::List(items) => Some(items),
            _ => {
                self.wrong_type(node, key, "a list");
                None
            }
        }
    }

    /// Reads a list of text.
    pub(crate) fn texts(&self, key: &str) -> Option<Vec<(&'a str, Place)>> {
        let items = self.list(key)?;
        let mut texts = Vec::new();
        for item in items {
            match item.text() {
                Some(text) => texts.push((text, item.place)),
                None => self.wrong_type(item, key, "a list of text"),
            }
        }
        Some(texts)
    }

    /// Reads a list of shell commands, none of them blank, or a single command.
    pub(crate) fn commands(&self, key: &str) -> Option<Vec<String>> {
        let texts = match self.get(key)?.value {
            Value::Text(_) => vec![(self.text(key)?, self.get(key)?.place)],
            _ => self.texts(key)?,
        };
        for (text, place) in &texts {
            if text.trim().is_empty() {
                self.findings.error(*place, format!("a command of `{key}` is empty"));
            }
        }
        Some(texts.into_iter().map(|(text, _)| text.to_owned()).collect())
    }

    pub(crate) fn template(&self, key: &str) -> Option<Template> {
        let text = self.text(key)?;
        parse_template(self.findings, text, self.get(key)?.place)
    }

    pub(crate) fn templates(&self, key: &str) -> Vec<(Template, Place)> {
        let texts = self.texts(key).unwrap_or_default();
        texts
            .into_iter()
            .filter_map(|(text, place)| Some((parse_template(self.findings, text, place)?, place)))
            .collect()
    }
}

/// Parses a template. Rejects `${env.*}` in every template.
pub(crate) fn parse_template(findings: &Findings, text: &str, place: Place) -> Option<Template> {
    match Template::parse(text) {
        Ok(template) => {
            if let Some((hole, at)) = template.placed().find(|(hole, _)| hole.root() == "env") {
                findings.add(
                    Problem::error(format!(
                        "`${{{}}}` is refused: workflows cannot read the environment",
                        hole.raw
                    ))
                    .at(in_text(text, place, at))
                    .hint("pass it with `--context`, or let the child read its own environment"),
                );
            }
            Some(template)
        }
        Err(error) => {
            let (TemplateError::Unclosed(at) | TemplateError::Empty(at)) = &error;
            let problem = Problem::error(error.to_string()).at(in_text(text, place, at));
            findings.add(match error {
                TemplateError::Unclosed(_) => problem.hint("for a literal `${` write `$${`"),
                TemplateError::Empty(_) => problem,
            });
            None
        }
    }
}

/// Returns the place of a byte range within a text that starts at `place`.
pub(crate) fn in_text(text: &str, place: Place, at: &Range<usize>) -> At {
    At::inside(place, &text.into(), at.start, text[at.clone()].chars().count())
}

pub(crate) fn suggest<'a>(
    problem: Problem,
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Problem {
    match nearest(word, candidates) {
        Some(near) => problem.hint(format!("did you mean `{near}`?")),
        None => problem,
    }
}

fn check_key(findings: &Findings, key: &Node, what: &str, table: &Table, version: Version) {
    let Some(name) = key.text() else {
        findings.error(key.place, format!("a key of {what} must be text, not {}", key.kind()));
        return;
    };
    match table.field(name).map(|field| field.since) {
        Some(since) if since <= version => {}
        Some(since) => findings.add(
            Problem::error(format!(
                "`{name}` needs version \"{}\", but this workflow says \"{}\"",
                since.name(),
                version.name()
            ))
            .at(key.place)
            .hint(format!("write `version: \"{}\"`", since.name())),
        ),
        None if name == "command_override" => findings.add(
            Problem::error(format!("{what} has `command_override`, which is not supported"))
                .at(key.place)
                .hint("write the whole argv as `command`"),
        ),
        None => {
            let known = table.all().filter(|field| field.since <= version).map(|field| field.name);
            let problem = Problem::error(format!("{what} has no field `{name}`")).at(key.place);
            let is = |other: &Table| std::ptr::eq(table, other);
            let top = is(&TOP).then_some(true).or(is(&STEP).then_some(false));
            let foreign = top.and_then(|top| dialects::foreign(Format::Steps, top, name));
            findings.add(match foreign {
                Some(hint) => problem.hint(hint),
                None => suggest(problem, name, known),
            });
        }
    }
}
