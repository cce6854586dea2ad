//! The `sandbox` setting of agents and providers: restrictions on a child process.
//!
//! A level, or a map for more:
//!
//! ```yaml
//! sandbox: read-only
//! sandbox: { level: workspace, write: ["~/.cache"], read: [], network: false }
//! ```
//!
//! **Invariant:** a sandbox only removes permissions. If several apply to one child process, it has
//! only the permissions that all of them leave.

use serde::{Deserialize, Serialize};

use super::plan::Version;
use super::schema::settings::SANDBOX;
use crate::workflow::fields::{Fields, Findings};
use crate::yaml::{Node, Value};

/// Restrictions on a child process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    #[serde(default)]
    pub level: Level,
    /// Additional paths that it may write to; `~` is the home of the user that starts it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write: Vec<String>,
    /// The only paths that it may read, in addition to programs, the workspace, and its writable
    /// paths. `None` permits all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Vec<String>>,
    #[serde(default = "yes")]
    pub network: bool,
}

fn yes() -> bool {
    true
}

impl Default for Sandbox {
    fn default() -> Self {
        Sandbox { level: Level::None, write: Vec::new(), read: None, network: true }
    }
}

impl Sandbox {
    /// Returns true if the sandbox restricts anything.
    pub(crate) fn limits(&self) -> bool {
        self.limits_files() || !self.network
    }

    pub(crate) fn limits_files(&self) -> bool {
        self.level != Level::None || self.read.is_some()
    }
}

/// The places that a child process may write to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Level {
    /// Everywhere that its user may.
    #[default]
    None,
    /// Only a folder of its own for temporary files.
    ReadOnly,
    /// Also its working directory and the artifacts.
    Workspace,
}

pub(super) const LEVELS: [(&str, Level); 3] =
    [("none", Level::None), ("read-only", Level::ReadOnly), ("workspace", Level::Workspace)];

/// Reads the `sandbox` of an agent or a provider.
pub(super) fn read(fields: &Fields, version: Version) -> Option<Sandbox> {
    let node = fields.get("sandbox")?;
    if let Value::Map(_) = node.value {
        return read_map(fields.findings, node, version);
    }
    let level = fields.choice("sandbox", &LEVELS)?;
    Some(Sandbox { level, ..Sandbox::default() })
}

fn read_map(findings: &Findings, node: &Node, version: Version) -> Option<Sandbox> {
    let fields = Fields::open(findings, node, "`sandbox`", &SANDBOX, version)?;
    let sandbox = Sandbox {
        level: fields.choice("level", &LEVELS).unwrap_or_default(),
        write: places(&fields, "write").unwrap_or_default(),
        read: places(&fields, "read"),
        network: fields.boolean("network").unwrap_or(true),
    };
    if sandbox.level == Level::None && !sandbox.write.is_empty() {
        let place = fields.place_of_key("write");
        findings.error(place, "`write` needs a `level`: without one everything may be written");
    }
    Some(sandbox)
}

pub(super) fn places(fields: &Fields, key: &str) -> Option<Vec<String>> {
    let texts = fields.texts(key)?;
    for (path, place) in &texts {
        if let Some(fault) = place_fault(path) {
            fields.findings.error(*place, format!("`{path}` is no place: {fault}"));
        }
    }
    Some(texts.into_iter().map(|(path, _)| path.to_owned()).collect())
}

fn place_fault(path: &str) -> Option<&'static str> {
    let anchored = path.starts_with('/') || path == "~" || path.starts_with("~/");
    if path.is_empty() || path.contains('\0') {
        return Some("it is empty, or holds a zero byte");
    }
    if path.split('/').any(|part| part == "..") {
        return Some("`..` could lead anywhere");
    }
    // A relative path would differ between a worktree and the workspace.
    (!anchored).then_some("it must begin with `/` or `~/`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::read_config;

    fn of(text: &str) -> Result<Option<Sandbox>, String> {
        let layer = read_config(&format!("agents:\n  qa: {{ sandbox: {text} }}\n"));
        let mut layer = layer.map_err(|problems| problems[0].message.clone())?;
        Ok(layer.agents.remove("qa").and_then(|agent| agent.sandbox))
    }

    #[test]
    fn a_word_or_a_map() {
        let found = of("read-only").unwrap().unwrap();
        assert_eq!((found.level, found.network, found.read), (Level::ReadOnly, true, None));
        assert!(!of("none").unwrap().unwrap().limits());
        let found = of("{ level: workspace, write: ['~/.cache'], read: [], network: false }");
        let found = found.unwrap().unwrap();
        assert_eq!(found.write, ["~/.cache"]);
        assert_eq!((found.read.as_deref(), found.network), (Some(&[][..]), false));
        let found = of("{ network: false }").unwrap().unwrap();
        assert!(found.limits() && !found.limits_files());
        assert_eq!(serde_json::from_str::<Sandbox>("{}").unwrap(), Sandbox::default());
    }

    #[test]
    fn what_cannot_hold_is_refused() {
        for (text, said) in [
            ("strict", "must be `none` or `read-only` or `workspace`"),
            ("{ levle: none }", "no field `levle`"),
            ("{ write: [/x] }", "needs a `level`"),
            ("{ level: read-only, write: [x] }", "must begin with"),
            ("{ read: ['~/../x'] }", "could lead anywhere"),
            ("{ network: maybe }", "network"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
