//! One invocation of the program: the project that it concerns, and the flags of the command line.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use tracing::Level;

use super::{Colour, Common, LogLevel};
use crate::attempt::exec_env::Environment;
use crate::base::program_name;
use crate::disk::fs::{self, OnVolume as _};
use crate::run::failure::Failure;
use crate::run::log;
use crate::run::project::Project;
use crate::settings::{Config, ConfigError};
use crate::view::stderr::talk;
use crate::workspace::resolved;

/// Name of the directory that makes its parent a workspace.
const OWN_DIR: &str = ".orchestrate";

/// An invocation of the program: its project, and its common flags. It derefs to the project, so
/// that an operation takes it as one.
#[derive(Clone)]
pub(crate) struct Invocation {
    pub project: Project,
    pub common: Common,
}

impl Deref for Invocation {
    type Target = Project;

    fn deref(&self) -> &Project {
        &self.project
    }
}

impl DerefMut for Invocation {
    fn deref_mut(&mut self) -> &mut Project {
        &mut self.project
    }
}

impl Invocation {
    pub(crate) fn read(common: &Common) -> Result<Invocation, Failure> {
        Invocation::read_by(common, load_config)
    }

    /// Like `read`, but falls back to the built-in settings if the settings are invalid. Also
    /// returns the failure in that case.
    pub(crate) fn read_leniently(
        common: &Common,
    ) -> Result<(Invocation, Option<Failure>), Failure> {
        let mut wrong = None;
        let invocation = Invocation::read_by(common, |common, workspace, environment| {
            load_config(common, workspace, environment).or_else(|failure| {
                wrong = Some(failure);
                Ok(Config::built_in())
            })
        })?;
        Ok((invocation, wrong))
    }

    /// Like `read_leniently`, but logs a warning about invalid settings.
    pub(crate) fn read_warned(common: &Common) -> Result<Invocation, Failure> {
        let (invocation, wrong) = Invocation::read_leniently(common)?;
        if let Some(failure) = wrong {
            warn_of_settings(&failure);
        }
        Ok(invocation)
    }

    fn read_by(
        common: &Common,
        load: impl FnOnce(&Common, &Path, &Environment) -> Result<Config, Failure>,
    ) -> Result<Invocation, Failure> {
        let environment: Environment = std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value)))
            .collect();
        let get = |key: &str| environment.get(key).filter(|value| !value.is_empty());
        let debug = common.debug || get("ORCHESTRATE_DEBUG").is_some_and(|value| value != "0");
        set_up_log(common, get("ORCHESTRATE_LOG_LEVEL"), debug)?;
        let here = std::env::current_dir().map_err(|error| {
            Failure::failed(format!("cannot find the current directory: {error}"))
        })?;
        let workspace = match get("ORCHESTRATE_WORKSPACE") {
            Some(path) => here.join(path),
            None => workspace_above(&here).unwrap_or_else(|| here.clone()),
        };
        let workspace = workspace.canonicalize().map_err(|error| {
            Failure::invalid(format!("the workspace `{}`: {error}", workspace.display()))
        })?;
        let state_dir = common.state_dir.as_ref().map(|given| here.join(given));
        let state_dir = state_dir
            .or_else(|| get("ORCHESTRATE_STATE_DIR").map(PathBuf::from))
            .unwrap_or_else(|| PathBuf::from(".orchestrate/runs"));
        let state_dir = resolved(&workspace, &state_dir);
        if let Some(given) = &common.state_dir {
            program_name::keep_state_dir(given);
        }
        let config = load(common, &workspace, &environment)?;
        if get("ORCHESTRATE_WORKSPACE").is_none()
            && here.canonicalize().is_ok_and(|h| h != workspace)
        {
            name_workspace(common, &workspace);
        }
        let notes = if common.quiet { |_: &str| {} } else { |line: &str| talk(line) };
        let trace = common.trace;
        let project = Project { workspace, state_dir, environment, config, debug, trace, notes };
        Ok(Invocation { project, common: common.clone() })
    }

    /// Returns a path of the workspace as the user can open it: relative to the current directory
    /// if it is inside, or else absolute.
    pub(super) fn openable(&self, path: &Path) -> String {
        let whole = self.workspace.join(path);
        let here = std::env::current_dir().ok();
        let inside = here.as_ref().and_then(|here| whole.strip_prefix(here).ok());
        inside.unwrap_or(&whole).display().to_string()
    }

    pub(crate) fn colour(&self) -> bool {
        match self.common.color {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => self.may_colour() && self.has_screen(),
        }
    }

    /// Returns true if `NO_COLOR` is unset or empty.
    pub(crate) fn may_colour(&self) -> bool {
        self.environment.get("NO_COLOR").is_none_or(|value| value.is_empty())
    }

    /// Returns true if stderr is a terminal that supports cursor movement.
    pub(crate) fn has_screen(&self) -> bool {
        std::io::stderr().is_terminal() && !self.is_dumb()
    }

    /// Returns true if `TERM` is unset, empty or `dumb`: a terminal without colours and cursor
    /// movement.
    pub(crate) fn is_dumb(&self) -> bool {
        self.environment.get("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
    }
}

/// Returns the nearest ancestor of `here` that is a workspace, or `None` if there is none or `here`
/// itself is one.
///
/// A workspace decides which programs run. So a directory of another user counts only if that user
/// is root or also owns `here`; otherwise a file in `/tmp` could take over commands.
pub(super) fn workspace_above(here: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let owner = |path: &Path| fs::symlink_metadata(path).ok().map(|file| file.uid());
    let found = here.ancestors().find(|dir| dir.join(OWN_DIR).is_present_dir())?;
    if found == here {
        return None;
    }
    let mine = [Some(geteuid().as_raw()), Some(0), owner(here)];
    if !mine.contains(&owner(&found.join(OWN_DIR))) {
        tracing::warn!(
            "`{}` belongs to another user and is not used; `cd` there or set \
             ORCHESTRATE_WORKSPACE to use it",
            found.join(OWN_DIR).display()
        );
        return None;
    }
    Some(found.to_owned())
}

/// Prints the workspace, once per process. Called if it is not the current directory.
fn name_workspace(common: &Common, workspace: &Path) {
    static SAID: std::sync::Once = std::sync::Once::new();
    if !common.quiet {
        SAID.call_once(|| talk(format_args!("workspace: {}", workspace.display())));
    }
}

fn set_up_log(common: &Common, variable: Option<&OsString>, debug: bool) -> Result<(), Failure> {
    let asked = match (common.log_level, variable) {
        (Some(level), _) => Some(level),
        (None, Some(text)) => {
            let text = text.to_string_lossy();
            let level = <LogLevel as clap::ValueEnum>::from_str(&text, true).map_err(|_| {
                Failure::invalid(format!("ORCHESTRATE_LOG_LEVEL is `{text}`"))
                    .hint("it must be debug, info, warn or error")
            })?;
            Some(level)
        }
        (None, None) => None,
    };
    let level = asked.map(|level| match level {
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Info => Level::INFO,
        LogLevel::Warn => Level::WARN,
        LogLevel::Error => Level::ERROR,
    });
    let shown = match level {
        Some(level) => level,
        None if common.quiet => Level::ERROR,
        None if common.verbose => Level::INFO,
        None => Level::WARN,
    };
    let kept = if debug { Level::DEBUG } else { level.unwrap_or(Level::INFO) };
    log::set_up(shown, kept, |line| talk(line));
    Ok(())
}

/// Logs a warning that the settings are invalid and the built-in ones are used.
pub(crate) fn warn_of_settings(failure: &Failure) {
    tracing::warn!("the settings are wrong, and those built in are taken: {}", failure.located());
}

fn load_config(
    common: &Common,
    workspace: &Path,
    environment: &Environment,
) -> Result<Config, Failure> {
    let (optional, named) = settings_files(common, workspace, environment);
    Config::load(&optional, named.as_deref()).map_err(|error| bad_config(&error))
}

/// Returns the settings files that are optional, and the one that the user named.
pub(crate) fn settings_files(
    common: &Common,
    workspace: &Path,
    environment: &Environment,
) -> (Vec<PathBuf>, Option<PathBuf>) {
    let home = environment
        .get("XDG_CONFIG_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| environment.get("HOME").map(|home| Path::new(home).join(".config")));
    let user = home.map(|home| home.join("orchestrate/config.yaml"));
    let mut optional: Vec<PathBuf> = user.into_iter().collect();
    optional.push(workspace.join(".orchestrate/config.yaml"));
    let named = common.config.clone().or_else(|| {
        environment.get("ORCHESTRATE_CONFIG").filter(|p| !p.is_empty()).map(PathBuf::from)
    });
    (optional, named)
}

pub(crate) fn bad_config(error: &ConfigError) -> Failure {
    let ConfigError { file, text, problems } = error;
    Failure::in_text(problems.clone(), &file.display().to_string(), text)
}
