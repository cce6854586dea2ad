//! Checks of command files, which nodes use as prompts: variables and references that will not have
//! the value their author expects. The caller reads the files; their texts are checked like prompts
//! in the workflow itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::graph::{self as graph, Ids};
use super::mentions::{self as texts, Use};
use crate::template::nodes::{NodeText, Piece};
use crate::workflow::fields::Findings;
use crate::workflow::plan::{
    Action, Block, Code, Order, Part, PartKind, Plan, Prompt, Script, Step, Words,
};
use crate::yaml::problem::{Place, Problem};

/// A command file that was read.
pub(crate) struct CommandFile<'a> {
    pub name: &'a str,
    /// File name for messages.
    pub file: &'a str,
    /// The whole text, and its last part, which is the prompt.
    pub text: &'a str,
    pub prompt: &'a str,
}

/// Returns the warnings about a command file, for every node that uses it.
pub(crate) fn doubtful(plan: &Plan, command: &CommandFile) -> Vec<Problem> {
    let Block { steps, order: Order::Graph(edges), .. } = &plan.root else { return Vec::new() };
    let Ok(order) = graph::order(&edges.before, &edges.after) else { return Vec::new() };
    let (findings, mut mentions) = (Findings::default(), Vec::new());
    let parsed = NodeText::parse(command.prompt);
    for (index, step) in steps.iter().enumerate() {
        let Action::Prompt(prompt) = &step.action else { continue };
        if !matches!(&prompt.words, Words::Command(used) if used.name == command.name) {
            continue;
        }
        let what = format!("the command file of node `{}`", step.name);
        let refs = parsed.placed().filter_map(|(at, piece)| match piece {
            Piece::Ref(reference) => Some((reference, place(command, at, piece).into())),
            _ => None,
        });
        texts::mention(&mut mentions, index, &what, refs);
        let mut seen = BTreeSet::new();
        for (at, piece) in parsed.placed() {
            if let Piece::Var(var) = piece
                && seen.insert(*var)
            {
                let at = place(command, at, piece).into();
                texts::tell_variable(&findings, *var, Use::Prompt, &what, at);
            }
        }
    }
    let names = steps.iter().enumerate().map(|(index, step)| (step.name.clone(), index));
    let ids = Ids::known(names.collect());
    let by_node: Vec<_> = steps.iter().map(Some).collect();
    let known = texts::tell_mentions(&findings, &ids, &by_node, &mentions);
    texts::tell_order(&findings, &order, &edges.before, &known);
    let (file, text): (Arc<str>, Arc<str>) = (command.file.into(), command.text.into());
    let elsewhere = |problem| Problem { elsewhere: Some((file.clone(), text.clone())), ..problem };
    findings.into_problems().into_iter().map(elsewhere).collect()
}

/// Returns true if every node that names this file depends on a node that executes something and
/// may write the file.
pub(crate) fn may_be_written(plan: &Plan, part: &Part) -> bool {
    let Block { steps, order: Order::Graph(edges), .. } = &plan.root else { return false };
    let names = |step: &Step| match (&step.action, part.kind) {
        (Action::Prompt(Prompt { words: Words::Command(used), .. }), PartKind::Command) => {
            used.name == part.name
        }
        (Action::Script(Script { code: Code::Named(name), .. }), PartKind::Script) => {
            *name == part.name
        }
        _ => false,
    };
    let mut naming = (0..steps.len()).filter(|index| names(&steps[*index]));
    naming.all(|index| {
        let (mut open, mut seen) = (edges.before[index].clone(), BTreeSet::new());
        while let Some(before) = open.pop() {
            if steps[before].takes_process() {
                return true;
            }
            if seen.insert(before) {
                open.extend(&edges.before[before]);
            }
        }
        false
    })
}

/// Returns the place of a piece of the prompt in a command file.
fn place(command: &CommandFile, at: usize, piece: &Piece) -> Place {
    let head = command.text.len() - command.prompt.len();
    let before = &command.text[..head + at];
    let line = before.matches('\n').count() + 1;
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before[begin..].chars().count() + 1;
    Place { line, column, len: piece.to_string().chars().count() }
}
