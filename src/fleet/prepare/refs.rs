//! What references to nodes and the variables of a request stand for, at one node of one run.

use serde_json::Value;

use super::Refusal;
use super::results::whole;
use super::shell::Expansions;
use crate::engine::{Record, Run, StepStatus};
use crate::fleet::site::Site;
use crate::prompt::answer::{self, Object};
use crate::random::{chance, word};
use crate::template::nodes::{Fill, NodeRef, Var};
use crate::template::written;
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Gate, Step};

/// Where a run's artifacts are, in its directory.
pub const ARTIFACTS: &str = "artifacts";

/// What stands for the run's directory in one piece of work. That may be done on another machine,
/// where the volume may be mounted elsewhere: whoever does it puts the path there.
///
/// It is drawn after everything that is put in was written, so that nothing in there can be it.
pub fn root_mark() -> String {
    format!("@orchestrate:{}{}@", word(chance()), word(chance()))
}

/// Where text is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// To an agent: everything is put in as it is.
    Prompt,
    /// To a shell: no value is ever part of the script.
    Shell,
    /// To another language: user text comes by environment, outputs as they are.
    Script,
    /// To a person: references alone.
    Message,
}

/// The values at one node.
pub struct Values<'a> {
    pub site: &'a Site,
    pub plan: &'a Plan,
    pub run: &'a Run,
    pub loops: &'a [(usize, usize)],
    pub into: Into,
    /// Stands for the run's directory.
    pub root: &'a str,
    /// What should be known about references that stand for nothing.
    pub warnings: Vec<String>,
    /// What goes into a shell script.
    pub expansions: Expansions,
}

/// What a reference stands for.
pub struct Found {
    pub text: String,
    /// It is a number, or true or false.
    pub bare: bool,
}

impl Found {
    fn text(text: String) -> Found {
        Found { text, bare: false }
    }
}

impl<'a> Values<'a> {
    pub fn new(
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
            expansions: Expansions { root: root.to_owned(), ..Expansions::default() },
        }
    }

    /// The value of a variable, wherever it may be used.
    pub fn variable(&self, var: Var) -> Result<String, Refusal> {
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

    /// What a step of this round, or of one before, has given.
    fn text_of_round(&self, back: usize, is: fn(&Action) -> bool) -> Result<String, Refusal> {
        let found = || {
            let (node, round) = self.loops.last()?;
            let rounds = self.plan.root.steps[*node].rounds()?;
            let each = self.run.body.slots.get(*node)?.each.as_ref()?;
            let round = each.iterations.get(round.checked_sub(back)?)?;
            let step = rounds.block.steps.iter().position(|step| is(&step.action))?;
            round.body.slots.get(step)?.record.as_deref()
        };
        found().map_or(Ok(String::new()), |record| self.whole(record))
    }

    /// All that a record's step has given.
    pub fn whole(&self, record: &Record) -> Result<String, Refusal> {
        whole(self.site, record)
    }

    /// What a reference stands for. The error says why there is no such field.
    pub fn find(&mut self, reference: &NodeRef) -> Result<Found, Refusal> {
        let NodeRef { node, field } = reference;
        let about = Written(reference);
        let Some((index, step)) = self.plan.root.find(node) else {
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

    /// The whole output of a node that has none is empty; a field of it cannot be had.
    fn nothing(&mut self, about: &Written, why: &str) -> Result<Found, Refusal> {
        if about.0.field.is_some() {
            return Err(Refusal::new(format!("`{about}` cannot be read: {why}")));
        }
        self.warnings.push(format!("`{about}` is empty: {why}"));
        Ok(Found::text(String::new()))
    }

    /// A field of what a node has given, as it was written: its digits above all.
    fn field(&self, step: &Step, record: &Record, field: &str) -> Result<Found, Refusal> {
        let name = &step.name;
        let refuse = |why: String| Err(Refusal::new(format!("`${name}.output.{field}` {why}")));
        let format = format_of(step);
        let whole = match &record.json {
            // What an answer says of itself is not how it was written.
            Some(said) if format.is_none() => said.to_string(),
            _ => self.whole(record)?,
        };
        // Only of an agent that was asked for an object is it looked for among other words.
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

/// The schema that the answers of a node have.
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

/// A reference as its author wrote it.
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
