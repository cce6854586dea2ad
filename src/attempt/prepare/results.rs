//! The variables of spells at one step of a run: those of the run, and the results of other steps.

use serde_json::{Map, Value, json};

use super::Refusal;
use crate::attempt::exec_env::Site;
use crate::base::ids::Attempt;
use crate::disk::fs;
use crate::engine::run::{Address, Body, Slot, StepState, block_of};
use crate::engine::{Record, Run, RunScope, StepStatus};
use crate::template::spell::with_face;
use crate::template::{Hole, Scope};
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Block, Prompt, Rounds, RoundsKind, Step, Words};

/// One step of a run, from the view of a spell.
pub(super) struct Results<'a> {
    pub site: &'a Site,
    pub plan: &'a Plan,
    pub run: &'a Run,
    pub here: &'a Address,
    pub attempt: Attempt,
    /// Maximum length of an output; only the end of a longer one is given.
    pub most: Option<usize>,
}

/// Maximum size of an output in a prompt: an agent does not read more, and a spell that inserts it
/// twice must fit too.
pub(super) const PROMPT_BYTES: usize = 256 * 1024;

impl<'a> Results<'a> {
    /// Returns all variables. Step results override the variables given at the start of the run,
    /// and variables with fixed names override both.
    pub(super) fn variables(&self) -> Result<Map<String, Value>, Refusal> {
        let mut all = self.run.origin.context.clone();
        for loops in 0..=self.here.loops.len() {
            let loops = &self.here.loops[..loops];
            let Some(body) = self.run.sequence(loops) else { continue };
            let inside_rounds = loops.last().is_some_and(|(step, _)| {
                let outer = &loops[..loops.len() - 1];
                steps_of(&block_of(self.plan, outer).steps[*step]).is_some()
            });
            // Repeated steps are reached from the enclosing block, with all of their rounds.
            if !inside_rounds {
                self.add_block(block_of(self.plan, loops), &[body], &mut all)?;
            }
        }
        all.extend(self.around());
        if let Some(previous) = self.previous()? {
            all.insert("previous".into(), previous);
        }
        Ok(all)
    }

    /// Returns the variables that describe the run and its loops.
    fn around(&self) -> Map<String, Value> {
        let mut found = Map::new();
        let name = self
            .plan
            .name()
            .map(str::to_owned)
            .unwrap_or_else(|| self.run.origin.workflow_file.clone());
        let workflow = json!({ "name": name, "run_id": self.run.id.as_str() });
        found.insert("workflow".into(), workflow);
        let name = &self.here.step_of(self.plan).name;
        found.insert("step".into(), json!({ "name": name }));
        found.insert("attempt".into(), self.attempt.into());
        if let Some(agent) = &self.here.step_of(self.plan).agent {
            found.insert("agent".into(), agent.as_str().into());
        }
        if let Some((bead, _)) = self.run.bead_of(self.here.step_of(self.plan)) {
            found.insert("bead".into(), bead.clone());
            found.insert("task".into(), bead.clone());
        }
        let scope = RunScope { plan: self.plan, run: self.run, loops: &self.here.loops };
        if let Ok(item) = scope.look_up(&Hole::new("item")) {
            found.insert("item".into(), item.into_owned());
        }
        if let Some((around, index)) = self.here.around().last() {
            let step = around.step_of(self.plan);
            let each = self.run.slot(&around).and_then(|slot| slot.each.as_deref());
            let items = each.map_or(0, |each| each.items.len());
            let total = steps_of(step).map_or(items, |rounds| rounds.most as usize);
            let (name, round) = (&step.name, index + 1);
            let about = json!({ "name": name, "index": index, "iteration": round, "total": total });
            found.insert("loop".into(), about);
        }
        found
    }

    /// Adds the results of a block's steps. If several bodies have a result, the first one counts.
    fn add_block(
        &self,
        block: &'a Block,
        bodies: &[&'a Body],
        all: &mut Map<String, Value>,
    ) -> Result<(), Refusal> {
        let now = self.run.sequence(&self.here.loops);
        for (index, step) in block.steps.iter().enumerate() {
            if let Some(rounds) = steps_of(step) {
                let slots = bodies.iter().filter_map(|body| body.slots.get(index)?.each.as_deref());
                let inner: Vec<&Body> = slots
                    .flat_map(|each| each.iterations.iter().rev().map(|round| &round.body))
                    .collect();
                self.add_block(&rounds.block, &inner, all)?;
            }
            let slots = bodies.iter().filter_map(|body| {
                // The earlier result of this same step is not one of its variables.
                let is_here =
                    index == self.here.step && now.is_some_and(|now| std::ptr::eq(now, *body));
                body.slots.get(index).filter(|slot| !is_here && has_result(step, slot))
            });
            let Some(slot) = slots.into_iter().next() else { continue };
            let result = self.result(step, slot)?;
            if let Some(alias) = &step.alias {
                all.insert(alias.clone(), result.clone());
            }
            all.insert(step.name.clone(), result);
        }
        Ok(())
    }

    /// Returns the result of the previous step: the last one that ran, without skipped steps. For
    /// the first step it is an empty success.
    fn previous(&self) -> Result<Option<Value>, Refusal> {
        if let Some(edges) = self.plan.root().edges().filter(|_| self.here.loops.is_empty()) {
            // In a graph, a step has a previous step only if it waits for exactly one.
            let [before] = edges.before[self.here.step].as_slice() else { return Ok(None) };
            let (step, slot) = (&self.plan.root().steps[*before], &self.run.body.slots[*before]);
            return has_result(step, slot).then(|| self.result(step, slot)).transpose();
        }
        match self.before() {
            Some((step, slot)) => self.result(step, slot).map(Some),
            None => Ok(Some(json!({ "success": true, "failed": false, "output": "" }))),
        }
    }

    fn before(&self) -> Option<(&'a Step, &'a Slot)> {
        let mut at = self.here.clone();
        loop {
            let block = block_of(self.plan, &at.loops);
            if let Some(found) = last_run(block, self.run.sequence(&at.loops)?, at.step) {
                return Some(found);
            }
            let ((step, index), outer) = at.loops.split_last()?;
            let around = Address { loops: outer.to_vec(), step: *step };
            let each = self.run.slot(&around)?.each.as_deref()?;
            let earlier = each.iterations[..*index].iter().rev();
            let found =
                earlier.into_iter().find_map(|round| last_run(block, &round.body, usize::MAX));
            if found.is_some() && steps_of(around.step_of(self.plan)).is_some() {
                return found;
            }
            at = around;
        }
    }

    /// Returns the result of a step.
    fn result(&self, step: &'a Step, slot: &'a Slot) -> Result<Value, Refusal> {
        let none = Record::default();
        let record = slot.record.as_deref().unwrap_or(&none);
        let status = slot.status();
        let (success, failed) = (status == StepStatus::Completed, status == StepStatus::Failed);
        let mut fields = Map::new();
        let mut put = |key: &str, value: Value| _ = fields.insert(key.to_owned(), value);
        let error = record.error.as_ref().map(|error| error.message.as_str());
        put("success", success.into());
        put("failed", failed.into());
        put("status", json!(status));
        put("exit_code", json!(record.exit_code));
        put("error", json!(error));
        put("attempt", record.attempt.into());
        put("summary", "".into());
        put("outputs", json!({}));
        let each = slot.each.as_deref().filter(|_| steps_of(step).is_some());
        if let Some(each) = each {
            put("iteration", each.iterations.len().into());
            let last = each.iterations.iter().rev();
            let last =
                last.into_iter().find_map(|round| last_run(step.inner()?, &round.body, usize::MAX));
            let output = match last {
                Some((step, slot)) => self.output(step, slot)?,
                None => String::new(),
            };
            let shown = self.shown(&output, last.and_then(|(_, slot)| slot.record.as_deref()));
            put("output", shown.as_str().into());
            return Ok(with_face(fields, shown.into()));
        }
        let output = self.output(step, slot)?;
        let shown = self.shown(&output, Some(record));
        put("output", shown.as_str().into());
        if let Some(lines) = &record.lines {
            put("lines", json!(lines));
        }
        if keeps_contract(step) {
            let mut said = match &record.json {
                Some(Value::Object(said)) => said.clone(),
                _ => json!({ "summary": "", "outputs": {}, "error": error })
                    .as_object()
                    .cloned()
                    .unwrap_or_default(),
            };
            said.insert("success".into(), success.into());
            if failed && said.get("error").is_none_or(Value::is_null) {
                said.insert("error".into(), json!(error));
            }
            for key in ["summary", "outputs", "error"] {
                put(key, said.get(key).cloned().unwrap_or_default());
            }
            return Ok(with_face(fields, Value::Object(said)));
        }
        if let Some(value) = &record.json {
            put("json", value.clone());
            return Ok(with_face(fields, value.clone()));
        }
        if let Ok(outputs @ Value::Object(_)) = serde_json::from_str(&output) {
            put("outputs", outputs);
        }
        Ok(with_face(fields, shown.into()))
    }

    /// Truncates an output that is too long to its end, with a note about the cut.
    fn shown(&self, output: &str, record: Option<&Record>) -> String {
        let Some(most) = self.most.filter(|most| output.len() > *most) else {
            return output.to_owned();
        };
        let mut from = output.len() - most;
        while !output.is_char_boundary(from) {
            from += 1;
        }
        // Start at a line break, if there is one soon.
        let line = output[from..].find('\n').filter(|line| *line < most / 4);
        let from = line.map_or(from, |line| from + line + 1);
        let whole = record.and_then(|record| record.whole.as_ref());
        let place = whole.map_or(String::new(), |whole| {
            format!(" All of it is in {}.", self.site.root().join(&whole.path).display())
        });
        format!("[The first {from} bytes were cut off.{place}]\n{}", &output[from..])
    }

    /// Returns the output of a step, or the answer of an agent. For a failed script it includes the
    /// end of stderr.
    fn output(&self, step: &Step, slot: &Slot) -> Result<String, Refusal> {
        let Some(record) = slot.record.as_deref() else { return Ok(String::new()) };
        let mut text = whole(self.site, record)?.trim().to_owned();
        let is_script = matches!(step.action, Action::Shell { .. });
        if let Some(error) = record.error.as_ref().filter(|_| is_script) {
            let said = error.stderr_tail.join("\n");
            if !text.is_empty() && !said.trim().is_empty() {
                text.push('\n');
            }
            text.push_str(said.trim());
        }
        Ok(text)
    }
}

/// Returns the whole output of a record's step.
pub(super) fn whole(site: &Site, record: &Record) -> Result<String, Refusal> {
    let Some(whole) = &record.whole else {
        return Ok(record.output.clone().unwrap_or_default());
    };
    let path = site.root().join(&whole.path);
    let bytes = fs::read(&path).map_err(|error| {
        Refusal::new(format!("cannot read the output in `{}`: {error}", path.display()))
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the rounds of a step that is a loop of steps, otherwise `None`.
fn steps_of(step: &Step) -> Option<&Rounds> {
    match &step.action {
        Action::Rounds(rounds) if matches!(rounds.kind, RoundsKind::Steps { .. }) => Some(rounds),
        _ => None,
    }
}

/// Returns true if an agent's answer to this step reports its result.
fn keeps_contract(step: &Step) -> bool {
    match &step.action {
        Action::Prompt(Prompt { words: Words::Spell(spell), .. }) => spell.contract,
        _ => false,
    }
}

/// Returns true if a step has a result, or is a loop that has started.
fn has_result(step: &Step, slot: &Slot) -> bool {
    let open = slot.state == StepState::Running && steps_of(step).is_some();
    open || ran(slot)
}

fn ran(slot: &Slot) -> bool {
    matches!(slot.status(), StepStatus::Completed | StepStatus::Failed)
}

/// Returns the last step of a block that ran, among the first `before` steps.
fn last_run<'a>(block: &'a Block, body: &'a Body, before: usize) -> Option<(&'a Step, &'a Slot)> {
    let steps = block.steps.iter().zip(&body.slots).take(before);
    steps.rev().find(|(_, slot)| ran(slot))
}
