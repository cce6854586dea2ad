//! Work that can be done: one execution, resolved, in a form that fits into a task file.
//!
//! **Invariant:** whoever carries it out needs no engine and no plan, and it holds no secret's
//! value and depends on no path of the machine it was prepared on.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::parking::Target;
use super::parts::PartSource;
use crate::exec::Sweep;
use crate::ids::{Attempt, StepPath};
use crate::provider::Kind;
use crate::workflow::plan::{CaptureMode, Checks, Require, Runtime, Until};
use crate::workflow::sandbox::Sandbox;
use crate::worktree::{After, Expects};

/// What the prompt is called among the [`Work::inputs`] of one that a spell wrote.
pub const PROMPT: &str = "prompt";

/// One execution of a child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub step: StepPath,
    pub attempt: Attempt,
    pub argv: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Input>,
    /// The step's own variables, laid over what whoever carries it out has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    /// Variables that must be set where it is carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// The item of the loop it is in, and the agent it is for: the child may want to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Whose limit that is, where it is not the step's own.
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
    /// How long it may print nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// What its output must be, where it is an agent's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerRules>,
    /// The agent is asked once more if it does not say how it went, which is judged elsewhere.
    #[serde(default, skip)]
    pub repairs: bool,
    /// The script that it is, in place of an argv.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<ScriptWork>,
    /// It asks a provider: nothing it started may outlive it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asks: bool,
    /// How the output of the provider is read, and what it is called.
    #[serde(default, skip_serializing_if = "is_plain")]
    pub adapter: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Whose limits the provider is under, where that is not the provider's own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The conversation that it begins or goes on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionWork>,
    /// Variables that it inherits beside the usual ones, where it does not inherit all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_pass: Vec<String>,
    /// What it may do, as its provider says, and what that one writes to all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub debug: Map<String, Value>,
    /// The worktree that it is done in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<TreeWork>,
    /// Digests of all that a prompt was made of, by what they are of.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
    /// What stands for the run's directory in its texts, which only those know who do it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

impl Work {
    /// What every execution has; the rest is for the caller to fill in.
    pub fn new(step: StepPath, attempt: Attempt, argv: Vec<String>) -> Self {
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

    pub fn sweep(&self) -> Sweep {
        if self.asks { Sweep::Always } else { Sweep::OnStop }
    }

    /// What it asks: an account, through a provider, by a program.
    pub fn target(&self) -> Target {
        let provider = self.provider.as_ref().filter(|_| self.asks);
        provider.map_or_else(Target::any, |provider| Target {
            account: self.account.as_ref().unwrap_or(provider).clone(),
            provider: provider.clone(),
            program: self.argv.first().cloned().unwrap_or_default(),
            kind: self.adapter,
        })
    }

    /// The texts that a provider is asked with: its input, and arguments that may hold a prompt.
    pub fn asked(&self) -> Vec<Cow<'_, str>> {
        let stdin = self.stdin.as_ref().map(|input| match input {
            Input::Text(text) => Cow::Borrowed(text.as_str()),
            hex => String::from_utf8_lossy(&hex.bytes()).into_owned().into(),
        });
        let argv = self.argv.iter().filter(|argument| argument.contains('\n'));
        stdin.into_iter().chain(argv.map(|argument| argument.as_str().into())).collect()
    }

    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }

    pub fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout_ms.map(Duration::from_millis)
    }
}

fn is_plain(kind: &Kind) -> bool {
    *kind == Kind::Plain
}

/// A conversation with a provider that several executions are part of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionWork {
    /// Names it, whatever the provider calls it.
    pub key: String,
    /// Stands in the argv for what the provider calls it, which is known only where the work is
    /// done.
    #[serde(default)]
    slot: String,
    /// The argv that goes on with it. Empty: it cannot be gone on with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resume: Vec<String>,
    /// The conversation that it goes on from, which stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<Fork>,
}

/// How a conversation goes on from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// Names the other.
    pub from: String,
    /// Stands in the argv for what the provider calls the other.
    #[serde(default)]
    slot: String,
    /// The argv that begins with what was said there.
    pub argv: Vec<String>,
}

impl SessionWork {
    pub fn new(key: &str, slot: &str) -> SessionWork {
        let (key, slot) = (key.to_owned(), slot.to_owned());
        SessionWork { key, slot, resume: Vec::new(), fork: None }
    }

    pub fn slot(&self) -> String {
        slot_or_key(&self.slot, &self.key)
    }
}

impl Fork {
    pub fn new(from: &str, slot: &str, argv: Vec<String>) -> Fork {
        Fork { from: from.to_owned(), slot: slot.to_owned(), argv }
    }

    pub fn slot(&self) -> String {
        slot_or_key(&self.slot, &self.from)
    }
}

/// Work that was put out before slots had names of their own has the conversation's in its argv.
fn slot_or_key(slot: &str, key: &str) -> String {
    let name = if slot.is_empty() { key } else { slot };
    format!("@session:{name}@")
}

/// What an agent's answer must be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AnswerRules {
    /// What it says when a loop is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// Its JSON Schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Value>,
    /// It must end by saying how it went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<ContractRule>,
}

/// How an answer that does not say how it went is dealt with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContractRule {
    /// The agent is asked once more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repair: bool,
}

/// The worktree of a bead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeWork {
    pub id: String,
    /// The branch that it begins at, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// How long is waited for somebody else who works there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// What was done there before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<After>,
    /// The branch is pushed afterwards, for others to go on with.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub push: bool,
}

impl TreeWork {
    pub fn wait(&self) -> Duration {
        self.wait_ms.map_or(TREE_WAIT, Duration::from_millis)
    }

    /// What must be there before anybody goes on.
    pub fn expects(&self) -> Expects {
        Expects { after: self.after.clone(), shared: self.push }
    }
}

/// How long somebody else in a worktree is waited for, where nobody says.
pub const TREE_WAIT: Duration = Duration::from_secs(3600);

/// A merge of what was done for a bead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeWork {
    pub tree: TreeWork,
    pub title: Option<String>,
    /// The digest of what a person approved.
    pub approval: Option<String>,
    /// What must succeed in the merged tree.
    pub checks: Checks,
    pub attempt: Attempt,
}

/// A script of a language that has a runtime of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScriptWork {
    pub runtime: Runtime,
    /// Packages that must be there before it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deps: Vec<String>,
    pub source: Source,
    /// Where the file came from. It is run there if it is still the same: it may want what lies
    /// beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PartSource>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Text(String),
    /// A file in the run's directory.
    File(String),
}

/// What is written to a child's standard input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    Text(String),
    /// What is not UTF-8, two digits for each byte.
    Hex(String),
}

impl Input {
    pub fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Input::Text(text),
            Err(error) => {
                Input::Hex(error.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect())
            }
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
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

/// A wait for files, resolved.
#[derive(Clone, Debug)]
pub struct Waiting {
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
        let mut work = Work::new(StepPath::top("Build"), 3, vec!["make".into()]);
        work.stdin = Some(Input::of(vec![0xff, 0, b'a']));
        work.env = vec![("A".into(), "b".into())];
        let text = serde_json::to_string(&work).unwrap();
        let back: Work = serde_json::from_str(&text).unwrap();
        assert_eq!(back, work);
        assert_eq!(back.stdin.unwrap().bytes(), [0xff, 0, b'a']);
        assert_eq!(Input::of(b"plain".to_vec()), Input::Text("plain".into()));
    }
}
