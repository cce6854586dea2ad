//! The contract of agents: an answer ends with a JSON object that says how it went.
//!
//! The last JSON code block of the answer decides, whatever came before it: answers quote samples.
//! An object outside of any block counts only as the last thing in the text. A block may stand in a
//! list or in a quote, and say in several ways that it is JSON, as readers of Markdown take it.
//!
//! **Invariant:** a block that cannot be read never lets an earlier one decide. Where something
//! behind the last block may be one, or may be an answer, nothing decides; nor where the block may
//! be part of a sample, or an object part of a broken one. Reading takes time as the text is long.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::answer::fence;
use crate::json;
use crate::template::kind;

/// What an answer says about itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Contract {
    Found(AgentOutput),
    /// There is no JSON block.
    Missing,
    /// There is one, but it does not keep the contract; why.
    Invalid(String),
}

impl Contract {
    /// What the agent says; or a word for why that is nothing, and a sentence.
    pub fn kept(self) -> Result<AgentOutput, (&'static str, String)> {
        match self {
            Contract::Found(output) => Ok(output),
            Contract::Missing => {
                let message = "the answer does not end with a JSON block that says how it went";
                Err(("missing", message.to_owned()))
            }
            Contract::Invalid(why) => Err((
                "invalid",
                format!("the JSON block of the answer does not say how it went: {why}"),
            )),
        }
    }
}

/// How an agent says its work went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentOutput {
    pub success: bool,
    pub summary: String,
    pub outputs: Map<String, Value>,
    pub error: Option<String>,
    /// All other keys.
    pub extra: Map<String, Value>,
    /// What the contract wants otherwise, but lets pass.
    pub warnings: Vec<String>,
}

impl AgentOutput {
    /// The object that later steps see: every key of the contract, then the others.
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "success": self.success,
            "summary": self.summary,
            "outputs": self.outputs,
            "error": self.error,
        });
        if let Value::Object(map) = &mut object {
            map.extend(self.extra.clone());
        }
        object
    }
}

/// What an agent is told whose last answer did not keep the contract.
pub fn ask_again(why: &str) -> String {
    format!(
        "\n\n---\n\nYour last answer could not be used: {why}. Look at what is done already, do \
         what is left, and end your answer with the JSON code block, with nothing behind it.\n"
    )
}

/// What an agent is asked in the same conversation, where everything but the block is done.
pub fn ask_for_block(why: &str) -> String {
    format!("Your last answer could not be used: {why}. Do no more work now. {BLOCK_ALONE}")
}

/// How much of what was asked, and of what was answered, somebody is told who remembers nothing.
const EXCERPT: usize = 16 << 10;

/// The same, asked of one who remembers nothing of the conversation: what was asked and answered
/// there is told apart from what is asked now, and no more of it than is needed.
pub fn ask_for_block_anew(why: &str, asked: &str, answered: &str) -> String {
    let quoted = |text: &str| {
        let text = excerpt(text.trim(), EXCERPT);
        let fence = fence(&text);
        format!("{fence}\n{text}\n{fence}\n")
    };
    let (asked, answered) = (quoted(asked), quoted(answered));
    format!(
        "Your last answer could not be used: {why}. You do not remember it, so here is what you \
         were asked, and what you answered. The work is done: do no more of it now. Look at what \
         is there, if what you answered does not tell you enough.\n\n# You were asked\n\n{asked}\n\
         # You answered\n\n{answered}\n# What you are asked now\n\n{BLOCK_ALONE}"
    )
}

const BLOCK_ALONE: &str = "Answer with nothing but the JSON code block that says how the work \
    went:\n\n```json\n{\"success\": true or false, \"summary\": \"what was done\", \
    \"outputs\": {}, \"error\": \"what went wrong, if something did\"}\n```\n";

/// A text, or its beginning and its end where it is longer than so many bytes.
fn excerpt(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return text.into();
    }
    let is_border = |at: &usize| text.is_char_boundary(*at);
    let head = (0..=most / 2).rev().find(is_border).unwrap_or_default();
    let tail = (text.len() - most / 2..=text.len()).find(is_border).unwrap_or(text.len());
    let left_out = tail - head;
    format!("{}\n[… {left_out} bytes are left out here …]\n{}", &text[..head], &text[tail..]).into()
}

/// Reads the contract off the final text of an agent.
pub fn parse(text: &str) -> Contract {
    match ending(text) {
        Ok(map) => judge(map),
        Err(Some(why)) => Contract::Invalid(why),
        Err(None) => Contract::Missing,
    }
}

/// What can be told of an answer that does not keep the contract, as one that failed for `why`.
pub fn told(text: &str, why: String) -> AgentOutput {
    let mut map = ending(text).unwrap_or_default();
    let mut output = AgentOutput { error: Some(why), ..AgentOutput::default() };
    if let Some(Value::String(summary)) = map.remove("summary") {
        output.summary = summary;
    }
    if let Some(Value::Object(outputs)) = map.remove("outputs") {
        output.outputs = outputs;
    }
    map.retain(|key, _| !["success", "error"].contains(&key.as_str()));
    output.extra = map;
    output
}

/// The object that an answer ends with, whether or not it keeps the contract; or why what stands
/// there is none, if anything does.
pub fn ending(text: &str) -> Result<Map<String, Value>, Option<String>> {
    let text = &*unquoted(text);
    let Blocks { json, behind, end, within } = last_block(text);
    let invalid = |why: String| Err(Some(why));
    match (bare(&text[end..]), json) {
        (Bare::Object(map), None) => Ok(map),
        (Bare::Object(map), Some(block)) if map.contains_key("success") => {
            // A block that says anything else is not made a success of by what may be a sample.
            match says_success(&map) && !reads_success(block) {
                true => invalid(ANOTHER.into()),
                false => Ok(map),
            }
        }
        (Bare::Torn, _) => invalid("the JSON object at the end is cut off".into()),
        (Bare::Doubtful, _) => {
            invalid("the JSON object at the end may be a part of one that is broken".into())
        }
        (_, Some(_)) if within.is_some_and(|outer| !wraps_all(text, outer, behind)) => {
            invalid("it stands inside another code block, where it may be a sample".into())
        }
        (_, Some(_)) if may_hold_another(&text[behind..]) => invalid(ANOTHER.into()),
        (Bare::Twice(key), _) => invalid(twice(&key)),
        (_, Some(block)) => match serde_json::from_str(block.trim()) {
            Ok(Value::Object(map)) => match json::duplicate_key(block.trim()) {
                Some(key) => invalid(twice(&key)),
                None => Ok(map),
            },
            Ok(other) => invalid(format!("it must be an object, not {}", kind(&other))),
            Err(error) => invalid(format!("it is no JSON: {error}")),
        },
        (Bare::Nothing, None) => Err(None),
    }
}

/// Which of two values of one name counts is anybody's guess.
fn twice(key: &str) -> String {
    format!("the JSON object has the key `{key}` twice")
}

const ANOTHER: &str =
    "behind it stands what may be another answer, so nobody can tell which one counts";

fn says_success(map: &Map<String, Value>) -> bool {
    map.get("success") == Some(&Value::Bool(true))
}

fn reads_success(block: &str) -> bool {
    serde_json::from_str(block.trim()).is_ok_and(|map| says_success(&map))
}

fn judge(mut map: Map<String, Value>) -> Contract {
    let mut output = AgentOutput::default();
    match map.remove("success") {
        Some(Value::Bool(success)) => output.success = success,
        Some(other) => {
            let found = kind(&other);
            return Contract::Invalid(format!("`success` must be true or false, not {found}"));
        }
        None => return Contract::Invalid("`success` is missing".into()),
    }
    match map.remove("outputs") {
        None | Some(Value::Null) => {}
        Some(Value::Object(outputs)) => output.outputs = outputs,
        Some(other) => {
            let found = kind(&other);
            return Contract::Invalid(format!("`outputs` must be an object, not {found}"));
        }
    }
    match text(&mut map, "summary", &mut output.warnings) {
        Some(summary) => output.summary = summary,
        None => output.warnings.push("`summary` is missing".into()),
    }
    output.error = text(&mut map, "error", &mut output.warnings);
    output.extra = map;
    Contract::Found(output)
}

/// Takes a text; what is none is kept as JSON, for it may be all that is known.
fn text(map: &mut Map<String, Value>, key: &str, warnings: &mut Vec<String>) -> Option<String> {
    match map.remove(key)? {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => {
            warnings.push(format!("`{key}` should be text, not {}", kind(&other)));
            Some(other.to_string())
        }
    }
}

/// A text without the marks of quotes: a block of code in a quote has one before each of its
/// lines. No line of a block of JSON begins with such a mark by itself.
pub(super) fn unquoted(text: &str) -> Cow<'_, str> {
    let blank = |c: char| c == ' ' || c == '\t' || c == '\u{feff}';
    let quoted = |line: &str| line.trim_start_matches(blank).starts_with('>');
    if !text.lines().any(quoted) {
        return Cow::Borrowed(text);
    }
    let bare = |line| {
        let mut line: &str = line;
        while let Some(rest) = line.trim_start_matches(blank).strip_prefix('>') {
            line = rest.strip_prefix(' ').unwrap_or(rest);
        }
        line
    };
    Cow::Owned(text.split_inclusive('\n').map(bare).collect())
}

/// What follows the mark of an item of a list: `-`, `*`, `+`, `1.` or `1)`, and a blank.
fn item(line: &str) -> Option<&str> {
    let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let rest = match digits {
        0 => line.strip_prefix(['-', '*', '+']),
        1..=9 => line[digits..].strip_prefix(['.', ')']),
        _ => None,
    }?;
    rest.starts_with([' ', '\t']).then(|| rest.trim_start())
}

/// A line that opens or closes a code block.
struct Fence<'t> {
    mark: char,
    length: usize,
    /// What follows the marks.
    rest: &'t str,
    /// It begins an item of a list, so it closes nothing.
    begins_item: bool,
}

impl<'t> Fence<'t> {
    fn read(line: &'t str) -> Option<Fence<'t>> {
        let whole = line.trim_start_matches('\u{feff}').trim();
        let mut line = whole;
        while let Some(rest) = item(line) {
            line = rest;
        }
        let begins_item = line.len() < whole.len();
        let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let rest = line.trim_start_matches(mark);
        let length = line.len() - rest.len();
        (length >= 3).then_some(Fence { mark, length, rest, begins_item })
    }

    fn closes(&self, open: &Fence) -> bool {
        let same = self.mark == open.mark && self.length >= open.length;
        same && self.rest.is_empty() && !self.begins_item
    }

    /// What follows the word `json`, if this opens a block of it: nothing, unless it is the object
    /// itself.
    fn json(&self) -> Option<&'t str> {
        let info = self.rest.trim_start();
        if let Some((classes, _)) = info.strip_prefix('{').and_then(|info| info.split_once('}')) {
            // Pandoc's way to say it: `{.json .numberLines}`.
            let class = |class: &str| is_json(class.strip_prefix('.').unwrap_or(class));
            return classes.split_whitespace().any(class).then_some("");
        }
        let end = info.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(info.len());
        let (mut word, mut more) = info.split_at(end);
        if let Some(kind) = more.strip_prefix('/') {
            // A type of the web: `application/json`, `application/ld+json`.
            let in_type = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
            let end = kind.find(|c| !in_type(c)).unwrap_or(kind.len());
            let (kind, rest) = kind.split_at(end);
            (word, more) = (kind.rsplit('+').next().unwrap_or(kind), rest);
        }
        is_json(word).then(|| {
            let more = more.trim_start();
            let inside = more.strip_prefix('{').map(str::trim_start);
            let object = |inside: &str| inside.is_empty() || inside.starts_with(['"', '}']);
            if inside.is_some_and(object) { more } else { "" }
        })
    }
}

/// Whether a word is one for JSON.
fn is_json(word: &str) -> bool {
    ["json", "jsonc", "json5"].iter().any(|json| word.eq_ignore_ascii_case(json))
}

/// What code blocks a text has.
pub(super) struct Blocks<'t> {
    /// The content of the last one of JSON.
    pub json: Option<&'t str>,
    /// Where what follows that one begins.
    pub behind: usize,
    /// Where what follows the last one of any kind begins.
    pub end: usize,
    /// Where the block begins that the last one of JSON is inside of, if it is.
    within: Option<usize>,
}

/// Finds the last JSON code block.
///
/// A block is JSON if it says so, or if it says nothing and begins with a brace. A block that
/// opens inside one of another kind is seen, since samples in answers are often nested wrongly;
/// not if the outer one has the longer marks, which is how to nest them rightly. The text has no
/// marks of quotes ([`unquoted`]).
pub(super) fn last_block(text: &str) -> Blocks<'_> {
    let mut found = None;
    let (mut behind, mut end, mut within) = (0, 0, None);
    let mut outer: Option<(Fence, usize)> = None;
    // Where the line of the outer one begins.
    let mut opened = 0;
    let mut at = 0;
    while at < text.len() {
        let next = text[at..].find('\n').map_or(text.len(), |newline| at + newline + 1);
        let line = &text[at..next];
        let Some(fence) = Fence::read(line) else {
            at = next;
            continue;
        };
        let inside = outer.as_ref().filter(|(open, _)| {
            let nested = open.mark != fence.mark || open.length > fence.length;
            // In a block there are no lists: what looks like one may be a line of a patch.
            nested || fence.begins_item || fence.json().is_none()
        });
        if let Some((open, start)) = inside {
            if fence.closes(open) {
                let content = &text[*start..at];
                if open.rest.is_empty() && content.trim_start().starts_with('{') {
                    (found, behind, within) = (Some(content), next, None);
                }
                outer = None;
                end = next;
            }
            at = next;
            continue;
        }
        match fence.json() {
            Some(same_line) => {
                let start = if same_line.is_empty() { next } else { offset(text, same_line) };
                let (content, after) = content(text, start, next, &fence);
                // What it is inside of stays open.
                within = outer.is_some().then_some(opened);
                (found, behind) = (Some(content), after);
                (at, end) = (after, after);
            }
            // Marks within a line are no block.
            None if fence.rest.contains(fence.mark) => at = next,
            None => {
                outer = Some((fence, next));
                (opened, at) = (at, next);
            }
        }
    }
    if let Some((open, start)) = outer {
        let content = &text[start..];
        if open.rest.is_empty() && content.trim_start().starts_with('{') {
            (found, behind, within) = (Some(content), text.len(), None);
        }
        end = text.len();
    }
    Blocks { json: found, behind, end, within }
}

/// Whether a block is around all of an answer, so that what is inside of it is no sample: nothing
/// stands before it, and behind the JSON at most its end.
fn wraps_all(text: &str, outer: usize, behind: usize) -> bool {
    let before = text[..outer].trim_matches('\u{feff}').trim();
    let after = text[behind..].trim();
    before.is_empty() && after.trim_start_matches(['`', '~']).is_empty()
}

/// Whether what stands behind the last JSON block may hold another one, or another answer: marks
/// of a block in the midst of a line, or `success` as a key, in a block of another kind or in none.
/// What is nested rightly, in longer marks, is a sample.
fn may_hold_another(text: &str) -> bool {
    let mut outer: Option<Fence> = None;
    // Where what is looked into next begins: a block, or what stands between two.
    let (mut from, mut at) = (0, 0);
    let mut nested = false;
    for line in text.split_inclusive('\n') {
        let (start, next) = (at, at + line.len());
        at = next;
        let fence = Fence::read(line);
        match (&outer, fence) {
            (Some(open), Some(fence)) if fence.closes(open) => {
                let content = &text[from..start];
                if !nested && (says_how_it_went(content) || has_line_for_it(content)) {
                    return true;
                }
                (outer, from, nested) = (None, next, false);
            }
            (Some(open), Some(fence)) => nested |= open.length > fence.length,
            (Some(_), None) => {}
            (None, Some(fence)) if !fence.rest.contains(fence.mark) => {
                if fence.json().is_some() || says_how_it_went(&text[from..start]) {
                    return true;
                }
                (outer, from) = (Some(fence), next);
            }
            (None, _) if ["```", "~~~"].iter().any(|marks| line.contains(marks)) => return true,
            (None, _) => {}
        }
    }
    let rest = &text[from..];
    says_how_it_went(rest) || denies(rest) || outer.is_some() && has_line_for_it(rest)
}

/// Whether a line says that it went wrong, in so many words.
fn denies(text: &str) -> bool {
    let denied = |line: &str| {
        let (key, value) = line.split_once(':')?;
        let plain = |part: &str| part.trim_matches([' ', '\t', '\r', '*', '`', '-']).to_lowercase();
        Some(plain(key) == "success" && matches!(&*plain(value), "false" | "no"))
    };
    text.lines().any(|line| denied(line) == Some(true))
}

/// Whether `success` is the key of a line, as in YAML and TOML.
fn has_line_for_it(block: &str) -> bool {
    block.lines().any(|line| {
        let line = line.trim_start_matches([' ', '\t', '-', '"', '\'']);
        let rest = line.strip_prefix("success").map(|rest| rest.trim_start_matches(['"', '\'']));
        rest.is_some_and(|rest| rest.trim_start().starts_with([':', '=']))
    })
}

/// Whether `success` stands in a text as a key of an object does.
fn says_how_it_went(text: &str) -> bool {
    text.match_indices("success").any(|(at, word)| {
        let (before, behind) = (&text[..at], &text[at + word.len()..]);
        let quote = before.chars().next_back().filter(|c| matches!(c, '"' | '\''));
        let rest = match quote {
            Some(quote) => behind.strip_prefix(quote),
            None => before.trim_end().ends_with('{').then_some(behind),
        };
        rest.is_some_and(|rest| rest.trim_start().starts_with(':'))
    })
}

/// Where a part of `text` begins in it.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// The content of a JSON block that begins at `start`, and where what follows it begins.
///
/// The end of the first value decides, not the next marks: these may stand in one of its texts, or
/// right behind it. Only where there is no whole value, lines are looked at.
fn content<'t>(text: &'t str, start: usize, next: usize, open: &Fence) -> (&'t str, usize) {
    let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
    if let Some(Ok(_)) = values.next() {
        let end = start + values.byte_offset();
        let rest = text[end..].trim_start();
        let marks = rest.len() - rest.trim_start_matches(open.mark).len();
        if rest.is_empty() || marks >= open.length {
            // Marks that open the next block close none.
            let line = rest.split('\n').next().unwrap_or(rest);
            let anew = Fence::read(line).is_some_and(|fence| fence.json().is_some());
            let marks = if anew { 0 } else { marks };
            return (&text[start..end], text.len() - rest.len() + marks);
        }
    }
    let mut at = next;
    while at < text.len() {
        let next = text[at..].find('\n').map_or(text.len(), |newline| at + newline + 1);
        match Fence::read(&text[at..next]) {
            Some(fence) if fence.closes(open) => return (&text[start..at], next),
            // Somebody began anew.
            Some(fence) if fence.mark == open.mark && fence.json().is_some() => {
                return (&text[start..at], at);
            }
            _ => at = next,
        }
    }
    (&text[start..], text.len())
}

/// What stands at the end of a text outside of any block.
enum Bare {
    Nothing,
    Object(Map<String, Value>),
    /// An object begins a line, but the text ends within it.
    Torn,
    /// An object, but one that is broken before it says how it went, too, and may have it inside.
    Doubtful,
    /// An object that has this key twice.
    Twice(String),
}

/// Reads the object that the text ends with; the outermost, if it has objects inside.
fn bare(text: &str) -> Bare {
    let text = text.trim_end();
    let object = last_brace(text).and_then(|brace| {
        let map = serde_json::from_str(&text[brace..]).ok()?;
        Some((&text[..brace], map))
    });
    match object {
        Some((before, _)) if says_brokenly(before) => Bare::Doubtful,
        Some((before, map)) => match json::duplicate_key(&text[before.len()..]) {
            Some(key) => Bare::Twice(key),
            None => Bare::Object(map),
        },
        None if is_torn(text) => Bare::Torn,
        None => Bare::Nothing,
    }
}

/// The brace that the last one of a text closes. Read backwards, JSON is no less clear: a quote
/// that no backslash is before begins or ends a text.
fn last_brace(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut depth, mut in_text, mut at) = (0usize, false, bytes.len());
    if !text.ends_with('}') {
        return None;
    }
    while at > 0 {
        at -= 1;
        match bytes[at] {
            b'"' => {
                let escapes = bytes[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
                in_text ^= escapes.is_multiple_of(2);
                at -= escapes;
            }
            b'}' if !in_text => depth += 1,
            b'{' if !in_text => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether an object says how it went that cannot be read to its end.
fn says_brokenly(text: &str) -> bool {
    let mut at = 0;
    while let Some(brace) = text[at..].find('{').map(|brace| at + brace) {
        match value_length(&text[brace..]) {
            Ok(length) => at = brace + length,
            Err(_) => return says_how_it_went(&text[brace..]),
        }
    }
    false
}

/// Whether an object begins a line of the text and does not end before it does.
fn is_torn(text: &str) -> bool {
    let mut at = 0;
    while let Some(brace) = text[at..].find('{').map(|brace| at + brace) {
        at = brace + 1;
        if !begins_line(text, brace) {
            continue;
        }
        match value_length(&text[brace..]) {
            Ok(length) => at = brace + length,
            Err(None) => return true,
            // What begins a line inside of it is no text of it, and ends or breaks as it does.
            Err(Some(read)) => at = (brace + read).max(at),
        }
    }
    false
}

/// How long the JSON value is that a text begins with; or how far it can be read, where it does not
/// end with the text.
fn value_length(text: &str) -> Result<usize, Option<usize>> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => Ok(values.byte_offset()),
        Some(Err(error)) if !error.is_eof() => {
            let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1));
            let read = lines.map(str::len).sum::<usize>() + error.column().saturating_sub(1);
            Err(Some(
                (0..=read.min(text.len())).rfind(|at| text.is_char_boundary(*at)).unwrap_or(0),
            ))
        }
        _ => Err(None),
    }
}

/// Whether an object of a person's making begins here: on a line of its own, with a name in it.
fn begins_line(text: &str, brace: usize) -> bool {
    let before = text[..brace].trim_end_matches([' ', '\t', '\r']);
    (before.is_empty() || before.ends_with('\n')) && text[brace + 1..].trim_start().starts_with('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_remembers_nothing_is_told_enough_and_no_more() {
        let asked = format!("begin {}end", "é".repeat(20_000));
        let text = ask_for_block_anew("it is empty", &asked, "```json\n{\"success\": true}\n```");
        assert!(text.len() < EXCERPT + 2000, "{}", text.len());
        for part in [
            "used: it is empty.",
            "```\nbegin éé",
            "éend\n```",
            "bytes are left out",
            "````\n```json",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.ends_with(
            "went:\n\n```json\n{\"success\": true or false, \"summary\": \"what was \
             done\", \"outputs\": {}, \"error\": \"what went wrong, if something did\"}\n```\n"
        ));
    }

    /// `ok SUMMARY`, `failed SUMMARY`, `missing`, or `invalid: WHY`.
    fn read(text: &str) -> String {
        match parse(text) {
            Contract::Found(output) if output.success => format!("ok {}", output.summary),
            Contract::Found(output) => format!("failed {}", output.summary),
            Contract::Missing => "missing".into(),
            Contract::Invalid(why) => format!("invalid: {why}"),
        }
    }

    fn reads(cases: &[(&str, &str)]) {
        for (text, wanted) in cases {
            let found = read(text);
            let same = wanted.strip_suffix('…').map_or(found == *wanted, |w| found.starts_with(w));
            assert!(same, "{text}\n  gave {found}\n  not  {wanted}");
        }
    }

    const A: &str = r#"{"success": true, "summary": "a"}"#;
    const B: &str = r#"{"success": false, "summary": "b"}"#;

    #[test]
    fn a_block_is_found() {
        reads(&[
            (&format!("Done.\n\n```json\n{A}\n```\n"), "ok a"),
            (&format!("```json\r\n{A}\r\n```\r\n"), "ok a"),
            (&format!("```JSON\n{A}\n```"), "ok a"),
            (&format!("```json title=x\n{A}\n```"), "ok a"),
            (&format!("```jsonc\n{A}\n```"), "ok a"),
            (&format!("  - item\n\n    ```json\n    {A}\n    ```\n"), "ok a"),
            (&format!("~~~json\n{A}\n~~~\n"), "ok a"),
            (&format!("````json\n{A}\n````\n"), "ok a"),
            (&format!("```\n{A}\n```\n"), "ok a"),
            (&format!("```json {A} ```"), "ok a"),
            (&format!("```json{A}```"), "ok a"),
            (&format!("```json\n{A}```\nbye"), "ok a"),
            (&format!("```json\n{A}\n```\nAnd some more words."), "ok a"),
            (&format!("```json\n{A}"), "ok a"),
            (&format!("```\n{A}"), "ok a"),
            (&format!("``` json\n{A}\n```"), "ok a"),
            (&format!("```  JSON title=x\n{A}\n```"), "ok a"),
            (&format!("```json {{.numberLines}}\n{A}\n```"), "ok a"),
            (&format!("```{{.json}}\n{A}\n```"), "ok a"),
            (&format!("``` {{ #id .json .numberLines }}\n{A}\n```"), "ok a"),
            (&format!("```{{json}}\n{A}\n```"), "ok a"),
            (&format!("```application/json\n{A}\n```"), "ok a"),
            (&format!("```application/ld+json; charset=utf-8\n{A}\n```"), "ok a"),
            (&format!("- ```json\n  {A}\n  ```"), "ok a"),
            (&format!("1. first\n2) ```json\n   {A}\n   ```\n3. third"), "ok a"),
            (&format!("* - ~~~json\n    {A}\n    ~~~"), "ok a"),
            (&format!("> ```json\n> {A}\n> ```\nbye"), "ok a"),
            (
                "> > ```json\n> > {\n>> \"success\": true,\n> > \"summary\": \"> q\"}\n> > ```",
                "ok > q",
            ),
            (&format!("> - ```json\n>   {A}\n>   ```"), "ok a"),
            (&format!("\u{feff}```json\n{A}\n```"), "ok a"),
            (&format!("\u{feff}> ```json\n> {A}\n> ```"), "ok a"),
            ("```json\n{\n  \"success\": true,\n\n  \"summary\": \"x\\ny\"\n}\n```", "ok x\ny"),
        ]);
    }

    #[test]
    fn the_last_block_decides() {
        reads(&[
            (&format!("```json\n{A}\n```\nno:\n```json\n{B}\n```"), "failed b"),
            (&format!("```json\n{B}\n```\nno:\n```json\n{A}\n```"), "ok a"),
            (&format!("```json\n{A}\n```\n```json\n{{\"success\": tru\n```"), "invalid: it is no…"),
            (&format!("```json\n{A}\n```\n```json\n{{\"succ"), "invalid: it is no JSON…"),
            (&format!("```json\n{A}\n```\n```json\n[1]\n```"), "invalid: it must be an object…"),
            (&format!("```json\n{A}\n```\n```json\n```"), "invalid: it is no JSON…"),
            (&format!("```json\n{A}\n```\n```\n{{broken\n```"), "invalid: it is no JSON…"),
            (&format!("```json\n{A}\n```\n```json\n{A}\n{A}\n```"), "invalid: it is no JSON…"),
            (&format!("```json\n{A}\n```\n```sh\necho {{\n```"), "ok a"),
            (&format!("```json\n{A}\n```\n```\nls\n```"), "ok a"),
            (&format!("```json\n{A}\n```\n- ```json\n  {B}\n  ```\n"), "failed b"),
            (&format!("```json\n{A}\n```\n> ```json\n> {B}\n> ```\n"), "failed b"),
            (&format!("```json\n{A}\n```\n``` json\n{B}\n```\n"), "failed b"),
            (&format!("```json\n{A}\n```\n```{{.json}}\n{B}\n```\n"), "failed b"),
            (&format!("```json\n{A}\n```\n```application/json\n{B}\n```\n"), "failed b"),
            (&format!("```json\n{A}\n```\n- ```json\n  {{\"success\"\n  ```\n"), "invalid: it is…"),
            (&format!("```json\n{A}\n```\n> ```json\n> {{\"success\"\n\nbye"), "invalid: it is…"),
            (&format!("```json\n{A}\n```\n```diff\n- ```json\n+ ```js\n```"), "ok a"),
            (&format!("```json\n{A}\n```\n```sh\ncat x.json > /dev/null\n> {{\n```"), "ok a"),
            (&format!("```json\n{A}\n```json\n{B}\n```\n"), "failed b"),
            (&format!("```json\n{A}\n``` json\n{B}\n```\n"), "failed b"),
            (&format!("```json\n{A}\n````json\n{B}\n````\n"), "failed b"),
            (&format!("```json {A} ```json {B} ```"), "failed b"),
            (&format!("```python\n{B}\n```\n```json\n{A}\n```"), "ok a"),
            (&format!("```python\n{A}\n```"), "missing"),
            (&format!("```json\n{{\"success\":\n\nagain:\n```json\n{A}\n```"), "ok a"),
        ]);
    }

    /// An earlier block never decides because the last one is written in a way that is not known.
    #[test]
    fn what_may_be_another_answer_leaves_nothing_to_decide() {
        let behind = |text: &str| format!("```json\n{A}\n```\n{text}\n");
        for opening in [
            "Result: ```json",
            "- [ ] ```json",
            "# ```json",
            "**```json**",
            "| ```json",
            "-```json",
            "\u{200b}```json",
            "```output.json",
            "```:json",
            "```ndjson",
            "```js",
            "<pre>",
            "",
        ] {
            let closing = if opening == "<pre>" { "</pre>" } else { "```" };
            let read = read(&behind(&format!("{opening}\n{B}\n{closing}\nbye")));
            assert!(read.starts_with("invalid: behind it"), "{opening}: {read}");
        }
        for text in [
            "Result: ```json\n{\"success\": fal\n```",
            "-```json",
            "```js\n({success: false})\n```",
            "```py\n{'success' : False}\n```",
            "It said\n{\n  \"success\"\n: false} and more",
            "````md\n{\"success\": false}\n````",
        ] {
            let read = read(&behind(text));
            assert!(read.starts_with("invalid: behind it"), "{text}: {read}");
        }
        for text in [
            "```sh\nmake success\n```",
            "The \"success\" is yours: bye.",
            "success: all of it",
            "```\nls\n```\n```sh\nls",
            "```",
            "~~done~~ with `x` and ``y``",
        ] {
            assert_eq!(read(&behind(text)), "ok a", "{text}");
        }
        for text in [
            "```yaml\nsuccess: false\n```",
            "```toml\n[a]\n  success = false",
            "```\n- 'success': no",
        ] {
            assert!(read(&behind(text)).starts_with("invalid: behind it"), "{text}");
        }
    }

    #[test]
    fn nested_samples() {
        reads(&[
            (&format!("````markdown\n```json\n{B}\n```\n````\n```json\n{A}\n```"), "ok a"),
            (&format!("```json\n{A}\n```\n````markdown\n```json\n{B}\n```\n````\n"), "ok a"),
            (&format!("```markdown\n```json\n{B}\n```\n```\n\n```json\n{A}\n```"), "ok a"),
            (&format!("```markdown\nunclosed\n\n```json\n{A}\n```"), "ok a"),
            (&format!("~~~\n```json\n{B}\n```\n~~~\n{A}"), "ok a"),
            // All of the answer may stand in a block; what stands in one among other words is a
            // sample.
            (&format!("```markdown\nDone.\n```json\n{A}\n```\n```\n"), "ok a"),
            (&format!("Doc:\n```markdown\n```json\n{A}\n```\n```\n"), "invalid: it stands…"),
            (&format!("```markdown\n```json\n{A}\n```\n```\nNo."), "invalid: it stands…"),
            (&format!("I ran\n```sh\nmake\n\n```json\n{A}\n```\n"), "invalid: it stands…"),
            (&format!("```json\n{B}\n```\n```md\n```json\n{A}\n```\n```"), "invalid: it st…"),
        ]);
    }

    #[test]
    fn back_ticks_in_texts_are_legal() {
        reads(&[
            ("```json\n{\"success\": true, \"summary\": \"use `x`\"}\n```", "ok use `x`"),
            ("```json\n{\"success\": true, \"summary\": \"```\"}\n```", "ok ```"),
            (
                "```json\n{\"success\": true, \"summary\": \"```json {} ```\"}\n```",
                "ok ```json {} ```",
            ),
            ("```json\n{\"success\": true, \"summary\":\n\"```sh\"\n}\n```", "ok ```sh"),
            ("Say ```json``` then.\n```json\n{\"success\": true, \"summary\": \"a\"}\n```", "ok a"),
        ]);
    }

    #[test]
    fn a_bare_object_counts_only_at_the_end() {
        reads(&[
            (A, "ok a"),
            (&format!("Done: {A}\n\n"), "ok a"),
            (&format!("{B}\n{A}"), "ok a"),
            (&format!("{A}\nThat was all."), "missing"),
            (&format!("```json\n{A}\n```\nNo: {B}"), "failed b"),
            (&format!("```json\n{A}\n```\nAgain: {A}"), "ok a"),
            ("{\"success\": false, \"success\": true}", "invalid: the JSON object has…"),
            ("```json\n{\"success\": false, \"success\": true}\n```", "invalid: the JSON object…"),
            (&format!("```json\n{B}\n```\nThen it will answer {A}"), "invalid: behind it…"),
            (&format!("```json\n{B}\n```\n{A}"), "invalid: behind it…"),
            (&format!("```json\n{A}\n```\nsuccess: all of it"), "ok a"),
            (&format!("```json\n{A}\n```\nsuccess: false\nerror: x"), "invalid: behind it…"),
            (&format!("```json\n{B}\n```\n{A}\nThat was all."), "invalid: behind it…"),
            (&format!("```json\n{B}\n```\n{{\"a\": 1}}\nThat was all."), "failed b"),
            (&format!("```json\n{A}\n```\nSee `struct Foo {{}}`"), "ok a"),
            (&format!("```json\n{A}\n```\nSee struct Foo {{}}"), "ok a"),
            (&format!("```json\n{A}\n```\n{{\"success\": fal"), "invalid: the JSON object…"),
            ("{\"success\": true, \"outputs\": {\"a\": {\"b\": 1}}}", "ok "),
            ("{} {\"a\": 1}", "invalid: `success` is missing"),
            ("{ echo; }", "missing"),
            ("[{\"success\": true}]", "missing"),
            (
                "{\"success\": false, \"summary\":\"I got cut {\"success\": true}",
                "invalid: the JSON…",
            ),
            ("So: {\"success\": false, \"a\": \"cut\n{\"success\": true}", "invalid: the JSON…"),
            ("See `impl X {`, and {\"a\" b}.\n{\"success\": true}", "ok "),
            ("{\"success\": true, \"summary\": \"a } \\\\\\\" { b \\\\\"}", "ok a } \\\" { b \\"),
            ("", "missing"),
            ("nothing here", "missing"),
            ("```", "missing"),
        ]);
    }

    #[test]
    fn the_contract_is_kept_or_not() {
        reads(&[
            ("{\"success\": \"true\"}", "invalid: `success` must be true or false, not text"),
            ("{\"success\": 1}", "invalid: `success` must be true or false, not a number"),
            ("{\"success\": null}", "invalid: `success` must be true or false, not null"),
            ("{\"summary\": \"x\"}", "invalid: `success` is missing"),
            ("{\"success\": true, \"outputs\": [1]}", "invalid: `outputs` must be an object…"),
            ("{\"success\": true, \"outputs\": null, \"error\": null}", "ok "),
        ]);
        let Contract::Found(output) = parse(
            r#"{"success": false, "error": {"code": 5}, "files": [1], "outputs": {"k": "v"}}"#,
        ) else {
            panic!("it keeps the contract")
        };
        assert_eq!(
            output.warnings,
            ["`summary` is missing", "`error` should be text, not an object"]
        );
        let wanted = json!({
            "success": false, "summary": "", "outputs": { "k": "v" }, "error": "{\"code\":5}",
            "files": [1],
        });
        assert_eq!(output.to_json().to_string(), wanted.to_string());
    }

    #[test]
    fn a_hostile_answer_is_read_in_time() {
        let deep = "{\"a\":".repeat(100_000);
        assert!(read(&deep).starts_with("invalid: the JSON object at the end is cut off"));
        let lines = format!("{}x", "{\"a\":\n".repeat(100_000));
        assert_eq!(read(&lines), "missing");
        assert_eq!(read(&format!("{}}}", "{\"a\":[".repeat(100_000))), "missing");
        let wide = format!("```json\n{{\"a\":[{}]}}\n```", "{},".repeat(100_000));
        assert!(read(&wide).starts_with("invalid"), "a trailing comma");
        assert!(read(&"```json\n".repeat(20_000)).starts_with("invalid: it is no JSON"));
        assert_eq!(read(&"{".repeat(200_000)), "missing");
        assert_eq!(read("\u{0}{\"success\": true, \"summary\": \"\u{fffd}\"}"), "ok \u{fffd}");
    }
}
