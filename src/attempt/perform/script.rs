//! A script in a language with its own runtime: the command that runs it, and its packages, which
//! are installed before it starts.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Map;

use super::Child;
use super::install;
use super::place::{VALUES, leave};
use crate::agent::faults::FaultClass;
use crate::attempt::source_files::{Since, runtime_of};
use crate::attempt::work::{ScriptWork, Source};
use crate::base::digest::Parts;
use crate::disk::fs;
use crate::engine::Record;
use crate::exec;
use crate::workflow::plan::Runtime;

/// Maximum length of code in an argument; longer code goes to a file.
const CODE_BYTES: usize = 96 * 1024;

/// The reason why a script cannot run.
pub(super) enum Unready {
    /// It was stopped before it started.
    Stopped,
    Failed(Box<Record>),
}

impl Unready {
    pub(super) fn failed(code: i32, message: impl Into<String>, class: FaultClass) -> Unready {
        let mut record = Record::refused(code, message, Map::new());
        record.error.iter_mut().for_each(|error| error.class = Some(class));
        Unready::Failed(Box::new(record))
    }
}

/// Location of a script's code.
enum Code<'a> {
    Inline(&'a str),
    /// The author's file, in its original place.
    File(PathBuf),
    /// A copy of a file that its author has changed or removed since.
    Copy {
        file: PathBuf,
        /// Directory of the original file.
        beside: Option<PathBuf>,
    },
}

/// A script that is ready to run.
#[derive(Default)]
pub(super) struct Ready {
    pub argv: Vec<String>,
    /// Variables that it needs in addition to those of its step.
    pub env: Vec<(String, OsString)>,
    /// A warning for the user.
    pub warning: Option<String>,
}

/// Installs packages, writes files, and returns the command.
pub(super) fn ready(child: &Child, script: &ScriptWork) -> Result<Ready, Unready> {
    let root = child.site.root();
    let mut ready = Ready::default();
    // A file's extension decides its runtime, even if the node names another.
    let (code, runtime) = match &script.source {
        Source::Text(code) => (Code::Inline(code), script.runtime),
        Source::File(path) => {
            let (code, warning) = find(child, script, root.join(path));
            ready.warning = warning;
            (code, runtime_of(path).unwrap_or(script.runtime))
        }
    };
    check(child, runtime, &script.deps)?;
    let packages = match (runtime, script.deps.is_empty()) {
        (_, true) => None,
        (Runtime::Bun, false) => Some(install::bun(child, &script.deps)?),
        (Runtime::Uv, false) => {
            install::uv(child, with(&script.deps))?;
            None
        }
    };
    let code = match (code, packages) {
        (Code::File(path), packages) => {
            // Packages cannot be placed next to the file, so `NODE_PATH` names them; the runtime
            // searches it after the packages that exist there.
            ready.env.extend(packages.map(|packages| node_path(child, &packages)));
            Code::File(path)
        }
        (Code::Copy { file, beside: None }, None) => Code::File(file),
        (Code::Inline(code), None) if code.len() <= CODE_BYTES => Code::Inline(code),
        (code, packages) => match put(&root, runtime, &code, packages.as_deref()) {
            Ok(path) => Code::File(path),
            Err(error) => {
                let message = format!("cannot write the script: {error}");
                return Err(Unready::failed(1, message, FaultClass::Unknown));
            }
        },
    };
    ready.argv = command(runtime, &script.deps, &code);
    Ok(ready)
}

/// Returns a variable of the child process: its own, otherwise the inherited one.
fn variable<'c>(child: &'c Child, name: &str) -> Option<&'c OsStr> {
    let own = child.env.iter().rev().find(|(own, _)| own == name).map(|(_, value)| value);
    own.or(child.site.environment.get(name)).map(OsString::as_os_str)
}

/// Returns the variable that names packages which cannot be placed next to a script.
fn node_path(child: &Child, packages: &Path) -> (String, OsString) {
    const NAME: &str = "NODE_PATH";
    let mut paths = packages.join("node_modules").into_os_string();
    if let Some(others) = variable(child, NAME).filter(|others| !others.is_empty()) {
        paths.push(":");
        paths.push(others);
    }
    (NAME.into(), paths)
}

/// Locates a script file. If it is unchanged since the run started, it runs in its original place,
/// with the files next to it. Otherwise the run's copy runs, with the files that are there now.
fn find(child: &Child, script: &ScriptWork, copy: PathBuf) -> (Code<'static>, Option<String>) {
    let Some(source) = &script.from else {
        return (Code::Copy { file: copy, beside: None }, None);
    };
    let home = variable(child, "HOME").filter(|home| !home.is_empty()).map(Path::new);
    let path = source.path(child.site.cwd(), home);
    match source.since(&path) {
        Since::Same => (Code::File(path), None),
        since => {
            let warning = format!("`{}` {}: its copy is run", source.from, since.words());
            (Code::Copy { file: copy, beside: path.parent().map(Path::to_owned) }, Some(warning))
        }
    }
}

fn check(child: &Child, runtime: Runtime, deps: &[String]) -> Result<(), Unready> {
    let (program, cure) = match runtime {
        Runtime::Bun => ("bun", "`npm install --global bun`, or see https://bun.sh"),
        Runtime::Uv => ("uv", "`pip install uv`, or see https://docs.astral.sh/uv"),
    };
    let path = variable(child, "PATH").unwrap_or(OsStr::new(""));
    if let Err(error) = exec::locate(program, path, child.site.cwd()) {
        let message = format!("{error}, but runs this script; to install it: {cure}");
        return Err(Unready::failed(127, message, FaultClass::Fatal));
    }
    match deps.iter().find(|dep| dep.starts_with('-') || dep.trim().is_empty()) {
        Some(dep) => {
            let message = format!("`{dep}` in `deps` is no name of a package");
            Err(Unready::failed(2, message, FaultClass::Fatal))
        }
        None => Ok(()),
    }
}

fn with(deps: &[String]) -> Vec<String> {
    deps.iter().map(|dep| format!("--with={dep}")).collect()
}

fn command(runtime: Runtime, deps: &[String], code: &Code) -> Vec<String> {
    let mut argv: Vec<String> = match runtime {
        // The workspace's `.env` is for its own programs.
        Runtime::Bun => vec!["bun".into(), "--no-env-file".into()],
        Runtime::Uv => vec!["uv".into(), "run".into(), "--no-project".into()],
    };
    if runtime == Runtime::Uv {
        argv.extend(with(deps));
    }
    match (runtime, code) {
        (Runtime::Bun, Code::Inline(code)) => argv.extend(["-e".into(), (*code).into()]),
        (Runtime::Uv, Code::Inline(code)) => {
            argv.extend(["python".into(), "-c".into(), (*code).into()]);
        }
        (Runtime::Bun, Code::File(file) | Code::Copy { file, .. }) => {
            argv.extend(["run".into(), file.to_string_lossy().into_owned()]);
        }
        (Runtime::Uv, Code::File(file) | Code::Copy { file, .. }) => {
            argv.push(file.to_string_lossy().into_owned());
        }
    }
    argv
}

/// Writes a script to its own directory within the run's directory, next to links to its packages
/// and to its original neighbors. The directory's name is a digest of its content, so that
/// concurrent writers cannot see an incomplete one.
fn put(root: &Path, runtime: Runtime, code: &Code, packages: Option<&Path>) -> io::Result<PathBuf> {
    let mut among = None;
    let (text, name) = match code {
        Code::Inline(code) if runtime == Runtime::Bun => ((*code).to_owned(), "script.ts".into()),
        Code::Inline(code) => ((*code).to_owned(), "script.py".into()),
        Code::File(path) | Code::Copy { file: path, .. } => {
            if let Code::Copy { beside, .. } = code {
                among = beside.as_deref();
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (fs::read_to_string(path)?, name)
        }
    };
    let mut digest = Parts::default();
    digest.add(&text);
    for path in [packages, among] {
        digest.add(&path.unwrap_or(Path::new("")).to_string_lossy());
    }
    let dir = root.join(VALUES).join(&digest.hex()[..32]);
    fs::create_dir_all(&dir)?;
    if let Some(packages) = packages {
        // The runtime searches for packages next to the script.
        link(&packages.join("node_modules"), &dir)?;
    }
    for entry in among.map(fs::read_dir).into_iter().flatten().flatten().flatten() {
        if entry.file_name().to_string_lossy() != name {
            link(&entry.path(), &dir)?;
        }
    }
    let path = dir.join(name);
    leave(&path, &text)?;
    Ok(path)
}

/// Creates a link in a directory under the target's own name, unless that name exists.
fn link(to: &Path, dir: &Path) -> io::Result<()> {
    let name = dir.join(to.file_name().unwrap_or_default());
    match std::os::unix::fs::symlink(to, name) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
