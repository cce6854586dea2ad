//! The `nodes:` dialect: from YAML to a plan whose steps form a graph.
//!
//! Each node is read in two parts: this file reads the fields of every node, and `actions.rs`
//! reads its action. The graph and the references in texts are checked once all nodes are known.

mod actions;
pub(crate) mod commands;
pub(crate) mod condition;
pub(crate) mod graph;
pub(crate) mod keys;
pub(crate) mod mentions;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod tools;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value as Json};

use super::plan::{Block, Dirs, Edges, JoinRule, Param, Plan, Provider, Step, When};
use super::{Configured, spells, steps};
use crate::workflow::fields::{Fields, Findings, no_list, suggest};
use crate::workflow::plan::Dialect;
use crate::yaml::problem::{At, Problem};
use crate::yaml::{Node, Value};
use condition::Condition;
use graph::Ids;
use keys::{Level, Mode};
use mentions::Mention;

/// Shared state while one workflow is read.
pub(super) struct Reading<'a> {
    pub findings: &'a Findings,
    configured: &'a dyn Configured,
    /// Defaults that the workflow sets for all its nodes.
    provider: Option<String>,
    model: Option<String>,
    pub sandbox: Option<Json>,
    /// True once the default provider of the settings has been looked up.
    default_sought: Cell<bool>,
    /// The providers that the workflow uses.
    providers: RefCell<BTreeMap<String, Provider>>,
    pub mentions: RefCell<Vec<Mention>>,
}

/// Reads a workflow of nodes. Discard the plan if `findings` contains an error.
pub(crate) fn read(
    findings: &Findings,
    document: &Node,
    configured: &dyn Configured,
) -> Option<Plan> {
    let top = keys::open(findings, document, "the workflow", &[Level::Top])?;
    read_top(&top, configured)
}

fn read_top(top: &Fields, configured: &dyn Configured) -> Option<Plan> {
    let name = top.required("name").map(str::to_owned);
    let description = top.required("description").map(str::to_owned);
    keys::tell_idle_of_top(top);
    drop_ill_typed(top);
    let reading = Reading {
        findings: top.findings,
        configured,
        provider: top.optional("provider").map(str::to_owned),
        model: model(top),
        sandbox: tools::sandbox(top),
        default_sought: Cell::default(),
        providers: RefCell::default(),
        mentions: RefCell::default(),
    };
    if let Some(provider) = &reading.provider {
        reading.know_provider(top, provider);
    }
    let root = read_nodes(&reading, top)?;
    Some(Plan {
        dialect: Dialect::Nodes,
        name,
        description,
        strict_flow: true,
        context: Map::new(),
        providers: reading.providers.into_inner(),
        dirs: Dirs::default(),
        root,
        exclusive: !matches!(
            top.get("mutates_checkout").map(|node| &node.value),
            Some(Value::Bool(false))
        ),
        timeout: None,
    })
}

/// Warns of top-level fields with a wrong type. They are ignored, because nothing depends on them.
fn drop_ill_typed(top: &Fields) {
    let warn = |key: &str, wanted: &str, node: &Node| {
        let kind = node.kind();
        let message = format!("`{key}` of {} must be {wanted}, not {kind}", top.what);
        top.findings.warn(node.place, format!("{message}, so it is ignored"));
    };
    for key in ["interactive", "mutates_checkout"] {
        if let Some(node) = top.get(key).filter(|node| !matches!(node.value, Value::Bool(_))) {
            warn(key, "true or false", node);
        }
    }
    if let Some(node) = top.get("tags") {
        match &node.value {
            Value::List(items) => {
                for item in items.iter().filter(|item| item.text().is_none()) {
                    warn("tags", "a list of text", item);
                }
            }
            _ => warn("tags", "a list of text", node),
        }
    }
}

impl Reading<'_> {
    /// Adopts a provider from the settings, or reports that it is missing.
    fn know_provider(&self, fields: &Fields, name: &str) {
        if self.take_provider(name) {
            return;
        }
        let place = fields.get("provider").map_or(fields.node.place, |node| node.place);
        let whose = match fields.get("provider") {
            Some(_) => format!("{} asks the provider `{name}`", fields.what),
            None => format!("{} asks `default_provider` of the settings, `{name}`", fields.what),
        };
        let message = format!("{whose}, but there is none of that name");
        let known = self.configured.providers().keys().map(String::as_str);
        let problem = suggest(Problem::error(message).at(place), name, known);
        self.findings.add(match problem.hint {
            Some(_) => problem,
            None => problem.hint("define it under `providers:` in the settings"),
        });
    }

    fn take_provider(&self, name: &str) -> bool {
        if self.providers.borrow().contains_key(name) {
            return true;
        }
        let found = self.configured.providers().get(name).cloned();
        let known = found.is_some();
        self.providers.borrow_mut().extend(found.map(|provider| (name.to_owned(), provider)));
        known
    }

    /// Returns the provider that a node asks, and the model if one is set.
    pub(super) fn provider(&self, fields: &Fields) -> (String, Option<String>) {
        let default = self.configured.default_provider();
        let of_all = self.provider.as_deref().unwrap_or(default);
        let own = fields.optional("provider");
        let provider = own.unwrap_or(of_all);
        match own {
            Some(own) => self.know_provider(fields, own),
            // The workflow's own provider is checked once, at the top.
            None if self.provider.is_some() => {}
            None if self.default_sought.replace(true) => {}
            None => self.know_provider(fields, default),
        }
        let inherited = || self.model.clone().filter(|_| provider == of_all);
        (provider.to_owned(), model(fields).or_else(inherited))
    }

    /// Rejects limits of a node that its provider does not support.
    pub(super) fn check_limits(
        &self,
        fields: &Fields,
        limits: &BTreeMap<String, Param>,
        provider: &str,
    ) {
        tools::check(fields, limits, provider, self.configured);
    }

    /// Returns true if an agent whose answer does not report a result is asked once more.
    pub(super) fn repairs(&self) -> bool {
        self.configured.contract_repair()
    }

    /// Reads a text of a node and records its references.
    pub(super) fn text(
        &self,
        fields: &Fields,
        key: &str,
        text: &str,
        used: mentions::Use,
        node: usize,
    ) -> crate::template::nodes::NodeText {
        mentions::read(fields, key, text, used, node, &mut self.mentions.borrow_mut())
    }
}

/// Reads `model`. Any name is valid; the provider interprets it.
fn model(fields: &Fields) -> Option<String> {
    let model = fields.optional("model")?;
    if ["small", "medium", "large"].contains(&model) || model.starts_with('@') {
        let message =
            format!("`model` of {} is `{model}`, which is passed on as it is", fields.what);
        let place = fields.get("model").map_or(fields.node.place, |node| node.place);
        let hint = "sizes and aliases of models are not known here";
        fields.findings.add(Problem::warning(message).at(place).hint(hint));
    }
    Some(model.to_owned())
}

fn read_nodes(reading: &Reading, top: &Fields) -> Option<Block> {
    let findings = reading.findings;
    let node = top.get("nodes")?;
    let Value::List(nodes) = &node.value else {
        findings.add(no_list("`nodes`", "node", node));
        return None;
    };
    if nodes.is_empty() {
        findings.error(node.place, "`nodes` has no node in it");
    }
    let ids = Ids::collect(findings, nodes);
    spells::outputs(findings, nodes, graph::id, &HashMap::new());
    let (mut steps, mut before, mut rules) = (Vec::new(), Vec::new(), Vec::new());
    for (index, node) in nodes.iter().enumerate() {
        let read = read_node(reading, node, index, &ids);
        let (step, depends, rule) = read.unwrap_or_default();
        steps.push(step);
        before.push(depends);
        rules.push(rule);
    }
    let mentions = reading.mentions.borrow();
    let by_node: Vec<_> = steps.iter().map(Option::as_ref).collect();
    let known = mentions::tell_mentions(findings, &ids, &by_node, &mentions);
    let edges = Edges::new(before, rules);
    let order = match graph::order(&edges.before, &edges.after) {
        Ok(order) => order,
        Err(circles) => {
            for circle in circles {
                graph::tell_circle(findings, nodes, &circle);
            }
            return None;
        }
    };
    if knows_order(nodes, &ids, &edges) {
        mentions::tell_order(findings, &order, &edges.before, &known);
    }
    Some(Block::graph(steps::whole(steps)?, edges))
}

/// Returns true if the edges match the author's text: every id and every `depends_on` is readable.
fn knows_order(nodes: &[Node], ids: &Ids, edges: &Edges) -> bool {
    let read = |(node, before): (&Node, &Vec<usize>)| {
        let written = match node.get("depends_on").map(|list| &list.value) {
            // A duplicate entry is reported elsewhere and does no harm.
            Some(Value::List(list)) => {
                list.iter().map(|id| id.text().map(str::trim)).collect::<HashSet<_>>().len()
            }
            Some(_) => return false,
            None => 0,
        };
        written == before.len() && !keys::misspells(node, |key| key == "depends_on")
    };
    ids.by_name.len() == nodes.len() && nodes.iter().zip(&edges.before).all(read)
}

type Read = (Option<Step>, Vec<usize>, JoinRule);

fn read_node(reading: &Reading, node: &Node, index: usize, ids: &Ids) -> Option<Read> {
    let findings = reading.findings;
    let id = graph::id(node);
    let label = match id {
        Some(id) => format!("node `{id}`"),
        None => "this node".to_owned(),
    };
    let given: Vec<_> = Mode::ALL.iter().filter(|(key, _)| node.get(key).is_some()).collect();
    let mode = given.first().map(|(_, mode)| *mode);
    let levels: &[Level] = match mode {
        Some(Mode::Script) => &[Level::Node, Level::Script],
        _ => &[Level::Node],
    };
    let fields = keys::open(findings, node, label, levels)?;
    fields.text("id");
    let own = id.and_then(|id| ids.by_name.get(id).copied());
    let depends = graph::depends(&fields, ids, own);
    let rule = fields.choice("trigger_rule", &JoinRule::ALL).unwrap_or_default();
    let when = when(reading, &fields, index);
    let output_type = fields.optional("output_type").map(str::to_owned);
    let always_run = fields.boolean("always_run").unwrap_or(false);
    fields.text("description");
    check_modes(&fields, &given);
    let step = mode.and_then(|mode| actions::read(reading, &fields, mode, index));
    let name = id.unwrap_or_default().to_owned();
    let alias = spells::alias(&fields);
    let step = step.map(|step| {
        let bead = spells::bead(&fields);
        Step { name, when, output_type, always_run, alias, bead, ..step }
    });
    Some((step, depends, rule))
}

/// Reports a node without exactly one mode. A mode field without a value counts.
fn check_modes(fields: &Fields, given: &[&(&str, Mode)]) {
    let refused = keys::REFUSED.iter().any(|key| fields.get(key).is_some());
    let is_mode = |key: &str| Mode::ALL.iter().any(|(name, _)| *name == key);
    match given {
        [_] => {}
        [] if refused || keys::misspells(fields.node, is_mode) => {}
        [] => {
            let problem = Problem::error(format!("{} does nothing", fields.what));
            fields.findings.add(problem.at(fields.node.place).hint(keys::one_mode()));
        }
        [_, second, ..] => {
            let list: Vec<_> = given.iter().map(|(key, _)| format!("`{key}`")).collect();
            let (what, list) = (&fields.what, list.join(" and "));
            let problem = Problem::error(format!("{what} has {list}, but a node does one thing"))
                .at(fields.place_of_key(second.0));
            fields
                .findings
                .add(problem.hint(format!("make a node of each, or {}", keys::one_mode())));
        }
    }
}

/// Reads the condition of a node. A condition that cannot be parsed is a warning: the node is
/// skipped.
fn when(reading: &Reading, fields: &Fields, index: usize) -> Option<When> {
    let text = fields.text("when")?;
    let place = fields.get("when")?.place;
    let condition = Condition::parse(text);
    let what = format!("`when` of {}", fields.what);
    let value = text.into();
    for fault in condition.faults() {
        let message = format!("{what} cannot be read: {}", fault.message);
        let hint = "the node will be skipped";
        let at = At::inside(place, &value, fault.at, 1);
        reading.findings.add(Problem::warning(message).at(at).hint(hint));
    }
    let refs = condition.placed_refs();
    let refs = refs.map(|(at, len, found)| (found, At::inside(place, &value, at, len)));
    mentions::mention(&mut reading.mentions.borrow_mut(), index, &what, refs);
    Some(When::Outputs(condition))
}
