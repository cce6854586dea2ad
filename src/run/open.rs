//! Opens an existing run: its settings, its plan and its state, as the run stored them.

use std::io;
use std::path::Path;

use crate::attempt::source_files;
use crate::disk;
use crate::engine::{Origin, Run};
use crate::settings::{Config, ConfigError, Layer};
use crate::store::{self, LoadError, Store, StoreError};
use crate::workflow::{Compiled, Named, Place, Plan, Problem, compile};
use crate::workspace::{PathError, Workspace};

/// The reason why a run cannot be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// A file of the run is missing or unreadable: the message.
    Unreadable(String),
    /// This user may not read a file of the run.
    Forbidden(String),
    /// Its settings are no longer valid.
    Settings(ConfigError),
    /// Its workflow is no longer valid: the file and the problems.
    Workflow {
        file: String,
        problems: Vec<Problem>,
    },
    State(LoadError),
    /// Neither its state nor its journal can be read, and there is no backup.
    Lost(LoadError),
    /// No remaining file identifies its workflow: the message.
    Nothing(String),
}

/// The remedy for a run that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cure {
    /// Rebuild it from its remaining files.
    #[default]
    Repair,
    /// Start its workflow again.
    Restart,
    /// Remove it; nothing else is possible.
    Remove,
}

impl OpenError {
    /// Returns true if the error concerns the volume and may be temporary.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, OpenError::State(LoadError::Disk(_)))
    }

    /// Returns true if this user may not read the run. Then its state is unknown.
    pub(crate) fn is_forbidden(&self) -> bool {
        match self {
            OpenError::Forbidden(_) => true,
            OpenError::State(LoadError::Disk(error)) => error.is_forbidden(),
            _ => false,
        }
    }

    /// Returns the remedy, for a user who may read the run.
    pub(crate) fn cure(&self) -> Cure {
        use OpenError::{Forbidden, Lost, Nothing, Settings, State, Unreadable, Workflow};
        match self {
            Forbidden(_) | State(_) => Cure::Repair,
            Unreadable(_) | Settings(_) | Workflow { .. } | Lost(_) => Cure::Restart,
            Nothing(_) => Cure::Remove,
        }
    }

    /// Returns true if essential data of the run is lost: no remaining file has its workflow, its
    /// settings or its progress, so it can be neither repaired nor resumed.
    pub(crate) fn is_final(&self) -> bool {
        self.cure() != Cure::Repair
    }
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = |problems: &[Problem]| problems.first().map(|p| p.message.clone());
        match self {
            OpenError::Unreadable(message)
            | OpenError::Forbidden(message)
            | OpenError::Nothing(message) => f.write_str(message),
            OpenError::Settings(error) => {
                let message = first(&error.problems).unwrap_or_default();
                write!(f, "`{}`: {message}", error.file.display())
            }
            OpenError::Workflow { file, problems } => {
                write!(f, "`{file}`: {}", first(problems).unwrap_or_default())
            }
            OpenError::State(error) | OpenError::Lost(error) => write!(f, "{error}"),
        }
    }
}

/// Compiles a workflow, then checks on disk that its paths stay inside the workspace.
pub(crate) fn compile_in(
    workspace: &Workspace,
    config: &Config,
    text: &str,
) -> Result<(Plan, Vec<Problem>), Vec<Problem>> {
    let Compiled { plan, warnings, named } = compile(text, config)?;
    let escapes = escapes(workspace, &named);
    if escapes.is_empty() { Ok((plan, warnings)) } else { Err(escapes) }
}

/// Returns the paths of a workflow that lead out of the workspace.
pub(crate) fn escapes(workspace: &Workspace, named: &Named) -> Vec<Problem> {
    let escape = |(path, place): &(String, Place)| match workspace.check(path) {
        Err(error @ PathError::Refused { .. }) => {
            Some(Problem::error(error.to_string()).at(*place))
        }
        _ => None,
    };
    named.paths.iter().filter_map(escape).collect()
}

/// Returns the settings that a run was started with.
pub(crate) fn frozen_config(root: &Path) -> Result<Config, OpenError> {
    let path = root.join(store::SETTINGS);
    let layers: Vec<Layer> = match disk::machine().read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        read => read
            .and_then(|bytes| serde_json::from_slice(&bytes).map_err(std::io::Error::from))
            .map_err(|error| unreadable(&path, error))?,
    };
    Config::frozen(layers).map_err(OpenError::Settings)
}

/// Returns the plan that a run was started with.
pub(crate) fn frozen_plan(
    workspace: &Workspace,
    config: &Config,
    root: &Path,
) -> Result<Plan, OpenError> {
    let origin = store::origin(root);
    let path = root.join(origin.as_ref().map_or(store::DEFINITION, Origin::definition));
    let text = read_text(&path).map_err(|error| match unreadable(&path, error) {
        OpenError::Unreadable(message) if has_nothing(root) => OpenError::Nothing(message),
        error => error,
    })?;
    let plan = match compile_in(workspace, config, &text) {
        Ok((plan, _)) => plan,
        Err(problems) => {
            let file = path.display().to_string();
            return Err(OpenError::Workflow { file, problems });
        }
    };
    let plan = source_files::with_commands(plan, root);
    // `run-step` starts a single step, not the whole workflow.
    match origin.and_then(|origin| origin.only_step) {
        None => Ok(plan),
        Some(step) => plan.only(&step).ok_or_else(|| {
            OpenError::Unreadable(format!("its workflow has no step `{step}`, which it is of"))
        }),
    }
}

/// Opens a run so that it can be driven.
pub(crate) fn open(
    workspace: &Workspace,
    root: &Path,
) -> Result<(Config, Plan, Store, Run), OpenError> {
    let config = frozen_config(root)?;
    let plan = frozen_plan(workspace, &config, root)?;
    let (store, run) =
        Store::load(disk::machine(), root, &plan).map_err(|error| unloaded(root, &plan, error))?;
    Ok((config, plan, store, run))
}

/// Reads a run without driving it; another process may be driving it.
pub(crate) fn look(workspace: &Workspace, root: &Path) -> Result<(Plan, Run), OpenError> {
    let config = frozen_config(root)?;
    let plan = frozen_plan(workspace, &config, root)?;
    let run =
        Store::look(disk::machine(), root, &plan).map_err(|error| unloaded(root, &plan, error))?;
    Ok((plan, run))
}

/// Classifies a load error: is enough left of the run to rebuild it?
fn unloaded(root: &Path, plan: &Plan, error: LoadError) -> OpenError {
    let damaged = matches!(error, LoadError::Damaged { .. });
    match damaged && Store::is_beyond_repair(disk::machine(), root, plan) {
        true => OpenError::Lost(error),
        false => OpenError::State(error),
    }
}

/// Returns true if no file in a run's directory identifies its workflow.
pub(crate) fn has_nothing(root: &Path) -> bool {
    !disk::exists(&root.join(store::DEFINITION)).unwrap_or(true) && store::origin(root).is_none()
}

/// Reads a run from its journal, for a run whose `state.json` cannot be read.
pub(crate) fn look_by_journal(
    workspace: &Workspace,
    root: &Path,
) -> Result<(Plan, Run), OpenError> {
    let plan = frozen_plan(workspace, &frozen_config(root)?, root)?;
    let run = Store::look_by_journal(disk::machine(), root, &plan).map_err(OpenError::State)?;
    Ok((plan, run))
}

fn read_text(path: &Path) -> io::Result<String> {
    let bytes = disk::machine().read(path)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn unreadable(path: &Path, source: io::Error) -> OpenError {
    use io::ErrorKind::{InvalidData, IsADirectory, NotFound, PermissionDenied, UnexpectedEof};
    let message = || format!("cannot read `{}`: {source}", path.display());
    if source.kind() == PermissionDenied {
        return OpenError::Forbidden(message());
    }
    let final_ones = [InvalidData, IsADirectory, NotFound, UnexpectedEof];
    if final_ones.contains(&source.kind()) {
        return OpenError::Unreadable(message());
    }
    let path = path.to_owned();
    OpenError::State(LoadError::Disk(StoreError { doing: "read", path, source }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_be_read_is_no_damage() {
        let of = |kind: io::ErrorKind| unreadable(Path::new("workflow.yaml"), kind.into());
        let state = |kind: io::ErrorKind| {
            let (doing, path, source) = ("read", "state.json".into(), kind.into());
            OpenError::State(LoadError::Disk(StoreError { doing, path, source }))
        };
        use io::ErrorKind::{Interrupted, NotFound, PermissionDenied};
        for error in [of(PermissionDenied), state(PermissionDenied)] {
            assert!(error.is_forbidden() && !error.is_final(), "{error}");
        }
        assert!(of(NotFound).is_final() && !of(NotFound).is_forbidden());
        assert!(of(Interrupted).may_pass() && !of(Interrupted).is_final());
        assert!(!state(NotFound).is_forbidden() && !state(NotFound).is_final());
    }
}
