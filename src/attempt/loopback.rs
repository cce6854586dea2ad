//! Points a provider at a server on this machine and at nothing else: neither the user's settings
//! nor the user's login may direct a test elsewhere, and no key may be sent.

use std::path::Path;

use serde_json::{Value, json};

use super::exec_env::Environment;
use crate::agent::Kind;
use crate::disk::fs;

/// The model that opencode uses in a test, as the test's settings name it.
pub(crate) const MODEL: &str = "test/test";
/// An address without a listener: requests to other machines fail here.
const NOWHERE: &str = "http://127.0.0.1:9";
/// Placeholder for a key.
const KEY: &str = "orchestrate-test";
/// Prefixes of variables with which users choose a service, an account or a directory.
const CHOICES: [&str; 9] = [
    "ANTHROPIC_",
    "CLAUDE_",
    "CLOUD_ML_",
    "VERTEX_",
    "AWS_",
    "OPENAI_",
    "CODEX_",
    "GEMINI_",
    "GOOGLE_",
];
const PROXIES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];

/// A variable and its value, or a file and its text.
type Named = (&'static str, String);

/// The environment that points a provider at a server.
#[derive(Default)]
pub(crate) struct Pointed {
    pub env: Vec<(String, String)>,
}

impl Pointed {
    /// Points a provider at a server, with separate settings in a separate directory. The error is
    /// one sentence.
    pub(crate) fn at(server: &str, kind: Kind, dir: &Path) -> Result<Pointed, String> {
        if server.is_empty() {
            return Ok(Pointed::default());
        }
        let home = dir.join("home");
        let (variables, file): (Vec<Named>, Option<Named>) = match kind {
            Kind::Claude => (
                vec![
                    ("ANTHROPIC_BASE_URL", server.to_owned()),
                    ("ANTHROPIC_API_KEY", KEY.to_owned()),
                    ("CLAUDE_CONFIG_DIR", home.display().to_string()),
                ],
                None,
            ),
            Kind::Codex => (
                vec![
                    ("CODEX_HOME", home.display().to_string()),
                    ("ORCHESTRATE_TEST_KEY", KEY.to_owned()),
                ],
                Some(("config.toml", codex(&versioned(server)))),
            ),
            Kind::Gemini => (
                vec![
                    ("GEMINI_CLI_HOME", home.display().to_string()),
                    ("GOOGLE_GEMINI_BASE_URL", server.to_owned()),
                    ("GEMINI_API_KEY", KEY.to_owned()),
                ],
                Some((".gemini/settings.json", gemini().to_string())),
            ),
            Kind::OpenCode => {
                let folders = ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"];
                let folders = folders.into_iter().chain(["XDG_CACHE_HOME"]);
                let mut variables: Vec<Named> =
                    folders.map(|name| (name, home.join(name).display().to_string())).collect();
                let settings = opencode(&versioned(server)).to_string();
                variables.push(("OPENCODE_CONFIG_CONTENT", settings));
                variables.push(("OPENCODE_DISABLE_MODELS_FETCH", "1".to_owned()));
                (variables, None)
            }
            Kind::Plain => return Err("nobody knows how it is pointed at a server".to_owned()),
        };
        fs::create_dir_all(&home).map_err(|error| error.to_string())?;
        if let Some((name, text)) = file {
            let path = home.join(name);
            let parent = path.parent().unwrap_or(&home);
            fs::create_dir_all(parent).map_err(|error| error.to_string())?;
            fs::write(&path, text).map_err(|error| error.to_string())?;
        }
        let proxies = PROXIES.iter().map(|name| (*name, NOWHERE.to_owned()));
        let here = ["NO_PROXY", "no_proxy"].map(|name| (name, "127.0.0.1,localhost,::1".into()));
        let all = variables.into_iter().chain(proxies).chain(here);
        Ok(Pointed { env: all.map(|(name, value)| (name.to_owned(), value)).collect() })
    }

    /// Returns the variables that a provider in a test does not inherit. Empty if no server is set.
    pub(crate) fn hidden(&self, environment: &Environment) -> Vec<String> {
        let chosen = |name: &&String| {
            name.starts_with("OPENCODE_") || CHOICES.iter().any(|start| name.starts_with(start))
        };
        match self.env.is_empty() {
            true => Vec::new(),
            false => environment.keys().filter(chosen).cloned().collect(),
        }
    }
}

/// Returns the address of the API, with the version that services of this kind expect.
fn versioned(server: &str) -> String {
    if server.ends_with("/v1") { server.to_owned() } else { format!("{server}/v1") }
}

/// Codex reads no variable for its server: a service in its settings file is the only way.
fn codex(server: &str) -> String {
    let server = Value::from(server);
    format!(
        "model_provider = \"test\"\n\n[model_providers.test]\nname = \"test\"\n\
         base_url = {server}\nenv_key = \"ORCHESTRATE_TEST_KEY\"\nwire_api = \"responses\"\n\
         request_max_retries = 0\nstream_max_retries = 0\n"
    )
}

fn gemini() -> Value {
    json!({
        "security": { "auth": { "selectedType": "gemini-api-key" } },
        "privacy": { "usageStatisticsEnabled": false },
        "general": { "enableAutoUpdate": false, "maxAttempts": 1 },
    })
}

fn opencode(server: &str) -> Value {
    let options = json!({ "baseURL": server, "apiKey": KEY });
    let limit = json!({ "context": 100_000, "output": 8192 });
    json!({
        "autoupdate": false, "share": "disabled", "enabled_providers": ["test"],
        "model": MODEL, "small_model": MODEL,
        "provider": { "test": {
            "npm": "@ai-sdk/openai-compatible", "name": "test", "options": options,
            "models": { "test": { "name": "test", "limit": limit } },
        } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_pointed_at_one_server_alone() {
        let dir = tempfile::tempdir().unwrap();
        let environment: Environment =
            ["PATH", "HOME", "OPENAI_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "OPENCODE_CONFIG"]
                .map(|name| (name.to_owned(), "x".into()))
                .into();
        for (_, kind) in Kind::ALL.into_iter().filter(|(_, kind)| kind.is_stream()) {
            let pointed = Pointed::at("http://127.0.0.1:1/s", kind, dir.path()).unwrap();
            let hidden = pointed.hidden(&environment);
            assert_eq!(hidden, ["CLAUDE_CODE_USE_BEDROCK", "OPENAI_API_KEY", "OPENCODE_CONFIG"]);
            let value = |name: &str| pointed.env.iter().find(|(key, _)| key == name).cloned();
            assert_eq!(value("HTTPS_PROXY").unwrap().1, NOWHERE, "nothing leaves the machine");
        }
        let settings = fs::read_to_string(dir.path().join("home/config.toml")).unwrap();
        assert!(settings.contains("base_url = \"http://127.0.0.1:1/s/v1\""), "{settings}");
        assert_eq!(versioned("http://localhost/v1"), "http://localhost/v1");
        assert!(Pointed::at("http://127.0.0.1:1", Kind::Plain, dir.path()).is_err());
        assert!(Pointed::at("", Kind::Plain, dir.path()).unwrap().hidden(&environment).is_empty());
    }
}
