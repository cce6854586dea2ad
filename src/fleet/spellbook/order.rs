//! Which steps of a plan can have come to something when another one begins.

use std::collections::HashMap;

use crate::workflow::plan::{Action, Block, RoundsKind, Step, Target};

/// Whether a step's result can be there for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Can {
    /// It may have run before.
    Before,
    /// Neither waits for the other: it depends on which of them is faster.
    Beside,
    /// It runs later, always.
    After,
    /// It is the same step, or the loop that is around the other and ends after it.
    Itself,
    /// It is in a loop over items, where nobody outside sees it.
    Inside,
}

/// Where a step is: the blocks from the outermost to its own, with its number, or that of the loop
/// around it, in each.
type Path<'p> = Vec<(&'p Block, usize)>;

/// All steps of a plan.
pub struct Order<'p> {
    paths: HashMap<*const Step, Path<'p>>,
}

impl<'p> Order<'p> {
    pub fn of(root: &'p Block) -> Order<'p> {
        let mut order = Order { paths: HashMap::new() };
        order.add(root, &[]);
        order
    }

    fn add(&mut self, block: &'p Block, around: &[(&'p Block, usize)]) {
        for (index, step) in block.steps.iter().enumerate() {
            let mut path = around.to_vec();
            path.push((block, index));
            if let Some(inner) = step.inner() {
                self.add(inner, &path);
            }
            self.paths.insert(step, path);
        }
    }

    /// How many steps a step of a graph waits for; nothing for any other.
    pub fn waits_for(&self, step: &Step) -> Option<usize> {
        match self.paths.get(&std::ptr::from_ref(step))?.as_slice() {
            [(block, index)] => Some(block.edges.as_ref()?.before[*index].len()),
            _ => None,
        }
    }

    /// Whether `step` can be known where `reader` begins.
    pub fn can(&self, step: &Step, reader: &Step) -> Can {
        let path = |step: &Step| self.paths.get(&std::ptr::from_ref(step));
        let (Some(step), Some(reader)) = (path(step), path(reader)) else { return Can::Before };
        // The loops that both are in.
        let most = step.len().min(reader.len()) - 1;
        let same = |(one, other): &(&(&Block, usize), &(&Block, usize))| {
            std::ptr::eq(one.0, other.0) && one.1 == other.1
        };
        let shared = step.iter().zip(reader).take(most).take_while(same).count();
        let (own, last) = (&step[shared..step.len() - 1], step[..shared].last());
        if !own.iter().all(is_repeated) {
            return Can::Inside;
        }
        // What an earlier round came to is known in the next one.
        if last.is_some_and(is_repeated) {
            return Can::Before;
        }
        let ((block, here), (_, there)) = (step[shared], reader[shared]);
        if here != there {
            return in_block(block, here, there);
        }
        match (step.len() - shared, reader.len() - shared) {
            // A loop of steps is known while it goes on.
            (1, more) if more > 1 && is_repeated(&step[shared]) => Can::Before,
            (1, _) => Can::Itself,
            _ => Can::After,
        }
    }
}

/// Whether a number of a block is a loop that repeats steps.
fn is_repeated((block, index): &(&Block, usize)) -> bool {
    match &block.steps[*index].action {
        Action::Rounds(rounds) => matches!(rounds.kind, RoundsKind::Steps { .. }),
        _ => false,
    }
}

fn in_block(block: &Block, step: usize, reader: usize) -> Can {
    let Some(edges) = &block.edges else {
        let jumps = jumps(block, 0);
        let next = |from: usize| {
            let jumps = jumps.iter().filter(move |(at, _)| *at == from).map(|(_, to)| *to);
            jumps.chain([from + 1])
        };
        let before = step < reader || leads(step, reader, block.steps.len(), next);
        return if before { Can::Before } else { Can::After };
    };
    let next = |from: usize| edges.after[from].iter().copied();
    let count = block.steps.len();
    match (leads(step, reader, count, next), leads(reader, step, count, next)) {
        (true, _) => Can::Before,
        (_, true) => Can::After,
        _ => Can::Beside,
    }
}

/// Where control may jump in a block, `out` loops around `inner`: from which step to which.
fn jumps(inner: &Block, out: usize) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (index, step) in inner.steps.iter().enumerate() {
        let handlers = [step.on.success, step.on.failure, step.on.always];
        for target in handlers.into_iter().flatten() {
            if let Target::Step { out: left, step } = target
                && left == out
            {
                found.push((index, step));
            }
        }
        let deeper = step.inner().map(|inner| jumps(inner, out + 1)).unwrap_or_default();
        found.extend(deeper.into_iter().map(|(_, to)| (index, to)));
    }
    found
}

/// Whether there is a way from one of `count` numbers to another.
fn leads<I: IntoIterator<Item = usize>>(
    from: usize,
    to: usize,
    count: usize,
    next: impl Fn(usize) -> I,
) -> bool {
    let mut seen = vec![false; count];
    let mut left = vec![from];
    while let Some(at) = left.pop() {
        for next in next(at).into_iter().filter(|next| *next < count) {
            if next == to {
                return true;
            }
            if !std::mem::replace(&mut seen[next], true) {
                left.push(next);
            }
        }
    }
    false
}
