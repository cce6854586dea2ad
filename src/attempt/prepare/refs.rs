//! Resolves node references and request variables at one node of one run.

use serde_json::Value;

use super::Refusal;
use super::results::whole;
use super::shell::Expansions;
use crate::agent::answer::{self, Object};
use crate::attempt::exec_env::Site;
use crate::base::random::{chance, word};
use crate::engine::{Record, Run, StepStatus};
use crate::template::nodes::{Fill, NodeRef, Var};
use crate::template::written;
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Gate, Step};

/// Directory of a run's artifacts, relative to the run's directory.
pub(crate) const ARTIFACTS: &str = "artifacts";

/// Returns a placeholder for the run's directory in one piece of work. The work may be executed on
/// another machine, where the volume may be mounted at another path; its executor inserts the path.
///
/// The placeholder is random and is drawn after all inserted values were written, so that no value
/// can contain it.
pub(crate) fn root_mark() -> String {
    format!("@orchestrate:{}{}@", word(chance()), word(chance()))
}

/// The destination of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Into {
    /// An agent: all values are inserted unchanged.
    Prompt,
    /// A shell: no value is ever part of the script.
    Shell,
    /// Another language: user text goes through the environment, outputs are inserted unchanged.
    Script,
    /// A user: only references are resolved.
    Message,
}

/// The values at one node.
pub(crate) struct Values<'a> {
    pub site: &'a Site,
    pub plan: &'a Plan,
    pub run: &'a Run,
    pub loops: &'a [(usize, usize)],
    pub into: Into,
    /// Placeholder for the run's directory.
    pub root: &'a str,
    /// Warnings about references that resolve to nothing.
    pub warnings: Vec<String>,
    /// Values for a shell script.
    pub expansions: Expansions,
}

/// The value of a reference.
pub(crate) struct Found {
    pub text: String,
    /// True for a number or a boolean.
    pub bare: bool,
}

impl Found {
    fn text(text: String) -> Found {
        Found { text, bare: false }
    }
}

impl<'a> Values<'a> {
    pub(crate) fn new(
        site: &'a Site,
        plan: &'a Plan,
        run: &'a Run,
        loops: &'a [(usize, usize)],
        into: Into,
        root: &'a str,
    ) -> Values<'a> {
        Values {
            site,
            plan,
            run,
            loops,
            into,
            root,
            warnings: Vec::new(),
            expansions: Expansions::default(),
        }
    }

    /// Returns the value of a variable, for any destination.
    pub(crate) fn variable(&self, var: Var) -> Result<String, Refusal> {
        let request = self.run.origin.request.as_deref();
        let asked = |get: fn(&crate::engine::Request) -> &String| {
            request.map(get).cloned().unwrap_or_default()
        };
        Ok(match var {
            Var::Arguments | Var::UserMessage => asked(|request| &request.message),
            Var::Context | Var::ExternalContext | Var::IssueContext => {
                asked(|request| &request.issue_context)
            }
            Var::WorkflowId => self.run.id.to_string(),
            Var::ArtifactsDir => format!("{}/{ARTIFACTS}", self.root),
            Var::DocsDir => asked(|request| &request.docs_dir),
            Var::BaseBranch => {
                let branch = request.and_then(|request| request.base_branch.clone());
                branch.ok_or_else(|| Refusal::new("`$BASE_BRANCH` is not known"))?
            }
            Var::LoopPrevOutput => {
                self.text_of_round(1, |action| matches!(action, Action::Prompt(_)))?
            }
            Var::LoopUserInput => self.text_of_round(1, is_gate)?,
            Var::RejectionReason => self.text_of_round(0, is_gate)?,
        })
    }

    /// Returns the output of a step of this round, or of the round `back` rounds earlier.
    fn text_of_round(&self, back: usize, is: fn(&Action) -> bool) -> Result<String, Refusal> {
        let found = || {
            let (node, round) = self.loops.last()?;
            let rounds = self.plan.root().steps[*node].rounds()?;
            let each = self.run.body.slots.get(*node)?.each.as_ref()?;
            let round = each.iterations.get(round.checked_sub(back)?)?;
            let step = rounds.block.steps.iter().position(|step| is(&step.action))?;
            round.body.slots.get(step)?.record.as_deref()
        };
        found().map_or(Ok(String::new()), |record| self.whole(record))
    }

    /// Returns the whole output of a record's step.
    pub(crate) fn whole(&self, record: &Record) -> Result<String, Refusal> {
        whole(self.site, record)
    }

    /// Resolves a reference. The error states why the field does not exist.
    pub(crate) fn find(&mut self, reference: &NodeRef) -> Result<Found, Refusal> {
        let NodeRef { node, field } = reference;
        let about = Written(reference);
        let Some((index, step)) = self.plan.root().find(node) else {
            let alone = self.run.origin.only_step.is_some();
            let why = if alone { "no other node is executed" } else { "there is no such node" };
            return self.nothing(&about, why);
        };
        let slot = &self.run.body.slots[index];
        let record = match (slot.status(), slot.record.as_deref()) {
            (StepStatus::Completed, Some(record)) => record,
            (StepStatus::Skipped, _) => {
                if field.is_none() {
                    return Ok(Found::text(String::new()));
                }
                return self.nothing(&about, "the node was skipped");
            }
            (StepStatus::Failed, _) => return self.nothing(&about, "the node failed"),
            _ => return self.nothing(&about, "the node has not completed"),
        };
        let Some(field) = field else { return self.whole(record).map(Found::text) };
        self.field(step, record, field)
    }

    /// Resolves a reference to a node without output: the whole output is empty, a field is an
    /// error.
    fn nothing(&mut self, about: &Written, why: &str) -> Result<Found, Refusal> {
        if about.0.field.is_some() {
            return Err(Refusal::new(format!("`{about}` cannot be read: {why}")));
        }
        self.warnings.push(format!("`{about}` is empty: {why}"));
        Ok(Found::text(String::new()))
    }

    /// Returns a field of a node's output in its original notation, which preserves the digits of
    /// numbers.
    fn field(&self, step: &Step, record: &Record, field: &str) -> Result<Found, Refusal> {
        let name = &step.name;
        let refuse = |why: String| Err(Refusal::new(format!("`${name}.output.{field}` {why}")));
        let format = format_of(step);
        let whole = match &record.json {
            // The agent's report is not the text of the answer.
            Some(said) if format.is_none() => said.to_string(),
            _ => self.whole(record)?,
        };
        // Search for an object within other text only if the agent was asked for an object.
        let read = if format.is_some() { answer::extract_object } else { answer::whole_object };
        let Object { value, text } = match read(&whole) {
            Ok(object) => object,
            Err(why) => return refuse(format!("cannot be read: {why}")),
        };
        let declared = format.and_then(|format| format.get("properties")?.as_object());
        match (value.get(field), declared) {
            (_, Some(declared)) if !declared.contains_key(field) => {
                let known: Vec<_> = declared.keys().map(|key| format!("`{key}`")).collect();
                let known = known.join(", ");
                refuse(format!("is no field that `output_format` of `{name}` declares: {known}"))
            }
            (Some(Value::Null) | None, Some(_)) => Ok(Found::text(String::new())),
            (Some(Value::String(said)), _) => Ok(Found::text(said.clone())),
            (Some(value), _) => {
                let json = written::field(&text, field).unwrap_or_default();
                let bare = matches!(value, Value::Number(_) | Value::Bool(_));
                Ok(Found { text: written::compact(json, |text| text, str::to_owned), bare })
            }
            (None, None) => refuse(format!("is not in what `{name}` has given")),
        }
    }
}

/// Returns the schema of a node's answers.
fn format_of(step: &Step) -> Option<&Value> {
    match &step.action {
        Action::Prompt(prompt) => prompt.format.as_ref(),
        Action::Rounds(rounds) => rounds.block.steps.iter().find_map(format_of),
        _ => None,
    }
}

fn is_gate(action: &Action) -> bool {
    matches!(action, Action::Gate(Gate { .. }))
}

impl Fill for Values<'_> {
    type Error = Refusal;

    fn var(&mut self, var: Var) -> Result<Option<String>, Refusal> {
        match self.into {
            Into::Message => Ok(None),
            Into::Shell => {
                let value = self.variable(var)?;
                Ok(self.expansions.put_variable(var, &value))
            }
            Into::Script if var.is_user_text() => Ok(None),
            _ => self.variable(var).map(Some),
        }
    }

    fn reference(&mut self, reference: &NodeRef) -> Result<String, Refusal> {
        let Found { text, bare } = self.find(reference)?;
        Ok(match self.into {
            Into::Shell => self.expansions.put(&format!("`{reference}`"), &text, bare),
            _ => text,
        })
    }
}

/// Displays a reference as its author wrote it.
struct Written<'a>(&'a NodeRef);

impl std::fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "${}.output", self.0.node)?;
        match &self.0.field {
            Some(field) => write!(f, ".{field}"),
            None => Ok(()),
        }
    }
}
