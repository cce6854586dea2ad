//! Determines which steps of a plan can have a result when another step starts.

use std::collections::HashMap;

use crate::workflow::plan::{Action, Block, RoundsKind, Step, Target};

/// Availability of one step's result to another step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Can {
    /// The step may have run before.
    Before,
    /// Neither step waits for the other; timing decides.
    Beside,
    /// The step always runs later.
    After,
    /// It is the same step, or an enclosing loop, which ends later.
    Itself,
    /// The step is in a loop over items, whose results are not visible outside.
    Inside,
}

/// Position of a step: the blocks from the outermost to its own, each with the index of the step,
/// or of its enclosing loop.
type Path<'p> = Vec<(&'p Block, usize)>;

/// The positions of all steps of a plan.
pub(super) struct Order<'p> {
    paths: HashMap<*const Step, Path<'p>>,
}

impl<'p> Order<'p> {
    pub(super) fn of(root: &'p Block) -> Order<'p> {
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

    /// Returns the number of steps that a step of a graph waits for, or `None` for any other step.
    pub(super) fn waits_for(&self, step: &Step) -> Option<usize> {
        match self.paths.get(&std::ptr::from_ref(step))?.as_slice() {
            [(block, index)] => Some(block.edges()?.before[*index].len()),
            _ => None,
        }
    }

    /// Returns the availability of the result of `step` when `reader` starts.
    pub(super) fn can(&self, step: &Step, reader: &Step) -> Can {
        let path = |step: &Step| self.paths.get(&std::ptr::from_ref(step));
        let (Some(step), Some(reader)) = (path(step), path(reader)) else { return Can::Before };
        // The loops that contain both steps.
        let most = step.len().min(reader.len()) - 1;
        let same = |(one, other): &(&(&Block, usize), &(&Block, usize))| {
            std::ptr::eq(one.0, other.0) && one.1 == other.1
        };
        let shared = step.iter().zip(reader).take(most).take_while(same).count();
        let (own, last) = (&step[shared..step.len() - 1], step[..shared].last());
        if !own.iter().all(is_repeated) {
            return Can::Inside;
        }
        // The results of an earlier round are available in the next one.
        if last.is_some_and(is_repeated) {
            return Can::Before;
        }
        let ((block, here), (_, there)) = (step[shared], reader[shared]);
        if here != there {
            return in_block(block, here, there);
        }
        match (step.len() - shared, reader.len() - shared) {
            // The result of a loop of steps is available while it runs.
            (1, more) if more > 1 && is_repeated(&step[shared]) => Can::Before,
            (1, _) => Can::Itself,
            _ => Can::After,
        }
    }
}

/// Returns true if the step at an index of a block is a loop of steps.
fn is_repeated((block, index): &(&Block, usize)) -> bool {
    match &block.steps[*index].action {
        Action::Rounds(rounds) => matches!(rounds.kind, RoundsKind::Steps { .. }),
        _ => false,
    }
}

fn in_block(block: &Block, step: usize, reader: usize) -> Can {
    let Some(edges) = block.edges() else {
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

/// Returns the possible jumps in a block from `inner`, which is `out` loops deeper, as pairs of
/// source and target index.
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

/// Returns true if there is a path between two of `count` indexes.
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
