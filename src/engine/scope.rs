//! Resolves the variables of a workflow at one step of one run.
//!
//! Names are lexical: the steps and item of the innermost loop come first, then those of outer
//! loops.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::run::{Run, Slot, block_of};
use crate::template::{Hole, Missing, Scope, descend};
use crate::workflow::Plan;
use crate::workflow::plan::Action;

/// The variables as seen from inside `loops`.
pub(crate) struct RunScope<'a> {
    pub plan: &'a Plan,
    pub run: &'a Run,
    pub loops: &'a [(usize, usize)],
}

impl Scope for RunScope<'_> {
    fn look_up(&self, hole: &Hole) -> Result<Cow<'_, Value>, Missing> {
        self.find(hole).map_err(|reason| Missing { raw: hole.raw.clone(), reason })
    }
}

impl<'a> RunScope<'a> {
    fn find(&self, hole: &Hole) -> Result<Cow<'a, Value>, String> {
        let rest = &hole.path[1..];
        match hole.root() {
            "run" => self.run_variable(rest),
            "context" => descend_context(&self.run.origin.context, rest),
            "steps" => self.step_result(rest),
            "loop" => self.loop_variable(rest),
            root => self.item(root, rest),
        }
    }

    fn run_variable(&self, rest: &[String]) -> Result<Cow<'a, Value>, String> {
        let text = match rest {
            [key] if key == "id" => self.run.id.as_str(),
            [key] if key == "root" => &self.run.origin.run_root,
            [key] if key == "timestamp_utc" => self.run.id.stamp(),
            _ => return Err("a run has `id`, `root` and `timestamp_utc`".into()),
        };
        Ok(Cow::Owned(Value::from(text)))
    }

    fn loop_variable(&self, rest: &[String]) -> Result<Cow<'a, Value>, String> {
        let ((step, index), outer) =
            self.loops.split_last().ok_or("no loop is around this step")?;
        let total = self.slot(outer, *step).and_then(|slot| Some(slot.each.as_ref()?.items.len()));
        match rest {
            [key] if key == "index" => Ok(Cow::Owned(json!(index))),
            [key] if key == "total" => Ok(Cow::Owned(json!(total.unwrap_or(0)))),
            _ => Err("a loop has `index` and `total`".into()),
        }
    }

    fn slot(&self, loops: &[(usize, usize)], step: usize) -> Option<&'a Slot> {
        self.run.sequence(loops)?.slots.get(step)
    }

    /// Resolves `item` to the innermost loop's item, and an alias to the nearest loop with that
    /// alias.
    fn item(&self, root: &str, rest: &[String]) -> Result<Cow<'a, Value>, String> {
        for depth in (0..self.loops.len()).rev() {
            let (outer, (step, index)) = (&self.loops[..depth], self.loops[depth]);
            let Action::Each(each) = &block_of(self.plan, outer).steps[step].action else {
                continue;
            };
            if each.alias != root && root != "item" {
                continue;
            }
            let items = &self.slot(outer, step).and_then(|slot| slot.each.as_ref());
            let item = items.and_then(|each| each.items.get(index)).ok_or("the item is gone")?;
            return descend(item, rest)
                .map(Cow::Borrowed)
                .ok_or_else(|| format!("the item has no `{}`", rest.join(".")));
        }
        Err("there is no such variable".into())
    }

    fn step_result(&self, rest: &[String]) -> Result<Cow<'a, Value>, String> {
        for depth in (0..=self.loops.len()).rev() {
            let loops = &self.loops[..depth];
            let block = block_of(self.plan, loops);
            // A name may contain dots, so the longest prefix that is a name counts.
            for cut in (1..=rest.len()).rev() {
                if let Some((index, step)) = block.find(&rest[..cut].join(".")) {
                    let slot = self.slot(loops, index).ok_or("it has not run")?;
                    return field(slot, &rest[cut..])
                        .ok_or_else(|| reason(slot, &step.name, &rest[cut..]));
                }
            }
        }
        Err("there is no such step in reach".into())
    }
}

fn descend_context<'a>(
    context: &'a serde_json::Map<String, Value>,
    path: &[String],
) -> Result<Cow<'a, Value>, String> {
    let (key, rest) = path.split_first().ok_or("a key is missing")?;
    // `--context a.b=1` creates a key that contains a dot.
    context
        .get(&path.join("."))
        .or_else(|| descend(context.get(key)?, rest))
        .map(Cow::Borrowed)
        .ok_or_else(|| format!("the context has no `{}`", path.join(".")))
}

fn reason(slot: &Slot, name: &str, path: &[String]) -> String {
    match &slot.record {
        None => format!("step `{name}` has not run"),
        Some(_) => format!("step `{name}` has no `{}`", path.join(".")),
    }
}

/// Returns a field of a step's result.
fn field<'a>(slot: &'a Slot, path: &[String]) -> Option<Cow<'a, Value>> {
    let record = slot.record.as_deref()?;
    let (key, rest) = path.split_first()?;
    let whole = |value: Value| Some(Cow::Owned(value)).filter(|_| rest.is_empty());
    match key.as_str() {
        "exit_code" => whole(record.exit_code?.into()),
        "output" => whole(record.output.as_deref()?.into()),
        "duration_ms" | "duration" => whole(record.duration_ms?.into()),
        "status" => whole(serde_json::to_value(slot.status()).ok()?),
        "truncated" => whole(record.truncated?.into()),
        "timed_out" => whole(record.timed_out?.into()),
        "wait_duration_ms" => whole(record.wait_duration_ms?.into()),
        "poll_count" => whole(record.poll_count?.into()),
        "attempt" => whole(record.attempt.into()),
        "json" => descend(record.json.as_ref()?, rest).map(Cow::Borrowed),
        "lines" => texts(record.lines.as_ref()?, rest),
        "files" => texts(record.files.as_ref()?, rest),
        _ => None,
    }
}

fn texts<'a>(texts: &[String], rest: &[String]) -> Option<Cow<'a, Value>> {
    match rest {
        [] => Some(Cow::Owned(json!(texts))),
        [index] => Some(Cow::Owned(texts.get(index.parse::<usize>().ok()?)?.as_str().into())),
        _ => None,
    }
}
