//! Asking a provider: from its template, its parameters and a prompt to a command line.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use crate::template::{Hole, Missing, Scope, Template, descend};
use crate::workflow::plan::{InputMode, Param, Provider};

/// Why there is no command line.
pub enum AskError {
    /// The prompt is no text from this byte on, and an argument must be.
    NotText { at: usize },
    /// Nothing fills these holes of the command.
    Missing(Vec<Missing>),
}

/// A provider's defaults with the caller's parameters over them, all variables filled.
pub fn merge(
    provider: &Provider,
    params: &BTreeMap<String, Param>,
    around: &dyn Scope,
) -> Result<BTreeMap<String, Value>, Vec<Missing>> {
    let mut merged = BTreeMap::new();
    let mut missing = Vec::new();
    let left = provider.defaults.iter().filter(|(key, _)| !params.contains_key(*key));
    for (key, param) in left.chain(params) {
        match param.render(around) {
            Ok(value) => _ = merged.insert(key.clone(), value),
            Err(faults) => missing.extend(faults),
        }
    }
    if missing.is_empty() { Ok(merged) } else { Err(missing) }
}

/// The command that asks `provider`. Where it takes its prompt on standard input, the prompt is
/// not in it.
pub fn argv(
    provider: &Provider,
    params: &BTreeMap<String, Value>,
    prompt: &[u8],
    around: &dyn Scope,
) -> Result<Vec<String>, AskError> {
    let wants_prompt = |token: &Template| token.holes().any(|hole| hole.raw == "PROMPT");
    let prompt = match (provider.input, std::str::from_utf8(prompt)) {
        (InputMode::Stdin, _) => None,
        (InputMode::Argv, Ok(text)) => Some(Value::String(text.to_owned())),
        (InputMode::Argv, Err(_)) if !provider.command.iter().any(wants_prompt) => None,
        (InputMode::Argv, Err(error)) => {
            return Err(AskError::NotText { at: error.valid_up_to() });
        }
    };
    let scope = ProviderScope { prompt, params, around };
    let mut argv = Vec::new();
    let mut missing = Vec::new();
    for token in &provider.command {
        match token.render(&scope) {
            Ok(text) => argv.push(text),
            Err(faults) => missing.extend(faults),
        }
    }
    if missing.is_empty() { Ok(argv) } else { Err(AskError::Missing(missing)) }
}

/// The parameters that a provider's command has no place for.
pub fn unused<'a>(
    provider: &Provider,
    params: &'a BTreeMap<String, Value>,
) -> impl Iterator<Item = &'a String> {
    params.keys().filter(move |key| {
        let used = |token: &Template| token.holes().any(|hole| hole.root() == *key);
        !provider.command.iter().any(used)
    })
}

/// What the holes of a provider's command mean: the prompt, its parameters, then the variables
/// around.
struct ProviderScope<'a> {
    prompt: Option<Value>,
    params: &'a BTreeMap<String, Value>,
    around: &'a dyn Scope,
}

impl Scope for ProviderScope<'_> {
    fn look_up(&self, hole: &Hole) -> Result<Cow<'_, Value>, Missing> {
        if hole.raw == "PROMPT"
            && let Some(prompt) = &self.prompt
        {
            return Ok(Cow::Borrowed(prompt));
        }
        if let Some(value) = self.params.get(&hole.raw) {
            return Ok(Cow::Borrowed(value));
        }
        if let Some(value) = self.params.get(hole.root())
            && let Some(found) = descend(value, &hole.path[1..])
        {
            return Ok(Cow::Borrowed(found));
        }
        self.around.look_up(hole)
    }
}
