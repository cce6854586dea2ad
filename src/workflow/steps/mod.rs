//! The `steps:` dialect, versions 1.1 to 1.4: from YAML to a plan.

pub(crate) mod flow;
pub(crate) mod maps;
pub(crate) mod references;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value as Json};

use super::check::{self, Names};
use super::plan::{
    Action, Block, Dirs, Each, Handlers, InputMode, Items, Param, Plan, Prompt, Provider, Step,
    Target, Version, Words,
};
use super::sandbox;
use super::schema::steps::{FOR_EACH, FORMS, GOTO, ON, PROVIDER, STEP, TOP};
use super::settings;
use super::{Configured, lint, spells};
use crate::agent::Kind;
use crate::base::ids::name_fault;
use crate::template::{Hole, Template};
use crate::workflow::dialects;
use crate::workflow::fields::{
    Fields, Findings, in_quotes, in_text, no_list, parse_template, suggest,
};
use crate::workflow::plan::Dialect;
use crate::yaml::problem::{Place, Problem, nearest};
use crate::yaml::{Node, Value};

/// Shared state while one workflow is read.
pub(super) struct Reading<'a> {
    pub findings: &'a Findings,
    pub version: Version,
    /// The workflow's own providers, and the providers of the settings that it uses.
    pub providers: std::cell::RefCell<BTreeMap<String, Provider>>,
    pub configured: &'a dyn Configured,
}

impl Reading<'_> {
    fn knows_provider(&self, name: &str) -> bool {
        if self.providers.borrow().contains_key(name) {
            return true;
        }
        let found = self.configured.providers().get(name);
        let found = found.map(|provider| (name.to_owned(), provider.clone()));
        let known = found.is_some();
        self.providers.borrow_mut().extend(found);
        known
    }
}

/// The names visible at one point of the text, from the outside in.
#[derive(Clone, Default)]
pub(super) struct Visible<'a> {
    pub blocks: Vec<&'a Names>,
    pub aliases: Vec<String>,
    /// Names of results as written, by the form that spells see.
    results: HashMap<String, String>,
}

/// Reads a workflow of steps. Discard the plan if `findings` contains an error.
pub(super) fn read(
    findings: &Findings,
    document: &Node,
    configured: &dyn Configured,
) -> Option<Plan> {
    let version = read_version(findings, document);
    if near_nodes(document).is_some() && document.get("version").is_none() {
        return None;
    }
    let top = Fields::open(findings, document, "the workflow", &TOP, version)?;
    read_top(&top, version, configured)
}

/// Returns the declared version. If it is missing or wrong, returns the newest, so that the rest of
/// the file is checked without errors about fields of later versions.
fn read_version(findings: &Findings, document: &Node) -> Version {
    const NEWEST: Version = Version::V1_4;
    if !matches!(document.value, Value::Map(_)) {
        return NEWEST;
    }
    let Some(node) = document.get("version") else {
        if let Some(key) = near_nodes(document) {
            let message = format!("the workflow has `{}`, and neither `steps` nor `nodes`", key.0);
            findings.add(Problem::error(message).at(key.1).hint("did you mean `nodes`?"));
            return NEWEST;
        }
        // Without a step, the two dialects cannot be distinguished.
        let steps = document.get("steps").map(|steps| &steps.value);
        let hint = match steps {
            Some(Value::List(steps)) if steps.is_empty() => {
                "begin with `version: \"1.1\"`; a grimoire needs none, but steps with a `type`"
            }
            _ => "begin with `version: \"1.1\"`",
        };
        let problem = Problem::error("the workflow has no `version`");
        findings.add(problem.at(document.place).hint(hint));
        return NEWEST;
    };
    let known = Version::ALL.iter().map(|(name, _)| format!("\"{name}\"")).collect::<Vec<_>>();
    let Some(text) = node.text() else {
        findings.add(
            Problem::error(format!("`version` must be text, not {}", node.kind()))
                .at(node.place)
                .hint(format!("put it in quotes: \"{}\"", in_quotes(findings, node))),
        );
        return NEWEST;
    };
    match Version::ALL.iter().find(|(name, _)| *name == text) {
        Some((_, version)) => *version,
        None => {
            findings.error(
                node.place,
                format!("`version` is `{text}`, but must be one of {}", known.join(", ")),
            );
            NEWEST
        }
    }
}

/// Returns the key that looks like a misspelled `nodes`, in a workflow without steps.
fn near_nodes(document: &Node) -> Option<(&str, Place)> {
    let Value::Map(pairs) = &document.value else { return None };
    let mut keys = pairs.iter().filter_map(|(key, _)| Some((key.text()?, key.place)));
    let near = |key: &str| TOP.field(key).is_none() && nearest(key, ["nodes"]).is_some();
    keys.find(|(key, _)| near(key)).filter(|_| document.get("steps").is_none())
}

fn read_top(top: &Fields, version: Version, configured: &dyn Configured) -> Option<Plan> {
    let own = top.get("providers").map(|node| providers(top.findings, node, version));
    let reading = Reading {
        findings: top.findings,
        version,
        providers: own.unwrap_or_default().into(),
        configured,
    };
    let context = match top.get("context").map(|node| (node, node.to_json())) {
        Some((_, Json::Object(map))) => map,
        Some((node, _)) if !matches!(node.value, Value::Null) => {
            top.findings.error(node.place, format!("`context` must be a map, not {}", node.kind()));
            Map::new()
        }
        _ => Map::new(),
    };
    let dirs = read_dirs(top, &reading);
    let strict_flow = top.boolean("strict_flow").unwrap_or(true);
    let name = top.text("name").map(str::to_owned);
    let Some(steps) = top.get("steps") else {
        top.findings.error(top.node.place, "the workflow has no `steps`, and no `nodes` either");
        return None;
    };
    let mut root = read_block(&reading, steps, "`steps`", &Visible::default())?;
    flow::mark_agent_cycles(&mut root, strict_flow);
    references::check(top.findings, &root, steps, strict_flow, &context);
    let providers = reading.providers.into_inner();
    Some(Plan {
        dialect: Dialect::Steps,
        name,
        description: None,
        strict_flow,
        context,
        providers,
        dirs,
        root,
        exclusive: false,
        timeout: None,
    })
}

fn read_dirs(top: &Fields, reading: &Reading) -> Dirs {
    let usual = Dirs::default();
    let dir = |key: &str, default: String| match top.text(key) {
        Some(text) => {
            let place = top.get(key).map_or(top.node.place, |node| node.place);
            check::fixed_path(reading, text, place, &format!("`{key}`"));
            text.to_owned()
        }
        None => default,
    };
    let task_extension = top.text("task_extension").map(str::to_owned);
    let task_extension = task_extension.unwrap_or(usual.task_extension);
    if !task_extension.starts_with('.') || task_extension.contains('/') {
        let place = top.get("task_extension").map_or(top.node.place, |node| node.place);
        top.findings.error(place, "`task_extension` must begin with a dot and hold no slash");
    }
    Dirs {
        inbox: dir("inbox_dir", usual.inbox),
        processed: dir("processed_dir", usual.processed),
        failed: dir("failed_dir", usual.failed),
        task_extension,
    }
}

/// Reads a map of provider templates.
pub(super) fn providers(
    findings: &Findings,
    node: &Node,
    version: Version,
) -> BTreeMap<String, Provider> {
    let mut found = BTreeMap::new();
    for (name, body) in named_providers(findings, node) {
        if body.get("command").is_none() && matches!(body.value, Value::Map(_)) {
            findings.error(body.place, format!("provider `{name}` has no `command`"));
        }
        if let Some(provider) = read_provider(findings, name, body, version) {
            found.insert(name.to_owned(), provider);
        }
    }
    found
}

/// Returns the name and body of each provider in a map.
pub(super) fn named_providers<'a>(findings: &Findings, node: &'a Node) -> Vec<(&'a str, &'a Node)> {
    let Value::Map(pairs) = &node.value else {
        if !matches!(node.value, Value::Null) {
            findings.error(node.place, format!("`providers` must be a map, not {}", node.kind()));
        }
        return Vec::new();
    };
    let mut found = Vec::new();
    for (key, body) in pairs {
        let Some(name) = key.text() else {
            findings.error(key.place, "a provider's name must be text");
            continue;
        };
        if let Some(fault) = name_fault(name) {
            let message = format!("`{name}` cannot name a provider: {fault}");
            findings.add(check::unfit(message, name).at(key.place));
        }
        found.push((name, body));
    }
    found
}

/// Reads the fields that a provider has; `command` may be absent.
pub(super) fn read_provider(
    findings: &Findings,
    name: &str,
    node: &Node,
    version: Version,
) -> Option<Provider> {
    let fields = Fields::open(findings, node, format!("provider `{name}`"), &PROVIDER, version)?;
    let input = fields
        .choice("input_mode", &[("argv", InputMode::Argv), ("stdin", InputMode::Stdin)])
        .unwrap_or_default();
    let command = maps::command(&fields);
    if fields.list("command").is_some_and(<[_]>::is_empty) {
        findings.error(node.place, format!("`command` of provider `{name}` is empty"));
    }
    maps::program(&fields, fields.list("command").unwrap_or_default());
    let texts = fields.get("command").filter(|_| input == InputMode::Stdin).map(check::texts);
    for (text, place) in texts.unwrap_or_default() {
        let Ok(template) = Template::parse(text) else { continue };
        if let Some((_, at)) = template.placed().find(|(hole, _)| hole.raw == "PROMPT") {
            findings.add(
                Problem::error(format!(
                    "provider `{name}` takes its prompt on stdin, so `${{PROMPT}}` may not be in \
                     its command (invalid_prompt_placeholder)"
                ))
                .at(in_text(text, place, at))
                .hint("drop `${PROMPT}`, or write `input_mode: argv`"),
            );
        }
    }
    Some(Provider {
        command,
        input,
        defaults: params(&fields, "defaults"),
        adapter: fields.choice("adapter", &Kind::ALL).unwrap_or_default(),
        env: maps::env(&fields),
        env_pass: settings::variables(&fields, "env_pass").unwrap_or_default(),
        account: account(&fields),
        sandbox: sandbox::read(&fields, version),
        writes: sandbox::places(&fields, "writes").unwrap_or_default(),
    })
}

/// Reads `account`, which becomes the name of a file.
fn account(fields: &Fields) -> Option<String> {
    let name = fields.text("account")?;
    if let (Some(fault), Some(node)) = (name_fault(name), fields.get("account")) {
        let message = format!("`{name}` cannot name an account: {fault}");
        fields.findings.add(check::unfit(message, name).at(node.place));
    }
    Some(name.to_owned())
}

fn read_block(reading: &Reading, node: &Node, what: &str, outer: &Visible) -> Option<Block> {
    let findings = reading.findings;
    let Value::List(nodes) = &node.value else {
        findings.add(no_list(what, "step", node));
        return None;
    };
    if nodes.is_empty() {
        findings.error(node.place, format!("{what} has no step in it"));
    }
    let names = check::names(findings, nodes);
    let mut visible = outer.clone();
    visible.blocks.push(&names);
    visible.results = spells::outputs(findings, nodes, name_of, &outer.results);
    // One entry for each node, so that the indexes in `names` are valid for both lists.
    let steps: Vec<_> = nodes.iter().map(|node| read_step(reading, node, &visible)).collect();
    check::sources_of_items(findings, &names, &steps, nodes);
    let block = Block::sequence(whole(steps)?);
    check::fall_through(findings, &block, nodes);
    Some(block)
}

/// Returns the steps of a block, or `None` if one of them is unreadable, which is reported. A block
/// without that step would give other steps its index.
pub(super) fn whole(steps: Vec<Option<Step>>) -> Option<Vec<Step>> {
    steps.into_iter().collect()
}

fn name_of(node: &Node) -> Option<&str> {
    node.get("name").and_then(Node::text)
}

fn read_step(reading: &Reading, node: &Node, visible: &Visible) -> Option<Step> {
    let findings = reading.findings;
    let label = match name_of(node) {
        Some(name) => format!("step `{name}`"),
        None => "this step".to_owned(),
    };
    let fields = Fields::open(findings, node, label, &STEP, reading.version)?;
    let name = fields.text("name").unwrap_or_default().to_owned();
    let action = read_action(reading, &fields, visible);
    let depends = maps::depends(reading, &fields).unwrap_or_default();
    let input_file = maps::path(reading, &fields, "input_file");
    let step = Step {
        agent: fields.text("agent").map(str::to_owned),
        when: maps::when(reading, &fields),
        input_file,
        output: maps::output(reading, &fields),
        env: maps::env(&fields),
        secrets: maps::secrets(&fields),
        timeout: fields.seconds("timeout_sec", false),
        retries: maps::retries(reading, &fields),
        on: read_handlers(reading, &fields, visible),
        alias: spells::alias(&fields),
        bead: spells::bead(&fields),
        depends,
        ..Step::new(name, action?)
    };
    check_agent(&fields);
    check_idle_fields(&fields, &step);
    check::holes(findings, node, visible);
    Some(step)
}

pub(super) fn check_agent(fields: &Fields) {
    let Some(agent) = fields.get("agent").and_then(Node::text) else { return };
    let place = fields.get("agent").map_or(fields.node.place, |node| node.place);
    if let Some(fault) = name_fault(agent) {
        let message = format!("`{agent}` cannot name an agent: {fault}");
        fields.findings.add(check::unfit(message, agent).at(place));
    } else if agent == "coordinator" {
        let message = "`coordinator` is no agent that steps can go to: it drives runs";
        fields.findings.error(place, message);
    } else if let Some(other) = fields.findings.alike(agent) {
        // Both agents would share one inbox on a file system that ignores case.
        let message = format!("agents `{agent}` and `{other}` differ only in upper and lower case");
        fields.findings.error(place, message);
    }
}

/// Warns of fields that are known but have no effect on this kind of step.
fn check_idle_fields(fields: &Fields, step: &Step) {
    let (kind, idle): (&str, &[&str]) = match step.action {
        Action::Exec { .. } => ("command", &["input_file", "provider_params"]),
        Action::Prompt(_) => (
            "spell",
            &[
                "input_file",
                "output_capture",
                "allow_parse_error",
                "output_schema",
                "output_require",
            ],
        ),
        Action::Wait(_) | Action::Each(_) => (
            if matches!(step.action, Action::Wait(_)) { "wait_for" } else { "for_each" },
            &[
                "input_file",
                "provider_params",
                "output_file",
                "output_capture",
                "env",
                "allow_parse_error",
                "output_schema",
                "output_require",
                "timeout_sec",
                "retries",
            ],
        ),
        _ => return,
    };
    for key in idle.iter().filter(|key| fields.get(key).is_some()) {
        let place = fields.place_of_key(key);
        let message = format!("`{key}` of {} has no effect on a `{kind}` step", fields.what);
        fields.findings.warn(place, message);
    }
    if step.depends.inject.is_some() {
        let place = fields.place_of_key("depends_on");
        let message = format!("`inject` of {} has no effect: only `provider` has it", fields.what);
        fields.findings.warn(place, message);
    }
}

fn read_action(reading: &Reading, fields: &Fields, visible: &Visible) -> Option<Action> {
    let findings = reading.findings;
    let mut given: Vec<_> = FORMS.iter().filter(|key| fields.get(key).is_some()).collect();
    if fields.get("spell").is_some() {
        // A provider answers the spell, so the step may also name a `provider`.
        given.retain(|key| **key != "provider");
    } else {
        spells::tell_idle(fields);
    }
    match given.as_slice() {
        [] if misspelt(fields, FORMS) || is_foreign(fields) => return None,
        [] => {
            findings.add(
                Problem::error(format!("{} does nothing", fields.what))
                    .at(fields.node.place)
                    .hint("give it one of `command`, `provider`, `wait_for` or `for_each`"),
            );
            return None;
        }
        [_] => {}
        several => {
            let list: Vec<_> = several.iter().map(|key| format!("`{key}`")).collect();
            findings.add(
                Problem::error(format!(
                    "{} has {}, but a step does one thing",
                    fields.what,
                    list.join(" and ")
                ))
                .at(fields.place_of_key(several[1]))
                .hint("make a step of each"),
            );
        }
    }
    match *given[0] {
        "command" => read_command(fields),
        "provider" => read_ask(reading, fields),
        "spell" => read_spell(reading, fields),
        "wait_for" => maps::wait_for(reading, fields).map(Action::Wait),
        _ => read_each(reading, fields, visible).map(Action::Each),
    }
}

/// Returns true if an unknown key is so near to one of `words` that its own problem explains
/// everything.
fn misspelt(fields: &Fields, words: &[&str]) -> bool {
    let Value::Map(pairs) = &fields.node.value else { return false };
    let known = |key: &str| STEP.field(key).is_some();
    let near = |key: &str| nearest(key, words.iter().copied()).is_some();
    pairs.iter().filter_map(|(key, _)| key.text()).any(|key| !known(key) && near(key))
}

/// Returns true if a key defines the action of the step in another dialect; its own problem
/// explains it.
fn is_foreign(fields: &Fields) -> bool {
    let Value::Map(pairs) = &fields.node.value else { return false };
    pairs.iter().filter_map(|(key, _)| key.text()).any(dialects::does_something)
}

fn read_command(fields: &Fields) -> Option<Action> {
    let node = fields.get("command")?;
    if let Some(text) = node.text() {
        fields.findings.add(
            Problem::error(format!("`command` of {} must be a list of text", fields.what))
                .at(node.place)
                .hint(format!("for a shell write [\"bash\", \"-c\", {}]", Json::from(text))),
        );
        return None;
    }
    let list = fields.list("command")?;
    if list.is_empty() {
        fields.findings.error(node.place, format!("`command` of {} is empty", fields.what));
    }
    maps::program(fields, list);
    Some(Action::Exec { argv: fields.templates("command").into_iter().map(|(t, _)| t).collect() })
}

fn read_ask(reading: &Reading, fields: &Fields) -> Option<Action> {
    let provider = read_provider_of(reading, fields, fields.text("provider")?)?;
    check_params(reading, fields, &provider);
    Some(Action::Ask { provider, params: params(fields, "provider_params") })
}

/// Reads a step that sends a spell to a provider: the named one, or the default of the settings.
fn read_spell(reading: &Reading, fields: &Fields) -> Option<Action> {
    let repair = reading.configured.contract_repair();
    let spell = spells::read(fields, true, repair);
    let provider = match fields.get("provider") {
        Some(_) => fields.text("provider")?,
        None => reading.configured.default_provider(),
    };
    let provider = read_provider_of(reading, fields, provider)?;
    check_params(reading, fields, &provider);
    let params = params(fields, "provider_params");
    let (format, until) = (None, None);
    let words = Words::Spell(Box::new(spell?));
    Some(Action::Prompt(Prompt { words, provider, params, format, until, fresh: true }))
}

/// Returns the name of a provider that exists, or reports that it is missing.
fn read_provider_of(reading: &Reading, fields: &Fields, provider: &str) -> Option<String> {
    let findings = reading.findings;
    let provider = provider.to_owned();
    if !reading.knows_provider(&provider) {
        let place = fields.get("provider").map_or(fields.node.place, |node| node.place);
        let problem = Problem::error(format!(
            "{} asks the provider `{provider}`, but there is none of that name",
            fields.what
        ))
        .at(place);
        let own = reading.providers.borrow();
        let known = own.keys().chain(reading.configured.providers().keys()).map(String::as_str);
        let problem = suggest(problem, &provider, known);
        findings.add(if problem.hint.is_none() {
            problem.hint("define it under `providers:`")
        } else {
            problem
        });
    }
    Some(provider)
}

/// Warns of parameters, in a step or in the settings, that an agent's command has no place for:
/// most are misspelled, and an unsupported limit would not be enforced. Checks only providers whose
/// adapter reads a stream; other providers may ignore parameters.
fn check_params(reading: &Reading, fields: &Fields, name: &str) {
    let providers = reading.providers.borrow();
    let Some(provider) = providers.get(name).filter(|known| known.adapter.is_stream()) else {
        return;
    };
    let of_step = match fields.get("provider_params").map(|node| &node.value) {
        Some(Value::Map(pairs)) => pairs.iter().collect(),
        _ => Vec::new(),
    };
    let of_step = of_step.iter().filter_map(|(key, _)| Some((key.text()?, key.place)));
    let place = fields.get("provider").map_or(fields.node.place, |node| node.place);
    let defaults = provider.defaults.keys().map(|key| (key.as_str(), place));
    for (key, place) in of_step.chain(defaults) {
        if !provider.places().any(|known| known == key) {
            let what = match key.starts_with("max_") {
                true => "cannot keep the limit",
                false => "has no place for the parameter",
            };
            let message = format!("provider `{name}` of {} {what} `{key}`", fields.what);
            let problem = Problem::warning(message).at(place).lint(lint::UNUSED_PARAMETER);
            fields.findings.add(problem.hint(meant(provider, key)));
        }
    }
}

/// Returns a hint: the parameter that was probably meant, or the parameters that the provider has.
fn meant(provider: &Provider, key: &str) -> String {
    const OURS: [&str; 9] =
        ["PROMPT", "session", "resume", "fork", "run", "context", "steps", "loop", "item"];
    let known: BTreeSet<&str> = provider.places().filter(|name| !OURS.contains(name)).collect();
    let begins = || known.iter().copied().find(|name| name.starts_with(key));
    match nearest(key, known.iter().copied()).or_else(begins) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "it has no parameters".into(),
        None => {
            let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            format!("it is ignored; there is {}", known.join(", "))
        }
    }
}

/// Reads parameters of a provider: a map whose strings, at any depth, are templates.
fn params(fields: &Fields, key: &str) -> BTreeMap<String, Param> {
    match fields.get(key).map(|node| (node, &node.value)) {
        None | Some((_, Value::Null)) => BTreeMap::new(),
        Some((_, Value::Map(pairs))) => pairs
            .iter()
            .filter_map(|(key, value)| {
                Some((key.text()?.to_owned(), param(fields.findings, value)))
            })
            .collect(),
        Some((node, _)) => {
            let message = format!("`{key}` of {} must be a map, not {}", fields.what, node.kind());
            fields.findings.error(node.place, message);
            BTreeMap::new()
        }
    }
}

/// Converts all strings in a value to templates.
fn param(findings: &Findings, node: &Node) -> Param {
    match &node.value {
        Value::Text(text) => {
            Param::Text(parse_template(findings, text, node.place).unwrap_or_default())
        }
        Value::List(items) => Param::List(items.iter().map(|item| param(findings, item)).collect()),
        Value::Map(pairs) => Param::Map(
            pairs
                .iter()
                .filter_map(|(key, value)| Some((key.text()?.to_owned(), param(findings, value))))
                .collect(),
        ),
        _ => Param::Fixed(node.to_json()),
    }
}

fn read_each(reading: &Reading, fields: &Fields, visible: &Visible) -> Option<Each> {
    let findings = reading.findings;
    let what = format!("`for_each` of {}", fields.what);
    let each = Fields::open(findings, fields.get("for_each")?, what, &FOR_EACH, reading.version)?;
    let items = match (each.get("items_from"), each.get("items")) {
        (Some(_), Some(node)) => {
            let message = format!("{} has both `items` and `items_from`", each.what);
            findings.error(node.place, message);
            None
        }
        (None, None) => {
            let message = format!("{} has neither `items` nor `items_from`", each.what);
            findings.error(each.node.place, message);
            None
        }
        (Some(node), None) => each.text("items_from").and_then(|text| {
            let hole = pointer(text, visible);
            if hole.is_none() {
                findings.add(
                    Problem::error(format!("`items_from` of {} is `{text}`", each.what))
                        .at(node.place)
                        .hint("write `steps.<Name>.lines` or `steps.<Name>.json[.<path>]`"),
                );
            }
            let nobody =
                hole.as_ref().and_then(|hole| check::items_of_nobody(&each.what, hole, visible));
            if let Some(problem) = nobody {
                findings.add(problem.at(node.place));
            }
            hole.map(Items::From)
        }),
        (None, Some(_)) => each
            .list("items")
            .map(|items| Items::Literal(items.iter().map(|item| param(findings, item)).collect())),
    };
    let alias = read_alias(&each);
    let (on_success, on_failure) = maps::on_item_complete(reading, &each);
    if on_success.is_some() || on_failure.is_some() {
        check::no_step_named_lifecycle(&each);
    }
    let mut inner = visible.clone();
    inner.aliases.push(alias.clone());
    let block = match each.get("steps") {
        Some(node) => read_block(reading, node, &format!("`steps` of {}", fields.what), &inner),
        None => {
            findings.error(each.node.place, format!("{} has no `steps`", each.what));
            None
        }
    }?;
    Some(Each { items: items?, alias, block, on_success, on_failure })
}

fn read_alias(each: &Fields) -> String {
    const TAKEN: [&str; 6] = ["run", "loop", "steps", "context", "env", "PROMPT"];
    let alias = each.text("as").unwrap_or("item");
    let word = alias.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && alias.bytes().next().is_some_and(|b| !b.is_ascii_digit());
    let place = each.get("as").map_or(each.node.place, |node| node.place);
    if !word {
        let message = "`as` must be a word of letters, digits and `_`";
        each.findings.error(place, format!("{message}, not `{alias}`"));
    } else if TAKEN.contains(&alias) {
        each.findings.error(place, format!("`as` cannot be `{alias}`: that name is taken"));
    }
    alias.to_owned()
}

/// Reads `steps.<Name>.lines` or `steps.<Name>.json[.path]`.
fn pointer(text: &str, visible: &Visible) -> Option<Hole> {
    let rest = text.strip_prefix("steps.")?;
    let known = visible.blocks.iter().flat_map(|names| names.by_name.keys());
    let name = known
        .filter(|name| rest.strip_prefix(name.as_str()).is_some_and(|r| r.starts_with('.')))
        .max_by_key(|name| name.len())
        .map_or_else(|| rest.split('.').next().unwrap_or_default(), String::as_str);
    let field = rest.strip_prefix(name)?.strip_prefix('.')?;
    let shaped = field == "lines" || field == "json" || field.starts_with("json.");
    let plain = !text.contains(['$', '{', '*', '[', ' ']) && !field.split('.').any(str::is_empty);
    (shaped && plain && !name.is_empty()).then(|| Hole::new(text))
}

fn read_handlers(reading: &Reading, fields: &Fields, visible: &Visible) -> Handlers {
    let Some(node) = fields.get("on") else { return Handlers::default() };
    let what = format!("`on` of {}", fields.what);
    let Some(on) = Fields::open(reading.findings, node, what, &ON, reading.version) else {
        return Handlers::default();
    };
    let target = |key: &str| {
        let what = format!("`on.{key}` of {}", fields.what);
        let node = on.get(key)?;
        let handler = Fields::open(reading.findings, node, what, &GOTO, reading.version)?;
        if handler.get("goto").is_none() {
            reading.findings.error(node.place, format!("{} has no `goto`", handler.what));
        }
        let name = handler.text("goto")?;
        resolve_goto(reading.findings, fields, name, handler.get("goto")?.place, visible)
    };
    Handlers { success: target("success"), failure: target("failure"), always: target("always") }
}

fn resolve_goto(
    findings: &Findings,
    fields: &Fields,
    name: &str,
    place: Place,
    visible: &Visible,
) -> Option<Target> {
    if name == "_end" {
        return Some(Target::End);
    }
    let found = visible
        .blocks
        .iter()
        .rev()
        .enumerate()
        .find_map(|(out, names)| Some(Target::Step { out, step: *names.by_name.get(name)? }));
    if found.is_none() {
        let inside = visible.blocks.iter().any(|names| names.nested.contains(name));
        let problem = Problem::error(format!(
            "{} goes to `{name}`, but {}",
            fields.what,
            if inside { "that step is inside a loop" } else { "no step has that name" }
        ))
        .at(place);
        let known = visible.blocks.iter().flat_map(|names| names.by_name.keys());
        findings.add(if inside {
            problem.hint("go to the loop itself")
        } else {
            suggest(problem, name, known.map(String::as_str).chain(["_end"]))
        });
    }
    found
}
