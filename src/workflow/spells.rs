//! Fields that hold spells, which are the same in every dialect.

use std::borrow::Cow;
use std::collections::HashMap;

use super::check::path_fault;
use super::named::{Mention, Mentioned};
use super::plan::{Isolation, SpellSource, SpellUse, SpellValue, StepBead, SystemPromptUse};
use crate::base::ids::name_fault;
use crate::template::spell::Spell;
use crate::workflow::fields::{Fields, Findings};
use crate::yaml::problem::{Place, Problem};
use crate::yaml::{Node, Value};

/// Names with a fixed meaning in spells, which no step can have.
pub(super) const RESERVED: [&str; 7] =
    ["attempt", "bead", "loop", "previous", "step", "task", "workflow"];

/// The fields that accompany `spell`.
pub(super) const BESIDE: [&str; 3] = ["input", "contract", "system_prompt"];

/// Reads a spell and the options of its use.
pub(super) fn read(fields: &Fields, contract: bool, repair: bool) -> Option<SpellUse> {
    let source = source(fields);
    let input = input(fields);
    let system_prompt = system_prompt(fields);
    let contract =
        fields.choice("contract", &[("agent", true), ("none", false)]).unwrap_or(contract);
    Some(SpellUse { source: source?, input, system_prompt, contract, repair })
}

/// Records a spell, to be checked on disk.
fn mention(fields: &Fields, what: Mentioned, place: Place) {
    fields.findings.name(|named| named.spells.push(Mention { what, place }));
}

fn source(fields: &Fields) -> Option<SpellSource> {
    let node = fields.get("spell")?;
    let text = fields.text("spell")?;
    if text.trim().is_empty() {
        fields.findings.error(node.place, format!("`spell` of {} is empty", fields.what));
        return None;
    }
    if text.contains('\n') {
        return template(fields, "spell").map(SpellSource::Inline);
    }
    if !is_name(fields, text, node) {
        return None;
    }
    let name = text.strip_suffix(".md").unwrap_or(text);
    mention(fields, Mentioned::Spell(name.to_owned()), node.place);
    Some(SpellSource::Named(name.to_owned()))
}

/// Returns true if a text can name a spell. Reports it otherwise.
fn is_name(fields: &Fields, text: &str, node: &Node) -> bool {
    let Some(fault) = name_fault(text.strip_suffix(".md").unwrap_or(text)) else { return true };
    let message = format!("`spell` of {} is `{text}`, which names none: {fault}", fields.what);
    let hint = "a spell is a name, or text with a line break in it (`spell: |`)";
    fields.findings.add(Problem::error(message).at(node.place).hint(hint));
    false
}

/// Returns true if the `spell` of a task is a valid spell, can name one, or is blank. Reports it
/// otherwise.
pub(super) fn is_one(fields: &Fields, text: &str) -> bool {
    let Some(node) = fields.get("spell") else { return false };
    match text.contains('\n') {
        true => parse(fields, "spell", text, node).is_some(),
        false => text.trim().is_empty() || is_name(fields, text, node),
    }
}

/// Reads a text that is itself a spell.
pub(super) fn template(fields: &Fields, key: &str) -> Option<Spell> {
    let text = fields.text(key)?;
    parse(fields, key, text, fields.get(key)?)
}

fn parse(fields: &Fields, key: &str, text: &str, node: &Node) -> Option<Spell> {
    let (name, place) = (format!("{key} of {}", fields.what.replace('`', "")), node.place);
    match Spell::parse_in(&name, text, Some((place.line, place.column))) {
        Ok(spell) => {
            if !spell.included().is_empty() {
                mention(fields, Mentioned::Written(spell.clone()), place);
            }
            Some(spell)
        }
        Err(fault) => {
            fields.findings.add(Problem::from(&fault));
            None
        }
    }
}

fn input(fields: &Fields) -> Vec<(String, SpellValue)> {
    let Some(node) = fields.get("input") else { return Vec::new() };
    let Value::Map(pairs) = &node.value else {
        if !matches!(node.value, Value::Null) {
            let message = format!("`input` of {} must be a map, not {}", fields.what, node.kind());
            fields.findings.error(node.place, message);
        }
        return Vec::new();
    };
    let mut found = Vec::new();
    for (key, value) in pairs {
        let name = key.text().filter(|name| is_variable(name));
        let Some(name) = name else {
            let message = format!("a key of `input` of {} is no name of a variable", fields.what);
            let hint = "letters, digits, `_` and `-`, beginning with a letter or `_`";
            fields.findings.add(Problem::error(message).at(key.place).hint(hint));
            continue;
        };
        found.push((name.to_owned(), input_value(fields, name, value)));
    }
    found
}

fn input_value(fields: &Fields, name: &str, node: &Node) -> SpellValue {
    match &node.value {
        Value::Text(text) => parse(fields, &format!("input {name}"), text, node)
            .map_or(SpellValue::Fixed(serde_json::Value::Null), SpellValue::Text),
        Value::List(items) => {
            SpellValue::List(items.iter().map(|item| input_value(fields, name, item)).collect())
        }
        Value::Map(pairs) => {
            let pair = |(key, value): &(Node, Node)| {
                Some((key.text()?.to_owned(), input_value(fields, name, value)))
            };
            SpellValue::Map(pairs.iter().filter_map(pair).collect())
        }
        _ => SpellValue::Fixed(node.to_json()),
    }
}

/// Returns true if a path in a spell can start with this name.
pub(crate) fn is_variable(name: &str) -> bool {
    let first = name.chars().next();
    first.is_some_and(|c| c.is_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
}

fn system_prompt(fields: &Fields) -> SystemPromptUse {
    let place = fields.get("system_prompt").or(fields.get("spell")).map(|node| node.place);
    let place = place.unwrap_or(fields.node.place);
    let mention = |name| mention(fields, Mentioned::SystemPrompt(name), place);
    match fields.text("system_prompt") {
        None | Some("default") => {
            mention(None);
            SystemPromptUse::Default
        }
        Some("none") => SystemPromptUse::None,
        Some(path) => {
            if let Some(fault) = path_fault(path) {
                let what = &fields.what;
                let message =
                    format!("`system_prompt` of {what} is `{path}`, which is refused: {fault}");
                let hint = "write `default`, `none` or a file of the workspace";
                fields.findings.add(Problem::error(message).at(place).hint(hint));
            } else {
                mention(Some(path.to_owned()));
            }
            SystemPromptUse::File(path.to_owned())
        }
    }
}

/// Reports fields that have no effect without `spell`.
pub(super) fn tell_idle(fields: &Fields) {
    for key in BESIDE.iter().filter(|key| fields.get(key).is_some()) {
        let message = format!("`{key}` of {} has no effect without `spell`", fields.what);
        fields.findings.warn(fields.place_of_key(key), message);
    }
}

/// Returns the name of a bead: text, or a number as it is written. A negative number is not a name.
pub(super) fn bead_name<'n>(findings: &Findings, node: &'n Node) -> Option<Cow<'n, str>> {
    findings.called(node).filter(|name| node.text().is_some() || !name.starts_with('-'))
}

/// Reads the bead of a step.
pub(super) fn bead(fields: &Fields) -> Option<StepBead> {
    let isolation = fields.choice("isolation", &Isolation::ALL);
    let Some(node) = fields.get("bead") else {
        if isolation.is_some() {
            let place = fields.place_of_key("isolation");
            let message = format!("`isolation` of {} has no effect without `bead`", fields.what);
            fields.findings.warn(place, message);
        }
        return None;
    };
    let Some(name) = bead_name(fields.findings, node) else {
        fields.text("bead");
        return None;
    };
    if name.trim().is_empty() {
        fields.findings.error(node.place, format!("`bead` of {} is empty", fields.what));
        return None;
    }
    let (name, isolation) = (name.into_owned(), isolation.unwrap_or_default());
    let bead = StepBead { name, isolation, place: node.place };
    fields.findings.name(|named| named.beads.push(bead.clone()));
    Some(bead)
}

/// Rejects an `output` that is also the name or the `output` of another step of this block or an
/// enclosing one: spells would know two results by one name. Returns all names that the blocks
/// inside may not use.
pub(super) fn outputs(
    findings: &Findings,
    nodes: &[Node],
    name_of: fn(&Node) -> Option<&str>,
    around: &HashMap<String, String>,
) -> HashMap<String, String> {
    let folded = |name: &str| name.replace('-', "_");
    let mut taken = around.clone();
    taken.extend(nodes.iter().filter_map(name_of).map(|name| (folded(name), name.to_owned())));
    for node in nodes {
        let Some(output) = node.get("output") else { continue };
        let Some(text) = output.text().filter(|text| Some(*text) != name_of(node)) else {
            continue;
        };
        match taken.insert(folded(text), text.to_owned()) {
            None => {}
            Some(other) if other == text => {
                findings.error(output.place, format!("two results are named `{text}`"));
            }
            Some(other) => {
                let problem = Problem::error(format!("`{text}` and `{other}` are one name"));
                findings.add(problem.at(output.place).hint("`-` and `_` meet in spells"));
            }
        }
    }
    taken
}

/// Reads the second name of a step's result.
pub(super) fn alias(fields: &Fields) -> Option<String> {
    let text = fields.text("output")?;
    let place = fields.get("output")?.place;
    if !is_variable(text) {
        let message =
            format!("`output` of {} is `{text}`, which no spell can refer to", fields.what);
        let hint = "letters, digits, `_` and `-`, beginning with a letter or `_`";
        fields.findings.add(Problem::error(message).at(place).hint(hint));
        return None;
    }
    if RESERVED.contains(&text) {
        let what = &fields.what;
        let message =
            format!("`output` of {what} is `{text}`, by which spells know something else");
        fields.findings.error(place, message);
    }
    Some(text.to_owned())
}
