//! Which conversation with a provider a step is part of.
//!
//! All attempts at a step are part of one, and all rounds of a loop. A node may go on with what
//! was said in the node before it: in a copy of that conversation where the provider makes one,
//! so that what is tried again begins where it did before; else in that very conversation.

use super::Preparing;
use crate::digest::{Parts, uuid};
use crate::engine::run::Address;
use crate::engine::{StepStatus, inputs};
use crate::fleet::ask::{self, Conversation};
use crate::workflow::plan::{Action, Prompt, RoundsKind};

/// What a node says to an agent, and where.
struct Said<'a> {
    at: Address,
    agent: Option<&'a str>,
    prompt: &'a Prompt,
}

impl Preparing<'_> {
    /// The conversation that a prompt belongs to.
    pub(super) fn conversation(&self, prompt: &Prompt) -> Conversation {
        let key = self.own_conversation(&self.here, prompt.fresh);
        let provider = &self.plan.providers[&prompt.provider];
        if prompt.fresh || !ask::can_resume(provider) {
            return key.into();
        }
        let top = self.here.top();
        let Some(own) = self.prompt_of(top).filter(|own| std::ptr::eq(own.prompt, prompt)) else {
            // What an agent mends after a rejection is no part of what nodes say to each other.
            return key.into();
        };
        let mut conversation = Conversation::from(key);
        let mut step = top;
        while let Some(said) = self.before(step)
            && said.prompt.provider == prompt.provider
            && said.agent == own.agent
        {
            let key = self.own_conversation(&said.at, said.prompt.fresh);
            if ask::can_fork(provider) {
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

    /// What the nearest node before a node said that the node may go on from.
    fn before(&self, step: usize) -> Option<Said<'_>> {
        let thread = &self.plan.root.edges.as_ref()?.thread;
        let mut before = thread[step]?;
        loop {
            let completed = self.scope.run.body.slots[before].status() == StepStatus::Completed;
            let said = self.prompt_of(before).filter(|said| {
                completed && ask::can_resume(&self.plan.providers[&said.prompt.provider])
            });
            if said.is_some() {
                return said;
            }
            before = thread[before]?;
        }
    }

    /// What a node says to an agent; in its last round, if it is a loop.
    fn prompt_of(&self, step: usize) -> Option<Said<'_>> {
        let node = &self.plan.root.steps[step];
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

    /// Names the conversation of a step: all attempts of one visit are part of it, and all rounds
    /// of a loop, unless each is to begin a conversation. What is given something new begins one.
    pub(super) fn own_conversation(&self, at: &Address, fresh: bool) -> String {
        let run = self.scope.run;
        let mut parts = Parts::default();
        parts.add(run.id.as_str());
        // Whether the first visit is counted before it begins or after is not the same everywhere.
        let visits = |at: &Address| run.slot(at).map_or(1, |slot| slot.visits.max(1)).to_string();
        for (around, item) in at.around() {
            // By its name: its path says in which round of a loop around it that is.
            parts.add(&around.step_of(self.plan).name);
            parts.add(&visits(&around));
            let is_rounds = around.step_of(self.plan).rounds().is_some();
            if fresh || !is_rounds {
                parts.add(&item.to_string());
            }
        }
        if self.plan.root.edges.is_some() {
            let top = at.top();
            parts.add(&self.given(top));
        }
        parts.add(&at.step_of(self.plan).name);
        parts.add(&visits(at));
        uuid(&parts.hex())
    }

    /// What a node was given, or will be.
    fn given(&self, step: usize) -> String {
        let run = self.scope.run;
        let record = run.body.slots[step].record.as_deref();
        let begun = self.here.loops.is_empty() && self.here.step == step;
        let known = record.filter(|_| !begun).and_then(|record| record.inputs.clone());
        known.unwrap_or_else(|| inputs(self.plan, run, step))
    }
}
