//! The texts of nodes: variables and references that will not have the value their author expects.
//!
//! Problems that a text shows by itself are reported when it is read. Its references are recorded
//! and checked once all nodes are known.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::graph::{self as graph, Ids};
use crate::template::nodes::{NodeRef, NodeText, Piece, Var, name_length};
use crate::workflow::fields::{Fields, Findings};
use crate::workflow::lint;
use crate::workflow::plan::{Action, Step};
use crate::workflow::shell;
use crate::yaml::problem::{At, Place, Problem};

/// The purpose of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Prompt,
    LoopPrompt,
    RejectPrompt,
    Bash,
    UntilBash,
    Script,
    /// A message to a person: only references are replaced in it.
    Message,
}

/// One occurrence of a reference.
pub(crate) struct Mention {
    /// Index of the node that contains it.
    pub node: usize,
    /// Description of the text that contains it: "`prompt` of node `a`".
    pub what: String,
    pub reference: NodeRef,
    pub at: At,
}

/// A text, and its place in the file.
struct Written {
    value: Arc<str>,
    place: Place,
}

impl Written {
    /// Returns the place of `what` at byte offset `at` of the text.
    fn at(&self, at: usize, what: &str) -> At {
        At::inside(self.place, &self.value, at, what.chars().count())
    }
}

/// Parses a text, reports the problems that it shows by itself, and records its references.
pub(crate) fn read(
    fields: &Fields,
    key: &str,
    text: &str,
    used: Use,
    node: usize,
    mentions: &mut Vec<Mention>,
) -> NodeText {
    let place = fields.get(key).map_or(fields.node.place, |node| node.place);
    let what = format!("`{key}` of {}", fields.what);
    let parsed = NodeText::parse(text);
    let shell = matches!(used, Use::Bash | Use::UntilBash);
    let findings = fields.findings;
    let written = Written { value: text.into(), place };
    let (parsed, script) = match shell {
        true => {
            let script = shell::Script::read(parsed);
            (script.text.clone(), Some(script))
        }
        false => (parsed, None),
    };
    tell_variables(findings, &parsed, used, &what, &written);
    tell_braces(findings, &parsed, used, &what, &written);
    if let Some(script) = &script {
        tell_quotes(findings, script, &what, &written);
    }
    let refs = parsed.placed().filter_map(|(at, piece)| match piece {
        Piece::Ref(reference) => Some((reference, written.at(at, &reference.to_string()))),
        _ => None,
    });
    mention(mentions, node, &what, refs);
    parsed
}

/// Records the references of one text, each once.
pub(crate) fn mention<'r>(
    mentions: &mut Vec<Mention>,
    node: usize,
    what: &str,
    references: impl Iterator<Item = (&'r NodeRef, At)>,
) {
    let mut seen = BTreeSet::new();
    for (reference, at) in references {
        if seen.insert((&reference.node, &reference.field)) {
            let (what, reference) = (what.to_owned(), reference.clone());
            mentions.push(Mention { node, what, reference, at });
        }
    }
}

fn tell_variables(findings: &Findings, text: &NodeText, used: Use, what: &str, written: &Written) {
    let mut seen = BTreeSet::new();
    for (at, piece) in text.placed() {
        if let Piece::Var(var) = piece
            && seen.insert(*var)
        {
            tell_variable(findings, *var, used, what, written.at(at, &var.to_string()));
        }
    }
}

/// Warns of a variable that has no value in this text.
pub(crate) fn tell_variable(findings: &Findings, var: Var, used: Use, what: &str, at: At) {
    let looped = matches!(used, Use::LoopPrompt | Use::UntilBash);
    match (used, var) {
        (Use::Message, _) => findings.add(
            Problem::warning(format!("`{var}` is not replaced in {what}"))
                .at(at)
                .hint("there, only what nodes gave is put in: `$id.output`"),
        ),
        (_, Var::LoopUserInput | Var::LoopPrevOutput) if !looped => {
            let message = format!("`{var}` is empty in {what}: only a `loop` has it");
            findings.warn(at, message);
        }
        (_, Var::RejectionReason) if used != Use::RejectPrompt => {
            let message = format!("`{var}` is empty in {what}: only `on_reject` has it");
            findings.warn(at, message);
        }
        _ => {}
    }
}

/// Warns of the first `${…}`, which has a meaning only in the `steps:` dialect. In a shell it is
/// valid too if it contains no dot. Other languages use it for their own purposes.
fn tell_braces(findings: &Findings, text: &NodeText, used: Use, what: &str, written: &Written) {
    if used == Use::Script {
        return;
    }
    let shell = matches!(used, Use::Bash | Use::UntilBash);
    for (begin, piece) in text.placed() {
        let Piece::Text(text) = piece else { continue };
        for (at, _) in text.match_indices("${") {
            let inside = &text[at + 2..];
            let name = inside.find(|c: char| !is_path(c)).unwrap_or(inside.len());
            let (name, closed) = (&inside[..name], inside[name..].starts_with('}'));
            let path = name_length(name, false) > 0;
            if !closed || !path || (shell && !name.contains('.')) {
                continue;
            }
            let message = format!("`${{{name}}}` is not replaced in {what}");
            let hint = match Var::named(name) {
                Some(var) => format!("this dialect writes `{var}`"),
                None => "this dialect writes `$id.output` and `$id.output.field`".to_owned(),
            };
            let at = written.at(begin + at, &text[at..at + 3 + name.len()]);
            findings.add(Problem::warning(message).at(at).hint(hint));
            return;
        }
    }
}

fn is_path(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// Reports values at places where a shell expands nothing, and warns of values that become part of
/// another script or are in quotes.
fn tell_quotes(findings: &Findings, script: &shell::Script, what: &str, written: &Written) {
    for (at, piece, used) in script.values() {
        let (value, place) = (piece.to_string(), used.place);
        let at = written.at(at, &value);
        // A name that stays in the script can be anywhere. The other variables are text, which can
        // be in single quotes.
        let fix = place.fix().filter(|_| match piece {
            Piece::Var(var) => !var.is_user_text() && place != shell::Place::SingleQuotes,
            _ => true,
        });
        let trusted = matches!(piece, Piece::Var(var) if !var.is_user_text());
        let quoted = matches!(piece, Piece::Ref(_)) && place != shell::Place::Word;
        if let Some(fix) = fix {
            let message = format!("`{value}` is {} in {what}", place.name());
            let hint = fix.replace("VALUE", &value);
            findings.add(Problem::error(message).at(at).hint(hint));
        } else if let Some(program) = used.runner().filter(|_| !trusted) {
            let message =
                format!("`{value}` becomes part of the script that `{program}` runs in {what}");
            let is_variable = matches!(piece, Piece::Var(_));
            let argument = if is_variable { format!("\"{value}\"") } else { value };
            let hint = lint::SHELL_ARGUMENT.replace("VALUE", &argument);
            findings.add(Problem::warning(message).at(at).hint(hint).lint(lint::SHELL_VALUE));
        } else if quoted {
            let message = format!("`{value}` is {} in {what}", place.name());
            let hint = format!(
                "write `value={value}` and then \"$value\": other programs that read this \
                 language may run the value here"
            );
            findings.add(Problem::warning(message).at(at).hint(hint).lint(lint::QUOTED_REFERENCE));
        }
    }
}

/// Warns of all references that will have no value. Returns the other references, each with the
/// index of the node that it refers to.
pub(crate) fn tell_mentions<'m>(
    findings: &Findings,
    ids: &Ids,
    steps: &[Option<&Step>],
    mentions: &'m [Mention],
) -> Vec<(&'m Mention, usize)> {
    let mut known = Vec::new();
    for mention in mentions {
        let Mention { node, what, reference, at } = mention;
        let Some(target) = ids.by_name.get(&reference.node).copied() else {
            let fails = if reference.field.is_some() { FAILS } else { "it will be empty" };
            let message =
                format!("`{reference}` in {what} names no node of this workflow: {fails}");
            let problem = Problem::warning(message).at(at.clone());
            findings.add(ids.suggest(problem, &reference.node));
            continue;
        };
        if target == *node {
            let fails = if reference.field.is_some() { FAILS } else { "it will be empty" };
            let message = format!("`{reference}` in {what} is the node's own output: {fails}");
            findings.warn(at.clone(), message);
            continue;
        }
        if let Some(producer) = steps[target] {
            tell_field(findings, producer, mention);
        }
        known.push((mention, target));
    }
    known
}

/// Warns of references to nodes that the referring node does not wait for.
pub(crate) fn tell_order(
    findings: &Findings,
    order: &[usize],
    before: &[Vec<usize>],
    known: &[(&Mention, usize)],
) {
    let pairs: Vec<_> = known.iter().map(|(mention, target)| (mention.node, *target)).collect();
    let found = graph::comes_before(order, before, &pairs);
    for ((mention, _), _) in known.iter().zip(found).filter(|(_, found)| !found) {
        let Mention { what, reference, at, .. } = mention;
        let name = &reference.node;
        let fails = match reference.field {
            Some(_) => "the node may fail",
            None => "it may be empty",
        };
        let message =
            format!("`{reference}` is in {what}, which does not wait for `{name}`: {fails}");
        let hint = format!("add `{name}` to `depends_on`");
        findings.add(Problem::warning(message).at(at.clone()).hint(hint));
    }
}

const FAILS: &str = "the node will fail";

/// Warns of a field that the answer will not have.
fn tell_field(findings: &Findings, producer: &Step, mention: &Mention) {
    let Mention { what, reference, at, .. } = mention;
    let Some(field) = &reference.field else { return };
    let format = format_of(producer);
    let Some(declared) = format.and_then(|format| format.get("properties")?.as_object()) else {
        return;
    };
    if declared.contains_key(field) {
        return;
    }
    let known: Vec<_> = declared.keys().map(|key| format!("`{key}`")).collect();
    let known = match known.is_empty() {
        true => "none".to_owned(),
        false => known.join(", "),
    };
    let name = &producer.name;
    let message = format!(
        "`{reference}` in {what} is no field that `output_format` of `{name}` declares ({known}): \
         {FAILS}"
    );
    let problem = Problem::warning(message).at(at.clone());
    findings.add(crate::workflow::fields::suggest(
        problem,
        field,
        declared.keys().map(String::as_str),
    ));
}

/// Returns the schema of a node's answers, if it has one.
fn format_of(step: &Step) -> Option<&serde_json::Value> {
    match &step.action {
        Action::Prompt(prompt) => prompt.format.as_ref(),
        Action::Rounds(rounds) => rounds.block.steps.iter().find_map(format_of),
        _ => None,
    }
}
