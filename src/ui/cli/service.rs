//! What a service manager hands over to the programs of the fleet: a line to tell it how things
//! go, and secrets.
//!
//! Agents look for their keys in the environment, and children inherit the environment of this
//! process. So secrets go there, and what the manager said to this process alone is taken out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use super::Failure;
use crate::fleet::credentials;
use crate::fleet::site::Environment;
use crate::fleet::systemd::{self, Notifier};

/// What was handed over; little more than nothing where no manager is.
#[derive(Debug)]
pub struct Service {
    pub notifier: Notifier,
    /// By name, to be masked in all that children print, whichever step or task names them.
    pub secrets: BTreeMap<String, OsString>,
}

impl Service {
    /// Reads what is there, and adds the secrets to the environment as it was read.
    pub fn read(environment: &mut Environment) -> Result<Service, Failure> {
        let text = |name: &str| environment.get(name).and_then(|value| value.to_str());
        let notifier = Notifier::from(|name| text(name).map(str::to_owned));
        let secrets = match text(credentials::VARIABLE).filter(|dir| !dir.is_empty()) {
            Some(dir) => credentials::read(Path::new(dir)).map_err(|error| {
                Failure::new(2, &error).hint("see `LoadCredential=` in the unit and its drop-ins")
            })?,
            None => BTreeMap::new(),
        };
        environment.extend(secrets.iter().map(|(name, value)| (name.clone(), value.clone())));
        Ok(Service { notifier, secrets })
    }

    /// Gives children the secrets, and keeps from them what is not for them.
    ///
    /// # Safety
    ///
    /// No other thread may run yet: the environment of a process is no place for two at once.
    pub unsafe fn hand_on(&self) {
        let not_theirs = systemd::VARIABLES.into_iter().chain([credentials::VARIABLE]);
        for name in not_theirs {
            // SAFETY: as the caller promised.
            unsafe { std::env::remove_var(name) };
        }
        for (name, value) in &self.secrets {
            // SAFETY: as the caller promised.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_join_the_environment_and_win() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("KEY"), "secret\n").unwrap();
        let mut environment = Environment::from([
            ("CREDENTIALS_DIRECTORY".to_owned(), dir.path().into()),
            ("KEY".to_owned(), "of a file that more people read".into()),
        ]);
        let service = Service::read(&mut environment).unwrap();
        assert_eq!(environment["KEY"], "secret");
        assert_eq!(service.secrets.len(), 1);
        assert_eq!(service.notifier.watchdog(), None);
    }

    #[test]
    fn a_bad_credential_is_bad_usage() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("not-a-name"), "secret\n").unwrap();
        let variable = ("CREDENTIALS_DIRECTORY".to_owned(), dir.path().into());
        let failure = Service::read(&mut Environment::from([variable])).unwrap_err();
        assert_eq!(failure.code, 2);
        assert!(failure.text.contains("`not-a-name`") && !failure.text.contains("secret\n"));
    }

    #[test]
    fn without_a_manager_there_is_nothing() {
        let mut environment = Environment::new();
        assert!(Service::read(&mut environment).unwrap().secrets.is_empty());
        assert!(environment.is_empty());
    }
}
