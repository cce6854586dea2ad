//! A workflow as a graph: its steps as nodes, their order as edges, and the state of a run.
//! [`mermaid`], [`dot`] and [`svg`] draw it.
//!
//! **Invariant:** this module has no side effects, and no text of an author reaches a picture
//! unescaped. Nodes are identified by numbers, `n0`, `n1`, …; names are ordinary text.

pub(crate) mod dot;
mod layout;
pub(crate) mod mermaid;
pub(crate) mod svg;

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Value, json};

use crate::base::ids::{Attempt, StepPath, counted};
use crate::engine::run::{Body, Slot, StepState};
use crate::engine::{Run, RunStatus, StepStatus};
use crate::template::{Hole, Missing, Scope, Template};
use crate::view::{RunDetail, StepShown};
use crate::workflow::Plan;
use crate::workflow::plan::{
    Action, Block, Edges, Handlers, JoinRule, OnMost, Order, RoundsKind, ShellText, SpellSource,
    Step, Target, Test, When, Words,
};

/// Maximum length of a condition in a node.
const LONGEST: usize = 60;

pub(crate) struct Graph {
    pub title: String,
    /// True if its steps follow each other; false if they wait for the nodes that they name.
    pub sequence: bool,
    pub nodes: Vec<Node>,
    pub edges: Vec<Edge>,
}

pub(crate) struct Node {
    pub name: String,
    /// Its path in the run; in a loop over items, the path in the newest item.
    pub path: String,
    pub kind: Kind,
    /// The provider it asks, its command file or spell, or the runtime of its script.
    pub detail: Option<String>,
    pub agent: Option<String>,
    /// Condition for it to run.
    pub when: Option<String>,
    pub join: JoinRule,
    /// Maximum number of rounds.
    pub most: Option<u32>,
    /// The loop that contains it, and the number of loops around it.
    pub inside: Option<usize>,
    pub depth: usize,
    pub progress: Option<Progress>,
}

/// State of a run at a node. In a loop over items, it describes the newest item.
pub(crate) struct Progress {
    pub state: State,
    pub attempts: Attempt,
    /// Rounds started, or items done.
    pub done: Option<usize>,
    pub items: Option<usize>,
}

/// The kind of a node, in the author's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A command line.
    Exec,
    /// A command file.
    Command,
    Provider,
    Prompt,
    Bash,
    Script,
    Wait,
    Each,
    Loop,
    Approval,
    Cancel,
    Spell,
    Merge,
    /// The target of a `goto` that ends the run.
    End,
}

impl Kind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Exec | Kind::Command => "command",
            Kind::Provider => "provider",
            Kind::Prompt => "prompt",
            Kind::Bash => "bash",
            Kind::Script => "script",
            Kind::Wait => "wait_for",
            Kind::Each => "for_each",
            Kind::Loop => "loop",
            Kind::Approval => "approval",
            Kind::Cancel => "cancel",
            Kind::Spell => "spell",
            Kind::Merge => "merge",
            Kind::End => "end",
        }
    }

    fn of(step: &Step) -> Kind {
        match &step.action {
            Action::Exec { .. } => Kind::Exec,
            Action::Ask { .. } => Kind::Provider,
            Action::Wait(_) => Kind::Wait,
            Action::Each(_) => Kind::Each,
            Action::Prompt(prompt) => match prompt.words {
                Words::Inline(_) => Kind::Prompt,
                Words::Command(_) => Kind::Command,
                Words::Spell(_) => Kind::Spell,
            },
            Action::Shell { script: ShellText::Node(_) } => Kind::Bash,
            Action::Shell { script: ShellText::Spell(_) } => Kind::Script,
            Action::Script(_) => Kind::Script,
            Action::Rounds(rounds) => match rounds.kind {
                RoundsKind::Loop | RoundsKind::Steps { .. } => Kind::Loop,
                RoundsKind::Approval => Kind::Approval,
            },
            Action::Gate(_) => Kind::Approval,
            Action::Cancel { .. } => Kind::Cancel,
            Action::Merge { .. } => Kind::Merge,
        }
    }

    /// Returns its shape.
    fn shape(self) -> Shape {
        match self {
            Kind::Exec | Kind::Bash | Kind::Script | Kind::Merge => Shape::Box,
            Kind::Command | Kind::Provider | Kind::Prompt | Kind::Spell => Shape::Round,
            Kind::Loop | Kind::Each => Shape::Double,
            Kind::Approval => Shape::Hexagon,
            Kind::Wait => Shape::Slanted,
            Kind::Cancel | Kind::End => Shape::Octagon,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Box,
    Round,
    Double,
    Hexagon,
    Slanted,
    Octagon,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Completed,
    Failed,
    Skipped,
    Running,
    Paused,
    Pending,
    /// The run has completed without reaching it.
    Unreached,
    /// It was running when the process that drove the run ended.
    Interrupted,
}

impl State {
    pub(crate) const ALL: [State; 8] = [
        State::Completed,
        State::Failed,
        State::Skipped,
        State::Running,
        State::Paused,
        State::Pending,
        State::Unreached,
        State::Interrupted,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            State::Completed => "completed",
            State::Failed => "failed",
            State::Skipped => "skipped",
            State::Running => "running",
            State::Paused => "asking",
            State::Pending => "pending",
            State::Unreached => "unreached",
            State::Interrupted => "interrupted",
        }
    }

    /// Returns its fill and border colors.
    fn colours(self) -> (&'static str, &'static str) {
        match self {
            State::Completed => ("#d3f9d8", "#2b8a3e"),
            State::Failed => ("#ffe3e3", "#c92a2a"),
            State::Skipped => ("#f1f3f5", "#868e96"),
            State::Running => ("#d0ebff", "#1864ab"),
            State::Paused => ("#fff3bf", "#e67700"),
            State::Pending => ("#ffffff", "#868e96"),
            State::Unreached => ("#ffffff", "#ced4da"),
            State::Interrupted => ("#ffe8cc", "#d9480f"),
        }
    }
}

impl From<StepStatus> for State {
    fn from(status: StepStatus) -> State {
        match status {
            StepStatus::Pending => State::Pending,
            StepStatus::Running => State::Running,
            StepStatus::Completed => State::Completed,
            StepStatus::Failed => State::Failed,
            StepStatus::Skipped => State::Skipped,
            StepStatus::Paused => State::Paused,
        }
    }
}

/// A picture distinguishes fewer states than a list.
impl From<StepShown> for State {
    fn from(shown: StepShown) -> State {
        match shown {
            StepShown::Completed => State::Completed,
            StepShown::Failed => State::Failed,
            StepShown::Skipped => State::Skipped,
            StepShown::Asking => State::Paused,
            StepShown::Interrupted => State::Interrupted,
            StepShown::Running | StepShown::Ended => State::Running,
            StepShown::Unreached => State::Unreached,
            StepShown::Pending
            | StepShown::Ready
            | StepShown::Unpublished
            | StepShown::Waiting
            | StepShown::Lost
            | StepShown::Resting => State::Pending,
        }
    }
}

pub(crate) struct Edge {
    pub from: usize,
    pub to: usize,
    pub kind: EdgeKind,
    pub label: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EdgeKind {
    /// The second waits for the first.
    Dependency,
    /// The second comes after the first.
    Sequence,
    Goto,
    /// From the end of an item to the next.
    Item,
    /// From the end of a round to the next.
    Round,
}

impl EdgeKind {
    fn word(self) -> &'static str {
        match self {
            EdgeKind::Dependency => "dependency",
            EdgeKind::Sequence => "sequence",
            EdgeKind::Goto => "goto",
            EdgeKind::Item => "item",
            EdgeKind::Round => "round",
        }
    }
}

/// A run, and states of its steps that the run itself does not contain, by step path.
pub(crate) struct Seen<'a> {
    pub run: &'a Run,
    pub states: HashMap<String, State>,
}

impl Graph {
    /// Returns the direct children of a loop, or the top-level nodes. A loop's nodes follow it
    /// directly, so the nodes of other loops are not visited.
    fn nodes_in(&self, inside: Option<usize>) -> impl Iterator<Item = (usize, &Node)> {
        let first = inside.map_or(0, |index| index + 1);
        let level = inside.map_or(0, |index| self.nodes[index].depth + 1);
        let nodes = self.nodes.iter().enumerate().skip(first);
        let ours = nodes.take_while(move |(_, node)| inside.is_none() || node.depth >= level);
        ours.filter(move |(_, node)| node.depth == level)
    }

    /// Returns true if it contains steps: it is drawn with a frame around them.
    fn is_frame(&self, index: usize) -> bool {
        self.nodes.get(index + 1).is_some_and(|next| next.inside == Some(index))
    }

    pub(crate) fn new(title: &str, plan: &Plan, seen: Option<&Seen>) -> Graph {
        let sequence = plan.root().order == Order::Sequence;
        let graph = Graph { title: title.into(), sequence, nodes: Vec::new(), edges: Vec::new() };
        let mut drawing = Drawing { graph, seen, end: None };
        let body = seen.map(|seen| &seen.run.body);
        let level = drawing.nodes(plan.root(), body, None, &mut Vec::new());
        match &plan.root().order {
            Order::Graph(edges) => drawing.dependencies(edges, &level),
            Order::Sequence => drawing.sequence(plan.root(), &mut vec![&level], None),
        }
        drawing.graph
    }

    /// Returns true if it shows a run.
    fn has_states(&self) -> bool {
        self.nodes.iter().any(|node| node.progress.is_some())
    }

    /// Returns the graph as JSON, for programs.
    pub(crate) fn to_json(&self) -> Value {
        let nodes = self.nodes.iter().enumerate().map(|(index, node)| node.to_json(index));
        let edges = self.edges.iter().map(|edge| {
            json!({ "from": id(edge.from), "to": id(edge.to), "kind": edge.kind.word(),
                    "label": edge.label })
        });
        json!({
            "title": self.title,
            "nodes": nodes.collect::<Vec<_>>(),
            "edges": edges.collect::<Vec<_>>(),
        })
    }
}

/// Returns the graph of a run's current state.
pub(crate) fn of_run(detail: &RunDetail, plan: &Plan, run: &Run) -> Graph {
    let states = detail.steps.iter().map(|step| (step.step.clone(), step.state.into()));
    let (file, standing) = (&run.origin.workflow_file, detail.run.state.word());
    let title = format!("{file}, run {}: {standing}", run.id);
    Graph::new(&title, plan, Some(&Seen { run, states: states.collect() }))
}

/// Returns the kind of a step, in the author's terms.
pub(crate) fn kind(step: &Step) -> &'static str {
    if let Action::Gate(_) = step.action { "gate" } else { Kind::of(step).word() }
}

/// Returns the ID of a node in a picture.
fn id(index: usize) -> String {
    format!("n{index}")
}

impl Node {
    /// Returns the lines of its label: the name first.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.name.clone()];
        if self.kind != Kind::End {
            let agent = self.agent.as_ref().map(|agent| format!("agent {agent}"));
            let what = [Some(self.kind.word().to_owned()), self.detail.clone()];
            let what = what.into_iter().flatten().collect::<Vec<_>>().join(" ");
            lines.push([Some(what), agent].into_iter().flatten().collect::<Vec<_>>().join(", "));
        }
        lines.extend(self.when.as_ref().map(|when| shorten(&format!("when {when}"), LONGEST)));
        match &self.progress {
            None => lines
                .extend(self.most.map(|most| format!("up to {}", counted(most as usize, "round")))),
            Some(progress) => lines.push(progress.words(self.most)),
        }
        lines
    }

    fn to_json(&self, index: usize) -> Value {
        let mut node = json!({
            "id": id(index), "name": self.name, "kind": self.kind.word(),
            "detail": self.detail, "agent": self.agent, "when": self.when,
            "trigger_rule": self.join.name(), "max_rounds": self.most,
            "inside": self.inside.map(id),
        });
        if let Some(progress) = &self.progress {
            node["state"] = progress.state.word().into();
            node["attempts"] = progress.attempts.into();
            let done = if progress.items.is_some() { "items_done" } else { "rounds" };
            node[done] = progress.done.into();
            node["items"] = progress.items.into();
        }
        if let Some(node) = node.as_object_mut() {
            node.retain(|_, value| !value.is_null());
        }
        node
    }
}

impl Progress {
    fn words(&self, most: Option<u32>) -> String {
        let mut words = vec![self.state.word().to_owned()];
        if self.attempts > Attempt::FIRST {
            words.push(format!("{} attempts", self.attempts));
        }
        match (self.done, self.items, most) {
            (Some(done), Some(items), _) => {
                words.push(format!("{done} of {}", counted(items, "item")));
            }
            (Some(done), None, Some(most)) if done > 0 => {
                words.push(format!("round {done} of {most}"));
            }
            _ => {}
        }
        words.join(", ")
    }
}

/// Returns true if only a step inside a loop can leave it: the run stops once the rounds are used
/// up.
fn ends_only_inside(step: &Step) -> bool {
    match &step.action {
        Action::Rounds(rounds) => {
            matches!(rounds.kind, RoundsKind::Steps { on_most: OnMost::Block | OnMost::Fail })
        }
        _ => false,
    }
}

/// Returns the steps that an author wrote inside a step.
fn written_inside(step: &Step) -> Option<&Block> {
    match &step.action {
        Action::Each(each) => Some(&each.block),
        Action::Rounds(rounds) if matches!(rounds.kind, RoundsKind::Steps { .. }) => {
            Some(&rounds.block)
        }
        _ => None,
    }
}

/// The loop around a sequence: its header, and the node after it.
#[derive(Clone, Copy)]
struct Around {
    header: usize,
    /// `None` if the run ends there.
    after: Option<usize>,
    again: EdgeKind,
}

/// The numbers of a block's nodes, and of the nodes in its loops.
struct Level {
    nodes: Vec<usize>,
    inner: Vec<Option<Level>>,
}

struct Drawing<'a> {
    graph: Graph,
    seen: Option<&'a Seen<'a>>,
    end: Option<usize>,
}

impl Drawing<'_> {
    fn nodes(
        &mut self,
        block: &Block,
        body: Option<&Body>,
        inside: Option<usize>,
        loops: &mut Vec<(String, usize)>,
    ) -> Level {
        let mut level = Level { nodes: Vec::new(), inner: Vec::new() };
        for (index, step) in block.steps.iter().enumerate() {
            let slot = body.and_then(|body| body.slots.get(index));
            let path = StepPath { loops: loops.clone(), step: step.name.clone() };
            let node = self.node(step, slot, index, &path, inside, block.edges());
            let number = self.graph.nodes.len();
            self.graph.nodes.push(node);
            level.nodes.push(number);
            level.inner.push(written_inside(step).map(|block| {
                let (item, body) = newest(slot);
                loops.push((step.name.clone(), item));
                // All steps of an item that has not started are pending.
                let none = Body::new(block, Attempt::NONE);
                let body = body.or(self.seen.map(|_| &none));
                let inner = self.nodes(block, body, Some(number), loops);
                loops.pop();
                inner
            }));
        }
        level
    }

    fn node(
        &self,
        step: &Step,
        slot: Option<&Slot>,
        index: usize,
        path: &StepPath,
        inside: Option<usize>,
        edges: Option<&Edges>,
    ) -> Node {
        let detail = match &step.action {
            Action::Ask { provider, .. } => Some(provider.clone()),
            Action::Prompt(prompt) => match &prompt.words {
                Words::Command(command) => Some(command.name.clone()),
                Words::Spell(spell) => match &spell.source {
                    SpellSource::Named(name) => Some(name.clone()),
                    SpellSource::Inline(_) => None,
                },
                Words::Inline(_) => None,
            },
            Action::Script(script) => Some(script.runtime.name().to_owned()),
            _ => None,
        };
        Node {
            name: step.name.clone(),
            path: path.to_string(),
            kind: Kind::of(step),
            detail,
            agent: step.agent.clone(),
            when: step.when.as_ref().map(condition),
            join: edges.and_then(|edges| edges.rules.get(index)).copied().unwrap_or_default(),
            most: match &step.action {
                // An approval without an action on rejection has no second round.
                Action::Rounds(rounds) => Some(rounds.most).filter(|most| *most > 1),
                _ => None,
            },
            inside,
            depth: path.loops.len(),
            progress: slot.map(|slot| self.progress(step, slot, path)),
        }
    }

    fn is_completed(&self) -> bool {
        self.seen.is_some_and(|seen| seen.run.status == RunStatus::Completed)
    }

    fn progress(&self, step: &Step, slot: &Slot, path: &StepPath) -> Progress {
        let told = self.seen.and_then(|seen| seen.states.get(&path.to_string()));
        let each = slot.each.as_deref();
        let newest = each.and_then(|each| each.iterations.get(each.index));
        let state = match told {
            _ if asks(slot) => State::Paused,
            // The loop is left open so that the run can be resumed there.
            Some(State::Interrupted) if newest.is_some_and(|item| item.failed) => State::Failed,
            Some(state) => *state,
            None if slot.status() == StepStatus::Pending && self.is_completed() => State::Unreached,
            None => slot.status().into(),
        };
        let over_items = matches!(step.action, Action::Each(_));
        Progress {
            state,
            attempts: slot.attempts,
            done: each.map(|each| if over_items { each.index } else { each.iterations.len() }),
            items: each.filter(|_| over_items).map(|each| each.items.len()),
        }
    }

    fn dependencies(&mut self, edges: &Edges, level: &Level) {
        for (step, before) in edges.before.iter().enumerate() {
            let rule = edges.rules.get(step).copied().unwrap_or_default();
            let label = (rule != JoinRule::default()).then(|| rule.name());
            let mut before = before.clone();
            before.sort_unstable();
            before.dedup();
            for upstream in before {
                let (from, to) = (level.nodes[upstream], level.nodes[step]);
                self.graph.edges.push(Edge { from, to, kind: EdgeKind::Dependency, label });
            }
        }
    }

    /// Adds the edges of a sequence and of the loops in it. The last element of `levels` is its
    /// own.
    fn sequence(&mut self, block: &Block, levels: &mut Vec<&Level>, around: Option<Around>) {
        let Some(level) = levels.last().copied() else { return };
        for (index, step) in block.steps.iter().enumerate() {
            let from = level.nodes[index];
            let next = level.nodes.get(index + 1).copied();
            if let (Some(block), Some(inner)) = (written_inside(step), &level.inner[index]) {
                let (again, each) = match step.action {
                    Action::Each(_) => (EdgeKind::Item, "each item"),
                    _ => (EdgeKind::Round, "each round"),
                };
                if let Some(first) = inner.nodes.first() {
                    self.edge(from, *first, EdgeKind::Sequence, Some(each));
                }
                let after = next.or(around.map(|around| around.header));
                levels.push(inner);
                self.sequence(block, levels, Some(Around { header: from, after, again }));
                levels.pop();
            }
            self.jumps(step, from, levels);
            if let Some(around) = around.filter(|_| step.exit_loop) {
                let to = around.after.unwrap_or_else(|| self.end());
                self.edge(from, to, EdgeKind::Goto, Some("exit_loop"));
            }
            let plain =
                step.on.always.is_none() && step.on.success.is_none() && !ends_only_inside(step);
            match (plain, next, around) {
                (true, Some(next), _) => self.edge(from, next, EdgeKind::Sequence, None),
                (true, None, Some(Around { header, again, .. })) => {
                    let label = if again == EdgeKind::Item { "next item" } else { "next round" };
                    self.edge(from, header, again, Some(label));
                }
                _ => {}
            }
        }
    }

    /// Adds the possible jumps after a step.
    fn jumps(&mut self, step: &Step, from: usize, levels: &[&Level]) {
        let Handlers { success, failure, always } = step.on;
        for (target, label) in [(always, "always"), (success, "success"), (failure, "failure")] {
            // With `always`, the other targets are never used.
            let Some(target) = target.filter(|_| always.is_none() || label == "always") else {
                continue;
            };
            let to = self.target(target, levels);
            self.edge(from, to, EdgeKind::Goto, Some(label));
        }
    }

    fn target(&mut self, target: Target, levels: &[&Level]) -> usize {
        let found = match target {
            Target::Step { out, step } => {
                let level = levels.len().checked_sub(out + 1).and_then(|level| levels.get(level));
                level.and_then(|level| level.nodes.get(step)).copied()
            }
            Target::End => None,
        };
        found.unwrap_or_else(|| self.end())
    }

    /// Returns the end node, and adds it on the first use.
    fn end(&mut self) -> usize {
        *self.end.get_or_insert_with(|| add_end(&mut self.graph))
    }

    fn edge(&mut self, from: usize, to: usize, kind: EdgeKind, label: Option<&'static str>) {
        self.graph.edges.push(Edge { from, to, kind, label });
    }
}

fn add_end(graph: &mut Graph) -> usize {
    graph.nodes.push(Node {
        name: "end".into(),
        path: String::new(),
        kind: Kind::End,
        detail: None,
        agent: None,
        when: None,
        join: JoinRule::default(),
        most: None,
        inside: None,
        depth: 0,
        progress: None,
    });
    graph.nodes.len() - 1
}

/// Returns the newest item of a loop: its number, and the state of its steps.
fn newest(slot: Option<&Slot>) -> (usize, Option<&Body>) {
    let Some(each) = slot.and_then(|slot| slot.each.as_deref()) else { return (0, None) };
    let item = each.index.min(each.iterations.len().saturating_sub(1));
    (item, each.iterations.get(item).map(|iteration| &iteration.body))
}

/// Returns true if the step, or a step in its current round, waits for a user.
fn asks(slot: &Slot) -> bool {
    match slot.state {
        StepState::Waiting | StepState::Asking => true,
        StepState::Running => {
            let (_, body) = newest(Some(slot));
            body.and_then(Body::current).is_some_and(asks)
        }
        _ => false,
    }
}

/// Returns a condition as its author wrote it.
pub(crate) fn condition(when: &When) -> String {
    match when {
        When::Outputs(condition) => condition.text().to_owned(),
        When::Spell(spell) => spell.text().to_owned(),
        When::Test(Test { equals, exists, not_exists }) => {
            let equals = equals.as_ref();
            let equals = equals.map(|(one, other)| format!("{} = {}", text(one), text(other)));
            let exists = exists.as_ref().map(|path| format!("{} exists", text(path)));
            let not = not_exists.as_ref().map(|path| format!("no {} exists", text(path)));
            [equals, exists, not].into_iter().flatten().collect::<Vec<_>>().join(" and ")
        }
    }
}

/// A scope that replaces every placeholder by itself.
struct AsWritten;

impl Scope for AsWritten {
    fn look_up(&self, hole: &Hole) -> Result<Cow<'_, Value>, Missing> {
        Ok(Cow::Owned(Value::String(format!("${{{}}}", hole.raw))))
    }
}

fn text(template: &Template) -> String {
    template.render(&AsWritten).unwrap_or_default()
}

/// Shortens a text to this number of columns, on one line; `…` marks the omission.
fn shorten(text: &str, most: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut used = 0;
    for (at, letter) in text.char_indices() {
        used += columns(letter);
        let last = at + letter.len_utf8() == text.len();
        if used > most || (used == most && !last) {
            return format!("{}…", &text[..at]);
        }
    }
    text
}

/// Like [`shorten`], but omits the middle: names of one family differ at their ends.
fn shorten_middle(text: &str, most: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().map(columns).sum::<usize>() <= most {
        return text;
    }
    let half = most.saturating_sub(1) / 2;
    let mut used = 0;
    let fits = |letter: &char| {
        used += columns(*letter);
        used <= half
    };
    let tail: Vec<char> = text.chars().rev().take_while(fits).collect();
    let head = shorten(&text, most - half);
    head + &tail.into_iter().rev().collect::<String>()
}

/// Returns the approximate width of a character: East Asian characters and most symbols take two
/// columns.
fn columns(letter: char) -> usize {
    if letter >= '\u{1100}' { 2 } else { 1 }
}

/// Replaces a character that is not allowed in a picture: control characters, and those that XML
/// forbids.
fn printable(letter: char) -> char {
    let bad = letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}');
    if bad { '\u{fffd}' } else { letter }
}

#[cfg(test)]
mod tests;
