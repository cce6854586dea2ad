//! A script of a language that has a runtime of its own: the command that runs it, and its
//! packages, which are there before it begins.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Map;

use super::Child;
use super::install;
use super::place::{VALUES, leave};
use crate::digest::Parts;
use crate::engine::Record;
use crate::exec;
use crate::fleet::parts::runtime_of;
use crate::fleet::work::{ScriptWork, Source};
use crate::prompt::limits::FaultClass;
use crate::workflow::plan::Runtime;

/// The longest code that is an argument; longer code is a file.
const CODE_BYTES: usize = 96 * 1024;

/// Why a script cannot be run.
pub enum Unready {
    /// It was stopped before it began.
    Stopped,
    Failed(Box<Record>),
}

impl Unready {
    pub fn failed(code: i32, message: impl Into<String>, class: FaultClass) -> Unready {
        let mut record = Record::refused(code, message, Map::new());
        record.error.iter_mut().for_each(|error| error.class = Some(class));
        Unready::Failed(Box::new(record))
    }
}

/// Where the code of a script is.
enum Code<'a> {
    Inline(&'a str),
    File(PathBuf),
}

/// Makes everything ready and gives the command.
pub fn ready(child: &Child, script: &ScriptWork) -> Result<Vec<String>, Unready> {
    let root = child.site.root();
    // A file is what its name says, whatever the node says.
    let (code, runtime) = match &script.source {
        Source::Text(code) => (Code::Inline(code), script.runtime),
        Source::File(path) => {
            (Code::File(root.join(path)), runtime_of(path).unwrap_or(script.runtime))
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
        (Code::File(path), None) => Code::File(path),
        (Code::Inline(code), None) if code.len() <= CODE_BYTES => Code::Inline(code),
        (code, packages) => match put(&root, runtime, &code, packages.as_deref()) {
            Ok(path) => Code::File(path),
            Err(error) => {
                let message = format!("cannot write the script: {error}");
                return Err(Unready::failed(1, message, FaultClass::Unknown));
            }
        },
    };
    Ok(command(runtime, &script.deps, &code))
}

fn check(child: &Child, runtime: Runtime, deps: &[String]) -> Result<(), Unready> {
    let (program, cure) = match runtime {
        Runtime::Bun => ("bun", "`npm install --global bun`, or see https://bun.sh"),
        Runtime::Uv => ("uv", "`pip install uv`, or see https://docs.astral.sh/uv"),
    };
    let own = child.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, path)| path);
    let path = own.or(child.site.environment.get("PATH")).map(|path| path.as_os_str());
    if let Err(error) = exec::locate(program, path.unwrap_or(OsStr::new("")), child.site.cwd()) {
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
        // What is in the workspace's `.env` is for its own programs.
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
        (Runtime::Bun, Code::File(file)) => {
            argv.extend(["run".into(), file.to_string_lossy().into_owned()]);
        }
        (Runtime::Uv, Code::File(file)) => argv.push(file.to_string_lossy().into_owned()),
    }
    argv
}

/// Puts a script into a directory of its own beside its packages, in the run's directory. The
/// directory is named by all that is in it, so that others who do the same meet no half of it.
fn put(root: &Path, runtime: Runtime, code: &Code, packages: Option<&Path>) -> io::Result<PathBuf> {
    let (text, name) = match code {
        Code::Inline(code) if runtime == Runtime::Bun => ((*code).to_owned(), "script.ts".into()),
        Code::Inline(code) => ((*code).to_owned(), "script.py".into()),
        Code::File(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (std::fs::read_to_string(path)?, name)
        }
    };
    let mut digest = Parts::default();
    digest.add(&text);
    digest.add(&packages.unwrap_or(Path::new("")).to_string_lossy());
    let dir = root.join(VALUES).join(&digest.hex()[..32]);
    std::fs::create_dir_all(&dir)?;
    if let Some(packages) = packages {
        // Packages are looked for beside the script.
        match std::os::unix::fs::symlink(packages.join("node_modules"), dir.join("node_modules")) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    let path = dir.join(name);
    leave(&path, &text)?;
    Ok(path)
}
