//! Checks and converts an agent's answer: detects and removes the signal that ends a loop, and
//! parses an answer with a format into its value.

use std::borrow::Cow;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::json::faults;
use crate::agent::answer::Object;
use crate::agent::contract;
use crate::agent::faults::FaultClass;
use crate::agent::{answer, echo, loop_signal};
use crate::attempt::work::{AnswerRules, ContractRule};
use crate::disk::fs;
use crate::exec::WholeText;
use crate::workflow::plan::Until;

/// Maximum length of an answer that is read whole.
const READ_BYTES: u64 = 8 << 20;
/// Length of the end of an answer that is read from its log: the end states the result.
const END_BYTES: u64 = 1 << 20;

/// The problem of an answer.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    pub message: String,
    pub context: Map<String, Value>,
    pub class: Option<FaultClass>,
    /// Exit code of the step.
    pub code: i32,
    /// True if the agent can be asked again.
    pub ask_again: bool,
    /// The report in the answer, if the answer has one despite the problem.
    pub said: Option<Value>,
}

impl Wrong {
    fn new(message: impl Into<String>) -> Wrong {
        Wrong { message: message.into(), code: 1, ..Wrong::default() }
    }

    /// Creates the problem of an answer that does not match its format.
    fn form(problems: Vec<String>) -> Wrong {
        let first = problems.first().map(String::as_str).unwrap_or_default();
        Wrong {
            message: format!("the answer does not fit `output_format`: {first}"),
            context: [("output_format".to_owned(), json!(problems))].into_iter().collect(),
            class: Some(FaultClass::Unknown),
            code: 2,
            ask_again: true,
            said: None,
        }
    }
}

/// The result of reading an answer.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub until_met: Option<bool>,
    /// The parsed value of the answer.
    pub json: Option<Value>,
    /// The answer to show to other steps, if it differs from the raw answer. For a value, its
    /// source text.
    pub text: Option<String>,
    /// The agent's report in the answer; the answer itself stays unchanged.
    pub said: Option<Value>,
    pub warning: Option<String>,
}

/// Reads an answer by its rules. `asked` contains the prompts that the agent received.
pub(crate) fn read(
    rules: &AnswerRules,
    asked: &[Cow<str>],
    whole: &WholeText,
) -> io::Result<Result<Reply, Wrong>> {
    let (text, is_all) = text(whole)?;
    let own = echo::own_part(&text, asked);
    if let Some(rule) = rules.contract {
        return Ok(by_contract(rule, &own));
    }
    let mut read = Reply::default();
    if let Some(until) = &rules.until {
        read.until_met = Some(is_met(until, &own));
    }
    if let Some(format) = &rules.format {
        let Object { value, text } = match (is_all, answer::extract_object(&own)) {
            (true, Ok(object)) => object,
            (true, Err(why)) => return Ok(Err(Wrong::form(vec![why]))),
            (false, _) => {
                return Ok(Err(Wrong::form(vec!["the answer is larger than 8 MiB".into()])));
            }
        };
        match jsonschema::validator_for(format) {
            Ok(validator) => {
                let problems = faults(&validator, &value);
                if !problems.is_empty() {
                    return Ok(Err(Wrong::form(problems)));
                }
            }
            Err(error) => {
                read.warning = Some(format!("`output_format` is no JSON Schema: {error}"));
            }
        }
        (read.json, read.text) = (Some(value), Some(text.into_owned()));
    } else if let Some(until) = rules.until.as_ref().filter(|_| is_all) {
        let cleaned = loop_signal::cleaned(&text, &until.signal);
        read.text = (cleaned != text).then_some(cleaned);
    }
    Ok(Ok(read))
}

/// Reads an answer that must end with a report of the result.
fn by_contract(rule: ContractRule, text: &str) -> Result<Reply, Wrong> {
    let unsaid = |kind: &str, message: String| Wrong {
        message,
        context: [("agent_output".to_owned(), json!(kind))].into_iter().collect(),
        class: Some(FaultClass::Unknown),
        code: 2,
        ask_again: rule.repair,
        ..Wrong::default()
    };
    let output = contract::parse(text).kept().map_err(|(word, message)| unsaid(word, message))?;
    let json = Some(output.to_json());
    if output.success {
        let warning = output.warnings.first().cloned();
        return Ok(Reply { said: json, warning, ..Reply::default() });
    }
    let summary = Some(output.summary).filter(|summary| !summary.is_empty());
    let message = match output.error.filter(|error| !error.is_empty()).or(summary) {
        Some(reason) => format!("the agent says that it failed: {reason}"),
        None => "the agent says that it failed, and not why".into(),
    };
    Err(Wrong { said: json, class: Some(FaultClass::Unknown), ..Wrong::new(message) })
}

fn is_met(until: &Until, text: &str) -> bool {
    match until.strict {
        true => loop_signal::signalled_strict(text, &until.signal),
        false => loop_signal::signalled(text, &until.signal),
    }
}

/// Returns an answer and true, or only its end and false if it is longer than [`READ_BYTES`].
pub(super) fn text(whole: &WholeText) -> io::Result<(String, bool)> {
    let Some(file) = &whole.file else { return Ok((whole.head.clone(), true)) };
    if file.bytes <= READ_BYTES {
        return Ok((String::from_utf8_lossy(&fs::read(&file.path)?).into_owned(), true));
    }
    let mut end = Vec::new();
    let mut from = fs::open(&file.path)?;
    from.seek(SeekFrom::End(-(READ_BYTES as i64)))?;
    from.read_to_end(&mut end)?;
    Ok((String::from_utf8_lossy(&end).into_owned(), false))
}

/// Reads the end of an answer from its log.
pub(crate) fn end_of(log: &Path) -> io::Result<String> {
    let mut file = fs::open(log)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(END_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(END_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
