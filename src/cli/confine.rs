//! `orchestrate confine`: drops the given privileges and executes another program.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;

use crate::exec::Confinement;
use crate::view::stderr::talk;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct ConfineArgs {
    /// What is given up, as JSON
    #[arg(value_name = "JSON")]
    confinement: String,
    /// The program, what it is called, and its arguments
    #[arg(last = true, required = true, num_args = 2.., value_name = "ARGV")]
    argv: Vec<OsString>,
}

/// Returns only on failure, with the exit code that a shell would use.
pub(super) fn main(args: &ConfineArgs) -> ExitCode {
    let confinement: Confinement = match serde_json::from_str(&args.confinement) {
        Ok(confinement) => confinement,
        Err(error) => {
            talk(format_args!("error: what is to be given up cannot be read: {error}"));
            return ExitCode::from(2);
        }
    };
    let (program, argv) = (&args.argv[0], &args.argv[1..]);
    let argv: Result<Vec<CString>, _> =
        argv.iter().map(|argument| CString::new(argument.clone().into_vec())).collect();
    let error = match argv {
        Ok(argv) => confinement.exec(program, &argv),
        Err(error) => error.into(),
    };
    talk(format_args!("error: cannot start `{}`: {error}", program.to_string_lossy()));
    let found = error.kind() == io::ErrorKind::PermissionDenied;
    ExitCode::from(if found { 126 } else { 127 })
}
