//! Settings: the built-in file, overridden key by key by files of the user and the workspace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::workflow::plan::Provider;
use crate::workflow::{Problem, read_config};

const BUILT_IN: &str = include_str!("../../config/orchestrate.yaml");

/// Settings in force.
#[derive(Clone, Debug)]
pub struct Config {
    pub providers: BTreeMap<String, Provider>,
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
    /// The built-in settings.
    pub fn built_in() -> Config {
        let mut config = Config {
            providers: BTreeMap::new(),
            max_visits: 10_000,
            grace: Duration::from_secs(5),
            input_bytes: 64 << 20,
        };
        config.lay_over(BUILT_IN).expect("the built-in settings are valid");
        config
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
            config.lay_over(&text).map_err(|problems| ConfigError {
                file: path.to_owned(),
                text: text.clone(),
                problems,
            })?;
        }
        Ok(config)
    }

    fn lay_over(&mut self, text: &str) -> Result<(), Vec<Problem>> {
        let layer = read_config(text)?;
        self.providers.extend(layer.providers);
        self.max_visits = layer.max_visits.unwrap_or(self.max_visits);
        self.grace = layer.grace.unwrap_or(self.grace);
        self.input_bytes = layer.input_bytes.unwrap_or(self.input_bytes);
        Ok(())
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
        assert_eq!(config.providers["claude"].command.len(), 1);
        assert!(config.providers.contains_key("offline"));
        assert_eq!(config.grace, Duration::from_secs(5));
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
