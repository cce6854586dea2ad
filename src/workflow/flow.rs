//! Which steps can follow which: one after the other, by `goto`, and out of loops.

use super::plan::{Action, Block, Step, Target};

/// The ways between the steps of a block.
pub struct Ways {
    /// Where each step may lead.
    to: Vec<Vec<usize>>,
}

impl Ways {
    pub fn of(block: &Block, strict: bool) -> Ways {
        Ways::with_exits(block, strict).0
    }

    /// The ways, and where those steps go that can be reached and leave the block: how many loops
    /// further out, and to which step there.
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

    /// Which steps can follow a step, after whatever else; itself is one of them.
    pub fn from(&self, first: usize) -> Vec<bool> {
        let mut reached = vec![false; self.to.len()];
        let mut left = vec![first];
        while let Some(step) = left.pop() {
            if step < reached.len() && !std::mem::replace(&mut reached[step], true) {
                left.extend(&self.to[step]);
            }
        }
        reached
    }

    /// Whether any step goes to this one, and be it itself.
    pub fn lead_to(&self, step: usize) -> bool {
        self.to.iter().any(|to| to.contains(&step))
    }

    /// Whether a step can come after another one, or after itself.
    pub fn lead(&self, from: usize, to: usize) -> bool {
        self.to.get(from).is_some_and(|next| next.iter().any(|next| self.from(*next)[to]))
    }
}

/// Whether the next step can follow this one by itself.
pub fn falls(step: &Step, strict: bool) -> bool {
    // One that is skipped goes on with the next, whatever it says.
    let skipped = step.when.is_some();
    let after_success = step.on.success.is_none();
    let after_failure = step.on.failure.is_none() && !strict;
    skipped || (step.on.always.is_none() && (after_success || after_failure))
}

/// Where a step goes by `goto`: how many loops further out, and to which step there. A loop goes
/// where the steps in it do.
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
