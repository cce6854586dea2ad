//! Taking up a run that has been kept: its settings, its plan and its state, as it froze them.

use std::io;
use std::path::Path;

use super::config::{Config, ConfigError, Layer};
use super::parts;
use crate::disk;
use crate::engine::{Event, Origin, Run};
use crate::store::{self, LoadError, Store, StoreError, journal};
use crate::workflow::{Compiled, Named, Place, Plan, Problem, compile};
use crate::workspace::{PathError, Workspace};

/// Why a run cannot be taken up.
#[derive(Debug)]
pub enum OpenError {
    /// A file of the run is missing or cannot be read: what is wrong.
    Unreadable(String),
    /// This user may not read a file of the run.
    Forbidden(String),
    /// Its settings are not valid any more.
    Settings(ConfigError),
    /// Its workflow is not valid any more: the file, its text, what is wrong.
    Workflow {
        file: String,
        text: String,
        problems: Vec<Problem>,
    },
    State(LoadError),
    /// Neither its state nor its journal can be read, nor is there a backup.
    Lost(LoadError),
    /// Nothing is left that would tell which workflow it is of: what is wrong.
    Nothing(String),
}

/// What helps a run that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cure {
    /// It is rebuilt from what is left of it.
    #[default]
    Repair,
    /// Its workflow is begun anew.
    Restart,
    /// It can only be removed.
    Remove,
}

impl OpenError {
    /// Whether it is about the volume, and may be otherwise in a while.
    pub fn may_pass(&self) -> bool {
        matches!(self, OpenError::State(LoadError::Disk(_)))
    }

    /// Whether this user may not read it. Nothing is known of the run then.
    pub fn is_forbidden(&self) -> bool {
        match self {
            OpenError::Forbidden(_) => true,
            OpenError::State(LoadError::Disk(error)) => error.is_forbidden(),
            _ => false,
        }
    }

    /// What helps, where this user may read it.
    pub fn cure(&self) -> Cure {
        use OpenError::{Forbidden, Lost, Nothing, Settings, State, Unreadable, Workflow};
        match self {
            Forbidden(_) | State(_) => Cure::Repair,
            Unreadable(_) | Settings(_) | Workflow { .. } | Lost(_) => Cure::Restart,
            Nothing(_) => Cure::Remove,
        }
    }

    /// Whether what the run goes by is lost: nothing that is left of it tells its workflow, its
    /// settings or how far it was, so it can neither be mended nor go on.
    pub fn is_final(&self) -> bool {
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
            OpenError::Workflow { file, problems, .. } => {
                write!(f, "`{file}`: {}", first(problems).unwrap_or_default())
            }
            OpenError::State(error) | OpenError::Lost(error) => write!(f, "{error}"),
        }
    }
}

/// Compiles, then asks the disk what only it can tell: do the workflow's paths stay inside?
pub fn compile_in(
    workspace: &Workspace,
    config: &Config,
    text: &str,
) -> Result<(Plan, Vec<Problem>), Vec<Problem>> {
    let Compiled { plan, warnings, named } = compile(text, config)?;
    let escapes = escapes(workspace, &named);
    if escapes.is_empty() { Ok((plan, warnings)) } else { Err(escapes) }
}

/// The paths of a workflow that lead out of the workspace.
pub fn escapes(workspace: &Workspace, named: &Named) -> Vec<Problem> {
    let escape = |(path, place): &(String, Place)| match workspace.check(path) {
        Err(error @ PathError::Refused { .. }) => {
            Some(Problem::error(error.to_string()).at(*place))
        }
        _ => None,
    };
    named.paths.iter().filter_map(escape).collect()
}

/// The settings that a run was begun with.
pub fn frozen_config(root: &Path) -> Result<Config, OpenError> {
    let path = root.join(store::SETTINGS);
    let layers: Vec<Layer> = match disk::machine().read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        read => read
            .and_then(|bytes| serde_json::from_slice(&bytes).map_err(std::io::Error::from))
            .map_err(|error| unreadable(&path, error))?,
    };
    Config::frozen(layers).map_err(OpenError::Settings)
}

/// The plan that a run was begun with.
pub fn frozen_plan(workspace: &Workspace, config: &Config, root: &Path) -> Result<Plan, OpenError> {
    let origin = origin(root);
    let path = root.join(origin.as_ref().map_or(store::DEFINITION, Origin::definition));
    let text = read_text(&path).map_err(|error| match unreadable(&path, error) {
        OpenError::Unreadable(message) if has_nothing(root) => OpenError::Nothing(message),
        error => error,
    })?;
    let mut plan = match compile_in(workspace, config, &text) {
        Ok((plan, _)) => plan,
        Err(problems) => {
            let file = path.display().to_string();
            return Err(OpenError::Workflow { file, text, problems });
        }
    };
    parts::learn(&mut plan, root);
    // What `run-step` began is one step, not the whole workflow.
    match origin.and_then(|origin| origin.only_step) {
        None => Ok(plan),
        Some(step) => plan.only(&step).ok_or_else(|| {
            OpenError::Unreadable(format!("its workflow has no step `{step}`, which it is of"))
        }),
    }
}

/// A run as it stands, ready to be driven.
pub fn open(workspace: &Workspace, root: &Path) -> Result<(Config, Plan, Store, Run), OpenError> {
    let config = frozen_config(root)?;
    let plan = frozen_plan(workspace, &config, root)?;
    let (store, run) =
        Store::load(disk::machine(), root, &plan).map_err(|error| unloaded(root, &plan, error))?;
    Ok((config, plan, store, run))
}

/// A run as it stands, for whoever only looks: somebody may be driving it.
pub fn look(workspace: &Workspace, root: &Path) -> Result<(Plan, Run), OpenError> {
    let config = frozen_config(root)?;
    let plan = frozen_plan(workspace, &config, root)?;
    let run =
        Store::look(disk::machine(), root, &plan).map_err(|error| unloaded(root, &plan, error))?;
    Ok((plan, run))
}

/// Why the state of a run cannot be taken up: is enough left of it to rebuild it?
fn unloaded(root: &Path, plan: &Plan, error: LoadError) -> OpenError {
    let damaged = matches!(error, LoadError::Damaged { .. });
    match damaged && Store::is_beyond_repair(disk::machine(), root, plan) {
        true => OpenError::Lost(error),
        false => OpenError::State(error),
    }
}

/// Whether nothing in a run's directory tells which workflow it is of.
pub fn has_nothing(root: &Path) -> bool {
    !disk::exists(&root.join(store::DEFINITION)).unwrap_or(true) && origin(root).is_none()
}

/// The same where `state.json` cannot be read: what the journal tells.
pub fn look_by_journal(workspace: &Workspace, root: &Path) -> Result<(Plan, Run), OpenError> {
    let plan = frozen_plan(workspace, &frozen_config(root)?, root)?;
    let run = Store::look_by_journal(disk::machine(), root, &plan).map_err(OpenError::State)?;
    Ok((plan, run))
}

/// What a run was begun with, from whichever file still says it.
pub fn origin(root: &Path) -> Option<Origin> {
    let disk = disk::machine();
    let names = disk.list(root).unwrap_or_default().into_iter();
    let backups = names.filter(|name| name.starts_with(store::STATE) && name.ends_with(".bak"));
    for name in std::iter::once(store::STATE.to_owned()).chain(backups) {
        let document = disk.read(&root.join(name)).unwrap_or_default();
        if let Ok(origin) = serde_json::from_slice::<Origin>(&document) {
            return Some(origin);
        }
    }
    let bytes = disk.read(&root.join(store::JOURNAL)).ok()?;
    let first = journal::read(&bytes).entries.into_iter().next()?;
    match first.event {
        Event::Started { origin } => Some(*origin),
        _ => None,
    }
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
