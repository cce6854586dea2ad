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

fn tell_quotes(findings: &Findings, script: &shell::Script, what: &str, written: &Written) {
    let mut seen = BTreeSet::new();
    for (at, value, why) in script.refused() {
        if seen.insert((at, value.clone())) {
            let message = format!("`{value}` stands {} in {what}", why.place());
            findings.add(Problem::error(message).at(written.at(at, &value)).hint(why.cure()));
        }
    }
    for (at, value) in script.escaped() {
        let message = format!("`{value}` is put in all the same behind a backslash in {what}");
        let hint = "there is no escape; to write it as it is, part it: `'$'id.output`";
        let problem = Problem::warning(message).at(written.at(at, &value)).hint(hint);
        findings.add(problem.lint(lint::QUOTED_REFERENCE));
    }
    let references = script.misplaced().into_iter();
    let references = references.map(|(at, reference, spot)| (at, reference.to_string(), spot));
    for (at, reference, spot) in references.chain(script.reckoned()) {
        let refused = matches!(spot, shell::Spot::Refused(_));
        if refused || !seen.insert((at, reference.clone())) {
            continue;
        }
        let message = format!("`{reference}` stands {} in {what}", spot.name());
        let hint = match spot {
            shell::Spot::Arithmetic { .. } => {
                format!(
                    "there bash executes what stands in a value: the node fails if it is no whole \
                     number; {}",
                    shell::RECKON
                )
            }
            shell::Spot::Numbers(_) => {
                format!(
                    "bash executes what stands in a value that it reckons with: the node fails if \
                     a word of it is no whole number; {}",
                    shell::RECKON
                )
            }
            shell::Spot::Name => {
                "there bash executes what stands in a value: the node fails if it is no name"
                    .to_owned()
            }
            shell::Spot::List(_) => "there bash executes what stands in a list: the node fails if \
                                     the value has a parenthesis in it; set it without `declare`"
                .to_owned(),
            _ => format!(
                "it is one quoted word by itself, and other programs that read this language may \
                 run what is in it: write `value={reference}` and then \"$value\""
            ),
        };
        let at = written.at(at, &reference);
        let problem = Problem::warning(message).at(at).hint(hint);
        findings.add(problem.lint(lint::QUOTED_REFERENCE));
    }
    for (at, value) in script.passed() {
        if seen.insert((at, value.clone())) {
            let message = format!("`{value}` is reckoned with behind another program in {what}");
            let hint = format!(
                "bash executes what stands in a value that it reckons with, and what a program \
                 prints is not checked; {}",
                shell::RECKON
            );
            let problem = Problem::warning(message).at(written.at(at, &value)).hint(hint);
            findings.add(problem.lint(lint::QUOTED_REFERENCE));
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
