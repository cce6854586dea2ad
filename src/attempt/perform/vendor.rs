//! Prevents opencode from sending a prompt to its own vendor. Without a login, opencode uses a
//! model of opencode.ai that the user did not choose. A user who wants the vendor sets `model:
//! opencode/…` or logs in.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::agent::Kind;
use crate::attempt::exec_env::Site;
use crate::attempt::work::Work;
use crate::disk::fs;

/// Variable with settings that opencode merges over those of its files.
const CONTENT: &str = "OPENCODE_CONFIG_CONTENT";
/// opencode's name for its vendor.
const VENDOR: &str = "opencode";
/// Maximum size of a settings file that is read.
const SETTINGS_BYTES: u64 = 4 << 20;

/// Returns the variable that stops opencode from using its vendor, or `None` if the user chose the
/// vendor. The error states what the user must do, because opencode has no usable provider.
pub(super) fn guard(
    site: &Site,
    work: &Work,
    cwd: &Path,
) -> Result<Option<(String, OsString)>, String> {
    if work.adapter != Kind::OpenCode || !starts_opencode(&work.argv) {
        return Ok(None);
    }
    let here = Here { site, work, cwd };
    let model = here.model();
    let settings = here.settings();
    let login = here.login();
    let names_vendor = settings.iter().any(|text| text.contains(&format!("\"{VENDOR}\"")));
    let chosen = model.is_some_and(|model| model.starts_with(&format!("{VENDOR}/")))
        || login.contains_key(VENDOR)
        || here.variable("OPENCODE_API_KEY").is_some()
        || names_vendor;
    if chosen {
        return Ok(None);
    }
    let has_provider = settings.iter().any(|text| text.contains("\"provider\""));
    if model.is_none() && login.is_empty() && !has_provider && !here.has_key() {
        return Err(format!(
            "opencode is not logged in, and would send the prompt to its own vendor: log in \
             (`opencode auth login`), or name a `model`; `model: {VENDOR}/…` if you want the vendor"
        ));
    }
    let content = here.variable(CONTENT).unwrap_or_else(|| "{}".into());
    let Ok(Value::Object(mut content)) = serde_json::from_str(&content) else { return Ok(None) };
    if content.get("provider").is_none_or(|provider| !provider.is_object()) {
        content.insert("provider".into(), json!({}));
    }
    content["provider"][VENDOR] = json!({ "whitelist": [] });
    Ok(Some((CONTENT.into(), Value::Object(content).to_string().into())))
}

/// Returns true if a command starts opencode, also through a launcher (`npx opencode-ai run`, `env
/// A=b opencode run`). Any other program that uses the opencode adapter is the user's own.
fn starts_opencode(argv: &[String]) -> bool {
    let launched = argv.iter().take_while(|argument| *argument != "run");
    let name = |argument: &String| Path::new(argument).file_name()?.to_str().map(str::to_owned);
    launched.filter_map(name).any(|name| {
        // A package may have a version: `opencode-ai@latest`.
        matches!(name.split('@').next(), Some("opencode" | "opencode-ai"))
    })
}

/// The directory and environment in which opencode starts.
struct Here<'a> {
    site: &'a Site,
    work: &'a Work,
    cwd: &'a Path,
}

impl Here<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        let own = self.work.env.iter().rev().find(|(key, _)| key == name);
        let own = own.map(|(_, value)| value.clone());
        let inherited = || self.site.environment.get(name)?.to_str().map(str::to_owned);
        own.or_else(inherited).filter(|value| !value.is_empty())
    }

    /// Returns the model in its command line.
    fn model(&self) -> Option<&str> {
        let argv = &self.work.argv;
        let at = argv.iter().position(|argument| argument == "-m" || argument == "--model");
        let joined = || argv.iter().find_map(|argument| argument.strip_prefix("--model="));
        at.and_then(|at| argv.get(at + 1)).map(String::as_str).or_else(joined)
    }

    fn has_key(&self) -> bool {
        let inherited =
            self.site.environment.keys().chain(self.work.env.iter().map(|(key, _)| key));
        let is_key = |name: &str| ["_API_KEY", "_TOKEN"].iter().any(|end| name.ends_with(end));
        inherited.filter(|name| is_key(name)).any(|name| self.variable(name).is_some())
    }

    fn folder(&self, variable: &str, otherwise: &str) -> PathBuf {
        let home = || PathBuf::from(self.variable("HOME").unwrap_or_else(|| "/".into()));
        let base = self.variable(variable).map_or_else(|| home().join(otherwise), PathBuf::from);
        base.join(VENDOR)
    }

    /// Returns its logins, by provider.
    fn login(&self) -> Map<String, Value> {
        let file = self.folder("XDG_DATA_HOME", ".local/share").join("auth.json");
        let login = read(&file).and_then(|text| serde_json::from_str(&text).ok());
        login.unwrap_or_default()
    }

    /// Returns the texts of its settings: the user's, those of the working directory and its
    /// ancestors, and those in variables.
    fn settings(&self) -> Vec<String> {
        const NAMES: [&str; 3] = ["opencode.json", "opencode.jsonc", "config.json"];
        let own = [self.folder("XDG_CONFIG_HOME", ".config")];
        let around = self.cwd.ancestors().flat_map(|dir| [dir.to_owned(), dir.join(".opencode")]);
        let folder = self.variable("OPENCODE_CONFIG_DIR").map(PathBuf::from);
        let folders = own.into_iter().chain(around).chain(folder);
        let files = folders.flat_map(|dir| NAMES.map(|name| dir.join(name)));
        let named = self.variable("OPENCODE_CONFIG").map(PathBuf::from);
        let texts = files.chain(named).filter_map(|file| read(&file));
        texts.chain(self.variable(CONTENT)).collect()
    }
}

fn read(file: &Path) -> Option<String> {
    let data = fs::metadata(file).ok()?;
    let small = data.is_file() && data.len() <= SETTINGS_BYTES;
    small.then(|| fs::read_to_string(file).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_of_opencode_is_opencode() {
        let starts = |line: &str| {
            starts_opencode(&line.split(' ').map(str::to_owned).collect::<Vec<String>>())
        };
        for line in [
            "opencode run --format json",
            "/opt/bin/opencode run",
            "env A=b opencode run",
            "npx -y opencode-ai@latest run",
            "bunx opencode-ai run",
        ] {
            assert!(starts(line), "{line}");
        }
        for line in ["sh agent.sh", "my-agent run opencode", "./opencode.sh run", ""] {
            assert!(!starts(line), "{line}");
        }
    }
}
