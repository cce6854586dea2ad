//! The MCP servers of a node: converts the file that the node names to one that `claude` reads.

use serde_json::{Map, Value, json};

use super::{Preparing, Refusal};
use crate::base::digest::sha256;

impl Preparing<'_> {
    /// Writes the servers of a file in the workspace into the run's directory. Returns the path of
    /// the copy.
    pub(super) fn mcp_servers(&self, path: &str) -> Result<String, Refusal> {
        let wrong = |why: String| Refusal::new(format!("`mcp` names `{path}`: {why}"));
        let text = self.site.workspace.read_text(path, self.site.input_bytes);
        let text = text.map_err(wrong)?.ok_or_else(|| wrong("there is no such file".into()))?;
        let read = serde_json::from_str::<Map<String, Value>>(&text);
        let servers = read.map_err(|error| wrong(format!("it is no JSON object: {error}")))?;
        let config = config(servers).to_string();
        let copy = format!("values/{}.json", &sha256(config.as_bytes())[..32]);
        self.leave(&copy, &config)?;
        Ok(format!("{}/{copy}", self.root))
    }
}

/// Wraps a map of servers in `mcpServers`, unless it is wrapped already. Rewrites environment
/// variables of the form `$NAME` to `${NAME}`.
fn config(mut servers: Map<String, Value>) -> Value {
    let mut servers = match servers.remove("mcpServers") {
        Some(inner) => inner,
        None => Value::Object(servers),
    };
    for server in servers.as_object_mut().into_iter().flat_map(Map::values_mut) {
        for key in ["env", "headers"] {
            let values = server.get_mut(key).and_then(Value::as_object_mut);
            for value in values.into_iter().flat_map(Map::values_mut) {
                if let Value::String(text) = value {
                    *text = braced(text);
                }
            }
        }
    }
    json!({ "mcpServers": servers })
}

/// Puts braces around the names of variables.
fn braced(text: &str) -> String {
    let in_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let name = &after[..after.find(|c| !in_name(c)).unwrap_or(after.len())];
        let named = name.starts_with(|c: char| !c.is_ascii_digit());
        out.push_str(&if named { format!("${{{name}}}") } else { format!("${name}") });
        rest = &after[name.len()..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_wrapped_and_variables_braced() {
        let read = |value: Value| config(value.as_object().unwrap().clone());
        let server = |text: &str| {
            let env = json!({ "T": text, "N": 1 });
            json!({ "gh": { "command": "npx", "args": ["$A"], "env": env } })
        };
        let wanted = json!({ "mcpServers": server("${TOKEN}") });
        assert_eq!(read(server("$TOKEN")), wanted);
        assert_eq!(read(json!({ "mcpServers": server("${TOKEN}") })), wanted);
        for (text, wanted) in [
            ("Bearer $T.x", "Bearer ${T}.x"),
            ("$A$B", "${A}${B}"),
            ("$ $1 ${C:-d} $", "$ $1 ${C:-d} $"),
            ("", ""),
        ] {
            assert_eq!(braced(text), wanted, "{text}");
        }
    }
}
