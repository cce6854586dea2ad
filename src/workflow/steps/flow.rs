//! Control flow between steps: in sequence, by `goto`, and out of loops.

use crate::workflow::plan::{Action, Block, Step, Target};

/// The control flow edges between the steps of a block.
pub(crate) struct Ways {
    /// Possible successors of each step.
    to: Vec<Vec<usize>>,
}

impl Ways {
    pub(crate) fn of(block: &Block, strict: bool) -> Ways {
        Ways::with_exits(block, strict).0
    }

    /// Returns the edges, and the targets outside the block of its reachable steps: the number of
    /// loops to leave, and the step there.
    fn with_exits(block: &Block, strict: bool) -> (Ways, Vec<(usize, usize)>) {
        let gone_to: Vec<_> = block.steps.iter().map(|step| gone_to(step, strict)).collect();
        let to = block.steps.iter().enumerate().map(|(index, step)| {
            let next = falls(step, strict) && index + 1 < block.steps.len();
            let own = gone_to[index].iter().filter(|(out, _)| *out == 0).map(|(_, step)| *step);
            own.chain(next.then_some(index + 1)).collect()
        });
        let ways = Ways { to: to.collect() };
        let exits = gone_to.iter().zip(ways.from(0)).filter(|(_, reached)| *reached);
        let exits = exits.flat_map(|(gone_to, _)| gone_to);
        let exits = exits.filter_map(|(out, step)| Some((out.checked_sub(1)?, *step)));
        let exits = exits.collect();
        (ways, exits)
    }

    /// Returns, for each step, true if it is reachable from `first`, directly or indirectly.
    /// `first` itself is reachable.
    pub(crate) fn from(&self, first: usize) -> Vec<bool> {
        let mut reached = vec![false; self.to.len()];
        let mut left = vec![first];
        while let Some(step) = left.pop() {
            if step < reached.len() && !std::mem::replace(&mut reached[step], true) {
                left.extend(&self.to[step]);
            }
        }
        reached
    }

    /// Returns the largest groups of steps that all lead to each other, in time proportional to the
    /// number of edges. A step that is not on a cycle is in no group.
    fn cycles(&self) -> Vec<Vec<usize>> {
        let count = self.to.len();
        let mut from: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (step, next) in self.to.iter().enumerate() {
            next.iter().filter(|next| **next < count).for_each(|next| from[*next].push(step));
        }
        // Post-order: each step comes after all its successors, except those that lead back to it.
        let mut left: Vec<usize> = Vec::new();
        let mut seen = vec![false; count];
        for first in 0..count {
            let mut walk = vec![(first, 0)];
            while let Some((step, at)) = walk.pop() {
                if at == 0 && std::mem::replace(&mut seen[step], true) {
                    continue;
                }
                match self.to[step].get(at) {
                    Some(next) => {
                        walk.push((step, at + 1));
                        walk.extend((*next < count && !seen[*next]).then_some((*next, 0)));
                    }
                    None => left.push(step),
                }
            }
        }
        let mut taken = vec![false; count];
        let mut cycles = Vec::new();
        for first in left.into_iter().rev() {
            let (mut group, mut walk) = (Vec::new(), vec![first]);
            while let Some(step) = walk.pop() {
                if !std::mem::replace(&mut taken[step], true) {
                    group.push(step);
                    walk.extend(&from[step]);
                }
            }
            group.sort_unstable();
            if group.len() > 1 || group.iter().any(|step| self.to[*step].contains(step)) {
                cycles.push(group);
            }
        }
        cycles.sort_unstable();
        cycles
    }

    /// Returns true if any step leads to this one, including the step itself.
    pub(crate) fn lead_to(&self, step: usize) -> bool {
        self.to.iter().any(|to| to.contains(&step))
    }

    /// Returns true if `to` can run after `from`, which may be the same step.
    pub(crate) fn lead(&self, from: usize, to: usize) -> bool {
        self.to.get(from).is_some_and(|next| next.iter().any(|next| self.from(*next)[to]))
    }
}

/// Marks the steps of all `goto` cycles that ask an agent.
pub(crate) fn mark_agent_cycles(block: &mut Block, strict: bool) {
    for cycle in agent_cycles(block, strict) {
        cycle.into_iter().for_each(|step| block.steps[step].in_agent_cycle = true);
    }
    for step in &mut block.steps {
        if let Action::Each(each) = &mut step.action {
            mark_agent_cycles(&mut each.block, strict);
        }
    }
}

/// Returns the steps of each cycle of a block that asks an agent, in text order.
pub(crate) fn agent_cycles(block: &Block, strict: bool) -> Vec<Vec<usize>> {
    let mut cycles = Ways::of(block, strict).cycles();
    cycles.retain(|cycle| cycle.iter().any(|step| !block.steps[*step].asked().is_empty()));
    cycles
}

/// Returns true if control can fall through from this step to the next.
pub(crate) fn falls(step: &Step, strict: bool) -> bool {
    // A skipped step always continues with the next one; its handlers do not apply.
    let skipped = step.when.is_some();
    let after_success = step.on.success.is_none();
    let after_failure = step.on.failure.is_none() && !strict;
    skipped || (step.on.always.is_none() && (after_success || after_failure))
}

/// Returns the `goto` targets of a step: the number of loops to leave, and the step there. A loop
/// has the targets of the steps in it.
fn gone_to(step: &Step, strict: bool) -> Vec<(usize, usize)> {
    let targets = [step.on.success, step.on.failure, step.on.always].into_iter().flatten();
    let own = targets.filter_map(|target| match target {
        Target::Step { out, step } => Some((out, step)),
        Target::End => None,
    });
    let inner = match &step.action {
        Action::Each(each) => Ways::with_exits(&each.block, strict).1,
        _ => Vec::new(),
    };
    own.chain(inner).collect()
}
