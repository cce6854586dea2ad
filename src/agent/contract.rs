//! The agent contract: an answer ends with a JSON object that reports the result of the work.
//!
//! The last JSON code block of the answer decides, regardless of the text before it: answers quote
//! samples. An object outside a code block counts only at the very end of the text. A block may be
//! inside a list or a quote, and may declare in several ways that it is JSON, as Markdown readers
//! accept it.
//!
//! **Invariant:** an unreadable block never lets an earlier one decide. If the text after the last
//! block may contain another block or another answer, nothing decides; nor if the block may be part
//! of a sample, or the object part of a broken one. Reading takes time linear in the length of the
//! text.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::answer::fence;
use crate::base::json;
use crate::template::kind;

/// The result of reading the contract from an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Contract {
    Found(AgentOutput),
    /// The answer has no JSON block.
    Missing,
    /// The answer has a block that violates the contract, for this reason.
    Invalid(String),
}

impl Contract {
    /// Returns the agent's report, or a keyword for its absence and a message.
    pub(crate) fn kept(self) -> Result<AgentOutput, (&'static str, String)> {
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

/// An agent's report about its work.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AgentOutput {
    pub success: bool,
    pub summary: String,
    pub outputs: Map<String, Value>,
    pub error: Option<String>,
    /// All other keys.
    pub extra: Map<String, Value>,
    /// Deviations from the contract that are tolerated.
    pub warnings: Vec<String>,
}

impl AgentOutput {
    /// Returns the object that later steps see: every key of the contract, then the others.
    pub(crate) fn to_json(&self) -> Value {
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

/// Returns the text to append to the prompt of an agent whose last answer violated the contract.
pub(crate) fn ask_again(why: &str) -> String {
    format!(
        "\n\n---\n\nYour last answer could not be used: {why}. Look at what is done already, do \
         what is left, and end your answer with the JSON code block, with nothing behind it.\n"
    )
}

/// Returns the request for the JSON block alone, within the same conversation, when all other work
/// is done.
pub(crate) fn ask_for_block(why: &str) -> String {
    format!("Your last answer could not be used: {why}. Do no more work now. {BLOCK_ALONE}")
}

/// Maximum number of bytes of the prompt and of the answer to quote to an agent without memory.
const EXCERPT: usize = 16 << 10;

/// Returns the same request for an agent that does not remember the conversation: it quotes
/// excerpts of the earlier prompt and answer, separate from the new request, no longer than needed.
pub(crate) fn ask_for_block_anew(why: &str, asked: &str, answered: &str) -> String {
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

/// Returns a text, or its start and its end if it is longer than `most` bytes.
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

/// Reads the contract from the final text of an agent.
pub(crate) fn parse(text: &str) -> Contract {
    match ending(text) {
        Ok(map) => judge(map),
        Err(Some(why)) => Contract::Invalid(why),
        Err(None) => Contract::Missing,
    }
}

/// Extracts as much as possible from an answer that violates the contract, as a failure with reason
/// `why`.
pub(crate) fn told(text: &str, why: String) -> AgentOutput {
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

/// Returns the object at the end of an answer, even if it violates the contract. On failure,
/// returns the reason, or `None` if the answer has no object at its end.
pub(crate) fn ending(text: &str) -> Result<Map<String, Value>, Option<String>> {
    let text = &*unquoted(text);
    let Blocks { json, behind, end, within } = last_block(text);
    let invalid = |why: String| Err(Some(why));
    match (bare(&text[end..]), json) {
        (Bare::Object(map), None) => Ok(map),
        (Bare::Object(map), Some(block)) if map.contains_key("success") => {
            // An object that may be a sample must not turn a block that does not report success
            // into one.
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

/// A duplicate key is an error, because it is undefined which value counts.
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

/// Takes a text. Any other value is kept as JSON, because it may be the only information.
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

/// Removes quote markers (`>`) from a text: a quoted code block has one before each line. No line
/// of a JSON block starts with such a marker by itself.
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

/// Returns the text after a list item marker: `-`, `*`, `+`, `1.` or `1)`, and a blank.
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
    /// The text after the fence characters.
    rest: &'t str,
    /// True if the line starts a list item, so that it cannot close a block.
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

    /// Returns the text after the word `json` if this line opens a JSON block: empty, unless the
    /// object itself starts there.
    fn json(&self) -> Option<&'t str> {
        let info = self.rest.trim_start();
        if let Some((classes, _)) = info.strip_prefix('{').and_then(|info| info.split_once('}')) {
            // Pandoc syntax: `{.json .numberLines}`.
            let class = |class: &str| is_json(class.strip_prefix('.').unwrap_or(class));
            return classes.split_whitespace().any(class).then_some("");
        }
        let end = info.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(info.len());
        let (mut word, mut more) = info.split_at(end);
        if let Some(kind) = more.strip_prefix('/') {
            // A media type: `application/json`, `application/ld+json`.
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

/// Returns true if a word denotes JSON.
fn is_json(word: &str) -> bool {
    ["json", "jsonc", "json5"].iter().any(|json| word.eq_ignore_ascii_case(json))
}

/// The code blocks of a text.
pub(super) struct Blocks<'t> {
    /// The content of the last JSON block.
    pub json: Option<&'t str>,
    /// Offset of the text after that block.
    pub behind: usize,
    /// Offset of the text after the last block of any kind.
    pub end: usize,
    /// Offset of the block that contains the last JSON block, if there is one.
    within: Option<usize>,
}

/// Finds the last JSON code block.
///
/// A block is JSON if it declares so, or if it declares nothing and starts with a brace. A block
/// that opens inside a block of another kind counts, because samples in answers are often nested
/// incorrectly. It does not count if the outer fence is longer, which is the correct way to nest.
/// The text must have no quote markers ([`unquoted`]).
pub(super) fn last_block(text: &str) -> Blocks<'_> {
    let mut found = None;
    let (mut behind, mut end, mut within) = (0, 0, None);
    let mut outer: Option<(Fence, usize)> = None;
    // Offset of the line that opens the outer block.
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
            // A block contains no lists: a line that looks like one may be part of a patch.
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
                // The enclosing block stays open.
                within = outer.is_some().then_some(opened);
                (found, behind) = (Some(content), after);
                (at, end) = (after, after);
            }
            // Fence characters within a line do not open a block.
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

/// Returns true if a block encloses a whole answer, so that its content is not a sample: there is
/// no text before it, and after the JSON at most its closing fence.
fn wraps_all(text: &str, outer: usize, behind: usize) -> bool {
    let before = text[..outer].trim_matches('\u{feff}').trim();
    let after = text[behind..].trim();
    before.is_empty() && after.trim_start_matches(['`', '~']).is_empty()
}

/// Returns true if the text after the last JSON block may contain another block or another answer:
/// fence characters in the middle of a line, or `success` as a key, inside or outside a block of
/// another kind. Blocks that are nested correctly, in a longer fence, are samples.
fn may_hold_another(text: &str) -> bool {
    let mut outer: Option<Fence> = None;
    // Offset of the part to check next: a block, or the text between two blocks.
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

/// Returns true if a line explicitly reports a failure (`success: false`).
fn denies(text: &str) -> bool {
    let denied = |line: &str| {
        let (key, value) = line.split_once(':')?;
        let plain = |part: &str| part.trim_matches([' ', '\t', '\r', '*', '`', '-']).to_lowercase();
        Some(plain(key) == "success" && matches!(&*plain(value), "false" | "no"))
    };
    text.lines().any(|line| denied(line) == Some(true))
}

/// Returns true if `success` is the key of a line, as in YAML and TOML.
fn has_line_for_it(block: &str) -> bool {
    block.lines().any(|line| {
        let line = line.trim_start_matches([' ', '\t', '-', '"', '\'']);
        let rest = line.strip_prefix("success").map(|rest| rest.trim_start_matches(['"', '\'']));
        rest.is_some_and(|rest| rest.trim_start().starts_with([':', '=']))
    })
}

/// Returns true if a text contains `success` as a key of an object.
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

/// Returns the offset of `part` in `text`.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// Returns the content of a JSON block that starts at `start`, and the offset of the text after it.
///
/// The end of the first value decides, not the next fence: a fence may be inside a string of the
/// value, or directly after it. Lines are scanned for a fence only if there is no complete value.
fn content<'t>(text: &'t str, start: usize, next: usize, open: &Fence) -> (&'t str, usize) {
    let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
    if let Some(Ok(_)) = values.next() {
        let end = start + values.byte_offset();
        let rest = text[end..].trim_start();
        let marks = rest.len() - rest.trim_start_matches(open.mark).len();
        if rest.is_empty() || marks >= open.length {
            // A fence that opens the next block does not close this one.
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
            // The agent started a new block.
            Some(fence) if fence.mark == open.mark && fence.json().is_some() => {
                return (&text[start..at], at);
            }
            _ => at = next,
        }
    }
    (&text[start..], text.len())
}

/// The end of a text, outside all blocks.
enum Bare {
    Nothing,
    Object(Map<String, Value>),
    /// An object starts a line, but the text ends within it.
    Torn,
    /// An object, preceded by a broken object that also reports a result and may contain this one.
    Doubtful,
    /// An object that has this key twice.
    Twice(String),
}

/// Reads the object at the end of the text; the outermost one if objects are nested.
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

/// Returns the opening brace that matches the last brace of a text. JSON is unambiguous backwards
/// too: a quote without a backslash before it starts or ends a string.
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

/// Returns true if a text contains an incomplete object that reports a result.
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

/// Returns true if an object starts a line of the text and the text ends within it.
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
            // An object that starts a line before the error is nested in this one, not in a string
            // of it, and is complete or broken like it.
            Err(Some(read)) => at = (brace + read).max(at),
        }
    }
    false
}

/// Returns the length of the JSON value at the start of a text. On failure, returns the readable
/// length, or `None` if the text ends within the value.
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

/// Returns true if an object that an author wrote starts here: at the start of a line, with a key.
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
