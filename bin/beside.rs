//! What the programs other than `orchestrate` are: they become it, as one of its verbs.
//!
//! Whole copies would cost as much again in time to build and on disk for each of them. A process
//! that becomes another keeps its id, so a service manager and a shell see one program.

#![expect(
    clippy::disallowed_methods,
    reason = "nothing is started here: this process becomes the other program"
)]

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const NAME: &str = "orchestrate";

/// Becomes `orchestrate` with a verb and the arguments that this program was given. It lies beside
/// this program; one that does not is looked for on the `PATH`.
pub(crate) fn become_verb(verb: &[&str]) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let program = beside().filter(|file| file.is_file()).unwrap_or_else(|| PathBuf::from(NAME));
    let error = Command::new(&program).args(verb).args(arguments).exec();
    eprintln!("error: cannot run `{}`: {error}", program.display());
    eprintln!("  hint: `{NAME}` must lie beside this program or on the PATH");
    ExitCode::from(127)
}

/// Where `orchestrate` should be, links resolved.
fn beside() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    this.parent().map(Path::to_owned).map(|dir| dir.join(NAME))
}
