//! Builds a provider's command line from its template, its parameters and a prompt.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use super::work::{Fork, SessionWork, Work};
use crate::base::digest::Parts;
use crate::template::{Hole, Missing, Scope, Template, descend, display};
use crate::workflow::plan::{Arg, InputMode, Param, Provider};

/// Parameters that name conversations: a new one, one to resume, and one that a new one is forked
/// from. Either `resume` has a value, or the others do.
const SESSION: &str = "session";
const RESUME: &str = "resume";
const FORK: &str = "fork";

/// The reason why there is no command line.
pub(crate) enum AskError {
    /// The prompt is not UTF-8 from this byte on, and an argument must be.
    NotText { at: usize },
    /// No value fills these placeholders of the command.
    Missing(Vec<Missing>),
}

/// Merges a provider's defaults with the caller's parameters, which win, and fills all variables.
pub(crate) fn merge(
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

/// A prompt and the provider that it goes to.
pub(crate) struct Question<'a> {
    /// The provider's name.
    pub name: &'a str,
    pub provider: &'a Provider,
    pub params: &'a BTreeMap<String, Value>,
    pub prompt: &'a [u8],
    pub around: &'a dyn Scope,
    pub conversation: Conversation,
}

/// The conversation that a question belongs to.
#[derive(Default)]
pub(crate) struct Conversation {
    /// Key of this conversation.
    pub key: String,
    /// Key of the conversation that this one is forked from.
    pub from: Option<String>,
}

impl From<String> for Conversation {
    fn from(key: String) -> Self {
        Conversation { key, from: None }
    }
}

/// Returns true if a provider can start a conversation from the content of another one, which stays
/// unchanged.
pub(crate) fn can_fork(provider: &Provider) -> bool {
    converses_with(provider, FORK)
}

/// Returns true if a provider has conversations and its command has a placeholder for this
/// parameter.
fn converses_with(provider: &Provider, parameter: &str) -> bool {
    let names = |template: &Template| template.holes().any(|hole| hole.root() == parameter);
    provider.adapter.is_stream() && provider.templates().any(names)
}

/// Returns true if a provider can resume a conversation.
pub(crate) fn can_resume(provider: &Provider) -> bool {
    converses_with(provider, RESUME)
}

impl Question<'_> {
    /// Adds the provider's command line and settings to `work`. If the provider reads its prompt
    /// from stdin, the command line does not contain the prompt.
    pub(crate) fn put(&self, work: Work) -> Result<Work, AskError> {
        let provider = self.provider;
        // Without an adapter, these names are ordinary parameters.
        let names = |parameter| converses_with(provider, parameter);
        let Conversation { key, from } = &self.conversation;
        let (argv, session) = if names(SESSION) || names(RESUME) {
            let mut session = SessionWork::new(key, &self.unforgeable(key)?);
            let slot = session.slot();
            let of_new = (names(SESSION) && provider.adapter.takes_session())
                .then_some((SESSION, slot.as_str()));
            if names(RESUME) {
                session.resume = self.argv([(RESUME, slot.as_str())])?;
            }
            if let Some(from) = from.as_ref().filter(|_| names(FORK)) {
                let mut fork = Fork::new(from, &self.unforgeable(from)?, Vec::new());
                let other = fork.slot();
                fork.argv = self.argv(of_new.into_iter().chain([(FORK, other.as_str())]))?;
                session.fork = Some(fork);
            }
            (self.argv(of_new)?, Some(session))
        } else {
            (self.argv([])?, None)
        };
        // The step's own environment wins.
        let mut env = provider.env.clone();
        env.extend(work.env);
        Ok(Work {
            argv,
            env,
            asks: true,
            adapter: provider.adapter,
            provider: Some(self.name.to_owned()),
            session,
            env_pass: provider.env_pass.clone(),
            account: provider.account.clone(),
            sandbox: provider.sandbox.clone(),
            writes: provider.writes.clone(),
            ..work
        })
    }

    /// Returns the text that stands for a conversation in the argv. It is a digest of everything in
    /// the argv, so no value can contain it: its author would have to know the digest in advance.
    fn unforgeable(&self, key: &str) -> Result<String, AskError> {
        let mut parts = Parts::default();
        parts.add(key);
        let with_key = [SESSION, RESUME, FORK].map(|parameter| (parameter, key));
        self.argv(with_key)?.iter().for_each(|argument| parts.add(argument));
        Ok(parts.hex())
    }

    fn has_hole(&self, is: impl Fn(&Hole) -> bool) -> bool {
        self.provider.templates().any(|template| template.holes().any(&is))
    }

    fn argv<'a>(
        &self,
        sessions: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Vec<String>, AskError> {
        let prompt = match (self.provider.input, std::str::from_utf8(self.prompt)) {
            (InputMode::Stdin, _) => None,
            (InputMode::Argv, Ok(text)) => Some(Value::String(text.to_owned())),
            (InputMode::Argv, Err(_)) if !self.has_hole(|hole| hole.raw == "PROMPT") => None,
            (InputMode::Argv, Err(error)) => {
                return Err(AskError::NotText { at: error.valid_up_to() });
            }
        };
        let mut params = Cow::Borrowed(self.params);
        if self.provider.adapter.is_stream() {
            let params = params.to_mut();
            params.retain(|key, _| ![SESSION, RESUME, FORK].contains(&key.as_str()));
            let sessions = sessions.into_iter();
            params.extend(sessions.map(|(key, slot)| (key.to_owned(), Value::from(slot))));
        }
        let scope = ProviderScope { prompt, params: &params, around: self.around };
        let mut argv = Vec::new();
        let mut missing = Vec::new();
        for arg in &self.provider.command {
            if matches!(arg, Arg::Group(group) if scope.leaves_out(group)) {
                continue;
            }
            for template in arg.templates() {
                match template.render(&scope) {
                    Ok(text) => argv.push(text),
                    Err(faults) => missing.extend(faults),
                }
            }
        }
        if missing.is_empty() { Ok(argv) } else { Err(AskError::Missing(missing)) }
    }
}

/// Returns the parameters that a provider's command has no placeholder for.
pub(crate) fn unused<'a>(
    provider: &Provider,
    params: &'a BTreeMap<String, Value>,
) -> impl Iterator<Item = &'a String> {
    params.keys().filter(move |key| !provider.places().any(|place| place == **key))
}

/// Values for the placeholders of a provider's command: the prompt, then its parameters, then the
/// surrounding variables.
struct ProviderScope<'a> {
    prompt: Option<Value>,
    params: &'a BTreeMap<String, Value>,
    around: &'a dyn Scope,
}

impl ProviderScope<'_> {
    /// Returns true if a parameter in these arguments has no value.
    fn leaves_out(&self, group: &[Template]) -> bool {
        const OF_RUNS: [&str; 5] = ["run", "context", "steps", "loop", "item"];
        group.iter().flat_map(Template::holes).any(|hole| match self.look_up(hole) {
            Ok(value) => value.is_null() || display(&value).is_empty(),
            Err(_) => !OF_RUNS.contains(&hole.root()),
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Kind;
    use crate::base::ids::{Attempt, StepPath};
    use crate::workflow::read_config;
    use serde_json::json;

    /// Nothing is around.
    struct Nothing;

    impl Scope for Nothing {
        fn look_up(&self, hole: &Hole) -> Result<Cow<'_, Value>, Missing> {
            Err(Missing { raw: hole.raw.clone(), reason: "nothing".into() })
        }
    }

    fn ask(text: &str, params: Value) -> Result<Work, AskError> {
        let layer = read_config(&format!("providers:\n  p: {{ {text} }}\n")).unwrap();
        let params: BTreeMap<String, Value> = serde_json::from_value(params).unwrap();
        let question = Question {
            name: "p",
            provider: &layer.providers["p"],
            params: &params,
            prompt: b"Hi.",
            around: &Nothing,
            conversation: "k".to_owned().into(),
        };
        let mut work = Work::new(StepPath::top("S"), Attempt::FIRST, Vec::new());
        work.env = vec![("A".into(), "own".into())];
        question.put(work)
    }

    fn argv(text: &str, params: Value) -> String {
        match ask(text, params) {
            Ok(work) => work.argv.join(" "),
            Err(AskError::Missing(missing)) => format!("missing {}", missing[0].raw),
            Err(AskError::NotText { .. }) => "no text".into(),
        }
    }

    #[test]
    fn a_group_is_left_out_with_its_parameter() {
        let text = "command: [a, [-m, '${model}'], ['--n=${n}'], '${PROMPT}']";
        assert_eq!(argv(text, json!({})), "a Hi.");
        assert_eq!(argv(text, json!({ "model": "", "n": null })), "a Hi.");
        assert_eq!(argv(text, json!({ "model": "m", "n": 3 })), "a -m m --n=3 Hi.");
        assert_eq!(argv("command: [a, '${model}']", json!({})), "missing model");
        let text = "command: [a, ['${context.x}']]";
        assert_eq!(argv(text, json!({})), "missing context.x", "that is a mistake");
    }

    #[test]
    fn a_conversation_is_begun_under_a_name_or_gone_on_with() {
        let text = "adapter: claude, input_mode: stdin, \
                    command: [a, [--new, '${session}'], [--on, '${resume}']]";
        let work = ask(text, json!({ "session": "mine" })).ok().unwrap();
        let session = work.session.unwrap();
        assert_eq!(work.argv, ["a", "--new", &session.slot()]);
        assert_eq!(session.resume, ["a", "--on", &session.slot()]);
        // Who makes up names for conversations is told none.
        let work = ask(&text.replace("claude", "codex"), json!({})).ok().unwrap();
        assert_eq!(work.argv, ["a"]);
        assert_eq!(work.session.unwrap().resume.len(), 3);
        let text = "command: [a, '${session}']";
        let work = ask(text, json!({ "session": "mine" })).ok().unwrap();
        assert_eq!((work.session, work.adapter), (None, Kind::Plain));
        assert_eq!(work.argv, ["a", "mine"], "a name of somebody's own");
    }

    #[test]
    fn no_value_can_stand_for_a_conversation() {
        let text = "adapter: claude, input_mode: stdin, \
                    command: [a, '${say}', [--new, '${session}'], [--on, '${resume}']]";
        let slot = |say: &str| {
            let work = ask(text, json!({ "say": say })).ok().unwrap();
            (work.session.unwrap().slot(), work.argv)
        };
        let (known, _) = slot("once");
        let (slot, argv) = slot(&known);
        assert_ne!(slot, known, "who knows one knows it too late");
        assert_eq!(argv, ["a", known.as_str(), "--new", slot.as_str()]);
    }

    #[test]
    fn a_step_has_the_last_word_on_variables() {
        let work = ask("command: [a], env: { A: theirs, B: b }, env_pass: ['X_*']", json!({}));
        let work = work.ok().unwrap();
        let last = |name: &str| work.env.iter().rev().find(|(key, _)| key == name).cloned();
        assert_eq!(last("A"), Some(("A".into(), "own".into())));
        assert_eq!(last("B"), Some(("B".into(), "b".into())));
        assert_eq!((work.env_pass, work.asks), (vec!["X_*".to_owned()], true));
    }
}
