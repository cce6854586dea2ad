//! Continuing a run with its edited workflow.
//!
//! The edited text gets a copy of its own in the run's directory. **Invariant:** replacing
//! `state.json`, which names the copy that the run follows, is the one step that switches over. A
//! crash before it leaves the run with its earlier copy.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::base::time::Time;
use crate::engine::run::{Body, Slot};
use crate::engine::{Event, Run, StepStatus};
use crate::store::{self, Store, StoreError, snapshot};
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Block, Order};
use crate::{disk, yaml};

/// A step of the run's past that conflicts with the edited workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub step: String,
    pub kind: DifferenceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DifferenceKind {
    /// It has completed, and its definition has changed.
    Changed,
    /// It has completed, and the edited workflow does not contain it.
    Removed,
    /// It is new, and comes before the step where the run stopped.
    Added,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = match self.kind {
            DifferenceKind::Changed => "completed and was changed since",
            DifferenceKind::Removed => "completed and was removed since",
            DifferenceKind::Added => "is new and comes before the step where the run stopped",
        };
        write!(f, "`{}` {how}", self.step)
    }
}

/// An edited workflow, next to the one that a run follows.
pub(crate) struct Edit<'a> {
    pub old_text: &'a str,
    pub new_text: &'a str,
    pub new_checksum: String,
    pub old_plan: &'a Plan,
    pub new_plan: &'a Plan,
    /// The step to continue from, if the caller names one. It and the steps after it are executed
    /// again, regardless of their results.
    pub from: Option<&'a str>,
    /// Steps of the new workflow that are executed again because of `from`.
    pub again: BTreeSet<usize>,
}

impl Edit<'_> {
    /// Returns the steps whose results conflict with the edited workflow. The run can be continued
    /// if there are none.
    pub(crate) fn differences(&self, run: &Run) -> Vec<Difference> {
        let (old, new) = (steps_of(self.old_text), steps_of(self.new_text));
        let mut found = Vec::new();
        let again: BTreeSet<&str> = self
            .again
            .iter()
            .map(|index| self.new_plan.root().steps[*index].name.as_str())
            .collect();
        let past = |name: &str| !again.contains(name);
        compare(&old, &new, self.old_plan.root(), &run.body, "", &past, &mut found);
        if self.new_plan.root().order == Order::Sequence {
            found.extend(self.added(run, &past));
        }
        found
    }

    /// Returns the new steps of a sequence that its cursor has passed.
    fn added(&self, run: &Run, past: &dyn Fn(&str) -> bool) -> Vec<Difference> {
        let (old, new) = (self.old_plan.root(), self.new_plan.root());
        let Some(cursor) = self.cursor(run) else { return Vec::new() };
        let before = new.steps.iter().take_while(|step| step.name != cursor);
        let is_new = |name: &str| old.find(name).is_none() && past(name);
        before
            .filter(|step| is_new(&step.name))
            .map(|step| Difference { step: step.name.clone(), kind: DifferenceKind::Added })
            .collect()
    }

    /// Returns the step of the new workflow where a sequence continues; `None` if that step is
    /// gone.
    fn cursor(&self, run: &Run) -> Option<&str> {
        let stopped =
            self.old_plan.root().steps.get(run.body.cursor).map(|step| step.name.as_str());
        let is_there = |name: &&str| self.new_plan.root().find(name).is_some();
        self.from.filter(is_there).or(stopped.filter(is_there))
    }

    /// Converts the run to the edited workflow: keeps results of unchanged steps by name and drops
    /// all others. The error states why that is impossible.
    fn translate(&self, run: &Run) -> Result<Run, String> {
        let bytes = snapshot::encode(self.old_plan, run, 0, 1);
        let mut document: Map<String, Value> =
            serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        let (old, new) = (steps_of(self.old_text), steps_of(self.new_text));
        let stands = |name: &str| {
            let slot = self.old_plan.root().find(name).and_then(|(at, _)| run.body.slots.get(at));
            let (old, new) = (find(&old, name), find(&new, name));
            let known = self.new_plan.root().find(name).is_some();
            known && (old == new || slot.is_some_and(|slot| keeps_items(slot, old, new)))
        };
        if let Some(Value::Object(steps)) = document.get_mut("steps") {
            steps.retain(|name, value| stands(name) || self.restart(name, value));
        }
        if let Some(Value::Object(loops)) = document.get_mut("for_each") {
            loops.retain(|path, _| stands(path.split('.').next().unwrap_or(path)));
        }
        if self.new_plan.root().order == Order::Sequence {
            let Some(cursor) = self.cursor(run) else {
                return Err("the step where the run stopped is not in the edited workflow".into());
            };
            document.insert("cursor".into(), cursor.into());
        }
        let bytes = serde_json::to_vec(&document).map_err(|error| error.to_string())?;
        snapshot::decode(self.new_plan, &bytes).map(|loaded| loaded.run)
    }

    /// Makes a step pending again. Its attempt number continues, because the earlier numbers were
    /// used. Returns false if there is nothing to keep: the step is gone, or is a loop.
    fn restart(&self, name: &str, value: &mut Value) -> bool {
        let Some((_, step)) = self.new_plan.root().find(name) else { return false };
        let attempt = value["attempt"].clone();
        if step.inner().is_some() || attempt.is_null() {
            return false;
        }
        *value = json!({ "status": "pending", "attempt": attempt });
        true
    }

    /// Switches a stopped run to the edited workflow.
    pub(crate) fn adopt(
        &self,
        store: &mut Store,
        run: &mut Run,
        at: Time,
    ) -> Result<(), EditError> {
        let mut edited = self.translate(run).map_err(EditError::Untranslatable)?;
        let definition = next_definition(run.origin.definition());
        let (disk, path) = (disk::machine(), store.root().join(&definition));
        disk::replace(&*disk, &path, self.new_text.as_bytes()).map_err(|source| StoreError {
            doing: "write",
            path,
            source,
        })?;
        edited.origin.workflow_checksum = self.new_checksum.clone();
        edited.origin.definition = Some(definition.clone());
        store.record(at, &Event::Edited { definition })?;
        store.save(self.new_plan, &edited, at)?;
        *run = edited;
        Ok(())
    }
}

/// The reason why a run cannot be switched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EditError {
    #[error("{0}")]
    Untranslatable(String),
    #[error(transparent)]
    Disk(#[from] StoreError),
}

/// Returns the name of the next copy: `workflow.yaml`, `workflow.2.yaml`, `workflow.3.yaml`.
fn next_definition(current: &str) -> String {
    let (stem, ending) = store::DEFINITION.split_once('.').unwrap_or((store::DEFINITION, "yaml"));
    let number = current.split('.').nth(1).and_then(|part| part.parse::<u32>().ok()).unwrap_or(1);
    format!("{stem}.{}.{ending}", number + 1)
}

/// Returns the steps in a workflow's text, as values without source positions.
fn steps_of(text: &str) -> Vec<Value> {
    let Ok(tree) = yaml::parse(text) else { return Vec::new() };
    let list = tree.get("steps").or_else(|| tree.get("nodes"));
    match list.map(yaml::Node::to_json) {
        Some(Value::Array(steps)) => steps,
        _ => Vec::new(),
    }
}

fn find<'a>(steps: &'a [Value], name: &str) -> Option<&'a Value> {
    let named = |step: &&Value| ["name", "id"].iter().any(|key| step[*key] == *name);
    steps.iter().find(named)
}

/// Splits a loop into its steps and the rest of its definition.
fn inner(step: &Value) -> Option<(Vec<Value>, Value)> {
    let mut header = step.clone();
    for key in ["for_each", "loop"] {
        if let Some(Value::Object(each)) = header.get_mut(key)
            && let Some(Value::Array(steps)) = each.remove("steps")
        {
            return Some((steps, header));
        }
    }
    // A grimoire lists the steps of a loop next to its other fields.
    match header.as_object_mut()?.remove("steps")? {
        Value::Array(steps) => Some((steps, header)),
        _ => None,
    }
}

/// Returns true if a started loop keeps its items: only steps inside it were edited.
fn keeps_items(slot: &Slot, old: Option<&Value>, new: Option<&Value>) -> bool {
    let begun = slot.each.as_ref().is_some_and(|each| !each.iterations.is_empty());
    let header = |step: Option<&Value>| step.and_then(inner).map(|(_, header)| header);
    begun && header(old).is_some() && header(old) == header(new)
}

/// Collects the completed steps of a block that the edited text changes or removes.
fn compare(
    old: &[Value],
    new: &[Value],
    block: &Block,
    body: &Body,
    prefix: &str,
    past: &dyn Fn(&str) -> bool,
    found: &mut Vec<Difference>,
) {
    for (step, slot) in block.steps.iter().zip(&body.slots) {
        if prefix.is_empty() && !past(&step.name) {
            continue;
        }
        let (before, after) = (find(old, &step.name), find(new, &step.name));
        if before == after {
            continue;
        }
        let path = format!("{prefix}{}", step.name);
        let kind = match after {
            Some(_) => DifferenceKind::Changed,
            None => DifferenceKind::Removed,
        };
        let is_done = matches!(slot.status(), StepStatus::Completed | StepStatus::Skipped);
        let items = || slot.each.iter().flat_map(|each| &each.iterations).map(|item| &item.body);
        if is_done {
            found.push(Difference { step: path, kind });
        } else if keeps_items(slot, before, after) {
            let (Action::Each(_) | Action::Rounds(_)) = &step.action else { continue };
            let (Some(block), Some((old, _)), Some((new, _))) =
                (step.inner(), before.and_then(inner), after.and_then(inner))
            else {
                continue;
            };
            let prefix = format!("{path}.");
            items().for_each(|body| compare(&old, &new, block, body, &prefix, past, found));
        } else if items().any(|body| body.slots.iter().any(|slot| slot.record.is_some())) {
            found.push(Difference { step: path, kind });
        }
    }
    found.dedup();
}

/// Reads the copy of the workflow that a run follows.
pub(crate) fn frozen_text(root: &Path, run: &Run) -> std::io::Result<String> {
    let bytes = disk::machine().read(&root.join(run.origin.definition()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
