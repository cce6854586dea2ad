//! Assigns steps to provider conversations.
//!
//! All attempts of a step share one conversation, and so do all rounds of a loop. A node may
//! continue the conversation of the node before it: in a fork, if the provider supports forks, so
//! that a retry starts from the same point; otherwise in that same conversation.

use super::Preparing;
use crate::attempt::command_line::{self, Conversation};
use crate::base::digest::{Parts, uuid};
use crate::engine::run::Address;
use crate::engine::{StepStatus, inputs};
use crate::workflow::plan::{Action, Prompt, RoundsKind};

/// A node's prompt and its position.
struct Said<'a> {
    at: Address,
    agent: Option<&'a str>,
    prompt: &'a Prompt,
}

impl Preparing<'_> {
    /// Returns the conversation that a prompt belongs to.
    pub(super) fn conversation(&self, prompt: &Prompt) -> Conversation {
        let key = self.own_conversation(&self.here, prompt.fresh);
        let provider = &self.plan.providers()[&prompt.provider];
        if prompt.fresh || !command_line::can_resume(provider) {
            return key.into();
        }
        let top = self.here.top();
        let Some(own) = self.prompt_of(top).filter(|own| std::ptr::eq(own.prompt, prompt)) else {
            // A repair by an agent after a rejection is not part of the conversation between nodes.
            return key.into();
        };
        let mut conversation = Conversation::from(key);
        let mut step = top;
        while let Some(said) = self.before(step)
            && said.prompt.provider == prompt.provider
            && said.agent == own.agent
        {
            let key = self.own_conversation(&said.at, said.prompt.fresh);
            if command_line::can_fork(provider) {
                conversation.from = Some(key);
                break;
            }
            conversation.key = key;
            if said.prompt.fresh {
                break;
            }
            step = said.at.top();
        }
        conversation
    }

    /// Returns the prompt of the nearest earlier node whose conversation a node may continue.
    fn before(&self, step: usize) -> Option<Said<'_>> {
        let thread = &self.plan.root().edges()?.thread;
        let mut before = thread[step]?;
        loop {
            let completed = self.scope.run.body.slots[before].status() == StepStatus::Completed;
            let said = self.prompt_of(before).filter(|said| {
                completed && command_line::can_resume(&self.plan.providers()[&said.prompt.provider])
            });
            if said.is_some() {
                return said;
            }
            before = thread[before]?;
        }
    }

    /// Returns a node's prompt; for a loop, that of its last round.
    fn prompt_of(&self, step: usize) -> Option<Said<'_>> {
        let node = &self.plan.root().steps[step];
        let rounds = node.rounds().filter(|rounds| rounds.kind == RoundsKind::Loop);
        let (loops, index, step) = match rounds {
            Some(rounds) => {
                let each = self.scope.run.body.slots[step].each.as_ref();
                let last = each.map_or(0, |each| each.iterations.len().saturating_sub(1));
                (vec![(step, last)], 0, rounds.block.steps.first()?)
            }
            None => (Vec::new(), step, node),
        };
        let Action::Prompt(prompt) = &step.action else { return None };
        let agent = step.agent.as_deref();
        Some(Said { at: Address { loops, step: index }, agent, prompt })
    }

    /// Returns the key of a step's conversation. All attempts of one visit share it, and all rounds
    /// of a loop, unless each round starts a conversation (`fresh`). New inputs start a new
    /// conversation.
    pub(super) fn own_conversation(&self, at: &Address, fresh: bool) -> String {
        let run = self.scope.run;
        let mut parts = Parts::default();
        parts.add(run.id.as_str());
        // The first visit may be counted before or after it starts, so 0 and 1 are equivalent.
        let visits = |at: &Address| run.slot(at).map_or(1, |slot| slot.visits.max(1)).to_string();
        for (around, item) in at.around() {
            // Use the name: the path would include the round of an enclosing loop.
            parts.add(&around.step_of(self.plan).name);
            parts.add(&visits(&around));
            let is_rounds = around.step_of(self.plan).rounds().is_some();
            if fresh || !is_rounds {
                parts.add(&item.to_string());
            }
        }
        if self.plan.root().edges().is_some() {
            let top = at.top();
            parts.add(&self.given(top));
        }
        parts.add(&at.step_of(self.plan).name);
        parts.add(&visits(at));
        uuid(&parts.hex())
    }

    /// Returns the inputs of a node that has started, or the inputs that it will get.
    fn given(&self, step: usize) -> String {
        let run = self.scope.run;
        let record = run.body.slots[step].record.as_deref();
        let begun = self.here.loops.is_empty() && self.here.step == step;
        let known = record.filter(|_| !begun).and_then(|record| record.inputs.clone());
        known.unwrap_or_else(|| inputs(self.plan, run, step))
    }
}
