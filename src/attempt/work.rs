//! Work: one execution with all values resolved, in a form that fits into a task file.
//!
//! **Invariant:** its executor needs neither engine nor plan. It contains no value of a secret and
//! no path of the machine that prepared it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::parking::Target;
use super::source_files::PartSource;
use crate::agent::Kind;
use crate::base::ids::{Attempt, StepPath};
use crate::exec::Sweep;
use crate::settings::TREE_WAIT;
use crate::workflow::plan::{CaptureMode, Checks, Require, Runtime, Until};
use crate::workflow::sandbox::Sandbox;
use crate::worktree::{After, Expects};

/// Key of the prompt in [`Work::inputs`], if a spell wrote the prompt.
pub(crate) const PROMPT: &str = "prompt";

/// One execution of a child process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Work {
    pub step: StepPath,
    pub attempt: Attempt,
    pub argv: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Input>,
    /// The step's own variables, laid over the executor's environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    /// Variables that must be set where it is executed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// The item of the enclosing loop and the agent, as information for the child process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Name of the setting that limits the time, if it is not the step's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    #[serde(default)]
    pub capture: CaptureMode,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_parse_error: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub require: Vec<Require>,
    /// Maximum time without output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// Requirements for the output, if it is an agent's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerRules>,
    /// True if an agent that does not report its result is asked once more. Other code checks the
    /// report.
    #[serde(default, skip)]
    pub repairs: bool,
    /// The script to run, in place of an argv.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<ScriptWork>,
    /// True if it asks a provider: none of its processes may outlive it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asks: bool,
    /// Parser of the provider's output, and the provider's name.
    #[serde(default, skip_serializing_if = "is_plain")]
    pub adapter: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Account whose limits apply, if it is not the provider's own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The conversation that it starts or resumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionWork>,
    /// Variables that it inherits in addition to the usual ones, if it does not inherit all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_pass: Vec<String>,
    /// Restrictions that its provider sets, and the paths that the provider writes to nevertheless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub debug: Map<String, Value>,
    /// The worktree that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<TreeWork>,
    /// Digests of all parts of a prompt, by the name of the part.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
    /// Placeholder for the run's directory in its texts; only the executor knows that directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

impl Work {
    /// Creates work with the common fields; the caller fills in the rest.
    pub(crate) fn new(step: StepPath, attempt: Attempt, argv: Vec<String>) -> Self {
        Work {
            step,
            attempt,
            argv,
            stdin: None,
            env: Vec::new(),
            secrets: Vec::new(),
            item: None,
            agent: None,
            timeout_ms: None,
            limit: None,
            capture: CaptureMode::Text,
            allow_parse_error: false,
            output_file: None,
            schema: None,
            require: Vec::new(),
            idle_timeout_ms: None,
            answer: None,
            repairs: false,
            script: None,
            asks: false,
            adapter: Kind::Plain,
            provider: None,
            account: None,
            session: None,
            env_pass: Vec::new(),
            sandbox: None,
            writes: Vec::new(),
            debug: Map::new(),
            worktree: None,
            inputs: BTreeMap::new(),
            root: None,
        }
    }

    pub(crate) fn sweep(&self) -> Sweep {
        if self.asks { Sweep::Always } else { Sweep::OnStop }
    }

    /// Returns true if the prompt comes from a spell: only such a prompt may get a note.
    pub(crate) fn is_spell(&self) -> bool {
        self.inputs.contains_key(PROMPT)
    }

    /// Returns the account, provider and program that it asks.
    pub(crate) fn target(&self) -> Target {
        let provider = self.provider.as_ref().filter(|_| self.asks);
        provider.map_or_else(Target::any, |provider| Target {
            account: self.account.as_ref().unwrap_or(provider).clone(),
            provider: provider.clone(),
            program: self.argv.first().cloned().unwrap_or_default(),
            kind: self.adapter,
        })
    }

    /// Returns the texts that a provider gets: its input, and arguments that may contain a prompt.
    pub(crate) fn asked(&self) -> Vec<Cow<'_, str>> {
        let stdin = self.stdin.as_ref().map(|input| match input {
            Input::Text(text) => Cow::Borrowed(text.as_str()),
            hex => String::from_utf8_lossy(&hex.bytes()).into_owned().into(),
        });
        let argv = self.argv.iter().filter(|argument| argument.contains([' ', '\n']));
        stdin.into_iter().chain(argv.map(|argument| argument.as_str().into())).collect()
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }

    pub(crate) fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout_ms.map(Duration::from_millis)
    }
}

fn is_plain(kind: &Kind) -> bool {
    *kind == Kind::Plain
}

/// A conversation with a provider that several executions take part in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionWork {
    /// Key of the conversation, independent of the provider's ID.
    pub key: String,
    /// Placeholder in the argv for the provider's ID, which is known only to the executor.
    #[serde(default)]
    slot: String,
    /// The argv that resumes it. Empty if it cannot be resumed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resume: Vec<String>,
    /// The conversation that it is forked from, which stays unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<Fork>,
}

/// A fork of a conversation from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fork {
    /// Key of the other conversation.
    pub from: String,
    /// Placeholder in the argv for the provider's ID of the other conversation.
    #[serde(default)]
    slot: String,
    /// The argv that starts with the content of the other conversation.
    pub argv: Vec<String>,
}

impl SessionWork {
    pub(crate) fn new(key: &str, slot: &str) -> SessionWork {
        let (key, slot) = (key.to_owned(), slot.to_owned());
        SessionWork { key, slot, resume: Vec::new(), fork: None }
    }

    pub(crate) fn slot(&self) -> String {
        slot_or_key(&self.slot, &self.key)
    }
}

impl Fork {
    pub(crate) fn new(from: &str, slot: &str, argv: Vec<String>) -> Fork {
        Fork { from: from.to_owned(), slot: slot.to_owned(), argv }
    }

    pub(crate) fn slot(&self) -> String {
        slot_or_key(&self.slot, &self.from)
    }
}

/// Returns the placeholder. Work of versions without slot names has the conversation's key in its
/// argv.
fn slot_or_key(slot: &str, key: &str) -> String {
    let name = if slot.is_empty() { key } else { slot };
    format!("@session:{name}@")
}

/// Requirements for an agent's answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct AnswerRules {
    /// The signal that ends a loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// Its JSON Schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Value>,
    /// The answer must end with a report of its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<ContractRule>,
}

/// Treatment of an answer that does not report its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContractRule {
    /// True if the agent is asked once more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repair: bool,
}

/// The worktree of a bead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TreeWork {
    pub id: String,
    /// The branch that it starts from, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Maximum wait while another execution uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Earlier work that it must contain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<After>,
    /// True if the branch is pushed afterwards, so that others can continue.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub push: bool,
}

impl TreeWork {
    pub(crate) fn wait(&self) -> Duration {
        self.wait_ms.map_or(TREE_WAIT, Duration::from_millis)
    }

    /// Returns the preconditions of the worktree.
    pub(crate) fn expects(&self) -> Expects {
        Expects { after: self.after.clone(), shared: self.push }
    }
}

/// A merge of the changes for a bead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MergeWork {
    pub tree: TreeWork,
    pub title: Option<String>,
    /// Digest of the content that a user approved.
    pub approval: Option<String>,
    /// Commands that must succeed in the merged tree.
    pub checks: Checks,
    pub attempt: Attempt,
}

/// A script in a language with its own runtime.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScriptWork {
    pub runtime: Runtime,
    /// Packages that must be installed before it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deps: Vec<String>,
    pub source: Source,
    /// Source of the file. It runs from there if it is unchanged, because it may need files next to
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PartSource>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    Text(String),
    /// A file in the run's directory.
    File(String),
}

/// Content of a child's stdin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Input {
    Text(String),
    /// Content that is not UTF-8, two hex digits per byte.
    Hex(String),
}

impl Input {
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Input::Text(text),
            Err(error) => {
                Input::Hex(error.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect())
            }
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Input::Text(text) => text.clone().into_bytes(),
            Input::Hex(digits) => digits
                .as_bytes()
                .chunks(2)
                .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
                .collect(),
        }
    }
}

/// A wait for files, with all values resolved.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub glob: String,
    pub timeout: Duration,
    pub poll: Duration,
    pub min_count: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_reads_back_as_written() {
        let mut work = Work::new(StepPath::top("Build"), Attempt::new(3), vec!["make".into()]);
        work.stdin = Some(Input::of(vec![0xff, 0, b'a']));
        work.env = vec![("A".into(), "b".into())];
        let text = serde_json::to_string(&work).unwrap();
        let back: Work = serde_json::from_str(&text).unwrap();
        assert_eq!(back, work);
        assert_eq!(back.stdin.unwrap().bytes(), [0xff, 0, b'a']);
        assert_eq!(Input::of(b"plain".to_vec()), Input::Text("plain".into()));
    }
}
