//! Fields that limit or extend the tools of an agent: `allowed_tools`, `denied_tools`, `hooks`,
//! `sandbox`, `mcp`, `skills` and `maxBudgetUsd`.
//!
//! Each becomes a parameter of the provider's command. A provider supports a field if its command
//! has a place for that parameter. **Invariant:** a limit is passed on or rejected, never ignored.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::keys::{self as keys, Level};
use crate::workflow::Configured;
use crate::workflow::fields::Fields;
use crate::workflow::plan::Param;
use crate::workflow::schema::nodes::HOOK_EVENTS;
use crate::yaml::problem::{Place, Problem};
use crate::yaml::{Node, Value};

/// Each field, and the parameter that it becomes.
pub(crate) const FIELDS: [(&str, &str); 7] = [
    ("allowed_tools", "allowed_tools"),
    ("denied_tools", "denied_tools"),
    ("hooks", SETTINGS),
    ("sandbox", SETTINGS),
    ("mcp", MCP),
    ("skills", "skills"),
    ("maxBudgetUsd", "max_budget_usd"),
];

/// The parameter that names a file of MCP servers.
pub(crate) const MCP: &str = "mcp";

/// The parameter that has the settings of the agent's program, as a JSON object.
const SETTINGS: &str = "settings";

/// The value of `allowed_tools` that allows no tool. An empty value would omit the option.
const NO_TOOL: &str = "none";

/// Reads the limits of a node, by parameter name. `sandbox` is that of the workflow, for a node
/// without its own.
pub(crate) fn read(fields: &Fields, sandbox: Option<&Json>) -> BTreeMap<String, Param> {
    let list = |key: &str| {
        let texts = fields.texts(key)?;
        check_names(fields, key, &texts);
        Some(texts.iter().map(|(text, _)| *text).collect::<Vec<_>>().join(","))
    };
    let some = |text: &String| !text.is_empty();
    let none = || NO_TOOL.to_owned();
    let values = [
        (
            "allowed_tools",
            list("allowed_tools").map(|tools| Some(tools).filter(some).unwrap_or_else(none)),
        ),
        ("denied_tools", list("denied_tools").filter(some)),
        (SETTINGS, settings(fields, sandbox)),
        (MCP, fields.optional("mcp").map(str::to_owned)),
        ("skills", list("skills").filter(some)),
        ("max_budget_usd", budget(fields)),
    ];
    values
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), Param::Fixed(Json::String(value?)))))
        .collect()
}

/// Returns the settings of the agent's program: the hooks and the sandbox.
fn settings(fields: &Fields, of_all: Option<&Json>) -> Option<String> {
    let sandbox = match fields.get("sandbox") {
        Some(_) => sandbox(fields),
        None => of_all.cloned(),
    };
    let parts = [("hooks", hooks(fields)), ("sandbox", sandbox)];
    let settings: Map<String, Json> =
        parts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    (!settings.is_empty()).then(|| Json::Object(settings).to_string())
}

/// Reads `sandbox` of a node or of the workflow. `None` if there is none, or if it is switched off.
pub(crate) fn sandbox(fields: &Fields) -> Option<Json> {
    let node = fields.get("sandbox")?;
    if !matches!(node.value, Value::Map(_)) {
        let message = format!("`sandbox` of {} must be a map, not {}", fields.what, node.kind());
        fields.findings.error(node.place, message);
        return None;
    }
    Some(node.to_json()).filter(|sandbox| sandbox["enabled"] != Json::Bool(false))
}

fn check_names(fields: &Fields, key: &str, texts: &[(&str, Place)]) {
    for (text, place) in texts {
        let what = &fields.what;
        if text.trim().is_empty() {
            fields.findings.error(*place, format!("`{key}` of {what} has an empty name in it"));
        } else if key == "allowed_tools" && text.contains(['(', ')', ',', ' ', '\t', '\n']) {
            let message = format!("`{text}` in `{key}` of {what} is not the name of a tool");
            let hint = "a tool is allowed as a whole, such as `Bash`; `denied_tools` may forbid a \
                        part of it, such as `Bash(git push *)`";
            fields.findings.add(Problem::error(message).at(*place).hint(hint));
        }
    }
}

fn budget(fields: &Fields) -> Option<String> {
    let node = fields.get("maxBudgetUsd")?;
    match &node.value {
        Value::Number(number) if number.as_f64().is_some_and(|usd| usd > 0.0) => {
            Some(number.to_string())
        }
        _ => {
            let message = format!("`maxBudgetUsd` of {} must be a number above 0", fields.what);
            fields.findings.error(node.place, message);
            None
        }
    }
}

/// Returns the hooks as settings, in which each fixed response is the output of a command.
fn hooks(fields: &Fields) -> Option<Json> {
    let node = fields.get("hooks")?;
    let Value::Map(pairs) = &node.value else {
        let message = format!("`hooks` of {} must be a map, not {}", fields.what, node.kind());
        fields.findings.error(node.place, message);
        return None;
    };
    let mut events = Map::new();
    for (key, value) in pairs {
        let event = key.text().unwrap_or_default();
        if !HOOK_EVENTS.contains(&event) {
            let message = format!("`hooks` of {} has no event `{event}`", fields.what);
            let known = format!("the events are {}", HOOK_EVENTS.join(", "));
            fields.findings.add(Problem::error(message).at(key.place).hint(known));
            continue;
        }
        let Value::List(items) = &value.value else {
            let what = &fields.what;
            let message = format!("`{event}` of `hooks` of {what} must be a list");
            fields.findings.error(value.place, message);
            continue;
        };
        let hooks: Vec<Json> = items.iter().filter_map(|item| hook(fields, event, item)).collect();
        events.insert(event.to_owned(), Json::Array(hooks));
    }
    (!events.is_empty()).then_some(Json::Object(events))
}

/// Reads one `{matcher, response, timeout}`.
fn hook(fields: &Fields, event: &str, item: &Node) -> Option<Json> {
    let what = format!("a hook of `{event}` of {}", fields.what);
    let hook = keys::open(fields.findings, item, what, &[Level::Hook])?;
    let response = match hook.get("response") {
        Some(Node { value: Value::Map(_), .. }) => hook.get("response")?.to_json(),
        found => {
            let place = found.map_or(item.place, |node| node.place);
            let message = format!("`response` of {} must be a map", hook.what);
            hook.findings.error(place, message);
            return None;
        }
    };
    let timeout = hook.integer("timeout", 1, 3_600);
    let mut run = json!({ "type": "command", "command": prints(&response.to_string()) });
    if let Some(seconds) = timeout {
        run["timeout"] = json!(seconds);
    }
    let mut entry = json!({ "hooks": [run] });
    if let Some(matcher) = hook.text("matcher") {
        entry["matcher"] = json!(matcher);
    }
    Some(entry)
}

/// Returns a shell command that prints a text.
fn prints(text: &str) -> String {
    format!("printf %s '{}'", text.replace('\'', "'\\''"))
}

/// Rejects the `limits` that a provider has no place for. An unknown provider is reported
/// elsewhere.
pub(crate) fn check(
    fields: &Fields,
    limits: &BTreeMap<String, Param>,
    name: &str,
    configured: &dyn Configured,
) {
    let providers = configured.providers();
    let Some(provider) = providers.get(name) else { return };
    for (field, parameter) in FIELDS {
        let supported = provider.places().any(|place| place == parameter);
        // `hooks` and `sandbox` share a parameter. The workflow's `sandbox` is not in the node.
        let given = |field: &str| fields.get(field).is_some();
        let present = given(field) || (field == "sandbox" && !given("hooks"));
        if supported || !present || !limits.contains_key(parameter) {
            continue;
        }
        let having: Vec<_> = providers
            .iter()
            .filter(|(_, other)| other.places().any(|place| place == parameter))
            .map(|(name, _)| format!("`{name}`"))
            .collect();
        let message = format!("`{field}` of {} is not supported by provider `{name}`", fields.what);
        let place = fields.place_of_key(field);
        let own = format!("a provider supports it if its command has a `${{{parameter}}}`");
        let hint = match having.as_slice() {
            [] => format!("no provider in the settings supports it; {own}"),
            names => format!("{} supports it; {own}", names.join(", ")),
        };
        fields.findings.add(Problem::error(message).at(place).hint(hint));
    }
}
