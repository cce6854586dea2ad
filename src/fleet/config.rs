//! Settings: the built-in file, overridden key by key by files of the user and the workspace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::digest::sha256;
use crate::workflow::plan::Provider;
use crate::workflow::{Configured, Problem, read_config};

const BUILT_IN: &str = include_str!("../../config/orchestrate.yaml");

/// A settings file as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    pub file: String,
    pub sha256: String,
    pub text: String,
}

/// Settings in force.
#[derive(Clone, Debug)]
pub struct Config {
    /// The files laid over the built-in one, in order: what a run freezes, so that it goes on
    /// as it began whatever the files say later.
    pub layers: Vec<Layer>,
    /// Those of the files alone; with the built-in ones they are made when first asked for.
    own_providers: BTreeMap<String, Provider>,
    all_providers: OnceLock<BTreeMap<String, Provider>>,
    pub max_visits: u32,
    pub grace: Duration,
    pub input_bytes: u64,
}

/// A settings file that cannot be used.
#[derive(Debug)]
pub struct ConfigError {
    pub file: PathBuf,
    pub text: String,
    pub problems: Vec<Problem>,
}

impl Config {
    /// The built-in settings. Their limits stand here too, so that starting up reads no YAML; a
    /// test holds the two together.
    pub fn built_in() -> Config {
        Config {
            layers: Vec::new(),
            own_providers: BTreeMap::new(),
            all_providers: OnceLock::new(),
            max_visits: 10_000,
            grace: Duration::from_secs(5),
            input_bytes: 64 << 20,
        }
    }

    /// The built-in settings with those files laid over that exist, in order.
    pub fn load(optional: &[PathBuf], required: Option<&Path>) -> Result<Config, ConfigError> {
        let mut config = Config::built_in();
        let files = optional.iter().map(|path| (path.as_path(), false));
        for (path, must_exist) in files.chain(required.map(|path| (path, true))) {
            let text = match std::fs::read_to_string(path) {
                Ok(text) => text,
                Err(error) if !must_exist && error.kind() == std::io::ErrorKind::NotFound => {
                    continue;
                }
                Err(error) => return Err(unreadable(path, &error)),
            };
            let file = path.display().to_string();
            config.add(Layer { file, sha256: sha256(text.as_bytes()), text })?;
        }
        Ok(config)
    }

    /// The settings that a run was begun with.
    pub fn frozen(layers: Vec<Layer>) -> Result<Config, ConfigError> {
        let mut config = Config::built_in();
        for layer in layers {
            config.add(layer)?;
        }
        Ok(config)
    }

    fn add(&mut self, layer: Layer) -> Result<(), ConfigError> {
        self.lay_over(&layer.text).map_err(|problems| ConfigError {
            file: PathBuf::from(&layer.file),
            text: layer.text.clone(),
            problems,
        })?;
        self.layers.push(layer);
        Ok(())
    }

    fn lay_over(&mut self, text: &str) -> Result<(), Vec<Problem>> {
        let layer = read_config(text)?;
        self.own_providers.extend(layer.providers);
        self.max_visits = layer.max_visits.unwrap_or(self.max_visits);
        self.grace = layer.grace.unwrap_or(self.grace);
        self.input_bytes = layer.input_bytes.unwrap_or(self.input_bytes);
        Ok(())
    }
}

impl Configured for Config {
    fn providers(&self) -> &BTreeMap<String, Provider> {
        self.all_providers.get_or_init(|| {
            let built_in = read_config(BUILT_IN).expect("the built-in settings are valid");
            let mut all = built_in.providers;
            all.extend(self.own_providers.clone());
            all
        })
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> ConfigError {
    let problem = Problem::error(format!("the settings cannot be read: {error}"));
    ConfigError { file: path.to_owned(), text: String::new(), problems: vec![problem] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_files_win_key_by_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, "providers: { claude: { command: [mine] } }\n").unwrap();
        let config = Config::load(&[dir.path().join("none.yaml"), file], None).unwrap();
        assert_eq!(config.providers()["claude"].command.len(), 1);
        assert!(config.providers().contains_key("offline"));
        assert_eq!(config.grace, Duration::from_secs(5));
    }

    #[test]
    fn the_built_in_file_says_what_is_built_in() {
        let (file, config) = (read_config(BUILT_IN).unwrap(), Config::built_in());
        assert_eq!(file.max_visits, Some(config.max_visits));
        assert_eq!(file.grace, Some(config.grace));
        assert_eq!(file.input_bytes, Some(config.input_bytes));
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, "limits:\n  grace_secs: 1\n").unwrap();
        let error = Config::load(&[], Some(&file)).unwrap_err();
        assert_eq!(error.problems[0].place.unwrap().line, 2);
        assert_eq!(error.problems[0].hint.as_deref(), Some("did you mean `grace_sec`?"));
    }
}
